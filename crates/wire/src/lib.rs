//! Bytes to HTTP semantics and back, without I/O and without a clock (RFC 9110, 9112, 3986).
//!
//! Nothing here knows sockets, files, clocks or threads: bytes and times are arguments, decisions are return values.
//! Parsing is strict: anything that two parsers could read differently is rejected.
//!
//! ```
//! use flatout_wire::Method;
//! use flatout_wire::head::{HeadLimits, parse};
//!
//! let received = b"GET /items?page=2 HTTP/1.1\r\nHost: example.org\r\n\r\n";
//! let mut fields = Vec::new();
//! let Ok(Some(head)) = parse(received, &mut fields, &HeadLimits::default()) else { panic!("refused, or not whole") };
//! assert_eq!((head.method, head.path()), (Method::Get, &b"/items"[..]));
//! assert_eq!(head.field("host"), Some(&b"example.org"[..]));
//! ```
#![forbid(unsafe_code)]
// The data path: what a client, a file or a plan brings must not end a worker.
#![warn(clippy::unwrap_used, clippy::expect_used)]

pub mod accept;
pub mod answer;
pub mod cache;
pub mod chunk;
pub mod condition;
pub mod date;
pub mod fastcgi;
pub mod field;
mod framing;
pub mod h1;
pub mod h2;
pub mod head;
pub mod method;
pub mod proxy_protocol;
pub mod range;
pub mod scgi;
pub mod status;
pub mod target;
pub mod uwsgi;
pub mod websocket;

pub use head::{Fault, Framing, Head, Version, is_authority};
pub use method::Method;
pub use status::Status;
