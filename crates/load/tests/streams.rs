//! The generator over HTTP/2: exact counts, servers that reset streams or send GOAWAY, and servers without HTTP/2.

#[path = "../../engine/tests/support/attempts.rs"]
mod attempts;
mod support;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use attempts::attempts;
use flatout_load::{Arrival, ErrorKind, Expect, Pacing, Plan, Request};
use flatout_wire::Status;
use flatout_wire::h2::{Limits, StreamId};
use support::{Authority, Peer, failed, go, greet, plan, refused, serve};

/// One connection with this many streams.
fn streams(address: SocketAddr, streams: usize) -> Plan {
    Plan { streams: Some(streams), connections: 1, ..plan(address) }
}

/// A server with a script that is called for each batch of requests.
fn answering(act: impl Fn(&mut Peer<'_, TcpStream>, Vec<StreamId>) + Send + Sync + 'static) -> SocketAddr {
    serve(move |mut stream, _| {
        let mut peer = Peer::new(&mut stream, Limits { streams_max: 1000, ..Limits::default() });
        while let Some(requests) = peer.requests() {
            act(&mut peer, requests);
        }
    })
}

/// A frame's bytes.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, a, b, c] = (payload.len() as u32).to_be_bytes();
    let mut frame = vec![a, b, c, kind, flags];
    frame.extend_from_slice(&stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

#[test]
fn counts_are_exact() {
    let (served, most) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicUsize::new(0)));
    let (seen, largest) = (served.clone(), most.clone());
    let address = serve(move |mut stream, _| {
        greet(&mut stream, |count| {
            seen.fetch_add(count as u64, Ordering::Relaxed);
            largest.fetch_max(count, Ordering::Relaxed);
        });
    });
    for (threads, connections, at_a_time, count) in
        [(1, 1, 1, 1), (1, 3, 10, 100), (2, 5, 100, 5000), (1, 1, 300, 3)]
    {
        served.store(0, Ordering::Relaxed);
        most.store(0, Ordering::Relaxed);
        let outcome =
            go(&Plan { threads, connections, requests_max: Some(count), ..streams(address, at_a_time) });
        assert_eq!((outcome.requests, served.load(Ordering::Relaxed)), (count, count));
        assert_eq!((outcome.errors.sum(), outcome.latency.count(), outcome.unanswered), (0, count, 0));
        assert_eq!((outcome.connections_made, outcome.series.iter().sum()), (connections as u64, count));
        assert_eq!(outcome.statuses.iter().collect::<Vec<_>>(), [(200, count)]);
        let most = most.load(Ordering::Relaxed);
        assert!(most <= at_a_time && (most > 1 || at_a_time == 1 || count < 10), "{most} of {at_a_time}");
    }
}

#[test]
fn tls_agrees_on_it() {
    let authority = Authority::new();
    let address = authority.serve(&["http/1.1", "h2"], |stream, _| greet(stream, |_| ()));
    let secured = Plan { tls: Some(authority.trusted()), ..streams(address, 20) };
    let outcome = go(&Plan { connections: 2, requests_max: Some(1000), ..secured.clone() });
    assert_eq!((outcome.requests, outcome.errors.sum(), outcome.connections_made), (1000, 0, 2));
    assert_eq!(outcome.handshakes.unwrap().agreed.unwrap().protocol.as_deref(), Some("h2"));
    let close = Plan { close: true, streams: Some(1), requests_max: Some(50), ..secured };
    let outcome = go(&close);
    assert_eq!((outcome.requests, outcome.errors.sum()), (50, 0), "{:?}", outcome.errors);
    assert!(outcome.connections_made >= 50, "{}", outcome.connections_made);
    assert!(outcome.handshakes.unwrap().resumed >= 40);
}

/// 20 streams to a server that responds after 50 ms make 400 requests per second, whatever was in flight when
/// counting began.
#[test]
fn a_closed_loop_is_as_fast_as_its_streams() {
    attempts(streams_of_a_closed_loop);
}

