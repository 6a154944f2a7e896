//! One request on an HTTP/2 connection.

use std::time::Duration;

use bytes::Bytes;
use flatout_engine::{ExchangeKey, Lane, Response};
use flatout_wire::Status;
use flatout_wire::h1::Trailers;
use flatout_wire::h2::{Code, Connection, StreamId};

use crate::connection::h2::windows::Growth;
use crate::failure::Failure;
use crate::plan;
use crate::request::job::{Job, Pulled};
use crate::spool::pace::Pace;

/// The start of a pulled body that is kept until the response starts: a request that no server has processed can then
/// be repeated.
pub(crate) const KEPT_BYTES_MAX: usize = 16 << 10;

/// A stream with its lookup keys.
pub(crate) struct Entry {
    pub(crate) id: StreamId,
    pub(crate) exchange: Option<ExchangeKey>,
    pub(crate) stream: Box<Stream>,
}

/// A request that was sent.
pub(crate) struct Stream {
    pub(crate) job: Box<Job>,
    /// The response, until it is known whether it is complete.
    pub(crate) response: Option<Box<Response>>,
    /// The declared length of its content.
    pub(crate) length: Option<u64>,
    /// Its content so far.
    pub(crate) received_bytes: u64,
    /// Small pieces of content received in this turn, forwarded as one.
    pub(crate) joined: Vec<u8>,
    /// Content for which the client had no room; never more than the stream's window.
    pub(crate) held: Vec<u8>,
    /// Content for which the server has no credit yet: what the client has not taken.
    pub(crate) owed_bytes: usize,
    /// Content that the client has taken since the window has grown.
    pub(crate) taken_bytes: usize,
    /// The stream's window.
    pub(crate) growth: Growth,
    /// The response is complete, with these trailers, except for held content.
    pub(crate) end: Option<Trailers>,
    /// Request content that waits for flow-control credit.
    pub(crate) rest: Bytes,
    /// The part of a pulled body that was taken, while it is small and the response has not started.
    pub(crate) kept: Option<Vec<u8>>,
    /// When the server last made progress on it.
    pub(crate) seen_ns: u64,
    /// When the client last sent some of its body, or when it was not its turn.
    pub(crate) client_seen_ns: u64,
    /// The session's `receipts` when it started.
    pub(crate) began: u64,
    /// Content that was passed on.
    pub(crate) forwarded_bytes: u64,
    /// How fast its client takes it, while that has no room.
    pub(crate) pace: Pace,
    /// It is in `turns`.
    pub(crate) has_turn: bool,
    /// It is in `over`.
    pub(crate) is_over: bool,
}

/// How the request of a stream has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamEnd {
    /// The client got the complete response.
    Whole,
    /// Another server is asked instead, because of the status of its response.
    Rejected(Status),
    /// We have replaced the response, or the client is gone: the rest is not needed.
    Unwanted,
    /// The server has refused it (RFC 9113 section 8.7).
    Refused,
    /// The server's GOAWAY says that it was not processed.
    Unseen,
    /// It was reset, by the server or because of a server's error.
    Reset(Code),
    /// The server was too slow.
    Slow(Failure),
    /// It has to end for another reason, which is not the server's fault.
    Ended(Failure),
}

impl Stream {
    pub(crate) fn new(job: Box<Job>, began: u64, now_ns: u64, growth: Growth) -> Stream {
        // A stored body is read again from its file.
        let is_pulled = job.pulled != Pulled::Not && job.stored.is_none();
        Stream {
            rest: job.body.clone(),
            kept: is_pulled.then(|| job.body.to_vec()),
            job,
            response: None,
            length: None,
            received_bytes: 0,
            joined: Vec::new(),
            held: Vec::new(),
            owed_bytes: 0,
            taken_bytes: 0,
            growth,
            end: None,
            seen_ns: now_ns,
            client_seen_ns: now_ns,
            began,
            forwarded_bytes: 0,
            pace: Pace::default(),
            has_turn: false,
            is_over: false,
        }
    }

    /// Whether the client has all content that was declared, although the server has not ended the stream.
    pub(crate) fn is_passed_on(&self) -> bool {
        let is_all = self.length == Some(self.received_bytes) && self.response.is_none();
        self.job.is_answered && is_all && self.held.is_empty() && self.joined.is_empty()
    }

    /// The request, ready to be repeated if none of its body is lost.
    pub(crate) fn into_job(self) -> Box<Job> {
        let Stream { mut job, kept, .. } = self;
        if let Some(kept) = kept {
            job.body = kept.into();
            job.pulled = match job.pulled {
                Pulled::Whole => Pulled::Not,
                _ => Pulled::Waiting,
            };
        }
        job
    }

    /// Which stream waits for whom at this time: the reason to end it if that has taken too long.
    pub(crate) fn late(&mut self, now_ns: u64, plan: &plan::Upstream, lane: &Lane) -> Option<StreamEnd> {
        let awaits_body = matches!(self.job.pulled, Pulled::Waiting | Pulled::Begun) && self.rest.is_empty();
        // What the client has not taken keeps the server's window closed, or will.
        let awaits_room = self.waiting_bytes(lane) > 0 || !self.job.receiver.has_room(lane);
        let is_over =
            |since_ns: u64, time_max: Duration| now_ns.saturating_sub(since_ns) > time_max.as_nanos() as u64;
        if !awaits_body && !awaits_room {
            self.client_seen_ns = now_ns;
            let is_sending = !self.rest.is_empty();
            let (time_max, failure) = match is_sending {
                true => (plan.send_time_max, Failure::SendTime),
                false => (plan.read_time_max, Failure::ReadTime),
            };
            return is_over(self.seen_ns, time_max).then_some(StreamEnd::Slow(failure));
        }
        // A server is not slow while it waits for the client, in either direction.
        self.seen_ns = now_ns;
        // Once the response has begun, both sides may be silent, as in a call that streams both ways. The engine sees to
        // it that the client takes what is sent.
        let is_late = !self.job.is_answered && is_over(self.client_seen_ns, plan.read_time_max);
        is_late.then_some(StreamEnd::Ended(self.job.late_body()))
    }

    /// Content that the client has not taken.
    fn waiting_bytes(&self, lane: &Lane) -> usize {
        let unsent = self.job.receiver.exchange().map_or(0, |key| lane.unsent_bytes(key));
        unsent + self.held.len() + self.joined.len()
    }

    /// Gives the server credit for the content that the client has taken since, and more if it takes it as fast as it
    /// comes.
    pub(crate) fn repay(&mut self, id: StreamId, lane: &Lane, machine: &mut Connection, out: &mut Vec<u8>) {
        let exchange = self.job.receiver.exchange();
        let taken = self.owed_bytes.saturating_sub(self.waiting_bytes(lane));
        let window = self.growth.window() as usize;
        // Half a window at a time, so that the server sends large pieces.
        if taken >= window / 2 {
            self.owed_bytes -= taken;
            machine.consumed(id, taken, out);
            self.taken_bytes += taken;
            if self.taken_bytes >= window {
                self.taken_bytes = 0;
                machine.widen(id, self.growth.grow(), out);
            }
        }
        // The rest is repaid when the client has taken more.
        if let Some(key) = exchange.filter(|_| self.is_starved()) {
            lane.tell_of_room(key);
        }
    }

    /// Whether the server lacks credit, because the client has not taken what came.
    pub(crate) fn is_starved(&self) -> bool {
        !self.held.is_empty() || self.owed_bytes >= self.growth.window() as usize / 2
    }
}
