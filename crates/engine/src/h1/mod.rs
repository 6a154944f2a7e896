//! HTTP/1 on one connection: bytes from its transport through the state machine to the service, and back.
//!
//! ```text
//! receive ──> read buffer ──> consume ── head | body ──> service ──> Output ── leave | flush ──> transport
//!                 ^              │ what is left of it                  ^
//!                 └─ Work::held <┘            exchange's outbox ── attend
//! ```
//!
//! Bytes are parsed where the kernel put them: a connection owns a buffer only for an incomplete part of a request.
//! `wire::h1` knows the protocol; this module acts on its events.

mod bodies;
mod deadlines;
mod input;
mod output;
mod requests;
mod responses;

pub(crate) use bodies::feed_starved;
pub(crate) use deadlines::expire;
pub(crate) use input::{pump, read_on, resume, serve_slice, wants_input};
pub(crate) use output::continue_after_sending;
pub(crate) use responses::attend;

/// The result of one step of parsing.
enum Step {
    /// Nothing can be done with the bytes now.
    Partial,
    /// This many were used.
    Used(usize),
    /// They are the start of an HTTP/2 connection.
    Http2,
}
