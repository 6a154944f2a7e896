//! The head parser against httparse: it may be stricter, never laxer, and if both accept they agree.
//!
//! Requests come from a grammar, valid or corrupted in a few places, and from arbitrary bytes.

use flatout_wire::head::{Fault, Field, Framing, Head, HeadLimits, parse};
use flatout_wire::target::normal_path;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

fn parse_default<'b>(bytes: &'b [u8], fields: &'b mut Vec<Field>) -> Result<Option<Head<'b>>, Fault> {
    parse(bytes, fields, &HeadLimits::default())
}

/// If a head is accepted, httparse parses the same from the same bytes.
fn agrees_with_httparse(input: &[u8]) -> Result<(), TestCaseError> {
    let mut fields = Vec::new();
    let Ok(Some(head)) = parse_default(input, &mut fields) else { return Ok(()) };
    let mut headers = [httparse::EMPTY_HEADER; 128];
    let mut oracle = httparse::Request::new(&mut headers);
    prop_assert_eq!(oracle.parse(input), Ok(httparse::Status::Complete(head.len())));
    prop_assert_eq!(oracle.method.map(str::as_bytes), Some(head.method_name()));
    prop_assert_eq!(oracle.path.map(str::as_bytes), Some(head.target()));
    prop_assert_eq!(oracle.version, Some(head.version as u8));
    let theirs: Vec<_> = oracle.headers.iter().map(|header| (header.name.as_bytes(), header.value)).collect();
    prop_assert_eq!(theirs, head.fields().collect::<Vec<_>>());
    Ok(())
}

/// Splitting does not change the result: if a prefix is rejected, so is the whole; if the whole is accepted, no
/// prefix is rejected.
fn cuts_do_not_matter(input: &[u8]) -> Result<(), TestCaseError> {
    let mut fields = Vec::new();
    let whole = parse_default(input, &mut fields).map(|head| head.map(|head| head.len()));
    for end in 0..input.len() {
        let mut fields = Vec::new();
        let part = parse_default(&input[..end], &mut fields).map(|head| head.map(|head| head.len()));
        prop_assert!(part == whole || part == Ok(None), "at {end}: {part:?}, in whole {whole:?}");
    }
    Ok(())
}

/// Parts that are usually valid, and sometimes one of the classic invalid ones.
fn request() -> impl Strategy<Value = Vec<u8>> {
    let before = prop_oneof![20 => Just(""), 2 => Just("\r\n"), 1 => select(vec!["\r\n\r\n", "\n", " "])];
    let method = prop_oneof![
        12 => select(vec!["GET", "POST", "HEAD", "OPTIONS"]).prop_map(str::to_owned),
        2 => "[!#$%&'*+.^_`|~A-Za-z0-9-]{1,9}",
        1 => "CONNECT|[ -~]{0,4}",
    ];
    let target = prop_oneof![
        9 => "/([a-z0-9._~!$&'()*+,;=:@-]|%[0-9a-fA-F]{2}){0,12}(\\?[a-z=&/?2]{0,8})?",
        3 => "https?://([a-z.-]{1,8}|\\[::1\\])(:[0-9]{0,5})?(/[a-z]{0,4})?(\\?q)?",
        1 => select(vec!["*", "a:443", "/..", "/%2e/%", "http://", "//", ""]).prop_map(str::to_owned),
        1 => "[!-~]{1,10}",
    ];
    let version = prop_oneof![
        20 => Just("HTTP/1.1"),
        4 => Just("HTTP/1.0"),
        1 => select(vec!["HTTP/2.0", "HTTP/1.2", "http/1.1", "HTTP/1.1 ", ""]),
    ];
    let line_end = || prop_oneof![60 => Just("\r\n"), 1 => select(vec!["\n", "\r", "\r\r\n", ""])];
    let host = prop_oneof![
        12 => select(vec!["Host: example.org", "host:[::1]:80 ", "HOST: \ta"]),
        1 => select(vec!["Host: a b", "Host:", "X: y"]),
    ];
    let framing = prop_oneof![
        12 => select(vec!["A: b", "Content-Length: 5", "content-length:0", "Transfer-Encoding: Chunked"]),
        1 => select(vec!["Content-Length: +5", "Transfer-Encoding: a, b", "Content-Length : 5"]),
    ];
    let after = prop_oneof![9 => select(vec!["\r\n", "\r\nbody"]), 1 => select(vec!["", "\n"])];
    let fields = (host, framing, vec((field(), line_end()), 0..5));
    (before, (method, target, version, line_end()), fields, after).prop_map(
        |(before, (method, target, version, line_end), (host, framing, fields), after)| {
            let line = format!("{before}{method} {target} {version}{line_end}{framing}\r\n");
            let mut out = line.into_bytes();
            for (line, line_end) in fields {
                out.extend_from_slice(&line);
                out.extend_from_slice(line_end.as_bytes());
            }
            out.extend_from_slice(format!("{host}\r\n{after}").as_bytes());
            out
        },
    )
}

