//! The known attacks on HTTP/2, over real sockets: each ends by a limit that has a name, and others are served meanwhile.

mod support;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use flatout_engine::{Body, BodyPlan, Limits, Reply, Request, Response, Service};
use flatout_wire::Head;
use flatout_wire::h2::{PREFACE, SETTINGS_MAX};
use support::Running;
use support::h2::H2Client;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const PRIORITY_UPDATE: u8 = 16;

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;

/// The most bytes that the server may send in response to a flood.
const ANSWERS_MAX: usize = 100_000;

/// Frames of a flood.
const FLOOD: u32 = 50_000;

struct Pages;

impl Service for Pages {
    fn body(&self, _: &Head<'_>, _: &[u8]) -> BodyPlan {
        BodyPlan::Whole { bytes_max: None }
    }

    fn call(&self, request: Request<'_>, response: &mut Response) -> Reply {
        match request.path {
            b"/never" => return Reply::Later(Box::pin(std::future::pending())),
            b"/much" => drop(response.set_body(Body::Static(&[b'm'; 1_000_000]))),
            _ => {}
        }
        Reply::Now
    }
}

fn serving() -> Running {
    Running::serving(Limits::default(), |_| Box::new(Pages))
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, a, b, c] = (payload.len() as u32).to_be_bytes();
    [&[a, b, c, kind, flags], &stream.to_be_bytes()[..], payload].concat()
}

/// The fields of a request: `method` is an index of the fixed table.
fn fields(method: u8, path: &str) -> Vec<u8> {
    [&[method, 0x86, 0x41, 1, b't', 4, path.len() as u8], path.as_bytes()].concat()
}

fn get(path: &str) -> Vec<u8> {
    fields(0x82, path)
}

fn begin(running: &Running) -> TcpStream {
    let mut socket = running.connect();
    socket.write_all(&[&PREFACE[..], &frame(SETTINGS, 0, 0, &[])].concat()).unwrap();
    socket
}

/// Kind, stream and payload of each whole frame.
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

/// Code and reason of the GOAWAY.
fn goaway(bytes: &[u8]) -> Option<(u8, String)> {
    let frames = frames(bytes);
    let (_, _, payload) = frames.iter().find(|(kind, _, _)| *kind == GOAWAY)?;
    Some((payload[7], String::from_utf8_lossy(&payload[8..]).into_owned()))
}

/// Floods the server until it closes, beside a client that is to be served all the while. What it has said.
fn flood(running: &Running, make: &dyn Fn(u32) -> Vec<u8>) -> Vec<u8> {
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

const CALM: u8 = 11;

/// Asserts that the server sends this GOAWAY, and little else.
fn ends(name: &str, reason: &str, make: impl Fn(u32) -> Vec<u8>) {
    let answers = flood(&serving(), &make);
    assert_eq!(goaway(&answers), Some((CALM, reason.to_owned())), "{name}");
    assert!(answers.len() < ANSWERS_MAX, "{name}: {} bytes", answers.len());
}

const RESETS: &str = "too many streams were reset";
const FRAMES: &str = "too many frames without content";

fn odd(number: u32) -> u32 {
    number * 2 + 1
}

fn opened(number: u32, stream: u32) -> Vec<u8> {
    if number == 0 { frame(HEADERS, END_HEADERS, stream, &fields(0x83, "/never")) } else { Vec::new() }
}

#[test]
fn resets_are_counted_whoever_sends_them() {
    let open = |number| frame(HEADERS, END_STREAM | END_HEADERS, odd(number), &get("/never"));
    ends("rapid reset (CVE-2023-44487, 2019-9514)", RESETS, |number| {
        [open(number), frame(RST_STREAM, 0, odd(number), &[0, 0, 0, 8])].concat()
    });
    ends("MadeYouReset by a window (CVE-2025-8671)", RESETS, |number| {
        [open(number), frame(WINDOW_UPDATE, 0, odd(number), &[0; 4])].concat()
    });
    ends("MadeYouReset by a window that is too large", RESETS, |number| {
        [open(number), frame(WINDOW_UPDATE, 0, odd(number), &[0x7f, 255, 255, 255])].concat()
    });
    ends("MadeYouReset by a dependency", RESETS, |number| {
        let itself = [&odd(number).to_be_bytes()[..], &[16]].concat();
        [open(number), frame(PRIORITY, 0, odd(number), &itself)].concat()
    });
    ends("MadeYouReset by content behind the end", RESETS, |number| {
        [open(number), frame(DATA, 0, odd(number), b"x")].concat()
    });
    ends("malformed requests", RESETS, |number| {
        let empty_name = [&get("/a")[..], &[0, 0, 0]].concat();
        frame(HEADERS, END_STREAM | END_HEADERS, odd(number), &empty_name)
    });
    ends("more streams than there may be", RESETS, open);
}

#[test]
fn frames_that_bring_nothing_are_counted() {
    ends("pings (CVE-2019-9512)", FRAMES, |_| frame(PING, 0, 0, &[0; 8]));
    ends("settings (CVE-2019-9515)", FRAMES, |_| frame(SETTINGS, 0, 0, &[]));
    ends("priorities (CVE-2019-9513)", FRAMES, |number| frame(PRIORITY, 0, odd(number), &[0, 0, 0, 0, 16]));
    ends("updates of priorities", FRAMES, |_| frame(PRIORITY_UPDATE, 0, 0, b"\0\0\0\x01u=1"));
    ends("unknown frames", FRAMES, |_| frame(0xfa, 0, 0, b"x"));
    ends("empty content (CVE-2019-9518)", FRAMES, |number| {
        [opened(number, 1), frame(DATA, 0, 1, &[])].concat()
    });
    ends("padding", FRAMES, |number| {
        let padded = [&[200][..], &[0; 200]].concat();
        [opened(number, 1), frame(DATA, PADDED, 1, &padded)].concat()
    });
    ends("windows for all streams", FRAMES, |number| {
        [opened(number, 1), frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, (number % 2) as u8])].concat()
    });
    ends("windows that open by a byte", FRAMES, |number| {
        let none = frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]);
        let asked = frame(HEADERS, END_STREAM | END_HEADERS, 1, &get("/much"));
        let begun = if number == 0 { [none, asked].concat() } else { Vec::new() };
        [begun, frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1])].concat()
    });
}

