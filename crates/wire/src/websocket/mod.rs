//! WebSocket as bytes: the handshake, frames and messages, in both roles (RFC 6455), and the negotiation of
//! compression (RFC 7692).
//!
//! ```text
//! head ── UpgradeOffer::of ──> 101, or a refusal          bytes ── Reader::step ──> pieces of messages, ping, pong, close
//!                                                           write_frame ──> bytes
//! ```
//!
//! A [`Reader`] is about forty bytes without a buffer, and unmasks in place where the kernel put the bytes. Existing
//! crates were considered: `tungstenite` and `soketto` own a stream and buffers per connection, and `fastwebsockets`
//! needs an async runtime; here an idle subscriber must cost neither.

mod close;
mod extension;
mod frame;
mod handshake;
mod mask;
mod reader;
mod utf8;

pub use close::{CLOSE_REASON_BYTES_MAX, Close, close_payload};
pub use extension::{Deflate, TAIL};
pub use frame::{CONTROL_BYTES_MAX, HEADER_BYTES_MAX, Opcode, Role, write_frame, write_header};
pub use handshake::{KEY_BYTES, UpgradeOffer, UpgradeRefusal, accept_key};
pub use mask::mask;
pub use reader::{FrameFault, MessageKind, MessageLimits, Reader, ReaderEvent};
pub use utf8::{NotUtf8, Utf8};
