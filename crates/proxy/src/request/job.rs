//! A request on its way to an upstream.

use std::net::SocketAddr;

use bytes::Bytes;
use flatout_engine::{ExchangeKey, GuestKey, Lane, Pull};
use flatout_gateway::{Client, TrustedFields};
use flatout_wire::h1::{Length, Sent};

use crate::failure::{Failure, RequestLine};
use crate::plan::Server;
use crate::receiver::Receiver;
use crate::select::balance::without_tried;
use crate::server::ServerSlot;
use crate::spool::store::SpoolMemory;
use crate::spool::stored::{NextPart, StoredBody};
use crate::table::UpstreamId;
use crate::watch::Trail;

/// How often one request may be sent to a server whose GOAWAY says that it was not processed.
pub(crate) const REFUSALS_MAX: u8 = 20;

/// A request to an upstream, from when it was read to the end of its response.
pub(crate) struct Job {
    /// The receiver of the response.
    pub(crate) receiver: Receiver,
    pub(crate) upstream: UpstreamId,
    pub(crate) sent: Sent,
    /// Request line and field lines, without the end of the head.
    pub(crate) head: Vec<u8>,
    /// The body, if it was complete; of a pulled one, the part to send again.
    pub(crate) body: Bytes,
    /// The body's length, as sent to the upstream.
    pub(crate) length: Option<Length>,
    /// The body, if it was stored in a file; it is then pulled from there.
    pub(crate) stored: Option<Box<StoredBody>>,
    /// The memory of a body that was taken whole.
    pub(crate) collected: Option<SpoolMemory>,
    /// Its body is taken whole before a server is chosen.
    pub(crate) collects: bool,
    /// How much of a pulled body was read.
    pub(crate) pulled: Pulled,
    /// Repeating it has the same effect as sending it once (RFC 9110 section 9.2.2).
    pub(crate) is_idempotent: bool,
    /// Further attempts that it may make.
    pub(crate) retries_left: u32,
    /// The attempts so far, with the current one.
    pub(crate) attempt: u32,
    /// How often it may still be refused by servers that have not processed it.
    pub(crate) refusals_left: u8,
    /// Bytes of its response that a file may take while its client is slow; 0 spools nothing.
    pub(crate) spool_bytes_max: u64,
    /// Which instructions of the upstream to this server are followed.
    pub(crate) private: TrustedFields,
    /// The servers tried, one bit each; servers beyond the last bit are not recorded.
    pub(crate) tried: u64,
    /// The peer of the client's connection.
    pub(crate) peer: Option<SocketAddr>,
    /// Who has sent it, for the parameters of FastCGI, SCGI and uwsgi; `None` for a request of our own.
    pub(crate) client: Option<Client>,
    /// Its `X-Forwarded-Proto` is what the client sent, and not ours or a rule's.
    pub(crate) has_sent_scheme: bool,
    /// The hash for balancing.
    pub(crate) hash: u64,
    /// The response has started: its client must not get another.
    pub(crate) is_answered: bool,
    /// The expected `Sec-WebSocket-Accept` for the key that we added.
    pub(crate) accept: Option<Box<str>>,
    /// Our name in `Via`.
    pub(crate) via: Option<String>,
    /// An idle connection turned out to be closed: the next one must be new.
    pub(crate) wants_new: bool,
    /// The server that it names, if the servers of its upstream are named by requests.
    pub(crate) named: Option<Box<Server>>,
    /// The server in its cookie, or the one that it names.
    pub(crate) stuck_to: Option<usize>,
    /// `Host` is the server's address, which is written after the head.
    pub(crate) names_server: bool,
    /// The trailer fields that are passed on, in lower case.
    pub(crate) trailers: Vec<String>,
    /// When it has to be over ([`clock::nanoseconds`](flatout_lane::clock::nanoseconds)).
    pub(crate) ends_ns: Option<u64>,
    /// Until when it may be sent again.
    pub(crate) retry_until_ns: Option<u64>,
    /// Its client has sent some of its body since the last deadline.
    pub(crate) has_client_sent: bool,
    /// When it was sent to its current server; 0 if that is not measured.
    pub(crate) sent_ns: u64,
    /// Its place among the requests that its current server may have, if that has a limit.
    pub(crate) slot: Option<ServerSlot>,
    /// When it entered the queue.
    pub(crate) queued_ns: Option<u64>,
    /// The attempts at it so far.
    pub(crate) trail: Trail,
}

