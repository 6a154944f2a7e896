//! Writes text: parts of templates, and client values.

use std::net::SocketAddr;

use super::escape::{Escape, is_odd};

/// Bytes of a value examined at a time.
const BLOCK: usize = 16;

/// Template text up to this size is copied as one piece of this size, and the excess is cut off: a copy of constant
/// size takes a few instructions, a call takes many.
const PIECE: usize = 32;

/// Text of a template. Short text is stored in one piece.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Text {
    piece: [u8; PIECE],
    /// Unused bytes of the piece.
    spare: usize,
    long: Box<[u8]>,
}

impl Default for Text {
    fn default() -> Text {
        Text::new(b"")
    }
}

impl Text {
    pub(super) fn new(text: &[u8]) -> Text {
        let mut piece = [0; PIECE];
        match piece.get_mut(..text.len()) {
            Some(place) => {
                place.copy_from_slice(text);
                Text { piece, spare: PIECE - text.len(), long: Box::default() }
            }
            None => Text { piece, spare: PIECE, long: text.into() },
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.spare == PIECE && self.long.is_empty()
    }

    /// Adds it to a line.
    #[inline]
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.piece);
        out.truncate(out.len() - self.spare);
        if !self.long.is_empty() {
            out.extend_from_slice(&self.long);
        }
    }
}

/// Adds the first bytes of `text`.
#[inline]
fn short(text: [u8; 4], bytes: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(&text);
    out.truncate(out.len() - 4 + bytes);
}

/// Adds the placeholder for a missing value.
#[inline]
pub(super) fn nothing(escape: Escape, out: &mut Vec<u8>) {
    if escape == Escape::Text {
        out.push(b'-');
    }
}

/// Adds a client value.
#[inline]
pub(super) fn value(value: &[u8], escape: Escape, out: &mut Vec<u8>) {
    match is_plain(value) {
        true => out.extend_from_slice(value),
        false => escape.write_escaped(value, out),
    }
}

#[inline]
pub(super) fn number(number: u64, out: &mut Vec<u8>) {
    match number {
        0..10 => out.push(digit(number)),
        10..100 => out.extend_from_slice(&[digit(number / 10), digit(number)]),
        100..1000 => short([digit(number / 100), digit(number / 10), digit(number), 0], 3, out),
        _ => out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes()),
    }
}

/// Adds seconds with their milliseconds.
#[inline]
pub(super) fn seconds(ns: u64, out: &mut Vec<u8>) {
    let ms = ns / 1_000_000;
    number(ms / 1000, out);
    out.extend_from_slice(&[b'.', digit(ms / 100), digit(ms / 10), digit(ms)]);
}

/// Adds a time as in `2026-11-21T17:34:07.123+00:00`; `iso` is that of the second.
pub(super) fn iso_milliseconds(iso: &Text, unix_ns: u64, out: &mut Vec<u8>) {
    let at = out.len();
    iso.write(out);
    let offset = out.split_off((at + ISO_SECONDS_BYTES).min(out.len()));
    milliseconds(unix_ns, out);
    out.extend_from_slice(&offset);
}

/// Adds a time of day as in `17:34:07.123`.
pub(super) fn clock_milliseconds(iso: &Text, unix_ns: u64, out: &mut Vec<u8>) {
    let at = out.len();
    iso.write(out);
    out.truncate(at + ISO_SECONDS_BYTES);
    out.drain(at..(at + ISO_DATE_BYTES).min(out.len()));
    milliseconds(unix_ns, out);
}

/// Bytes of `2026-11-21T17:34:07`, and of its date.
const ISO_SECONDS_BYTES: usize = 19;
const ISO_DATE_BYTES: usize = 11;

fn milliseconds(unix_ns: u64, out: &mut Vec<u8>) {
    let ms = unix_ns / 1_000_000;
    out.extend_from_slice(&[b'.', digit(ms / 100), digit(ms / 10), digit(ms)]);
}

/// Adds a duration for people: `85µs`, `1.2ms`, `3.4s`, right-aligned.
pub(super) fn duration(ns: u64, out: &mut Vec<u8>) {
    let text = match ns {
        0..1_000_000 => format!("{}µs", ns / 1000),
        1_000_000..1_000_000_000 => format!("{:.1}ms", ns as f64 / 1e6),
        _ => format!("{:.1}s", ns as f64 / 1e9),
    };
    out.extend_from_slice(format!("{text:>7}").as_bytes());
}

/// Adds a status with the escape sequences of its colour (ECMA-48): green, cyan, yellow, red.
pub(super) fn coloured_status(code: u16, out: &mut Vec<u8>) {
    let colour: &[u8] = match code / 100 {
        2 => b"\x1b[32m",
        1 | 3 => b"\x1b[36m",
        4 => b"\x1b[33m",
        _ => b"\x1b[31m",
    };
    out.extend_from_slice(colour);
    status(code, Escape::Text, out);
    out.extend_from_slice(b"\x1b[0m");
}

/// Adds three digits, like nginx for a status; in JSON a number has no leading zeros.
#[inline]
pub(super) fn status(code: u16, escape: Escape, out: &mut Vec<u8>) {
    if code == 0 && escape == Escape::Json {
        return out.push(b'0');
    }
    let code = u64::from(code);
    short([digit(code / 100), digit(code / 10), digit(code), 0], 3, out);
}

