//! System errors, and the differences of Unix sockets.

mod support;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use flatout_engine::{Address, Limits, Plan, Reply, Request, RequestBody, Response, Server, Service, start};
use support::{Running, get, last, read_until};

/// Time limit of waits that end at once where nothing is wrong.
const TIME_MAX: Duration = Duration::from_secs(30);

struct Plain(std::sync::mpsc::Sender<String>);

impl Service for Plain {
    fn call(&self, request: Request<'_>, response: &mut Response) -> Reply {
        let _ = self.0.send(String::from_utf8_lossy(request.path).into_owned());
        if let RequestBody::Whole { bytes, .. } = request.body {
            response.buffer().extend_from_slice(bytes);
        }
        response.buffer().extend_from_slice(request.path);
        match request.path {
            b"/later" => Reply::Later(Box::pin(async {
                let mut response = Response::new();
                response.buffer().extend_from_slice(b"/later");
                response
            })),
            _ => Reply::Now,
        }
    }
}

fn serving(plan: Plan) -> (Server, Receiver<String>) {
    let (sender, seen) = channel();
    let sender = Mutex::new(sender);
    (start(plan, move |_| Box::new(Plain(sender.lock().unwrap().clone()))).unwrap(), seen)
}

#[test]
fn unix_client_closing_after_request_is_served() {
    let path = std::env::temp_dir().join(format!("flatout-faults-{}", std::process::id()));
    let plan = Plan { listen: vec![Address::Unix(path.clone()).into()], workers: Some(2), ..Plan::default() };
    let (server, seen) = serving(plan);
    let big = "x".repeat(100_000);
    // What stands behind the long request may be served too, or not.
    let next = || loop {
        let path = seen.recv_timeout(TIME_MAX).unwrap();
        if path != "/behind" {
            return path;
        }
    };
    for at in 0..50 {
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(get(&format!("/short/{at}")).as_bytes()).unwrap();
        drop(stream);
        assert_eq!(next(), format!("/short/{at}"));
        let mut stream = UnixStream::connect(&path).unwrap();
        let head = format!("POST /long/{at} HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\n\r\n", big.len());
        stream.write_all((head + &big + &get("/behind")).as_bytes()).unwrap();
        drop(stream);
        assert_eq!(next(), format!("/long/{at}"));
    }
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.write_all((get("/later") + &last("/now")).as_bytes()).unwrap();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).unwrap();
    assert!(answers.contains("\r\n\r\n/laterHTTP/1.1 200") && answers.ends_with("/now"), "{answers}");
    server.handle().stop();
    server.wait().unwrap();
    let _ = std::fs::remove_file(path);
}

const CHILD: &str = "FLATOUT_FAULTS_CHILD";

/// If the third thread of a server cannot be started, the start fails and leaves nothing behind. In a separate
/// process, because the limit applies to the whole process.
#[test]
fn thread_start_failure_is_an_error_and_frees_the_port() {
    if std::env::var_os(CHILD).is_some() {
        return without_room_for_threads();
    }
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "thread_start_failure_is_an_error_and_frees_the_port", "--nocapture"])
        .args(["--test-threads", "1"])
        .env(CHILD, "1")
        // The test's own thread and two workers fit below the limit, a third worker does not.
        .env("RUST_MIN_STACK", (STACK_BYTES).to_string())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout).into_owned() + &String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success() && said.contains("no thread: "), "{said}");
}

const STACK_BYTES: u64 = 1 << 30;

fn without_room_for_threads() {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let status = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = status.split(' ').next().unwrap().parse().unwrap();
    let room = pages * 4096 + 2 * STACK_BYTES + STACK_BYTES / 2;
    setrlimit(Resource::As, Rlimit { current: Some(room), maximum: Some(room) }).unwrap();
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let (sender, _seen) = channel();
    let sender = Mutex::new(sender);
    let plan = Plan { listen: vec![Address::Tcp(address).into()], workers: Some(4), ..Plan::default() };
    let started = start(plan, move |_| Box::new(Plain(sender.lock().unwrap().clone())));
    let error = started.err().expect("there is no room for four stacks");
    let _ = writeln!(std::io::stderr(), "no thread: {error}");
    TcpListener::bind(address).expect("the port is free again");
}

#[test]
fn closed_connections_free_their_memory() {
    let (sender, _seen) = channel();
    let sender = Mutex::new(sender);
    let limits = Limits { connections_per_address_max: Some(3_000), ..Limits::default() };
    let server = Running::serving(limits, move |_| Box::new(Plain(sender.lock().unwrap().clone())));
    let resident_kib = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap().to_owned();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    let mut after_first = 0;
    for round in 0..8 {
        let mut crowd: Vec<TcpStream> = (0..2_500).map(|_| server.connect()).collect();
        // Send each a part of a head, so that each connection has its own memory.
        for stream in &mut crowd {
            stream.write_all(b"GET / HTTP/1.1\r\nHost: ").unwrap();
        }
        let mut last = crowd.pop().unwrap();
        last.write_all(b"t\r\n\r\n").unwrap();
        read_until(&mut last, "\r\n\r\n");
        drop((crowd, last));
        let began = Instant::now();
        while server.handle.figures().connections > 0 {
            assert!(began.elapsed() < TIME_MAX, "{:?}", server.handle.figures());
            std::thread::sleep(Duration::from_millis(5));
        }
        if round == 0 {
            after_first = resident_kib();
        }
    }
    let grown = resident_kib().saturating_sub(after_first);
    assert!(grown < 2_000, "20 000 connections have left {grown} KiB");
}
