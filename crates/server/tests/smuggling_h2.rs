//! HTTP/2 requests that would become different requests, or two, when written as HTTP/1: the upstream gets what the
//! proxy understood, or nothing.

mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use flatout_engine::Limits;
use flatout_proxy::Forward;
use flatout_wire::h2::PREFACE;
use support::{Running, one, recording};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const GOAWAY: u8 = 7;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// The result of a request.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    /// The first byte of the response's fields: an indexed `:status`.
    Answer(u8),
    Reset(u32),
    Gone(u32),
}

const OK: Outcome = Outcome::Answer(0x88);
const BAD_REQUEST: Outcome = Outcome::Answer(0x8c);
const PROTOCOL_ERROR: u32 = 1;

fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    let stream = u8::from(kind < GOAWAY && kind != 4);
    let [_, a, b, c] = (payload.len() as u32).to_be_bytes();
    [&[a, b, c, kind, flags, 0, 0, 0, stream], payload].concat()
}

/// Fields as literals without Huffman code, whatever is in them.
fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let string = |text: &str, out: &mut Vec<u8>| {
        match text.len() {
            length @ ..127 => out.push(length as u8),
            length => {
                let rest = length - 127;
                assert!(rest < 128 * 128);
                out.extend([127, (rest % 128) as u8 | 0x80, (rest / 128) as u8]);
            }
        }
        out.extend_from_slice(text.as_bytes());
    };
    let mut bytes = Vec::new();
    for (name, value) in fields {
        bytes.push(0);
        string(name, &mut bytes);
        string(value, &mut bytes);
    }
    bytes
}

fn read_frame(stream: &mut TcpStream) -> Option<(u8, u8, Vec<u8>)> {
    let mut head = [0; 9];
    stream.read_exact(&mut head).ok()?;
    let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
    stream.read_exact(&mut payload).ok()?;
    Some((head[3], head[4], payload))
}

/// Sends the fields of a request and further frames, and reads until the request is over.
fn ask(proxy: &Running, fields: &[(&str, &str)], content: &[Vec<u8>]) -> Outcome {
    let mut stream = proxy.connect();
    let ends = if content.is_empty() { END_STREAM } else { 0 };
    let head = frame(HEADERS, ends | END_HEADERS, &block(fields));
    let bytes = [&PREFACE[..], &frame(4, 0, &[]), &head, &content.concat()].concat();
    stream.write_all(&bytes).unwrap();
    let mut outcome = None;
    while let Some((kind, flags, payload)) = read_frame(&mut stream) {
        let code = |at: usize| u32::from_be_bytes(payload[at..at + 4].try_into().unwrap());
        match kind {
            HEADERS => {
                // The first block of a connection starts with the size of the dynamic table, which is zero.
                let first = payload.iter().copied().find(|&byte| byte != 0x20).unwrap();
                outcome = Some(Outcome::Answer(first));
                if flags & END_STREAM != 0 {
                    break;
                }
            }
            DATA if flags & END_STREAM != 0 => break,
            RST_STREAM => return Outcome::Reset(code(0)),
            GOAWAY => return Outcome::Gone(code(4)),
            _ => {}
        }
    }
    outcome.expect("an end")
}

const GET: [(&str, &str); 4] =
    [(":method", "GET"), (":scheme", "http"), (":path", "/seen"), (":authority", "t")];
const POST: [(&str, &str); 4] =
    [(":method", "POST"), (":scheme", "http"), (":path", "/seen"), (":authority", "t")];

/// The request with one of its pseudo-header fields changed.
fn with(name: &'static str, value: &'static str) -> Vec<(&'static str, &'static str)> {
    GET.iter().map(|&field| if field.0 == name { (name, value) } else { field }).collect()
}

fn and(more: &[(&'static str, &'static str)]) -> Vec<(&'static str, &'static str)> {
    [&GET[..], more].concat()
}

fn proxy_to(address: SocketAddr) -> Running {
    Running::with(one(address), Forward::to(0), Limits::default())
}

