//! A request on its way to an upstream.

use std::net::SocketAddr;

use bytes::Bytes;
use flatout_wire::h1::{Length, Sent};

use super::waiter::Waiter;
use super::watch::Trail;

/// A request to an upstream, from when it was read to the end of its response.
pub(super) struct Job {
    /// The receiver of the response.
    pub(super) waiter: Waiter,
    /// The upstream's index.
    pub(super) upstream: usize,
    pub(super) sent: Sent,
    /// Request line and field lines, without the end of the head.
    pub(super) head: Vec<u8>,
    /// The body, if it was complete; of a pulled one, the part to send again.
    pub(super) body: Bytes,
    /// The body's length, as sent to the upstream.
    pub(super) length: Option<Length>,
    /// How much of a pulled body was read.
    pub(super) pulled: Pulled,
    /// Repeating it has the same effect as sending it once (RFC 9110 section 9.2.2).
    pub(super) is_idempotent: bool,
    /// Further attempts that it may make.
    pub(super) retries_left: u32,
    /// How often it may still be refused by servers that have not processed it.
    pub(super) refusals_left: u8,
    /// The servers tried, one bit each; servers beyond the last bit are not recorded.
    pub(super) tried: u64,
    /// The peer of the client's connection.
    pub(super) peer: Option<SocketAddr>,
    /// The hash for balancing.
    pub(super) hash: u64,
    /// The response has started: its client must not get another.
    pub(super) is_answered: bool,
    /// The expected `Sec-WebSocket-Accept` for the key that we added.
    pub(super) accept: Option<Box<str>>,
    /// Our name in `Via`.
    pub(super) via: Option<String>,
    /// An idle connection turned out to be closed: the next one must be new.
    pub(super) wants_new: bool,
    /// The server in its cookie.
    pub(super) stuck_to: Option<usize>,
    /// `Host` is the server's address, which is written after the head.
    pub(super) names_server: bool,
    /// The trailer fields that are passed on, in lower case.
    pub(super) trailers: Vec<String>,
    /// When it has to be over ([`clock::nanoseconds`](flatout_lane::clock::nanoseconds)).
    pub(super) ends_ns: Option<u64>,
    /// Its client has sent some of its body since the last deadline.
    pub(super) has_client_sent: bool,
    /// When it entered the queue.
    pub(super) queued_ns: Option<u64>,
    /// The attempts at it so far.
    pub(super) trail: Trail,
}

/// The state of a pulled request body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pulled {
    /// There is none, or it is complete.
    Not,
    /// Nothing of it was read yet.
    Waiting,
    /// Part of it was read: it cannot be sent again.
    Begun,
    /// All of it was read.
    Whole,
}

impl Job {
    /// Whether its time as a whole is over.
    pub(super) fn is_overdue(&self, now_ns: u64) -> bool {
        self.ends_ns.is_some_and(|ends_ns| ends_ns <= now_ns)
    }

    /// Whether the request may be repeated, at this or another server, after this attempt has failed. `was_seen`: the
    /// server may have started to process it.
    pub(super) fn may_repeat(&self, was_seen: bool) -> bool {
        let is_there = matches!(self.pulled, Pulled::Not | Pulled::Waiting);
        !self.is_answered && is_there && self.retries_left > 0 && (self.is_idempotent || !was_seen)
    }
}
