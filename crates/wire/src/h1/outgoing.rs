//! A message body that is being sent.

use crate::Version;
use crate::chunk::chunk_head;

/// The length of a body, as known when its head is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// This many bytes.
    Known(u64),
    /// This many bytes, declared even if no body follows and the field could be omitted (304).
    Declared(u64),
    /// Not known until the end.
    Unknown,
}

/// How a body is framed, and what is left of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outgoing {
    /// Nothing follows the head.
    None,
    /// This many bytes.
    Length(u64),
    /// In chunks.
    Chunked,
    /// Unframed, until we close.
    UntilClose,
}

/// A body that does not match its declared length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Misfit;

impl Outgoing {
    /// How a body of this length is framed for a peer of this version.
    #[inline]
    pub(crate) fn of(length: Length, version: Version) -> Outgoing {
        match length {
            Length::Known(bytes) | Length::Declared(bytes) => Outgoing::Length(bytes),
            Length::Unknown if version == Version::Http10 => Outgoing::UntilClose,
            Length::Unknown => Outgoing::Chunked,
        }
    }

    /// Writes the framing field line.
    #[inline]
    pub(crate) fn write_field(self, out: &mut Vec<u8>) {
        match self {
            Outgoing::Length(bytes) => content_length(bytes, out),
            Outgoing::Chunked => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
            Outgoing::None | Outgoing::UntilClose => {}
        }
    }

    /// Writes what precedes `bytes` bytes of data, and returns what follows them.
    ///
    /// # Errors
    /// The body would become longer than its Content-Length: the peer would take the rest for the next message.
    #[inline]
    pub(crate) fn data(&mut self, bytes: usize, out: &mut Vec<u8>) -> Result<&'static [u8], Misfit> {
        match self {
            _ if bytes == 0 => Ok(b""),
            Outgoing::None => Err(Misfit),
            Outgoing::Length(left) => {
                *left = left.checked_sub(bytes as u64).ok_or(Misfit)?;
                Ok(b"")
            }
            Outgoing::Chunked => {
                chunk_head(bytes, out);
                Ok(b"\r\n")
            }
            Outgoing::UntilClose => Ok(b""),
        }
    }

    /// Writes the end of the body: `trailers` are complete field lines, and are omitted if the framing has no place
    /// for them.
    ///
    /// # Errors
    /// The body is shorter than its Content-Length: the peer would take the next message for the rest of it.
    #[inline]
    pub(crate) fn end(self, trailers: &[u8], out: &mut Vec<u8>) -> Result<(), Misfit> {
        match self {
            Outgoing::None | Outgoing::Length(0) | Outgoing::UntilClose => Ok(()),
            Outgoing::Length(_) => Err(Misfit),
            Outgoing::Chunked => {
                out.extend_from_slice(b"0\r\n");
                out.extend_from_slice(trailers);
                out.extend_from_slice(b"\r\n");
                Ok(())
            }
        }
    }
}

/// Writes the field line `Content-Length`.
#[inline]
pub(crate) fn content_length(length: u64, out: &mut Vec<u8>) {
    write_length(length, b"\r\n", out);
}

/// Writes the field line `Content-Length` and the end of the head.
#[inline]
pub(crate) fn content_length_and_end(length: u64, out: &mut Vec<u8>) {
    write_length(length, b"\r\n\r\n", out);
}

const LENGTH_NAME: &[u8; 16] = b"Content-Length: ";

/// Digits of a 64-bit number.
const DIGITS_MAX: usize = 20;

/// Name, digits and line end are assembled on the stack, and copied once.
#[inline]
fn write_length<const N: usize>(length: u64, line_end: &[u8; N], out: &mut Vec<u8>) {
    let mut line = [0; LENGTH_NAME.len() + DIGITS_MAX + 4];
    let mut at = line.len() - N;
    line[at..].copy_from_slice(line_end);
    let mut left = length;
    loop {
        at -= 1;
        line[at] = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    at -= LENGTH_NAME.len();
    line[at..at + LENGTH_NAME.len()].copy_from_slice(LENGTH_NAME);
    out.extend_from_slice(&line[at..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_written_in_decimal() {
        for length in [0, 1, 9, 10, 99, 100, 12_345, u64::MAX] {
            let mut out = Vec::new();
            content_length(length, &mut out);
            assert_eq!(out, format!("Content-Length: {length}\r\n").as_bytes());
        }
    }
}
