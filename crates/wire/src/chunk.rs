//! Chunked transfer coding, parsed strictly from pieces of any size (RFC 9112 section 7.1).
//!
//! ```text
//! 1a;name=value\r\n     size line: 1 to 16 hexadecimal digits, then extensions
//! ...26 bytes...\r\n    data, handed out as it lies in the caller's buffer
//! 0\r\n                 the last chunk
//! Name: value\r\n       trailer fields, if any
//! \r\n                  end: what follows is the next request
//! ```
//!
//! A [`ChunkDecoder`] is one byte of state and some counters. It walks byte by byte outside of the data, and allocates
//! only for trailers. The grammar is applied at its narrowest: no white space outside of quoted strings, no bare CR
//! or LF anywhere. Each tolerance here has been a request smuggling bug in some server.

use crate::Status;
use crate::field::{is_field_value, is_token};

/// The limits of one chunked body, except for its data.
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

/// Extension bytes of a whole body beyond its data bytes so far: one-byte chunks with long extensions cost much and
/// carry little (CVE-2023-39326).
const EXTENSION_SURPLUS_BYTES_MAX: u64 = 16 << 10;

/// Digits of a chunk size: 64 bits.
const SIZE_DIGITS_MAX: u8 = 16;

/// The largest chunk, as for Content-Length.
const SIZE_MAX: u64 = 1 << 63;

/// The result of a [`ChunkDecoder::step`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChunkEvent<'b> {
    /// Bytes of the body, never empty.
    Data(&'b [u8]),
    /// All bytes were consumed, and the body is incomplete.
    NeedMore,
    /// The body has ended; bytes after the consumed ones do not belong to it.
    End,
}

/// What is wrong with a chunked body. The response is [`ChunkFault::status`], and the connection is closed: the start
/// of the next request is unknown.
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
    /// The status of the response.
    pub fn status(self) -> Status {
        match self {
            ChunkFault::TrailersTooLarge => Status::REQUEST_HEADER_FIELDS_TOO_LARGE,
            _ => Status::BAD_REQUEST,
        }
    }

    /// One line for the client's developer, without any of the client's text.
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
pub struct ChunkDecoder {
    /// In [`ChunkState::Size`] the value so far, in [`ChunkState::Data`] the remaining bytes.
    size: u64,
    extension_surplus_bytes: u64,
    /// Allocated for the first trailer: most bodies have none.
    trailers: Option<Box<TrailerParser>>,
    extension_bytes: u16,
    extension_bytes_max: u16,
    trailer_bytes_max: u16,
    trailer_fields_max: u16,
    size_digits: u8,
    state: ChunkState,
}

/// What the next byte belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChunkState {
    Size,
    /// After `;`: a name must follow.
    ExtensionStart,
    ExtensionName,
    /// After `=`: a token or a quoted string must follow.
    ExtensionValueStart,
    ExtensionToken,
    ExtensionQuoted,
    /// After a backslash in a quoted string.
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
struct TrailerParser {
    line: Vec<u8>,
    line_bytes_sum: usize,
    fields: Vec<(Vec<u8>, Vec<u8>)>,
}

impl ChunkDecoder {
    /// A decoder at the start of a body.
    pub fn new(limits: ChunkLimits) -> ChunkDecoder {
        let narrow = |limit: usize| u16::try_from(limit).unwrap_or(u16::MAX);
        ChunkDecoder {
            size: 0,
            extension_surplus_bytes: 0,
            trailers: None,
            extension_bytes: 0,
            extension_bytes_max: narrow(limits.extension_bytes_max),
            trailer_bytes_max: narrow(limits.trailer_bytes_max),
            trailer_fields_max: narrow(limits.trailer_fields_max),
            size_digits: 0,
            state: ChunkState::Size,
        }
    }

