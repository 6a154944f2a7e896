//! `tls-passthrough`: connections with TLS that go to an upstream as they are.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use flatout_tests::authority::Authority;
use flatout_tests::peers::free_port;
use flatout_tests::upgrading::{orphan, upgrade};
use flatout_tests::{Folder, PATIENCE, Server, program, until};

/// A ClientHello message, without records; without a name, or with this one.
fn message(name: Option<&str>) -> Vec<u8> {
    let mut body = [[3u8; 2].as_slice(), &[7; 32], &[0], &[0, 2, 0x13, 0x01], &[1, 0]].concat();
    let mut extensions = vec![0, 10, 0, 4, 0, 2, 0, 29];
    if let Some(name) = name {
        let length = name.len() as u16;
        for number in [0, length + 5, length + 3] {
            extensions.extend_from_slice(&number.to_be_bytes());
        }
        extensions.push(0);
        extensions.extend_from_slice(&length.to_be_bytes());
        extensions.extend_from_slice(name.as_bytes());
    }
    body.extend_from_slice(&(extensions.len() as u16).to_be_bytes());
    body.extend_from_slice(&extensions);
    [&[1, 0], &(body.len() as u16).to_be_bytes()[..], &body].concat()
}

/// Records of at most this many bytes.
fn records(message: &[u8], bytes: usize) -> Vec<u8> {
    let record = |part: &[u8]| [&[22, 3, 1][..], &(part.len() as u16).to_be_bytes(), part].concat();
    message.chunks(bytes).flat_map(record).collect()
}

fn hello(name: &str) -> Vec<u8> {
    records(&message(Some(name)), 16_384)
}

/// A server that sends back all that it receives, after its own letter. Its end follows that of the client.
fn echo(letter: u8) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                let mut back = stream.try_clone().unwrap();
                if back.write_all(&[letter]).is_err() || std::io::copy(&mut stream, &mut back).is_err() {
                    return;
                }
                let _ = back.write_all(b"end");
                let _ = back.shutdown(Shutdown::Write);
            });
        }
    });
    address
}

/// A server with this site file, in which PORT is its port; it also has an admin socket.
struct Front {
    folder: Folder,
    port: u16,
    server: Server,
}

impl Front {
    fn start(text: &str) -> Front {
        let (folder, port) = (Folder::new(), free_port());
        write(&folder, port, text);
        let mut command = Command::new(program("flatout"));
        command.arg("serve").arg("-c").arg(folder.0.join("site.kdl")).stdin(Stdio::null());
        let server = Server::start(command);
        Front { folder, port, server }
    }

    /// One site at all addresses, whose connections go to this server.
    fn passing(name: &str, to: SocketAddr) -> Front {
        Front::start(&format!("listen \"127.0.0.1:PORT\"\nsite \"{name}\" {{ tls-passthrough \"{to}\" }}\n"))
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Everything that comes back for these bytes, until the connection ends.
    fn answer(&self, bytes: &[u8]) -> Vec<u8> {
        let mut stream = self.connect();
        let _ = stream.write_all(bytes);
        to_end(&mut stream)
    }

    fn reload(&self, text: &str) {
        write(&self.folder, self.port, text);
        let admin = format!("unix:{}", self.folder.0.join("admin.sock").display());
        let done = Command::new(program("flatout")).args(["reload", "--admin", &admin]).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }
}

fn write(folder: &Folder, port: u16, text: &str) {
    let admin = folder.0.join("admin.sock");
    let text = text.replace("PORT", &port.to_string());
    folder.write("site.kdl", format!("admin \"unix:{}\"\nworkers 2\n{text}", admin.display()));
}

/// What is received until the end; a reset ends it too.
fn to_end(stream: &mut TcpStream) -> Vec<u8> {
    let mut received = Vec::new();
    match stream.read_to_end(&mut received) {
        Err(error)
            if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) =>
        {
            panic!("the connection does not end; received {received:?}")
        }
        _ => received,
    }
}

fn receive(stream: &mut TcpStream, bytes: usize) -> Vec<u8> {
    let mut received = vec![0; bytes];
    stream.read_exact(&mut received).unwrap();
    received
}

