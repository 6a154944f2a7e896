//! HPACK: how HTTP/2 compresses fields (RFC 7541).
//!
//! ```text
//! block ──> Decoder ──> lines `name: value` + CRLF, each of a known Kind ──> who puts a head together
//!              │  └── Table: the same lines, as the peer has asked to keep them
//!              └───── fixed, huffman, integer
//! ```
//!
//! A field is kept and handed on as a line of HTTP/1, because that is what heads are made of here
//! ([`Head`](crate::Head)). What must be known of it (that its name is well-formed, which name it is) is found out once,
//! when it is first spelled out, and kept with it: a request that refers to known fields costs copies and nothing else.
//!
//! The encoder has no table of its own, which the first block says. So it needs no memory, a peer cannot make it
//! work, and a response encoded once is good for every connection. It costs some tens of bytes a response.

mod decode;
mod encode;
mod fixed;
mod huffman;
mod integer;
mod kind;
mod table;

pub use decode::{BlockLimits, Decoded, Decoder, FLOOD_FACTOR, Fault, Sink, TABLE_BYTES};
pub use encode::{
    NO_TABLE, encode_authority, encode_field, encode_field_never_indexed, encode_lines, encode_method,
    encode_path, encode_scheme, encode_status,
};
pub use huffman::{decode as huffman_decode, encode as huffman_encode};
pub use kind::Kind;
