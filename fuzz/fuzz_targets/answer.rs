//! Response heads. If a head is accepted, httparse reads the same, and no prefix of it was refused.
//!
//! The first byte of the input decides whether it is a response to HEAD; the rest is the head.

use flatout_wire::answer::{ResponseFault, ResponseFraming, parse};

/// Bytes of a head that are read.
const HEAD_BYTES_MAX: usize = 2048;

/// Field lines of such a head, of which each has four bytes at least.
const FIELDS_MAX: usize = HEAD_BYTES_MAX / 4;

pub fn run(input: &[u8]) {
    let Some((first, input)) = input.split_first() else { return };
    let to_head = first & 1 == 1;
    let whole = parse(input, to_head, HEAD_BYTES_MAX);
    for end in [input.len() / 2, input.len().saturating_sub(1), usize::from(*first) % (input.len() + 1)] {
        match (parse(&input[..end], to_head, HEAD_BYTES_MAX), whole) {
            (Ok(None), _) => {}
            (found, whole) => assert_eq!(found, whole, "at {end}"),
        }
    }
    let answer = match whole {
        Ok(Some(answer)) => answer,
        Ok(None) => return assert!(input.len() < HEAD_BYTES_MAX),
        Err(ResponseFault::HeadTooLong) => return assert!(input.len() >= HEAD_BYTES_MAX),
        Err(_) => return,
    };
    let mut headers = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut oracle = httparse::Response::new(&mut headers);
    assert_eq!(oracle.parse(input), Ok(httparse::Status::Complete(answer.head_bytes)));
    assert_eq!(oracle.code, Some(answer.status.code()));
    let named =
        |name: &str| oracle.headers.iter().filter(move |one| one.name.eq_ignore_ascii_case(name)).count();
    assert!(named("content-length") + named("transfer-encoding") <= 1, "two that frame the body");
    match answer.framing {
        ResponseFraming::UntilClose => assert!(!answer.keep_alive && named("content-length") == 0),
        ResponseFraming::Chunked => assert!(!to_head && named("transfer-encoding") == 1),
        ResponseFraming::Length(length) if length > 0 => assert!(!to_head && named("content-length") == 1),
        ResponseFraming::Length(_) => {}
    }
}
