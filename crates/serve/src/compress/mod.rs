//! Compression of responses while they are sent. Files ([`files`](crate::files)) and stored responses ([`cache`](crate::cache)) are
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

mod advance;
mod encoder;
mod filter;
mod rules;

pub(crate) use advance::{compressed, give_way};
pub(crate) use rules::Rules;
pub use rules::{Compress, Level};