    /// Consumes bytes from the start of `bytes`. Returns how many, and the result.
    ///
    /// Data is a slice of `bytes`; [`ChunkEvent::NeedMore`] is only returned when all of them were consumed. However the
    /// input is split, the data is the same. After [`ChunkEvent::End`] nothing more is consumed.
    ///
    /// # Errors
    /// The first [`ChunkFault`], at the first byte that shows it. The decoder is not usable afterwards.
    pub fn step<'b>(&mut self, bytes: &'b [u8]) -> Result<(usize, ChunkEvent<'b>), ChunkFault> {
        let mut at = 0;
        while let Some(&byte) = bytes.get(at) {
            match self.state {
                ChunkState::End => break,
                ChunkState::Data => {
                    let data = self.take_data(&bytes[at..]);
                    return Ok((at + data.len(), ChunkEvent::Data(data)));
                }
                _ => self.state = self.after(byte)?,
            }
            at += 1;
        }
        Ok((at, if self.state == ChunkState::End { ChunkEvent::End } else { ChunkEvent::NeedMore }))
    }

    /// The trailer fields in order, once the body has ended: names as sent, values without surrounding white space. A
    /// second call returns none.
    pub fn take_trailers(&mut self) -> Vec<(Vec<u8>, Vec<u8>)> {
        self.trailers.take().map(|trailers| trailers.fields).unwrap_or_default()
    }

    fn take_data<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        let taken = bytes.len().min(usize::try_from(self.size).unwrap_or(usize::MAX));
        self.size -= taken as u64;
        self.extension_surplus_bytes = self.extension_surplus_bytes.saturating_sub(taken as u64);
        if self.size == 0 {
            self.state = ChunkState::DataCr;
        }
        &bytes[..taken]
    }

    /// The state after `byte`, outside of data.
    fn after(&mut self, byte: u8) -> Result<ChunkState, ChunkFault> {
        match self.state {
            ChunkState::Size => self.after_size(byte),
            ChunkState::SizeLf if byte == b'\n' => self.end_size_line(),
            ChunkState::SizeLf if self.extension_bytes > 0 => Err(ChunkFault::Extension),
            ChunkState::SizeLf => Err(ChunkFault::Size),
            ChunkState::DataCr if byte == b'\r' => Ok(ChunkState::DataLf),
            ChunkState::DataLf if byte == b'\n' => Ok(ChunkState::Size),
            ChunkState::DataCr | ChunkState::DataLf => Err(ChunkFault::DataEnd),
            ChunkState::TrailerStart if byte == b'\r' => Ok(ChunkState::LastLf),
            ChunkState::TrailerStart | ChunkState::Trailer => self.after_trailer(byte),
            ChunkState::TrailerLf if byte == b'\n' => self.end_trailer_line(),
            ChunkState::LastLf if byte == b'\n' => Ok(ChunkState::End),
            ChunkState::TrailerLf | ChunkState::LastLf => Err(ChunkFault::Trailer),
            _ => self.after_extension(byte),
        }
    }

    fn after_size(&mut self, byte: u8) -> Result<ChunkState, ChunkFault> {
        if let Some(digit) = char::from(byte).to_digit(16) {
            if self.size_digits == SIZE_DIGITS_MAX {
                return Err(ChunkFault::Size);
            }
            self.size_digits += 1;
            self.size = self.size << 4 | u64::from(digit);
            return Ok(ChunkState::Size);
        }
        match byte {
            _ if self.size_digits == 0 || self.size > SIZE_MAX => Err(ChunkFault::Size),
            b'\r' => Ok(ChunkState::SizeLf),
            b';' => self.after_extension(byte),
            _ => Err(ChunkFault::Size),
        }
    }

    /// `*( ";" token [ "=" ( token / quoted-string ) ] )`, with each byte counted.
    fn after_extension(&mut self, byte: u8) -> Result<ChunkState, ChunkFault> {
        use ChunkState::*;
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

    fn end_size_line(&mut self) -> Result<ChunkState, ChunkFault> {
        self.size_digits = 0;
        self.extension_bytes = 0;
        Ok(if self.size == 0 { ChunkState::TrailerStart } else { ChunkState::Data })
    }

    fn after_trailer(&mut self, byte: u8) -> Result<ChunkState, ChunkFault> {
        let trailers = self.trailers.get_or_insert_default();
        trailers.line_bytes_sum += 1;
        if trailers.line_bytes_sum > usize::from(self.trailer_bytes_max)
            || trailers.fields.len() == usize::from(self.trailer_fields_max)
        {
            return Err(ChunkFault::TrailersTooLarge);
        }
        if byte == b'\r' {
            return Ok(ChunkState::TrailerLf);
        }
        if !is_field_value(&[byte]) {
            return Err(ChunkFault::Trailer);
        }
        trailers.line.push(byte);
        Ok(ChunkState::Trailer)
    }

    fn end_trailer_line(&mut self) -> Result<ChunkState, ChunkFault> {
        let trailers = self.trailers.get_or_insert_default();
        let colon = trailers.line.iter().position(|&byte| byte == b':').ok_or(ChunkFault::Trailer)?;
        let (name, value) = (&trailers.line[..colon], trailers.line[colon + 1..].trim_ascii());
        if !is_token(name) || is_forbidden_trailer(name) {
            return Err(ChunkFault::Trailer);
        }
        trailers.fields.push((name.to_vec(), value.to_vec()));
        trailers.line.clear();
        Ok(ChunkState::TrailerStart)
    }
}