/// Adds an address.
#[inline]
pub(super) fn address(peer: Option<SocketAddr>, out: &mut Vec<u8>) {
    match peer {
        Some(SocketAddr::V4(peer)) => {
            // Each octet overwrites the unused bytes after the previous octet's dot.
            let mut text = [0; 16];
            let mut at = 0;
            for octet in peer.ip().octets() {
                let (digits, bytes) = OCTETS.get(usize::from(octet)).copied().unwrap_or_default();
                if let Some(place) = text.get_mut(at..at + 4) {
                    place.copy_from_slice(&digits);
                }
                at += usize::from(bytes);
            }
            // Omit the last dot.
            out.extend_from_slice(&text);
            out.truncate(out.len() - 16 + at - 1);
        }
        Some(SocketAddr::V6(peer)) => out.extend_from_slice(peer.ip().to_string().as_bytes()),
        None => out.extend_from_slice(b"unix:"),
    }
}

#[inline]
fn digit(number: u64) -> u8 {
    b'0' + (number % 10) as u8
}

/// Each octet followed by a dot, and the length of both.
static OCTETS: [([u8; 4], u8); 256] = {
    let mut all = [([b'.'; 4], 2); 256];
    let mut octet = 0;
    while octet < 256 {
        let [a, b, c] = [octet / 100, octet / 10 % 10, octet % 10];
        let [a, b, c] = [b'0' + a as u8, b'0' + b as u8, b'0' + c as u8];
        all[octet] = match octet {
            0..10 => ([c, b'.', b'.', b'.'], 2),
            10..100 => ([b, c, b'.', b'.'], 3),
            _ => ([a, b, c, b'.'], 4),
        };
        octet += 1;
    }
    all
};

/// Whether a value needs no escaping: all of it is printable ASCII without `"` and `\`.
///
/// It examines sixteen bytes at a time, which the compiler vectorises: each byte of `odd` collects the results for
/// its position in all blocks. The last block overlaps the one before. In shorter values, the first and the last
/// bytes are examined together.
#[inline]
fn is_plain(value: &[u8]) -> bool {
    let mut odd = [0; BLOCK];
    if let Some(last) = value.last_chunk::<BLOCK>() {
        note_odd(last, &mut odd);
        for block in value.as_chunks::<BLOCK>().0 {
            note_odd(block, &mut odd);
        }
        let mut any = false;
        for odd in odd {
            any |= odd != 0;
        }
        return !any;
    }
    if let (Some(first), Some(last)) = (value.first_chunk::<8>(), value.last_chunk::<8>()) {
        return !has_odd(first) & !has_odd(last);
    }
    if let (Some(&[a, b, c, d]), Some(&[e, f, g, h])) = (value.first_chunk::<4>(), value.last_chunk::<4>()) {
        return !has_odd(&[a, b, c, d, e, f, g, h]);
    }
    !value.iter().any(|&byte| is_odd(byte))
}

#[inline(always)]
fn note_odd(block: &[u8; BLOCK], odd: &mut [u8; BLOCK]) {
    for (odd, &byte) in odd.iter_mut().zip(block) {
        *odd |= if is_odd(byte) { 0xff } else { 0 };
    }
}

#[inline(always)]
fn has_odd(word: &[u8; 8]) -> bool {
    let mut any = false;
    for &byte in word {
        any |= is_odd(byte);
    }
    any
}

#[cfg(test)]
mod tests {
    use super::*;

    /// At each position, in values of each length.
    #[test]
    fn no_odd_byte_is_overlooked() {
        for length in 0..70usize {
            let mut value: Vec<u8> = (0..length).map(|at| b'a' + at as u8 % 26).collect();
            assert!(is_plain(&value));
            for at in 0..length {
                let plain = value[at];
                for byte in 0..=255u8 {
                    value[at] = byte;
                    let expected = matches!(byte, b' '..=b'~') && !b"\"\\".contains(&byte);
                    assert_eq!(is_plain(&value), expected, "{byte} at {at} of {length}");
                }
                value[at] = plain;
            }
        }
    }

    #[test]
    fn texts_of_all_lengths_are_written() {
        for length in 0..100 {
            let text = vec![b'x'; length];
            let mut out = b"<".to_vec();
            Text::new(&text).write(&mut out);
            assert_eq!(out, [b"<", &text[..]].concat());
            assert_eq!(Text::new(&text).is_empty(), length == 0);
        }
    }

    #[test]
    fn numbers_are_written_as_nginx_writes_them() {
        type Write = dyn Fn(&mut Vec<u8>);
        let ip = |text: &str| Some(format!("{text}:1").parse().unwrap());
        for (expected, write) in [
            ("1.234", &(|out: &mut Vec<u8>| seconds(1_234_567_890, out)) as &Write),
            ("000", &|out| status(0, Escape::Text, out)),
            ("0", &|out| status(0, Escape::Json, out)),
            ("503", &|out| status(503, Escape::Text, out)),
            ("18446744073709551615", &|out| number(u64::MAX, out)),
            ("10.200.3.45", &|out| address(ip("10.200.3.45"), out)),
            ("::1", &|out| address(ip("[::1]"), out)),
            ("unix:", &|out| address(None, out)),
            ("a\\x22", &|out| value(b"a\"", Escape::Text, out)),
        ] {
            let mut out = Vec::new();
            write(&mut out);
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
        for at in 0..10_000u64 {
            let mut out = Vec::new();
            number(at, &mut out);
            assert_eq!(out, at.to_string().as_bytes());
        }
    }
}
