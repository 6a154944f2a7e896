//! HTTP/2 connections to servers: one connection carries many requests.
//!
//! ```text
//! dispatch ── one with room? ─── join ──> start: HEADERS ──┐                     turns: one frame of each body at a time
//!        │ none                   open ──> waiting, until     ├──> Session::out ── flush ──> server
//!        v                                 SETTINGS have come ┘                      │ once a turn, for all requests of it
//!      queue                                                                          v
//! clients <── answer, push, end <── Stream <── hear: Answer, Data, End <── wire::h2 <── receive
//!                └── no room: held, and the server gets no credit
//! ```
//!
//! A connection uses HTTP/2 if it has a [`Session`]; then its `h1` machine, its `job` and its `out` are not used.
//! Choosing a server, retries, budgets, the queue and figures are the same for all connections. A client that stops
//! reading blocks only its own stream: the connection's window is as large as those of all its streams
//! together, and a stream holds at most its own window. No request is sent before the server's SETTINGS have
//! arrived: until then it is certain that none was processed.

mod bodies;
mod completion;
mod dispatch;
mod head;
mod health;
mod pool;
mod receive;

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use flatout_engine::{ExchangeKey, GuestKey, Lane, Moved, Response};
use flatout_wire::h1::Trailers;
use flatout_wire::h2::{Code, Connection, Limits, STREAMS_MAX_CEILING, StreamId, TINY_DATA_BYTES};
use flatout_wire::head::{HEAD_BYTES_CEILING, HeadLimits};

use super::connection::{Flushed, ServerId, UpstreamConnection};
use super::failure::Failure;
use super::job::{Job, Pulled};
use super::plan;
use super::response::FIELDS_MAX;
use super::windows::{FIRST_BYTES, GROWN_BYTES, Growth};
use super::worker::{Group, ProxyWorker, State};

pub(super) use health::status as health_status;

/// How often one request may be sent to a server whose GOAWAY says that it was not processed.
pub(super) const REFUSALS_MAX: u8 = 20;

/// How many of these a REFUSED_STREAM counts for: the next server may refuse it too.
const REFUSED_COSTS: u8 = 4;

/// Streams that a server may reset, beyond the number it has served, before the connection is closed.
const RESETS_MAX: u32 = 1000;

/// Frames without effect: twice as many as can be in flight, given its window, for a stream that we have reset.
const IDLE_FRAMES_MAX: u32 = 2 * GROWN_BYTES / TINY_DATA_BYTES as u32;

/// A piece of content that is as long is passed on by itself; smaller ones of one turn are joined up to this length.
const JOINED_BYTES_MAX: usize = 8 << 10;

/// Bytes that wait for the socket, over which no more content is framed and nothing is read.
const OUT_BYTES_MAX: usize = 64 << 10;

/// Capacity of this buffer that is kept.
const OUT_BYTES_KEPT: usize = 16 << 10;

/// The start of a pulled body that is kept until the response starts: a request that no server has processed can then
/// be repeated.
const KEPT_BYTES_MAX: usize = 16 << 10;

/// An HTTP/2 session with a server.
pub(super) struct Session {
    machine: Connection,
    /// Sorted by stream id, since ids only grow.
    streams: Vec<Entry>,
    /// Requests that wait until the connection is open.
    #[expect(clippy::vec_box, reason = "they come and go in their boxes")]
    waiting: Vec<Box<Job>>,
    /// Streams that may have content to send, in turn.
    turns: VecDeque<StreamId>,
    /// Responses that are held until everything received was processed, in case they are complete by then.
    deferred: Vec<StreamId>,
    /// Streams that have pieces to join.
    joining: Vec<StreamId>,
    /// Streams that have ended, and how.
    over: Vec<(StreamId, StreamEnd)>,
    /// Bytes to send, from `sent` on.
    out: Vec<u8>,
    sent: usize,
    /// Number of successful receives.
    receipts: u64,
    /// Number of streams that hold content because their client has no room.
    holding: usize,
    /// Its list in the server's pool.
    shelf: PoolList,
    /// A response was completed.
    has_served: bool,
    /// The server's SETTINGS have arrived.
    is_ready: bool,
    /// It is called again in the next turn, to send what all requests of this turn have written.
    is_scheduled: bool,
    /// It has refused a stream: it gets no more until one of its streams has ended.
    is_resting: bool,
    /// The server has closed, or violated the protocol. Responses that were completed before still go to their
    /// clients.
    is_gone: bool,
}

/// A stream with its lookup keys.
struct Entry {
    id: StreamId,
    exchange: Option<ExchangeKey>,
    stream: Box<Stream>,
}

