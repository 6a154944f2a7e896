//! Requests that wait for a connection to an upstream get one as soon as there is room.

mod support;

use std::io::{Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flatout_engine::Limits;
use flatout_proxy::{Address, Balance, Forward, Key, Protocol, Server, Upstream};
use h2::server::Builder;
use support::h2::{respond, serving};
use support::{Running, body_of, last, one, read_request, read_until, rest, upstream};
use tokio::sync::Semaphore;

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

/// Longer than a client of these tests waits for a response.
const QUEUE_TIME: Duration = Duration::from_secs(600);

#[test]
fn waiting_requests_get_the_place_of_a_tunnel_that_has_ended() {
    let address = upstream(|_, mut stream| {
        let request = read_request(&mut stream).unwrap();
        if !request.contains("Upgrade: echo\r\n") {
            return stream.write_all(OK.as_bytes()).unwrap();
        }
        stream.write_all(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\n\r\n").unwrap();
        let _ = stream.read(&mut [0; 1]);
    });
    let plan = Upstream { connections_max: 1, queue_time_max: QUEUE_TIME, ..one(address) };
    let forward = Forward { upgrade: vec!["echo".to_owned()], ..Forward::to(0) };
    let proxy = Running::with(plan, forward, Limits::default());
    let mut tunnel = proxy.connect();
    tunnel.write_all(b"GET / HTTP/1.1\r\nHost: t\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n").unwrap();
    read_until(&mut tunnel, "\r\n\r\n");
    let mut waiting = proxy.connect();
    waiting.write_all(last("/").as_bytes()).unwrap();
    // If it has not come by then, nothing waits, and the test shows nothing.
    std::thread::sleep(Duration::from_millis(200));
    drop(tunnel);
    assert!(rest(&mut waiting).starts_with("HTTP/1.1 200 "));
}

#[test]
fn waiting_requests_share_the_connection_that_is_opened_next() {
    // Each connection takes three requests. Those of the second wait until all three have come.
    let (came, first, second) =
        (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (counted, gate, opened) = (came.clone(), first.clone(), second.clone());
    let upstream = serving(Builder::new(), Some(3), move |mut received| {
        let (counted, first, second) = (counted.clone(), gate.clone(), opened.clone());
        async move {
            if counted.fetch_add(1, Ordering::SeqCst) + 1 == 6 {
                second.add_permits(3);
            }
            let gate = if received.connection == 0 { first } else { second };
            gate.acquire().await.unwrap().forget();
            respond(&mut received.respond, 200, "ok");
        }
    });
    let plan = Upstream {
        protocol: Protocol::H2c { streams_max: 3 },
        connections_max: 1,
        queue_time_max: QUEUE_TIME,
        ..upstream.upstream()
    };
    let proxy = Running::to(plan);
    let mut clients: Vec<_> = (0..6).map(|_| proxy.connect()).collect();
    for client in &mut clients {
        client.write_all(last("/").as_bytes()).unwrap();
    }
    while came.load(Ordering::SeqCst) < 3 {
        std::thread::yield_now();
    }
    std::thread::sleep(Duration::from_millis(200));
    first.add_permits(3);
    clients.iter_mut().for_each(|client| assert_eq!(body_of(&rest(client)), "ok"));
    assert_eq!(upstream.connections(), 2);
}

/// Requests are bound to servers by their paths. One that gets a turn while its server is busy waits again, behind younger ones; its time
/// in the queue is over before theirs all the same.
#[test]
fn a_request_that_waits_again_does_not_wait_longer() {
    let (came, comes) = channel();
    let servers = [0, 1].map(|index| {
        let (go, goes) = channel::<()>();
        let (came, goes) = (Mutex::new(came.clone()), Mutex::new(goes));
        let address = upstream(move |_, mut stream| {
            while let Some(request) = read_request(&mut stream) {
                if request.contains("Hold: 1\r\n") {
                    came.lock().unwrap().send(()).unwrap();
                    let _ = goes.lock().unwrap().recv_timeout(Duration::from_secs(60));
                }
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{index}");
                if stream.write_all(head.as_bytes()).is_err() {
                    return;
                }
            }
        });
        (address, go)
    });
    let plan = Upstream {
        balance: Balance::Hash(Key::Path),
        connections_max: 1,
        queue_time_max: Duration::from_millis(2500),
        ..Upstream::new(
            "t",
            servers.iter().map(|(address, _)| Server::new(Address::Socket(*address))).collect(),
        )
    };
    let proxy = Running::to(plan);
    let of = |wanted: &str| {
        let paths = (0..64).map(|at| format!("/{at}"));
        paths.filter(|path| body_of(&proxy.all(last(path))) == wanted).take(4).collect::<Vec<_>>()
    };
    let (busy, other) = (of("0"), of("1"));
    let hold = |path: &str| {
        let mut stream = proxy.connect();
        let request = format!("GET {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\nHold: 1\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        comes.recv_timeout(Duration::from_secs(60)).unwrap();
        stream
    };
    let mut holder = hold(&busy[0]);
    let (sender, ended) = channel();
    for path in &busy[1..] {
        let (mut stream, sender, path) = (proxy.connect(), sender.clone(), path.clone());
        std::thread::spawn(move || {
            stream.write_all(last(&path).as_bytes()).unwrap();
            assert!(rest(&mut stream).starts_with("HTTP/1.1 503 "));
            sender.send(path).unwrap();
        });
        // The next one is younger.
        std::thread::sleep(Duration::from_millis(500));
    }
    let mut ending = hold(&other[0]);
    servers[1].1.send(()).unwrap();
    assert_eq!(body_of(&rest(&mut ending)), "1");
    let ended: Vec<String> = (0..3).map(|_| ended.recv_timeout(Duration::from_secs(60)).unwrap()).collect();
    assert_eq!(ended, busy[1..]);
    servers[0].1.send(()).unwrap();
    assert_eq!(body_of(&rest(&mut holder)), "0");
}
