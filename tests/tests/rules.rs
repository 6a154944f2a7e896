//! The rules of a route, and all ways by which a request could get to its handler without them.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};

use flatout_tests::authority::self_sign;
use flatout_tests::{Answer, Folder, PATIENCE, Server, Signal, answers, program, read_to_close, until};

/// The password `secret`, with a cost that makes a check last, and `secret` and `other` with hardly any.
const SLOW_SECRET: &str = "$2b$09$abcdefghijklmnopqrstuuHGaj8X0gyV0nNYEM.J5pTQDq3AfkM3W";
const SECRET: &str = "$2b$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW";
const OTHER: &str = "$2b$04$abcdefghijklmnopqrstuu0HtfOlPbTiymk5tcV.3TsFPDd3SYZqu";

/// `ann:secret` and `ann:other`.
const ANN_SECRET: &str = "Authorization: Basic YW5uOnNlY3JldA==\r\n";
const ANN_OTHER: &str = "Authorization: Basic YW5uOm90aGVy\r\n";

fn flatout(arguments: &[&str]) -> Output {
    Command::new(program("flatout")).args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

pub(crate) fn served(folder: &Folder, site: &str) -> Server {
    folder.write("site.kdl", site);
    let mut command = Command::new(program("flatout"));
    command.arg("serve").arg("-c").arg(folder.0.join("site.kdl")).args(["--listen", "127.0.0.1:0"]);
    Server::start(command)
}

/// An upstream that records the heads of requests. It accepts each upgrade, and refuses what comes to `/auth`.
struct Upstream {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Upstream {
    fn start() -> Upstream {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let seen: Arc<Mutex<Vec<String>>> = Arc::default();
        let record = seen.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let record = record.clone();
                std::thread::spawn(move || answer_all(stream, &record));
            }
        });
        Upstream { address, seen }
    }

    fn seen(&self) -> Vec<String> {
        std::mem::take(&mut self.seen.lock().unwrap())
    }
}

fn answer_all(mut stream: TcpStream, seen: &Mutex<Vec<String>>) {
    while let Some(head) = read_head(&mut stream) {
        let lower = head.to_lowercase();
        let line = lower.lines().next().unwrap_or_default().to_owned();
        let response = match () {
            () if line.contains(" /auth") => {
                "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n".to_owned()
            }
            () if lower.contains("\r\nupgrade: ") => {
                let protocol = lower
                    .split("\r\nupgrade: ")
                    .nth(1)
                    .and_then(|rest| rest.lines().next())
                    .unwrap_or_default();
                format!(
                    "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\n\r\n"
                )
            }
            () if line.starts_with("head ") => "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n".to_owned(),
            () => "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nhandler".to_owned(),
        };
        if !line.contains(" /auth") {
            seen.lock().unwrap().push(head);
        }
        if stream.write_all(response.as_bytes()).is_err() {
            return;
        }
    }
}

fn read_head(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    Some(String::from_utf8_lossy(&head).into_owned())
}

/// The first response to a request; the connection is closed then.
fn ask(server: &Server, request: &str) -> Option<Answer> {
    first_answer(server.connect(), request)
}

fn first_answer(mut stream: TcpStream, request: &str) -> Option<Answer> {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let bytes = read_to_close(&mut stream);
    answers(&bytes, request.starts_with("HEAD ")).into_iter().next()
}

/// A connection from this address of the loopback network.
fn connect_from(source: [u8; 4], server: &Server) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &SocketAddr::from((source, 0))).unwrap();
    connect(&socket, &server.address).unwrap();
    TcpStream::from(socket)
}

fn get(fields: &str) -> String {
    format!("GET / HTTP/1.1\r\nHost: t.test\r\nConnection: close\r\n{fields}\r\n")
}