fn streams_of_a_closed_loop() {
    let address = answering(|peer, requests| {
        thread::sleep(Duration::from_millis(50));
        requests.into_iter().for_each(|id| peer.respond(id, Status::OK, b"hello"));
    });
    let (warmup, duration) = (Duration::from_millis(225), Duration::from_millis(1000));
    let outcome = go(&Plan { warmup, duration, ..streams(address, 20) });
    let per_s = outcome.requests_per_s();
    assert!(per_s <= 421.0, "{per_s} a second");
    // On a busy machine it takes longer, but requests per second times the mean latency are still the streams (Little's law).
    let under_way = per_s * outcome.latency.mean() / 1e9;
    assert!((under_way - 20.0).abs() < 3.0, "{per_s} a second: {under_way} at once");
    assert_eq!((outcome.latency.count(), outcome.errors.sum()), (outcome.requests, 0));
    assert!(outcome.latency.percentile(0.0) >= 49_000_000, "{}", outcome.latency.percentile(0.0));
}

#[test]
fn an_open_loop_sends_due_requests() {
    attempts(constant_and_random_arrivals);
}

fn constant_and_random_arrivals() {
    let address = serve(|mut stream, _| greet(&mut stream, |_| ()));
    for arrival in [Arrival::Constant, Arrival::Poisson] {
        let pacing = Pacing::Open { per_s: 1000.0, arrival };
        let duration = Duration::from_secs(1);
        let outcome = go(&Plan { connections: 3, pacing, duration, ..streams(address, 4) });
        let expected = if arrival == Arrival::Constant { 1000..=1000 } else { 850..=1150 };
        assert!(expected.contains(&outcome.requests), "{}", outcome.requests);
        assert_eq!((outcome.errors.sum(), outcome.unsent, outcome.unanswered), (0, 0, 0));
    }
}

/// As with HTTP/1.1: with one stream, requests that were due in a stall of half a second have waited from 0 to 500
/// ms, evenly spread. With a stream for each of them they are sent in time, and wait as long.
#[test]
fn a_stall_delays_all_requests_due_during_it() {
    attempts(a_stall_in_an_open_loop);
}

fn a_stall_in_an_open_loop() {
    for at_a_time in [1, 900] {
        let began = Instant::now();
        let is_stalled = AtomicU64::new(0);
        let address = answering(move |peer, requests| {
            let is_late = began.elapsed() > Duration::from_millis(800);
            if is_late && is_stalled.swap(1, Ordering::Relaxed) == 0 {
                thread::sleep(Duration::from_millis(500));
            }
            requests.into_iter().for_each(|id| peer.respond(id, Status::OK, b"hello"));
        });
        let pacing = Pacing::Open { per_s: 1000.0, arrival: Arrival::Constant };
        let outcome = go(&Plan { pacing, duration: Duration::from_secs(2), ..streams(address, at_a_time) });
        assert_eq!((outcome.requests, outcome.errors.sum()), (2000, 0));
        let milliseconds = |percent| outcome.latency.percentile(percent) as f64 / 1e6;
        assert!((390.0..700.0).contains(&milliseconds(95.0)), "{}", milliseconds(95.0));
        assert!((475.0..800.0).contains(&milliseconds(99.0)), "{}", milliseconds(99.0));
        let raw = outcome.latency_raw.unwrap().percentile(99.0) as f64 / 1e6;
        assert_eq!(raw < 300.0, at_a_time == 1, "raw p99 {raw}");
    }
}

#[test]
fn streams_that_are_reset_are_counted() {
    let number = AtomicU64::new(0);
    let address = answering(move |peer, requests| {
        for id in requests {
            match number.fetch_add(1, Ordering::Relaxed) % 3 {
                0 => peer.reset(id),
                _ => peer.respond(id, Status::OK, b"hello"),
            }
        }
    });
    let outcome = go(&Plan { requests_max: Some(3000), ..streams(address, 30) });
    failed(&outcome, ErrorKind::StreamReset, 1000);
    assert_eq!((outcome.requests, outcome.connections_made, outcome.unanswered), (2000, 1, 0));
}

