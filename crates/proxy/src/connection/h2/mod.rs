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
//! together, and a stream holds at most its own window. Requests wait until the server's SETTINGS have arrived: until
//! then it is certain that none was processed. Some servers send theirs only after the first request. So after
//! [`SETTINGS_WAIT`] one request is sent without them.

mod bodies;
pub(crate) mod frames;
pub(crate) mod head;
pub(crate) mod stream;
pub(crate) mod windows;

use std::collections::VecDeque;
use std::time::Duration;

use flatout_engine::{ExchangeKey, GuestKey, Lane, Moved, bug};
use flatout_wire::h2::{Connection, Limits, STREAMS_MAX_CEILING, StreamId, TINY_DATA_BYTES};
use flatout_wire::head::{HEAD_BYTES_CEILING, HeadLimits};

use crate::connection::h2::stream::{Entry, Stream, StreamEnd};
use crate::connection::h2::windows::{FIRST_BYTES, GROWN_BYTES};
use crate::connection::response::FIELDS_MAX;
use crate::connection::{ConnectionProtocol, Flushed, UpstreamConnection};
use crate::request::job::Job;
use crate::table::ServerId;

/// How many of these a REFUSED_STREAM counts for: the next server may refuse it too.
pub(crate) const REFUSED_COSTS: u8 = 4;

/// How long requests wait at least for the server's SETTINGS before one is sent without them; deadlines are checked once a
/// second. Servers that send them at once need one round trip, which is shorter.
pub(crate) const SETTINGS_WAIT: Duration = Duration::from_millis(200);

/// Streams that a server may reset, beyond the number it has served, before the connection is closed.
pub(crate) const RESETS_MAX: u32 = 1000;

/// Frames without effect: twice as many as can be in flight, given its window, for a stream that we have reset.
pub(crate) const IDLE_FRAMES_MAX: u32 = 2 * GROWN_BYTES / TINY_DATA_BYTES as u32;

/// A piece of content that is as long is passed on by itself; smaller ones of one turn are joined up to this length.
pub(crate) const JOINED_BYTES_MAX: usize = 8 << 10;

/// Bytes that wait for the socket, over which no more content is framed and nothing is read.
pub(crate) const OUT_BYTES_MAX: usize = 64 << 10;

/// Capacity of this buffer that is kept.
pub(crate) const OUT_BYTES_KEPT: usize = 16 << 10;

/// An HTTP/2 session with a server.
pub(crate) struct Session {
    pub(crate) machine: Connection,
    /// Sorted by stream id, since ids only grow.
    pub(crate) streams: Vec<Entry>,
    /// Requests that wait until the connection is open.
    #[expect(clippy::vec_box, reason = "they come and go in their boxes")]
    pub(crate) waiting: Vec<Box<Job>>,
    /// Streams that may have content to send, in turn.
    pub(crate) turns: VecDeque<StreamId>,
    /// Responses that are held until everything received was processed, in case they are complete by then.
    pub(crate) deferred: Vec<StreamId>,
    /// Streams that have pieces to join.
    pub(crate) joining: Vec<StreamId>,
    /// Streams that have ended, and how.
    pub(crate) over: Vec<(StreamId, StreamEnd)>,
    /// Bytes to send, from `sent` on.
    pub(crate) out: Vec<u8>,
    pub(crate) sent: usize,
    /// Number of successful receives.
    pub(crate) receipts: u64,
    /// Number of streams that hold content because their client has no room.
    pub(crate) holding: usize,
    /// Some of its streams wait for their clients.
    pub(crate) is_starving: bool,
    /// Some of its streams may be spooled.
    pub(crate) has_spools: bool,
    /// Bodies of requests may be read from files.
    pub(crate) has_stored: bool,
    /// Its list in the server's pool.
    pub(crate) shelf: PoolList,
    /// A response was completed.
    pub(crate) has_served: bool,
    /// The server's SETTINGS have arrived.
    pub(crate) is_ready: bool,
    /// They are late, so that the first request is sent without them.
    pub(crate) is_late: bool,
    /// It is called again in the next turn, to send what all requests of this turn have written.
    pub(crate) is_scheduled: bool,
    /// It has refused a stream: it gets no more until one of its streams has ended.
    pub(crate) is_resting: bool,
    /// The server has closed, or violated the protocol. Responses that were completed before still go to their
    /// clients.
    pub(crate) is_gone: bool,
}

/// The list of its pool that a connection is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PoolList {
    /// It accepts no more requests for now.
    None,
    /// It carries requests and has room for more.
    Shared,
    Idle,
}

