//! The limits of a connection, each with the attacks that it stops.

use crate::head::HeadLimits;

/// The limits for a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Of each head; `head_bytes_max` counts names, values and 32 for each field (CVE-2016-6581, CVE-2019-9516, CVE-2026-49975).
    pub head: HeadLimits,
    /// Concurrent streams: each counts until the application has released it, even after a reset (CVE-2023-44487).
    pub streams_max: u32,
    /// Bytes of a request's body received before the application has consumed any: memory for each stream.
    pub stream_window: u32,
    /// The same for all streams together: memory for each connection (CVE-2019-9517).
    pub connection_window: u32,
    /// Streams that may be reset, by either side, in excess of those served (CVE-2019-9514, CVE-2023-44487,
    /// CVE-2025-8671).
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

/// The highest possible stream limit, because a change of the initial window visits the whole table.
pub const STREAMS_MAX_CEILING: u32 = 1024;

/// Frames of one field block (CVE-2024-27316, CVE-2026-33871): a complete block fits in two.
pub const BLOCK_FRAMES_MAX: u32 = 16;

/// The maximum ratio of a block to its head: text without Huffman code, and fields over the limit that are decoded
/// only to keep the table in sync.
pub(super) const BLOCK_BYTES_FACTOR: usize = 2;

/// Entries of one SETTINGS frame (CVE-2020-11080).
pub const SETTINGS_MAX: usize = 32;

/// The limit of a PRIORITY_UPDATE; a longer one is ignored.
pub(super) const PRIORITY_BYTES_MAX: usize = 256;

/// DATA shorter than this counts as useless, unless it is the last of its stream (CVE-2019-9518). The smallest gRPC
/// message has this length.
pub const TINY_DATA_BYTES: usize = 5;

/// A DATA frame of ours is counted if the peer's window makes it shorter than this: then the peer sends small window
/// updates.
pub(super) const CUT_DATA_BYTES: usize = 64;

/// The frames returned to the budget for each DATA frame of ours, or for each served stream: the peer sends window
/// updates for stream and connection after it.
pub(super) const FRAMES_REFUNDED: u32 = 3;

/// The cost of a change of the initial window in frames, because it visits all streams.
pub(super) const WINDOW_CHANGE_FRAMES: u32 = 10;

/// Reset streams whose frames may still arrive: these are ignored.
pub const RESETS_REMEMBERED: usize = 256;

/// Interim responses to one request.
pub const INTERIM_ANSWERS_MAX: u8 = 32;

/// Streams that a client opens at a time before it knows the server's limit (RFC 9113 section 6.5.2 recommends at
/// least 100).
pub(super) const STREAMS_FIRST: u32 = 100;
