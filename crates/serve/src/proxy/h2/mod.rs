//! HTTP/2 connections to servers: one link carries many requests.
//!
//! ```text
//! dispatch ── a link with room? ── join ──> start: HEADERS ──┐                     turns: one frame of each body at a time
//!        │ none                   open ──> waiting, until     ├──> Session::out ── flush ──> server
//!        v                                 SETTINGS have come ┘                      │ once a turn, for all requests of it
//!      queue                                                                          v
//! clients <── answer, push, end <── Stream <── hear: Answer, Data, End <── wire::h2 <── receive
//!                └── no room: held, and the server gets no credit
//! ```
//!
//! A link uses HTTP/2 if it has a [`Session`]; then its `h1` machine, its `job` and its `out` are not used.
//! Choosing a server, retries, budgets, the queue and figures are the same for all links. A client that stops
//! reading blocks only its own stream: the connection's window is as large as those of all its streams
//! together, and a stream holds at most its own window. No request is sent before the server's SETTINGS have
//! arrived: until then it is certain that none was processed.

mod answering;
mod asking;
mod bodies;
mod ending;
mod head;
mod health;
mod opening;

use std::collections::VecDeque;

use bytes::Bytes;
use flatout_engine::{ExchangeKey, GuestKey, Lane, Moved, Response};
use flatout_wire::h1::Trailers;
use flatout_wire::h2::{Code, Connection, Limits, STREAMS_MAX_CEILING, StreamId, TINY_DATA_BYTES};
use flatout_wire::head::{HEAD_BYTES_CEILING, HeadLimits};

use super::job::{Job, Pulled};
use super::link::{Flushed, Link, Place};
use super::links::{Group, Links, State};
use super::response::FIELDS_MAX;

pub(super) use health::status as health_status;

/// How often one request may be sent to a server whose GOAWAY says that it was not processed.
pub(super) const REFUSALS_MAX: u8 = 20;

/// How many of these a REFUSED_STREAM counts for: the next server may refuse it too.
const REFUSED_COSTS: u8 = 4;

/// Content of one response that may wait for its client: memory per stream. At a round trip of a millisecond this
/// allows one stream 256 MB per second.
const STREAM_WINDOW: u32 = 256 << 10;

/// Streams that a server may reset, beyond the number it has served, before the connection is closed.
const RESETS_MAX: u32 = 1000;

/// Frames without effect: twice as many as can be in flight, given its window, for a stream that we have reset.
const IDLE_FRAMES_MAX: u32 = 2 * STREAM_WINDOW / TINY_DATA_BYTES as u32;

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
    over: Vec<(StreamId, Over)>,
    /// Bytes to send, from `sent` on.
    out: Vec<u8>,
    sent: usize,
    /// Number of successful receives.
    receipts: u64,
    /// Number of streams that hold content because their client has no room.
    holding: usize,
    /// Its list in the server's pool.
    shelf: Shelf,
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
    /// The response is complete, with these trailers, except for held content.
    end: Option<Trailers>,
    /// Request content that waits for flow-control credit.
    rest: Bytes,
    /// The part of a pulled body that was taken, while it is small and the response has not started.
    kept: Option<Vec<u8>>,
    /// When the server last made progress on it.
    seen_ns: u64,
    /// The session's `receipts` when it started.
    began: u64,
    /// It is in `turns`.
    has_turn: bool,
    /// It is in `over`.
    is_over: bool,
}

/// How the request of a stream has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Over {
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
    /// The client's body is malformed or too large.
    BadBody,
    /// The server was silent for too long.
    Slow,
}

/// The list of its pool that a connection is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shelf {
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
            stream_window: STREAM_WINDOW,
            // A client that stops reading must not block the others.
            connection_window: STREAM_WINDOW.saturating_mul(streams_max),
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
            shelf: Shelf::None,
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

    fn by_exchange(&self, key: ExchangeKey) -> Option<StreamId> {
        self.streams.iter().find(|entry| entry.exchange == Some(key)).map(|entry| entry.id)
    }

    /// Records how a stream ended; only the first end counts.
    fn end(&mut self, id: StreamId, over: Over) {
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
    fn new(job: Box<Job>, began: u64, now_ns: u64) -> Stream {
        let is_pulled = job.pulled != Pulled::Not;
        Stream {
            rest: job.body.clone(),
            kept: is_pulled.then(|| job.body.to_vec()),
            job,
            response: None,
            length: None,
            joined: Vec::new(),
            held: Vec::new(),
            end: None,
            seen_ns: now_ns,
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

    /// Whether the stream waits for its client rather than for the server.
    fn awaits_client(&self) -> bool {
        let awaits_body = matches!(self.job.pulled, Pulled::Waiting | Pulled::Begun) && self.rest.is_empty();
        awaits_body || !self.held.is_empty()
    }
}

impl Link {
    /// Its session, and what the session needs of the link.
    fn shared(&mut self) -> Option<(&mut Session, GuestKey, Place)> {
        let (guest, place) = (self.guest, self.place);
        self.session.as_deref_mut().map(|session| (session, guest, place))
    }
}

impl Group {
    /// An HTTP/2 connection to a server that has room for a request.
    pub(super) fn shared_link(&self, server: usize) -> Option<usize> {
        let pool = self.pools.get(server)?;
        pool.shared.first().or(pool.idle.last()).copied()
    }
}

impl State {
    /// Whether this entry is still the same connection.
    fn is_still(&mut self, at: usize, guest: GuestKey) -> bool {
        self.table.get(at).is_some_and(|link| link.guest == guest)
    }
}

impl Links {
    /// Schedules a connection for the next turn.
    fn schedule(&self, session: &mut Session, guest: GuestKey) {
        if !std::mem::replace(&mut session.is_scheduled, true) {
            self.lane.call_again(guest);
        }
    }
}
