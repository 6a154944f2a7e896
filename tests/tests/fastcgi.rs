//! Requests to FastCGI applications: good ones and broken ones, beside caches and slow clients.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use flatout_tests::authority::Authority;
use flatout_tests::upgrading::{orphan, upgrade};
use flatout_tests::{Folder, Server, program, until};

const STDOUT: u8 = 6;
const STDERR: u8 = 7;
const END: u8 = 3;

fn record(kind: u8, id: u8, content: &[u8], padding: u8) -> Vec<u8> {
    let length = (content.len() as u16).to_be_bytes();
    let mut out = vec![1, kind, 0, id, length[0], length[1], padding, 0];
    out.extend_from_slice(content);
    out.resize(out.len() + usize::from(padding), 0);
    out
}

pub(crate) fn stdout(text: &[u8]) -> Vec<u8> {
    text.chunks(8000).flat_map(|part| record(STDOUT, 1, part, 3)).collect()
}

pub(crate) fn end() -> Vec<u8> {
    [record(STDOUT, 1, b"", 0), record(END, 1, &[0; 8], 0)].concat()
}

/// What an application has received.
pub(crate) struct Received {
    params: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// The connection stays open after the response.
    stays_open: bool,
}

impl Received {
    pub(crate) fn param(&self, name: &str) -> &str {
        self.params.iter().find(|(this, _)| this == name).map_or("-", |(_, value)| value)
    }
}

fn length(bytes: &mut &[u8]) -> usize {
    let long = bytes[0] > 127;
    let found = if long {
        u32::from_be_bytes([bytes[0] & 127, bytes[1], bytes[2], bytes[3]]) as usize
    } else {
        usize::from(bytes[0])
    };
    *bytes = &bytes[if long { 4 } else { 1 }..];
    found
}

/// Reads a request; `None` at the end of the connection.
fn request(stream: &mut TcpStream) -> Option<Received> {
    let mut received = Received { params: Vec::new(), body: Vec::new(), stays_open: false };
    let mut header = [0; 8];
    loop {
        stream.read_exact(&mut header).ok()?;
        let count = usize::from(u16::from_be_bytes([header[4], header[5]]));
        let mut content = vec![0; count + usize::from(header[6])];
        stream.read_exact(&mut content).ok()?;
        let mut content = &content[..count];
        match header[1] {
            1 => {
                assert_eq!(content[..2], [0, 1], "a responder");
                received.stays_open = content[2] == 1;
            }
            4 => {
                while !content.is_empty() {
                    let (name, value) = (length(&mut content), length(&mut content));
                    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                    received.params.push((text(&content[..name]), text(&content[name..name + value])));
                    content = &content[name + value..];
                }
            }
            5 if count == 0 => return Some(received),
            5 => received.body.extend_from_slice(content),
            kind => panic!("record of type {kind}"),
        }
    }
}

/// An application that sends what `respond` returns, and counts its connections.
pub(crate) fn application(
    respond: impl Fn(&Received) -> Vec<u8> + Send + Sync + 'static,
) -> (SocketAddr, Arc<AtomicUsize>) {
    let (address, connections, _) = counted_application(respond);
    (address, connections)
}

/// The same; it also counts the responses that it has sent completely.
fn counted_application(
    respond: impl Fn(&Received) -> Vec<u8> + Send + Sync + 'static,
) -> (SocketAddr, Arc<AtomicUsize>, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (connections, responses) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (count, sent, respond) = (connections.clone(), responses.clone(), Arc::new(respond));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, respond, sent) = (stream.unwrap(), respond.clone(), sent.clone());
            count.fetch_add(1, Ordering::SeqCst);
            std::thread::spawn(move || {
                while let Some(received) = request(&mut stream) {
                    if stream.write_all(&respond(&received)).is_err() {
                        return;
                    }
                    sent.fetch_add(1, Ordering::SeqCst);
                    if !received.stays_open {
                        break;
                    }
                }
            });
        }
    });
    (address, connections, responses)
}

