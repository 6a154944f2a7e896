//! `buffer-requests on`: bodies are taken whole, into memory or into a file, before a server gets the request.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use flatout_tests::authority::self_sign;
use flatout_tests::upgrading::{orphan, upgrade};
use flatout_tests::{Answer, Folder, Server, answers, program, until};

/// More than what is held in memory.
const LARGE_BYTES: usize = 3 << 20;

const PATIENCE: Duration = Duration::from_secs(60);

/// What an upstream has received: the head, and the body as its length says.
struct Seen {
    head: String,
    body: Vec<u8>,
}

/// An upstream that shows what it gets. It closes the first connection on which a path with `fails` comes, once it has read the request.
fn upstream() -> (SocketAddr, Receiver<Seen>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, seen) = channel();
    std::thread::spawn(move || {
        let mut has_failed = false;
        for stream in listener.incoming() {
            let sender = sender.clone();
            let fails = !std::mem::replace(&mut has_failed, true);
            std::thread::spawn(move || respond(stream.unwrap(), &sender, fails));
        }
    });
    (address, seen)
}

fn respond(mut stream: TcpStream, sender: &Sender<Seen>, fails: bool) {
    loop {
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") {
            if stream.read(&mut byte).unwrap_or(0) == 0 {
                return;
            }
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).unwrap();
        let length = field(&head, "content-length").map_or(0, |value| value.parse().unwrap());
        let mut body = vec![0; length];
        if stream.read_exact(&mut body).is_err() {
            return;
        }
        let breaks = fails && head.contains("/fails");
        let _ = sender.send(Seen { head, body });
        if breaks || stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone").is_err() {
            return;
        }
    }
}

fn field<'h>(head: &'h str, name: &str) -> Option<&'h str> {
    head.lines().find_map(|line| {
        let (this, value) = line.split_once(':')?;
        this.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}

fn content(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 7 % 251) as u8).collect()
}

struct Setup {
    folder: Folder,
    server: Server,
    seen: Receiver<Seen>,
}

/// A server in front of the upstream `app`, with these lines.
fn setup(lines: &str) -> Setup {
    let (address, seen) = upstream();
    let folder = Folder::new();
    std::fs::create_dir_all(folder.0.join("spool")).unwrap();
    self_sign(&folder);
    let spool = if lines.contains("buffer-dir") { "" } else { "buffer-dir spool\n" };
    let text = format!(
        "listen \"127.0.0.1:0\"\nadmin \"unix:{}/a.sock\"\nworkers 1\n{spool}upstream app {{ server \"http://{address}\"; }}\n\
         buffer-requests on\nbody-bytes \"16MiB\"\n{lines}\n",
        folder.0.display()
    );
    folder.write("site.kdl", text);
    let mut command = Command::new(program("flatout"));
    command.arg("serve").arg("-c").arg(folder.0.join("site.kdl")).stdin(Stdio::null());
    Setup { server: Server::start(command), folder, seen }
}

impl Setup {
    fn admin(&self) -> PathBuf {
        self.folder.0.join("a.sock")
    }

    fn next(&self) -> Seen {
        self.seen.recv_timeout(PATIENCE).unwrap()
    }

