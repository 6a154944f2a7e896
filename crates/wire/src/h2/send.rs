//! Sends messages, and schedules streams.

use super::connection::{Connection, Leaving, Phase, Side};
use super::event::StreamId;
use super::frame::{Code, FRAME_HEAD_BYTES, PAYLOAD_BYTES_MAX, flag, kind, write_head, write_reset};
use super::hpack::NO_TABLE;
use super::limits::{CUT_DATA_BYTES, FRAMES_REFUNDED};
use super::priority::Priority;

/// A request to send.
#[derive(Debug, Clone, Copy, Default)]
pub struct Asking {
    /// Nothing follows the head.
    pub is_whole: bool,
    /// HEAD: the response has no content.
    pub is_head: bool,
    /// CONNECT: a 2xx is followed by the tunnel.
    pub is_connect: bool,
    /// The declared length of the content.
    pub length: Option<u64>,
}

impl Connection {
    /// Whether a request can be sent now (client).
    pub fn can_ask(&self) -> bool {
        self.role == Side::Client
            && !self.is_closed()
            && !self.is_peer_leaving
            && self.leaving == Leaving::No
            && self.streams.len() < self.peer.streams_max.min(self.limits.streams_max) as usize
            && self.next_stream < i32::MAX as u32
    }

    /// Whether the server supports extended CONNECT (client).
    pub fn can_connect_protocol(&self) -> bool {
        self.peer.connect_protocol
    }

    /// Starts a request: `encode` writes its fields, pseudo-header fields first. `None` if [`Connection::can_ask`] is
    /// false.
    pub fn ask(
        &mut self,
        asking: Asking,
        encode: impl FnOnce(&mut Vec<u8>),
        out: &mut Vec<u8>,
    ) -> Option<StreamId> {
        if !self.can_ask() {
            return None;
        }
        let id = self.next_stream;
        self.next_stream += 2;
        let mut stream = self.new_stream(id);
        stream.is_local_open = !asking.is_whole;
        stream.is_head = asking.is_head;
        stream.is_connect = asking.is_connect;
        stream.send_left = asking.length;
        self.streams.insert(stream);
        self.write_block(id, asking.is_whole, encode, out);
        Some(StreamId(id))
    }

    /// Starts a response: `encode` writes its fields, `:status` first. `length` is the declared length of the
    /// content; `ends` means that there is none. Returns whether the content is to be sent: not if the stream has
    /// ended, nor for HEAD.
    pub fn respond(
        &mut self,
        stream: StreamId,
        length: Option<u64>,
        ends: bool,
        encode: impl FnOnce(&mut Vec<u8>),
        out: &mut Vec<u8>,
    ) -> bool {
        let id = stream.0;
        let Some(stream) =
            self.streams.get_mut(id).filter(|stream| stream.is_local_open && !stream.has_answer)
        else {
            return false;
        };
        let ends = ends || stream.is_head;
        stream.has_answer = true;
        stream.send_left = length;
        self.write_block(id, ends, encode, out);
        if ends {
            self.local_ended(id);
        }
        !ends
    }

    /// Writes an interim response before the response. Returns whether that is allowed.
    pub fn inform(&mut self, stream: StreamId, encode: impl FnOnce(&mut Vec<u8>), out: &mut Vec<u8>) -> bool {
        let is_open = |stream: &super::streams::Stream| stream.is_local_open && !stream.has_answer;
        if self.role == Side::Client || !self.streams.get(stream.0).is_some_and(is_open) {
            return false;
        }
        self.write_block(stream.0, false, encode, out);
        true
    }

    /// Ends a message with trailer fields. Returns whether that succeeded: if less content was sent than declared,
    /// the stream is reset.
    pub fn trailers(
        &mut self,
        stream: StreamId,
        encode: impl FnOnce(&mut Vec<u8>),
        out: &mut Vec<u8>,
    ) -> bool {
        let id = stream.0;
        match self.streams.get(id).filter(|stream| stream.is_local_open) {
            Some(stream) if stream.send_left.is_none_or(|left| left == 0) => {}
            Some(_) => {
                self.reset(StreamId(id), Code::INTERNAL_ERROR, out);
                return false;
            }
            None => return false,
        }
        self.write_block(id, true, encode, out);
        self.local_ended(id);
        true
    }

