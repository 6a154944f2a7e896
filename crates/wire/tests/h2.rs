//! Whole conversations of HTTP/2, both roles joined; and bytes of any kind, however they are cut.

mod h2_conversation;

use flatout_wire::h2::hpack::encode_field;
use flatout_wire::h2::{Asking, Code, Connection, Event, Limits, PREFACE, Room};
use h2_conversation::{frames, pair};
use proptest::collection::vec;
use proptest::prelude::*;

/// A frame, mostly with a good head.
fn frame() -> impl Strategy<Value = Vec<u8>> {
    let kind = prop_oneof![20 => 0u8..10, 1 => any::<u8>(), 2 => Just(0x10u8)];
    let stream =
        prop_oneof![3 => Just(0u32), 10 => (0u32..6).prop_map(|number| number * 2 + 1), 1 => 0u32..9];
    let payload = prop_oneof![
        2 => vec(any::<u8>(), 0..20),
        2 => vec(any::<u8>(), 4..=4),
        1 => vec(any::<u8>(), 8..=8),
        1 => Just(vec![0, 3, 0, 0, 0, 9]),
        4 => Just(vec![0x82, 0x84, 0x86, 0x41, 1, b'a']),
        1 => Just(vec![0x83, 0x84, 0x86, 0x41, 1, b'a', 0x5c, 1, b'4']),
    ];
    (kind, any::<u8>(), stream, payload).prop_map(|(kind, flags, stream, payload)| {
        let [_, a, b, c] = (payload.len() as u32).to_be_bytes();
        let mut frame = vec![a, b, c, kind, flags & 0x2d];
        frame.extend(stream.to_be_bytes());
        frame.extend(payload);
        frame
    })
}

/// Cookie crumbs are joined, and empty ones leave nothing: the fuzzer found white space at the end of a
/// value.
#[test]
fn a_cookie_is_one_field() {
    for (crumbs, cookie) in [
        (&["a=1", "b=2", "c=3"][..], Some("cookie: a=1; b=2; c=3")),
        (&["", "a=1", "", "b=2", ""], Some("cookie: a=1; b=2")),
        (&["", ""], None),
    ] {
        let mut block = vec![0x82, 0x84, 0x86, 0x41, 1, b'a'];
        crumbs.iter().for_each(|crumb| encode_field(b"cookie", crumb.as_bytes(), &mut block));
        let mut bytes =
            [&PREFACE[..], &[0, 0, 0, 4, 0, 0, 0, 0, 0], &[0, 0, block.len() as u8, 1, 5, 0, 0, 0, 1]]
                .concat();
        bytes.extend(&block);
        let heard = frames::hear(&bytes, true, Limits::default(), &[bytes.len()]);
        let event = &heard.events[0];
        let line = event.split("\\r\\n").find(|line| line.starts_with("cookie"));
        assert_eq!(line, cookie, "{event}");
    }
}

/// The preface, and HEADERS with these fields on stream 1.
fn headers(fields: &[(&str, &str)], ends: bool) -> Vec<u8> {
    let mut block = Vec::new();
    fields.iter().for_each(|(name, value)| encode_field(name.as_bytes(), value.as_bytes(), &mut block));
    let head = [0, 0, block.len() as u8, 1, 4 | u8::from(ends), 0, 0, 0, 1];
    [&PREFACE[..], &[0, 0, 0, 4, 0, 0, 0, 0, 0], &head, &block].concat()
}

const WEBSOCKET: [(&str, &str); 6] = [
    (":method", "CONNECT"),
    (":protocol", "websocket"),
    (":scheme", "https"),
    (":path", "/chat?a"),
    (":authority", "t"),
    ("sec-websocket-version", "13"),
];

/// RFC 8441: the head is that of the same request in HTTP/1.1.
#[test]
fn websocket_requests_use_connect() {
    let limits = Limits { connect_protocol: true, ..Limits::default() };
    let bytes = headers(&WEBSOCKET, false);
    let heard = frames::hear(&bytes, true, limits, &[bytes.len()]);
    let text = "GET /chat?a HTTP/2.0\r\nhost: t\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
                sec-websocket-version: 13\r\n\r\n";
    assert_eq!(heard.events, [format!("request 1 {text:?} true")]);
    // Not allowed unless the server has offered it.
    let heard = frames::hear(&bytes, true, Limits::default(), &[bytes.len()]);
    assert_eq!((heard.events, heard.fault), (Vec::new(), None));
}

