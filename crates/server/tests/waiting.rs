//! Requests that wait for a connection to an upstream get one as soon as there is room.

mod support;

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use flatout_engine::Limits;
use flatout_proxy::{Forward, Protocol, Upstream};
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
