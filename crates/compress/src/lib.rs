//! Compression of responses while they are sent. Files (`files`) and stored responses (`cache`) are
//! compressed in advance.
//!
//! ```text
//! response's head ── rules: type, length, what it says itself ──> Verdict ── client's Accept-Encoding ──> Encoder
//!                                                                                       body's pieces ──^ └──> pieces
//! ```
//!
//! `rules` decides by the heads alone whether a response is compressed, and changes its head. An encoder takes the
//! body in pieces; after each piece the client can decode all of the input so far. A pushed body passes through it as
//! a [`Filter`](flatout_engine::Filter).
#![forbid(unsafe_code)]
// The data path: data from a client, a file or a plan must not crash a worker.
#![warn(clippy::unwrap_used, clippy::expect_used)]

mod advance;
mod decode;
mod encoder;
mod filter;
mod rules;

pub use advance::{compressed, give_way};
pub use rules::Rules;
pub use rules::{Compress, Level};