impl Session {
    pub(crate) fn new(streams_max: u32) -> Session {
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
            is_starving: false,
            has_spools: false,
            has_stored: false,
            shelf: PoolList::None,
            has_served: false,
            is_ready: false,
            is_late: false,
            is_scheduled: false,
            is_resting: false,
            is_gone: false,
        }
    }

    pub(crate) fn has_room(&self, streams_max: u32) -> bool {
        let streams_max = streams_max.min(STREAMS_MAX_CEILING) as usize;
        match self.is_ready {
            false => self.waiting.len() + self.streams.len() < streams_max,
            true => {
                let is_open = !self.is_resting && !self.is_gone && self.machine.can_ask();
                is_open && self.streams.len() < streams_max
            }
        }
    }

    /// Whether it carries no request, but could.
    pub(crate) fn is_idle(&self) -> bool {
        self.is_ready && self.streams.is_empty()
    }

    /// Bytes that wait for the socket.
    pub(crate) fn pending_bytes(&self) -> usize {
        self.out.len() - self.sent
    }

    pub(crate) fn find(&self, id: StreamId) -> Option<usize> {
        self.streams.binary_search_by_key(&id, |entry| entry.id).ok()
    }

    /// A stream that has not ended.
    pub(crate) fn live(&mut self, id: StreamId) -> Option<&mut Stream> {
        let at = self.find(id)?;
        self.streams.get_mut(at).map(|entry| &mut *entry.stream).filter(|stream| !stream.is_over)
    }

    /// All requests.
    pub(crate) fn jobs(&self) -> impl Iterator<Item = &Job> {
        let streams = self.streams.iter().map(|entry| &*entry.stream.job);
        self.waiting.iter().map(|job| &**job).chain(streams)
    }

    /// Ends the streams of these requests, and returns those that were not sent.
    #[expect(clippy::vec_box, reason = "they come and go in their boxes")]
    pub(crate) fn end_late(&mut self, is_late: impl Fn(&Job) -> bool, over: StreamEnd) -> Vec<Box<Job>> {
        let late = self.streams.iter().filter(|entry| is_late(&entry.stream.job)).map(|entry| entry.id);
        for id in late.collect::<Vec<_>>() {
            self.end(id, over);
        }
        self.waiting.extract_if(.., |job| is_late(job)).collect()
    }

    pub(crate) fn by_exchange(&self, key: ExchangeKey) -> Option<StreamId> {
        self.streams.iter().find(|entry| entry.exchange == Some(key)).map(|entry| entry.id)
    }

    /// Records how a stream ended; only the first end counts.
    pub(crate) fn end(&mut self, id: StreamId, over: StreamEnd) {
        if let Some(stream) = self.live(id) {
            stream.is_over = true;
            self.over.push((id, over));
        }
    }

    pub(crate) fn take(&mut self, id: StreamId) -> Option<Box<Stream>> {
        let entry = self.streams.remove(self.find(id)?);
        self.holding = self.holding.saturating_sub(usize::from(!entry.stream.held.is_empty()));
        Some(entry.stream)
    }

    /// Ends the streams whose clients are gone, as only their spools know.
    pub(crate) fn end_abandoned(&mut self) {
        let is_spooled = |entry: &&Entry| !entry.stream.is_over && !entry.stream.job.receiver.is_direct();
        let spooled: Vec<(StreamId, bool)> = self
            .streams
            .iter()
            .filter(is_spooled)
            .map(|entry| (entry.id, entry.stream.job.receiver.is_abandoned()))
            .collect();
        self.has_spools = !spooled.is_empty();
        for (id, _) in spooled.into_iter().filter(|(_, is_abandoned)| *is_abandoned) {
            self.end(id, StreamEnd::Unwanted);
        }
    }

    /// Queues a stream for a turn to send content.
    pub(crate) fn give_turn(&mut self, id: StreamId) {
        if let Some(stream) = self.live(id)
            && !std::mem::replace(&mut stream.has_turn, true)
        {
            self.turns.push_back(id);
        }
    }

    /// Sends pending output.
    pub(crate) fn flush(&mut self, lane: &Lane, guest: GuestKey, is_full: &mut bool) -> Flushed {
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
    pub(crate) fn rest(&mut self) {
        self.machine.rest();
        (self.streams, self.turns) = (Vec::new(), VecDeque::new());
        if self.out.is_empty() {
            self.out = Vec::new();
        }
    }
}

impl UpstreamConnection {
    /// Its session, and what the session needs of the connection. A connection without HTTP/2 is reported as a bug.
    pub(crate) fn h2(&mut self) -> Option<(&mut Session, GuestKey, ServerId)> {
        let (guest, server_id) = (self.guest, self.server_id);
        let ConnectionProtocol::Http2(session) = &mut self.protocol else {
            bug!("{} has no HTTP/2 session", self.address);
            return None;
        };
        Some((session, guest, server_id))
    }
}
