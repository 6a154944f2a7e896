//! The state of a connection, its start and its end.

use std::collections::VecDeque;

use super::budget::Budgets;
use super::event::{ConnectionFault, StreamId};
use super::frame::{
    Code, PAYLOAD_BYTES_MAX, PREFACE, WINDOW_FIRST, setting, write_goaway, write_ping, write_reset,
    write_settings, write_window_update,
};
use super::hpack::Decoder;
use super::limits::{Limits, RESETS_REMEMBERED, STREAMS_FIRST, STREAMS_MAX_CEILING};
use super::streams::{Stream, Streams};

/// A connection, from the side of the server or the client.
#[derive(Debug)]
pub struct Connection {
    pub(super) role: Side,
    pub(super) phase: Phase,
    pub(super) limits: Limits,
    pub(super) decoder: Decoder,
    pub(super) streams: Streams,
    pub(super) budgets: Budgets,
    /// The state between or inside frames.
    pub(super) inside: Inside,
    /// Streams that were reset; oldest first. Few connections have any.
    #[expect(clippy::box_collection, reason = "a place for it would make every connection longer")]
    resets: Option<Box<VecDeque<u32>>>,
    /// Our send window, for all streams.
    pub(super) send_window: i64,
    /// The connection's receive window.
    pub(super) receive_window: i64,
    /// Bytes consumed but not yet returned to the peer as window.
    pub(super) credit: u32,
    pub(super) peer: PeerSettings,
    /// The highest stream opened by the peer.
    pub(super) last_peer_stream: u32,
    /// The next stream that we open.
    pub(super) next_stream: u32,
    /// Higher streams are ignored, as GOAWAY has announced.
    pub(super) last_taken: u32,
    pub(super) leaving: Leaving,
    /// The peer accepts no more streams.
    pub(super) is_peer_leaving: bool,
    /// Our settings were acknowledged.
    pub(super) are_settings_known: bool,
    /// The first block was written, which announces that we have no dynamic table.
    pub(super) has_said_no_table: bool,
    /// Counts how often a stream was chosen to send.
    pub(super) turn: u32,
}

/// The side of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Server,
    Client,
}

/// The phase of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// The client's preface is expected.
    Preface,
    /// The peer's SETTINGS are expected before any other frame.
    Settings,
    Open,
    /// GOAWAY with an error was sent: nothing more is read.
    Closed,
}

/// What the next bytes belong to.
#[derive(Debug)]
pub(super) enum Inside {
    /// A new frame.
    None,
    /// An incomplete field block: only its next frame may follow.
    Block(Box<Block>),
    /// The payload of DATA.
    Data(Data),
    /// Bytes to discard.
    Skip(usize),
}

/// An incomplete field block.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) stream: u32,
    pub(super) ends_stream: bool,
    pub(super) bytes: Vec<u8>,
    pub(super) frames: u32,
}

/// A DATA frame.
#[derive(Debug, Clone, Copy)]
pub(super) struct Data {
    pub(super) stream: u32,
    pub(super) bytes: usize,
    pub(super) padding: usize,
    pub(super) is_last: bool,
    /// Its content is discarded.
    pub(super) is_lost: bool,
}

/// The peer's settings.
#[derive(Debug)]
pub(super) struct PeerSettings {
    pub(super) stream_window: i64,
    pub(super) streams_max: u32,
    pub(super) connect_protocol: bool,
    /// The largest frame of a field block.
    pub(super) block_frame_bytes: usize,
}

/// The phase of a graceful shutdown (RFC 9113 section 6.8).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Leaving {
    No,
    /// The peer was told to open no more streams; those already sent are accepted.
    Announced,
    /// The peer was told the last stream.
    Said,
}

/// The payload of the PING whose acknowledgement shows that the peer has seen the announcement.
pub(super) const LEAVING_PING: [u8; 8] = *b"leaving\0";

impl Connection {
    /// Creates the server's side, and writes its first frames.
    pub fn server(limits: Limits, out: &mut Vec<u8>) -> Connection {
        Connection::new(Side::Server, limits, out)
    }

