//! `limit-rate`: responses of every origin, over each protocol, and what an upstream, a reload or an upgrade changes. Times are lower bounds; a
//! limit of one byte per second stands for one that must not apply.

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use flatout_tests::authority::self_sign;
use flatout_tests::upgrading::{orphan, upgrade};
use flatout_tests::{Answer, Folder, PATIENCE, Server, program, until};

/// The size of most bodies here; at 8,000 bytes per second an eighth of it is there at once.
const BODY_BYTES: usize = 7500;

/// What they need at least at this rate.
const TIME_MIN: Duration = Duration::from_millis(6 * 125);

/// The size of a body that is moved through pipes.
const BIG_BYTES: usize = 3 << 20;

/// The application: its own responses are not limited.
const APP: &str = r#"
route "/app/asks" { response-header set "X-Accel-Limit-Rate" "8000"; response-header set "Cache-Control" "max-age=600"; rewrite-prefix "/app/asks" "/text"; files folder; }
route "/app/asks-nothing" { response-header set "X-Accel-Limit-Rate" "0"; response-header set "Cache-Control" "max-age=600"; rewrite-prefix "/app/asks-nothing" "/text"; files folder; }
route "/app/asks-nonsense" { response-header set "X-Accel-Limit-Rate" "10k"; response-header set "Cache-Control" "max-age=600"; rewrite-prefix "/app/asks-nonsense" "/text"; files folder; }
route "/app/file" { response-header set "X-Accel-Limit-Rate" "8000"; response-header set "X-Accel-Redirect" "/private/text"; respond 200 ""; }
route "/app/" { rewrite-prefix "/app/" "/"; response-header set "Cache-Control" "max-age=600"; files folder; }
"#;

/// The server in front of it.
const SITE: &str = r#"
upstream app { server "ADDRESS"; }
limit-rate 8000
route "/files/" { rewrite-prefix "/files/" "/"; files folder; }
route "/free/" { limit-rate off; rewrite-prefix "/free/" "/"; files folder; }
route "/start/" { limit-rate 1; limit-rate-after "8KiB"; rewrite-prefix "/start/" "/"; files folder; }
route "/app/" { proxy app; }
route "/own/" { limit-rate "$arg_rate"; limit-rate-after "$arg_after"; rewrite-prefix "/own/" "/"; files folder; }
route "/own-app/" { limit-rate "$arg_rate"; rewrite-prefix "/own-app/" "/app/"; proxy app; }
route "/own-cached/" { limit-rate "$arg_rate"; rewrite-prefix "/own-cached/" "/app/"; cache "1h"; cache-key "$uri"; proxy app; }
route "/cached/" { rewrite-prefix "/cached/" "/app/"; cache "1h"; proxy app; }
route "/big/" { limit-rate "4MiB"; rewrite-prefix "/big/" "/app/"; proxy app; }
route "/big-unbuffered/" { limit-rate "4MiB"; buffer-response off; rewrite-prefix "/big-unbuffered/" "/app/"; proxy app; }
route "/private/" entry=internal { limit-rate 1; rewrite-prefix "/private/" "/"; files folder; }
route "/trusted/" { limit-rate 1; x-accel on; rewrite-prefix "/trusted/" "/app/"; proxy app; }
route "/trusted-cached/" { limit-rate 7000; x-accel on; cache "1h"; rewrite-prefix "/trusted-cached/" "/app/"; proxy app; }
respond 200 "short"
"#;

struct Setup {
    folders: [Folder; 2],
    _app: Server,
    server: Server,
}

fn served(folder: &Folder, text: &str) -> Server {
    folder.write("site.kdl", text);
    let mut command = Command::new(program("flatout"));
    command.arg("serve").arg("-c").arg(folder.0.join("site.kdl")).stdin(Stdio::null());
    Server::start(command)
}

fn content(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| b'a' + (at % 23) as u8).collect()
}

