//! A request on its way to an upstream.

use std::net::SocketAddr;

use bytes::Bytes;
use flatout_wire::h1::{Length, Sent};

use super::waiter::Waiter;
use super::watch::Trail;

/// A request that an upstream is asked, from the moment in which it was read to the end of its response.
pub(super) struct Job {
    /// Who gets the response.
    pub(super) waiter: Waiter,
    /// Which upstream is asked.
    pub(super) upstream: usize,
    pub(super) sent: Sent,
    /// Request line and field lines, without the end of the head.
    pub(super) head: Vec<u8>,
    /// The body, if it was complete; of a pulled one, the part to send again.
    pub(super) body: Bytes,
    /// The body's length, as sent to the upstream.
    pub(super) length: Option<Length>,
    /// How far the body got that is pulled.
    pub(super) pulled: Pulled,
    /// Asking twice does no more than asking once (RFC 9110 section 9.2.2).
    pub(super) is_idempotent: bool,
    /// Further attempts that it may take.
    pub(super) retries_left: u32,
    /// How often it may still be refused by servers that have not processed it.
    pub(super) refusals_left: u8,
    /// The servers that were tried, one bit each, as far as there are bits.
    pub(super) tried: u64,
    /// Who made the connection that it came over.
    pub(super) peer: Option<SocketAddr>,
    /// What its balancing hashes.
    pub(super) hash: u64,
    /// The response was begun: its client must not get another.
    pub(super) is_answered: bool,
    /// What the upstream is to make of the key that we have added.
    pub(super) accept: Option<Box<str>>,
    /// Our name in `Via`.
    pub(super) via: Option<String>,
    /// A connection that had been idle was found closed: the next one is to be new.
    pub(super) wants_new: bool,
    /// The server that its cookie names.
    pub(super) stuck_to: Option<usize>,
    /// `Host` is to be the server's address, which stands behind the head.
    pub(super) names_server: bool,
    /// When it began to wait in the queue.
    pub(super) queued_ns: Option<u64>,
    /// The attempts at it so far.
    pub(super) trail: Trail,
}

/// A request body that is pulled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pulled {
    /// There is none, or it is whole.
    Not,
    /// Nothing of it was taken yet.
    Waiting,
    /// Some of it was: it cannot be sent again.
    Begun,
    /// All of it was.
    Whole,
}

impl Job {
    /// Whether another server, or the same one, may be asked after this attempt has failed. `was_seen`: the server may have begun to
    /// act on it.
    pub(super) fn may_repeat(&self, was_seen: bool) -> bool {
        let is_there = matches!(self.pulled, Pulled::Not | Pulled::Waiting);
        !self.is_answered && is_there && self.retries_left > 0 && (self.is_idempotent || !was_seen)
    }
}
