//! Compression of responses while they are sent. Files are compressed beforehand ([`files`](crate::files)).
//!
//! ```text
//! response's head ── rules: type, length, what it says itself ──> Verdict ── client's Accept-Encoding ──> Encoder
//!                                                                                       body's pieces ──^ └──> pieces
//! ```
//!
//! [`Rules`] decide from heads alone whether a response is compressed and what its head says then. An [`Encoder`] takes the body
//! piece by piece, and gives out after each piece all that the client needs to read it.

mod encoder;
mod rules;

pub(crate) use encoder::Encoder;
pub use rules::{Compress, Level};
pub(crate) use rules::{Rules, Verdict};