impl Job {
    /// The server at this place is another one from now on.
    pub(crate) fn forget_server(&mut self, place: usize) {
        self.stuck_to = self.stuck_to.filter(|&stuck_to| stuck_to != place);
        self.tried = without_tried(self.tried, place);
    }

    /// A request for an upstream without a body, which may be sent again `retries_max` times.
    pub(crate) fn new(upstream: UpstreamId, retries_max: u32, receiver: Receiver, head: Vec<u8>) -> Job {
        Job {
            receiver,
            upstream,
            sent: Sent::default(),
            head,
            body: Bytes::new(),
            length: None,
            stored: None,
            collected: None,
            collects: false,
            pulled: Pulled::Not,
            is_idempotent: true,
            retries_left: retries_max,
            attempt: 1,
            refusals_left: REFUSALS_MAX,
            spool_bytes_max: 0,
            private: TrustedFields::default(),
            tried: 0,
            peer: None,
            client: None,
            has_sent_scheme: false,
            hash: 0,
            is_answered: false,
            accept: None,
            via: None,
            wants_new: false,
            named: None,
            stuck_to: None,
            names_server: false,
            trailers: Vec::new(),
            ends_ns: None,
            retry_until_ns: None,
            has_client_sent: false,
            sent_ns: 0,
            slot: None,
            queued_ns: None,
            trail: Trail::default(),
        }
    }

    /// The same request as if nothing had been sent of it, without a receiver and without limits of its time.
    pub(crate) fn again(&self) -> Job {
        let Job { sent, length, pulled, is_idempotent, refusals_left, spool_bytes_max, peer, .. } = *self;
        let Job { client, private, hash, stuck_to, names_server, .. } = *self;
        Job {
            sent,
            body: self.body.clone(),
            length,
            pulled,
            is_idempotent,
            refusals_left,
            spool_bytes_max,
            private,
            peer,
            client,
            hash,
            accept: self.accept.clone(),
            via: self.via.clone(),
            named: self.named.clone(),
            stuck_to,
            names_server,
            trailers: self.trailers.clone(),
            ..Job::new(self.upstream, self.retries_left, Receiver::nobody(), self.head.clone())
        }
    }

    /// The next piece of a pulled body: from the client, or from its file, for which `guest` is called again.
    pub(crate) fn pull(
        &mut self,
        lane: &Lane,
        exchange: Option<ExchangeKey>,
        guest: GuestKey,
    ) -> Result<Pull, Failure> {
        let Some(stored) = &mut self.stored else {
            return Ok(exchange.map_or(Pull::Gone, |exchange| lane.pull(exchange)));
        };
        match stored.next(guest) {
            NextPart::Data(data) => Ok(Pull::Data(data)),
            NextPart::Later => Ok(Pull::Later),
            NextPart::End => Ok(Pull::End(Vec::new())),
            NextPart::Failed => Err(Failure::BodyStorage),
        }
    }

    /// Whether its whole body is there to be sent, first or again.
    pub(crate) fn has_whole_body(&self) -> bool {
        self.stored.is_some() || matches!(self.pulled, Pulled::Not | Pulled::Waiting)
    }

    /// Why it ends if no more of its body comes in time: a disk is slow, or its client.
    pub(crate) fn late_body(&self) -> Failure {
        if self.stored.is_some() { Failure::BodyStorage } else { Failure::BodyTime }
    }

    /// It is sent from its beginning.
    pub(crate) fn rewind(&mut self) {
        if let Some(stored) = &mut self.stored {
            stored.rewind();
            self.pulled = Pulled::Waiting;
        }
    }

    /// It is sent again, which counts as a retry.
    pub(crate) fn retry(&mut self) {
        self.retries_left = self.retries_left.saturating_sub(1);
        self.attempt += 1;
    }

    /// How the log names it.
    pub(crate) fn line(&self) -> RequestLine<'_> {
        RequestLine { head: &self.head, peer: self.peer, attempt: self.attempt }
    }
}

/// The state of a pulled request body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pulled {
    /// There is none, or it is complete.
    Not,
    /// Nothing of it was read yet.
    Waiting,
    /// Part of it was read: it cannot be sent again.
    Begun,
    /// All of it was read.
    Whole,
}