    /// Creates the client's side, and writes the preface and its first frames.
    pub fn client(limits: Limits, out: &mut Vec<u8>) -> Connection {
        out.extend_from_slice(PREFACE);
        Connection::new(Side::Client, limits, out)
    }

    fn new(role: Side, limits: Limits, out: &mut Vec<u8>) -> Connection {
        let limits = Limits {
            streams_max: limits.streams_max.clamp(1, STREAMS_MAX_CEILING),
            stream_window: limits.stream_window.clamp(1, i32::MAX as u32),
            connection_window: limits.connection_window.clamp(WINDOW_FIRST as u32, i32::MAX as u32),
            ..limits
        };
        let heads = (setting::MAX_HEADER_LIST_SIZE, limits.head.head_bytes_max as u32);
        let window = (setting::INITIAL_WINDOW_SIZE, limits.stream_window);
        let streams = (setting::MAX_CONCURRENT_STREAMS, limits.streams_max);
        match role {
            Side::Server => {
                let connect = (setting::ENABLE_CONNECT_PROTOCOL, u32::from(limits.connect_protocol));
                let priorities = (setting::NO_RFC7540_PRIORITIES, 1);
                write_settings(&[streams, window, heads, priorities, connect], out);
            }
            Side::Client => write_settings(&[(setting::ENABLE_PUSH, 0), streams, window, heads], out),
        }
        let more = limits.connection_window - WINDOW_FIRST as u32;
        if more > 0 {
            write_window_update(0, more, out);
        }
        Connection {
            role,
            phase: if role == Side::Server { Phase::Preface } else { Phase::Settings },
            limits,
            decoder: Decoder::default(),
            streams: Streams::default(),
            budgets: Budgets::new(&limits),
            inside: Inside::None,
            resets: None,
            send_window: i64::from(WINDOW_FIRST),
            receive_window: i64::from(limits.connection_window),
            credit: 0,
            peer: PeerSettings {
                stream_window: i64::from(WINDOW_FIRST),
                streams_max: STREAMS_FIRST,
                connect_protocol: false,
                block_frame_bytes: PAYLOAD_BYTES_MAX,
            },
            last_peer_stream: 0,
            next_stream: 1,
            last_taken: u32::MAX,
            leaving: Leaving::No,
            is_peer_leaving: false,
            are_settings_known: false,
            has_said_no_table: false,
            turn: 0,
        }
    }

    /// Whether the connection has ended with an error: written bytes are to be sent, but nothing more is read.
    pub fn is_closed(&self) -> bool {
        self.phase == Phase::Closed
    }

    /// Whether the peer has started correctly; the caller has to limit the time for that.
    pub fn has_begun(&self) -> bool {
        matches!(self.phase, Phase::Open) && self.are_settings_known
    }

    /// Whether the peer's SETTINGS were received: it supports HTTP/2, and its stream limit is known.
    pub fn knows_peer(&self) -> bool {
        self.phase == Phase::Open
    }

    /// Whether there are no streams and no partial frame.
    pub fn is_idle(&self) -> bool {
        self.streams.len() == 0 && matches!(self.inside, Inside::None)
    }

    /// Whether nothing more will be sent: we or the peer are shutting down, and there are no streams.
    pub fn is_done(&self) -> bool {
        let is_leaving = self.leaving == Leaving::Said || self.is_peer_leaving;
        self.phase == Phase::Closed || (is_leaving && self.streams.len() == 0)
    }

    /// The peer's limit of concurrent streams, if known.
    pub fn peer_streams_max(&self) -> u32 {
        self.peer.streams_max
    }

    /// The number of streams, including reset ones that the application has not released.
    pub fn streams_count(&self) -> usize {
        self.streams.len()
    }

    /// A second has passed: refills the budgets.
    pub fn refill(&mut self) {
        self.budgets.refill();
    }

    /// Frees memory that an idle connection does not need. Reset streams are remembered, because frames for them may
    /// still arrive.
    pub fn rest(&mut self) {
        if self.is_idle() {
            self.streams.rest();
            if let Some(resets) = &mut self.resets {
                resets.shrink_to_fit();
            }
        }
    }

