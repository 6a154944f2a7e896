//! HTTP/2 without I/O (RFC 9113): received bytes become events, and the application's messages become bytes to send.
//!
//! ```text
//!            bytes ──> receive ──> frames ──> blocks (HPACK) ──> Request, Answer, Interim, End
//!                                        ├──> content ─────────> Data, End             per stream
//!  peer                                  └──> control ─────────> Reset, Room, GoAway             application
//!            bytes <── out <────── head, data, trailers, reset, credit <──────────────
//! ```
//!
//! [`Connection`] is one connection, as a server or a client. It knows no socket, no clock and no task. For each
//! stream it keeps one entry of a bounded table; bodies pass through and are never stored, in either direction. Heads
//! have the same form as in HTTP/1 ([`Head`](crate::Head)), so a service does not see the version.
//!
//! A peer must keep to its [`Limits`] and [`Budgets`](Limits): useless frames that cost us work or memory are
//! counted, and a peer that exceeds its budget gets GOAWAY with ENHANCE_YOUR_CALM. Served requests refill the
//! budgets, and [`Connection::refill`] does once a second, called by the caller's timer.
//!
//! An error within a stream resets that stream; an error that makes the following bytes ambiguous ends the
//! connection.

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
pub use event::{ConnectionFault, Event, StreamId};
pub use frame::{Code, FRAME_HEAD_BYTES, PAYLOAD_BYTES_MAX, PREFACE};
pub use head::{AnswerHead, Room};
pub use limits::{
    BLOCK_FRAMES_MAX, INTERIM_ANSWERS_MAX, Limits, RESETS_REMEMBERED, SETTINGS_MAX, STREAMS_MAX_CEILING,
    TINY_DATA_BYTES,
};
pub use priority::Priority;
pub use send::Asking;
