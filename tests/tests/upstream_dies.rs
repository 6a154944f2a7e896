//! A server behind the proxy is killed and restarted while clients continue: no request fails that a retry can save.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use flatout_tests::peers::free_port;
use flatout_tests::{Server, Signal, program, until};

/// How often the server is killed.
const DEATHS: usize = 5;
/// The number of clients, each with one connection.
const CLIENTS: usize = 8;

fn json(port: u16) -> Server {
    let mut command = Command::new(program("hello-json"));
    command.args(["--listen", &format!("127.0.0.1:{port}"), "--workers", "1"]);
    Server::start(command)
}

/// The status of one GET on a persistent connection.
fn status(stream: &mut TcpStream) -> String {
    stream.write_all(b"GET /json HTTP/1.1\r\nHost: t\r\n\r\n").unwrap();
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let count = stream.read(&mut buffer).unwrap();
        assert_ne!(count, 0, "the client's connection ended after {:?}", String::from_utf8_lossy(&bytes));
        bytes.extend_from_slice(&buffer[..count]);
        let text = String::from_utf8_lossy(&bytes);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length =
            head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
        if length.is_none_or(|length: usize| body.len() >= length) {
            return head[9..12].to_owned();
        }
    }
}

#[test]
fn a_server_that_is_killed_costs_no_request() {
    let ports = [free_port(), free_port()];
    let mut dying = json(ports[0]);
    let _staying = json(ports[1]);
    let mut command = Command::new(program("flatout"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--workers", "1"]);
    for port in ports {
        command.args(["--to", &format!("http://127.0.0.1:{port}")]);
    }
    let proxy = Server::start(command);

    let (answered, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                scope.spawn(|| {
                    let mut stream = proxy.connect();
                    let mut failed = Vec::new();
                    while !is_over.load(Ordering::Relaxed) {
                        let status = status(&mut stream);
                        answered.fetch_add(1, Ordering::Relaxed);
                        if status != "200" {
                            failed.push(status);
                        }
                    }
                    failed
                })
            })
            .collect();
        let some_more = |count: u64| {
            let from = answered.load(Ordering::Relaxed);
            until("clients are answered", || answered.load(Ordering::Relaxed) >= from + count);
        };
        for _ in 0..DEATHS {
            some_more(500);
            dying.signal(Signal::KILL);
            dying.wait();
            some_more(500);
            dying = json(ports[0]);
        }
        some_more(500);
        is_over.store(true, Ordering::Relaxed);
        for client in clients {
            assert_eq!(client.join().unwrap(), Vec::<String>::new());
        }
    });
}

#[test]
fn the_log_says_which_server_cannot_be_reached_and_why() {
    let port = free_port();
    let folder = flatout_tests::Folder::new();
    let path = folder.0.join("app.sock");
    for (to, said) in [
        (format!("http://127.0.0.1:{port}"), format!("127.0.0.1:{port}: connection refused")),
        (format!("unix:{}", path.display()), format!("unix:{}: no such file or directory", path.display())),
    ] {
        let mut command = Command::new(program("flatout"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--workers", "1", "--to", &to]);
        let proxy = Server::start(command);
        let mut stream = proxy.connect();
        for _ in 0..200 {
            stream.write_all(b"GET /orders?token=secret HTTP/1.1\r\nHost: t\r\n\r\n").unwrap();
            let mut answer = Vec::new();
            while !answer.ends_with(b"cannot connect to the upstream\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                answer.push(byte[0]);
            }
            assert!(answer.starts_with(b"HTTP/1.1 502 "));
        }
        until("the failure is logged", || proxy.said().iter().any(|line| line.contains(&said)));
        let lines = proxy.said();
        let about: Vec<&String> = lines.iter().filter(|line| line.contains(" error: upstream ")).collect();
        let first = about.first().expect("a line");
        assert!(
            first.contains(&format!(": cannot connect to {said}; request GET /orders of 127.0.0.1:")),
            "{first}"
        );
        assert!(!first.contains("attempt"), "{first}");
        for (line, attempt) in about[1..3].iter().zip([", attempt 2", ", attempt 3"]) {
            assert!(line.ends_with(attempt), "{line}");
        }
        let time = first.strip_prefix("flatout: ").unwrap_or_default();
        assert!(time.starts_with("20") && time.as_bytes().get(10) == Some(&b'T'), "{first}");
        assert!(lines.iter().all(|line| !line.contains("secret")), "{lines:?}");
        // 600 attempts: fewer lines, also if they take some seconds.
        assert!(about.len() <= 200, "{} lines", about.len());
    }
}

#[test]
fn a_server_that_comes_back_is_used_at_once() {
    let port = free_port();
    let mut upstream = json(port);
    let mut command = Command::new(program("flatout"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--workers", "1"]);
    command.args(["--to", &format!("http://127.0.0.1:{port}")]);
    let proxy = Server::start(command);
    let mut stream = proxy.connect();
    assert_eq!(status(&mut stream), "200");
    upstream.signal(Signal::KILL);
    upstream.wait();
    // The client keeps its connection and gets a 502.
    assert_eq!(status(&mut stream), "502");
    let _back = json(port);
    // The only server is tried although it has failed.
    assert_eq!(status(&mut stream), "200");
}
