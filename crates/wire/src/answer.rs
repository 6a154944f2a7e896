//! The head of a response, as a client parses it: the status line and the fields that frame the body (RFC 9112
//! sections 4 to 6).
//!
//! ```text
//! HTTP/1.1 200 OK\r\n                   version, status code, reason
//! Content-Length: 27\r\n                field lines, read by the same function as those of a request
//! \r\n                                  end: what follows is the body or the next answer
//! ```
//!
//! Nothing is copied or allocated, and only what a client has to act on is kept. As with requests, fields that frame
//! the body are accepted in a single spelling.

use crate::field::{Field, LineStop, field_line, value_end};
use crate::head::HEAD_BYTES_CEILING;
use crate::{Status, Version, framing};

/// What a client needs to know of a response head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// The status code.
    pub status: Status,
    /// How the body is delimited.
    pub framing: ResponseFraming,
    /// Whether the server keeps the connection (RFC 9112 section 9.3).
    pub keep_alive: bool,
    /// Bytes of the head, final CRLF included.
    pub head_bytes: usize,
}

/// How the body of a response is delimited (RFC 9112 section 6.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResponseFraming {
    /// This many bytes follow, possibly none.
    Length(u64),
    /// Chunked transfer coding.
    Chunked,
    /// All bytes until the server closes the connection.
    UntilClose,
}

/// What is wrong with a response head. The start of the next response is then unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResponseFault {
    /// The first line is not `HTTP/1.1 200 reason` and CRLF.
    StatusLine,
    /// A field line is malformed.
    Field,
    /// The head is longer than its limit.
    HeadTooLong,
    /// More field lines than their limit.
    TooManyFields,
    /// Content-Length is not one number, is repeated, or comes together with Transfer-Encoding.
    ContentLength,
    /// A transfer coding other than a single `chunked`.
    TransferEncoding,
}

/// `HTTP/1.1 200`.
const STATUS_BYTES: usize = 12;

/// Parses one head at the start of `bytes`. `to_head` says that the request was HEAD: no body follows then.
///
/// `Ok(None)` means that the head is incomplete: call again with more bytes. Errors are reported as soon as they are
/// certain. Costs one pass over the bytes.
///
/// # Errors
/// The first [`ResponseFault`] in the order of the bytes. A head over `head_bytes_max` (at most [`HEAD_BYTES_CEILING`]) is one.
#[inline]
pub fn parse(bytes: &[u8], to_head: bool, head_bytes_max: usize) -> Result<Option<Answer>, ResponseFault> {
    parse_with(bytes, to_head, head_bytes_max, |_| Ok(()))
}

/// As [`parse`], with the field lines: `fields` is cleared and filled with their spans, which [`Field::name`] and
/// [`Field::value`] turn into bytes.
///
/// # Errors
/// As [`parse`]; more than `fields_max` lines is a fault too.
pub fn parse_fields(
    bytes: &[u8],
    to_head: bool,
    head_bytes_max: usize,
    fields_max: usize,
    fields: &mut Vec<Field>,
) -> Result<Option<Answer>, ResponseFault> {
    fields.clear();
    parse_with(bytes, to_head, head_bytes_max, |field| {
        if fields.len() == fields_max {
            return Err(ResponseFault::TooManyFields);
        }
        fields.push(field);
        Ok(())
    })
}

#[inline]
fn parse_with(
    bytes: &[u8],
    to_head: bool,
    head_bytes_max: usize,
    keep: impl FnMut(Field) -> Result<(), ResponseFault>,
) -> Result<Option<Answer>, ResponseFault> {
    let head_bytes_max = head_bytes_max.min(HEAD_BYTES_CEILING);
    let within = &bytes[..bytes.len().min(head_bytes_max)];
    match parse_within(within, to_head, keep)? {
        None if bytes.len() >= head_bytes_max => Err(ResponseFault::HeadTooLong),
        found => Ok(found),
    }
}

