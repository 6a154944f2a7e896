//! How a request ended: what logs and metrics are made of.

use std::net::SocketAddr;

use flatout_wire::{Method, Status};

/// One request that is over. Times are nanoseconds of the monotonic clock.
#[derive(Debug, Clone, Copy)]
pub struct Ended<'a> {
    /// The method; [`Method::Other`] where the parser refused the request.
    pub method: Method,
    /// The decoded path in its normal form; empty where the parser refused the request.
    pub path: &'a [u8],
    /// The status of the response; `None` where none was begun.
    pub status: Option<Status>,
    /// Bytes of head and body that were read.
    pub received_bytes: u64,
    /// Bytes of head and body that were encoded for the client. Where the response was cut, fewer were sent.
    pub sent_bytes: u64,
    /// When the turn began in which its head was whole.
    pub began_ns: u64,
    /// When the first bytes of its response were handed to the kernel; `None` where there were none.
    pub first_byte_ns: Option<u64>,
    /// When it was over.
    pub ended_ns: u64,
    /// How it ended.
    pub outcome: Outcome,
    /// The client's address; `None` on a Unix socket.
    pub peer: Option<SocketAddr>,
    /// What [`Response::set_note`](crate::Response::set_note) was given.
    pub note: u64,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The kernel took the whole response.
    Sent,
    /// The client closed or reset the connection before that.
    ClientGone,
    /// The client was too slow.
    TimedOut,
    /// The parser or a limit of the server refused it; the response was sent.
    Refused,
    /// The response broke off: its body failed, or was not as long as declared.
    Failed,
    /// The connection left HTTP.
    Taken,
    /// The server ended first.
    Stopped,
}
