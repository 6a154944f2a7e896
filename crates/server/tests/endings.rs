//! How proxied requests end without the complete response of a server: each with its own status, text and counter.

#[path = "../../engine/tests/support/secure.rs"]
#[allow(dead_code, reason = "a part of it is used")]
mod secure;
mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use flatout_proxy::{Address, Failure, Server, Tls, Upstream};
use h2::Reason;
use h2::server::Builder;
use support::h2::{h2c, respond, serving};
use support::{Running, body_of, get, last, one, read_request, read_until, rest, upstream};

const SECOND: Duration = Duration::from_secs(1);

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

/// An address without a listener.
fn nobodys() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// An upstream that reads requests and does not respond.
fn silent() -> SocketAddr {
    upstream(|_, mut stream| while read_request(&mut stream).is_some() {})
}

/// An upstream that sends these bytes for a request, and closes.
fn sending(bytes: &'static str) -> SocketAddr {
    upstream(move |_, mut stream| {
        read_request(&mut stream);
        let _ = stream.write_all(bytes.as_bytes());
    })
}

/// How often a request has ended like this.
fn count(proxy: &Running, failure: Failure) -> u64 {
    proxy.figures.upstream("t").ended[failure as usize]
}

/// Waits for the counter: it may change after the client has seen the end.
fn wait_for(proxy: &Running, failure: Failure, expected: u64) {
    let began = Instant::now();
    while count(proxy, failure) != expected {
        assert!(began.elapsed() < Duration::from_secs(30), "{failure:?}: {}", count(proxy, failure));
        std::thread::yield_now();
    }
}

/// The response to these bytes ends the request like this.
fn ends(upstream: Upstream, bytes: &str, failure: Failure, status: u16, text: &str) {
    let proxy = Running::to(upstream);
    let answer = proxy.all(bytes);
    assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{failure:?}: {answer}");
    assert_eq!(body_of(&answer), format!("{text}\n"), "{failure:?}");
    assert_eq!(count(&proxy, failure), 1, "{failure:?}");
    let others: u64 = proxy.figures.upstream("t").ended.iter().sum();
    assert_eq!(others, 1, "{failure:?} alone");
}

fn once(upstream: Upstream) -> Upstream {
    Upstream { retries_max: 0, ..upstream }
}

#[test]
fn a_server_without_a_listener_cannot_be_connected_to() {
    let text = "cannot connect to the upstream";
    ends(once(one(nobodys())), &last("/"), Failure::NotConnected, 502, text);
    ends(once(h2c(nobodys())), &last("/"), Failure::NotConnected, 502, text);
    let unix = Server::new(Address::Unix("/nowhere/app.sock".into()));
    ends(once(Upstream::new("t", vec![unix])), &last("/"), Failure::NotConnected, 502, text);
}

#[test]
fn no_server_is_left_when_all_were_tried() {
    let servers = [nobodys(), nobodys()].map(|address| Server::new(Address::Socket(address)));
    let text = "no server of the upstream is up";
    ends(Upstream::new("t", servers.into()), &last("/"), Failure::NoServer, 502, text);
}

#[test]
fn an_upstream_without_servers_is_unavailable() {
    let text = "the upstream has no servers";
    ends(Upstream::new("t", Vec::new()), &last("/"), Failure::Empty, 503, text);
}

#[test]
fn a_handshake_without_end_takes_connect_time() {
    let tls = Tls { name: Some("localhost".to_owned()), verify: false, ..Tls::default() };
    let server = Server { tls: Some(tls), ..Server::new(Address::Socket(silent())) };
    let plan = Upstream { connect_time_max: SECOND, ..Upstream::new("t", vec![server]) };
    let text = "cannot connect to the upstream in time";
    ends(once(plan), &last("/"), Failure::ConnectTime, 504, text);
}

#[test]
fn a_server_that_responds_in_http1_does_not_use_http2() {
    let text = "the upstream does not use HTTP/2";
    ends(once(h2c(sending("HTTP/1.1 400 Bad Request\r\n\r\n"))), &last("/"), Failure::NoHttp2, 502, text);
}

#[test]
fn a_server_that_closes_has_not_completed_its_response() {
    let text = "the upstream closed the connection before the end of its response";
    ends(once(one(sending(""))), &last("/"), Failure::Closed, 502, text);
    // After the response has begun, it is cut.
    let proxy = Running::to(one(sending("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc")));
    let mut stream = proxy.connect();
    stream.write_all(get("/").as_bytes()).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert!(answer.ends_with(b"abc"));
    wait_for(&proxy, Failure::Closed, 1);
}

