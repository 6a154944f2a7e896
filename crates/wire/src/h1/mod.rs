//! HTTP/1 state machines without I/O: bytes in, events out; the application's messages in, bytes to send out.
//!
//! ```text
//!            bytes ──> head / body ──> Head, data, end            one enum of states,
//!  peer                                              application  the same framing code
//!            bytes <── respond / data / end <── status, length    in both roles
//! ```
//!
//! [`Server`] and [`Client`] each represent one connection as one enum, so that impossible states cannot be
//! expressed. Neither knows sockets, clocks or tasks, and neither allocates, except for the decoder of a chunked body
//! and for the rare message that is read and written at the same time. A call that its state does not allow (an empty
//! cell in the table of the states) is a bug of the caller: it panics in tests, and in a release build ends the
//! connection.

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