#[test]
fn invalid_websocket_requests_are_reset_or_refused() {
    let limits = Limits { connect_protocol: true, ..Limits::default() };
    let heard = |fields: &[(&str, &str)], ends: bool| {
        let bytes = headers(fields, ends);
        let heard = frames::hear(&bytes, true, limits, &[bytes.len()]);
        assert_eq!(heard.fault, None, "{fields:?}");
        heard.events
    };
    // Every pseudo-header field is needed, each once, and before all others.
    for missing in 0..5 {
        let mut fields = WEBSOCKET.to_vec();
        fields.remove(missing);
        assert_eq!(heard(&fields, false), [""; 0], "without {:?}", WEBSOCKET[missing]);
        let mut fields = WEBSOCKET.to_vec();
        fields.push(fields[missing]);
        assert_eq!(heard(&fields, false), [""; 0], "late {:?}", WEBSOCKET[missing]);
        let mut fields = WEBSOCKET.to_vec();
        fields.insert(0, fields[missing]);
        assert_eq!(heard(&fields, false), [""; 0], "twice {:?}", WEBSOCKET[missing]);
    }
    for (at, value) in [(0, "GET"), (2, ":"), (3, "*"), (3, "chat"), (3, "")] {
        let mut fields = WEBSOCKET.to_vec();
        fields[at].1 = value;
        assert_eq!(heard(&fields, false), [""; 0], "{:?}", fields[at]);
    }
    for more in [("content-length", "5"), ("upgrade", "websocket"), ("connection", "Upgrade")] {
        let mut fields = WEBSOCKET.to_vec();
        fields.push(more);
        assert_eq!(heard(&fields, false), [""; 0], "{more:?}");
    }
    for invalid in ["t\\t", "u@t"] {
        let mut fields = WEBSOCKET.to_vec();
        fields[4].1 = invalid;
        assert_eq!(heard(&fields, false), ["refused 1 Host"], "{invalid:?}");
    }
    assert_eq!(heard(&[&WEBSOCKET[..], &[("host", "u")]].concat(), false), ["refused 1 Host"]);
    for protocol in ["webtransport", "connect-udp", "", "websocket2"] {
        let mut fields = WEBSOCKET.to_vec();
        fields[1].1 = protocol;
        assert_eq!(heard(&fields, false), ["refused 1 Protocol"], "{protocol:?}");
    }
}

/// A response begins with its head (RFC 9113 section 8.1).
#[test]
fn content_before_its_head_resets_the_stream() {
    let (mut out, mut room) = (Vec::new(), Room::default());
    let mut client = Connection::client(Limits::default(), &mut out);
    let whole = Asking { is_whole: true, ..Asking::default() };
    let block = [0x82, 0x84, 0x86, 0x41, 1, b'a'];
    let asked = client.ask(whole, |out| out.extend_from_slice(&block), &mut out).unwrap();
    let bytes = [&[0, 0, 0, 4, 0, 0, 0, 0, 0][..], &[0, 0, 1, 0, 1, 0, 0, 0, 1, b'x']].concat();
    let (settings, _) = client.receive(&bytes, &mut room, &mut out).unwrap();
    let (_, event) = client.receive(&bytes[settings..], &mut room, &mut out).unwrap();
    let Event::Reset { stream, code: Code::PROTOCOL_ERROR } = event else { panic!("{event:?}") };
    assert_eq!(stream, asked);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn messages_arrive_unchanged_in_both_directions(script in vec(any::<u8>(), 0..400)) {
        pair::play(&script);
    }

    #[test]
    fn cuts_change_nothing(frames in vec(frame(), 0..20), cuts in vec(any::<u16>(), 0..30), is_server: bool) {
        let mut bytes = if is_server { PREFACE.to_vec() } else { Vec::new() };
        bytes.extend([0, 0, 0, 4, 0, 0, 0, 0, 0]);
        frames.iter().for_each(|frame| bytes.extend(frame));
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| usize::from(*cut) % (bytes.len() + 1)).collect();
        cuts.push(bytes.len());
        cuts.sort_unstable();
        let limits = Limits { connect_protocol: true, ..Limits::default() };
        let whole = frames::hear(&bytes, is_server, limits, &[bytes.len()]);
        let cut = frames::hear(&bytes, is_server, limits, &cuts);
        prop_assert_eq!(whole.events, cut.events);
        prop_assert_eq!(whole.fault, cut.fault);
        let single: Vec<usize> = (0..=bytes.len()).collect();
        let single = frames::hear(&bytes, is_server, limits, &single);
        prop_assert_eq!(single.events, frames::hear(&bytes, is_server, limits, &[bytes.len()]).events);
    }
}
