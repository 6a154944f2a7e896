//! Frames (RFC 9113 sections 4, 6): heads, types, and codes.

/// The size of a frame's head.
pub const FRAME_HEAD_BYTES: usize = 9;

/// The largest payload that we accept, and that every peer accepts: the initial value and the minimum of
/// SETTINGS_MAX_FRAME_SIZE.
pub const PAYLOAD_BYTES_MAX: usize = 16_384;

/// The largest payload that a peer may allow.
pub(super) const PAYLOAD_BYTES_CEILING: u32 = (1 << 24) - 1;

/// The client's first bytes, before its frames.
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The largest window, and the largest increment.
pub(super) const WINDOW_MAX: i64 = (1 << 31) - 1;

/// The initial window of streams and of the connection.
pub(super) const WINDOW_FIRST: i32 = 65_535;

/// Types of frames.
pub(super) mod kind {
    pub(in crate::h2) const DATA: u8 = 0;
    pub(in crate::h2) const HEADERS: u8 = 1;
    pub(in crate::h2) const PRIORITY: u8 = 2;
    pub(in crate::h2) const RST_STREAM: u8 = 3;
    pub(in crate::h2) const SETTINGS: u8 = 4;
    pub(in crate::h2) const PUSH_PROMISE: u8 = 5;
    pub(in crate::h2) const PING: u8 = 6;
    pub(in crate::h2) const GOAWAY: u8 = 7;
    pub(in crate::h2) const WINDOW_UPDATE: u8 = 8;
    pub(in crate::h2) const CONTINUATION: u8 = 9;
    /// RFC 9218 section 7.1
    pub(in crate::h2) const PRIORITY_UPDATE: u8 = 0x10;
}

/// Flags of frames.
pub(super) mod flag {
    pub(in crate::h2) const END_STREAM: u8 = 1;
    /// Of SETTINGS and PING.
    pub(in crate::h2) const ACK: u8 = 1;
    pub(in crate::h2) const END_HEADERS: u8 = 4;
    pub(in crate::h2) const PADDED: u8 = 8;
    pub(in crate::h2) const PRIORITY: u8 = 0x20;
}

/// Identifiers of settings.
pub(super) mod setting {
    pub(in crate::h2) const HEADER_TABLE_SIZE: u16 = 1;
    pub(in crate::h2) const ENABLE_PUSH: u16 = 2;
    pub(in crate::h2) const MAX_CONCURRENT_STREAMS: u16 = 3;
    pub(in crate::h2) const INITIAL_WINDOW_SIZE: u16 = 4;
    pub(in crate::h2) const MAX_FRAME_SIZE: u16 = 5;
    pub(in crate::h2) const MAX_HEADER_LIST_SIZE: u16 = 6;
    /// RFC 8441 section 3
    pub(in crate::h2) const ENABLE_CONNECT_PROTOCOL: u16 = 8;
    /// RFC 9218 section 2.1
    pub(in crate::h2) const NO_RFC7540_PRIORITIES: u16 = 9;
}

/// Why a stream or a connection ends (RFC 9113 section 7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Code(pub u32);

#[allow(missing_docs)]
impl Code {
    pub const NO_ERROR: Code = Code(0);
    pub const PROTOCOL_ERROR: Code = Code(1);
    pub const INTERNAL_ERROR: Code = Code(2);
    pub const FLOW_CONTROL_ERROR: Code = Code(3);
    pub const SETTINGS_TIMEOUT: Code = Code(4);
    pub const STREAM_CLOSED: Code = Code(5);
    pub const FRAME_SIZE_ERROR: Code = Code(6);
    pub const REFUSED_STREAM: Code = Code(7);
    pub const CANCEL: Code = Code(8);
    pub const COMPRESSION_ERROR: Code = Code(9);
    pub const CONNECT_ERROR: Code = Code(10);
    pub const ENHANCE_YOUR_CALM: Code = Code(11);
    pub const HTTP_1_1_REQUIRED: Code = Code(13);
}

/// The head of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FrameHead {
    pub(super) bytes: usize,
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: u32,
}

impl FrameHead {
    /// Parses the head at the start of `bytes`, and returns it with the rest.
    #[inline]
    pub(super) fn read(bytes: &[u8]) -> Option<(FrameHead, &[u8])> {
        let (&[a, b, c, kind, flags, s0, s1, s2, s3], payload) = bytes.split_first_chunk()?;
        let length = u32::from_be_bytes([0, a, b, c]);
        // The reserved bit is ignored (section 4.1).
        let stream = u32::from_be_bytes([s0, s1, s2, s3]) & 0x7fff_ffff;
        Some((FrameHead { bytes: length as usize, kind, flags, stream }, payload))
    }

    pub(super) fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// Writes the head of a frame.
#[inline]
pub(super) fn write_head(bytes: usize, kind: u8, flags: u8, stream: u32, out: &mut Vec<u8>) {
    let [_, a, b, c] = (bytes as u32).to_be_bytes();
    let [s0, s1, s2, s3] = stream.to_be_bytes();
    out.extend_from_slice(&[a, b, c, kind, flags, s0, s1, s2, s3]);
}

pub(super) fn write_reset(stream: u32, code: Code, out: &mut Vec<u8>) {
    write_head(4, kind::RST_STREAM, 0, stream, out);
    out.extend_from_slice(&code.0.to_be_bytes());
}

pub(super) fn write_window_update(stream: u32, step: u32, out: &mut Vec<u8>) {
    write_head(4, kind::WINDOW_UPDATE, 0, stream, out);
    out.extend_from_slice(&step.to_be_bytes());
}

pub(super) fn write_goaway(last_stream: u32, code: Code, reason: &str, out: &mut Vec<u8>) {
    write_head(8 + reason.len(), kind::GOAWAY, 0, 0, out);
    out.extend_from_slice(&last_stream.to_be_bytes());
    out.extend_from_slice(&code.0.to_be_bytes());
    out.extend_from_slice(reason.as_bytes());
}

pub(super) fn write_ping(flags: u8, opaque: &[u8; 8], out: &mut Vec<u8>) {
    write_head(8, kind::PING, flags, 0, out);
    out.extend_from_slice(opaque);
}

pub(super) fn write_settings(settings: &[(u16, u32)], out: &mut Vec<u8>) {
    write_head(settings.len() * 6, kind::SETTINGS, 0, 0, out);
    for (name, value) in settings {
        out.extend_from_slice(&name.to_be_bytes());
        out.extend_from_slice(&value.to_be_bytes());
    }
}

/// The four bytes at the start of `bytes` as a number.
#[inline]
pub(super) fn read_u32(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|chunk| u32::from_be_bytes(*chunk))
}
