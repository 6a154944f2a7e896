//! The generator over TLS: exact counts, expected numbers of handshakes, and untrusted servers.

#[path = "../../engine/tests/support/attempts.rs"]
mod attempts;
mod support;

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use attempts::attempts;
use flatout_load::{
    Arrival, ClientPlan, ErrorKind, Expect, Handshakes, Pacing, Plan, Request, Security, Transport,
};
use support::{Authority, GOOD, failed, go, plan, refused, request, serve};

fn secured(authority: &Authority, address: std::net::SocketAddr) -> Plan {
    Plan { tls: Some(authority.trusted()), ..plan(address) }
}

/// The same plan with one change to the client.
fn with(plan: &Plan, change: impl FnOnce(&mut ClientPlan)) -> Plan {
    let mut changed = plan.clone();
    change(&mut changed.tls.as_mut().unwrap().client);
    changed
}

#[test]
fn counts_are_exact() {
    let authority = Authority::new();
    let served = Arc::new(AtomicU64::new(0));
    let seen = served.clone();
    let address = authority.serve(&["http/1.1"], move |stream, _| {
        while request(stream) {
            seen.fetch_add(1, Ordering::Relaxed);
            if stream.write_all(GOOD.as_bytes()).is_err() {
                return;
            }
        }
    });
    for (threads, connections, count) in [(1, 1, 1), (1, 3, 100), (3, 7, 1000)] {
        served.store(0, Ordering::Relaxed);
        let requests_max = Some(count);
        let outcome = go(&Plan { threads, connections, requests_max, ..secured(&authority, address) });
        assert_eq!((outcome.requests, served.load(Ordering::Relaxed)), (count, count));
        assert_eq!((outcome.errors.sum(), outcome.latency.count(), outcome.unanswered), (0, count, 0));
        assert_eq!(outcome.bytes_read, count * GOOD.len() as u64);
        assert_eq!(outcome.connections_made, connections as u64);
        let Handshakes { full, resumed, agreed, .. } = outcome.handshakes.unwrap();
        let agreed = agreed.unwrap();
        assert_eq!((full + resumed, agreed.version), (connections as u64, "TLSv1.3"));
        assert_eq!(agreed.protocol.as_deref(), Some("http/1.1"));
        assert_eq!(agreed.key_exchange.as_deref(), Some("X25519MLKEM768"));
    }
    let pacing = Pacing::Open { per_s: 500.0, arrival: Arrival::Constant };
    let duration = Duration::from_secs(1);
    attempts(|| {
        let outcome = go(&Plan { pacing, duration, ..secured(&authority, address) });
        assert_eq!((outcome.requests, outcome.errors.sum()), (500, 0));
    });
}

/// One connection per request: after the first ones each resumes a session, unless resumption is off.
#[test]
fn handshakes_are_full_or_resumed() {
    let authority = Authority::new();
    let address = authority.serve(&["http/1.1"], |stream, _| {
        if request(stream) {
            let _ = stream.write_all(GOOD.as_bytes());
        }
        // Until the client has closed.
        let _ = stream.read(&mut [0]);
    });
    let connections = 24;
    for cipher in ["TLS_AES_128_GCM_SHA256", "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"] {
        let close =
            Plan { close: true, connections, requests_max: Some(200), ..secured(&authority, address) };
        let close = with(&close, |client| client.cipher = Some(cipher.to_owned()));
        let outcome = go(&close);
        assert_eq!((outcome.requests, outcome.errors.sum()), (200, 0), "{:?}", outcome.errors);
        let found = outcome.handshakes.unwrap();
        assert_eq!(found.full + found.resumed, outcome.connections_made, "{cipher}: {found:?}");
        assert!(found.full <= 2 * connections as u64 && found.resumed >= 150, "{cipher}: {found:?}");
        assert_eq!(found.agreed.unwrap().cipher, cipher);
        let full = go(&with(&close, |client| client.sessions_max = 0)).handshakes.unwrap();
        assert!(full.full >= 200 && full.resumed == 0, "{cipher}: {full:?}");
        // Connections of the preparation are not in the counted time.
        assert!((200 - connections as u64..=full.full).contains(&full.counted), "{cipher}: {full:?}");
    }
}

#[test]
fn configured_ciphers_and_key_exchanges_are_used() {
    let authority = Authority::new();
    let address = authority
        .serve(&[], |stream, _| while request(stream) && stream.write_all(GOOD.as_bytes()).is_ok() {});
    let few = Plan { requests_max: Some(3), ..secured(&authority, address) };
    let outcome = go(&with(&few, |client| client.key_exchange = Some("x25519".to_owned())));
    let agreed = outcome.handshakes.unwrap().agreed.unwrap();
    assert_eq!((agreed.key_exchange.as_deref(), agreed.protocol), (Some("X25519"), None));
    let why = refused(&with(&few, |client| client.cipher = Some("RC4".to_owned())));
    assert!(why.contains("cipher suite: got `RC4`, need one of TLS_AES_256_GCM_SHA384, "), "{why}");
    let why = refused(&with(&few, |client| client.key_exchange = Some("DH".to_owned())));
    assert!(why.contains("key exchange: got `DH`, need one of X25519MLKEM768, "), "{why}");
}