#[test]
fn a_malformed_response_is_not_valid() {
    let text = "the upstream sent no valid response";
    ends(once(one(sending("SSH-2.0-OpenSSH_9\r\n\r\n"))), &last("/"), Failure::Malformed, 502, text);
}

#[test]
fn a_reset_stream_and_a_refused_one_are_different() {
    for (reason, failure, text) in [
        (Reason::INTERNAL_ERROR, Failure::Reset, "the upstream reset the stream of the request"),
        (Reason::REFUSED_STREAM, Failure::Refused, "the upstream refused the request without processing it"),
    ] {
        let served = serving(Builder::new(), None, move |mut asked| async move {
            asked.respond.send_reset(reason);
        });
        ends(once(served.upstream()), &last("/"), failure, 502, text);
    }
}

#[test]
fn a_silent_server_takes_read_time() {
    let text = "the upstream did not respond in time";
    let plan = Upstream { read_time_max: SECOND, ..one(silent()) };
    ends(once(plan), &last("/"), Failure::ReadTime, 504, text);
    let served = serving(Builder::new(), None, |asked| async move {
        let _kept = asked;
        std::future::pending::<()>().await;
    });
    let plan = Upstream { read_time_max: SECOND, ..served.upstream() };
    ends(once(plan), &last("/"), Failure::ReadTime, 504, text);
}

#[test]
fn read_time_begins_again_with_each_piece_of_a_long_response() {
    const PIECE_BYTES: usize = 300_000;
    const PIECES: usize = 8;
    let address = upstream(|_, mut stream| {
        read_request(&mut stream);
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", PIECES * PIECE_BYTES);
        let _ = stream.write_all(head.as_bytes());
        for _ in 0..PIECES {
            let _ = stream.write_all(&[b'x'; PIECE_BYTES]);
            std::thread::sleep(SECOND / 2);
        }
    });
    let proxy = Running::to(once(Upstream { read_time_max: 2 * SECOND, ..one(address) }));
    let answer = proxy.all(last("/"));
    assert_eq!(body_of(&answer).len(), PIECES * PIECE_BYTES);
    assert_eq!(count(&proxy, Failure::ReadTime), 0);
}

#[test]
fn a_request_takes_no_longer_than_request_time() {
    let plan = Upstream { request_time_max: Some(SECOND), ..one(silent()) };
    ends(plan, &last("/"), Failure::RequestTime, 504, "the request took too long");
    // After the response has begun, it is cut.
    let (release, released) = channel::<()>();
    let released = Mutex::new(released);
    let address = upstream(move |_, mut stream| {
        read_request(&mut stream);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc");
        let _ = released.lock().unwrap().recv_timeout(Duration::from_secs(60));
    });
    let proxy = Running::to(Upstream { request_time_max: Some(SECOND), ..one(address) });
    let mut stream = proxy.connect();
    stream.write_all(get("/").as_bytes()).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert!(answer.ends_with(b"abc"));
    wait_for(&proxy, Failure::RequestTime, 1);
    drop(release);
}

/// Sends `part` without end.
fn send_without_end(mut stream: TcpStream, part: Vec<u8>) {
    std::thread::spawn(move || while stream.write_all(&part).is_ok() {});
}

#[test]
fn a_server_that_accepts_nothing_takes_send_time() {
    let (release, released) = channel::<()>();
    let released = Mutex::new(released);
    let address = upstream(move |_, _stream| {
        let _ = released.lock().unwrap().recv_timeout(Duration::from_secs(60));
    });
    let proxy = Running::to(once(Upstream { send_time_max: SECOND, ..one(address) }));
    let mut stream = proxy.connect();
    stream.write_all(b"POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 60000000\r\n\r\n").unwrap();
    send_without_end(stream.try_clone().unwrap(), vec![b'x'; 100_000]);
    let answer = read_until(&mut stream, "\n\r\nthe upstream did not accept the request in time\n");
    assert!(answer.starts_with("HTTP/1.1 504 "), "{answer}");
    assert_eq!(count(&proxy, Failure::SendTime), 1);
    drop(release);
}

