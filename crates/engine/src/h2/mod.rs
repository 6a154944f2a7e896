//! HTTP/2 on one connection: one exchange for each stream that has to wait, none for a stream that is served at once.
//!
//! ```text
//! receive ──> read buffer ──> wire::h2 ── Request, Data, End ──> service ──> Output ── flush ──> transport
//!                 ^             │ what is left of it               │            ^
//!                 └─ Work::held <┘                                 v            │ as windows and turns allow
//!                     exchange's outbox ── attend ──> Stream::content ── frame_content ─┘
//! ```
//!
//! A connection comes here when its first bytes are the HTTP/2 preface (prior knowledge), or when TLS has selected
//! it. Its `h1` machine is then closed, so that nothing is handled as HTTP/1. While its socket accepts no more it is
//! not read: a client cannot make us queue more than it reads.

mod bodies;
mod deadlines;
mod input;
mod output;
mod requests;
mod responses;
mod websockets;

pub(crate) use bodies::read_on;
pub(crate) use deadlines::{end_streams, expire};
pub(crate) use input::{begin, visit};
pub(crate) use responses::{attend, has_news};

use std::collections::VecDeque;

use flatout_lane::clock::Ticks;
use flatout_lane::slab::Key;
use flatout_wire::h2::{Connection as Machine, Limits as MachineLimits, StreamId};
use flatout_wire::head::HeadLimits;

use crate::connection::Peer;
use crate::output::{Pace, Piece};
use crate::plan::Limits;
use crate::record::Record;

/// The streams of a connection whose whole windows its own window allows.
const STREAMS_OF_WINDOW: u32 = 4;

/// Memory of all responses of one connection that wait for windows, above which new requests are refused (and may be
/// retried). Files, and bytes that are shared, do not count.
const WAITING_BYTES_MAX: u64 = 4 << 20;

/// Unread bytes of a request's body above which the client is held back.
pub(crate) const UNREAD_BYTES_MAX: usize = 32 << 10;

/// An HTTP/2 connection.
pub(crate) struct Session {
    machine: Machine,
    /// Streams that wait for something, by id.
    streams: Vec<(StreamId, Box<Stream>)>,
    /// Content moved in either direction since the rate was last checked.
    content_bytes: u64,
    /// Memory of responses that wait for windows.
    waiting_bytes: u64,
    /// Streams that are WebSockets, or may become one.
    websockets: u32,
    /// The client, for code that takes a stream over.
    peer: Peer,
    /// Without streams: when the connection is closed.
    idle_until: Ticks,
    /// When the machine's budgets were last refilled.
    refilled_at: Ticks,
    /// Streams have content that their rate does not allow yet; looked at in the tick after this one.
    held_back_at: Option<Ticks>,
    /// The rest of a preface or of a head is awaited.
    is_beginning: bool,
    /// The client's rate is measured since the first of its streams.
    has_window: bool,
    /// Content waited for the client's windows when the rate was last judged.
    was_stalled: bool,
}

/// A stream that waits: for its body, for its response, or for room to send it.
#[derive(Default)]
struct Stream {
    exchange: Option<Key>,
    /// Content of the response that waits for windows.
    content: VecDeque<Piece>,
    content_bytes: u64,
    /// How much of it may be framed, if the rate of the response is limited.
    pace: Option<Box<Pace>>,
    /// Content came or went, and the exchange was not told how much of it is left.
    has_moved: bool,
    /// Memory that only this stream holds.
    memory_bytes: u64,
    /// The response is complete, with these trailers as whole field lines.
    end: Option<Vec<u8>>,
    /// Bytes of the request's body without credit for the client so far.
    unread_bytes: usize,
    /// The request, for [`Service::ended`](crate::Service::ended).
    record: Option<Record>,
    /// It was asked to become a WebSocket, and that was not refused: both sides send until both have ended.
    is_websocket: bool,
    /// The end of the response was framed, and the client's end is still awaited.
    has_ended: bool,
    /// The response was sent, and the request's body is still read.
    reads_on: bool,
    /// The response was sent, and the rest of the request's body is small: it is received and dropped.
    skips: bool,
    /// The client waits for 100.
    waits: bool,
    /// The owner has left the WebSocket.
    owner_has_left: bool,
    /// It was left when the rate was last judged.
    has_lingered: bool,
}