    fn connect(&self) -> TcpStream {
        let stream = self.server.connect();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Nothing is left of any body.
    fn assert_nothing_is_kept(&self) {
        for place in ["file", "memory"] {
            let name = format!("flatout_spooled_bytes{{place=\"{place}\"}}");
            until("nothing is kept", || metric(&self.admin(), &name) == 0);
        }
    }
}

fn metric(admin: &Path, name: &str) -> u64 {
    flatout_tests::metric(admin, name).unwrap_or(0)
}

fn head(method: &str, path: &str, more: &str) -> Vec<u8> {
    format!("{method} {path} HTTP/1.1\r\nHost: a\r\n{more}\r\n").into_bytes()
}

fn read_answer(stream: &mut TcpStream) -> Answer {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    while !bytes.ends_with(b"done") {
        let count = stream.read(&mut buffer).unwrap();
        assert!(count > 0, "{:?}", String::from_utf8_lossy(&bytes));
        bytes.extend_from_slice(&buffer[..count]);
    }
    answers(&bytes, false).pop().unwrap()
}

/// Begins to send a large body; returns the rest.
fn begin(stream: &mut TcpStream, path: &str) -> Vec<u8> {
    let mut bytes = head("POST", path, &format!("Content-Length: {LARGE_BYTES}\r\n"));
    bytes.extend(content(LARGE_BYTES));
    let rest = bytes.split_off(2 << 20);
    stream.write_all(&bytes).unwrap();
    rest
}

fn finish(setup: &Setup, mut stream: TcpStream, rest: &[u8]) {
    stream.write_all(rest).unwrap();
    assert_eq!(read_answer(&mut stream).status, 200);
    let seen = setup.next();
    assert_eq!(field(&seen.head, "content-length"), Some(LARGE_BYTES.to_string().as_str()));
    assert!(seen.body == content(LARGE_BYTES));
}

#[test]
fn a_slow_upload_holds_no_server() {
    let setup = setup("proxy app");
    let mut slow = setup.connect();
    let rest = begin(&mut slow, "/slow");
    until("it is in the file", || {
        metric(&setup.admin(), "flatout_spooled_bytes{place=\"file\"}") > (1 << 20)
    });
    // Others go on, and the upstream has seen nothing of the first one.
    let mut other = setup.connect();
    other.write_all(&head("GET", "/other", "")).unwrap();
    assert_eq!(read_answer(&mut other).status, 200);
    assert!(setup.next().head.starts_with("GET /other"));
    finish(&setup, slow, &rest);
    setup.assert_nothing_is_kept();
}

#[test]
fn chunks_become_one_body_with_a_length() {
    let setup = setup("request-trailers X-Sum\nproxy app");
    for bytes in [0, 1, 20_000, 300_000, LARGE_BYTES] {
        let mut stream = setup.connect();
        stream
            .write_all(&head("POST", "/chunks", "Transfer-Encoding: chunked\r\nTrailer: X-Sum\r\n"))
            .unwrap();
        for piece in content(bytes).chunks(50_000) {
            stream.write_all(format!("{:x}\r\n", piece.len()).as_bytes()).unwrap();
            stream.write_all(piece).unwrap();
            stream.write_all(b"\r\n").unwrap();
        }
        stream.write_all(b"0\r\nX-Sum: 7\r\n\r\n").unwrap();
        assert_eq!(read_answer(&mut stream).status, 200);
        let seen = setup.next();
        assert_eq!(field(&seen.head, "content-length"), Some(bytes.to_string().as_str()), "{}", seen.head);
        assert_eq!(field(&seen.head, "transfer-encoding"), None);
        assert!(seen.body == content(bytes), "{bytes}");
    }
    setup.assert_nothing_is_kept();
}

#[test]
fn bodies_of_every_protocol_are_collected_whole() {
    let plain = setup("proxy app");
    let secure = setup("tls \"cert.pem\" \"key.pem\"\nproxy app");
    for (setup, scheme, flags) in [
        (&plain, "http", &["--http2-prior-knowledge"][..]),
        (&plain, "http", &["--http1.1", "-H", "Expect: 100-continue"]),
        (&secure, "https", &["--http2"]),
        (&secure, "https", &["--http1.1", "-H", "Transfer-Encoding: chunked"]),
    ] {
        for bytes in [10_000, 100_000, LARGE_BYTES] {
            setup.folder.write("body", content(bytes));
            let file = format!("@{}", setup.folder.0.join("body").display());
            let port = setup.server.secure_port.unwrap_or(setup.server.address.port());
            let url = format!("{scheme}://127.0.0.1:{port}/x");
            let output = Command::new("curl")
                .args(["-sk", "--max-time", "60", "--data-binary", &file, &url])
                .args(flags)
                .output()
                .unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout), "done", "{flags:?} {bytes}");
            let seen = setup.next();
            assert_eq!(field(&seen.head, "content-length"), Some(bytes.to_string().as_str()));
            assert!(seen.body == content(bytes), "{flags:?} {bytes}");
        }
        setup.assert_nothing_is_kept();
    }
}

#[test]
fn a_stored_body_is_sent_again() {
    for bytes in [100_000, LARGE_BYTES] {
        let setup = setup("retries 2\nproxy app");
        let mut stream = setup.connect();
        stream.write_all(&head("PUT", "/fails", &format!("Content-Length: {bytes}\r\n"))).unwrap();
        stream.write_all(&content(bytes)).unwrap();
        assert_eq!(read_answer(&mut stream).status, 200);
        for _ in 0..2 {
            assert!(setup.next().body == content(bytes), "{bytes}");
        }
        setup.assert_nothing_is_kept();
    }
}

/// A server of HTTP/2 that is flatout, in front of the upstream.
#[test]
fn servers_of_http2_get_it_too() {
    let behind = setup("proxy app");
    let folder = Folder::new();
    std::fs::create_dir_all(folder.0.join("spool")).unwrap();
    folder.write(
        "site.kdl",
        format!(
            "listen \"127.0.0.1:0\"\nworkers 1\nbuffer-dir spool\nbuffer-requests on\nprotocol h2c\n\
             upstream app {{ server \"http://{}\"; }}\nproxy app\n",
            behind.server.address
        ),
    );
    let mut command = Command::new(program("flatout"));
    command.arg("serve").arg("-c").arg(folder.0.join("site.kdl")).stdin(Stdio::null());
    let server = Server::start(command);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for bytes in [10, 100_000, LARGE_BYTES] {
                    let mut stream = server.connect();
                    stream.set_read_timeout(Some(PATIENCE)).unwrap();
                    stream.write_all(&head("POST", "/h2", &format!("Content-Length: {bytes}\r\n"))).unwrap();
                    stream.write_all(&content(bytes)).unwrap();
                    assert_eq!(read_answer(&mut stream).status, 200);
                }
            });
        }
    });
    for _ in 0..12 {
        let seen = behind.next();
        assert!(seen.body == content(seen.body.len()));
    }
}

