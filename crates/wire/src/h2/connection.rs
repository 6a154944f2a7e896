//! One connection: what is kept of it, how it begins and how it ends.

use std::collections::VecDeque;

use super::budget::Budgets;
use super::event::{Fault, StreamId};
use super::frame::{
    Code, PREFACE, WINDOW_FIRST, setting, write_goaway, write_ping, write_reset, write_settings,
    write_window_update,
};
use super::hpack::Decoder;
use super::limits::{Limits, RESETS_REMEMBERED, STREAMS_FIRST, STREAMS_MAX_CEILING};
use super::streams::{Stream, Streams};

/// One connection, as its server or its client has it.
#[derive(Debug)]
pub struct Connection {
    pub(super) role: Role,
    pub(super) phase: Phase,
    pub(super) limits: Limits,
    pub(super) decoder: Decoder,
    pub(super) streams: Streams,
    pub(super) budgets: Budgets,
    /// What comes next in the bytes, where that is no frame.
    pub(super) inside: Inside,
    /// Streams that were reset; oldest first. Few connections have any.
    #[expect(clippy::box_collection, reason = "a place for it would make every connection longer")]
    resets: Option<Box<VecDeque<u32>>>,
    /// What we may send, in all streams.
    pub(super) send_window: i64,
    /// What the peer may send, in all streams.
    pub(super) receive_window: i64,
    /// What was consumed and not given back to the peer yet.
    pub(super) credit: u32,
    pub(super) peer: PeerSettings,
    /// The highest stream that the peer has opened.
    pub(super) last_peer_stream: u32,
    /// The stream that we open next.
    pub(super) next_stream: u32,
    /// Streams above it are passed over: GOAWAY has said so.
    pub(super) last_taken: u32,
    pub(super) leaving: Leaving,
    /// The peer takes no more streams.
    pub(super) is_peer_leaving: bool,
    /// Our settings were confirmed.
    pub(super) are_settings_known: bool,
    /// The first block was written, which says that we keep no table.
    pub(super) has_said_no_table: bool,
    /// Counts the streams that were chosen to send.
    pub(super) turn: u32,
}

/// Which side this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Server,
    Client,
}

/// How far a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// The client's preface comes.
    Preface,
    /// The peer's SETTINGS come, before anything else.
    Settings,
    Open,
    /// GOAWAY with a fault was sent: nothing is read.
    Closed,
}

/// What the bytes that come next belong to.
#[derive(Debug)]
pub(super) enum Inside {
    /// A new frame.
    None,
    /// A field block that was cut: only its next frame may follow.
    Block(Box<Block>),
    /// The payload of DATA.
    Data(Data),
    /// Bytes that nobody wants.
    Skip(usize),
}

/// A field block that goes on.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) stream: u32,
    pub(super) ends_stream: bool,
    pub(super) bytes: Vec<u8>,
    pub(super) frames: u32,
}

/// A frame of content.
#[derive(Debug, Clone, Copy)]
pub(super) struct Data {
    pub(super) stream: u32,
    pub(super) bytes: usize,
    pub(super) padding: usize,
    pub(super) is_last: bool,
    /// Nobody wants it.
    pub(super) is_lost: bool,
}

/// What the peer has said of itself.
#[derive(Debug)]
pub(super) struct PeerSettings {
    pub(super) stream_window: i64,
    pub(super) streams_max: u32,
    pub(super) connect_protocol: bool,
}

/// How far we are with leaving (RFC 9113 section 6.8).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Leaving {
    No,
    /// The peer was told to open no more streams; those on their way are taken.
    Announced,
    /// It was told which stream was the last.
    Said,
}

/// What the PING carries by which we learn that the peer has seen the announcement.
pub(super) const LEAVING_PING: [u8; 8] = *b"leaving\0";

impl Connection {
    /// A server's side. Writes its first frames.
    pub fn server(limits: Limits, out: &mut Vec<u8>) -> Connection {
        Connection::new(Role::Server, limits, out)
    }

    /// A client's side. Writes the preface and its first frames.
    pub fn client(limits: Limits, out: &mut Vec<u8>) -> Connection {
        out.extend_from_slice(PREFACE);
        Connection::new(Role::Client, limits, out)
    }

