//! HTTP/1 conversations without I/O: bytes in, events out; what the application says in, bytes to send out.
//!
//! ```text
//!            bytes ──> head / body ──> Head, data, end            one enum of states,
//!  peer                                              application  the same framing code
//!            bytes <── respond / data / end <── status, length    in both roles
//! ```
//!
//! [`Server`] and [`Client`] each hold one connection's conversation as one enum, in which what cannot be cannot be
//! written. Neither knows a socket, a clock or a task, and neither allocates, but for the decoder of a chunked body and
//! for the rare message that is read and written at the same time. A call that its state does not allow (an empty place
//! in the table beside the states) is a defect of the caller: it panics in tests, and in a release build ends the
//! conversation.

mod client;
mod event;
mod incoming;
mod outgoing;
mod server;

pub use client::{Client, INTERIM_ANSWERS_MAX};
pub use event::{AnswerEvent, ClientFault, Sent};
pub use incoming::{Incoming, Piece, Trailers};
pub use outgoing::{Length, Misfit, Outgoing};
pub use server::{DISCARD_BYTES_MAX, Next, Refusal, Server, Wants, write_status_line};