    /// How many bytes of content may be sent in one frame now.
    #[inline]
    pub fn room(&self, stream: StreamId) -> usize {
        let Some(stream) = self.streams.get(stream.0).filter(|stream| stream.is_local_open) else { return 0 };
        let room = stream.send_window.min(self.send_window);
        usize::try_from(room).unwrap_or(0).min(PAYLOAD_BYTES_MAX)
    }

    /// Whether more of our message can be sent on a stream, now or later: it was not reset, nor ended.
    pub fn is_open(&self, stream: StreamId) -> bool {
        self.streams.get(stream.0).is_some_and(|stream| stream.is_local_open)
    }

    /// Whether the peer may still send on a stream.
    pub fn awaits_content(&self, stream: StreamId) -> bool {
        self.streams.get(stream.0).is_some_and(|stream| stream.is_remote_open)
    }

    /// How much content the peer has declared and not sent on a stream that it has not ended; `None` if that is not known.
    pub fn content_left(&self, stream: StreamId) -> Option<u64> {
        self.streams.get(stream.0).filter(|stream| stream.is_remote_open)?.length_left
    }

    /// Whether a stream waits for its response (server).
    pub fn owes_response(&self, stream: StreamId) -> bool {
        self.streams.get(stream.0).is_some_and(|stream| stream.is_local_open && !stream.has_answer)
    }

    /// Whether a response has started and not ended (server).
    pub fn is_responding(&self, stream: StreamId) -> bool {
        self.streams.get(stream.0).is_some_and(|stream| stream.is_local_open && stream.has_answer)
    }

    /// Writes the frame head for `bytes` bytes of content, at most as many as there is [room](Connection::room) for;
    /// the bytes themselves follow it. `waiting` is how many more the application has now; `ends` that these are the
    /// last. Returns whether it was written: not if the stream has ended, nor if the content contradicts the declared
    /// length, which resets the stream.
    pub fn content(
        &mut self,
        stream: StreamId,
        bytes: usize,
        waiting: usize,
        ends: bool,
        out: &mut Vec<u8>,
    ) -> bool {
        let id = stream.0;
        let Some(entry) = self.streams.get_mut(id).filter(|stream| stream.is_local_open) else {
            return false;
        };
        let left = entry.send_left.map(|left| left.checked_sub(bytes as u64));
        let is_unfit = matches!(left, Some(None)) || (ends && matches!(left, Some(Some(1..))));
        let room = entry.send_window.min(self.send_window);
        let is_over = room < bytes as i64 || bytes > PAYLOAD_BYTES_MAX;
        debug_assert!(!is_over || bytes == 0, "more content than there is room");
        if is_unfit || (is_over && bytes > 0) {
            self.reset(stream, Code::INTERNAL_ERROR, out);
            return false;
        }
        entry.send_left = left.flatten();
        entry.send_window -= bytes as i64;
        self.send_window -= bytes as i64;
        // A window opened in tiny steps makes us write a frame for almost nothing. Content produced in small pieces
        // does so too, but then the window is not the reason.
        if bytes < CUT_DATA_BYTES && waiting > 0 && room == bytes as i64 {
            if let Err(fault) = self.budgets.frames(1) {
                self.fail(fault, out);
                return false;
            }
        } else {
            self.budgets.useful(FRAMES_REFUNDED);
        }
        write_head(bytes, kind::DATA, if ends { flag::END_STREAM } else { 0 }, id, out);
        if ends {
            self.local_ended(id);
        }
        true
    }

    /// Resets a stream for a reason of ours. The application holds it until it is [released](Connection::release).
    pub fn reset(&mut self, stream: StreamId, code: Code, out: &mut Vec<u8>) {
        if self.is_closed() || self.streams.get(stream.0).is_none_or(|stream| stream.is_over()) {
            return;
        }
        write_reset(stream.0, code, out);
        self.remember_reset(stream.0);
        self.break_off(stream.0);
    }

