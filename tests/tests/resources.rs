//! Time and resources: the cost of slow, silent, broken and numerous clients.

#[path = "../../crates/engine/tests/support/attempts.rs"]
mod attempts;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use attempts::attempts;
use flatout_tests::{Folder, Server, answers, program, read_to_close, until};

const GET: &str = "GET / HTTP/1.1\r\nHost: t\r\n\r\n";
const LAST: &str = "GET / HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";

fn site(flags: &[&str]) -> (Folder, Server) {
    let folder = Folder::new();
    folder.write("index.html", "home");
    folder.write("big", vec![b'x'; 16 << 20]);
    let server = Server::site(&folder.0, &[&["--workers", "1"], flags].concat());
    (folder, server)
}

fn ask(stream: &mut TcpStream) -> String {
    stream.write_all(GET.as_bytes()).unwrap();
    read_to(stream, "home")
}

fn read_to(stream: &mut TcpStream, end: &str) -> String {
    let mut bytes = Vec::new();
    let mut buffer = [0; 1024];
    while !bytes.ends_with(end.as_bytes()) {
        let read = stream.read(&mut buffer).unwrap();
        assert!(read > 0, "closed after {:?}", String::from_utf8_lossy(&bytes));
        bytes.extend_from_slice(&buffer[..read]);
    }
    String::from_utf8(bytes).unwrap()
}

fn descriptors(server: &Server) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", server.pid())).unwrap().count()
}