    fn new(role: Role, limits: Limits, out: &mut Vec<u8>) -> Connection {
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
            Role::Server => {
                let connect = (setting::ENABLE_CONNECT_PROTOCOL, u32::from(limits.connect_protocol));
                let priorities = (setting::NO_RFC7540_PRIORITIES, 1);
                write_settings(&[streams, window, heads, priorities, connect], out);
            }
            Role::Client => write_settings(&[(setting::ENABLE_PUSH, 0), streams, window, heads], out),
        }
        let more = limits.connection_window - WINDOW_FIRST as u32;
        if more > 0 {
            write_window_update(0, more, out);
        }
        Connection {
            role,
            phase: if role == Role::Server { Phase::Preface } else { Phase::Settings },
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

    /// Whether the connection is over by a fault: what was written is to be sent, and nothing more is read.
    pub fn is_closed(&self) -> bool {
        self.phase == Phase::Closed
    }

    /// Whether the peer has begun as it should: the time for that is the caller's to keep.
    pub fn has_begun(&self) -> bool {
        matches!(self.phase, Phase::Open) && self.are_settings_known
    }

    /// Whether the peer's SETTINGS have come: it speaks HTTP/2, and it is known how many streams it takes.
    pub fn knows_peer(&self) -> bool {
        self.phase == Phase::Open
    }

    /// Whether no stream lives, and no part of a frame is waited for.
    pub fn is_idle(&self) -> bool {
        self.streams.len() == 0 && matches!(self.inside, Inside::None)
    }

    /// Whether all that will be said was said: we are leaving, or the peer is, and no stream lives.
    pub fn is_done(&self) -> bool {
        let is_leaving = self.leaving == Leaving::Said || self.is_peer_leaving;
        self.phase == Phase::Closed || (is_leaving && self.streams.len() == 0)
    }

    /// How many streams the peer takes at a time, as far as it has said.
    pub fn peer_streams_max(&self) -> u32 {
        self.peer.streams_max
    }

    /// How many streams live, those that were reset and that the application still has included.
    pub fn streams_count(&self) -> usize {
        self.streams.len()
    }

    /// A second has passed: budgets fill again.
    pub fn refill(&mut self) {
        self.budgets.refill();
    }

    /// Releases memory that an idle connection does not need. What was reset is remembered: some of it may be on its way.
    pub fn rest(&mut self) {
        if self.is_idle() {
            self.streams.rest();
            if let Some(resets) = &mut self.resets {
                resets.shrink_to_fit();
            }
        }
    }

    /// Memory that it takes, itself included.
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

    /// Begins to leave: the peer is told to open no more streams, and those that are on their way are still taken. Once its answer
    /// to a PING has come, it is told which the last one was.
    pub fn leave(&mut self, out: &mut Vec<u8>) {
        if self.leaving != Leaving::No || self.is_closed() {
            return;
        }
        if self.role == Role::Client || self.phase == Phase::Preface {
            return self.leave_now(out);
        }
        self.leaving = Leaving::Announced;
        write_goaway(i32::MAX as u32, Code::NO_ERROR, "", out);
        write_ping(0, &LEAVING_PING, out);
    }

    /// Leaves without waiting: streams that come from now on are passed over.
    pub fn leave_now(&mut self, out: &mut Vec<u8>) {
        if self.leaving == Leaving::Said || self.is_closed() {
            return;
        }
        self.leaving = Leaving::Said;
        self.last_taken = self.last_peer_stream;
        write_goaway(self.last_peer_stream, Code::NO_ERROR, "", out);
    }

    /// Ends the connection with a fault. Returns it.
    #[cold]
    pub(super) fn fail(&mut self, fault: Fault, out: &mut Vec<u8>) -> Fault {
        if !self.is_closed() {
            self.phase = Phase::Closed;
            self.inside = Inside::None;
            write_goaway(self.last_peer_stream.min(self.last_taken), fault.code, fault.reason, out);
        }
        fault
    }

    /// Ends the connection for a reason of the caller's, such as a peer that is too slow.
    pub fn close(&mut self, code: Code, reason: &'static str, out: &mut Vec<u8>) {
        self.fail(Fault { code, reason }, out);
    }

    /// Resets a stream because of what the peer did: that is counted. Returns whether the application has it, and is to
    /// hear of it.
    pub(super) fn reset_for_fault(&mut self, id: u32, code: Code, out: &mut Vec<u8>) -> Result<bool, Fault> {
        self.budgets.reset()?;
        write_reset(id, code, out);
        self.remember_reset(id);
        Ok(self.break_off(id))
    }

    /// Ends a stream at once. Returns whether the application has it.
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

    /// Whether a stream was reset by us a short while ago: what comes of it was sent before the peer knew.
    pub(super) fn was_reset(&self, id: u32) -> bool {
        self.resets.as_ref().is_some_and(|resets| resets.contains(&id))
    }

    /// Forgets a stream that both sides and the application are done with.
    pub(super) fn forget_if_over(&mut self, id: u32) {
        if self.streams.get(id).is_some_and(|stream| stream.is_over() && !stream.is_held) {
            self.streams.remove(id);
        }
    }

    /// Whether a stream was never opened.
    pub(super) fn is_unopened(&self, id: u32) -> bool {
        let is_ours = (id % 2 == 1) == (self.role == Role::Client);
        if is_ours { id >= self.next_stream } else { id > self.last_peer_stream }
    }

    pub(super) fn new_stream(&self, id: u32) -> Stream {
        Stream::new(id, self.peer.stream_window, i64::from(self.limits.stream_window))
    }

    /// Streams that the application has.
    pub fn held_streams(&self) -> impl Iterator<Item = StreamId> {
        self.streams.iter().filter(|stream| stream.is_held).map(|stream| StreamId(stream.id))
    }
}
