//! The head of a frame (RFC 6455 section 5.2).
//!
//! ```text
//! ┌ FIN, RSV1-3, opcode ┬ MASK, length ┬ 2 or 8 bytes of length ┬ 4 bytes of mask ┐
//! ```

use super::mask::mask;
use super::reader::FrameFault;

/// Longest frame header in bytes.
pub const HEADER_BYTES_MAX: usize = 14;

/// Longest payload of a control frame in bytes.
pub const CONTROL_BYTES_MAX: usize = 125;

/// Our side of a connection. A client masks what it sends, a server does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It accepted the connection.
    Server,
    /// It opened the connection.
    Client,
}

/// The type of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opcode {
    /// Continues the last message.
    Continuation,
    /// A text message, or its start.
    Text,
    /// A binary message, or its start.
    Binary,
    /// Closes the connection.
    Close,
    /// Asks for a pong with the same payload.
    Ping,
    /// The response to a ping.
    Pong,
}

impl Opcode {
    pub(super) fn of(bits: u8) -> Option<Opcode> {
        Some(match bits {
            0x0 => Opcode::Continuation,
            0x1 => Opcode::Text,
            0x2 => Opcode::Binary,
            0x8 => Opcode::Close,
            0x9 => Opcode::Ping,
            0xa => Opcode::Pong,
            _ => return None,
        })
    }

    fn bits(self) -> u8 {
        match self {
            Opcode::Continuation => 0x0,
            Opcode::Text => 0x1,
            Opcode::Binary => 0x2,
            Opcode::Close => 0x8,
            Opcode::Ping => 0x9,
            Opcode::Pong => 0xa,
        }
    }

    pub(super) fn is_control(self) -> bool {
        matches!(self, Opcode::Close | Opcode::Ping | Opcode::Pong)
    }
}

/// The header of one frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FrameHeader {
    pub(super) is_last: bool,
    pub(super) is_compressed: bool,
    pub(super) opcode: Opcode,
    pub(super) mask: Option<[u8; 4]>,
    pub(super) payload_bytes: u64,
    /// Bytes of the header itself.
    pub(super) bytes: usize,
}

impl FrameHeader {
    /// Parses the header at the start of `bytes`; `None` if it is incomplete. Faults in the first two bytes are
    /// reported early.
    pub(super) fn parse(
        bytes: &[u8],
        role: Role,
        may_compress: bool,
    ) -> Result<Option<FrameHeader>, FrameFault> {
        let &[first, second, ref rest @ ..] = bytes else {
            // The first byte alone can already be invalid.
            return match bytes.first() {
                Some(&first) => first_byte(first, may_compress).map(|_| None),
                None => Ok(None),
            };
        };
        let (opcode, is_last, is_compressed) = first_byte(first, may_compress)?;
        let is_masked = second & 0x80 != 0;
        match (role, is_masked) {
            (Role::Server, false) => return Err(FrameFault::Unmasked),
            (Role::Client, true) => return Err(FrameFault::Masked),
            _ => {}
        }
        let short = second & 0x7f;
        if opcode.is_control() && usize::from(short) > CONTROL_BYTES_MAX {
            return Err(FrameFault::ControlTooLong);
        }
        let (payload_bytes, rest, length_bytes) = match (short, rest) {
            (126, &[a, b, ref rest @ ..]) => {
                let bytes = u64::from(u16::from_be_bytes([a, b]));
                (bytes, rest, 2)
            }
            (127, &[a, b, c, d, e, f, g, h, ref rest @ ..]) => {
                let bytes = u64::from_be_bytes([a, b, c, d, e, f, g, h]);
                (bytes, rest, 8)
            }
            (126 | 127, _) => return Ok(None),
            (short, rest) => (u64::from(short), rest, 0),
        };
        let is_minimal = match length_bytes {
            2 => payload_bytes > 125,
            8 => payload_bytes > u64::from(u16::MAX) && payload_bytes >> 63 == 0,
            _ => true,
        };
        if !is_minimal {
            return Err(FrameFault::Length);
        }
        let mask = match (is_masked, rest) {
            (false, _) => None,
            (true, &[a, b, c, d, ..]) => Some([a, b, c, d]),
            (true, _) => return Ok(None),
        };
        let bytes = 2 + length_bytes + if is_masked { 4 } else { 0 };
        Ok(Some(FrameHeader { is_last, is_compressed, opcode, mask, payload_bytes, bytes }))
    }
}

