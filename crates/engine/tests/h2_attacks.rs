//! The known attacks on HTTP/2, over real sockets: each is ended by a named limit, and other clients are served
//! meanwhile.

mod support;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use flatout_engine::{Body, BodyPlan, Limits, Prepared, Reply, Request, Response, Service};
use flatout_wire::Head;
use support::Running;
use support::attacks::{
    self, DATA, END_HEADERS, END_STREAM, FLOODS, Flood, HEADERS, HOLDS, WINDOW_UPDATE, frame, get,
};
use support::h2::H2Client;

const GOAWAY: u8 = 7;

/// The maximum number of bytes that the server may send in response to a flood.
const ANSWERS_MAX: usize = 100_000;

/// Frames of a flood.
const FLOOD: u32 = 50_000;

struct Pages;

impl Service for Pages {
    fn prepare(&self, _: &Head<'_>, _: &[u8], _: u16) -> Prepared {
        BodyPlan::Whole { bytes_max: None }.into()
    }

    fn call(&self, request: Request<'_>, response: &mut Response) -> Reply {
        match request.path {
            b"/never/a" => return Reply::Later(Box::pin(std::future::pending())),
            b"/much" => drop(response.set_body(Body::Static(&[b'm'; 1_000_000]))),
            _ => {}
        }
        Reply::Now
    }
}

fn serving() -> Running {
    Running::serving(Limits::default(), |_| Box::new(Pages))
}

fn begin(running: &Running) -> TcpStream {
    let mut socket = running.connect();
    socket.write_all(&attacks::begin()).unwrap();
    socket
}

/// Type, stream and payload of each complete frame.
fn frames(mut bytes: &[u8]) -> Vec<(u8, u32, Vec<u8>)> {
    let mut found = Vec::new();
    while let [a, b, c, kind, _, s0, s1, s2, s3, rest @ ..] = bytes {
        let length = u32::from_be_bytes([0, *a, *b, *c]) as usize;
        let Some((payload, behind)) = rest.split_at_checked(length) else { break };
        found.push((*kind, u32::from_be_bytes([*s0, *s1, *s2, *s3]), payload.to_vec()));
        bytes = behind;
    }
    found
}

/// Error code and reason of the GOAWAY.
fn goaway(bytes: &[u8]) -> Option<(u8, String)> {
    let frames = frames(bytes);
    let (_, _, payload) = frames.iter().find(|(kind, _, _)| *kind == GOAWAY)?;
    Some((payload[7], String::from_utf8_lossy(&payload[8..]).into_owned()))
}

/// Floods the server until it closes, while another client must be served. Returns the server's bytes.
fn flood(running: &Running, make: &fn(u32) -> Vec<u8>) -> Vec<u8> {
    let mut honest = H2Client::new(running.connect());
    let mut socket = begin(running);
    let mut reader = socket.try_clone().unwrap();
    let answers = std::thread::spawn(move || {
        let mut answers = Vec::new();
        let _ = reader.read_to_end(&mut answers);
        answers
    });
    for count in 0..FLOOD {
        if socket.write_all(&make(count)).is_err() {
            break;
        }
        if count % 100 == 0 {
            let stream = honest.get("/alive");
            assert_eq!(honest.finish(stream).status, 200);
        }
    }
    let _ = socket.shutdown(Shutdown::Write);
    answers.join().unwrap()
}

#[test]
fn each_flood_hits_its_limit() {
    for Flood { name, reason, make } in FLOODS {
        let answers = flood(&serving(), make);
        let (_, said) = goaway(&answers).unwrap_or_else(|| panic!("{name}: no GOAWAY"));
        assert_eq!(said, *reason, "{name}");
        assert!(answers.len() < ANSWERS_MAX, "{name}: {} bytes", answers.len());
    }
}

/// Silent connections are subject to the timeouts of slow clients (h2.rs); other clients are served
/// meanwhile.
#[test]
fn stalled_connections_do_not_block_others() {
    let running = serving();
    let held: Vec<TcpStream> = HOLDS
        .iter()
        .map(|hold| {
            let mut socket = running.connect();
            socket.write_all(&(hold.make)()).unwrap();
            socket
        })
        .collect();
    let mut honest = H2Client::new(running.connect());
    for _ in 0..100 {
        let stream = honest.get("/alive");
        assert_eq!(honest.finish(stream).status, 200);
    }
    drop(held);
}

/// Sends bytes and reads until the server closes.
fn all(running: &Running, bytes: &[u8]) -> Vec<u8> {
    let mut socket = begin(running);
    let _ = socket.write_all(bytes);
    let mut answers = Vec::new();
    let _ = socket.read_to_end(&mut answers);
    answers
}

#[test]
fn exceeding_a_limit_ends_the_connection() {
    let running = serving();
    for (name, bytes) in [
        ("a window that is too large", frame(WINDOW_UPDATE, 0, 0, &[0x7f, 255, 255, 255])),
        ("a frame that is too large", frame(DATA, 0, 1, &[0; 16_385])),
        ("a table that is larger than it may be", frame(HEADERS, 5, 1, &[0x3f, 0xe2, 0x1f])),
    ] {
        let answers = all(&running, &bytes);
        assert!(goaway(&answers).is_some(), "{name}: {:?}", frames(&answers));
        assert!(answers.len() < 1000, "{name}");
    }
}

#[test]
fn oversized_head_is_refused_without_closing_the_connection() {
    let running = serving();
    let limit = Limits::default().headers_max;
    let crumbs = [&get("/a")[..], &[0x60, 1, b'c'], &vec![0xbe; limit]].concat();
    let bytes = [
        frame(HEADERS, END_STREAM | END_HEADERS, 1, &crumbs),
        frame(HEADERS, END_STREAM | END_HEADERS, 3, &get("/a")),
        // A connection error, which ends it.
        frame(WINDOW_UPDATE, 0, 0, &[0; 4]),
    ];
    let answers = frames(&all(&running, &bytes.concat()));
    let head = |of: u32| answers.iter().find(|(kind, stream, _)| *kind == HEADERS && *stream == of);
    let (_, _, refused) = head(1).expect("an answer");
    assert!(refused.windows(3).any(|bytes| bytes == b"431"), "{refused:?}");
    let (_, _, served) = head(3).expect("an answer");
    assert!(served.starts_with(&[0x88]), "{served:?}");
}