#[test]
fn untrusted_servers_are_reported_with_advice() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let address =
        authority.serve(
            &["http/1.1"],
            |stream, _| {
                while request(stream) && stream.write_all(GOOD.as_bytes()).is_ok() {}
            },
        );
    let few = Plan { requests_max: Some(3), ..secured(&authority, address) };
    assert_eq!(go(&few).requests, 3);
    let why = refused(&Plan { tls: Some(stranger.trusted()), ..few.clone() });
    assert!(why.contains("not issued by a trusted CA"), "{why}");
    assert!(why.contains("--ca") && why.contains("--insecure"), "{why}");
    let other = Security { name: "example.org".to_owned(), ..authority.trusted() };
    let why = refused(&Plan { tls: Some(other), ..few.clone() });
    assert!(why.contains("need example.org") && why.contains("--tls-name"), "{why}");
    let blind = with(&few, |client| (client.authorities, client.verify) = (None, false));
    assert_eq!(go(&blind).requests, 3);
    let plain = serve(|mut stream, _| {
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        let _ = stream.read(&mut [0; 4096]);
    });
    let why = refused(&secured(&authority, plain));
    assert!(why.contains("the peer does not speak TLS"), "{why}");
    let why = refused(&with(&few, |client| client.authorities = Some("/nowhere".into())));
    assert!(why.contains("/nowhere"), "{why}");
}

/// The first connection is good; those of the load get no handshake, or garbage.
#[test]
fn handshakes_that_fail_are_counted() {
    attempts(servers_that_break_off_handshakes);
}

fn servers_that_break_off_handshakes() {
    let authority = Authority::new();
    let address = authority.serve(&["http/1.1"], |stream, number| match number {
        0 => drop(stream.read(&mut [0])),
        number if number % 2 == 0 => {
            let _ = stream.sock.write_all(b"this is no handshake\r\n");
        }
        // Silence, until the client gives up.
        _ => drop(stream.sock.read(&mut [0; 1 << 16]).and_then(|_| stream.sock.read(&mut [0]))),
    });
    let connect_time_max = Duration::from_secs(1);
    let outcome = go(&Plan { requests_max: Some(6), connect_time_max, ..secured(&authority, address) });
    assert!(outcome.requests == 0 && outcome.errors.sum() >= 6, "{:?}", outcome.errors);
    assert_eq!(outcome.errors.of(ErrorKind::Handshake), outcome.errors.sum());
}

#[test]
fn large_bodies_go_both_ways() {
    let authority = Authority::new();
    let (sent_bytes, body) = (4 << 20, (0..3_000_000).map(|at: usize| (at % 251) as u8).collect::<Vec<_>>());
    let answer =
        [format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()).as_bytes(), &body].concat();
    let address = authority.serve(&["http/1.1"], move |stream, _| {
        while request(stream) {
            let mut content = vec![0; sent_bytes];
            if stream.read_exact(&mut content).is_err() || stream.write_all(&answer).is_err() {
                return;
            }
        }
    });
    let mut plan = Plan { requests_max: Some(9), ..secured(&authority, address) };
    plan.requests = vec![Request {
        method: "POST".to_owned(),
        body: Some(vec![b'x'; sent_bytes]),
        ..Request::get("h", "/")
    }];
    plan.expect = Expect { body: Some(body), ..Expect::default() };
    let outcome = go(&plan);
    assert_eq!((outcome.requests, outcome.errors.sum()), (9, 0), "{:?}", outcome.errors);
}

/// A body without a length is complete if the server has sent `close_notify`, and truncated if the connection just
/// ends.
#[test]
fn the_end_is_believed_only_where_it_is_announced() {
    let authority = Authority::new();
    for (announces, expected) in [(true, (8, 0)), (false, (0, 8))] {
        let address = authority.serve(&["http/1.1"], move |stream, _| {
            if request(stream) {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nuntil the end");
            }
            if announces {
                stream.conn.send_close_notify();
                let _ = stream.flush();
                // The socket itself stays open: no event tells the client.
                let _ = stream.sock.read(&mut [0; 4096]);
            }
        });
        let outcome = go(&Plan { requests_max: Some(8), ..secured(&authority, address) });
        assert_eq!((outcome.requests, outcome.errors.sum()), expected, "{:?}", outcome.errors);
    }
}

#[test]
fn subscribers_read_over_tls() {
    attempts(subscribers_over_tls);
}

fn subscribers_over_tls() {
    let authority = Authority::new();
    let address = authority.serve(&["http/1.1"], |stream, _| {
        if !request(stream) {
            return;
        }
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n");
        for number in 1..=20 {
            let _ = stream.write_all(format!("data: {{\"seq\":{number}}}\n\n").as_bytes());
        }
        let _ = stream.read(&mut [0]);
    });
    let (subscribe, duration) = (Some(Transport::Events), Duration::from_millis(500));
    let outcome = go(&Plan { subscribe, duration, ..secured(&authority, address) });
    failed(&outcome, ErrorKind::Closed, 0);
    assert_eq!(outcome.requests, 3 * 20);
}