#[test]
fn a_client_that_does_not_go_on_takes_read_time() {
    let plan = |address| Upstream { read_time_max: SECOND, ..one(address) };
    let chunked = "POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n";
    let text = "the request body was not sent in time";
    ends(plan(silent()), chunked, Failure::BodyTime, 408, text);
    let served = serving(Builder::new(), None, |asked| async move {
        let _kept = asked;
        std::future::pending::<()>().await;
    });
    let over_h2 = Upstream { read_time_max: SECOND, ..served.upstream() };
    ends(over_h2, chunked, Failure::BodyTime, 408, text);
}

#[test]
fn a_body_can_be_malformed_or_too_large() {
    let proxy = Running::to(one(silent()));
    let head = "POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n";
    let mut stream = proxy.connect();
    stream.write_all(format!("{head}3\r\nabc\r\nzz\r\n").as_bytes()).unwrap();
    let answer = rest(&mut stream);
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    assert_eq!(body_of(&answer), "the request body is malformed\n");
    assert_eq!(count(&proxy, Failure::BadBody), 1);
    // The limit of these tests is 64 MiB.
    let reading =
        upstream(|_, mut stream| while stream.read(&mut [0; 1 << 16]).is_ok_and(|count| count > 0) {});
    let proxy = Running::to(one(reading));
    let mut stream = proxy.connect();
    stream.write_all(head.as_bytes()).unwrap();
    let chunk = [format!("{:x}\r\n", 1 << 20).as_bytes(), &vec![b'x'; 1 << 20], b"\r\n"].concat();
    send_without_end(stream.try_clone().unwrap(), chunk);
    let answer = read_until(&mut stream, "\n\r\nthe request body is too large\n");
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    assert_eq!(count(&proxy, Failure::LargeBody), 1);
}

#[test]
fn a_queue_has_a_length_and_a_time() {
    let plan = |queue_max| Upstream {
        connections_max: 1,
        queue_max,
        queue_time_max: Duration::from_millis(300),
        ..one(silent())
    };
    for (queue_max, failure, text) in [
        (0, Failure::QueueFull, "too many requests are waiting for the upstream"),
        (1, Failure::QueueTime, "the request waited too long for a connection to the upstream"),
    ] {
        let proxy = Running::to(plan(queue_max));
        let mut first = proxy.connect();
        first.write_all(get("/").as_bytes()).unwrap();
        // It has the connection once the worker serves another request.
        let began = Instant::now();
        let answer = loop {
            let answer = proxy.all(last("/"));
            if !answer.is_empty() || began.elapsed() > Duration::from_secs(30) {
                break answer;
            }
        };
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
        assert_eq!(body_of(&answer), format!("{text}\n"));
        assert!(count(&proxy, failure) >= 1);
    }
}

#[test]
fn a_connection_with_stray_bytes_is_not_used_again() {
    // After each response, and once the test allows it, the server sends another, unrequested one.
    let (go, goes) = channel::<()>();
    let (sent, was_sent) = channel();
    let both = Arc::new(Mutex::new((goes, sent)));
    let address = upstream(move |_, mut stream| {
        while read_request(&mut stream).is_some() {
            if stream.write_all(OK.as_bytes()).is_err() {
                return;
            }
            let (goes, sent) = &*both.lock().unwrap();
            if goes.recv_timeout(Duration::from_secs(60)).is_err() {
                return;
            }
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil");
            let _ = sent.send(());
        }
    });
    let proxy = Running::to(one(address));
    let mut stream = proxy.connect();
    for at in 0..100 {
        let request = match at % 2 {
            0 => get("/"),
            _ => "POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 1\r\n\r\nx".to_owned(),
        };
        stream.write_all(request.as_bytes()).unwrap();
        let answer = read_until(&mut stream, "\r\n\r\n") + &read_until(&mut stream, "o");
        assert!(answer.ends_with("hello"), "{answer}");
        go.send(()).unwrap();
        was_sent.recv_timeout(Duration::from_secs(30)).unwrap();
    }
}

#[test]
fn a_request_that_is_answered_counts_as_none_of_these() {
    let served =
        serving(Builder::new(), None, |mut asked| async move { respond(&mut asked.respond, 200, "ok") });
    for upstream in [one(sending(OK)), served.upstream()] {
        let proxy = Running::to(upstream);
        assert!(proxy.all(last("/")).starts_with("HTTP/1.1 200 "));
        assert_eq!(proxy.figures.upstream("t").ended.iter().sum::<u64>(), 0);
    }
}