/// A request that was sent.
struct Stream {
    job: Box<Job>,
    /// The response, until it is known whether it is complete.
    response: Option<Box<Response>>,
    /// The declared length of its content.
    length: Option<u64>,
    /// Small pieces of content received in this turn, forwarded as one.
    joined: Vec<u8>,
    /// Content for which the client had no room; never more than the stream's window.
    held: Vec<u8>,
    /// Content for which the server has no credit yet: what the client has not taken.
    owed_bytes: usize,
    /// Content that the client has taken since the window has grown.
    taken_bytes: usize,
    /// The stream's window.
    growth: Growth,
    /// The response is complete, with these trailers, except for held content.
    end: Option<Trailers>,
    /// Request content that waits for flow-control credit.
    rest: Bytes,
    /// The part of a pulled body that was taken, while it is small and the response has not started.
    kept: Option<Vec<u8>>,
    /// When the server last made progress on it.
    seen_ns: u64,
    /// When the client last sent some of its body, or when it was not its turn.
    client_seen_ns: u64,
    /// The session's `receipts` when it started.
    began: u64,
    /// It is in `turns`.
    has_turn: bool,
    /// It is in `over`.
    is_over: bool,
}

/// How the request of a stream has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StreamEnd {
    /// The client got the complete response.
    Whole,
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

/// The list of its pool that a connection is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PoolList {
    /// It accepts no more requests for now.
    None,
    /// It carries requests and has room for more.
    Shared,
    Idle,
}

impl Session {
    fn new(streams_max: u32) -> Session {
        let streams_max = streams_max.clamp(1, STREAMS_MAX_CEILING);
        let head = HeadLimits {
            head_bytes_max: HEAD_BYTES_CEILING,
            fields_max: FIELDS_MAX,
            ..HeadLimits::default()
        };
        let limits = Limits {
            head,
            streams_max,
            stream_window: FIRST_BYTES,
            // A client that stops reading must not block the others.
            connection_window: GROWN_BYTES.saturating_mul(streams_max),
            resets_max: RESETS_MAX,
            idle_frames_max: IDLE_FRAMES_MAX,
            connect_protocol: false,
        };
        let mut out = Vec::new();
        Session {
            machine: Connection::client(limits, &mut out),
            streams: Vec::new(),
            waiting: Vec::new(),
            turns: VecDeque::new(),
            deferred: Vec::new(),
            joining: Vec::new(),
            over: Vec::new(),
            out,
            sent: 0,
            receipts: 0,
            holding: 0,
            shelf: PoolList::None,
            has_served: false,
            is_ready: false,
            is_scheduled: false,
            is_resting: false,
            is_gone: false,
        }
    }

    fn has_room(&self, streams_max: u32) -> bool {
        let streams_max = streams_max.min(STREAMS_MAX_CEILING) as usize;
        match self.is_ready {
            false => self.waiting.len() < streams_max,
            true => {
                let is_open = !self.is_resting && !self.is_gone && self.machine.can_ask();
                is_open && self.streams.len() < streams_max
            }
        }
    }

    /// Whether it carries no request, but could.
    fn is_idle(&self) -> bool {
        self.is_ready && self.streams.is_empty()
    }

    /// Bytes that wait for the socket.
    fn pending_bytes(&self) -> usize {
        self.out.len() - self.sent
    }

    fn find(&self, id: StreamId) -> Option<usize> {
        self.streams.binary_search_by_key(&id, |entry| entry.id).ok()
    }

    /// A stream that has not ended.
    fn live(&mut self, id: StreamId) -> Option<&mut Stream> {
        let at = self.find(id)?;
        self.streams.get_mut(at).map(|entry| &mut *entry.stream).filter(|stream| !stream.is_over)
    }

    /// All requests.
    pub(super) fn jobs(&self) -> impl Iterator<Item = &Job> {
        let streams = self.streams.iter().map(|entry| &*entry.stream.job);
        self.waiting.iter().map(|job| &**job).chain(streams)
    }

    /// Ends the streams of these requests, and returns those that were not sent.
    #[expect(clippy::vec_box, reason = "they come and go in their boxes")]
    pub(super) fn end_late(&mut self, is_late: impl Fn(&Job) -> bool, over: StreamEnd) -> Vec<Box<Job>> {
        let late = self.streams.iter().filter(|entry| is_late(&entry.stream.job)).map(|entry| entry.id);
        for id in late.collect::<Vec<_>>() {
            self.end(id, over);
        }
        self.waiting.extract_if(.., |job| is_late(job)).collect()
    }

    fn by_exchange(&self, key: ExchangeKey) -> Option<StreamId> {
        self.streams.iter().find(|entry| entry.exchange == Some(key)).map(|entry| entry.id)
    }

