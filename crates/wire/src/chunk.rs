//! Chunked transfer coding, strictly and by any piece (RFC 9112 section 7.1).
//!
//! ```text
//! 1a;name=value\r\n     size line: 1 to 16 hexadecimal digits, then extensions
//! ...26 bytes...\r\n    data, handed out as it lies in the caller's buffer
//! 0\r\n                 the last chunk
//! Name: value\r\n       trailer fields, if any
//! \r\n                  end: what follows is the next request
//! ```
//!
//! A [`Decoder`] is one byte of state and some counts, walked byte by byte outside of the data; it allocates
//! for trailers only. The grammar is taken at its narrowest: no white space outside of quoted strings, no bare
//! CR or LF anywhere. Each leniency here has been somebody's smuggling bug.

use crate::Status;
use crate::head::{is_field_value, is_token};

/// The ceilings of one chunked body, its data apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkLimits {
    /// Bytes of extensions in one size line, from the first `;` on; at most 65 535.
    pub extension_bytes_max: usize,
    /// Bytes of all trailer lines; at most 65 535.
    pub trailer_bytes_max: usize,
    /// Trailer lines; at most 65 535.
    pub trailer_fields_max: usize,
}

impl Default for ChunkLimits {
    fn default() -> Self {
        ChunkLimits { extension_bytes_max: 256, trailer_bytes_max: 4096, trailer_fields_max: 32 }
    }
}

/// Extension bytes of a whole body beyond its data bytes so far: a body of one-byte chunks with long
/// extensions costs much and says little (CVE-2023-39326).
const EXTENSION_SURPLUS_BYTES_MAX: u64 = 16 << 10;

/// Digits of a chunk size: what 64 bits hold.
const SIZE_DIGITS_MAX: u8 = 16;

/// The largest chunk, as for Content-Length.
const SIZE_MAX: u64 = 1 << 63;

/// What a [`Decoder::step`] came upon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event<'b> {
    /// Bytes of the body, never none.
    Data(&'b [u8]),
    /// All given bytes were taken and the body goes on.
    NeedMore,
    /// The body is over; the bytes behind those that were taken are none of its.
    End,
}

/// What is wrong with a chunked body. The request is answered [`ChunkFault::status`], and the connection
/// closed: where the next request begins cannot be known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChunkFault {
    /// A size that is not 1 to 16 hexadecimal digits before `;` or CRLF, or is over 2^63.
    Size,
    /// An extension that is malformed, or too many bytes of them.
    Extension,
    /// The data of a chunk is not followed by CRLF.
    DataEnd,
    /// A trailer line that is malformed, or a field that must not be a trailer.
    Trailer,
    /// Too many trailer lines, or bytes of them.
    TrailersTooLarge,
}

impl ChunkFault {
    /// The status that answers the fault.
    pub fn status(self) -> Status {
        match self {
            ChunkFault::TrailersTooLarge => Status::REQUEST_HEADER_FIELDS_TOO_LARGE,
            _ => Status::BAD_REQUEST,
        }
    }

    /// One line for the client's developer, without anything of what was sent.
    pub fn reason(self) -> &'static str {
        match self {
            ChunkFault::Size => "a chunk size is not 1 to 16 hexadecimal digits and CRLF, or is too large",
            ChunkFault::Extension => "a chunk extension is malformed or too long",
            ChunkFault::DataEnd => "the data of a chunk is not followed by CRLF",
            ChunkFault::Trailer => "a trailer field is malformed or not allowed as a trailer",
            ChunkFault::TrailersTooLarge => "too many trailer fields or bytes of them",
        }
    }
}

/// The state of one chunked body: 40 bytes.
#[derive(Debug)]
pub struct Decoder {
    /// In [`State::Size`] the value so far, in [`State::Data`] the bytes still to come.
    size: u64,
    extension_surplus_bytes: u64,
    /// Made when the first trailer begins: most bodies have none.
    trailers: Option<Box<Trailers>>,
    extension_bytes: u16,
    extension_bytes_max: u16,
    trailer_bytes_max: u16,
    trailer_fields_max: u16,
    size_digits: u8,
    state: State,
}

/// What the next byte belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Size,
    /// Behind `;`: a name must follow.
    ExtensionStart,
    ExtensionName,
    /// Behind `=`: a token or a quoted string must follow.
    ExtensionValueStart,
    ExtensionToken,
    ExtensionQuoted,
    /// Behind a backslash in a quoted string.
    ExtensionEscape,
    ExtensionQuotedEnd,
    SizeLf,
    Data,
    DataCr,
    DataLf,
    TrailerStart,
    Trailer,
    TrailerLf,
    LastLf,
    End,
}