/// The server's GOAWAY says that it has processed five of ten requests: the others fail, and the next ones are sent
/// on a new connection.
#[test]
fn requests_unprocessed_at_goaway_are_counted() {
    let address = serve(|mut stream, number| {
        let mut peer = Peer::new(&mut stream, Limits::default());
        if number == 0 {
            return drop(peer.requests());
        }
        let Some(requests) = peer.gather(10) else { return };
        let said = [9u32.to_be_bytes(), 0u32.to_be_bytes()].concat();
        peer.out.extend(frame(7, 0, 0, &said));
        requests[..5].iter().for_each(|id| peer.respond(*id, Status::OK, b"hello"));
        // Until the client has closed.
        let _ = peer.requests();
    });
    let outcome = go(&Plan { requests_max: Some(30), ..streams(address, 10) });
    failed(&outcome, ErrorKind::GoAway, 15);
    assert_eq!((outcome.requests, outcome.connections_made, outcome.unanswered), (15, 3, 0));
}

#[test]
fn connections_that_end_fail_all_their_streams() {
    const ACK: u8 = 1;
    let settings = [frame(4, 0, 0, &[]), frame(4, ACK, 0, &[])].concat();
    // `:status: 200`, and an incomplete body.
    let begun = |id: u32| [frame(1, 4, id, &[0x88]), frame(0, 0, id, b"half")].concat();
    let halves: Vec<u8> = (0..5).flat_map(|at| begun(2 * at + 1)).collect();
    let said = [5u32.to_be_bytes(), 0u32.to_be_bytes()].concat();
    for (bytes, kind) in [
        (Vec::new(), ErrorKind::Closed),
        (halves, ErrorKind::ShortBody),
        (b"HTTP/1.1 200 OK\r\n\r\n".to_vec(), ErrorKind::Malformed),
        // DATA before its head.
        (frame(0, 1, 1, b"x"), ErrorKind::Malformed),
        (frame(7, 0, 0, &said), ErrorKind::GoAway),
    ] {
        let settings = settings.clone();
        let address = serve(move |mut stream, number| {
            let _ = stream.write_all(&settings);
            let mut peer = Peer::new(&mut stream, Limits::default());
            peer.out.clear();
            if number == 0 {
                return drop(peer.requests());
            }
            if peer.gather(5).is_some() {
                peer.out.clear();
                let _ = peer.stream.write_all(&bytes);
            }
        });
        let outcome = go(&Plan { requests_max: Some(15), ..streams(address, 5) });
        assert_eq!(outcome.requests, 0, "{kind:?}");
        if kind == ErrorKind::Malformed {
            // One of the faults concerns a single stream: the others fail when the connection ends.
            assert!(outcome.errors.of(kind) > 0 && outcome.errors.sum() == 15, "{:?}", outcome.errors);
        } else {
            failed(&outcome, kind, 15);
        }
    }
}

/// One request in ten is never answered. These time out and free their streams, on the same connection.
#[test]
fn requests_time_out_one_by_one() {
    attempts(one_silent_stream_in_ten);
}

fn one_silent_stream_in_ten() {
    let number = AtomicU64::new(0);
    let address = answering(move |peer, requests| {
        for id in requests {
            if !number.fetch_add(1, Ordering::Relaxed).is_multiple_of(10) {
                peer.respond(id, Status::OK, b"hello");
            }
        }
    });
    let answer_time_max = Duration::from_secs(1);
    let outcome = go(&Plan { requests_max: Some(200), answer_time_max, ..streams(address, 10) });
    failed(&outcome, ErrorKind::Timeout, 20);
    assert_eq!((outcome.requests, outcome.connections_made, outcome.latency.count()), (180, 1, 200));
    assert!(u128::from(outcome.latency.percentile(95.0)) >= answer_time_max.as_nanos());
}