    /// Records how a stream ended; only the first end counts.
    fn end(&mut self, id: StreamId, over: StreamEnd) {
        if let Some(stream) = self.live(id) {
            stream.is_over = true;
            self.over.push((id, over));
        }
    }

    fn take(&mut self, id: StreamId) -> Option<Box<Stream>> {
        let entry = self.streams.remove(self.find(id)?);
        self.holding = self.holding.saturating_sub(usize::from(!entry.stream.held.is_empty()));
        Some(entry.stream)
    }

    /// Queues a stream for a turn to send content.
    fn give_turn(&mut self, id: StreamId) {
        if let Some(stream) = self.live(id)
            && !std::mem::replace(&mut stream.has_turn, true)
        {
            self.turns.push_back(id);
        }
    }

    /// Sends pending output.
    fn flush(&mut self, lane: &Lane, guest: GuestKey, is_full: &mut bool) -> Flushed {
        while let Some(rest) = self.out.get(self.sent..).filter(|rest| !rest.is_empty()) {
            if *is_full {
                return Flushed::Full;
            }
            match lane.send(guest, rest) {
                Moved::Bytes(sent) => {
                    *is_full = sent < rest.len();
                    self.sent += sent;
                }
                Moved::WouldBlock => *is_full = true,
                Moved::Broken => return Flushed::Broken,
            }
        }
        self.sent = 0;
        self.out.clear();
        if self.out.capacity() > OUT_BYTES_KEPT {
            self.out = Vec::new();
        }
        Flushed::All
    }

    /// Frees memory that an idle connection does not need.
    fn rest(&mut self) {
        self.machine.rest();
        (self.streams, self.turns) = (Vec::new(), VecDeque::new());
        if self.out.is_empty() {
            self.out = Vec::new();
        }
    }
}

impl Stream {
    fn new(job: Box<Job>, began: u64, now_ns: u64, growth: Growth) -> Stream {
        let is_pulled = job.pulled != Pulled::Not;
        Stream {
            rest: job.body.clone(),
            kept: is_pulled.then(|| job.body.to_vec()),
            job,
            response: None,
            length: None,
            joined: Vec::new(),
            held: Vec::new(),
            owed_bytes: 0,
            taken_bytes: 0,
            growth,
            end: None,
            seen_ns: now_ns,
            client_seen_ns: now_ns,
            began,
            has_turn: false,
            is_over: false,
        }
    }

    /// The request, ready to be repeated if none of its body is lost.
    fn into_job(self) -> Box<Job> {
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
    fn late(&mut self, now_ns: u64, plan: &plan::Upstream) -> Option<StreamEnd> {
        let awaits_body = matches!(self.job.pulled, Pulled::Waiting | Pulled::Begun) && self.rest.is_empty();
        let awaits_room = !self.held.is_empty();
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
        is_late.then_some(StreamEnd::Ended(Failure::BodyTime))
    }

    /// Gives the server credit for the content that the client has taken since, and more if it takes it as fast as it
    /// comes.
    fn repay(&mut self, id: StreamId, lane: &Lane, machine: &mut Connection, out: &mut Vec<u8>) {
        let exchange = self.job.waiter.exchange();
        let unsent = exchange.map_or(0, |key| lane.unsent_bytes(key));
        let waiting = unsent + self.held.len() + self.joined.len();
        let taken = self.owed_bytes.saturating_sub(waiting);
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
        if let Some(key) = exchange.filter(|_| self.owed_bytes >= window / 2) {
            lane.tell_of_room(key);
        }
    }
}

impl UpstreamConnection {
    /// Its session, and what the session needs of the connection.
    pub(super) fn shared(&mut self) -> Option<(&mut Session, GuestKey, ServerId)> {
        let (guest, server_id) = (self.guest, self.server_id);
        self.session.as_deref_mut().map(|session| (session, guest, server_id))
    }
}

impl Group {
    /// An HTTP/2 connection to a server that has room for a request.
    pub(super) fn shared_connection(&self, server: usize) -> Option<usize> {
        let pool = self.pools.get(server)?;
        pool.shared.first().or(pool.idle.last()).copied()
    }
}

impl State {
    /// Whether this entry is still the same connection.
    pub(super) fn is_still(&mut self, at: usize, guest: GuestKey) -> bool {
        self.table.get(at).is_some_and(|connection| connection.guest == guest)
    }
}

impl ProxyWorker {
    /// Schedules a connection for the next turn.
    fn schedule(&self, session: &mut Session, guest: GuestKey) {
        if !std::mem::replace(&mut session.is_scheduled, true) {
            self.lane.call_again(guest);
        }
    }
}