fn first_byte(first: u8, may_compress: bool) -> Result<(Opcode, bool, bool), FrameFault> {
    let is_last = first & 0x80 != 0;
    let is_compressed = first & 0x40 != 0;
    let opcode = Opcode::of(first & 0x0f).ok_or(FrameFault::Opcode)?;
    // RSV1 marks compression, on the first frame of a message (RFC 7692 section 6).
    let may_compress = may_compress && matches!(opcode, Opcode::Text | Opcode::Binary);
    if first & 0x30 != 0 || (is_compressed && !may_compress) {
        return Err(FrameFault::Reserved);
    }
    if opcode.is_control() && !is_last {
        return Err(FrameFault::ControlFragmented);
    }
    Ok((opcode, is_last, is_compressed))
}

/// Writes the header of an unfragmented frame with `payload_bytes` of payload.
pub fn write_header(
    opcode: Opcode,
    is_compressed: bool,
    payload_bytes: usize,
    key: Option<[u8; 4]>,
    out: &mut Vec<u8>,
) {
    out.push(0x80 | if is_compressed { 0x40 } else { 0 } | opcode.bits());
    let masked = if key.is_some() { 0x80 } else { 0 };
    match (u8::try_from(payload_bytes), u16::try_from(payload_bytes)) {
        (Ok(bytes @ 0..=125), _) => out.push(masked | bytes),
        (_, Ok(bytes)) => {
            out.push(masked | 126);
            out.extend_from_slice(&bytes.to_be_bytes());
        }
        _ => {
            out.push(masked | 127);
            out.extend_from_slice(&(payload_bytes as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(key.as_ref().map_or(&[], |key| key));
}

/// Writes a whole frame. A client passes an unpredictable `key` of four bytes, a server none.
pub fn write_frame(
    opcode: Opcode,
    is_compressed: bool,
    payload: &[u8],
    key: Option<[u8; 4]>,
    out: &mut Vec<u8>,
) {
    out.reserve(HEADER_BYTES_MAX + payload.len());
    write_header(opcode, is_compressed, payload.len(), key, out);
    let at = out.len();
    out.extend_from_slice(payload);
    if let Some(key) = key {
        mask(out.get_mut(at..).unwrap_or_default(), key, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_written_as_short_as_they_can_be_and_read_back() {
        for bytes in [0, 1, 125, 126, 127, 65_535, 65_536, 1 << 20] {
            for key in [None, Some([1, 2, 3, 4])] {
                let role = if key.is_some() { Role::Server } else { Role::Client };
                let mut out = Vec::new();
                write_header(Opcode::Binary, false, bytes, key, &mut out);
                for cut in 0..out.len() {
                    assert_eq!(FrameHeader::parse(&out[..cut], role, false), Ok(None), "{bytes} {cut}");
                }
                let header = FrameHeader::parse(&out, role, false).unwrap().unwrap();
                assert_eq!((header.payload_bytes, header.bytes, header.mask), (bytes as u64, out.len(), key));
            }
        }
    }

    #[test]
    fn invalid_frame_headers_are_refused() {
        let server = |bytes: &[u8]| FrameHeader::parse(bytes, Role::Server, false);
        for opcode in [3, 4, 5, 6, 7, 0xb, 0xc, 0xd, 0xe, 0xf] {
            assert_eq!(server(&[0x80 | opcode]), Err(FrameFault::Opcode));
        }
        for reserved in [0xc1, 0xa1, 0x91, 0xf1, 0xc9] {
            assert_eq!(server(&[reserved]), Err(FrameFault::Reserved));
        }
        assert_eq!(server(&[0x09, 0x80]), Err(FrameFault::ControlFragmented));
        assert_eq!(server(&[0x89, 0x80 | 126]), Err(FrameFault::ControlTooLong));
        assert_eq!(server(&[0x81, 0x01]), Err(FrameFault::Unmasked));
        assert_eq!(FrameHeader::parse(&[0x81, 0x81], Role::Client, false), Err(FrameFault::Masked));
        assert_eq!(server(&[0x82, 0xfe, 0, 125]), Err(FrameFault::Length));
        assert_eq!(server(&[0x82, 0xff, 0, 0, 0, 0, 0, 0, 0xff, 0xff]), Err(FrameFault::Length));
        assert_eq!(server(&[0x82, 0xff, 0x80, 0, 0, 0, 0, 0, 0, 0]), Err(FrameFault::Length));
    }

    #[test]
    fn the_bit_of_compression_stands_where_it_may() {
        let read = |first| FrameHeader::parse(&[first, 0x80, 0, 0, 0, 0], Role::Server, true);
        assert!(read(0xc1).unwrap().unwrap().is_compressed);
        for first in [0xc0, 0xc8, 0xc9, 0xca] {
            assert_eq!(read(first), Err(FrameFault::Reserved));
        }
    }
}