fn server(folder: &Folder, address: SocketAddr, route: &str) -> Server {
    folder.write(
        "site.kdl",
        format!(
            "listen \"127.0.0.1:0\"\nworkers 1\nupstream \"php\" {{\n  server \"{address}\"\n  protocol fastcgi\n  \
             fastcgi-root \"/srv/none\"\n  fastcgi-param \"APP_ENV\" \"test\"\n}}\n\
             site * {{ route \"/\" {{ proxy \"php\"\n{route} }} }}\n"
        ),
    );
    let mut command = Command::new(program("flatout"));
    command.args(["serve", "-c"]).arg(folder.0.join("site.kdl"));
    Server::start(command)
}

/// One request over its own connection: the status, the head and the body, its chunks joined.
pub(crate) fn fetch(server: &Server, method: &str, target: &str, body: &[u8]) -> (String, String, Vec<u8>) {
    let mut stream = server.connect();
    let length = if body.is_empty() { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
    write!(stream, "{method} {target} HTTP/1.0\r\nHost: t\r\n{length}\r\n").unwrap();
    stream.write_all(body).unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("a head") + 4;
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    (head[9..12].to_owned(), head, bytes[end..].to_vec())
}

#[test]
fn scripts_get_parameters_and_bodies_over_one_connection() {
    let (address, connections) = application(|received| {
        let text =
            ["REQUEST_METHOD", "SCRIPT_FILENAME", "PATH_INFO", "QUERY_STRING", "CONTENT_LENGTH", "APP_ENV"]
                .map(|name| received.param(name))
                .join("|");
        let text = format!("Status: 201 Created\r\nX-Powered-By: test\r\n\r\n{text}|{}", received.body.len());
        [record(STDERR, 1, b"a notice\n", 7), stdout(text.as_bytes()), end()].concat()
    });
    let folder = Folder::new();
    let server = server(&folder, address, "");
    let (status, head, body) = fetch(&server, "GET", "/a.php/b?c=d", b"");
    assert_eq!(status, "201");
    assert!(head.to_lowercase().contains("x-powered-by: test"), "{head}");
    assert_eq!(String::from_utf8(body).unwrap(), "GET|/srv/none/a.php|/b|c=d|-|test|0");
    let (_, _, body) = fetch(&server, "POST", "/posts/1", &[b'x'; 300_000]);
    assert_eq!(String::from_utf8(body).unwrap(), "POST|/srv/none/index.php|||300000|test|300000");
    let (status, _, body) = fetch(&server, "HEAD", "/", b"");
    assert_eq!((status.as_str(), body.len()), ("201", 0));
    assert_eq!(connections.load(Ordering::SeqCst), 1, "it stays open");
}

#[test]
fn large_responses_arrive_complete_with_and_without_a_length() {
    let body: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).collect();
    let expected = body.clone();
    let (address, connections) = application(move |received| {
        let length = match received.param("QUERY_STRING") {
            "length" => format!("Content-Length: {}\r\n", body.len()),
            _ => String::new(),
        };
        [stdout(format!("{length}\r\n").as_bytes()), stdout(&body), end()].concat()
    });
    let folder = Folder::new();
    let server = server(&folder, address, "");
    for target in ["/?length", "/?length"] {
        let (status, _, found) = fetch(&server, "GET", target, b"");
        assert_eq!(status, "200");
        assert!(found == expected, "{target}: {} bytes", found.len());
    }
    assert_eq!(connections.load(Ordering::SeqCst), 1);
}

#[test]
fn broken_applications_get_a_502_and_the_next_request_a_new_connection() {
    let (address, _) = application(|received| match received.param("QUERY_STRING") {
        "id" => record(STDOUT, 2, b"X-A: b\r\n\r\nhi", 0),
        "kind" => record(5, 1, b"X-A: b\r\n\r\nhi", 0),
        "version" => b"HTTP/1.1 200 OK\r\n\r\n".to_vec(),
        "end" => end(),
        "overloaded" => record(END, 1, &[0, 0, 0, 0, 2, 0, 0, 0], 0),
        "switch" => [stdout(b"Status: 101\r\n\r\n"), end()].concat(),
        "head" => vec![stdout(&[b'h'; 8000]); 10].concat(),
        "twice" => [stdout(b"Content-Length: 2\r\n\r\nhi"), end(), end()].concat(),
        "stderr" => {
            [record(STDERR, 1, &[b'e'; 60_000], 0), stdout(b"Content-Length: 2\r\n\r\nhi"), end()].concat()
        }
        _ => [stdout(b"Content-Length: 2\r\n\r\nhi"), end()].concat(),
    });
    let folder = Folder::new();
    let server = server(&folder, address, "");
    // Each is followed by a good request, so the server is never considered down.
    for what in ["id", "kind", "version", "end", "overloaded", "switch", "head"] {
        assert_eq!(fetch(&server, "GET", &format!("/?{what}"), b"").0, "502", "{what}");
        assert_eq!(fetch(&server, "GET", "/", b"").2, b"hi", "after {what}");
    }
    assert_eq!(fetch(&server, "GET", "/?stderr", b"").2, b"hi");
    fetch(&server, "GET", "/?twice", b"");
    assert_eq!(fetch(&server, "GET", "/", b"").2, b"hi");
}

