//! Requests that go to the next server because of a response, and those that must not.

#[path = "support/mod.rs"]
mod support;

use std::io::Write;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flatout_proxy::{self as proxy, RetryOn, Upstream};
use support::{Running, h2, last, read_request, upstream};

/// An upstream that sends this response, its requests, and its connections.
struct Scripted {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
    connections: Arc<AtomicUsize>,
}

impl Scripted {
    fn sending(response: &'static str) -> Scripted {
        let (requests, connections) = (Arc::<Mutex<Vec<String>>>::default(), Arc::<AtomicUsize>::default());
        let (recorded, counted) = (requests.clone(), connections.clone());
        let address = upstream(move |_, mut stream| {
            counted.fetch_add(1, Ordering::SeqCst);
            while let Some(request) = read_request(&mut stream) {
                recorded.lock().unwrap().push(request);
                if stream.write_all(response.as_bytes()).is_err() {
                    return;
                }
            }
        });
        Scripted { address, requests, connections }
    }

    fn count(&self) -> usize {
        self.requests.lock().unwrap().len()
    }
}

const BUSY: &str = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nbusy";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// The upstream of both, which retries on 503.
fn both(first: SocketAddr, second: SocketAddr) -> Upstream {
    let server = |address| proxy::Server::new(proxy::Address::Socket(address));
    let mut upstream = Upstream::new("t", vec![server(first), server(second)]);
    upstream.passive.failures_max = 0;
    upstream.retry_on = RetryOn { statuses: vec![502, 503], ..RetryOn::default() };
    upstream
}

fn post() -> &'static str {
    "POST / HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc"
}

#[test]
fn another_server_is_asked_after_a_named_status() {
    let (busy, free) = (Scripted::sending(BUSY), Scripted::sending(OK));
    let running = Running::to(both(busy.address, free.address));
    for _ in 0..6 {
        assert!(running.all(last("/")).starts_with("HTTP/1.1 200 "));
    }
    assert_eq!((busy.count(), free.count()), (3, 6));
    assert_eq!(busy.connections.load(Ordering::SeqCst), 1, "its connection goes on");
    let figures = running.figures.server("t", &busy.address.to_string());
    assert_eq!((figures.retries, figures.failures, figures.active), (3, 3, 0));
}

/// It is about what was requested.
#[test]
fn a_404_that_asks_another_server_is_no_failure() {
    const MISSING: &str = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";
    let (empty, full) = (Scripted::sending(MISSING), Scripted::sending(OK));
    let mut upstream = both(empty.address, full.address);
    upstream.retry_on.statuses = vec![404];
    upstream.passive.failures_max = 1;
    let running = Running::to(upstream);
    for _ in 0..6 {
        assert!(running.all(last("/")).starts_with("HTTP/1.1 200 "));
    }
    assert_eq!((empty.count(), full.count()), (3, 6));
    let figures = running.figures.server("t", &empty.address.to_string());
    assert_eq!((figures.retries, figures.failures), (3, 0));
}

#[test]
fn the_response_of_the_last_server_arrives() {
    let (first, second) = (Scripted::sending(BUSY), Scripted::sending(BUSY));
    let running = Running::to(both(first.address, second.address));
    let text = running.all(last("/"));
    assert!(text.starts_with("HTTP/1.1 503 ") && text.ends_with("busy"), "{text}");
    assert_eq!((first.count(), second.count()), (1, 1));
    let single = Running::to(Upstream {
        servers: vec![proxy::Server::new(proxy::Address::Socket(first.address))],
        ..both(first.address, second.address)
    });
    assert!(single.all(last("/")).ends_with("busy"), "there is no other server");
    assert_eq!(first.count(), 2);
}

#[test]
fn a_request_that_is_not_idempotent_is_sent_once_unless_configured() {
    let (busy, free) = (Scripted::sending(BUSY), Scripted::sending(OK));
    let plan = both(busy.address, free.address);
    let running = Running::to(plan.clone());
    assert!(running.all(post()).starts_with("HTTP/1.1 503 "));
    assert_eq!(free.count(), 0);
    let retry_on = RetryOn { non_idempotent: true, ..plan.retry_on.clone() };
    let running = Running::to(Upstream { retry_on, ..plan });
    assert!(running.all(post()).starts_with("HTTP/1.1 200 "));
    assert!(free.requests.lock().unwrap().concat().ends_with("abc"), "with its body");
}

#[test]
fn no_retry_is_made_after_its_time_or_without_budget() {
    let (busy, free) = (Scripted::sending(BUSY), Scripted::sending(OK));
    let plan = both(busy.address, free.address);
    for plan in [
        Upstream { retry_time_max: Some(Duration::ZERO), ..plan.clone() },
        Upstream { retries_max: 0, ..plan.clone() },
        Upstream { retry_on: RetryOn::default(), ..plan },
    ] {
        assert!(Running::to(plan).all(last("/")).starts_with("HTTP/1.1 503 "));
    }
    assert_eq!(free.count(), 0);
}

#[test]
fn a_long_response_that_is_rejected_costs_its_connection() {
    let long = "HTTP/1.1 503 Service Unavailable\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbusy\r\n";
    let (busy, free) = (Scripted::sending(long), Scripted::sending(OK));
    let running = Running::to(both(busy.address, free.address));
    for _ in 0..4 {
        assert!(running.all(last("/")).starts_with("HTTP/1.1 200 "));
    }
    assert_eq!(busy.connections.load(Ordering::SeqCst), 2);
}

#[test]
fn malformed_responses_are_retried_if_configured() {
    let (bad, free) = (Scripted::sending("HTTP/1.1 nonsense\r\n\r\n"), Scripted::sending(OK));
    let plan = both(bad.address, free.address);
    assert!(Running::to(plan.clone()).all(last("/")).starts_with("HTTP/1.1 502 "));
    let retry_on = RetryOn { invalid_response: true, ..RetryOn::default() };
    assert!(Running::to(Upstream { retry_on, ..plan }).all(last("/")).starts_with("HTTP/1.1 200 "));
}

#[test]
fn broken_connections_are_not_retried_when_that_is_off() {
    let closing = upstream(|_, mut stream| drop(read_request(&mut stream)));
    let free = Scripted::sending(OK);
    let plan = both(closing, free.address);
    let running = Running::to(Upstream { retry_on: RetryOn::none(), ..plan.clone() });
    assert!(running.all(last("/")).starts_with("HTTP/1.1 502 "));
    assert!(Running::to(plan).all(last("/")).starts_with("HTTP/1.1 200 "));
}

#[test]
fn streams_of_http2_are_sent_to_another_server_too() {
    let serving = |status: u16| {
        h2::serving(::h2::server::Builder::new(), None, move |mut received: h2::ReceivedRequest| async move {
            h2::respond(&mut received.respond, status, "text");
        })
    };
    let (busy, free) = (serving(503), serving(200));
    let protocol = proxy::Protocol::H2c { streams_max: 10 };
    let running = Running::to(Upstream { protocol, ..both(busy.address, free.address) });
    for _ in 0..6 {
        assert!(running.all(last("/")).starts_with("HTTP/1.1 200 "));
    }
    assert!(running.all(post()).starts_with("HTTP/1.1 503 "));
    assert_eq!((busy.connections(), free.connections()), (1, 1));
}
