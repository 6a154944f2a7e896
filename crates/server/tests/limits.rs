//! `max-requests`: how many requests a server may have in progress, over all workers.

mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use flatout_engine::Limits;
use flatout_proxy::{Address, Balance, Forward, Key, Server, Upstream};
use support::{Running, answering, body_of, last, read_request, read_until, rest, upstream};

const LONG: Duration = Duration::from_secs(30);

/// A server that reports a request, and responds once it is let.
fn waiting() -> (SocketAddr, Receiver<()>, Sender<()>) {
    let ((began, begins), (end, ends)) = (channel(), channel());
    let both = Mutex::new((began, ends));
    let address = upstream(move |_, mut stream| {
        while read_request(&mut stream).is_some() {
            let (began, ends) = &*both.lock().unwrap();
            began.send(()).unwrap();
            let _ = ends.recv_timeout(LONG);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nlate");
        }
    });
    (address, begins, end)
}

fn limited(address: SocketAddr, requests_max: u32) -> Server {
    Server { requests_max, ..Server::new(Address::Socket(address)) }
}

fn other() -> (SocketAddr, Receiver<String>) {
    answering("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nother")
}

fn ask(proxy: &Running) -> TcpStream {
    let mut stream = proxy.connect();
    stream.write_all(last("/").as_bytes()).unwrap();
    stream
}

#[test]
fn a_server_at_its_limit_is_passed_over_and_a_backup_helps() {
    for balance in [
        Balance::RoundRobin,
        Balance::LeastConnections,
        Balance::TwoChoices,
        Balance::Hash(Key::Client),
        Balance::Hash(Key::Argument("a".to_owned())),
    ] {
        let (address, begins, end) = waiting();
        let (backup, _asked) = other();
        let backup = Server { backup: true, ..Server::new(Address::Socket(backup)) };
        let plan = Upstream { balance, ..Upstream::new("t", vec![limited(address, 1), backup]) };
        let proxy = Running::to(plan);
        let mut first = ask(&proxy);
        begins.recv_timeout(LONG).unwrap();
        for _ in 0..3 {
            assert_eq!(body_of(&rest(&mut ask(&proxy))), "other");
        }
        end.send(()).unwrap();
        assert_eq!(body_of(&rest(&mut first)), "late");
        let mut again = ask(&proxy);
        begins.recv_timeout(LONG).unwrap();
        end.send(()).unwrap();
        assert_eq!(body_of(&rest(&mut again)), "late", "it has room again");
    }
}

#[test]
fn a_request_waits_in_the_queue_or_is_refused() {
    for queue_max in [0, 1] {
        let (address, begins, end) = waiting();
        let plan = Upstream { queue_max, ..Upstream::new("t", vec![limited(address, 1)]) };
        let proxy = Running::to(plan);
        let mut first = ask(&proxy);
        begins.recv_timeout(LONG).unwrap();
        let mut second = ask(&proxy);
        if queue_max == 0 {
            assert!(rest(&mut second).starts_with("HTTP/1.1 503 "));
        }
        end.send(()).unwrap();
        assert_eq!(body_of(&rest(&mut first)), "late");
        if queue_max == 1 {
            begins.recv_timeout(LONG).unwrap();
            end.send(()).unwrap();
            assert_eq!(body_of(&rest(&mut second)), "late", "it has waited");
        }
    }
}

#[test]
fn a_client_that_leaves_makes_room() {
    let (address, begins, end) = waiting();
    let plan = Upstream { queue_max: 1, ..Upstream::new("t", vec![limited(address, 1)]) };
    let proxy = Running::to(plan);
    let first = ask(&proxy);
    begins.recv_timeout(LONG).unwrap();
    drop(first);
    end.send(()).unwrap();
    for _ in 0..3 {
        let mut next = ask(&proxy);
        begins.recv_timeout(LONG).unwrap();
        end.send(()).unwrap();
        assert_eq!(body_of(&rest(&mut next)), "late");
    }
}

#[test]
fn a_server_that_resets_makes_room() {
    let address = upstream(|_, mut stream| drop(read_request(&mut stream)));
    let plan = Upstream { queue_max: 0, retries_max: 0, ..Upstream::new("t", vec![limited(address, 1)]) };
    let proxy = Running::to(plan);
    for _ in 0..5 {
        assert!(rest(&mut ask(&proxy)).starts_with("HTTP/1.1 502 "), "never 503");
    }
}

#[test]
fn a_tunnel_counts_until_it_ends() {
    let address = upstream(|_, mut stream| {
        let Some(head) = read_request(&mut stream) else { return };
        if !head.to_ascii_lowercase().contains("upgrade: echo") {
            let _ =
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nplain");
            return;
        }
        let _ = stream
            .write_all(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n");
        let mut bytes = [0; 64];
        while let Ok(count @ 1..) = stream.read(&mut bytes) {
            let _ = stream.write_all(&bytes[..count]);
        }
    });
    let plan = Upstream { queue_max: 1, ..Upstream::new("t", vec![limited(address, 1)]) };
    let forward = Forward { upgrade: vec![Forward::ANY_UPGRADE.to_owned()], ..Forward::to(0) };
    let proxy = Running::with(plan, forward, Limits::default());
    let mut tunnel = proxy.connect();
    tunnel.write_all(b"GET / HTTP/1.1\r\nHost: t\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n").unwrap();
    let head = read_until(&mut tunnel, "\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    tunnel.write_all(b"ping").unwrap();
    assert_eq!(read_until(&mut tunnel, "ping"), "ping");
    let mut waits = ask(&proxy);
    while proxy.figures.upstream("t").queued == 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    let answer = rest(&mut ask(&proxy));
    assert!(answer.starts_with("HTTP/1.1 503 "), "the queue has one place: {answer}");
    drop(tunnel);
    assert_eq!(body_of(&rest(&mut waits)), "plain");
}
