//! HTTP/2 conversations without I/O (RFC 9113): bytes in, events out; what the application says in, bytes to send out.
//!
//! ```text
//!            bytes ──> receive ──> frames ──> blocks (HPACK) ──> Request, Answer, Interim, End
//!                                        ├──> content ─────────> Data, End             per stream
//!  peer                                  └──> control ─────────> Reset, Room, GoAway             application
//!            bytes <── out <────── head, data, trailers, reset, credit <──────────────
//! ```
//!
//! [`Connection`] holds one connection, in a server's or a client's role. It knows no socket, no clock and no task. What it keeps of
//! a stream is one entry of a bounded table; bodies pass through and are never kept, neither way. Heads come in the form that HTTP/1 has
//! ([`Head`](crate::Head)), so that a service does not see which version was spoken.
//!
//! A peer is held to [`Limits`] and [`Budgets`](Limits): what costs us work or memory and brings nothing is counted, and whoever
//! spends it is sent GOAWAY with ENHANCE_YOUR_CALM. Budgets fill again with what is served, and once a second by
//! [`Connection::refill`], which the caller's clock calls.
//!
//! What is malformed within one stream resets that stream; what leaves unclear what comes next ends the connection.

mod blocks;
mod budget;
mod connection;
mod content;
mod control;
mod event;
mod frame;
mod head;
pub mod hpack;
mod limits;
mod priority;
mod receive;
mod send;
mod streams;

pub use connection::Connection;
pub use event::{Event, Fault, StreamId};
pub use frame::{Code, FRAME_HEAD_BYTES, PAYLOAD_BYTES_MAX, PREFACE};
pub use head::{AnswerHead, Room};
pub use limits::{
    BLOCK_FRAMES_MAX, INTERIM_ANSWERS_MAX, Limits, RESETS_REMEMBERED, SETTINGS_MAX, STREAMS_MAX_CEILING,
    TINY_DATA_BYTES,
};
pub use priority::Priority;
pub use send::Asking;