#[derive(Debug, Default)]
struct Trailers {
    line: Vec<u8>,
    line_bytes_sum: usize,
    fields: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Decoder {
    /// A decoder at the start of a body.
    pub fn new(limits: ChunkLimits) -> Decoder {
        let narrow = |limit: usize| u16::try_from(limit).unwrap_or(u16::MAX);
        Decoder {
            size: 0,
            extension_surplus_bytes: 0,
            trailers: None,
            extension_bytes: 0,
            extension_bytes_max: narrow(limits.extension_bytes_max),
            trailer_bytes_max: narrow(limits.trailer_bytes_max),
            trailer_fields_max: narrow(limits.trailer_fields_max),
            size_digits: 0,
            state: State::Size,
        }
    }

    /// Takes what it can from the start of `bytes`: how many bytes were taken, and what they gave.
    ///
    /// Data is a slice of `bytes`; [`Event::NeedMore`] comes only when all of them were taken. However the
    /// input is cut into pieces, the data is the same. After [`Event::End`] nothing more is taken.
    ///
    /// # Errors
    /// The first [`ChunkFault`], at the first byte that shows it. The decoder is of no use afterwards.
    pub fn step<'b>(&mut self, bytes: &'b [u8]) -> Result<(usize, Event<'b>), ChunkFault> {
        let mut at = 0;
        while let Some(&byte) = bytes.get(at) {
            match self.state {
                State::End => break,
                State::Data => {
                    let data = self.take_data(&bytes[at..]);
                    return Ok((at + data.len(), Event::Data(data)));
                }
                _ => self.state = self.after(byte)?,
            }
            at += 1;
        }
        Ok((at, if self.state == State::End { Event::End } else { Event::NeedMore }))
    }

    /// The trailer fields in the order in which they came, once the body has ended: names as sent, values
    /// without white space around them. A second call gives none.
    pub fn take_trailers(&mut self) -> Vec<(Vec<u8>, Vec<u8>)> {
        self.trailers.take().map(|trailers| trailers.fields).unwrap_or_default()
    }