#[test]
fn lengths_and_records_that_lie_leave_nothing_for_the_next_request() {
    let (address, connections) = application(|received| match received.param("QUERY_STRING") {
        "short" => [stdout(b"Content-Length: 5\r\n\r\nhi"), end()].concat(),
        "long" => [stdout(b"Content-Length: 1\r\n\r\nhi"), end()].concat(),
        "negative" => [stdout(b"Content-Length: -1\r\n\r\nhi"), end()].concat(),
        "both" => [stdout(b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nhi"), end()].concat(),
        // The end comes first, or the output goes on after its end.
        "early" => [record(END, 1, &[0; 8], 0), stdout(b"X-A: b\r\n\r\nhidden")].concat(),
        "late" => [stdout(b"X-A: b\r\n\r\nhi"), record(STDOUT, 1, b"", 0), stdout(b"hidden"), end()].concat(),
        "padded" => [record(STDOUT, 1, b"Content-Length: 2\r\n\r\nhi", 255), end()].concat(),
        _ => [stdout(b"Content-Length: 2\r\n\r\nok"), end()].concat(),
    });
    let folder = Folder::new();
    let server = server(&folder, address, "");
    for (target, status, body) in [
        ("/?short", "502", &b""[..]),
        // As in nginx, what is beyond the length is dropped.
        ("/?long", "200", b"h"),
        ("/?negative", "502", b""),
        ("/?both", "502", b""),
        ("/?early", "502", b""),
        ("/?late", "502", b""),
        ("/?padded", "200", b"hi"),
    ] {
        let found = fetch(&server, "GET", target, b"");
        assert_eq!(found.0, status, "{target}");
        assert!(status == "502" || found.2 == body, "{target}: {:?}", String::from_utf8_lossy(&found.2));
        assert!(!String::from_utf8_lossy(&found.2).contains("hidden"), "{target}");
        assert_eq!(fetch(&server, "GET", "/", b"").2, b"ok", "after {target}");
    }
    assert!(connections.load(Ordering::SeqCst) > 1, "such connections are not used again");
}

#[test]
fn long_parameters_arrive_whole_or_are_refused() {
    let (address, _) = application(|received| {
        let text = format!(
            "X-A: b\r\n\r\n{} {}",
            received.param("HTTP_X_LONG").len(),
            received.param("HTTP_X_LAST")
        );
        [stdout(text.as_bytes()), end()].concat()
    });
    let folder = Folder::new();
    let server = server(&folder, address, "");
    // More than 127 bytes have a length of four bytes. What is above the limit of heads is refused.
    for (bytes, expected) in [(127, "127 z"), (128, "128 z"), (15_000, "15000 z")] {
        let answer = server.get("/", &format!("X-Long: {}\r\nX-Last: z\r\n", "a".repeat(bytes)));
        assert_eq!((answer.status, answer.text().as_str()), (200, expected), "{bytes}");
    }
    let answer = server.get("/", &format!("X-Long: {}\r\n", "a".repeat(200_000)));
    assert_eq!(answer.status, 431);
}

#[test]
fn responses_of_an_application_are_cached() {
    let runs = Arc::new(AtomicUsize::new(0));
    let count = runs.clone();
    let (address, _) = application(move |_| {
        let run = count.fetch_add(1, Ordering::SeqCst);
        [stdout(format!("Cache-Control: max-age=60\r\n\r\nrun {run}").as_bytes()), end()].concat()
    });
    let folder = Folder::new();
    let server = server(&folder, address, "cache \"1m\"");
    for _ in 0..3 {
        assert_eq!(fetch(&server, "GET", "/", b"").2, b"run 0");
    }
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

#[test]
fn settings_that_cannot_work_are_refused() {
    let folder = Folder::new();
    for (settings, why) in [
        ("protocol fastcgi", "needs fastcgi-root"),
        ("protocol fastcgi\nfastcgi-root \"srv\"", "need an absolute path"),
        ("protocol fastcgi\nfastcgi-root \"/srv\"\nhealth-check \"/\"", "only health-check tcp is possible"),
        ("health-check tcp body=\"a\"", "`body=` is not for a check by tcp"),
        ("health-check grpc", "needs protocol h2 or h2c"),
        ("eject-outliers on slow=\"1\"", "need a number from 1.1 to 1000"),
        ("protocol fastcgi\nfastcgi-root \"/srv\"\nfastcgi-param \"A B\" \"c\"", "letters, digits"),
    ] {
        let text = format!(
            "listen \"127.0.0.1:0\"\nupstream \"php\" {{\nserver \"127.0.0.1:1\"\n{settings}\n}}\nsite * {{ route \"/\" {{ proxy \"php\" }} }}\n"
        );
        folder.write("bad.kdl", text);
        let output =
            Command::new(program("flatout")).arg("check").arg(folder.0.join("bad.kdl")).output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && message.contains(why), "{settings}: {message}");
    }
}

/// A server with TLS, and with an admin socket in its folder.
fn secure_server(folder: &Folder, authority: &Authority, address: SocketAddr) -> Server {
    authority.sign("server", "localhost");
    std::fs::create_dir_all(folder.0.join("spool")).unwrap();
    folder.write(
        "site.kdl",
        format!(
            "admin \"unix:{}\"\nbuffer-dir \"spool\"\nlisten \"127.0.0.1:0\"\ntls \"{}\" \"{}\"\nupstream \"php\" {{\n  \
             server \"{address}\"\n  protocol fastcgi\n  fastcgi-root \"/srv/none\"\n}}\n\
             site * {{ route \"/\" {{ proxy \"php\" }} }}\n",
            admin(folder).display(),
            authority.path("server.pem"),
            authority.path("server.key"),
        ),
    );
    let mut command = Command::new(program("flatout"));
    command.args(["serve", "-c"]).arg(folder.0.join("site.kdl")).stdin(Stdio::null());
    Server::start(command)
}

fn admin(folder: &Folder) -> std::path::PathBuf {
    folder.0.join("admin.sock")
}

/// A client whose output is read later.
pub(crate) fn curl(server: &Server, target: &str, flags: &[&str]) -> std::process::Child {
    let url = format!("https://localhost:{}{target}", server.secure_port.unwrap());
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--insecure", "--max-time", "120", &url]).args(flags);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap()
}

#[test]
fn clients_of_both_protocols_reach_an_application_and_slow_ones_do_not_hold_it() {
    // More than the sockets on the way take.
    const BYTES: usize = 24 << 20;
    let (address, _, responses) = counted_application(|received| match received.param("PATH_INFO") {
        "/large" => [stdout(b"X-A: b\r\n\r\n"), stdout(&vec![b'x'; BYTES]), end()].concat(),
        _ => [
            stdout(b"X-A: b\r\n\r\n"),
            stdout(format!("{}|{}|", received.param("HTTPS"), received.param("HTTP_HOST")).as_bytes()),
            stdout(&received.body),
            end(),
        ]
        .concat(),
    });
    let (folder, authority) = (Folder::new(), Authority::new());
    let server = secure_server(&folder, &authority, address);
    let port = server.secure_port.unwrap();
    folder.write("body", vec![b'b'; 200_000]);
    let body = format!("@{}", folder.0.join("body").display());
    for (number, protocol) in ["--http1.1", "--http2"].into_iter().enumerate() {
        let output = curl(&server, "/a.php", &[protocol, "--data-binary", &body]).wait_with_output().unwrap();
        let expected = format!("on|localhost:{port}|{}", "b".repeat(200_000));
        assert!(output.stdout == expected.as_bytes(), "{protocol}: {} bytes", output.stdout.len());
        // curl reads nothing while nobody reads its output.
        let stalled = curl(&server, "/a.php/large", &[protocol]);
        until("the application is free", || responses.load(Ordering::SeqCst) == 2 * (number + 1));
        let output = stalled.wait_with_output().unwrap();
        assert!(output.stdout == vec![b'x'; BYTES], "{protocol}: {} bytes", output.stdout.len());
    }
}

#[test]
fn responses_under_way_outlive_a_reload_and_an_upgrade() {
    /// How many responses may be completed.
    #[derive(Default)]
    struct Gate(Mutex<usize>, Condvar);
    let (gate, requests) = (Arc::new(Gate::default()), Arc::new(AtomicUsize::new(0)));
    let (opened, arrived) = (gate.clone(), requests.clone());
    let (address, _) = application(move |_| {
        let number = arrived.fetch_add(1, Ordering::SeqCst);
        let open = opened.0.lock().unwrap();
        drop(opened.1.wait_while(open, |open| *open <= number).unwrap());
        [stdout(format!("X-A: b\r\n\r\nrun {number}").as_bytes()), end()].concat()
    });
    let (folder, authority) = (Folder::new(), Authority::new());
    let server = secure_server(&folder, &authority, address);
    let reload = |admin: &Path| {
        let admin = format!("unix:{}", admin.display());
        let output = Command::new(program("flatout")).args(["reload", "--admin", &admin]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        None
    };
    let replace = |admin: &Path| Some(orphan(&upgrade(admin).unwrap()));
    let mut successors = Vec::new();
    for (number, act) in [&reload as &dyn Fn(&Path) -> Option<_>, &replace].into_iter().enumerate() {
        let client = curl(&server, "/", &["--http2"]);
        until("the request has arrived", || requests.load(Ordering::SeqCst) > number);
        successors.extend(act(&admin(&folder)));
        *gate.0.lock().unwrap() = number + 1;
        gate.1.notify_all();
        let output = client.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), format!("run {number}"));
    }
    *gate.0.lock().unwrap() = usize::MAX;
    let after = curl(&server, "/", &["--http1.1"]).wait_with_output().unwrap();
    assert_eq!(after.stdout, b"run 2", "the successor serves");
}

#[test]
fn another_application_is_asked_in_place_of_one_that_is_overloaded() {
    let overloaded = record(END, 1, &[0, 0, 0, 0, 2, 0, 0, 0], 0);
    let (busy, busy_connections) = application(move |_| overloaded.clone());
    let (free, _) = application(|_| [stdout(b"Content-Length: 2\r\n\r\nhi"), end()].concat());
    let folder = Folder::new();
    folder.write(
        "site.kdl",
        format!(
            "listen \"127.0.0.1:0\"\nworkers 1\nupstream \"php\" {{\n  server \"{busy}\"\n  server \"{free}\"\n  \
             protocol fastcgi\n  fastcgi-root \"/srv/none\"\n  retry-on error invalid-response\n}}\n\
             site * {{ route \"/\" {{ proxy \"php\" }} }}\n"
        ),
    );
    let mut command = Command::new(program("flatout"));
    command.args(["serve", "-c"]).arg(folder.0.join("site.kdl"));
    let server = Server::start(command);
    for _ in 0..4 {
        let (status, _, body) = fetch(&server, "GET", "/", b"");
        assert_eq!((status.as_str(), &body[..]), ("200", &b"hi"[..]));
    }
    assert!(busy_connections.load(Ordering::SeqCst) > 0, "it was asked too");
}

/// An application whose test sees what arrives, before the request is complete.
struct Watched {
    address: SocketAddr,
    /// Parts of bodies, and empty ones at their ends.
    parts: std::sync::mpsc::Receiver<Vec<u8>>,
    connections: Arc<AtomicUsize>,
}

/// It responds when a body has ended, or, to `/early.php`, before that.
fn watched() -> Watched {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (seen, parts) = std::sync::mpsc::channel();
    let connections = Arc::new(AtomicUsize::new(0));
    let count = connections.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, seen) = (stream.unwrap(), seen.clone());
            count.fetch_add(1, Ordering::SeqCst);
            std::thread::spawn(move || {
                let (mut header, mut params) = ([0; 8], Vec::new());
                while stream.read_exact(&mut header).is_ok() {
                    let count = usize::from(u16::from_be_bytes([header[4], header[5]]));
                    let mut content = vec![0; count + usize::from(header[6])];
                    if stream.read_exact(&mut content).is_err() {
                        return;
                    }
                    let has = |text: &[u8], params: &[u8]| params.windows(text.len()).any(|it| it == text);
                    match header[1] {
                        1 => params.clear(),
                        4 => params.extend_from_slice(&content),
                        5 => {
                            let is_early = has(b"/early.php", &params);
                            let is_end = content.is_empty();
                            let _ = seen.send(content);
                            if is_end || is_early {
                                let length =
                                    if has(b"CONTENT_LENGTH", &params) { "known" } else { "unknown" };
                                let _ =
                                    stream.write_all(&stdout(format!("X-A: b\r\n\r\n{length}").as_bytes()));
                                let _ = stream.write_all(&end());
                                if is_early {
                                    return;
                                }
                            }
                        }
                        kind => panic!("record of type {kind}"),
                    }
                }
            });
        }
    });
    Watched { address, parts, connections }
}