impl Stream {
    /// Memory of content that was not framed: pieces may be as small as a byte.
    fn unsent_bytes(&self) -> u64 {
        self.content_bytes + (self.content.len() * size_of::<Piece>()) as u64
    }
}

impl Session {
    /// Whether streams are WebSockets.
    pub(crate) fn has_websockets(&self) -> bool {
        self.websockets > 0
    }

    /// A new session; its first frames are written to `out`.
    pub(crate) fn new(
        limits: &Limits,
        heads: HeadLimits,
        peer: Peer,
        now: Ticks,
        out: &mut Vec<u8>,
    ) -> Session {
        let limits = MachineLimits {
            head: heads,
            streams_max: limits.streams_max,
            stream_window: limits.stream_window_bytes,
            connection_window: limits.stream_window_bytes.saturating_mul(STREAMS_OF_WINDOW),
            connect_protocol: limits.http2_websockets,
            ..MachineLimits::default()
        };
        Session {
            machine: Machine::server(limits, out),
            streams: Vec::new(),
            content_bytes: 0,
            waiting_bytes: 0,
            websockets: 0,
            peer,
            idle_until: now,
            refilled_at: now,
            held_back_at: None,
            is_beginning: true,
            has_window: false,
            was_stalled: false,
        }
    }

    fn find(&self, id: StreamId) -> Result<usize, usize> {
        self.streams.binary_search_by_key(&id, |(id, _)| *id)
    }

    fn stream(&mut self, id: StreamId) -> Option<&mut Stream> {
        let at = self.find(id).ok()?;
        self.streams.get_mut(at).map(|(_, stream)| &mut **stream)
    }

    /// The stream's entry; created if there is none.
    fn enter(&mut self, id: StreamId) -> &mut Stream {
        let at = match self.find(id) {
            Ok(at) => at,
            Err(at) => {
                self.streams.insert(at, (id, Box::default()));
                at
            }
        };
        &mut self.streams[at].1
    }

    fn take(&mut self, id: StreamId) -> Option<Box<Stream>> {
        let at = self.find(id).ok()?;
        let (_, stream) = self.streams.remove(at);
        self.waiting_bytes -= stream.memory_bytes;
        self.websockets -= u32::from(stream.is_websocket);
        Some(stream)
    }

    /// Returns a stream to the table; it has nothing left to send.
    fn put(&mut self, id: StreamId, stream: Box<Stream>) {
        if let Err(at) = self.find(id) {
            self.streams.insert(at, (id, stream));
        }
    }

    /// Whether the response of a stream was sent, and its request's body is still read.
    fn reads_on(&mut self, id: StreamId) -> bool {
        self.stream(id).is_some_and(|stream| stream.reads_on)
    }

    /// Queues content to be sent.
    fn queue(&mut self, id: StreamId, piece: Piece) {
        let bytes = piece.bytes();
        if bytes == 0 {
            return;
        }
        let stream = self.enter(id);
        stream.content_bytes += bytes;
        stream.content.push_back(piece);
    }

    /// Continues with streams that were held back, once in each tick.
    fn release_held_back(&mut self, now: Ticks) {
        if self.held_back_at.is_some_and(|at| at < now) {
            self.held_back_at = None;
            for (id, stream) in &self.streams {
                if stream.pace.is_some() && stream.content_bytes > 0 {
                    self.machine.set_waiting(*id, true);
                }
            }
        }
    }

    /// The pace of the slowest response that has more to send, if any is limited.
    fn slowest_pace(&self) -> Option<Pace> {
        let paces = self.streams.iter().filter(|(_, stream)| stream.content_bytes > 0);
        paces.filter_map(|(_, stream)| stream.pace.as_deref().copied()).min_by_key(Pace::bytes_per_s)
    }

    /// Releases memory that an idle connection does not need.
    fn rest(&mut self) {
        self.machine.rest();
        if self.streams.is_empty() {
            self.streams = Vec::new();
        }
    }

    /// Whether there is no stream.
    pub(crate) fn is_idle(&self) -> bool {
        self.machine.is_idle()
    }
}