    fn take_data<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        let taken = bytes.len().min(usize::try_from(self.size).unwrap_or(usize::MAX));
        self.size -= taken as u64;
        self.extension_surplus_bytes = self.extension_surplus_bytes.saturating_sub(taken as u64);
        if self.size == 0 {
            self.state = State::DataCr;
        }
        &bytes[..taken]
    }

    /// The state behind `byte`, outside of data.
    fn after(&mut self, byte: u8) -> Result<State, ChunkFault> {
        match self.state {
            State::Size => self.after_size(byte),
            State::SizeLf if byte == b'\n' => self.end_size_line(),
            State::SizeLf if self.extension_bytes > 0 => Err(ChunkFault::Extension),
            State::SizeLf => Err(ChunkFault::Size),
            State::DataCr if byte == b'\r' => Ok(State::DataLf),
            State::DataLf if byte == b'\n' => Ok(State::Size),
            State::DataCr | State::DataLf => Err(ChunkFault::DataEnd),
            State::TrailerStart if byte == b'\r' => Ok(State::LastLf),
            State::TrailerStart | State::Trailer => self.after_trailer(byte),
            State::TrailerLf if byte == b'\n' => self.end_trailer_line(),
            State::LastLf if byte == b'\n' => Ok(State::End),
            State::TrailerLf | State::LastLf => Err(ChunkFault::Trailer),
            _ => self.after_extension(byte),
        }
    }

    fn after_size(&mut self, byte: u8) -> Result<State, ChunkFault> {
        if let Some(digit) = char::from(byte).to_digit(16) {
            if self.size_digits == SIZE_DIGITS_MAX {
                return Err(ChunkFault::Size);
            }
            self.size_digits += 1;
            self.size = self.size << 4 | u64::from(digit);
            return Ok(State::Size);
        }
        match byte {
            _ if self.size_digits == 0 || self.size > SIZE_MAX => Err(ChunkFault::Size),
            b'\r' => Ok(State::SizeLf),
            b';' => self.after_extension(byte),
            _ => Err(ChunkFault::Size),
        }
    }

    /// `*( ";" token [ "=" ( token / quoted-string ) ] )`, each byte counted.
    fn after_extension(&mut self, byte: u8) -> Result<State, ChunkFault> {
        use State::*;
        let next = match (self.state, byte) {
            (ExtensionName | ExtensionToken | ExtensionQuotedEnd, b'\r') => return Ok(SizeLf),
            (Size | ExtensionName | ExtensionToken | ExtensionQuotedEnd, b';') => ExtensionStart,
            (ExtensionName, b'=') => ExtensionValueStart,
            (ExtensionStart | ExtensionName, _) if is_token(&[byte]) => ExtensionName,
            (ExtensionValueStart | ExtensionToken, _) if is_token(&[byte]) => ExtensionToken,
            (ExtensionValueStart, b'"') => ExtensionQuoted,
            (ExtensionQuoted, b'"') => ExtensionQuotedEnd,
            (ExtensionQuoted, b'\\') => ExtensionEscape,
            (ExtensionQuoted | ExtensionEscape, _) if is_field_value(&[byte]) => ExtensionQuoted,
            _ => return Err(ChunkFault::Extension),
        };
        self.extension_surplus_bytes += 1;
        if self.extension_bytes == self.extension_bytes_max
            || self.extension_surplus_bytes > EXTENSION_SURPLUS_BYTES_MAX
        {
            return Err(ChunkFault::Extension);
        }
        self.extension_bytes += 1;
        Ok(next)
    }

    fn end_size_line(&mut self) -> Result<State, ChunkFault> {
        self.size_digits = 0;
        self.extension_bytes = 0;
        Ok(if self.size == 0 { State::TrailerStart } else { State::Data })
    }

    fn after_trailer(&mut self, byte: u8) -> Result<State, ChunkFault> {
        let trailers = self.trailers.get_or_insert_default();
        trailers.line_bytes_sum += 1;
        if trailers.line_bytes_sum > usize::from(self.trailer_bytes_max)
            || trailers.fields.len() == usize::from(self.trailer_fields_max)
        {
            return Err(ChunkFault::TrailersTooLarge);
        }
        if byte == b'\r' {
            return Ok(State::TrailerLf);
        }
        if !is_field_value(&[byte]) {
            return Err(ChunkFault::Trailer);
        }
        trailers.line.push(byte);
        Ok(State::Trailer)
    }

    fn end_trailer_line(&mut self) -> Result<State, ChunkFault> {
        let trailers = self.trailers.get_or_insert_default();
        let colon = trailers.line.iter().position(|&byte| byte == b':').ok_or(ChunkFault::Trailer)?;
        let (name, value) = (&trailers.line[..colon], trailers.line[colon + 1..].trim_ascii());
        if !is_token(name) || is_forbidden_trailer(name) {
            return Err(ChunkFault::Trailer);
        }
        trailers.fields.push((name.to_vec(), value.to_vec()));
        trailers.line.clear();
        Ok(State::TrailerStart)
    }
}

/// Writes the size line of a chunk of `len` data bytes: `1a` and CRLF. A chunk of none would end the body.
pub fn chunk_head(len: usize, out: &mut Vec<u8>) {
    let digits = (usize::BITS - len.leading_zeros()).div_ceil(4).max(1);
    for digit in (0..digits).rev() {
        out.push(b"0123456789abcdef"[(len >> (4 * digit)) & 0xf]);
    }
    out.extend_from_slice(b"\r\n");
}

/// Fields that frame, route, authenticate or control a message: believed in its head, never behind its body
/// (RFC 9110 section 6.5.1).
const FORBIDDEN_TRAILERS: [&str; 37] = [
    "Age",
    "Authorization",
    "Cache-Control",
    "Connection",
    "Content-Encoding",
    "Content-Length",
    "Content-Range",
    "Content-Type",
    "Cookie",
    "Date",
    "Expect",
    "Expires",
    "Host",
    "If-Match",
    "If-Modified-Since",
    "If-None-Match",
    "If-Range",
    "If-Unmodified-Since",
    "Keep-Alive",
    "Location",
    "Max-Forwards",
    "Pragma",
    "Proxy-Authenticate",
    "Proxy-Authorization",
    "Proxy-Connection",
    "Range",
    "Retry-After",
    "Set-Cookie",
    "TE",
    "Trailer",
    "Transfer-Encoding",
    "Upgrade",
    "Vary",
    "Via",
    "WWW-Authenticate",
    "X-Forwarded-For",
    "X-Forwarded-Host",
];

fn is_forbidden_trailer(name: &[u8]) -> bool {
    FORBIDDEN_TRAILERS.iter().any(|forbidden| name.eq_ignore_ascii_case(forbidden.as_bytes()))
}