/// Writes the size line of a chunk of `len` data bytes: `1a` and CRLF. An empty chunk would end the body.
pub fn chunk_head(len: usize, out: &mut Vec<u8>) {
    let digits = (usize::BITS - len.leading_zeros()).div_ceil(4).max(1);
    for digit in (0..digits).rev() {
        out.push(b"0123456789abcdef"[(len >> (4 * digit)) & 0xf]);
    }
    out.extend_from_slice(b"\r\n");
}

/// Fields that frame, route, authenticate or control a message: accepted in its head, never as trailers (RFC 9110
/// section 6.5.1).
const FORBIDDEN_TRAILERS: &[&str] = &[
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

/// Whether a field is read before the body, so that it must not follow it (RFC 9110, 6.5.1).
pub fn is_forbidden_trailer(name: &[u8]) -> bool {
    FORBIDDEN_TRAILERS.iter().any(|forbidden| name.eq_ignore_ascii_case(forbidden.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Fields = Vec<(Vec<u8>, Vec<u8>)>;

    /// A whole body: its data, its trailers, and its encoded length.
    type Body = (Vec<u8>, Fields, usize);

    /// Feeds `pieces` in order; `Ok(None)` if the body is incomplete after the last.
    fn decode<'b>(pieces: impl IntoIterator<Item = &'b [u8]>) -> Result<Option<Body>, ChunkFault> {
        let mut decoder = ChunkDecoder::new(ChunkLimits::default());
        let (mut data, mut taken_sum) = (Vec::new(), 0);
        for mut piece in pieces {
            loop {
                let (taken, event) = decoder.step(piece)?;
                taken_sum += taken;
                piece = &piece[taken..];
                match event {
                    ChunkEvent::Data(bytes) => {
                        assert!(!bytes.is_empty());
                        data.extend_from_slice(bytes);
                    }
                    ChunkEvent::NeedMore => {
                        assert!(piece.is_empty());
                        break;
                    }
                    ChunkEvent::End => return Ok(Some((data, decoder.take_trailers(), taken_sum))),
                }
            }
        }
        Ok(None)
    }

    fn decode_text(text: &str) -> Result<Option<Body>, ChunkFault> {
        decode([text.as_bytes()])
    }

    /// The simple decoder: the whole input at once, line by line.
    fn oracle(input: &[u8]) -> Option<Body> {
        let limits = ChunkLimits::default();
        let (mut data, mut trailers, mut surplus) = (Vec::new(), Fields::new(), 0);
        let mut rest = input;
        loop {
            let line = take_line(&mut rest)?;
            let digits = line.iter().position(|byte| *byte == b';').unwrap_or(line.len());
            let (digits, extensions) = line.split_at(digits);
            if digits.len() > 16 || !digits.iter().all(u8::is_ascii_hexdigit) {
                return None;
            }
            let size = u64::from_str_radix(std::str::from_utf8(digits).unwrap(), 16).ok()?;
            surplus += extensions.len();
            if extensions.len() > limits.extension_bytes_max
                || surplus > 16 << 10
                || !extensions_are_good(extensions)
            {
                return None;
            }
            if size == 0 {
                break;
            }
            let (chunk, behind) = rest.split_at_checked(usize::try_from(size).ok()?)?;
            surplus = surplus.saturating_sub(chunk.len());
            data.extend_from_slice(chunk);
            rest = behind.strip_prefix(b"\r\n")?;
        }
        let mut trailer_bytes = 0;
        loop {
            let line = take_line(&mut rest)?;
            if line.is_empty() {
                return Some((data, trailers, input.len() - rest.len()));
            }
            trailer_bytes += line.len() + 1;
            let colon = line.iter().position(|byte| *byte == b':')?;
            let (name, value) = (&line[..colon], &line[colon + 1..]);
            if !is_token(name) || is_forbidden_trailer(name) || value.iter().any(|byte| is_control(*byte)) {
                return None;
            }
            trailers.push((name.to_vec(), value.trim_ascii().to_vec()));
            if trailer_bytes > limits.trailer_bytes_max || trailers.len() > limits.trailer_fields_max {
                return None;
            }
        }
    }

    fn take_line<'b>(rest: &mut &'b [u8]) -> Option<&'b [u8]> {
        let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
        let line = &rest[..end];
        *rest = &rest[end + 2..];
        Some(line)
    }

    fn extensions_are_good(text: &[u8]) -> bool {
        let Some(text) = text.strip_prefix(b";") else { return text.is_empty() };
        let token_end = |text: &[u8]| text.iter().position(|byte| !is_token(&[*byte])).unwrap_or(text.len());
        let (name, rest) = text.split_at(token_end(text));
        if name.is_empty() {
            return false;
        }
        let Some(value) = rest.strip_prefix(b"=") else { return extensions_are_good(rest) };
        let Some(mut quoted) = value.strip_prefix(b"\"") else {
            let (value, rest) = value.split_at(token_end(value));
            return !value.is_empty() && extensions_are_good(rest);
        };
        loop {
            match quoted {
                [b'"', rest @ ..] => return extensions_are_good(rest),
                [b'\\', byte, rest @ ..] if !is_control(*byte) => quoted = rest,
                [byte, rest @ ..] if *byte != b'\\' && !is_control(*byte) => quoted = rest,
                _ => return false,
            }
        }
    }

    fn is_control(byte: u8) -> bool {
        (byte < 0x20 && byte != b'\t') || byte == 0x7f
    }

    const BODY: &str = "4\r\nWiki\r\n7;a;b=c;d=\"e\\\"; f\"\r\npedia i\r\n00B\r\nn \r\nchunks.\r\n0;last\r\n\
                        Digest: x=1 \t\r\nEmpty:\r\n\r\nGET / HTTP/1.1\r\n";

    #[test]
    fn a_usual_body() {
        let (data, trailers, taken) = decode_text(BODY).unwrap().unwrap();
        assert_eq!(data, b"Wikipedia in \r\nchunks.");
        let field = |name: &str, value: &str| (name.as_bytes().to_vec(), value.as_bytes().to_vec());
        assert_eq!(trailers, [field("Digest", "x=1"), field("Empty", "")]);
        assert_eq!(&BODY[taken..], "GET / HTTP/1.1\r\n");
        assert_eq!(decode_text("0\r\n\r\n"), Ok(Some((vec![], vec![], 5))));
        assert_eq!(decode_text("0000000000000000\r\n\r\n"), Ok(Some((vec![], vec![], 20))));
    }

    #[test]
    fn any_cut_gives_the_same() {
        let whole = decode_text(BODY).unwrap();
        let bytes = BODY.as_bytes();
        assert_eq!(decode(bytes.chunks(1)), Ok(whole.clone()));
        for first in 0..bytes.len() {
            for second in first..bytes.len() {
                let pieces = [&bytes[..first], &bytes[first..second], &bytes[second..]];
                assert_eq!(decode(pieces), Ok(whole.clone()), "{first} {second}");
            }
        }
    }

    #[test]
    fn a_prefix_goes_on() {
        let (_, _, taken) = decode_text(BODY).unwrap().unwrap();
        for end in 0..taken {
            assert_eq!(decode_text(&BODY[..end]), Ok(None), "{end}");
        }
        assert_eq!(decode_text("8000000000000000\r\n"), Ok(None));
    }

    #[test]
    fn no_bytes_after_the_end_are_consumed() {
        let mut decoder = ChunkDecoder::new(ChunkLimits::default());
        assert_eq!(decoder.step(b"0\r\n\r\nmore"), Ok((5, ChunkEvent::End)));
        assert_eq!(decoder.step(b"more"), Ok((0, ChunkEvent::End)));
        assert_eq!(decoder.step(b""), Ok((0, ChunkEvent::End)));
        assert!(decoder.take_trailers().is_empty());
    }

    #[test]
    fn bodies_that_are_refused() {
        use ChunkFault::*;
        for (text, expected) in [
            ("\r\n", Size),
            ("\n", Size),
            (" 5\r\n", Size),
            ("\t5\r\n", Size),
            ("5 \r\n", Size),
            ("5\t\r\n", Size),
            ("5 ;a\r\n", Size),
            ("+5\r\n", Size),
            ("-5\r\n", Size),
            ("-0\r\n\r\n", Size),
            ("0x5\r\n", Size),
            ("5_0\r\n", Size),
            ("5,\r\n", Size),
            ("g\r\n", Size),
            ("\u{661}\r\n", Size),
            ("\"5\"\r\n", Size),
            (";a\r\n", Size),
            ("5\n", Size),
            ("5\r5", Size),
            ("5\r\r\n", Size),
            ("5\0\r\n", Size),
            ("8000000000000001\r\n", Size),
            ("ffffffffffffffff\r\n", Size),
            ("00000000000000005\r\n", Size),
            ("10000000000000005\r\n", Size),
            ("5;\r\n", Extension),
            ("5;;a\r\n", Extension),
            ("5; a\r\n", Extension),
            ("5;a \r\n", Extension),
            ("5;a =b\r\n", Extension),
            ("5;a=\r\n", Extension),
            ("5;a= b\r\n", Extension),
            ("5;=b\r\n", Extension),
            ("5;a=b=c\r\n", Extension),
            ("5;a\n", Extension),
            ("5;\n", Extension),
            ("5;a\rb\r\n", Extension),
            ("5;a\r\r\n", Extension),
            ("5;a=\"\n\"\r\n", Extension),
            ("5;a=\"\r\n\"\r\n", Extension),
            ("5;a=\"\\\r\n\"\r\n", Extension),
            ("5;a=\"b\"c\r\n", Extension),
            ("5;a=\"b\0\"\r\n", Extension),
            ("5;a\u{e9}\r\n", Extension),
            ("5\r\nhello\n", DataEnd),
            ("5\r\nhello0\r\n\r\n", DataEnd),
            ("5\r\nhello\r0", DataEnd),
            ("5\r\nhello\r\r\n", DataEnd),
            ("5\r\nhello \r\n", DataEnd),
            ("5\r\nhello\r\n\r\n", Size),
            ("0\r\n\n", Trailer),
            ("0\r\n\rX", Trailer),
            ("0\r\nA\r\n", Trailer),
            ("0\r\n: b\r\n", Trailer),
            ("0\r\nA : b\r\n", Trailer),
            ("0\r\n A: b\r\n", Trailer),
            ("0\r\nA: b\n", Trailer),
            ("0\r\nA: b\rC", Trailer),
            ("0\r\nA: b\r\n c\r\n", Trailer),
            ("0\r\nA: b\0\r\n", Trailer),
            ("0\r\nA\u{e9}: b\r\n", Trailer),
            ("0\r\nGET / HTTP/1.1\r\n", Trailer),
            ("0\r\nContent-Length: 5\r\n", Trailer),
            ("0\r\ntransfer-encoding: chunked\r\n", Trailer),
            ("0\r\nHOST: a\r\n", Trailer),
            ("0\r\nConnection: close\r\n", Trailer),
            ("0\r\nTrailer: a\r\n", Trailer),
            ("0\r\nAuthorization: a\r\n", Trailer),
        ] {
            assert_eq!(decode_text(text), Err(expected), "{text:?}");
            assert_eq!(decode(text.as_bytes().chunks(1)), Err(expected), "{text:?} by the byte");
        }
    }

    #[test]
    fn limits_hold_to_the_byte() {
        let limits = ChunkLimits { extension_bytes_max: 4, trailer_bytes_max: 10, trailer_fields_max: 2 };
        let end =
            |text: &'static str| ChunkDecoder::new(limits).step(text.as_bytes()).map(|(_, event)| event);
        assert_eq!(end("0;abc\r\n\r\n"), Ok(ChunkEvent::End));
        assert_eq!(end("0;abcd\r\n\r\n"), Err(ChunkFault::Extension));
        assert_eq!(end("0\r\nA:b\r\nC:d\r\n\r\n"), Ok(ChunkEvent::End));
        assert_eq!(end("0\r\nA:b\r\nC:de\r\n\r\n"), Ok(ChunkEvent::End));
        assert_eq!(end("0\r\nA:b\r\nC:dfgh\r\n\r\n"), Err(ChunkFault::TrailersTooLarge));
        assert_eq!(end("0\r\nA:\r\nB:\r\nC:\r\n\r\n"), Err(ChunkFault::TrailersTooLarge));
        assert_eq!(ChunkFault::TrailersTooLarge.status(), Status::REQUEST_HEADER_FIELDS_TOO_LARGE);
        assert!(size_of::<ChunkDecoder>() <= 40);
    }

    #[test]
    fn extensions_must_not_outweigh_the_data() {
        let line = |data: usize| format!("{data:x};{}\r\n{}\r\n", "a".repeat(200), "d".repeat(data));
        assert_eq!(decode_text(&line(1).repeat(83)), Err(ChunkFault::Extension));
        let (data, ..) = decode_text(&(line(200).repeat(400) + "0\r\n\r\n")).unwrap().unwrap();
        assert_eq!(data.len(), 200 * 400);
    }

    #[test]
    fn size_lines_are_read_back() {
        for len in [1, 9, 10, 15, 16, 255, 256, 0x1a2b, usize::MAX] {
            let mut line = Vec::new();
            chunk_head(len, &mut line);
            assert_eq!(line, format!("{len:x}\r\n").as_bytes());
        }
        let mut line = Vec::new();
        chunk_head(0, &mut line);
        assert_eq!(line, b"0\r\n");
    }

    /// Mostly valid bodies: the grammar with some of the usual tricks.
    fn body() -> impl Strategy<Value = Vec<u8>> {
        let extensions = prop_oneof![
            6 => Just(String::new()),
            2 => "(;[a-z]{1,3}(=([a-z0-9]{1,3}|\"([a-z ;=]|\\\\[\"a])*\"))?){1,2}",
            1 => "[; =\"\\\\\r\na]{0,6}",
        ];
        let chunk = (proptest::collection::vec(any::<u8>(), 0..20), extensions, 0..6usize, any::<bool>());
        let line_ends = prop_oneof![12 => Just("\r\n"), 1 => Just("\n"), 1 => Just("\r"), 1 => Just("")];
        let trailer = prop_oneof![
            6 => "[A-Za-z-]{1,8}: ?[ -~\u{e9}]{0,8}\r\n",
            1 => "[ -~]{0,6}\r?\n",
            1 => Just("Host: a\r\n".to_owned()),
        ];
        let trailers = proptest::collection::vec(trailer, 0..3);
        (proptest::collection::vec((chunk, line_ends), 0..5), trailers, any::<bool>()).prop_map(
            |(chunks, trailers, ends)| {
                let mut out = Vec::new();
                for ((data, extensions, zeros, upper), line_end) in chunks {
                    let size = if upper { format!("{:X}", data.len()) } else { format!("{:x}", data.len()) };
                    out.extend_from_slice(format!("{}{size}{extensions}\r\n", "0".repeat(zeros)).as_bytes());
                    out.extend_from_slice(&data);
                    out.extend_from_slice(line_end.as_bytes());
                }
                out.extend_from_slice(b"0\r\n");
                trailers.iter().for_each(|line| out.extend_from_slice(line.as_bytes()));
                if ends {
                    out.extend_from_slice(b"\r\n");
                }
                out
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn agrees_with_the_simple_decoder(
            mut input in body(),
            edit in proptest::option::of((any::<prop::sample::Index>(), any::<u8>())),
            cut in any::<prop::sample::Index>(),
        ) {
            if let Some((at, byte)) = edit {
                let at = at.index(input.len());
                input[at] = byte;
            }
            let whole = decode([&input[..]]);
            prop_assert_eq!(&whole.clone().ok().flatten(), &oracle(&input));
            let (first, second) = input.split_at(cut.index(input.len()));
            prop_assert_eq!(&decode([first, second]), &whole);
            prop_assert_eq!(&decode(input.chunks(1)), &whole);
        }

        #[test]
        fn written_chunks_can_be_parsed(
            chunks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..300), 0..5),
        ) {
            let mut out = Vec::new();
            for chunk in &chunks {
                chunk_head(chunk.len(), &mut out);
                out.extend_from_slice(chunk);
                out.extend_from_slice(b"\r\n");
            }
            out.extend_from_slice(b"0\r\n\r\n");
            prop_assert_eq!(decode([&out[..]]), Ok(Some((chunks.concat(), vec![], out.len()))));
        }
    }
}