#[test]
fn bodies_go_both_ways_as_windows_allow() {
    let came = Arc::new(AtomicUsize::new(0));
    let (counted, sent_bytes) = (came.clone(), 300_000);
    let body: Vec<u8> = (0..1_000_000).map(|at: usize| (at % 251) as u8).collect();
    let answer = body.clone();
    let address = serve(move |mut stream, _| {
        let mut peer = Peer::new(&mut stream, Limits { stream_window: 20_000, ..Limits::default() });
        while let Some(requests) = peer.requests() {
            requests.into_iter().for_each(|id| peer.respond(id, Status::OK, &answer));
            counted.fetch_add(std::mem::take(&mut peer.content_bytes), Ordering::Relaxed);
        }
    });
    let mut plan = Plan { requests_max: Some(24), ..streams(address, 8) };
    let post = Request { method: "POST".to_owned(), ..Request::get("h", "/") };
    plan.requests = vec![Request { body: Some(vec![b'x'; sent_bytes]), ..post.clone() }];
    plan.expect = Expect { body: Some(body), ..Expect::default() };
    let outcome = go(&plan);
    assert_eq!((outcome.requests, outcome.errors.sum()), (24, 0), "{:?}", outcome.errors);
    assert_eq!(came.load(Ordering::Relaxed), 24 * sent_bytes);
    plan.requests = vec![Request { body: Some(Vec::new()), ..post }];
    plan.expect = Expect { body: Some(b"other".to_vec()), status: Some(200) };
    failed(&go(&plan), ErrorKind::UnexpectedBody, 24);
    plan.expect = Expect { body: None, status: Some(204) };
    failed(&go(&plan), ErrorKind::BadStatus, 24);
}

/// The server's limit on streams is respected, from the start.
#[test]
fn the_servers_limit_is_respected_and_reported() {
    let address = serve(|mut stream, _| {
        let mut peer = Peer::new(&mut stream, Limits { streams_max: 4, ..Limits::default() });
        while let Some(requests) = peer.requests() {
            assert!(requests.len() <= 4);
            requests.into_iter().for_each(|id| peer.respond(id, Status::OK, b"hello"));
        }
    });
    let outcome = go(&Plan { requests_max: Some(200), ..streams(address, 50) });
    assert_eq!((outcome.requests, outcome.errors.sum(), outcome.streams_allowed), (200, 0, Some(4)));
    assert!(outcome.warnings().iter().any(|warning| warning.contains("allows only 4 streams")));
    assert_eq!(go(&Plan { requests_max: Some(9), ..streams(address, 4) }).streams_allowed, None);
}

#[test]
fn servers_without_http2_are_reported() {
    attempts(servers_without_http2);
}

fn servers_without_http2() {
    let authority = Authority::new();
    let replies = |reply: &'static [u8]| {
        serve(move |mut stream, _| {
            let _ = stream.read(&mut [0; 24]);
            let _ = stream.write_all(reply);
            let _ = stream.shutdown(Shutdown::Write);
            // Closing with unread input would send a reset, which discards what was sent.
            while stream.read(&mut [0; 1024]).is_ok_and(|count| count > 0) {}
        })
    };
    let silent = serve(|mut stream, _| while stream.read(&mut [0; 1024]).is_ok_and(|count| count > 0) {});
    let connect_time_max = Duration::from_secs(2);
    let plain = |address| refused(&Plan { connect_time_max, ..streams(address, 1) });
    let secure = |protocols: &[&str]| {
        let address = authority.serve(protocols, |stream, _| drop(stream.read(&mut [0])));
        refused(&Plan { tls: Some(authority.trusted()), ..streams(address, 1) })
    };
    for (why, expected) in [
        (plain(replies(b"HTTP/1.1 400 Bad Request\r\n\r\n")), "it replies with HTTP/1"),
        (plain(replies(b"")), "it closes the connection"),
        (plain(replies(&[0; 64])), "the first frame is not SETTINGS"),
        (plain(silent), "it does not reply to the preface"),
        (secure(&["http/1.1"]), "it refuses the protocol `h2` (ALPN)"),
        (secure(&[]), "it chooses no protocol (ALPN)"),
    ] {
        assert!(why.contains(expected) && why.contains("does not support HTTP/2"), "{why}");
        assert!(why.contains("leave out --http2"), "{why}");
    }
}