#[test]
fn blocks_that_do_not_end_are_cut() {
    for (name, piece) in [("CVE-2024-27316", vec![0; 1000]), ("CVE-2026-33871", Vec::new())] {
        let make = |number| frame(if number == 0 { HEADERS } else { CONTINUATION }, 0, 1, &piece);
        let answers = flood(&serving(), &make);
        assert!(goaway(&answers).is_some(), "{name}");
        assert!(answers.len() < 1000, "{name}");
    }
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
fn what_breaks_a_limit_ends_the_connection() {
    let running = serving();
    let many = [0, 9, 0, 0, 0, 0].repeat(SETTINGS_MAX + 1);
    // An entry that fills the table, and then names of it.
    let bomb = [&get("/a")[..], &[0x40, 1, b'x', 127, 0xa0, 30], &[b'v'; 3999], &[0xbe; 4000]].concat();
    assert_eq!(127 + 0x20 + (30 << 7), 3999);
    for (name, bytes) in [
        ("CVE-2020-11080: entries of SETTINGS", frame(SETTINGS, 0, 0, &many)),
        ("CVE-2026-33814: MAX_FRAME_SIZE 0", frame(SETTINGS, 0, 0, &[0, 5, 0, 0, 0, 0])),
        ("a window that is too large", frame(WINDOW_UPDATE, 0, 0, &[0x7f, 255, 255, 255])),
        ("a frame that is too large", frame(DATA, 0, 1, &[0; 16_385])),
        ("CVE-2016-6581: a block that unpacks to much", frame(HEADERS, END_STREAM | END_HEADERS, 1, &bomb)),
        (
            "CVE-2026-49975: crumbs of a cookie",
            frame(
                HEADERS,
                END_STREAM | END_HEADERS,
                1,
                &[&get("/a")[..], &[0x60, 1, b'c'], &[0xbe; 8000]].concat(),
            ),
        ),
        ("a table that is larger than it may be", frame(HEADERS, 5, 1, &[0x3f, 0xe2, 0x1f])),
    ] {
        let answers = all(&running, &bytes);
        assert!(goaway(&answers).is_some(), "{name}: {:?}", frames(&answers));
        assert!(answers.len() < 1000, "{name}");
    }
}

#[test]
fn a_head_over_a_limit_is_refused_alone() {
    let running = serving();
    let limit = Limits::default().headers_max;
    let crumbs = [&get("/a")[..], &[0x60, 1, b'c'], &vec![0xbe; limit]].concat();
    let bytes = [
        frame(HEADERS, END_STREAM | END_HEADERS, 1, &crumbs),
        frame(HEADERS, END_STREAM | END_HEADERS, 3, &get("/a")),
        // A fault of the connection, so that it ends.
        frame(WINDOW_UPDATE, 0, 0, &[0; 4]),
    ];
    let answers = frames(&all(&running, &bytes.concat()));
    let head = |of: u32| answers.iter().find(|(kind, stream, _)| *kind == HEADERS && *stream == of);
    let (_, _, refused) = head(1).expect("an answer");
    assert!(refused.windows(3).any(|bytes| bytes == b"431"), "{refused:?}");
    let (_, _, served) = head(3).expect("an answer");
    assert!(served.starts_with(&[0x88]), "{served:?}");
}