fn setup(more: &str) -> Setup {
    let folders = [Folder::new(), Folder::new()];
    for folder in &folders {
        folder.write("folder/text", content(BODY_BYTES));
        folder.write("folder/big", content(BIG_BYTES));
    }
    let app = served(&folders[0], &format!("listen \"127.0.0.1:0\"\nworkers 1\n{APP}"));
    let site = SITE.replace("ADDRESS", &format!("http://{}", app.address));
    self_sign(&folders[1]);
    let server = served(&folders[1], &format!("listen \"127.0.0.1:0\"\nworkers 1\n{more}\n{site}"));
    Setup { folders, _app: app, server }
}

impl Setup {
    /// The response, and how long it took.
    fn timed(&self, path: &str) -> (Answer, Duration) {
        let began = Instant::now();
        let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        let answer = self.server.one(&request);
        assert_eq!(answer.field("x-accel-limit-rate"), None, "{path}");
        (answer, began.elapsed())
    }

    /// Requests all of them at the same time; their bodies are right, and take at least this time.
    fn all_take(&self, paths: &[&str], bytes: usize, time_min: Duration) {
        std::thread::scope(|scope| {
            for path in paths {
                scope.spawn(move || {
                    let (answer, time) = self.timed(path);
                    assert_eq!((answer.status, answer.body.len()), (200, bytes), "{path}");
                    assert!(answer.body == content(bytes), "{path}");
                    assert!(time >= time_min, "{path} {time:?}");
                });
            }
        });
    }
}

#[test]
fn files_and_responses_of_upstreams_and_caches_are_limited() {
    let setup = setup("");
    // The second response of a cache is a stored one.
    for _ in 0..2 {
        setup.all_take(&["/files/text", "/app/text", "/cached/text"], BODY_BYTES, TIME_MIN);
    }
    let (answer, _) = setup.timed("/cached/text");
    assert!(answer.field("age").is_some(), "it was stored");
    setup.all_take(&["/free/text", "/start/text"], BODY_BYTES, Duration::ZERO);
    assert_eq!(setup.timed("/").0.text(), "short");
}

#[test]
fn requests_may_have_rates_of_their_own() {
    let setup = setup("");
    // The same response of a cache is sent at several rates.
    let slow = ["/own/text?rate=8000", "/own-app/text?rate=7k", "/own-cached/text?rate=7K"];
    for _ in 0..2 {
        setup.all_take(&slow, BODY_BYTES, TIME_MIN);
        let began = Instant::now();
        let free = [
            "/own/text",
            "/own/text?rate=0",
            "/own/text?rate=fast",
            "/own/text?rate=1&after=1m",
            "/own-app/text?rate=-1",
            "/own-cached/text?rate=99999999999999999999",
        ];
        setup.all_take(&free, BODY_BYTES, Duration::ZERO);
        assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
    }
}

#[test]
fn large_responses_of_upstreams_are_limited_and_whole() {
    let setup = setup("");
    // Each tick half a MiB; the first two may come together.
    let time_min = Duration::from_millis(4 * 125);
    setup.all_take(&["/big/big", "/big-unbuffered/big"], BIG_BYTES, time_min);
}