#[test]
fn fields_with_another_meaning_in_http1_reach_no_upstream() {
    let (address, asked) = recording();
    let proxy = proxy_to(address);
    const SPLIT: &str = "x\r\n\r\nGET /hidden HTTP/1.1\r\nHost: t\r\n\r\n";
    let malformed = [
        with(":method", "GET /hidden HTTP/1.1\r\nHost: t\r\n\r\nGET"),
        with(":method", "GET /hidden"),
        with(":method", ""),
        with(":path", "/a HTTP/1.1\r\nHost: t\r\n\r\nGET /hidden"),
        with(":path", "/a b"),
        with(":path", "/a\tb"),
        with(":path", "/a\0"),
        with(":path", ""),
        with(":path", "hidden"),
        with(":path", "*"),
        with(":path", "http://t/hidden"),
        with(":scheme", "http://t/hidden?"),
        with(":scheme", ""),
        with(":authority", "t\r\nX-Hidden: y"),
        and(&[("x", SPLIT)]),
        and(&[("x", "a\nb: hidden")]),
        and(&[("x", "a\rb: hidden")]),
        and(&[("x", "a\0b")]),
        and(&[("x", " padded")]),
        and(&[("x", "padded\t")]),
        and(&[("x: y\r\nhidden", "y")]),
        and(&[("x:hidden", "y")]),
        and(&[("x\r\nhidden", "y")]),
        and(&[("x hidden", "y")]),
        and(&[("", "hidden")]),
        and(&[(":", "hidden")]),
        and(&[(":hidden", "y")]),
        and(&[("X-Hidden", "y")]),
        and(&[("transfer-encoding", "chunked")]),
        and(&[("transfer-encoding", "identity")]),
        and(&[("connection", "x-hidden")]),
        and(&[("proxy-connection", "keep-alive")]),
        and(&[("keep-alive", "x")]),
        and(&[("upgrade", "websocket")]),
        and(&[("te", "chunked")]),
        and(&[(":authority", "hidden")]),
        and(&[(":path", "/hidden")]),
        and(&[(":status", "200")]),
        and(&[("content-length", "5")]),
        and(&[("content-length", "0"), ("content-length", "5")]),
        and(&[("content-length", "0, 5")]),
        and(&[("content-length", "+0")]),
        and(&[("content-length", "0x0")]),
        and(&[("content-length", "-1")]),
        and(&[("content-length", "")]),
        and(&[("content-length", "18446744073709551616")]),
        [&[("x", "y")][..], &GET].concat(),
        GET[..3].iter().chain(&[("host", "a\r\nb")]).copied().collect(),
        [(":method", "CONNECT"), (":authority", "t"), (":path", "/hidden")].to_vec(),
    ];
    for fields in malformed {
        assert_eq!(ask(&proxy, &fields, &[]), Outcome::Reset(PROTOCOL_ERROR), "{fields:?}");
    }
    // No valid host, none at all, or two that differ: as over HTTP/1.
    let without_a_host = [
        with(":authority", "t/hidden"),
        with(":authority", "a@t"),
        with(":authority", "t u"),
        and(&[("host", "hidden")]),
        and(&[("host", "t"), ("host", "hidden")]),
        GET[..3].to_vec(),
    ];
    for fields in without_a_host {
        assert_eq!(ask(&proxy, &fields, &[]), BAD_REQUEST, "{fields:?}");
    }
    assert!(asked.lock().unwrap().is_empty());
    // The matched host is sent, in a single line.
    let more = [("host", "T"), ("te", "trailers"), ("cookie", "a=1"), ("cookie", "b=2"), ("x", "a: b")];
    assert_eq!(ask(&proxy, &and(&more), &[]), OK);
    let request = asked.lock().unwrap().pop().unwrap();
    assert!(request.starts_with("GET /seen HTTP/1.1\r\n"), "{request}");
    let lower = request.to_lowercase();
    assert_eq!(lower.matches("\r\nhost: t\r\n").count(), 1, "{request}");
    assert!(lower.contains("\r\ncookie: a=1; b=2\r\n") && lower.contains("\r\nx: a: b\r\n"), "{request}");
    assert!(!lower.contains("transfer-encoding") && !lower.contains("content-length"), "{request}");
}

#[test]
fn lengths_that_lie_end_their_request_alone() {
    let (address, asked) = recording();
    let proxy = proxy_to(address);
    let hidden = b"GET /hidden HTTP/1.1\r\nHost: t\r\n\r\n";
    let post = |length| [&POST[..], &[("content-length", length)]].concat();
    // More content than declared: at once, later, or with a declared length of zero.
    for (length, content) in [
        ("0", vec![frame(DATA, END_STREAM, hidden)]),
        ("3", vec![frame(DATA, END_STREAM, hidden)]),
        ("3", vec![frame(DATA, 0, b"abc"), frame(DATA, END_STREAM, hidden)]),
        // Less content than declared.
        ("9", vec![frame(DATA, END_STREAM, b"abc")]),
        ("9", vec![frame(DATA, 0, b"abc"), frame(DATA, END_STREAM, b"")]),
    ] {
        let outcome = ask(&proxy, &post(length), &content);
        // A request declared as empty may be served before the content arrives.
        let is_refused = outcome == Outcome::Reset(PROTOCOL_ERROR) || (length == "0" && outcome == OK);
        assert!(is_refused, "{length}: {outcome:?}");
    }
    // With the right length, and without one: then the proxy writes its own chunks, whatever the content looks like.
    assert_eq!(ask(&proxy, &post("33"), &[frame(DATA, END_STREAM, hidden)]), OK);
    assert_eq!(ask(&proxy, &POST, &[frame(DATA, 0, b"3\r\nabc\r\n"), frame(DATA, END_STREAM, hidden)]), OK);
    // Trailers that would affect framing.
    for name in ["transfer-encoding", "content-length", "host", ":path"] {
        let trailers = frame(HEADERS, END_STREAM | END_HEADERS, &block(&[(name, "0")]));
        let outcome = ask(&proxy, &POST, &[frame(DATA, 0, b"abc"), trailers]);
        assert_eq!(outcome, Outcome::Reset(PROTOCOL_ERROR), "{name}");
    }
    let asked = asked.lock().unwrap();
    assert!(asked.iter().all(|request| request.starts_with("POST /seen HTTP/1.1\r\n")), "{asked:?}");
    let chunked = asked.iter().find(|request| request.contains("Transfer-Encoding: chunked")).unwrap();
    assert!(chunked.contains("3\r\nabc\r\n"), "{chunked}");
}
