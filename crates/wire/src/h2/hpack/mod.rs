//! HPACK: how HTTP/2 compresses fields (RFC 7541).
//!
//! ```text
//! block ──> Decoder ──> lines `name: value` + CRLF, each of a known FieldKind ──> who puts a head together
//!              │  └── Table: the same lines, as the peer has asked to keep them
//!              └───── fixed, huffman, integer
//! ```
//!
//! A field is stored and passed on as an HTTP/1 line, because heads consist of those here ([`Head`](crate::Head)).
//! Its properties (whether its name is valid, and which name it is) are determined once, when the field first
//! appears, and stored with it: a request that refers to known fields costs only copies.
//!
//! The encoder has no dynamic table, which the first block announces. So it needs no memory, a peer cannot make it
//! work, and an encoded response can be used on every connection. The cost is some tens of bytes per response.

mod decode;
mod encode;
mod fixed;
mod huffman;
mod integer;
mod kind;
mod table;

pub use decode::{BlockFault, BlockLimits, Decoded, Decoder, FLOOD_FACTOR, Sink, TABLE_BYTES};
pub use encode::{
    NO_TABLE, encode_authority, encode_field, encode_field_never_indexed, encode_lines, encode_method,
    encode_path, encode_scheme, encode_status,
};
pub use huffman::{decode as huffman_decode, encode as huffman_encode};
pub use kind::FieldKind;