#[test]
fn upstreams_that_are_trusted_set_the_rate() {
    let setup = setup("");
    // The route's own rate would take hours, except that of stored responses.
    let limited = ["/trusted/asks", "/trusted/file", "/trusted-cached/asks"];
    for _ in 0..2 {
        setup.all_take(&limited, BODY_BYTES, TIME_MIN);
    }
    setup.all_take(&["/trusted/asks-nothing", "/trusted-cached/asks-nothing"], BODY_BYTES, Duration::ZERO);
    setup.all_take(&["/trusted-cached/asks-nothing"], BODY_BYTES, TIME_MIN);
    // Not trusted, and not understood: the route's.
    setup.all_take(&["/app/asks-nothing"], BODY_BYTES, TIME_MIN);
    let mut stream = setup.server.connect();
    stream.write_all(b"GET /trusted/asks-nonsense HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let mut bytes = vec![0; 4096];
    let read = stream.read(&mut bytes).unwrap_or_default();
    assert!(read < 100, "a byte per second");
}

#[test]
fn every_protocol_is_limited() {
    let plain = setup("");
    let secure = setup("tls \"cert.pem\" \"key.pem\"");
    std::thread::scope(|scope| {
        for (setup, scheme, flag) in [
            (&plain, "http", "--http2-prior-knowledge"),
            (&secure, "https", "--http2"),
            (&secure, "https", "--http1.1"),
        ] {
            for path in ["/files/text", "/app/text", "/cached/text", "/trusted/file", "/trusted/asks"] {
                scope.spawn(move || {
                    let port = setup.server.secure_port.unwrap_or(setup.server.address.port());
                    let url = format!("{scheme}://127.0.0.1:{port}{path}");
                    let began = Instant::now();
                    let output =
                        Command::new("curl").args(["-sk", "--max-time", "60", flag, &url]).output().unwrap();
                    assert!(began.elapsed() >= TIME_MIN, "{flag} {path} {:?}", began.elapsed());
                    assert!(output.stdout == content(BODY_BYTES), "{flag} {path} {}", output.stdout.len());
                });
            }
        }
    });
}

/// A response in progress while `change` happens, and what the server then says to new requests.
fn across(change: impl Fn(&Setup)) {
    let admin = Folder::new();
    let admin_line = format!("admin \"unix:{}/a.sock\"", admin.0.display());
    let mut setup = setup(&admin_line);
    setup._app.said();
    let mut stream = setup.server.connect();
    let began = Instant::now();
    stream.write_all(b"GET /app/text HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    let mut start = [0; 15];
    stream.read_exact(&mut start).unwrap();
    assert_eq!(&start, b"HTTP/1.1 200 OK");
    let text = std::fs::read_to_string(setup.folders[1].0.join("site.kdl")).unwrap();
    setup.folders[1].write("site.kdl", text.replace("limit-rate 8000", "limit-rate off"));
    change(&setup);
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    assert!(began.elapsed() >= TIME_MIN, "the rule that it began with: {:?}", began.elapsed());
    assert!(rest.ends_with(&content(BODY_BYTES)));
    let _ = &mut setup;
}

#[test]
fn a_reload_leaves_a_response_its_rate() {
    across(|setup| {
        let text = std::fs::read_to_string(setup.folders[1].0.join("site.kdl")).unwrap();
        let admin = text.split('"').find(|part| part.starts_with("unix:")).unwrap();
        let reloaded = Command::new(program("flatout")).args(["reload", "--admin", admin]).output().unwrap();
        assert!(reloaded.status.success(), "{}", String::from_utf8_lossy(&reloaded.stderr));
    });
}

#[test]
fn an_upgrade_leaves_a_response_its_rate() {
    across(|setup| {
        let text = std::fs::read_to_string(setup.folders[1].0.join("site.kdl")).unwrap();
        let admin = text.split('"').find_map(|part| part.strip_prefix("unix:")).unwrap();
        let _successor = orphan(&upgrade(admin.as_ref()).unwrap());
    });
}

/// What `flatout COMMAND` says about this site.
fn said(arguments: &[&str], text: &str) -> (bool, String) {
    let folder = Folder::new();
    folder.write("site.kdl", text);
    let mut command = Command::new(program("flatout"));
    command.args(arguments).arg(folder.0.join("site.kdl"));
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

#[test]
fn explain_shows_it_and_check_refuses_nonsense() {
    let site = "limit-rate-after \"1MiB\"\nsite a { limit-rate \"100KiB\"; route \"/x\" { respond 200; }; route \"/y\" { limit-rate off; respond 200; }; }\n";
    let explained = |url: &str| {
        let (is_fine, text) = said(&["explain", "GET", url, "-c"], site);
        assert!(is_fine, "{text}");
        text
    };
    let own = "site a { limit-rate \"$arg_r\"; limit-rate-after \"$http_x_a\"; respond 200; }\n";
    let (is_fine, text) = said(&["explain", "GET", "http://a/", "-c"], own);
    assert!(is_fine && text.contains("each response $arg_r/s after $http_x_a"), "{text}");
    // It is set before the response is there.
    for wrong in ["$status", "$none", "$"] {
        let (is_fine, text) = said(&["check"], &format!("site a {{ limit-rate {wrong:?}; respond 200; }}\n"));
        assert!(!is_fine, "{wrong}: {text}");
    }
    let shown = explained("http://a/x");
    assert!(shown.contains("each response 100KiB/s after 1MiB"), "{shown}");
    assert!(!explained("http://a/y").contains("each response"));
    for value in ["fast", "-1", "\"1MiB/s\"", "1.5", "99999999999999999999", "\"9999999999TiB\"", "1 2", ""] {
        for name in ["limit-rate", "limit-rate-after"] {
            let (is_fine, text) = said(&["check"], &format!("{name} {value}\nrespond 200\n"));
            assert!(!is_fine, "{name} {value}: {text}");
        }
    }
    let (is_fine, text) = said(&["check"], "limit-rate 0\nlimit-rate-after 0\nrespond 200\n");
    assert!(is_fine, "{text}");
}

/// A request is in progress as long as its response is being sent, wherever the body comes from.
#[test]
fn slow_downloads_count_for_the_limit_of_requests() {
    let folders = [Folder::new(), Folder::new()];
    folders.iter().for_each(|folder| folder.write("folder/text", content(BODY_BYTES)));
    let app = "listen \"127.0.0.1:0\"\nworkers 1\n\
        route \"/app/sent\" { response-header set \"X-Accel-Redirect\" \"/private/text?rate=$arg_rate\"; respond 200 \"\"; }\n\
        route \"/app/\" { rewrite-prefix \"/app/\" \"/\"; response-header set \"Cache-Control\" \"max-age=600\"; files folder; }\n";
    let app = served(&folders[0], app);
    let limits =
        |name: &str| format!("request-limit 1 key=everyone name={name} queue=0; limit-rate \"$arg_rate\"");
    let site = format!(
        "listen \"127.0.0.1:0\"\nworkers 2\nupstream app {{ server \"http://{}\"; }}\n\
         route \"/files/\" {{ {}; rewrite-prefix \"/files/\" \"/\"; files folder; }}\n\
         route \"/cached/\" {{ {}; cache \"1h\"; cache-key \"$uri\"; rewrite-prefix \"/cached/\" \"/app/\"; proxy app; }}\n\
         route \"/trusted/\" {{ {}; x-accel on; rewrite-prefix \"/trusted/\" \"/app/\"; proxy app; }}\n\
         route \"/private/\" entry=internal {{ limit-rate \"$arg_rate\"; rewrite-prefix \"/private/\" \"/\"; files folder; }}\n",
        app.address,
        limits("a"),
        limits("b"),
        limits("c"),
    );
    let server = served(&folders[1], &site);
    // Its head, and the connection.
    let begun = |target: &str| {
        let mut stream = server.connect();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        write!(stream, "GET {target} HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") {
            stream.read_exact(&mut byte).unwrap();
            head.extend(byte);
        }
        (stream, String::from_utf8_lossy(head.get(9..12).unwrap()).into_owned())
    };
    for path in ["/files/text", "/cached/text", "/trusted/sent"] {
        // It is stored.
        assert_eq!(server.get(&format!("{path}?rate=0"), "").status, 200, "{path}");
        // The head counts too.
        let slow = format!("{path}?rate=400");
        let mut first = None;
        until("the request before has ended", || {
            first = Some(begun(&slow));
            first.as_ref().is_some_and(|(_, status)| status == "200")
        });
        assert_eq!(begun(&slow).1, "503", "{path}");
        drop(first);
        until("the client has left", || begun(&slow).1 == "200");
    }
}