#[test]
fn bodies_reach_an_application_as_they_arrive() {
    let (folder, app) = (Folder::new(), watched());
    let server = server(&folder, app.address, "buffer-requests off\n");
    let next = || app.parts.recv_timeout(flatout_tests::PATIENCE).unwrap();
    let got = |stream: &mut TcpStream| {
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    };
    let head = "POST /a.php HTTP/1.1\r\nHost: t\r\nConnection: close\r\n";
    let mut stream = server.connect();
    write!(stream, "{head}Content-Length: 6\r\n\r\nabc").unwrap();
    assert_eq!(next(), b"abc", "before the rest is sent");
    stream.write_all(b"def").unwrap();
    assert_eq!((next(), next()), (b"def".to_vec(), Vec::new()));
    let text = got(&mut stream);
    assert!(
        text.starts_with("HTTP/1.1 200") && text.contains("known") && !text.contains("unknown"),
        "{text}"
    );
    let mut stream = server.connect();
    write!(stream, "{head}Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n").unwrap();
    assert_eq!(next(), b"abc");
    stream.write_all(b"0\r\n\r\n").unwrap();
    assert_eq!(next(), b"");
    assert!(got(&mut stream).contains("unknown"));
    assert_eq!(app.connections.load(Ordering::SeqCst), 1, "a connection is used again");
    // A large one goes through, in records.
    let (status, ..) = fetch(&server, "POST", "/a.php", &vec![b'x'; 3_000_000]);
    let mut bytes = 0;
    loop {
        match next().len() {
            0 => break,
            count => bytes += count,
        }
    }
    assert_eq!((status.as_str(), bytes), ("200", 3_000_000));
    // A response may come before the body has ended: its connection is not used again.
    let mut stream = server.connect();
    write!(
        stream,
        "POST /early.php HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: 9\r\n\r\nabc"
    )
    .unwrap();
    assert_eq!(next(), b"abc");
    assert!(got(&mut stream).starts_with("HTTP/1.1 200"));
    // A client that leaves ends its request.
    let mut stream = server.connect();
    write!(stream, "{head}Content-Length: 9\r\n\r\nabc").unwrap();
    assert_eq!(next(), b"abc");
    drop(stream);
    let (status, ..) = fetch(&server, "POST", "/a.php", b"xyz");
    assert_eq!(status, "200");
}

#[test]
fn long_bodies_are_collected_in_a_file() {
    let (folder, app) = (Folder::new(), watched());
    let server = server(&folder, app.address, "buffer-requests on\n");
    let body = vec![b'x'; 3_000_000];
    let mut stream = server.connect();
    write!(
        stream,
        "POST /a.php HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    )
    .unwrap();
    stream.write_all(&body[..2_000_000]).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(app.parts.try_recv().is_err(), "nothing is sent before the body is complete");
    stream.write_all(&body[2_000_000..]).unwrap();
    let mut bytes = 0;
    loop {
        match app.parts.recv_timeout(flatout_tests::PATIENCE).unwrap().len() {
            0 => break,
            count => bytes += count,
        }
    }
    assert_eq!(bytes, body.len());
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200") && text.contains("known"), "{text}");
}
