//! Hostile handshakes: ten thousand half-open ones, and the checks of testssl.sh.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use flatout_tests::authority::Authority;
use flatout_tests::{Folder, Server, program, until};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::Value;

/// Connections that begin a handshake, and descriptors that the test has besides.
const HALF_OPEN: usize = 10_000;
const DESCRIPTORS_BESIDES: u64 = 500;

/// Maximum memory of an unfinished handshake, without the kernel's.
const HALF_OPEN_BYTES_MAX: u64 = 20 << 10;

/// Time limit of testssl.sh, which makes hundreds of handshakes.
const TESTSSL_TIME_MAX: Duration = Duration::from_secs(600);

/// A server with a certificate for `a.test`, and its port for TLS.
fn served(authority: &Authority, site: &Folder, flags: &[&str]) -> (Server, u16) {
    site.write("index.html", "hello");
    authority.sign("a", "a.test");
    let mut command = Command::new(program("flatout"));
    command.arg("serve").arg(&site.0).args(["--listen", "127.0.0.1:0", "--workers", "2"]);
    command.args(["--tls", &authority.path("a.pem"), &authority.path("a.key")]).args(flags);
    let server = Server::start(command);
    let port = server.secure_port.expect("it speaks TLS");
    (server, port)
}

/// The ClientHello of a foreign client.
fn hello() -> Vec<u8> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut client = Command::new("openssl")
        .args(["s_client", "-connect", &address])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut stream = listener.accept().unwrap().0;
    let mut head = [0; 5];
    stream.read_exact(&mut head).unwrap();
    let mut rest = vec![0; usize::from(u16::from_be_bytes([head[3], head[4]]))];
    stream.read_exact(&mut rest).unwrap();
    drop(stream);
    client.wait().unwrap();
    [&head[..], &rest].concat()
}

fn resident_bytes(server: &Server) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

fn descriptors(server: &Server) -> usize {
    fs::read_dir(format!("/proc/{}/fd", server.pid())).unwrap().count()
}

#[test]
fn ten_thousand_half_open_handshakes_do_not_block_others() {
    let limit = getrlimit(Resource::Nofile);
    let needed = HALF_OPEN as u64 + DESCRIPTORS_BESIDES;
    assert!(limit.maximum.is_none_or(|most| most >= needed), "descriptors: {limit:?}, need {needed}");
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let (authority, site) = (Authority::new(), Folder::new());
    let (server, port) = served(&authority, &site, &["--tls-handshake-time", "40s"]);
    assert_eq!(authority.curl("a.test", port, "/", &[]).as_deref(), Ok("hello"));
    let (before, hello, began) = (resident_bytes(&server), hello(), Instant::now());
    let mut half = Vec::with_capacity(HALF_OPEN);
    for at in 0..HALF_OPEN {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        // Nothing; a part; all of it, without reading the response.
        let sent = match at % 3 {
            0 => 0,
            1 => 1 + at % (hello.len() - 1),
            _ => hello.len(),
        };
        stream.write_all(&hello[..sent]).unwrap();
        half.push(stream);
    }
    until("all are there", || descriptors(&server) > HALF_OPEN);
    for _ in 0..20 {
        assert_eq!(authority.curl("a.test", port, "/", &["--max-time", "20"]).as_deref(), Ok("hello"));
    }
    assert!(descriptors(&server) > HALF_OPEN, "they are there still, after {:?}", began.elapsed());
    let each = resident_bytes(&server).saturating_sub(before) / HALF_OPEN as u64;
    assert!(each <= HALF_OPEN_BYTES_MAX, "{each} bytes for each");
    until("their time is over", || descriptors(&server) < 100);
    assert_eq!(authority.curl("a.test", port, "/", &[]).as_deref(), Ok("hello"));
    drop(half);
}

/// Findings of testssl.sh that are not faults, by its ids: its own openssl has no GOST; the server uses the
/// client's cipher order. All of them are strong, and ChaCha20 is better for a client without AES in
/// hardware.
const NO_FAULTS: [&str; 2] = ["engine_problem", "cipher_order"];

#[test]
fn testssl_finds_no_problem() {
    let (authority, site) = (Authority::new(), Folder::new());
    let (_server, port) = served(&authority, &site, &[]);
    let found = site.0.join("found.json");
    let mut testssl = Command::new("testssl");
    // Protocols, ciphers, forward secrecy, preferences, vulnerabilities, bugs. Not the certificate, which is the test's own.
    testssl.args(["-p", "-s", "-f", "-P", "-U", "-g", "--quiet", "--color", "0", "--warnings", "off"]);
    testssl.args(["--nodns", "none", "--jsonfile"]).arg(&found).arg(format!("127.0.0.1:{port}"));
    let mut child = testssl
        .current_dir(&site.0)
        .stdin(Stdio::null())
        .stdout(fs::File::create(site.0.join("said")).unwrap())
        .stderr(Stdio::null())
        .spawn()
        .expect("testssl is missing; `./x test` installs it");
    let deadline = Instant::now() + TESTSSL_TIME_MAX;
    while child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < deadline, "testssl.sh does not end");
        std::thread::sleep(Duration::from_millis(100));
    }
    let said = fs::read_to_string(site.0.join("said")).unwrap();
    let found: Vec<Value> = serde_json::from_str(&fs::read_to_string(&found).unwrap())
        .unwrap_or_else(|error| panic!("{error}\n{said}"));
    let text = |finding: &Value, name: &str| finding[name].as_str().unwrap_or_default().to_owned();
    let finding = |id: &str| {
        let mut of_it = found.iter().filter(|finding| text(finding, "id") == id);
        of_it.next().map(|finding| (text(finding, "severity"), text(finding, "finding")))
    };
    for id in ["SSLv2", "SSLv3", "TLS1", "TLS1_1"] {
        let (severity, what) = finding(id).unwrap_or_else(|| panic!("{id}\n{said}"));
        assert!(severity == "OK" || what.starts_with("not offered"), "{id}: {what}");
    }
    for id in ["TLS1_2", "TLS1_3", "heartbleed", "CCS", "ticketbleed", "ROBOT", "secure_renego"] {
        assert_eq!(finding(id).map(|(severity, _)| severity).as_deref(), Some("OK"), "{id}\n{said}");
    }
    let is_bad = |finding: &&Value| !["OK", "INFO", "DEBUG"].contains(&text(finding, "severity").as_str());
    let bad: Vec<&Value> = found
        .iter()
        .filter(is_bad)
        .filter(|finding| !NO_FAULTS.contains(&text(finding, "id").as_str()))
        .collect();
    assert!(bad.is_empty(), "{bad:#?}\n{said}");
}