fn reload(folder: &Folder) -> String {
    let mut stream = UnixStream::connect(folder.0.join("admin.sock")).unwrap();
    stream
        .write_all(b"POST /reload HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

/// Each rule that refuses: its name, its settings, and its status.
const RULES: [(&str, &str, u16); 5] = [
    ("denied", "deny all", 403),
    ("password", "basic-auth inside; auth-user ann \"HASH\"", 401),
    ("asked", "forward-auth auth path=\"/auth\"", 401),
    ("closed", "maintenance on", 503),
    ("limited", "rate-limit \"1/h\" key=everyone", 429),
];

/// Each kind of handler behind them.
const HANDLERS: [(&str, &str); 5] = [
    ("proxy", "proxy app"),
    ("cached", "proxy app; cache \"1h\""),
    ("files", "files secret; rewrite-prefix \"/PATH\" \"/\""),
    ("tried", "try-files secret; proxy app; rewrite-prefix \"/PATH\" \"/\""),
    ("text", "respond 200 handler"),
];

/// Requests that could get past the rules of a path: `PATH` and `TEXT` stand for the path and an escaped spelling.
const WAYS: [&str; 40] = [
    "GET PATH HTTP/1.1\r\nHost: t.test\r\n",
    "HEAD PATH HTTP/1.1\r\nHost: t.test\r\n",
    "POST PATH HTTP/1.1\r\nHost: t.test\r\nContent-Length: 0\r\n",
    "PUT PATH HTTP/1.1\r\nHost: t.test\r\nContent-Length: 3\r\n",
    "DELETE PATH HTTP/1.1\r\nHost: t.test\r\n",
    "PATCH PATH HTTP/1.1\r\nHost: t.test\r\nTransfer-Encoding: chunked\r\n",
    "OPTIONS PATH HTTP/1.1\r\nHost: t.test\r\n",
    "OPTIONS PATH HTTP/1.1\r\nHost: t.test\r\nOrigin: https://a.test\r\nAccess-Control-Request-Method: GET\r\n",
    "OPTIONS PATH HTTP/1.1\r\nHost: t.test\r\nOrigin: https://a.test\r\nAccess-Control-Request-Method: PUT\r\n",
    "OPTIONS * HTTP/1.1\r\nHost: t.test\r\n",
    "TRACE PATH HTTP/1.1\r\nHost: t.test\r\n",
    "CONNECT t.test:80 HTTP/1.1\r\nHost: t.test:80\r\n",
    "get PATH HTTP/1.1\r\nHost: t.test\r\n",
    "BREW PATH HTTP/1.1\r\nHost: t.test\r\n",
    "PRI PATH HTTP/1.1\r\nHost: t.test\r\n",
    "GET PATH HTTP/1.0\r\n",
    "GET PATH HTTP/1.0\r\nHost: t.test\r\n",
    "GET http://t.test/PATH HTTP/1.1\r\nHost: other.test\r\n",
    "GET https://t.test/PATH HTTP/1.1\r\nHost: t.test\r\n",
    "PUT http://T.test:81/PATH HTTP/1.1\r\nHost: t.test\r\n",
    "GET PATH HTTP/1.1\r\nHost: T.TEST.:80\r\n",
    "GET /PATH HTTP/1.1\r\nHost: t.test\r\n",
    "GET /.PATH HTTP/1.1\r\nHost: t.test\r\n",
    "GET /open/..PATH HTTP/1.1\r\nHost: t.test\r\n",
    "GET /open/%2e%2ePATH HTTP/1.1\r\nHost: t.test\r\n",
    "GET TEXT HTTP/1.1\r\nHost: t.test\r\n",
    "PUT TEXT HTTP/1.1\r\nHost: t.test\r\n",
    "GET PATH/ HTTP/1.1\r\nHost: t.test\r\n",
    "GET PATH/page.html HTTP/1.1\r\nHost: t.test\r\n",
    "PUT PATH/page.html HTTP/1.1\r\nHost: t.test\r\n",
    "GET /oldPATH HTTP/1.1\r\nHost: t.test\r\n",
    "PUT /oldPATH HTTP/1.1\r\nHost: t.test\r\n",
    "GET /openPATH HTTP/1.1\r\nHost: t.test\r\nX-Original-URL: PATH\r\nX-Rewrite-URL: PATH\r\n",
    "PUT PATH HTTP/1.1\r\nHost: t.test\r\nX-HTTP-Method-Override: GET\r\n",
    "GET PATH HTTP/1.1\r\nHost: t.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n",
    "GET PATH HTTP/1.1\r\nHost: t.test\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n",
    "PUT PATH HTTP/1.1\r\nHost: t.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n",
    "GET PATH HTTP/1.1\r\nHost: t.test\r\nEarly-Data: 1\r\n",
    "GET PATH HTTP/1.1\r\nHost: t.test\r\nRange: bytes=0-\r\nIf-None-Match: *\r\n",
    "GET PATH HTTP/1.1\r\nHost: t.test\r\nAuthorization: Basic YW5uOnNlY3JldA==\r\nAuthorization: Basic YW5uOnNlY3JldA==\r\n",
];

#[test]
fn no_request_gets_to_a_handler_past_the_rules_of_its_route() {
    let (folder, upstream) = (Folder::new(), Upstream::start());
    folder.write("secret/page.html", "handler");
    folder.write("secret/index.html", "handler");
    folder.write("public/index.html", "open");
    let mut site = format!(
        "upstream app {{ server \"{0}\"; }}\nupstream auth {{ server \"{0}\"; }}\n\
         site \"t.test\" {{\n  files public\n  spa on\n  error-page 404 405 text=\"an error\"\n",
        upstream.address
    );
    let mut paths = Vec::new();
    for (rule, settings, status) in RULES {
        for (handler, action) in HANDLERS {
            for methods in ["", "methods GET POST; ", "cors \"https://a.test\"; methods GET; "] {
                let path = format!("/{rule}-{handler}-{}", methods.len());
                // Limits of routes with the same name count together; each route has its own.
                let settings = settings.replace("HASH", SECRET);
                let action = action.replace("/PATH", &path);
                site += &format!("  route \"{path}\" {{ {methods}{settings}; {action}; }}\n");
                paths.push((rule, handler, path, status, methods));
            }
        }
    }
    site += "  route \"/old/(.*)\" match=regex { rewrite \"^/old(/.*)$\" \"$1\" then=route; respond 200 handler; }\n}\n\
             site \"other.test\" { respond 200 open; }\n";
    let server = served(&folder, &site);
    for (rule, handler, path, status, methods) in paths {
        if rule == "limited" {
            let first =
                ask(&server, &format!("GET {path} HTTP/1.1\r\nHost: t.test\r\nConnection: close\r\n\r\n"))
                    .unwrap();
            assert_eq!(first.status, 200, "{path}");
            upstream.seen();
        }
        let escaped: String = path.bytes().skip(1).map(|byte| format!("%{byte:02x}")).collect();
        for way in WAYS {
            let way = way.replace("PATH", &path).replace("TEXT", &format!("/{escaped}"));
            let body = if way.contains("Length: 3") {
                "abc"
            } else if way.contains("chunked") {
                "0\r\n\r\n"
            } else {
                ""
            };
            let closes = if way.contains("Connection: ") { "" } else { "Connection: close\r\n" };
            // After an upgrade, as after a switch, a second request must not get to the upstream either.
            let second = if closes.is_empty() {
                format!("GET {path} HTTP/1.1\r\nHost: t.test\r\nConnection: close\r\n\r\n")
            } else {
                String::new()
            };
            let request = format!("{way}{closes}\r\n{body}{second}");
            let answer = ask(&server, &request);
            let (got, text) = answer.map_or((0, String::new()), |answer| (answer.status, answer.text()));
            let is_open =
                way.starts_with("GET /open-") || way.contains(" /open/") && got == 200 && text == "open";
            let is_fine = match got {
                _ if got == status => true,
                // Malformed, or ambiguous: before any rule.
                400 => true,
                204 => way.starts_with("OPTIONS"),
                405 => way.starts_with("CONNECT"),
                200 | 404 => (is_open || way.starts_with("GET /open")) && text != "handler",
                _ => false,
            };
            let seen = upstream.seen();
            assert!(
                is_fine && seen.is_empty(),
                "{rule} {handler} ({methods}): {request}got {got} {text:?}, upstream: {seen:?}"
            );
        }
        // The same over HTTP/2, by a client that is not ours.
        let methods_of_h2: &[&str] = if methods.contains("cors") || !["proxy", "files"].contains(&handler) {
            &[]
        } else {
            &["GET", "HEAD", "PUT", "OPTIONS", "TRACE", "BREW"]
        };
        for &method in methods_of_h2 {
            let url = format!("http://{}{path}", server.address);
            let output = Command::new("curl")
                .args([
                    "-s",
                    "-o",
                    "/dev/null",
                    "-w",
                    "%{http_code} %{http_version}",
                    "--http2-prior-knowledge",
                ])
                .args(["-H", "Host: t.test", if method == "HEAD" { "-I" } else { "-g" }, "-X", method, &url])
                .output()
                .unwrap();
            assert_eq!(said(&output), format!("{status} 2"), "{method} {path}");
            let seen = upstream.seen();
            assert!(seen.is_empty(), "{method} {path}: {seen:?}");
        }
    }
}

#[test]
fn other_methods_of_a_protected_path_do_not_go_to_a_less_specific_route() {
    let (folder, upstream) = (Folder::new(), Upstream::start());
    let site = format!(
        "site \"t.test\" {{\n    proxy \"http://{}\"\n    route \"/admin\" {{\n        methods GET\n        basic-auth inside\n        \
         auth-user ann \"{SECRET}\"\n        respond 200 admin\n    }}\n    route \"/items\" {{\n        methods GET\n        \
         respond 200 list\n    }}\n    route \"/items\" {{\n        methods PUT DELETE\n        deny all\n        respond 200 changed\n    \
         }}\n}}\n",
        upstream.address
    );
    let server = served(&folder, &site);
    let with = |method: &str, path: &str, fields: &str| {
        let request =
            format!("{method} {path} HTTP/1.1\r\nHost: t.test\r\nConnection: close\r\n{fields}\r\n");
        let answer = ask(&server, &request).unwrap();
        (answer.status, answer.field("Allow").unwrap_or_default().to_owned())
    };
    let none = String::new;
    for (method, path, fields, expected) in [
        ("GET", "/admin", "", (401, none())),
        ("PUT", "/admin", "", (401, none())),
        ("OPTIONS", "/admin/x", "", (401, none())),
        ("GET", "/admin", ANN_SECRET, (200, none())),
        ("HEAD", "/admin", ANN_SECRET, (200, none())),
        ("PUT", "/admin", ANN_SECRET, (405, "GET, HEAD".to_owned())),
        ("TRACE", "/admin", ANN_SECRET, (405, "GET, HEAD".to_owned())),
        ("GET", "/items", "", (200, none())),
        ("PUT", "/items", "", (403, none())),
        ("PATCH", "/items", "", (405, "GET, HEAD, PUT, DELETE".to_owned())),
        ("PUT", "/elsewhere", "", (200, none())),
    ] {
        assert_eq!(with(method, path, fields), expected, "{method} {path} {fields}");
    }
    let seen = upstream.seen();
    assert!(seen.len() == 1 && seen[0].starts_with("PUT /elsewhere "), "{seen:?}");
    let file = folder.0.join("site.kdl").display().to_string();
    let told = said(&flatout(&["check", &file]));
    for note in [
        ":3: note: route `/admin` serves GET only; other methods get 405 after its rules, and do not go to route `/` on line 2\n",
        ":9: note: route `/items` serves GET, PUT, DELETE only; other methods get 405",
    ] {
        assert!(told.contains(note), "{told}");
    }
    assert!(told.ends_with("site.kdl: valid\n") || told.contains("site.kdl: valid\n"), "{told}");
    folder.write(
        "images.kdl",
        "files public\nroute \"/staff\" { deny all; respond 200 a; }\nroute \"[.]png$\" match=regex { respond 200 b; }\n\
         route \"^/other/.*[.]gif$\" match=regex { respond 200 c; }\nroute \"/safe\" before-patterns=on { deny all; respond 200 d; }\n",
    );
    let told_of_images = said(&flatout(&["check", &folder.0.join("images.kdl").display().to_string()]));
    assert_eq!(told_of_images.matches("note: ").count(), 1, "{told_of_images}");
    assert!(
        told_of_images.contains(":2: note: paths below route `/staff` that match `[.]png$` on line 3 get"),
        "{told_of_images}"
    );
    let told = said(&flatout(&["explain", "PUT", "http://t.test/admin", "-c", &file]));
    for line in [
        "response   405: the route of this path allows only GET, HEAD;",
        "rules      of route /admin, line 3, apply first\n",
        "password   inside\n",
    ] {
        assert!(told.contains(line), "{told}");
    }
}

#[test]
fn a_flood_of_wrong_passwords_does_not_keep_others_out() {
    let folder = Folder::new();
    let site = format!(
        "trusted-proxies \"127.0.0.1\"\nsite \"t.test\" {{ basic-auth inside; auth-user ann \"{SLOW_SECRET}\"; respond 200 inside; }}\n"
    );
    let server = served(&folder, &site);
    let attacked = std::sync::atomic::AtomicBool::new(true);
    let outcomes: Mutex<Vec<u16>> = Mutex::default();
    std::thread::scope(|scope| {
        // Each with its own connections and always another password, from one address.
        for attacker in 0..16 {
            let (attacked, outcomes, server) = (&attacked, &outcomes, &server);
            scope.spawn(move || {
                for at in 0.. {
                    if !attacked.load(std::sync::atomic::Ordering::Relaxed) {
                        return;
                    }
                    let guess = base64(&format!("ann:{attacker}-{at}"));
                    let request = get(&format!("Authorization: Basic {guess}\r\n"));
                    let answer = first_answer(connect_from([127, 0, 0, 66], server), &request).unwrap();
                    if answer.status == 503 {
                        assert!(answer.field("Retry-After").is_some(), "{}", answer.head);
                    }
                    outcomes.lock().unwrap().push(answer.status);
                }
            });
        }
        until("the flood", || {
            let outcomes = outcomes.lock().unwrap();
            outcomes.contains(&503) && outcomes.contains(&401)
        });
        // Others log in at the first attempt: from other addresses, and through a trusted proxy.
        for last in 2..12 {
            let answer = first_answer(connect_from([127, 0, 0, last], &server), &get(ANN_SECRET)).unwrap();
            assert_eq!((answer.status, answer.text().as_str()), (200, "inside"), "127.0.0.{last}");
        }
        for last in 2..6 {
            // A name that does not exist is checked like any other.
            let fields =
                format!("X-Forwarded-For: 192.0.2.{last}\r\nAuthorization: Basic {}\r\n", base64("bob:x"));
            assert_eq!(first_answer(server.connect(), &get(&fields)).unwrap().status, 401);
        }
        attacked.store(false, std::sync::atomic::Ordering::Relaxed);
    });
    let outcomes = outcomes.into_inner().unwrap();
    assert!(outcomes.iter().all(|status| matches!(status, 401 | 503)), "{outcomes:?}");
}

#[test]
fn requests_of_one_page_wait_for_the_same_check() {
    let folder = Folder::new();
    let site =
        format!("site \"*\" {{ basic-auth inside; auth-user ann \"{SLOW_SECRET}\"; respond 200 inside; }}\n");
    let server = served(&folder, &site);
    // Six connections at once; crates/server/tests/sites.rs has the streams of HTTP/2.
    let mut streams: Vec<_> = (0..6).map(|_| server.connect()).collect();
    for stream in &mut streams {
        stream.write_all(get(ANN_SECRET).as_bytes()).unwrap();
    }
    for mut stream in streams {
        assert_eq!(answers(&read_to_close(&mut stream), false)[0].status, 200);
    }
}

#[test]
fn a_changed_password_is_not_remembered_after_a_reload() {
    let folder = Folder::new();
    let write = |hash: &str, text: &str| {
        folder.write("users", format!("ann:{hash}\n"));
        folder.write(
            "site.kdl",
            format!(
                "admin \"unix:{}\"\nsite \"*\" {{ basic-auth inside file=users; respond 200 {text}; }}\n",
                folder.0.join("admin.sock").display()
            ),
        );
    };
    write(SECRET, "one");
    let mut command = Command::new(program("flatout"));
    command.arg("serve").arg("-c").arg(folder.0.join("site.kdl")).args(["--listen", "127.0.0.1:0"]);
    let server = Server::start(command);
    let mut stream = server.connect();
    let mut on_connection = |fields: &str| {
        stream.write_all(format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n").as_bytes()).unwrap();
        let head = read_head(&mut stream).unwrap();
        let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap();
        let mut body = vec![0; length.parse().unwrap()];
        stream.read_exact(&mut body).unwrap();
        head.split(' ').nth(1).unwrap().parse::<u16>().unwrap()
    };
    assert_eq!(
        (on_connection(ANN_SECRET), on_connection(ANN_SECRET), on_connection(ANN_OTHER)),
        (200, 200, 401)
    );
    // The same list: it stays remembered.
    write(SECRET, "two");
    assert!(reload(&folder).contains(" 200 "));
    assert_eq!(on_connection(ANN_SECRET), 200);
    write(OTHER, "three");
    assert!(reload(&folder).contains(" 200 "));
    assert_eq!((on_connection(ANN_SECRET), on_connection(ANN_OTHER)), (401, 200), "on the same connection");
    assert_eq!(ask(&server, &get(ANN_SECRET)).unwrap().status, 401, "on another one");
    assert_eq!(ask(&server, &get(ANN_OTHER)).unwrap().text(), "three");
}

#[test]
fn upgrades_are_forwarded_only_where_rules_can_see_them() {
    let (folder, upstream) = (Folder::new(), Upstream::start());
    let site = format!(
        "upstream app {{ server \"{}\"; }}\nsite \"*\" {{\n  proxy app\n  route \"/off\" {{ upgrade off; proxy app; }}\n  \
         route \"/mine\" {{ upgrade Mine; proxy app; }}\n  route \"/cached\" {{ cache \"1h\"; proxy app; }}\n  \
         route \"/denied\" {{ deny all; proxy app; }}\n}}\n",
        upstream.address
    );
    let server = served(&folder, &site);
    for (method, path, protocol, more, status) in [
        ("GET", "/", "websocket", "", 101),
        ("GET", "/", "h2c", "HTTP2-Settings: AAMAAABk\r\n", 200),
        ("GET", "/", "mine", "", 200),
        ("GET", "/mine", "mine", "", 101),
        ("GET", "/mine", "websocket", "", 200),
        ("GET", "/off", "websocket", "", 200),
        ("GET", "/cached", "websocket", "", 200),
        ("GET", "/cached", "websocket", "Cache-Control: no-store\r\n", 200),
        ("POST", "/", "websocket", "Content-Length: 0\r\n", 101),
        ("POST", "/", "websocket", "Content-Length: 3\r\n", 200),
        ("GET", "/denied", "websocket", "", 403),
    ] {
        let mut stream = server.connect();
        let body = if more.contains('3') && method == "POST" { "abc" } else { "" };
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: {protocol}\r\n{more}\r\n{body}"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let head = read_head(&mut stream).unwrap();
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{request}{head}");
        let seen = upstream.seen().concat().to_lowercase();
        assert_eq!(seen.contains("upgrade"), status == 101, "{request}{seen}");
        assert!(!seen.contains("http2-settings"), "{seen}");
    }
    for (value, reason) in
        [("h2c", "past all rules"), ("\"TLS/1.0\"", "past all rules"), ("websocket off", "stands alone")]
    {
        folder.write("bad.kdl", format!("upgrade {value}\nrespond 200 a\n"));
        let output = flatout(&["check", &folder.0.join("bad.kdl").display().to_string()]);
        assert!(output.status.code() == Some(2) && said(&output).contains(reason), "{}", said(&output));
    }
}

#[test]
fn requests_without_a_host_go_to_the_default_site() {
    let (folder, upstream) = (Folder::new(), Upstream::start());
    let site = format!(
        "site \"first.test\" {{ proxy \"http://{}\"; }}\nsite \"second.test\" {{ respond 200 second; }}\n",
        upstream.address
    );
    let server = served(&folder, &site);
    let answer = ask(&server, "GET /health HTTP/1.0\r\n\r\n").unwrap();
    assert_eq!((answer.status, answer.text().as_str()), (200, "handler"));
    let seen = upstream.seen().concat();
    assert!(seen.contains(&format!("\r\nHost: {}\r\n", upstream.address)), "{seen}");
    assert_eq!(seen.to_lowercase().matches("host").count(), 1, "{seen}");
    for (host, status) in [
        ("Host: second.test\r\n", 200),
        ("Host: other.test\r\n", 421),
        ("Host: second.test.\r\n", 200),
        ("Host: second.test..\r\n", 400),
        ("Host: a..\r\n", 400),
        ("Host: .\r\n", 400),
        ("Host: second.test:65535\r\n", 200),
        ("Host: second.test:65536\r\n", 400),
        ("Host: second.test:99999\r\n", 400),
        // The URL of a request has a host (RFC 9110 section 4.2.1); only HTTP/1.0 may leave it out.
        ("Host:\r\n", 400),
        ("", 400),
    ] {
        let request = format!("GET / HTTP/1.1\r\n{host}Connection: close\r\n\r\n");
        assert_eq!(ask(&server, &request).unwrap().status, status, "{host}");
    }
    let request = "GET http://second.test:70000/ HTTP/1.1\r\nHost: second.test\r\nConnection: close\r\n\r\n";
    assert_eq!(ask(&server, request).unwrap().status, 400);
}

#[test]
fn fields_with_underscores_reach_upstreams_only_where_the_route_says_so() {
    let (folder, upstream) = (Folder::new(), Upstream::start());
    let site = format!(
        "upstream app {{ server \"{0}\"; }}\nsite \"*\" {{\n  proxy app\n  route \"/cached\" {{ cache \"1h\"; proxy app; }}\n  \
         route \"/all\" {{ underscore-headers on; proxy app; }}\n}}\n",
        upstream.address
    );
    let server = served(&folder, &site);
    for (path, count) in [("/", 0), ("/cached", 0), ("/all", 1)] {
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX_User: root\r\nX-A: 1\r\n\r\n");
        assert_eq!(ask(&server, &request).unwrap().status, 200);
        let seen = upstream.seen().concat();
        assert_eq!(
            (seen.matches("X_User: root\r\n").count(), seen.matches("X-A: 1\r\n").count()),
            (count, 1),
            "{seen}"
        );
    }
}

#[test]
fn upstreams_get_a_host_made_of_the_request() {
    let (folder, upstream) = (Folder::new(), Upstream::start());
    let site = format!(
        "site \"*\" {{ proxy-host \"$arg_h\"; route \"/\" {{ proxy \"http://{0}\"; }} route \"/fixed\" {{ proxy-host \"b.test\"; proxy \"http://{0}\"; }}\n\
         route \"/port\" {{ proxy-host \"$host:8080\"; proxy \"http://{0}\"; }} route \"^/s/([^/]+)\" match=regex {{ proxy-host \"$1.test\"; proxy \"http://{0}\"; }}\n\
         route \"/stored\" {{ cache \"1h\"; proxy-host \"$http_x_host\"; proxy \"http://{0}\"; }} route \"/kept\" {{ proxy-host kept; proxy \"http://{0}\"; }} }}\n",
        upstream.address
    );
    let server = served(&folder, &site);
    for (path, status, host) in [
        ("/?h=x.test", 200, "x.test"),
        ("/?h=x.test:81", 200, "x.test:81"),
        ("/", 200, "a"),
        ("/?h=a%20b", 400, ""),
        ("/?h=a%0d%0aX:b", 400, ""),
        ("/?h=a/b", 400, ""),
        ("/fixed?h=x.test", 200, "b.test"),
        ("/port", 200, "a:8080"),
        ("/s/one/x", 200, "one.test"),
        ("/kept?h=x.test", 200, "a"),
        // Each has a stored response of its own.
        ("/stored HTTP/1.1\r\nX-Host: c.test", 200, "c.test"),
        ("/stored HTTP/1.1\r\nX-Host: c.test", 200, ""),
        ("/stored HTTP/1.1\r\nX-Host: d.test", 200, "d.test"),
    ] {
        let (line, more) = path.split_once(" HTTP/1.1").unwrap_or((path, ""));
        let request = format!("GET {line} HTTP/1.1{more}\r\nHost: a\r\nConnection: close\r\n\r\n");
        assert_eq!(ask(&server, &request).unwrap().status, status, "{path}");
        let seen = upstream.seen().concat();
        let hosts: Vec<&str> = seen.lines().filter_map(|line| line.strip_prefix("Host: ")).collect();
        assert_eq!(hosts, Vec::from_iter((!host.is_empty()).then_some(host)), "{path}: {seen}");
    }
}

#[test]
fn upstreams_get_the_method_the_body_and_the_fields_of_the_route() {
    let (folder, upstream) = (Folder::new(), Upstream::start());
    let routes = [
        ("/method", "proxy-method PUT"),
        ("/either", "proxy-method \"$arg_m\""),
        ("/text", "proxy-body \"a=$arg_a\""),
        ("/none", "proxy-body \"\""),
        ("/bare", "forward-headers off; x-forwarded off"),
        ("/stored", "proxy-method REPORT; cache \"1h\""),
    ];
    let route = |(path, rules): &(&str, &str)| {
        format!("  route \"{path}\" {{ {rules}; proxy \"http://{}\"; }}\n", upstream.address)
    };
    let site = format!("site \"*\" {{\n{}}}\n", routes.iter().map(route).collect::<String>());
    let server = served(&folder, &site);
    let post = "Content-Length: 3\r\n\r\nxyz";
    let chunked = "Transfer-Encoding: chunked\r\n\r\n3\r\nxyz\r\n0\r\n\r\n";
    for (line, rest, status, sent, length) in [
        ("GET /method", "\r\n", 200, "PUT /method ", Some(0)),
        ("HEAD /method", "\r\n", 200, "PUT /method ", Some(0)),
        ("GET /either?m=LINK", "\r\n", 200, "LINK /either?m=LINK ", None),
        ("DELETE /either", "\r\n", 200, "DELETE /either ", None),
        // These would say how long the response is.
        ("GET /either?m=HEAD", "\r\n", 400, "", None),
        ("GET /either?m=CONNECT", "\r\n", 400, "", None),
        ("GET /text?a=12", "\r\n", 200, "GET /text?a=12 ", Some(4)),
        ("POST /text?a=12", post, 200, "POST /text?a=12 ", Some(4)),
        ("POST /none", post, 200, "POST /none ", Some(0)),
        ("GET /none", chunked, 200, "GET /none ", None),
        ("POST /bare", post, 200, "POST /bare ", Some(3)),
        ("GET /stored", "\r\n", 200, "REPORT /stored ", None),
        ("GET /stored", "\r\n", 200, "", None),
    ] {
        let request = format!("{line} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX-A: 1\r\n{rest}");
        assert_eq!(ask(&server, &request).unwrap().status, status, "{line}");
        let seen = upstream.seen().concat();
        // The body of the request before it, on the same connection, may come first.
        assert!(seen.contains(sent) && seen.contains("HTTP/1.1") != sent.is_empty(), "{line}: {seen}");
        let lengths = seen.lines().filter_map(|line| line.strip_prefix("Content-Length: ")?.parse().ok());
        assert_eq!(lengths.collect::<Vec<u64>>(), Vec::from_iter(length), "{line}: {seen}");
        assert!(!seen.contains("Transfer-Encoding"), "{line}: {seen}");
        let has_field = !sent.is_empty() && !line.contains("/bare");
        assert_eq!(seen.contains("X-A: 1\r\n"), has_field, "{line}: {seen}");
    }
    for (setting, reason) in [("proxy-method HEAD", "other than HEAD"), ("proxy-method \"a b\"", "need kept")]
    {
        folder.write("bad.kdl", format!("{setting}\nrespond 200 a\n"));
        let output = flatout(&["check", &folder.0.join("bad.kdl").display().to_string()]);
        assert!(output.status.code() == Some(2) && said(&output).contains(reason), "{}", said(&output));
    }
}

#[test]
fn requests_with_an_empty_key_share_one_limit() {
    let folder = Folder::new();
    let site = "site \"*\" { rate-limit \"1/h\" key=\"$http_x_api_key\"; respond 200 a; }\n";
    let server = served(&folder, site);
    let with = |fields: &str| ask(&server, &get(fields)).unwrap().status;
    assert_eq!((with(""), with(""), with("X-Api-Key:\r\n")), (200, 429, 429));
    assert_eq!(
        (with("X-Api-Key: a\r\n"), with("X-Api-Key: a\r\n"), with("X-Api-Key: b\r\n")),
        (200, 429, 200)
    );
}

#[test]
fn unknown_hosts_are_not_redirected_to_https() {
    let folder = Folder::new();
    self_sign(&folder);
    folder.write(
        "site.kdl",
        "https-redirect on\nlisten-plain \"127.0.0.1:0\"\ntls \"cert.pem\" \"key.pem\"\nsite \"t.test\" { respond 200 a; }\n",
    );
    let (certificate, key) = (folder.0.join("cert.pem"), folder.0.join("key.pem"));
    assert!(certificate.exists() && key.exists(), "what self_sign writes");
    let mut command = Command::new(program("flatout"));
    command.arg("serve").arg("-c").arg(folder.0.join("site.kdl")).args(["--listen", "127.0.0.1:0"]);
    let server = Server::start(command);
    let plain = |host: &str| {
        let request = format!("GET /a?b HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        let answer = ask(&server, &request).unwrap();
        (answer.status, answer.field("Location").map(str::to_owned))
    };
    let (status, location) = plain("t.test");
    assert!(status == 308 && location.unwrap().starts_with("https://t.test:"));
    assert_eq!(plain("evil.test"), (421, None));
    assert_eq!(plain("127.0.0.1"), (421, None));
}

#[test]
fn logs_contain_no_secrets_and_are_private() {
    let folder = Folder::new();
    let log = folder.0.join("access.log");
    let site = format!(
        "access-log \"{}\" format=\"$request|$request_uri|$args|$arg_token|$http_referer|$status\" flush=\"10ms\"\n\
         site \"*\" {{ respond 200 a; }}\n",
        log.display()
    );
    let mut server = served(&folder, &site);
    let secret = "hush-hush";
    for request in [
        format!(
            "GET /a?b=1&token={secret}&c=2 HTTP/1.1\r\nHost: a\r\nReferer: https://b/?access_token={secret}&d=3\r\n"
        ),
        format!("GET http://a/?user[password]={secret} HTTP/1.1\r\nHost: a\r\n"),
        format!("GET /?api_key={secret} HTTP/1.1\r\nHost: a b\r\n"),
    ] {
        ask(&server, &format!("{request}Connection: close\r\n\r\n")).unwrap();
    }
    assert_eq!(std::fs::metadata(&log).unwrap().permissions().mode() & 0o777, 0o640);
    server.signal(Signal::TERM);
    server.wait();
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(!text.contains(secret), "{text}");
    for part in [
        "GET /a?b=1&token=***&c=2 HTTP/1.1|/a?b=1&token=***&c=2|b=1&token=***&c=2|***|https://b/?access_token=***&d=3|200",
        "user[password]=***",
        "api_key=***",
    ] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn auth_services_do_not_get_forged_request_fields() {
    let (folder, upstream) = (Folder::new(), Upstream::start());
    let site = format!(
        "upstream app {{ server \"{0}\"; }}\nsite \"*\" {{ forward-auth app path=\"/check\"; respond 200 inside; }}\n",
        upstream.address
    );
    let server = served(&folder, &site);
    let claims = "X-Original-URL: /open\r\nX-Original-Method: GET\r\nX-Original-URI: /open\r\nX-Forwarded-Method: GET\r\n\
                  X-Forwarded-Uri: /open\r\nX_Original_URL: /open\r\nX-Rewrite-URL: /open\r\nUpgrade: websocket\r\n";
    let request =
        format!("DELETE /closed HTTP/1.1\r\nHost: a\r\nConnection: close, Upgrade\r\n{claims}X-A: 1\r\n\r\n");
    assert_eq!(ask(&server, &request).unwrap().text(), "inside");
    let seen = upstream.seen().concat();
    assert!(seen.starts_with("GET /check HTTP/1.1\r\n") && seen.contains("X-A: 1\r\n"), "{seen}");
    assert!(seen.contains("X-Forwarded-Method: DELETE\r\nX-Forwarded-Uri: /closed\r\n"), "{seen}");
    assert!(seen.contains("X-Original-Method: DELETE\r\nX-Original-URL: http://a/closed\r\n"), "{seen}");
    assert!(!seen.contains("/open") && !seen.to_lowercase().contains("upgrade"), "{seen}");
}

#[test]
fn pages_of_errors_do_not_allow_requests() {
    let folder = Folder::new();
    let site = r#"
        site "*" {
            error-page 403 text="a page" status=200
            forward-auth "/decides"
            route "/decides" { respond 403; }
            respond 200 "inside"
        }
    "#;
    let server = served(&folder, site);
    let found = server.get("/", "");
    assert_eq!((found.status, &*found.text()), (200, "a page"));
}

#[test]
fn a_body_that_is_too_large_gets_the_page_and_the_rules_of_its_route() {
    let folder = Folder::new();
    let site = r#"
        site "*" {
            body-bytes "1KiB"
            response-header set "X-Site" "1"
            error-page 404 to="/page"
            route "/page" { respond 200 "page of $uri"; }
            route "/large" { body-bytes "1MiB"; respond 200 "large"; }
            route "/text" { error-page 413 text="a text"; error-page 404 to="/page"; respond 200 "inside"; }
            route "/to" { error-page 413 to="/page"; respond 200 "inside"; }
            route "/kept" { error-page 404 to="/page"; respond 200 "inside"; }
        }
    "#;
    let server = served(&folder, site);
    // Above the limit of the route, and above that of all routes.
    for bytes in [2 << 10, 2 << 20] {
        for (path, text) in [("/text", "a text"), ("/to", "page of /page"), ("/kept", "Content Too Large\n")]
        {
            let post = format!(
                "POST {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: {bytes}\r\n\r\n"
            );
            let found = server.one(&post);
            assert_eq!((found.status, &*found.text()), (413, text), "{path} {bytes}");
            assert_eq!(found.field("x-site"), Some("1"), "{path} {bytes}");
        }
    }
}

#[test]
fn subscribers_and_long_polls_do_not_fill_a_limit_of_requests() {
    let folder = Folder::new();
    let site = "site \"*\" { request-limit 2 key=everyone queue=0; route \"/live\" { push; push-token hush; }; respond 200 a; }\n";
    let server = served(&folder, site);
    let mut waiting = Vec::new();
    for at in 0..5 {
        let accept = if at % 2 == 0 { "application/json" } else { "text/event-stream" };
        let mut stream = server.connect();
        let request = format!("GET /live/news HTTP/1.1\r\nHost: a\r\nAccept: {accept}\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        waiting.push((accept, stream));
        // A subscriber that is being accepted and this question are two requests, no more.
        let counted = format!("{{\"news\":{}}}", waiting.len());
        until("it is counted", || server.get("/live/news?presence=1", "").text() == counted);
    }
    // More than the limit wait, and others are served.
    let publish = "POST /live/news HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer hush\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello";
    let answer = ask(&server, publish).unwrap();
    assert!((200..300).contains(&answer.status), "{}", answer.head);
    assert_eq!(ask(&server, &get("")).unwrap().status, 200);
    for (accept, stream) in &mut waiting {
        let mut text = Vec::new();
        let mut bytes = [0; 4096];
        while !String::from_utf8_lossy(&text).contains("hello") {
            let count = stream.read(&mut bytes).unwrap();
            assert!(count > 0, "{accept}: {}", String::from_utf8_lossy(&text));
            text.extend_from_slice(&bytes[..count]);
        }
    }
}

/// Requests are left out by their route, by a condition on them, and by one on their responses.
#[test]
fn requests_are_left_out_of_the_log() {
    let folder = Folder::new();
    let log = folder.0.join("log");
    let site = format!(
        "access-log {log:?} format=\"$request_uri $status\" flush=\"100ms\"\n\
         site \"*\" {{ when \"has(arg.quiet)\" {{ log-requests off; }}; when \"status == 404\" {{ log-requests off; }}; \
         route \"/health\" {{ log-requests off; respond 200 ok; }}; \
         route \"/health/deep\" {{ log-requests on; respond 200 ok; }}; \
         route \"/none\" {{ respond 404; }}; respond 200 a; }}\n"
    );
    let server = served(&folder, &site);
    for target in ["/health", "/a?quiet=1", "/none", "/health/deep", "/b", "/last"] {
        server.get(target, "");
    }
    until("the last line is written", || std::fs::read_to_string(&log).unwrap_or_default().contains("/last"));
    // Each worker has a buffer of its own.
    let whole = || {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort_unstable();
        lines
    };
    until("all lines are written", || whole().len() >= 3);
    assert_eq!(whole(), ["/b 200", "/health/deep 200", "/last 200"]);
}

#[test]
fn the_body_of_a_request_in_a_field() {
    let folder = Folder::new();
    let upstream = Upstream::start();
    let site = format!(
        "site \"*\" {{ response-header set \"X-Body\" \"<$request_body>\"; route \"/app\" {{ proxy \"http://{}\"; buffer-requests off; }}; \
         respond 200 a; }}\n",
        upstream.address
    );
    let server = served(&folder, &site);
    let post = |target: &str, framing: &str, body: &str| {
        let head = format!("POST {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{framing}\r\n\r\n");
        ask(&server, &format!("{head}{body}")).unwrap().field("X-Body").map(str::to_owned)
    };
    let body = |target: &str, body: &str| post(target, &format!("Content-Length: {}", body.len()), body);
    for target in ["/app", "/other"] {
        assert_eq!(body(target, "a=b&c").as_deref(), Some("<a=b&c>"), "{target}");
        let chunks = post(target, "Transfer-Encoding: chunked", "3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n");
        assert_eq!(chunks.as_deref(), Some("<abcde>"), "{target}");
        // Too long for a field, and what would end it.
        assert_eq!(body(target, &"x".repeat(20_000)).as_deref(), Some("<>"), "{target}");
        assert_eq!(body(target, "a\r\nSet-Cookie: b"), None, "{target}");
    }
    // It is not known when a request is judged.
    let refused = flatout(&["check", &{
        folder.write(
            "wrong.kdl",
            "site \"*\" { when \"$request_body == 'x'\" { deny all; }; respond 200 a; }\n",
        );
        folder.0.join("wrong.kdl").display().to_string()
    }]);
    assert!(said(&refused).contains("depends on the response"), "{}", said(&refused));
}

/// Bodies of requests in a log: those that are short, of requests to an upstream, without passwords of forms.
#[test]
fn the_body_of_a_request_in_a_log() {
    let folder = Folder::new();
    let upstream = Upstream::start();
    let log = folder.0.join("log");
    let own = folder.0.join("own");
    let site = format!(
        "workers 1\naccess-log {log:?} format=\"$request_uri $status $request_body\" flush=\"10ms\"\n\
         site \"*\" {{ \
         route \"/app\" {{ proxy \"http://{0}\"; buffer-requests off; }}; \
         route \"/cached\" {{ cache \"1h\"; proxy \"http://{0}\"; }}; \
         route \"/slow\" {{ rate-limit \"5/s\" burst=5 delay=0; body-bytes \"1KiB\"; proxy \"http://{0}\"; }}; \
         route \"/own\" {{ access-log {own:?} format=\"$request_uri $status\"; proxy \"http://{0}\"; }}; \
         route \"/quiet\" {{ log-requests off; proxy \"http://{0}\"; }}; \
         respond 200 a; }}\n",
        upstream.address
    );
    let server = served(&folder, &site);
    let send = |method: &str, target: &str, framing: &str, body: &str| {
        let head = format!("{method} {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{framing}\r\n\r\n");
        ask(&server, &format!("{head}{body}")).unwrap().status
    };
    let post =
        |target: &str, body: &str| send("POST", target, &format!("Content-Length: {}", body.len()), body);
    assert_eq!(post("/app/form", "name=a b&password=hush&b=c"), 200);
    assert_eq!(post("/app/lines", "a\r\nb\"c"), 200);
    assert_eq!(post("/app/long", &"x".repeat((16 << 10) + 1)), 200);
    assert_eq!(post("/app/full", &"x".repeat(16 << 10)), 200);
    assert_eq!(send("POST", "/app/chunks", "Transfer-Encoding: chunked", "3\r\nabc\r\n0\r\n\r\n"), 200);
    let continued = "Content-Length: 3\r\nExpect: 100-continue";
    assert!([100, 200].contains(&send("POST", "/app/continue", continued, "abc")));
    let url = format!("http://{}/app/two", server.address);
    let curl = ["-s", "--http2-prior-knowledge", "-o", "/dev/null", "-d", "a=b&token=c", &url];
    assert!(Command::new("curl").args(curl).status().unwrap().success());
    assert_eq!(post("/app/empty", ""), 200);
    assert_eq!(send("GET", "/cached", "Content-Length: 3", "abc"), 200);
    assert_eq!(send("GET", "/cached", "Content-Length: 3", "def"), 200);
    assert_eq!(post("/cached/post", "abc"), 200);
    assert_eq!(post("/slow/1", "one"), 200);
    assert_eq!(post("/slow/2", "two"), 200);
    assert_eq!(post("/slow/large", &"x".repeat(1 << 11)), 413);
    assert_eq!(post("/own", "own"), 200);
    assert_eq!(post("/quiet", "quiet"), 200);
    assert_eq!(post("/here", "here"), 200);
    assert_eq!(post("/last", "last"), 200);
    let read = |log: &std::path::Path| std::fs::read_to_string(log).unwrap_or_default();
    until("the last line is written", || read(&log).contains("/last") && read(&own).contains("/own"));
    let text = read(&log);
    let full = format!("/app/full 200 {}", "x".repeat(16 << 10));
    let expected = [
        "/app/form 200 name=a b&password=***&b=c",
        "/app/lines 200 a\\x0D\\x0Ab\\x22c",
        "/app/long 200 -",
        &full,
        "/app/chunks 200 -",
        "/app/continue 200 abc",
        "/app/two 200 a=b&token=***",
        "/app/empty 200 -",
        "/cached 200 abc",
        "/cached 200 def",
        "/cached/post 200 abc",
        "/slow/1 200 one",
        "/slow/2 200 two",
        "/slow/large 413 -",
        "/here 200 -",
        "/last 200 -",
    ];
    assert_eq!(text.lines().collect::<Vec<_>>(), expected);
    assert_eq!(read(&own), "/own 200\n");
}

/// Variables of sites, of maps and of the response in a log; each request has its own, also where a cache has the response.
#[test]
fn variables_of_sites_in_a_log() {
    let folder = Folder::new();
    let upstream = Upstream::start();
    let log = folder.0.join("log");
    let format = "$request_uri $kind $grade $own <$sent_http_x_kind> $http2 $server_name";
    let site = format!(
        "workers 1\nmap kind \"$arg_k\" {{ case a one; default other; }}\nmap grade \"$status\" {{ case \"~^2\" good; default bad; }}\n\
         set own \"\"\naccess-log {log:?} format={format:?} flush=\"10ms\"\n\
         site a {{ when \"arg.k == 'b'\" {{ set own b; }}; response-header set \"X-Kind\" \"<$kind>\"; \
         route \"/cached\" {{ cache \"1h\"; cache-key \"/\"; proxy \"http://{}\"; }}; \
         route \"/denied\" {{ set own \"$arg_k!\"; deny all; respond 200; }}; \
         route \"/quiet\" {{ log-requests off; respond 200; }}; \
         respond 200 a; }}\n",
        upstream.address
    );
    let server = served(&folder, &site);
    let get = |target: &str| {
        let request = format!("GET {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        ask(&server, &request).unwrap().status
    };
    for target in ["/?k=a", "/?k=b", "/cached?k=a", "/cached?k=b", "/cached?k=a", "/quiet", "/denied?k=a"] {
        get(target);
    }
    ask(&server, "GET /none HTTP/1.1\r\nHost: none\r\nConnection: close\r\n\r\n").unwrap();
    let read = || std::fs::read_to_string(&log).unwrap_or_default();
    until("the last line is written", || read().contains("/none"));
    let expected = [
        "/?k=a one good  <<one>> - a",
        "/?k=b other good b <<other>> - a",
        "/cached?k=a one good  <<one>> - a",
        "/cached?k=b other good b <<other>> - a",
        "/cached?k=a one good  <<one>> - a",
        "/denied?k=a one bad a! <<one>> - a",
        // It is of no site.
        "/none - - - <-> - -",
    ];
    assert_eq!(read().lines().collect::<Vec<_>>(), expected);
    for (format, why) in [("$nonesuch", "unknown log variable"), ("$a $1", "unknown log variable `$1`")] {
        folder.write("wrong.kdl", format!("set a x\nlog-format {format:?}\nrespond 200\n"));
        let refused = flatout(&["check", &folder.0.join("wrong.kdl").display().to_string()]);
        assert!(!refused.status.success() && said(&refused).contains(why), "{}", said(&refused));
    }
}

/// Each log has the requests for which its condition is true.
#[test]
fn logs_have_conditions_of_their_own() {
    let folder = Folder::new();
    let [all, asked, failed, own] = ["all", "asked", "failed", "own"].map(|name| folder.0.join(name));
    let format = "format=\"$request_uri $status\" flush=\"10ms\"";
    let site = format!(
        "workers 1\nmap bad \"$status\" {{ case \"~^[45]\" \"1\"; }}\n\
         access-log {all:?} {format}\naccess-log {asked:?} {format} when=\"has(arg.log)\"\n\
         access-log {failed:?} {format} when=\"$bad == '1' && method == 'GET'\"\n\
         site \"*\" {{ \
         route \"/own\" {{ access-log {own:?} {format} when=\"arg.log != '0'\"; respond 200; }}; \
         route \"/none\" {{ respond 404; }}; respond 200 a; }}\n"
    );
    let server = served(&folder, &site);
    for target in ["/a", "/a?log=1", "/none", "/none?log=1", "/own?log=0", "/own?log=1", "/last?log=1"] {
        server.get(target, "");
    }
    let read = |log: &std::path::Path| std::fs::read_to_string(log).unwrap_or_default();
    until("all lines are written", || {
        [&all, &asked].iter().all(|log| read(log).contains("/last")) && read(&own).contains("/own")
    });
    assert_eq!(read(&all), "/a 200\n/a?log=1 200\n/none 404\n/none?log=1 404\n/last?log=1 200\n");
    assert_eq!(read(&asked), "/a?log=1 200\n/none?log=1 404\n/last?log=1 200\n");
    until("its lines are written", || read(&failed).lines().count() == 2);
    assert_eq!(read(&failed), "/none 404\n/none?log=1 404\n");
    assert_eq!(read(&own), "/own?log=1 200\n");
    // A reload changes what a condition says.
    folder.write("site.kdl", site.replace("arg.log != '0'", "arg.log == '0'"));
    server.signal(Signal::HUP);
    until("it reloads", || server.said().iter().any(|line| line.contains("reloaded ")));
    server.get("/own?log=1", "");
    server.get("/own?log=0", "");
    until("its line is written", || read(&own).lines().count() == 2);
    assert_eq!(read(&own), "/own?log=1 200\n/own?log=0 200\n");
    folder.write("site.kdl", site);
    let config = folder.0.join("site.kdl").display().to_string();
    let explained = said(&flatout(&["explain", "GET", "http://a/own", "-c", &config]));
    assert!(explained.contains("/own if arg.log != '0'\n") && !explained.contains("/failed"), "{explained}");
    let check = |text: &str| {
        folder.write("wrong.kdl", format!("{text}\nrespond 200\n"));
        said(&flatout(&["check", &folder.0.join("wrong.kdl").display().to_string()]))
    };
    assert!(
        check("access-log a when=\"$none\"").contains("when="),
        "{}",
        check("access-log a when=\"$none\"")
    );
    let many: String = (0..7).map(|at| format!("access-log a when=\"arg.a == '{at}'\"\n")).collect();
    assert!(check(&many).contains("at most 6 conditions"), "{}", check(&many));
    assert!(check("when \"arg.a == 'b'\" { access-log a }").contains("is not allowed in a when"));
}

#[test]
fn expiry_depends_on_the_response() {
    let folder = Folder::new();
    folder.write("www/a.css", "a");
    folder.write("www/a.html", "a");
    folder.write("www/new.html", "a");
    let site = format!(
        "site \"*\" {{ files {:?}; expires \"1m\"; when \"path == '/new.html'\" {{ expires never; }}\n\
         when \"response_header['content-type'].startsWith('text/css')\" {{ expires \"1h\"; }}\n\
         when \"has(arg.v)\" {{ expires \"$arg_v\"; }}\n }}\n",
        folder.0.join("www")
    );
    let server = served(&folder, &site);
    for (target, expected) in [
        ("/a.html", Some("max-age=60")),
        ("/new.html", Some("no-cache")),
        ("/a.css", Some("max-age=3600")),
        ("/a.css?v=2d", Some("max-age=172800")),
        ("/a.css?v=off", None),
        ("/missing.css", None),
    ] {
        let answer = server.get(target, "");
        assert_eq!(answer.field("Cache-Control"), expected, "{target}");
        assert_eq!(answer.field("Expires").is_some(), expected.is_some(), "{target}");
    }
}

#[test]
fn links_are_valid_with_their_signature_until_they_expire() {
    let folder = Folder::new();
    let site = "set link \"\"\nsite \"*\" { set link expr=\"$arg_h.replace('=', '') == ($uri + $arg_e + ' secret').md5() && int($arg_e) > 0 ? (int($arg_e) < time ? '0' : '1') : ''\"; \
                when \"$link == ''\" { respond 403; }; when \"$link == '0'\" { respond 410; }; respond 200 a; }\n";
    let server = served(&folder, site);
    // printf '/a4102444800 secret' | openssl md5 -binary | basenc --base64url
    for (target, status) in [
        ("/a?h=WHAfs493QH05BiiPVyEsXA&e=4102444800", 200),
        ("/a?h=WHAfs493QH05BiiPVyEsXA==&e=4102444800", 200),
        ("/a?h=sdrQrVnw1QurQ7zDFEzVgA&e=1000000000", 410),
        ("/b?h=WHAfs493QH05BiiPVyEsXA&e=4102444800", 403),
        ("/a?h=WHAfs493QH05BiiPVyEsXA&e=4102444801", 403),
        ("/a?e=4102444800", 403),
        ("/a", 403),
    ] {
        assert_eq!(server.get(target, "").status, status, "{target}");
    }
}

/// In what is made here, in files, and in pieces of an upstream, also of a stored response; before it is compressed.
#[test]
fn texts_in_bodies_are_replaced() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                let mut stream = stream;
                let mut request = [0; 4096];
                let count = stream.read(&mut request).unwrap_or(0);
                let kind = match request[..count].starts_with(b"GET /app/plain") {
                    true => "text/plain",
                    false => "text/html",
                };
                let head = format!(
                    "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nETag: \"1\"\r\nContent-Length: 26\r\n\r\n"
                );
                let _ = stream.write_all(head.as_bytes());
                for piece in ["<html><HE", "AD>old old", "</html>"] {
                    let _ = stream.write_all(piece.as_bytes());
                    let _ = stream.flush();
                }
            });
        }
    });
    let folder = Folder::new();
    folder.write("files/a.html", "<html><head>old old</html>");
    let site = format!(
        "upstream app {{ server \"{address}\"; pool 0; }}\n\
         site \"*\" {{ replace-text \"<head>\" \"<head><i>$host</i>\"; replace-text old new once=off; compress off; \
         route \"/app\" {{ proxy app; }}; route \"/stored\" {{ proxy app; cache \"1m\"; encode gzip; encode-min 1; }}; \
         route \"/files/\" {{ files {:?}; rewrite-prefix \"/files/\" \"/\"; }}; \
         respond 200 \"<html><head>old old</html>\" type=\"text/html\"; }}\n",
        folder.0.join("files")
    );
    let server = served(&folder, &site);
    let expected = "<html><head><i>t</i>new new</html>";
    for target in ["/", "/app", "/files/a.html", "/stored", "/stored"] {
        let answer = server.get(target, "");
        assert_eq!((answer.status, answer.text().as_str()), (200, expected), "{target} {}", answer.head);
        assert_eq!(answer.field("ETag"), None, "{target}");
    }
    let plain = server.get("/app/plain", "");
    assert_eq!((plain.text().as_str(), plain.field("ETag")), ("<html><HEAD>old old</html>", Some("\"1\"")));
    // It is compressed with its new text, also if it was stored.
    for _ in 0..2 {
        let coded = server.get("/stored", "Accept-Encoding: gzip\r\n");
        assert_eq!(coded.field("Content-Encoding"), Some("gzip"));
        folder.write("coded.gz", &coded.body);
        let plain = Command::new("gzip").arg("-dc").arg(folder.0.join("coded.gz")).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&plain.stdout), expected);
    }
    let wrong = folder.0.join("wrong.kdl");
    std::fs::write(&wrong, "replace-text \"\" b\nrespond 200\n").unwrap();
    assert!(!flatout(&["check", wrong.to_str().unwrap()]).status.success());
}

fn base64(text: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for chunk in text.as_bytes().chunks(3) {
        let bits =
            chunk.iter().fold(0u32, |bits, &byte| bits << 8 | u32::from(byte)) << (8 * (3 - chunk.len()));
        for at in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * at)) as usize & 63];
            out.push(if at <= chunk.len() { digit as char } else { '=' });
        }
    }
    out
}
