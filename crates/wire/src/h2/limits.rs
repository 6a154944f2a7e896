//! The ceilings of one connection: each names the attack that it ends.

use crate::head::HeadLimits;

/// What a peer may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Of each head; `head_bytes_max` counts names, values and 32 for each field (CVE-2016-6581, CVE-2019-9516, CVE-2026-49975).
    pub head: HeadLimits,
    /// Streams at a time: each counts until the application has let go of it, also where it was reset (CVE-2023-44487).
    pub streams_max: u32,
    /// Bytes of a request's body that may come before the application has taken any: memory for each stream.
    pub stream_window: u32,
    /// The same for all streams together: memory for each connection (CVE-2019-9517).
    pub connection_window: u32,
    /// Streams that may be reset, by either side, beyond those that were served (CVE-2019-9514, CVE-2023-44487, CVE-2025-8671).
    pub resets_max: u32,
    /// Frames that may bring nothing: PING, SETTINGS, PRIORITY, unknown ones, empty or padded DATA, windows opened by a little
    /// (CVE-2019-9512, 9513, 9515, 9518, CVE-2019-9511).
    pub idle_frames_max: u32,
    /// WebSockets are taken: extended CONNECT is allowed (RFC 8441).
    pub connect_protocol: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            head: HeadLimits::default(),
            streams_max: 128,
            stream_window: 64 << 10,
            connection_window: 256 << 10,
            resets_max: 200,
            idle_frames_max: 1000,
            connect_protocol: false,
        }
    }
}

/// No connection has more streams, whatever is configured: the table is looked through where a window changes for all.
pub const STREAMS_MAX_CEILING: u32 = 1024;

/// Frames of one field block (CVE-2024-27316, CVE-2026-33871): all of it fits two.
pub const BLOCK_FRAMES_MAX: u32 = 16;

/// How much longer than the head that it makes a block may be: text without Huffman code, and what is over the limit and
/// only read to keep the table in step.
pub(super) const BLOCK_BYTES_FACTOR: usize = 2;

/// Entries of one SETTINGS frame (CVE-2020-11080).
pub const SETTINGS_MAX: usize = 32;

/// Bytes of a PRIORITY_UPDATE; a longer one is not looked at.
pub(super) const PRIORITY_BYTES_MAX: usize = 256;

/// DATA with less than this, and not the last of its stream, brings next to nothing (CVE-2019-9518). The smallest message of
/// gRPC is as long.
pub const TINY_DATA_BYTES: usize = 5;

/// DATA of ours that is cut shorter than this because of the peer's window is counted: the peer opens it by a little.
pub(super) const CUT_DATA_BYTES: usize = 64;

/// What one frame of ours with content, or one stream that is served, gives back to the budget of frames: the peer opens
/// the windows of stream and connection behind it.
pub(super) const FRAMES_REFUNDED: u32 = 3;

/// What a change of the first window costs in frames: it goes over all streams.
pub(super) const WINDOW_CHANGE_FRAMES: u32 = 10;

/// Streams that were reset and whose frames may still be on their way: they are passed over, not answered.
pub const RESETS_REMEMBERED: usize = 256;

/// Interim responses to one request.
pub const INTERIM_ANSWERS_MAX: u8 = 32;

/// Streams that a client opens at a time before its server has said how many it takes (RFC 9113 section 6.5.2 recommends no fewer
/// than 100).
pub(super) const STREAMS_FIRST: u32 = 100;
