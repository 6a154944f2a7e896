//! How a request began and ended: what logs and metrics are made of.

use std::net::SocketAddr;

use flatout_wire::{Head, Status};

/// A request whose head has come, or bytes that the parser refused. What is here is gone when the request ends: a service
/// keeps what it needs of it, and says by what number it finds it again.
#[derive(Debug, Clone, Copy)]
pub struct Begun<'a> {
    /// The head; `None` where the parser refused the bytes.
    pub head: Option<&'a Head<'a>>,
    /// The bytes that were refused, as far as they had come; empty where there is a head.
    pub refused: &'a [u8],
    /// The client's address; `None` on a Unix socket.
    pub peer: Option<SocketAddr>,
}

/// One request that has ended. Times are nanoseconds of the monotonic clock; they are read once a stage, so a time may be
/// late by what the other connections of the stage have taken.
#[derive(Debug, Clone, Copy)]
pub struct Ended {
    /// The status of the response; `None` where none was begun.
    pub status: Option<Status>,
    /// Bytes of head and body that were read.
    pub received_bytes: u64,
    /// Bytes of head and body that were encoded for the client. Where the response was cut, fewer were sent.
    pub sent_bytes: u64,
    /// How many of them are the head.
    pub sent_head_bytes: u32,
    /// When the stage began in which its head was whole.
    pub began_ns: u64,
    /// When the first bytes of its response were handed to the kernel; `None` where there were none.
    pub first_byte_ns: Option<u64>,
    /// When it was over.
    pub ended_ns: u64,
    /// The same by the wall clock: nanoseconds since 1970, exact to some milliseconds.
    pub unix_ns: u64,
    /// How it ended.
    pub outcome: Outcome,
    /// What [`Service::begun`](crate::Service::begun) has returned; 0 where it was not asked.
    pub mark: u64,
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

impl Outcome {
    /// All outcomes, in the order of their numbers.
    pub const ALL: [Outcome; 7] = [
        Outcome::Sent,
        Outcome::ClientGone,
        Outcome::TimedOut,
        Outcome::Refused,
        Outcome::Failed,
        Outcome::Taken,
        Outcome::Stopped,
    ];

    /// A word for it, for logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Sent => "sent",
            Outcome::ClientGone => "client_gone",
            Outcome::TimedOut => "timed_out",
            Outcome::Refused => "refused",
            Outcome::Failed => "failed",
            Outcome::Taken => "taken",
            Outcome::Stopped => "stopped",
        }
    }
}
