//! Start and end: drain, signals, all kinds of sockets, exit status.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use flatout_tests::{Folder, Server, Signal, answers, metric, program, read_to_close, until};

const LAST: &str = "GET / HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";

fn site(flags: &[&str]) -> (Folder, Server) {
    let folder = Folder::new();
    folder.write("index.html", "home");
    let server = Server::site(&folder.0, flags);
    (folder, server)
}

/// Requests that are sent, and so read, together.
const AT_ONCE: usize = 4;

/// Sends pipelined requests until the server closes; returns the number of complete responses.
fn load(mut stream: TcpStream, stop: &AtomicBool, begun: &AtomicUsize) -> usize {
    let request = "GET / HTTP/1.1\r\nHost: t\r\n\r\n".repeat(AT_ONCE);
    let mut bytes = Vec::new();
    let mut buffer = vec![0; 64 << 10];
    while !stop.load(Ordering::Relaxed) {
        if stream.write_all(request.as_bytes()).is_err() {
            break;
        }
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => break,
            Ok(read) => {
                begun.fetch_add(usize::from(bytes.is_empty()), Ordering::Relaxed);
                bytes.extend_from_slice(&buffer[..read]);
            }
        }
    }
    let whole = bytes.windows(8).rposition(|window| window == b"\r\n\r\nhome").map_or(0, |at| at + 8);
    answers(&bytes[..whole], false).len()
}

#[test]
fn a_drain_under_load_answers_all_received_requests() {
    let (_folder, mut server) = site(&["--workers", "2"]);
    let (stop, begun) = (AtomicBool::new(false), AtomicUsize::new(0));
    let mut idle = server.connect();
    let (counts, status) = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..8)
            .map(|_| server.connect())
            .map(|stream| scope.spawn(|| load(stream, &stop, &begun)))
            .collect();
        until("all are served", || begun.load(Ordering::Relaxed) == 8);
        std::thread::sleep(Duration::from_millis(100));
        server.signal(Signal::TERM);
        let status = server.wait();
        stop.store(true, Ordering::Relaxed);
        (clients.into_iter().map(|client| client.join().unwrap()).collect::<Vec<_>>(), status)
    });
    assert_eq!(status.code(), Some(0));
    for count in counts {
        assert!(
            count > 0 && count.is_multiple_of(AT_ONCE),
            "{count} answers: of those read at once, some were lost"
        );
    }
    assert_eq!(read_to_close(&mut idle), b"");
    assert!(TcpStream::connect(server.address).is_err());
}

#[test]
fn a_request_in_flight_finishes_and_a_second_signal_ends_at_once() {
    let folder = Folder::new();
    folder.write("big", vec![b'x'; 32 << 20]);
    for signal in [Signal::TERM, Signal::INT] {
        let mut server = Server::site(&folder.0, &["--workers", "1"]);
        let mut stream = server.connect();
        stream.write_all(b"GET /big HTTP/1.1\r\nHost: t\r\n\r\n").unwrap();
        stream.read_exact(&mut [0; 1000]).unwrap();
        server.signal(signal);
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        assert!(rest.len() + 1000 > 32 << 20, "{}", rest.len());
        assert_eq!(server.wait().code(), Some(0));

        let mut server = Server::site(&folder.0, &["--workers", "1"]);
        let mut stream = server.connect();
        stream.write_all(b"GET /big HTTP/1.1\r\nHost: t\r\n\r\n").unwrap();
        stream.read_exact(&mut [0; 1000]).unwrap();
        server.signal(signal);
        until("it drains", || TcpStream::connect(server.address).is_err());
        let began = Instant::now();
        server.signal(signal);
        assert_eq!(server.wait().code(), Some(0));
        assert!(began.elapsed() < Duration::from_secs(15), "a drain has 30 seconds");
    }
}

#[test]
fn a_drain_has_a_deadline() {
    let folder = Folder::new();
    folder.write("big", vec![b'x'; 32 << 20]);
    let mut server = Server::site(&folder.0, &["--drain-time", "500ms"]);
    let mut stream = server.connect();
    stream.write_all(b"GET /big HTTP/1.1\r\nHost: t\r\n\r\n").unwrap();
    stream.read_exact(&mut [0; 1000]).unwrap();
    let began = Instant::now();
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(0));
    assert!((400..15_000).contains(&began.elapsed().as_millis()), "{:?}", began.elapsed());
}