    /// The application releases a stream, and has stopped all its work for it. The rest of the peer's message is not
    /// wanted; if ours is complete, the peer is told so.
    pub fn release(&mut self, stream: StreamId, out: &mut Vec<u8>) {
        let Some(entry) = self.streams.get_mut(stream.0) else { return };
        entry.is_held = false;
        if !entry.is_over() {
            let code = if entry.is_local_open { Code::CANCEL } else { Code::NO_ERROR };
            self.reset(stream, code, out);
        }
        self.forget_if_over(stream.0);
    }

    /// The priority of a stream's response.
    pub fn priority_of(&self, stream: StreamId) -> Priority {
        self.streams.get(stream.0).map(|stream| stream.priority).unwrap_or_default()
    }

    /// Sets the priority, for the application's reasons.
    pub fn set_priority(&mut self, stream: StreamId, priority: Priority) {
        if let Some(stream) = self.streams.get_mut(stream.0) {
            stream.priority = priority;
        }
    }

    /// Sets whether a stream has content that waits for its turn.
    pub fn set_waiting(&mut self, stream: StreamId, is_waiting: bool) {
        if let Some(stream) = self.streams.get_mut(stream.0) {
            stream.is_waiting = is_waiting && stream.is_local_open;
        }
    }

    /// The stream whose turn it is, among those that wait and have room: the most urgent first; among equals in the
    /// order of their numbers, with incremental ones in turn after them (RFC 9218 section 10). Visits all streams.
    pub fn next_turn(&mut self) -> Option<StreamId> {
        if self.send_window <= 0 || self.phase != Phase::Open {
            return None;
        }
        let ready = self.streams.iter_mut().filter(|stream| stream.is_waiting && stream.send_window > 0);
        let first = ready.min_by_key(|stream| {
            let turn = if stream.priority.incremental { (1, stream.served_at) } else { (0, 0) };
            (stream.priority.urgency, turn, stream.id)
        })?;
        self.turn = self.turn.wrapping_add(1);
        first.served_at = self.turn;
        Some(StreamId(first.id))
    }

    /// Whether a stream waits for a window update; the caller has to limit the time for that (CVE-2026-49975).
    pub fn is_stalled(&self) -> bool {
        self.streams.iter().any(|stream| stream.is_waiting)
    }

    fn local_ended(&mut self, id: u32) {
        self.budgets.served();
        self.budgets.useful(FRAMES_REFUNDED);
        if let Some(stream) = self.streams.get_mut(id) {
            stream.is_local_open = false;
            stream.is_waiting = false;
        }
        self.forget_if_over(id);
    }

    /// Writes a field block in as many frames as needed, usually one.
    fn write_block(
        &mut self,
        id: u32,
        ends_stream: bool,
        encode: impl FnOnce(&mut Vec<u8>),
        out: &mut Vec<u8>,
    ) {
        let at = out.len();
        let end_stream = if ends_stream { flag::END_STREAM } else { 0 };
        write_head(0, kind::HEADERS, end_stream | flag::END_HEADERS, id, out);
        if !std::mem::replace(&mut self.has_said_no_table, true) {
            out.push(NO_TABLE);
        }
        encode(out);
        let bytes = out.len() - at - FRAME_HEAD_BYTES;
        if bytes > PAYLOAD_BYTES_MAX {
            return split_block(id, end_stream, at, self.peer.block_frame_bytes, out);
        }
        let [_, a, b, c] = (bytes as u32).to_be_bytes();
        if let Some(length) = out.get_mut(at..at + 3) {
            length.copy_from_slice(&[a, b, c]);
        }
    }
}

/// Splits the block after the frame head at `at` into frames.
#[cold]
fn split_block(id: u32, end_stream: u8, at: usize, bytes_max: usize, out: &mut Vec<u8>) {
    let block = out.split_off(at + FRAME_HEAD_BYTES);
    out.truncate(at);
    let bytes_max = bytes_max.max(PAYLOAD_BYTES_MAX);
    let pieces = block.len().div_ceil(bytes_max);
    for (number, piece) in block.chunks(bytes_max).enumerate() {
        let ends = if number + 1 == pieces { flag::END_HEADERS } else { 0 };
        match number {
            0 => write_head(piece.len(), kind::HEADERS, end_stream | ends, id, out),
            _ => write_head(piece.len(), kind::CONTINUATION, ends, id, out),
        }
        out.extend_from_slice(piece);
    }
}