#[inline]
fn parse_within(
    bytes: &[u8],
    to_head: bool,
    mut keep: impl FnMut(Field) -> Result<(), ResponseFault>,
) -> Result<Option<Answer>, ResponseFault> {
    let Some((version, status, lines_at)) = status_line(bytes)? else { return Ok(None) };
    let mut seen = framing::FramingFields::default();
    let mut rest = bytes.get(lines_at..).unwrap_or_default();
    let behind = loop {
        match rest {
            [] | [b'\r'] => return Ok(None),
            [b'\r', b'\n', behind @ ..] => break behind,
            _ => {}
        }
        let line = match field_line(rest) {
            Ok(line) => line,
            Err(LineStop::Partial) => return Ok(None),
            Err(LineStop::Name | LineStop::Value) => return Err(ResponseFault::Field),
        };
        seen.note(line.name(), line.value())?;
        keep(line.field(bytes.len()))?;
        rest = line.next;
    };
    let framing = match (seen.chunked, seen.length) {
        (true, Some(_)) => return Err(ResponseFault::ContentLength),
        _ if to_head || status.is_bodyless() => ResponseFraming::Length(0),
        (true, None) => ResponseFraming::Chunked,
        (false, Some(length)) => ResponseFraming::Length(length),
        (false, None) => ResponseFraming::UntilClose,
    };
    // HTTP/1.0 has no transfer coding: the meaning of one there is unclear (RFC 9112 section 6.1).
    let is_clear = !(seen.chunked && version == Version::Http10) && framing != ResponseFraming::UntilClose;
    let keep_alive = is_clear && seen.keeps_alive(version == Version::Http11);
    Ok(Some(Answer { status, framing, keep_alive, head_bytes: bytes.len() - behind.len() }))
}

/// The version, the status, and the start of the next line.
fn status_line(bytes: &[u8]) -> Result<Option<(Version, Status, usize)>, ResponseFault> {
    const EXPECTED: &[u8] = b"HTTP/1.";
    let known = bytes.len().min(EXPECTED.len());
    if bytes[..known] != EXPECTED[..known] {
        return Err(ResponseFault::StatusLine);
    }
    let Some(line) = bytes.first_chunk::<STATUS_BYTES>() else {
        let is_good = |(at, byte): (usize, &u8)| match at {
            7 => matches!(byte, b'0' | b'1'),
            8 => *byte == b' ',
            _ => byte.is_ascii_digit(),
        };
        let goes_on = bytes.iter().enumerate().skip(known).all(is_good);
        return if goes_on { Ok(None) } else { Err(ResponseFault::StatusLine) };
    };
    let version = match line[7..9] {
        [b'1', b' '] => Version::Http11,
        [b'0', b' '] => Version::Http10,
        _ => return Err(ResponseFault::StatusLine),
    };
    let digits = &line[9..];
    if !digits.iter().all(u8::is_ascii_digit) {
        return Err(ResponseFault::StatusLine);
    }
    let code = digits.iter().fold(0, |code, digit| code * 10 + u16::from(digit - b'0'));
    let status = Status::from_code(code).ok_or(ResponseFault::StatusLine)?;
    // Some servers omit the space before an empty reason; this is not ambiguous.
    let reason_bytes = match bytes.get(STATUS_BYTES) {
        None => return Ok(None),
        Some(b' ') => value_end(&bytes[STATUS_BYTES..]),
        Some(_) => 0,
    };
    let end = STATUS_BYTES + reason_bytes;
    match (bytes.get(end), bytes.get(end + 1)) {
        (Some(b'\r'), Some(b'\n')) => Ok(Some((version, status, end + 2))),
        (None, _) | (Some(b'\r'), None) => Ok(None),
        _ => Err(ResponseFault::StatusLine),
    }
}