/// An origin that responds when it is let, and counts its requests.
fn held_origin() -> (SocketAddr, Arc<AtomicUsize>, Arc<AtomicBool>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (count, is_let) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let (counted, lets) = (count.clone(), is_let.clone());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let (counted, lets) = (counted.clone(), lets.clone());
            std::thread::spawn(move || {
                read_head(&mut stream);
                counted.fetch_add(1, Ordering::SeqCst);
                until("the origin may respond", || lets.load(Ordering::SeqCst));
                let response = "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 2\r\n\r\nok";
                let _ = stream.write_all(response.as_bytes());
                let _ = stream.read(&mut [0]);
            });
        }
    });
    (address, count, is_let)
}

fn read_head(stream: &mut TcpStream) {
    let (mut bytes, mut byte) = (Vec::new(), [0]);
    while !bytes.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|read| read == 1) {
        bytes.push(byte[0]);
    }
}

/// The requests of one worker's clients are collapsed into those of clients of both workers, which leave: the worker without a connection
/// still has to receive what the other's clients wait for.
#[test]
fn a_drain_waits_for_responses_that_other_workers_want() {
    const REQUESTS: usize = 8;
    let (origin, asked, is_let) = held_origin();
    let folder = Folder::new();
    let admin = folder.0.join("admin");
    let mut command = Command::new(program("flatout"));
    command.args(["serve", "--to", &format!("http://{origin}"), "--cache", "0s", "--listen", "127.0.0.1:0"]);
    command.args(["--workers", "2", "--admin", &format!("unix:{}", admin.display())]);
    let mut server = Server::start(command);
    let leaders: Vec<TcpStream> = (1..=REQUESTS)
        .map(|at| {
            let mut stream = server.connect();
            stream
                .write_all(format!("GET /{at} HTTP/1.1\r\nHost: {}\r\n\r\n", server.address).as_bytes())
                .unwrap();
            stream
        })
        .collect();
    until("the origin is asked", || asked.load(Ordering::SeqCst) == REQUESTS);
    let followers = Command::new("nghttp")
        .arg("--timeout=40s")
        .args((1..=REQUESTS).map(|at| format!("http://{}/{at}", server.address)))
        .stdout(Stdio::piped())
        .spawn()
        .expect("nghttp is installed");
    let collapsed = || metric(&admin, "flatout_cache_collapsed_total") == Some(REQUESTS as u64);
    until("the others wait for it", collapsed);
    for leader in leaders {
        // With a reset: after its FIN a client may still read.
        rustix::net::sockopt::set_socket_linger(&leader, Some(Duration::ZERO)).unwrap();
    }
    let began = Instant::now();
    server.signal(Signal::TERM);
    until("it drains", || TcpStream::connect(server.address).is_err());
    // A worker that is not needed ends within an eighth of a second.
    std::thread::sleep(Duration::from_millis(300));
    is_let.store(true, Ordering::SeqCst);
    let output = followers.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text, "ok".repeat(REQUESTS));
    assert_eq!(server.wait().code(), Some(0));
    assert!(began.elapsed() < Duration::from_secs(15), "a drain has 30 seconds: {:?}", began.elapsed());
}

#[test]
fn every_kind_of_socket_is_served() {
    let folder = Folder::new();
    folder.write("index.html", "home");
    let socket = std::env::temp_dir().join(format!("flatout-{}.sock", std::process::id()));
    let unix = format!("unix:{}", socket.display());
    let mut command = Command::new(program("flatout"));
    command.arg("serve").arg(&folder.0).args([
        "--listen",
        "127.0.0.1:0",
        "--listen",
        "[::1]:0",
        "--listen",
        &unix,
    ]);
    let mut server = Server::start(command);
    assert_eq!(server.get("/", "").text(), "home");
    for _ in 0..20 {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.write_all(LAST.as_bytes()).unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        assert_eq!(answers(&bytes, false)[0].text(), "home");
    }
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(0));
    let _ = std::fs::remove_file(socket);
}

#[test]
fn ipv6_is_served() {
    let folder = Folder::new();
    folder.write("index.html", "home");
    let mut command = Command::new(program("flatout"));
    command.arg("serve").arg(&folder.0).args(["--listen", "[::]:0"]);
    let server = Server::start(command);
    for host in ["127.0.0.1", "::1"] {
        let mut stream = TcpStream::connect((host, server.address.port())).unwrap();
        stream.write_all(LAST.as_bytes()).unwrap();
        assert_eq!(answers(&read_to_close(&mut stream), false)[0].text(), "home", "{host}");
    }
}

/// `flatout serve` with a socket that is handed over as by systemd.
fn with_handed_over(listener: TcpListener) -> Command {
    // A shell passes the socket like systemd: as descriptor 3, with the server's process id. It gets it as its input,
    // because it only knows descriptors of one digit.
    let script = "exec 3<&0 0</dev/null; exec env LISTEN_PID=$$ LISTEN_FDS=1 \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh"]).arg(program("flatout")).arg("serve");
    command.stdin(std::os::fd::OwnedFd::from(listener));
    command
}