fn resident_kib(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// User and kernel time so far, in hundredths of a second.
fn cpu_ticks(server: &Server) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", server.pid())).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

fn reset(stream: TcpStream) {
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
}

#[test]
fn slow_heads_are_cut_off_and_cost_others_nothing() {
    attempts(slow_heads_beside_others);
}

fn slow_heads_beside_others() {
    let (_folder, server) = site(&["--head-time", "1s"]);
    let began = Instant::now();
    let mut slow: Vec<TcpStream> = (0..200).map(|_| server.connect()).collect();
    for stream in &mut slow {
        stream.write_all(b"GET / HTTP/1.1\r\nHost: t\r\nX-").unwrap();
    }
    let mut dripping = server.connect();
    dripping.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    dripping.write_all(b"GET / HTTP/1.1\r\nHost: t\r\nA: ").unwrap();
    let mut got = Vec::new();
    loop {
        // A single byte must not extend the time.
        let _ = dripping.write_all(b"x");
        let mut buffer = [0; 512];
        match dripping.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => got.extend_from_slice(&buffer[..read]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => break,
        }
        assert!(began.elapsed() < Duration::from_secs(9), "still open");
    }
    assert!(got.starts_with(b"HTTP/1.1 408 "), "{:?}", String::from_utf8_lossy(&got));
    let other = Instant::now();
    assert_eq!(server.get("/", "").text(), "home");
    assert!(other.elapsed() < Duration::from_secs(5));
    for stream in &mut slow {
        let found = answers(&read_to_close(stream), false);
        assert_eq!((found.len(), found[0].status), (1, 408));
    }
}

#[test]
fn unread_bodies_are_not_awaited() {
    let (_folder, server) = site(&[]);
    let resident = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap().to_owned();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    let before = resident();
    // Each has sent all but the end of the largest body that a connection may send.
    let body = vec![b'x'; (8 << 20) - 1];
    let head = format!("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\n\r\n", 8 << 20);
    let mut streams: Vec<TcpStream> = (0..60).map(|_| server.connect()).collect();
    for stream in &mut streams {
        stream.write_all(head.as_bytes()).unwrap();
        // The server may have closed already, which is fine too.
        let _ = stream.write_all(&body);
    }
    let grown = resident().saturating_sub(before);
    assert!(grown < 32 << 10, "{grown} KiB for 60 unfinished uploads");
    drop(streams);
    let began = Instant::now();
    let found = server
        .exchange("POST / HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: 100000\r\n\r\nslow");
    assert_eq!((found.len(), found[0].status), (1, 405));
    assert!(began.elapsed() < Duration::from_secs(9));
}

#[test]
fn a_client_that_does_not_read_is_cut_off() {
    attempts(a_client_that_does_not_read);
}

fn a_client_that_does_not_read() {
    let (_folder, server) = site(&["--min-rate-window", "1s", "--min-rate", "1MiB"]);
    // The file stays open for the next request.
    server.get("/big", "");
    let before = descriptors(&server);
    let mut stream = server.connect();
    stream.write_all(b"GET /big HTTP/1.1\r\nHost: t\r\n\r\n").unwrap();
    until("its connection is there", || descriptors(&server) > before);
    until("its connection is gone", || descriptors(&server) <= before);
    let mut taken = Vec::new();
    let _ = stream.read_to_end(&mut taken);
    assert!(taken.len() < 16 << 20);
}

#[test]
fn silent_connections_are_closed() {
    let (_folder, server) = site(&["--idle-time", "4s"]);
    let mut silent = server.connect();
    let mut idle = server.connect();
    ask(&mut idle);
    for stream in [&mut silent, &mut idle] {
        assert_eq!(read_to_close(stream), b"", "nothing is said");
    }
}

#[test]
fn a_half_closed_client_is_answered() {
    let (_folder, server) = site(&[]);
    let mut stream = server.connect();
    stream.write_all(GET.repeat(3).as_bytes()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(answers(&read_to_close(&mut stream), false).len(), 3);
}

#[test]
fn resets_and_half_open_peers_leave_nothing_behind() {
    let (_folder, server) = site(&[]);
    for _ in 0..50 {
        let mut stream = server.connect();
        stream.write_all(b"GET /big HTTP/1.1\r\nHost: t\r\n\r\n").unwrap();
        reset(stream);
    }
    server.get("/", "");
    let (descriptors_before, resident_before) = (descriptors(&server), resident_kib(&server));
    for round in 0..1000 {
        let mut stream = server.connect();
        let bytes: &[u8] = match round % 4 {
            0 => b"GET /big HTTP/1.1\r\nHost: t\r\n\r\n",
            1 => b"GET / HTTP/1.1\r\nHost",
            2 => b"POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 1000\r\n\r\nhalf",
            _ => b"",
        };
        stream.write_all(bytes).unwrap();
        reset(stream);
    }
    until("descriptors are as before", || descriptors(&server) <= descriptors_before + 1);
    assert!(resident_kib(&server) < resident_before + 8192, "{resident_before} to {}", resident_kib(&server));
    assert_eq!(server.get("/", "").text(), "home");
}

#[test]
fn ten_thousand_connections_come_and_go() {
    let (_folder, server) = site(&[]);
    // Its worker has started, and opened what it needs itself.
    server.get("/", "");
    let before = descriptors(&server);
    for _ in 0..20 {
        let streams: Vec<TcpStream> = (0..500).map(|_| server.connect()).collect();
        drop(streams);
    }
    until("all are gone", || descriptors(&server) <= before + 1);
    assert_eq!(server.get("/", "").text(), "home");
}

#[test]
fn at_the_ceiling_new_connections_wait_and_the_old_ones_are_served() {
    let (_folder, server) = site(&["--connections", "10"]);
    let mut open: Vec<TcpStream> = (0..10).map(|_| server.connect()).collect();
    for stream in &mut open {
        ask(stream);
    }
    let mut waiting = server.connect();
    waiting.write_all(GET.as_bytes()).unwrap();
    waiting.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    assert!(waiting.read(&mut [0; 16]).is_err(), "it waits in the backlog");
    let before = cpu_ticks(&server);
    for _ in 0..20 {
        for stream in &mut open {
            ask(stream);
        }
    }
    assert!(cpu_ticks(&server) - before < 50, "the one that waits must not make it spin");
    drop(open.pop());
    waiting.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut buffer = [0; 512];
    let read = waiting.read(&mut buffer).unwrap();
    assert!(buffer[..read].starts_with(b"HTTP/1.1 200"));
}

#[test]
fn one_address_may_have_so_many_connections() {
    let (_folder, server) = site(&["--connections-per-address", "3"]);
    let mut open: Vec<TcpStream> = (0..3).map(|_| server.connect()).collect();
    open.iter_mut().for_each(|stream| drop(ask(stream)));
    let mut fourth = server.connect();
    let mut taken = Vec::new();
    let _ = fourth.read_to_end(&mut taken);
    assert!(taken.is_empty(), "it is closed at once");
    drop(open);
    until("there is room again", || {
        let mut stream = server.connect();
        let _ = stream.write_all(LAST.as_bytes());
        let mut taken = Vec::new();
        stream.read_to_end(&mut taken).is_ok() && taken.starts_with(b"HTTP/1.1 200")
    });
}

#[test]
fn the_last_request_of_a_connection_says_so() {
    let (_folder, server) = site(&["--requests-per-connection", "2"]);
    let found = server.exchange(GET.repeat(3));
    let said: Vec<Option<&str>> = found.iter().map(|answer| answer.field("connection")).collect();
    assert_eq!(said, [None, Some("close")]);
}

#[test]
fn out_of_descriptors_the_open_ones_are_served_and_it_says_so_once_a_second() {
    let folder = Folder::new();
    folder.write("index.html", "home");
    folder.write("big", vec![b'x'; 1 << 20]);
    // As root flatout raises its hard limit, if the kernel allows it; here it may not.
    let mut command = Command::new("prlimit");
    command.args([
        "--nofile=40:40",
        "setpriv",
        "--bounding-set",
        "-sys_resource",
        "--inh-caps",
        "-sys_resource",
    ]);
    command.arg(program("flatout")).arg("serve").arg(&folder.0);
    command.args(["--listen", "127.0.0.1:0", "--workers", "1", "--connections", "1000"]);
    let server = Server::start(command);
    let mut first = server.connect();
    ask(&mut first);
    let crowded = Instant::now();
    let crowd: Vec<TcpStream> = (0..60).map(|_| server.connect()).collect();
    // Beside the lines of its start.
    let said = || -> Vec<String> {
        server.said().into_iter().filter(|line| line.contains("cannot accept new connections")).collect()
    };
    until("it says so", || !said().is_empty());
    let before = cpu_ticks(&server);
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(2) {
        ask(&mut first);
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(cpu_ticks(&server) - before < 40, "it spins");
    assert!(said().len() as u64 <= 1 + crowded.elapsed().as_secs(), "{:?}", server.said());
    first.write_all(b"GET /big HTTP/1.1\r\nHost: t\r\n\r\n").unwrap();
    let answer = read_to(&mut first, "Service Unavailable\n");
    assert!(answer.starts_with("HTTP/1.1 503 "), "it is there, but cannot be opened now: {answer}");
    folder.write("new", "new");
    folder.write("index.html", "changed");
    std::thread::sleep(Duration::from_millis(200));
    assert!(ask(&mut first).ends_with("home"), "a change that cannot be read takes nothing away");
    drop(crowd);
    until("it has recovered", || server.get("/", "").text() == "changed");
    until("and noticed what has changed", || server.get("/new", "").text() == "new");
    assert_eq!(server.get("/big", "").body.len(), 1 << 20);
}
