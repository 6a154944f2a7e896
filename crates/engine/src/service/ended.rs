//! The start and the end of a request: the data for logs and metrics.

use std::net::SocketAddr;

use flatout_wire::{Head, Status};

use super::request::Tls;

/// A request whose head has arrived, or bytes that the parser rejected. These borrowed values are no longer available
/// when the request ends: a service stores what it needs, and returns a number by which it finds it again.
#[derive(Debug, Clone, Copy)]
pub struct Begun<'a> {
    /// The head; `None` if the parser rejected the bytes.
    pub head: Option<&'a Head<'a>>,
    /// The rejected bytes, as far as received; empty if there is a head.
    pub refused: &'a [u8],
    /// The client's address; `None` on a Unix socket.
    pub peer: Option<SocketAddr>,
    /// Facts about its TLS connection; `None` without TLS.
    pub tls: Option<Tls<'a>>,
    /// That of [`Request::listener`](crate::Request::listener).
    pub listener: u16,
    /// That of [`Request::number`](crate::Request::number); 0 if there is none.
    pub number: u64,
}

/// A request that has ended. Times are nanoseconds of the monotonic clock; they are read once per stage, so a time
/// may be late by the time that the stage's other connections took.
#[derive(Debug, Clone, Copy)]
pub struct Ended {
    /// The status of the response; `None` if none was started.
    pub status: Option<Status>,
    /// Received bytes of head and body.
    pub received_bytes: u64,
    /// Bytes of head and body that were encoded for the client. If the response was cut, fewer were sent.
    pub sent_bytes: u64,
    /// Bytes of the head among them, and of HTTP/2's DATA frames without their content.
    pub sent_head_bytes: u32,
    /// Start of the stage in which the head was complete.
    pub began_ns: u64,
    /// When the first bytes of the response were passed to the kernel; `None` if there were none.
    pub first_byte_ns: Option<u64>,
    /// When it ended.
    pub ended_ns: u64,
    /// The same on the wall clock: nanoseconds since 1970, exact to a few milliseconds.
    pub unix_ns: u64,
    /// How it ended.
    pub outcome: Outcome,
    /// The value returned by [`Service::begun`](crate::Service::begun); 0 if it was not called.
    pub mark: u64,
    /// The value passed to [`Response::set_note`](crate::Response::set_note).
    pub note: u64,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The kernel accepted the whole response.
    Sent,
    /// The client closed or reset the connection before that.
    ClientGone,
    /// The client was too slow.
    TimedOut,
    /// The parser or a limit of the server rejected it; the response was sent.
    Refused,
    /// The response was cut: its body failed, or did not have the declared length.
    Failed,
    /// The connection left HTTP.
    Taken,
    /// The server stopped first.
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

    /// Its name in logs and metrics.
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
