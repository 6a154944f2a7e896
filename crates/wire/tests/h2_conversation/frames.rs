//! One side with arbitrary bytes: the result must not depend on how they are split.

use flatout_wire::h2::hpack::encode_status;
use flatout_wire::h2::{Connection, Event, Limits, Room};
use flatout_wire::head::{self, HeadLimits};
use flatout_wire::{Framing, Head, Method, Status, Version};

/// The result for some bytes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Trace {
    /// Events as text; pieces of content that follow each other are one.
    pub(crate) events: Vec<String>,
    /// Bytes written.
    pub(crate) out_bytes: usize,
    /// The most memory that was taken.
    pub(crate) memory_bytes: usize,
    /// How often the machine was called and used nothing.
    pub(crate) fault: Option<String>,
}

/// Passes `bytes` to a state machine in pieces of the lengths in `cuts`. Each complete request gets a
/// response.
pub(crate) fn hear(bytes: &[u8], is_server: bool, limits: Limits, cuts: &[usize]) -> Trace {
    let mut out = Vec::new();
    let mut machine = match is_server {
        true => Connection::server(limits, &mut out),
        false => Connection::client(limits, &mut out),
    };
    if !is_server {
        // Some requests for which responses can arrive.
        for _ in 0..3 {
            let asked = machine.ask(Default::default(), |block| block.extend([0x82, 0x84, 0x86]), &mut out);
            assert!(asked.is_some());
        }
    }
    out.clear();
    let mut heard = Trace::default();
    let mut room = Room::default();
    let mut at = 0;
    for &cut in cuts {
        loop {
            let before = out.len();
            let (used, event) = match machine.receive(&bytes[at..cut], &mut room, &mut out) {
                Ok(received) => received,
                Err(fault) => {
                    assert!(machine.is_closed());
                    heard.fault = Some(format!("{fault:?}"));
                    (cut - at, Event::NeedMore)
                }
            };
            at += used;
            // A little is written for each frame at the most.
            assert!(out.len() - before <= 200, "{} bytes written", out.len() - before);
            let mut done = None;
            match event {
                Event::NeedMore => break,
                Event::Handled | Event::Room { .. } => {}
                Event::Data { stream, bytes } => {
                    assert!(!bytes.is_empty());
                    let count = bytes.len();
                    let name = format!("data {} ", stream.number());
                    match heard.events.last_mut().filter(|last| last.starts_with(&name)) {
                        Some(last) => last.push_str(&hex(bytes)),
                        None => heard.events.push(name + &hex(bytes)),
                    }
                    machine.consumed(stream, count, &mut out);
                }
                Event::Request { stream, head, is_websocket, is_whole } => {
                    check_head(&head, is_websocket);
                    assert_eq!(is_whole, is_whole && head.framing == Framing::None);
                    let text = String::from_utf8_lossy(head.bytes());
                    heard.events.push(format!("request {} {text:?} {is_websocket}", stream.number()));
                    done = is_whole.then_some(stream);
                }
                Event::Refused { stream, fault } => {
                    heard.events.push(format!("refused {} {fault:?}", stream.number()));
                    done = Some(stream);
                }
                Event::End { stream, trailers } => {
                    heard.events.push(format!("end {} {trailers:?}", stream.number()));
                    done = Some(stream);
                }
                Event::Interim { stream, head } | Event::Answer { stream, head, is_whole: false } => {
                    heard.events.push(format!("head {} {head:?}", stream.number()));
                }
                Event::Answer { stream, head, is_whole: true } => {
                    heard.events.push(format!("whole {} {head:?}", stream.number()));
                    done = Some(stream);
                }
                Event::Reset { stream, code } => {
                    heard.events.push(format!("reset {} {code:?}", stream.number()));
                    done = Some(stream);
                }
                Event::GoAway { last, code } => heard.events.push(format!("goaway {last:?} {code:?}")),
            }
            if let Some(stream) = done {
                machine.respond(stream, Some(0), true, |block| encode_status(Status::OK, block), &mut out);
                machine.release(stream, &mut out);
            }
            assert!(machine.streams_count() <= limits.streams_max as usize);
        }
        heard.memory_bytes = heard.memory_bytes.max(machine.memory_bytes());
    }
    heard.out_bytes = out.len();
    heard
}

/// A head from HTTP/2 is also valid in HTTP/1 and parsed the same there, so that nothing can be smuggled.
fn check_head(head: &Head<'_>, is_websocket: bool) {
    assert_eq!(head.version, Version::Http2);
    let text = String::from_utf8_lossy(head.bytes()).into_owned();
    let mut fields = Vec::new();
    let kept =
        head::parse_kept(head.bytes(), &mut fields, Some(head.framing)).expect("a head that can be kept");
    assert_eq!(
        (kept.method, kept.target(), kept.authority()),
        (head.method, head.target(), head.authority())
    );
    assert!(kept.fields().eq(head.fields()), "{text:?}");
    // Clients cannot send these fields: they represent `:protocol`.
    for name in ["connection", "upgrade"] {
        assert_eq!(head.field_all(name).count(), usize::from(is_websocket), "{text:?}");
    }
    assert!(!is_websocket || (head.method == Method::Get && head.framing == Framing::None));
    let first = head.bytes().windows(10).position(|part| part == b" HTTP/2.0\r").expect("a version");
    let mut old = head.bytes().to_vec();
    old[first + 6] = b'1';
    old[first + 8] = b'1';
    let mut fields = Vec::new();
    // The one limit of fields counts pseudo-header fields and crumbs as well.
    let limits = HeadLimits { head_bytes_max: 65_535, target_bytes_max: 65_535, fields_max: 1000 };
    let parsed = head::parse(&old, &mut fields, &limits).expect("no fault").expect("a whole head");
    assert_eq!(parsed.len(), head.bytes().len(), "{text:?}");
    assert_eq!((parsed.method, parsed.target(), parsed.path()), (head.method, head.target(), head.path()));
    assert_eq!((parsed.query(), parsed.authority()), (head.query(), head.authority()));
    assert_eq!(parsed.path_needs_care, head.path_needs_care);
    assert!(parsed.fields().eq(head.fields()), "{text:?}");
    assert!(head.field("transfer-encoding").is_none() && parsed.framing != Framing::Chunked);
    assert_eq!(head.field_all("host").count(), 1 - usize::from(head.field("host").is_none()));
    assert!(head.field_all("cookie").count() <= 1);
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