fn field() -> impl Strategy<Value = Vec<u8>> {
    let odd =
        select(vec!["Host: a", "Content-Length: 5", "Transfer-Encoding: chunked", " folded", "nocolon"]);
    let value = vec(prop_oneof![8 => 0x20..=0x7eu8, 2 => 0x80..=0xffu8, 1 => Just(b'\t')], 0..24);
    prop_oneof![
        30 => ("[A-Za-z0-9_-]{1,10}:[ \t]{0,2}", value)
            .prop_map(|(name, value)| [name.into_bytes(), value].concat()),
        3 => select(vec!["Connection: close, x", "Connection: Keep-Alive", "Expect: 100-continue"])
            .prop_map(|line| line.as_bytes().to_vec()),
        1 => odd.prop_map(|line| line.as_bytes().to_vec()),
        1 => vec(any::<u8>(), 0..12).prop_map(|value| [b"A: ".to_vec(), value].concat()),
    ]
}

/// A request with up to three bytes replaced, inserted or removed.
fn spoilt_request() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![select(b"\r\n\t \0:;,%/\\.\x7f\x80\xff".to_vec()), any::<u8>()];
    let edits = vec((any::<Index>(), byte, 0..3u8), 0..4);
    (request(), edits).prop_map(|(mut out, edits)| {
        for (at, byte, kind) in edits {
            let at = at.index(out.len() + 1);
            match kind {
                0 => out.insert(at, byte),
                _ if at == out.len() => {}
                1 => out[at] = byte,
                _ => drop(out.remove(at)),
            }
        }
        out
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn generated_requests_are_read_as_httparse_does(input in request()) {
        agrees_with_httparse(&input)?;
    }

    #[test]
    fn spoilt_requests_are_read_as_httparse_does(input in spoilt_request()) {
        agrees_with_httparse(&input)?;
        cuts_do_not_matter(&input)?;
    }

    #[test]
    fn arbitrary_bytes_are_read_as_httparse_does(input in vec(any::<u8>(), 0..200)) {
        agrees_with_httparse(&input)?;
        cuts_do_not_matter(&input)?;
    }

    /// Framing by the simplest reading of all fields; anything but a single valid one must be rejected.
    #[test]
    fn framing_has_one_reading(input in spoilt_request()) {
        let mut fields = Vec::new();
        let Ok(Some(head)) = parse_default(&input, &mut fields) else { return Ok(()) };
        let lengths: Vec<_> = head.field_all("content-length").collect();
        let codings: Vec<_> = head.field_all("transfer-encoding").collect();
        let expected = match (&lengths[..], &codings[..]) {
            ([], []) => Framing::None,
            ([length], []) => match std::str::from_utf8(length).unwrap().parse().unwrap() {
                0 => Framing::None,
                length => Framing::Length(length),
            },
            ([], [coding]) if coding.eq_ignore_ascii_case(b"chunked") => Framing::Chunked,
            other => panic!("accepted: {other:?}"),
        };
        prop_assert_eq!(head.framing, expected);
    }

    #[test]
    fn a_path_without_need_of_care_is_its_own_normal_form(input in spoilt_request()) {
        let mut fields = Vec::new();
        let Ok(Some(head)) = parse_default(&input, &mut fields) else { return Ok(()) };
        if head.path().starts_with(b"/") && !head.path_needs_care {
            let mut out = Vec::new();
            prop_assert_eq!(normal_path(head.path(), &mut out), Ok(head.path()));
        }
    }
}

#[test]
fn the_grammar_gives_good_and_bad_requests() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut accepted, mut refused) = (0, 0);
    for _ in 0..500 {
        let input = request().new_tree(&mut runner).unwrap().current();
        let mut fields = Vec::new();
        match parse_default(&input, &mut fields) {
            Ok(Some(_)) => accepted += 1,
            Ok(None) => {}
            Err(_) => refused += 1,
        }
    }
    assert!(
        accepted > 100 && refused > 100,
        "{accepted} accepted, {refused} refused: the generator tests nothing"
    );
}