impl From<framing::FramingFault> for ResponseFault {
    fn from(fault: framing::FramingFault) -> ResponseFault {
        match fault {
            framing::FramingFault::Length | framing::FramingFault::LengthTooLarge => {
                ResponseFault::ContentLength
            }
            framing::FramingFault::Encoding | framing::FramingFault::Coding => {
                ResponseFault::TransferEncoding
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: usize = 1 << 10;

    fn read(text: &str) -> Result<Option<Answer>, ResponseFault> {
        parse(text.as_bytes(), false, LIMIT)
    }

    fn framing(text: &str) -> (ResponseFraming, bool) {
        let answer = read(text).unwrap().unwrap();
        (answer.framing, answer.keep_alive)
    }

    #[test]
    fn the_bytes_after_a_head_are_classified() {
        let plain = "HTTP/1.1 200 OK\r\nServer: x\r\nContent-Length: 27\r\n\r\n{";
        let answer = read(plain).unwrap().unwrap();
        assert_eq!((answer.status, answer.head_bytes), (Status::OK, plain.len() - 1));
        assert_eq!(framing(plain), (ResponseFraming::Length(27), true));
        assert_eq!(
            framing("HTTP/1.1 200\r\nTransfer-Encoding: Chunked\r\n\r\n"),
            (ResponseFraming::Chunked, true)
        );
        assert_eq!(framing("HTTP/1.1 200 \r\n\r\n"), (ResponseFraming::UntilClose, false));
        assert_eq!(
            framing("HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n"),
            (ResponseFraming::Length(0), true)
        );
        assert_eq!(
            framing("HTTP/1.1 200 OK\r\nConnection: x, Close\r\nContent-Length: 1\r\n\r\n"),
            (ResponseFraming::Length(1), false)
        );
        assert_eq!(
            framing("HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\n"),
            (ResponseFraming::Length(1), false)
        );
        assert_eq!(
            framing("HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 1\r\n\r\n"),
            (ResponseFraming::Length(1), true)
        );
        assert_eq!(
            framing("HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n"),
            (ResponseFraming::Chunked, false)
        );
        let to_head = parse(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", true, LIMIT).unwrap().unwrap();
        assert_eq!(to_head.framing, ResponseFraming::Length(0));
    }

    #[test]
    fn faults_are_reported() {
        for (text, fault) in [
            ("SSH-2.0-OpenSSH", ResponseFault::StatusLine),
            ("HTTP/2 200 OK\r\n\r\n", ResponseFault::StatusLine),
            ("HTTP/1.1 20 OK\r\n\r\n", ResponseFault::StatusLine),
            ("HTTP/1.\r\n", ResponseFault::StatusLine),
            ("HTTP/1.1\r\n", ResponseFault::StatusLine),
            ("HTTP/1.1 2\r", ResponseFault::StatusLine),
            ("HTTP/1.1 099 OK\r\n\r\n", ResponseFault::StatusLine),
            ("HTTP/1.1 200OK\r\n\r\n", ResponseFault::StatusLine),
            ("HTTP/1.1 200 OK\n\n", ResponseFault::StatusLine),
            ("HTTP/1.1 200 OK\r\nno colon\r\n\r\n", ResponseFault::Field),
            ("HTTP/1.1 200 OK\r\n folded: x\r\n\r\n", ResponseFault::Field),
            ("HTTP/1.1 200 OK\r\nA: b\nC: d\r\n\r\n", ResponseFault::Field),
            ("HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", ResponseFault::ContentLength),
            ("HTTP/1.1 200 OK\r\nContent-Length: 1, 1\r\n\r\n", ResponseFault::ContentLength),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
                ResponseFault::ContentLength,
            ),
            ("HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n", ResponseFault::ContentLength),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
                ResponseFault::ContentLength,
            ),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", ResponseFault::TransferEncoding),
        ] {
            assert_eq!(read(text), Err(fault), "{text}");
        }
    }

    #[test]
    fn every_start_of_a_head_needs_more() {
        let whole = "HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
        for end in 0..whole.len() {
            assert_eq!(read(&whole[..end]), Ok(None), "{end}");
        }
        assert!(read(whole).unwrap().is_some());
    }

    #[test]
    fn an_endless_head_ends_at_the_limit() {
        let long = format!("HTTP/1.1 200 OK\r\nA: {}", "x".repeat(LIMIT));
        assert_eq!(read(&long), Err(ResponseFault::HeadTooLong));
        let fields = format!("HTTP/1.1 200 OK\r\n{}", "A: b\r\n".repeat(LIMIT));
        assert_eq!(read(&fields), Err(ResponseFault::HeadTooLong));
    }
}
