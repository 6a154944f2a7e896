//! Whole conversations of HTTP/1, in both roles: the machine against the oracles of `conversation`, and by the table.

mod conversation;

use conversation::client::{self, Ask};
use conversation::server::{self, Act};
use conversation::{SCRIPT_BYTES, Source, cuts};
use flatout_wire::h1::Server;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

fn acts() -> impl Strategy<Value = Vec<Act>> {
    vec(vec(any::<u8>(), SCRIPT_BYTES), 1..5)
        .prop_map(|seeds| seeds.iter().map(|seed| Act::read(&mut Source(seed))).collect())
}

fn asks() -> impl Strategy<Value = Vec<Ask>> {
    vec(vec(any::<u8>(), SCRIPT_BYTES), 1..5)
        .prop_map(|seeds| seeds.iter().map(|seed| Ask::read(&mut Source(seed))).collect())
}

/// A body in chunks, mostly a good one.
fn chunked() -> impl Strategy<Value = String> {
    let chunk = ("[a-z]{1,12}", prop_oneof![9 => Just(""), 1 => select(vec![";a", ";a=\"b\"", " ", ";;"])])
        .prop_map(|(data, extension)| format!("{:x}{extension}\r\n{data}\r\n", data.len()));
    let trailers =
        prop_oneof![6 => Just(""), 2 => Just("A: b\r\n"), 1 => select(vec!["Host: a\r\n", "nocolon\r\n"])];
    (vec(chunk, 0..4), trailers)
        .prop_map(|(chunks, trailers)| format!("{}0\r\n{trailers}\r\n", chunks.concat()))
}

fn connection() -> impl Strategy<Value = &'static str> {
    prop_oneof![
        8 => Just(""),
        1 => Just("Connection: close\r\n"),
        2 => Just("Connection: x, keep-alive\r\n"),
    ]
}

fn request() -> impl Strategy<Value = String> {
    let line = prop_oneof![
        8 => select(vec!["GET / HTTP/1.1", "POST /a?b HTTP/1.1", "HEAD /a HTTP/1.1"]),
        3 => select(vec!["GET / HTTP/1.0", "POST /a HTTP/1.0", "HEAD / HTTP/1.0"]),
        1 => select(vec!["CONNECT a:1 HTTP/1.1", "OPTIONS * HTTP/1.1", "GET HTTP/1.1", "GET /%0 HTTP/1.1"]),
    ];
    let host = prop_oneof![20 => Just("Host: a\r\n"), 1 => select(vec!["", "Host: a b\r\n"])];
    let other = prop_oneof![8 => Just(""), 3 => Just("Expect: 100-continue\r\n"), 1 => Just("A : b\r\n")];
    let body = prop_oneof![
        5 => Just("\r\n".to_owned()),
        4 => "[a-z]{0,20}".prop_map(|body| format!("Content-Length: {}\r\n\r\n{body}", body.len())),
        4 => chunked().prop_map(|body| format!("Transfer-Encoding: chunked\r\n\r\n{body}")),
        1 => Just("Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc".to_owned()),
    ];
    (line, host, connection(), other, body).prop_map(|(line, host, connection, other, body)| {
        format!("{line}\r\n{host}{connection}{other}{body}")
    })
}

fn response() -> impl Strategy<Value = String> {
    let line = prop_oneof![
        9 => select(vec!["HTTP/1.1 200 OK", "HTTP/1.1 404", "HTTP/1.0 200 OK", "HTTP/1.1 204 x", "HTTP/1.1 304 y"]),
        1 => select(vec!["HTTP/1.1 99 OK", "HTTP/2.0 200 OK", "HTTP/1.1 299 \u{e9}"]),
    ];
    let interim = prop_oneof![
        12 => Just(""),
        3 => Just("HTTP/1.1 100 Continue\r\n\r\n"),
        2 => Just("HTTP/1.1 103 Early Hints\r\nContent-Length: 5\r\n\r\n"),
        1 => Just("HTTP/1.1 101 Switching Protocols\r\n\r\n"),
    ];
    let body = prop_oneof![
        1 => Just("\r\n".to_owned()),
        1 => Just("\r\nuntil the end".to_owned()),
        2 => Just("Content-Length: 0\r\n\r\n".to_owned()),
        4 => "[a-z]{0,20}".prop_map(|body| format!("Content-Length: {}\r\n\r\n{body}", body.len())),
        4 => chunked().prop_map(|body| format!("Transfer-Encoding: chunked\r\n\r\n{body}")),
    ];
    (interim, line, connection(), body)
        .prop_map(|(interim, line, connection, body)| format!("{interim}{line}\r\n{connection}{body}"))
}

/// Some messages one behind the other, whole, cut off, or spoilt in a few places.
fn stream(message: impl Strategy<Value = String>) -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![select(b"\r\n\t \0:;,05a\xff".to_vec()), any::<u8>()];
    let edits = prop_oneof![3 => Just(Vec::new()), 1 => vec((any::<Index>(), byte, 0..3u8), 1..3)];
    let end = prop_oneof![2 => Just(None), 1 => any::<Index>().prop_map(Some)];
    (vec(message, 0..6), edits, end).prop_map(|(messages, edits, end)| {
        let mut out = messages.concat().into_bytes();
        for (at, byte, kind) in edits {
            let at = at.index(out.len() + 1);
            match kind {
                0 => out.insert(at, byte),
                _ if at == out.len() => {}
                1 => out[at] = byte,
                _ => drop(out.remove(at)),
            }
        }
        out.truncate(end.map_or(out.len(), |end| end.index(out.len() + 1)));
        out
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn the_server_does_as_the_oracle_says(input in stream(request()), acts in acts(), seed in any::<u32>()) {
        [0, 1, seed].into_iter().for_each(|seed| server::check(&input, &acts, seed));
    }

    #[test]
    fn the_client_does_as_the_oracle_says(input in stream(response()), asks in asks(), seed in any::<u32>()) {
        [0, 1, seed].into_iter().for_each(|seed| client::check(&input, &asks, seed));
    }

    #[test]
    fn arbitrary_bytes_are_no_surprise(input in vec(any::<u8>(), 0..200), acts in acts(), asks in asks()) {
        server::check(&input, &acts, 7);
        client::check(&input, &asks, 7);
    }
}