#[test]
fn a_client_that_leaves_leaves_nothing() {
    let setup = setup("proxy app");
    let mut leaving = setup.connect();
    begin(&mut leaving, "/leaves");
    until("it is in the file", || {
        metric(&setup.admin(), "flatout_spooled_bytes{place=\"file\"}") > (1 << 20)
    });
    drop(leaving);
    setup.assert_nothing_is_kept();
    let mut malformed = setup.connect();
    malformed.write_all(&head("POST", "/bad", "Transfer-Encoding: chunked\r\n")).unwrap();
    malformed.write_all(b"5\r\nabcdeX\r\n").unwrap();
    assert_eq!(answers(&flatout_tests::read_to_close(&mut malformed), false)[0].status, 400);
    let mut large = setup.connect();
    large.write_all(&head("POST", "/large", "Transfer-Encoding: chunked\r\nConnection: close\r\n")).unwrap();
    let chunk = [b"100000\r\n", &content(1 << 20)[..], b"\r\n"].concat();
    for _ in 0..17 {
        if large.write_all(&chunk).is_err() {
            break;
        }
    }
    drop(large);
    setup.assert_nothing_is_kept();
    let mut last = setup.connect();
    last.write_all(&head("GET", "/last", "")).unwrap();
    assert_eq!(read_answer(&mut last).status, 200);
    assert!(setup.next().head.starts_with("GET /last"), "no other request has come");
}

#[test]
fn bodies_that_cannot_be_stored_are_refused() {
    for lines in ["buffer-size \"500KiB\"\nproxy app", "buffer-dir \"missing\"\nproxy app"] {
        let setup = setup(lines);
        let mut stream = setup.connect();
        let length = format!("Content-Length: {LARGE_BYTES}\r\nConnection: close\r\n");
        stream.write_all(&head("POST", "/large", &length)).unwrap();
        // It may have been refused before all was sent.
        let _ = stream.write_all(&content(LARGE_BYTES));
        let mut start = [0; 12];
        stream.read_exact(&mut start).unwrap();
        assert_eq!(&start, b"HTTP/1.1 503", "{lines}");
        until("the log says why", || {
            setup.server.said().iter().any(|line| line.contains("the request body cannot be stored"))
        });
        drop(stream);
        setup.assert_nothing_is_kept();
        let mut small = setup.connect();
        small.write_all(&head("POST", "/small", "Content-Length: 100000\r\n")).unwrap();
        small.write_all(&content(100_000)).unwrap();
        assert_eq!(read_answer(&mut small).status, 200);
        assert!(setup.next().head.starts_with("POST /small"), "no other request has come");
    }
    // In memory, within the memory for bodies.
    let setup = setup("buffer-dir off\nproxy app");
    let mut stream = setup.connect();
    let rest = begin(&mut stream, "/memory");
    finish(&setup, stream, &rest);
}

#[test]
fn guards_that_wait_and_early_bodies() {
    let setup = setup("forward-auth app path=\"/check\"\nproxy app");
    for path in ["/guarded", "/guarded-too"] {
        let mut stream = setup.connect();
        let rest = begin(&mut stream, path);
        assert!(setup.next().head.starts_with("GET /check"));
        finish(&setup, stream, &rest);
    }
    setup.assert_nothing_is_kept();
}

#[test]
fn a_reload_or_an_upgrade_between_head_and_end() {
    let changes = [
        ("buffer-requests on", "buffer-requests off"),
        ("buffer-dir spool", "buffer-dir off\nbuffer-memory 0"),
    ];
    for (is_upgrade, (former, next)) in [false, true].into_iter().flat_map(|way| changes.map(|it| (way, it)))
    {
        let setup = setup("proxy app");
        let mut stream = setup.connect();
        let rest = begin(&mut stream, "/across");
        until("it is in the file", || {
            metric(&setup.admin(), "flatout_spooled_bytes{place=\"file\"}") > (1 << 20)
        });
        let text = std::fs::read_to_string(setup.folder.0.join("site.kdl")).unwrap();
        setup.folder.write("site.kdl", text.replace(former, next));
        let admin = format!("unix:{}", setup.admin().display());
        let mut successor = None;
        if is_upgrade {
            successor = Some(orphan(&upgrade(&setup.admin()).unwrap()));
        } else {
            let output =
                Command::new(program("flatout")).args(["reload", "--admin", &admin]).output().unwrap();
            assert!(output.status.success());
        }
        finish(&setup, stream, &rest);
        drop(successor);
    }
}