/// A command of `flatout`, with what it says.
fn run(arguments: &[&str]) -> (bool, String) {
    let output = Command::new(program("flatout")).args(arguments).output().unwrap();
    (output.status.success(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

#[test]
fn sites_with_tls_and_passthrough_share_a_port() {
    let authority = Authority::new();
    for name in ["own.test", "db.test"] {
        authority.sign(name, name);
    }
    let (folder, port) = (Folder::new(), free_port());
    let tls = |name: &str| {
        let path = |end: &str| authority.path(&format!("{name}.{end}"));
        format!("tls \"{}\" \"{}\"\n", path("pem"), path("key"))
    };
    folder.write(
        "behind.kdl",
        format!("listen \"127.0.0.1:{port}\"\n{}respond 200 \"behind\"\n", tls("db.test")),
    );
    let mut command = Command::new(program("flatout"));
    command.arg("serve").arg("-c").arg(folder.0.join("behind.kdl"));
    let _behind = Server::start(command);
    let front = Front::start(&format!(
        "listen \"127.0.0.1:PORT\"\n{}upstream \"db\" {{ server \"127.0.0.1:{port}\" }}\n\
         site \"own.test\" {{ respond 200 \"front\" }}\nsite \"*.test\" {{ tls-passthrough \"db\" }}\n",
        tls("own.test")
    ));
    for version in ["--http1.1", "--http2", "--tls-max=1.2"] {
        let more = match version.split_once('=') {
            Some((flag, value)) => vec![flag, value],
            None => vec![version],
        };
        assert_eq!(authority.curl("own.test", front.port, "/", &more), Ok("front".to_owned()), "{version}");
        // The certificate is the upstream's: the front has none for this name.
        assert_eq!(authority.curl("db.test", front.port, "/", &more), Ok("behind".to_owned()), "{version}");
    }
    let version = ["--http2", "--write-out", "%{http_version}"];
    assert_eq!(authority.curl("db.test", front.port, "/", &version), Ok("behind2".to_owned()));
    // A name of no site ends here, with the first certificate, which is not for it: curl's error 60.
    assert_eq!(authority.curl("db.example", front.port, "/", &[]), Err(60));
    // Clients without a name are served here too.
    let mut client = Command::new("openssl");
    client.args(["s_client", "-noservername", "-connect", &format!("127.0.0.1:{}", front.port)]);
    let output = client.stdin(Stdio::null()).output().unwrap();
    assert!(
        String::from_utf8_lossy(&output.stdout).contains("CN = own.test") || {
            String::from_utf8_lossy(&output.stdout).contains("CN=own.test")
        }
    );
}

#[test]
fn a_hello_arrives_in_any_pieces() {
    let front = Front::passing("db.test", echo(b'E'));
    let pieces = |sent: &[u8], bytes: usize| {
        let mut stream = front.connect();
        stream.set_nodelay(true).unwrap();
        for part in sent.chunks(bytes) {
            stream.write_all(part).unwrap();
        }
        assert_eq!(receive(&mut stream, 1), b"E");
        assert_eq!(receive(&mut stream, sent.len()), sent, "all bytes get there, in their order");
        stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(to_end(&mut stream), b"end");
    };
    for of_record in [16_384, 40, 3, 1] {
        let sent = records(&message(Some("DB.test")), of_record);
        pieces(&sent, sent.len());
        pieces(&sent, 1);
        // What follows the ClientHello at once is passed on as well.
        let more = [&sent[..], b"more"].concat();
        pieces(&more, more.len());
    }
}

#[test]
fn other_beginnings_are_refused() {
    let front = Front::start(&format!(
        "listen \"127.0.0.1:PORT\"\naccess-log \"access.log\"\ntls-handshake-time \"1s\"\nsite \"db.test\" {{ tls-passthrough \"{}\" }}\n",
        echo(b'E')
    ));
    for (name, bytes, expected) in [
        ("another name", hello("other.test"), b""),
        ("no name", records(&message(None), 16_384), b""),
        ("an invalid name", hello("db test"), b""),
        ("no TLS", vec![0; 64], b""),
        ("a closing alert", vec![21, 3, 3, 0, 2, 1, 0], b""),
        ("a large one", records(&[&[1, 0, 0xff, 0xff][..], &[0; 20_000]].concat(), 16_000), b""),
        ("endless records", records(&[&[1, 0, 0x3f, 0xff][..], &[0; 6000]].concat(), 1), b""),
        ("the start of one, and silence", hello("db.test")[..20].to_vec(), b""),
        ("silence", Vec::new(), b""),
    ] {
        assert_eq!(front.answer(&bytes), expected, "{name}");
    }
    let text = front.answer(b"GET / HTTP/1.1\r\nHost: db.test\r\n\r\n");
    assert!(String::from_utf8_lossy(&text).starts_with("HTTP/1.1 400 "), "HTTP on a port for TLS");
    // One that ends early.
    let mut stream = front.connect();
    stream.write_all(&hello("db.test")[..30]).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(to_end(&mut stream), b"");
    let bytes = hello("db.test");
    let mut stream = front.connect();
    stream.write_all(&bytes).unwrap();
    assert_eq!(receive(&mut stream, 1 + bytes.len())[0], b'E', "others are served as before");
    let log = || fs::read_to_string(front.folder.0.join("access.log")).unwrap_or_default();
    until("refused names are logged", || {
        log().contains("\"TLS other.test\" 403 0") && log().contains("\"TLS -\" 403 0")
    });
}

#[test]
fn refused_clients_are_logged_as_their_site_says() {
    let front = Front::start(&format!(
        "listen \"127.0.0.1:PORT\"\naccess-log \"access.log\"\nsite \"closed.test\" {{ deny all; tls-passthrough \"{0}\"; }}\n\
         site \"quiet.test\" {{ deny all; log-requests off; tls-passthrough \"{0}\"; }}\n",
        echo(b'E')
    ));
    for name in ["quiet.test", "closed.test"] {
        assert_eq!(front.answer(&hello(name)), b"", "{name}");
    }
    let log = || fs::read_to_string(front.folder.0.join("access.log")).unwrap_or_default();
    until("the line is there", || log().contains("\"TLS closed.test\" 403 0"));
    assert!(!log().contains("quiet.test"), "{}", log());
}

#[test]
fn servers_that_are_down_are_passed_over() {
    let (dead, alive) = (free_port(), echo(b'E'));
    let front = Front::start(&format!(
        "listen \"127.0.0.1:PORT\"\naccess-log \"access.log\"\n\
         upstream \"both\" {{\n  server \"127.0.0.1:{dead}\"\n  server \"{alive}\"\n  tunnel-time \"1s\"\n}}\n\
         site \"both.test\" {{ tls-passthrough \"both\" }}\nsite \"dead.test\" {{ tls-passthrough \"127.0.0.1:{dead}\" }}\n"
    ));
    for _ in 0..4 {
        let mut stream = front.connect();
        stream.write_all(&hello("both.test")).unwrap();
        assert_eq!(receive(&mut stream, 1), b"E");
        // It says nothing more, and is closed after `tunnel-time`.
        assert_eq!(to_end(&mut stream).len(), hello("both.test").len());
    }
    assert_eq!(front.answer(&hello("dead.test")), b"");
    let log = || fs::read_to_string(front.folder.0.join("access.log")).unwrap_or_default();
    until("all connections are logged", || log().lines().count() == 5);
    let bytes = hello("both.test").len();
    let timed_out = format!("\"TLS both.test\" 200 {}", bytes + 1);
    assert_eq!(log().lines().filter(|line| line.contains(&timed_out)).count(), 4, "{}", log());
    assert!(log().contains("\"TLS dead.test\" 502 0"), "{}", log());
    assert!(
        front
            .server
            .said()
            .iter()
            .any(|line| line.contains("cannot connect to") && line.contains("TLS dead.test"))
    );
}

#[test]
fn large_amounts_go_both_ways_and_each_side_ends_alone() {
    const BYTES: usize = 8 << 20;
    let front = Front::passing("*", echo(b'E'));
    let sent = hello("any.test");
    let mut stream = front.connect();
    let mut writer = stream.try_clone().unwrap();
    let of = |at: usize| (at % 251) as u8;
    let sender = thread::spawn(move || {
        writer.write_all(&hello("any.test")).unwrap();
        let all: Vec<u8> = (0..BYTES).map(of).collect();
        writer.write_all(&all).unwrap();
        writer.shutdown(Shutdown::Write).unwrap();
    });
    let received = to_end(&mut stream);
    sender.join().unwrap();
    assert_eq!(received.len(), 1 + sent.len() + BYTES + 3);
    let content = &received[1 + sent.len()..][..BYTES];
    assert!(
        content.iter().enumerate().all(|(at, byte)| *byte == of(at)),
        "the bytes are those that were sent"
    );
    assert!(received.ends_with(b"end"), "what comes after the client's end arrives");
}

#[test]
fn reloads_and_upgrades_leave_connections_alone() {
    let (one, other) = (echo(b'1'), echo(b'2'));
    let site = |to: SocketAddr| {
        format!(
            "listen \"127.0.0.1:PORT\"\ndrain-time \"1s\"\nsite \"db.test\" {{ tls-passthrough \"{to}\" }}\n"
        )
    };
    let mut front = Front::start(&site(one));
    let sent = hello("db.test");
    let open = |front: &Front| {
        let mut stream = front.connect();
        stream.write_all(&sent).unwrap();
        let first = receive(&mut stream, 1 + sent.len())[0];
        (stream, first)
    };
    let goes_on = |stream: &mut TcpStream| {
        stream.write_all(b"more").unwrap();
        receive(stream, 4) == b"more"
    };
    let (mut first, letter) = open(&front);
    assert_eq!(letter, b'1');
    front.reload(&site(other));
    let (mut second, letter) = open(&front);
    assert_eq!(letter, b'2', "new connections go where the new file says");
    assert!(goes_on(&mut first) && goes_on(&mut second));
    // The site is gone, and then there is one with routes: both are changes without a restart.
    front.reload("listen \"127.0.0.1:PORT\"\nrespond 200 \"plain\"\n");
    let plain = front.answer(b"GET / HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
    assert!(plain.ends_with(b"plain"), "{}", String::from_utf8_lossy(&plain));
    assert!(goes_on(&mut first) && goes_on(&mut second));
    front.reload(&site(one));
    let _successor = orphan(&upgrade(&front.folder.0.join("admin.sock")).unwrap());
    // The time for requests passes; connections that were passed on outlive it.
    thread::sleep(Duration::from_millis(1500));
    // By now the old process accepts no connection any more.
    let (mut third, letter) = open(&front);
    assert_eq!(letter, b'1');
    assert!(goes_on(&mut first) && goes_on(&mut second) && goes_on(&mut third));
    for mut stream in [first, second] {
        stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(to_end(&mut stream), b"end");
    }
    // The old process has nothing more to carry.
    assert!(front.server.wait().success());
    assert!(goes_on(&mut third));
}

#[test]
fn proxy_headers_come_in_and_go_out() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let front = Front::start(&format!(
        "listen \"127.0.0.1:PORT\" proxy-protocol=on\ntrusted-proxies \"127.0.0.0/8\"\naccess-log \"access.log\"\n\
         upstream \"db\" {{\n  server \"{address}\"\n  send-proxy v1\n}}\n\
         site \"db.test\" {{\n  tls-passthrough \"db\"\n  deny \"192.0.2.66\"\n}}\n"
    ));
    let header = |from: &str| format!("PROXY TCP4 {from} 198.51.100.1 4711 443\r\n").into_bytes();
    let sent = hello("db.test");
    for bytes in [1, 1000] {
        let mut stream = front.connect();
        for part in [header("192.0.2.7"), sent.clone()].concat().chunks(bytes) {
            stream.write_all(part).unwrap();
        }
        let (mut behind, _) = listener.accept().unwrap();
        behind.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            line.extend(receive(&mut behind, 1));
        }
        let line = String::from_utf8(line).unwrap();
        assert!(line.starts_with("PROXY TCP4 192.0.2.7 "), "{line}");
        assert_eq!(receive(&mut behind, sent.len()), sent);
    }
    // The access list is for the client that the header names.
    assert_eq!(front.answer(&[header("192.0.2.66"), sent].concat()), b"");
    let log = || fs::read_to_string(front.folder.0.join("access.log")).unwrap_or_default();
    until("the client is logged", || log().contains("192.0.2.7 - - "));
}

#[test]
fn figures_count_connections() {
    let address = echo(b'E');
    let front = Front::start(&format!(
        "listen \"127.0.0.1:PORT\"\nupstream \"db\" {{ server \"{address}\" }}\nsite \"db.test\" {{ tls-passthrough \"db\" }}\n"
    ));
    let metrics = || {
        let socket = front.folder.0.join("admin.sock");
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--unix-socket"]).arg(socket).arg("http://admin/metrics");
        String::from_utf8(curl.output().unwrap().stdout).unwrap()
    };
    let has = |name: &str, parts: &[&str], value: &str| {
        let is_it = |line: &&str| line.starts_with(name) && parts.iter().all(|part| line.contains(part));
        metrics().lines().filter(is_it).any(|line| line.split(' ').nth(1) == Some(value))
    };
    let mut stream = front.connect();
    stream.write_all(&hello("db.test")).unwrap();
    receive(&mut stream, 1);
    until("it is in progress", || has("flatout_upstream_", &["active", "db"], "1"));
    stream.shutdown(Shutdown::Write).unwrap();
    to_end(&mut stream);
    until("it has ended", || has("flatout_requests_total", &["site=\"db.test\"", "2xx"], "1"));
    until("nothing is in progress", || has("flatout_upstream_", &["active", "db"], "0"));
}

#[test]
fn mistakes_are_found_by_check_and_explain_shows_the_upstream() {
    let folder = Folder::new();
    let file = folder.0.join("site.kdl").display().to_string();
    for (text, expected) in [
        ("tls-passthrough \"127.0.0.1:1\"\nrespond 200 \"\"\n", "inside a site"),
        ("site \"a\" { tls-passthrough \"nobody\" }\n", "no upstream `nobody`"),
        ("site \"a\" { tls-passthrough \"https://127.0.0.1:1\" }\n", "https://"),
        ("site \"a\" {\n  tls-passthrough \"127.0.0.1:1\"\n  respond 200 \"\"\n}\n", "cannot have `respond`"),
        (
            "upstream \"h2\" {\n  server \"127.0.0.1:1\"\n  protocol h2c\n}\nsite \"a\" { tls-passthrough \"h2\" }\n",
            "protocol h2c",
        ),
    ] {
        folder.write("site.kdl", text);
        let (is_good, said) = run(&["check", &file]);
        assert!(!is_good && said.contains(expected), "{text}: {said}");
    }
    folder.write(
        "site.kdl",
        "listen \"127.0.0.1:0\"\nlisten-plain \"127.0.0.1:0\"\nupstream \"db\" { server \"127.0.0.1:1\" }\n\
         site \"db.test\" { tls-passthrough \"db\" }\nsite \"www.test\" { respond 200 \"hello\" }\n",
    );
    let (is_good, said) = run(&["check", &file]);
    assert!(is_good, "{said}");
    let (is_good, said) = run(&["explain", "-c", &file, "GET", "https://db.test/"]);
    assert!(is_good && said.contains("passed on as it is to upstream db"), "{said}");
}

#[test]
fn servers_that_come_while_it_runs_get_connections_as_they_are() {
    let (dead, alive) = (free_port(), echo(b'E'));
    let front = Front::start(&format!(
        "listen \"127.0.0.1:PORT\"\nupstream \"db\" {{ server \"127.0.0.1:{dead}\" }}\nsite \"db.test\" {{ tls-passthrough \"db\" }}\n"
    ));
    assert_eq!(front.answer(&hello("db.test")), b"");
    let admin = format!("unix:{}", front.folder.0.join("admin.sock").display());
    // TLS of its own would be for requests: the client's is not wrapped in another.
    let server = format!("https://{alive}");
    let (is_good, said) = run(&["upstream", "add", "db", &server, "--admin", &admin]);
    assert!(is_good, "{said}");
    until("it gets connections", || {
        let mut stream = front.connect();
        stream.write_all(&hello("db.test")).unwrap();
        let mut letter = [0];
        stream.read_exact(&mut letter).is_ok() && letter == *b"E"
    });
}