    /// The memory that it uses, itself included.
    pub fn memory_bytes(&self) -> usize {
        let block = match &self.inside {
            Inside::Block(block) => size_of::<Block>() + block.bytes.capacity(),
            _ => 0,
        };
        size_of::<Connection>()
            + block
            + self.decoder.memory_bytes()
            + self.streams.memory_bytes()
            + self
                .resets
                .as_ref()
                .map_or(0, |resets| size_of::<VecDeque<u32>>() + resets.capacity() * size_of::<u32>())
    }

    /// Starts a graceful shutdown: the peer is told to open no more streams, and those already sent are accepted.
    /// Once the PING is acknowledged, the peer is told the last stream.
    pub fn leave(&mut self, out: &mut Vec<u8>) {
        if self.leaving != Leaving::No || self.is_closed() {
            return;
        }
        if self.role == Side::Client || self.phase == Phase::Preface {
            return self.leave_now(out);
        }
        self.leaving = Leaving::Announced;
        write_goaway(i32::MAX as u32, Code::NO_ERROR, "", out);
        write_ping(0, &LEAVING_PING, out);
    }

    /// Shuts down without waiting: new streams are ignored from now on.
    pub fn leave_now(&mut self, out: &mut Vec<u8>) {
        if self.leaving == Leaving::Said || self.is_closed() {
            return;
        }
        self.leaving = Leaving::Said;
        self.last_taken = self.last_peer_stream;
        write_goaway(self.last_peer_stream, Code::NO_ERROR, "", out);
    }

    /// Ends the connection with an error. Returns it.
    #[cold]
    pub(super) fn fail(&mut self, fault: ConnectionFault, out: &mut Vec<u8>) -> ConnectionFault {
        if !self.is_closed() {
            self.phase = Phase::Closed;
            self.inside = Inside::None;
            write_goaway(self.last_peer_stream.min(self.last_taken), fault.code, fault.reason, out);
        }
        fault
    }

    /// Ends the connection for a reason of the caller, such as a slow peer.
    pub fn close(&mut self, code: Code, reason: &'static str, out: &mut Vec<u8>) {
        self.fail(ConnectionFault { code, reason }, out);
    }

    /// Resets a stream because of the peer's fault, and counts that. Returns whether the application holds the
    /// stream, and so has to be notified.
    pub(super) fn reset_for_fault(
        &mut self,
        id: u32,
        code: Code,
        out: &mut Vec<u8>,
    ) -> Result<bool, ConnectionFault> {
        self.budgets.reset()?;
        write_reset(id, code, out);
        self.remember_reset(id);
        Ok(self.break_off(id))
    }

    /// Ends a stream at once. Returns whether the application holds it.
    pub(super) fn break_off(&mut self, id: u32) -> bool {
        let Some(stream) = self.streams.get_mut(id) else { return false };
        stream.break_off();
        let is_held = stream.is_held;
        self.forget_if_over(id);
        is_held
    }

    pub(super) fn remember_reset(&mut self, id: u32) {
        let resets = self.resets.get_or_insert_default();
        if resets.len() == RESETS_REMEMBERED {
            resets.pop_front();
        }
        resets.push_back(id);
    }

    /// Whether we have reset this stream recently: frames for it may have been sent before the peer received
    /// the reset.
    pub(super) fn was_reset(&self, id: u32) -> bool {
        self.resets.as_ref().is_some_and(|resets| resets.contains(&id))
    }

    /// Drops a stream that both sides and the application have finished.
    pub(super) fn forget_if_over(&mut self, id: u32) {
        if self.streams.get(id).is_some_and(|stream| stream.is_over() && !stream.is_held) {
            self.streams.remove(id);
        }
    }

    /// Whether a stream was never opened.
    pub(super) fn is_unopened(&self, id: u32) -> bool {
        let is_ours = (id % 2 == 1) == (self.role == Side::Client);
        if is_ours { id >= self.next_stream } else { id > self.last_peer_stream }
    }

    pub(super) fn new_stream(&self, id: u32) -> Stream {
        Stream::new(id, self.peer.stream_window, i64::from(self.limits.stream_window))
    }

    /// Streams that the application holds.
    pub fn held_streams(&self) -> impl Iterator<Item = StreamId> {
        self.streams.iter().filter(|stream| stream.is_held).map(|stream| StreamId(stream.id))
    }
}