#[test]
fn sockets_handed_over_by_systemd_are_served() {
    let folder = Folder::new();
    folder.write("index.html", "home");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut command = with_handed_over(listener);
    command.arg(&folder.0);
    let server = Server::start(command);
    assert_eq!(server.address.port(), port);
    assert_eq!(server.get("/", "").text(), "home");
}

/// `ListenStream=80` is `[::]:80`, for IPv4 too, and `listen-plain ":80"` means it.
#[test]
fn a_socket_of_systemd_for_all_addresses_is_as_its_port_is_listed() {
    let folder = Folder::new();
    folder.write("public/index.html", "home");
    let listener = TcpListener::bind("[::]:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let site = "listen \":1\"\nlisten-plain \":PORT\"\ntls local\nstate state\nsite t {\n files public\n}\n";
    folder.write("site.kdl", site.replace("PORT", &port.to_string()));
    let mut command = with_handed_over(listener);
    command.current_dir(&folder.0).args(["-c", "site.kdl"]);
    let server = Server::start(command);
    assert_eq!((server.address.port(), server.secure_port), (port, None));
    assert_eq!(server.get("/", "").text(), "home");
}

#[test]
fn root_privileges_are_dropped() {
    // Only root has privileges to drop.
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let (folder, server) = site(&["--user", "nobody"]);
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let uid = status.lines().find(|line| line.starts_with("Uid:")).unwrap();
    let ids: Vec<&str> = uid.split_whitespace().skip(1).collect();
    assert!(ids.iter().all(|id| *id != "0" && *id == ids[0]), "{uid}");
    assert_eq!(server.get("/", "").text(), "home");
    drop(folder);
}

fn run(arguments: &[&str]) -> Output {
    Command::new(program("flatout")).args(arguments).output().unwrap()
}

#[test]
fn wrong_usage_is_reported_with_status_2() {
    for (arguments, expected) in [
        (&["sreve"][..], "a similar subcommand exists: 'serve'"),
        (&["serve", "/nonexistent-folder"], "is not a folder"),
        (&["serve", "/etc/hostname"], "is not a folder"),
        (&["serve", ".", "--lisen", "1"], "a similar argument exists: '--listen'"),
        (&["profile", "--port", "1", "--seconds", "5"], "--seconds is now --duration"),
        (&["serve", ".", "--listen", "nowhere"], "got `nowhere`"),
        (&["serve", ".", "--workers", "0"], "got 0, need at least 1"),
        (&["serve", ".", "--head-bytes", "1GiB"], "allowed 64 to"),
        (&["serve", ".", "other"], "unexpected argument 'other'"),
    ] {
        let output = run(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?} {said}");
        assert!(said.starts_with("error: ") && said.contains(expected), "{arguments:?} {said}");
        assert!(output.stdout.is_empty());
    }
    let nothing = run(&[]);
    assert!(nothing.status.code() == Some(2) && String::from_utf8_lossy(&nothing.stderr).contains("Usage: "));
    let output = Command::new(program("hello-json")).args(["--workers", "x"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn without_a_folder_it_serves_the_one_it_stands_in() {
    let folder = Folder::new();
    folder.write("index.html", "home");
    let mut command = Command::new(program("flatout"));
    command.current_dir(&folder.0).args(["serve", "--listen", "127.0.0.1:0"]);
    assert_eq!(Server::start(command).get("/", "").text(), "home");
}

#[test]
fn failures_at_run_time_end_with_1() {
    let (folder, server) = site(&[]);
    let taken = server.address.to_string();
    let output = run(&["serve", folder.0.to_str().unwrap(), "--listen", &taken]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(&format!("cannot listen on http://{taken}: Address already in use")), "{said}");
    let output = run(&["serve", ".", "--listen", "127.0.0.1:0", "--user", "no-such-user"]);
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn the_json_example_answers_as_techempower_wants() {
    let mut server = Server::json();
    let json = server.get("/json", "");
    assert_eq!((json.status, json.text()), (200, r#"{"message":"Hello, World!"}"#.to_owned()));
    assert_eq!(json.field("content-type"), Some("application/json"));
    assert_eq!(json.field("content-length"), Some("27"));
    assert!(json.field("server").is_some() && json.field("date").is_some_and(|date| date.ends_with(" GMT")));
    let plain = server.get("/plaintext", "");
    assert_eq!(plain.text(), "Hello, World!");
    assert!(plain.field("content-type").unwrap().starts_with("text/plain"));
    assert_eq!(server.get("/nothing", "").field("content-type"), Some("application/problem+json"));
    server.signal(Signal::INT);
    assert_eq!(server.wait().code(), Some(0));
}
