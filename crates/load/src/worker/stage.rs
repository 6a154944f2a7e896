//! A turn: handles what is ready, in stages.
//!
//! A stage receives from up to [`STAGE_SOCKETS`] connections, then parses the responses, then sends the next
//! requests. Everything other than a response to a waiting connection that fits its slice is handled separately.

use std::io;
use std::time::Duration;

use flatout_lane::clock;
use flatout_lane::poll::Ready;
use flatout_lane::socket::Moved;
use flatout_wire::h1::Sent;

use super::Worker;
use crate::answers::Answered;
use crate::connection::{State, place};
use crate::subscribe::{ReceivedMessages, Transport};
use crate::tally::ErrorKind;

/// Connections that are received from before any of them gets its next request, unless they are to be spread.
pub(super) const STAGE_SOCKETS: usize = 16;

/// Bytes that each of them may receive in the stage; the rest is read afterwards.
const SLICE_BYTES: usize = 32 << 10;

/// Bytes per receive of a connection that is handled separately.
const ALONE_BYTES: usize = 256 << 10;

/// The single buffer that a thread reads into: what a stage has received is at its front, piece by piece.
pub(super) const READ_BUFFER_BYTES: usize = STAGE_SOCKETS * SLICE_BYTES + ALONE_BYTES;

/// What was received from one connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Received {
    place: u32,
    /// Offset of its bytes in the buffer.
    start: u32,
    bytes: u32,
    /// The socket may have more.
    has_more: bool,
    /// When this thread turned to it.
    at_ns: u64,
}

impl Worker<'_> {
    /// Waits for events and handles all of them.
    pub(super) fn turn(&mut self, pause_ns: u64) -> io::Result<()> {
        let pause_ns = pause_ns.min(self.next_sweep_ns.saturating_sub(self.now_ns));
        let count = self.poll.wait(Duration::from_nanos(pause_ns))?;
        let mut served = 0;
        while served < count {
            served = match self.streams {
                None => self.stage(served, count),
                Some(_) => self.stage_of_streams(served, count),
            };
        }
        self.now_ns = clock::nanoseconds();
        if self.now_ns >= self.next_sweep_ns {
            self.sweep();
        }
        Ok(())
    }

    /// Handles events from number `from` on, and returns the number of the next one.
    fn stage(&mut self, from: usize, count: usize) -> usize {
        let mut next = from;
        let mut filled = 0;
        self.received.clear();
        while next < count && self.received.len() < self.stage_sockets {
            if let Some(event) = self.poll.event(next) {
                filled += self.receive(event, filled);
            }
            next += 1;
        }
        for index in 0..self.received.len() {
            let Received { place, start, bytes, at_ns, .. } = self.received[index];
            self.now_ns = at_ns;
            self.consume(place as usize, start as usize, bytes as usize);
        }
        self.send_next();
        for index in 0..self.received.len() {
            let Received { place, has_more, .. } = self.received[index];
            if has_more {
                self.read(place as usize, 0, false);
            }
        }
        next
    }

    /// Receives from a connection that waits for a response, after the `filled` bytes of this stage. Returns the
    /// number of bytes. Everything else is handled at once.
    #[inline]
    fn receive(&mut self, event: Ready, filled: usize) -> usize {
        self.now_ns = clock::nanoseconds();
        let (at, generation) = place(event.token);
        let Some(connection) = self.connections.get_mut(at).filter(|found| found.generation == generation)
        else {
            return 0;
        };
        let is_plain = event.readable()
            && !event.read_closed()
            && !event.hung_up()
            && connection.unsent.is_empty()
            && !connection.reader.is_in_body();
        let State::Open(socket) = &mut connection.state else {
            self.change(at);
            return 0;
        };
        if !is_plain {
            self.serve_alone(at, event, filled);
            return 0;
        }
        match socket.receive(&mut self.buffer[filled..filled + SLICE_BYTES]) {
            Moved::Bytes(0) => self.closed(at),
            Moved::Bytes(bytes) => {
                let (place, start, at_ns) = (at as u32, filled as u32, self.now_ns);
                let has_more = bytes == SLICE_BYTES || socket.holds_end();
                self.received.push(Received { place, start, bytes: bytes as u32, has_more, at_ns });
                return bytes;
            }
            Moved::WouldBlock => {}
            Moved::Broken => self.broken(at),
        }
        0
    }

    /// Handles an event of a socket that is not open.
    #[cold]
    pub(super) fn change(&mut self, at: usize) {
        match self.connections[at].state {
            State::Connecting(_) => self.connected(at),
            State::Shaking(_) => self.shake(at),
            State::Ending(_) => self.ending(at),
            State::Open(_) | State::Resting { .. } => {}
        }
    }

    fn serve_alone(&mut self, at: usize, event: Ready, filled: usize) {
        if event.writable() {
            self.send_rest(at);
        }
        if event.readable() || event.hung_up() {
            self.read(at, filled, event.read_closed() || event.hung_up());
        }
    }

    /// Receives until the socket is empty, after the `filled` bytes of the buffer that are in use. A short read has
    /// emptied it, unless its end is near. The clock is read for each receive: the data may just have arrived.
    fn read(&mut self, at: usize, filled: usize, to_the_end: bool) {
        loop {
            self.now_ns = clock::nanoseconds();
            let connection = &mut self.connections[at];
            let generation = connection.generation;
            let State::Open(socket) = &mut connection.state else { return };
            let room = &mut self.buffer[filled..];
            let room_bytes = room.len();
            match socket.receive(room) {
                Moved::Bytes(0) => return self.closed(at),
                Moved::Bytes(count) => {
                    let is_empty = count < room_bytes && !to_the_end && !socket.holds_end();
                    self.consume(at, filled, count);
                    self.send_next();
                    if is_empty || self.connections[at].generation != generation {
                        return;
                    }
                }
                Moved::WouldBlock => return,
                Moved::Broken => return self.broken(at),
            }
        }
    }

    /// Parses the responses in `count` bytes of the buffer, and the messages of event streams.
    #[inline]
    fn consume(&mut self, at: usize, start: usize, count: usize) {
        if self.is_counted(self.connections[at].due_ns) {
            self.tally.bytes_read += count as u64;
        }
        self.take_answers(at, start, start + count);
        if self.expected.heard.is_some() {
            self.note_messages();
            self.reply(at);
        }
    }

    #[inline]
    fn take_answers(&mut self, at: usize, start: usize, end: usize) {
        let mut taken = start;
        while taken < end {
            let connection = &mut self.connections[at];
            if connection.in_flight == 0 {
                return self.fail(at, ErrorKind::Malformed);
            }
            if connection.reader.is_switched() {
                let bytes = &mut self.buffer[taken..end];
                if let Err(kind) = connection.reader.frames(bytes, &mut self.expected) {
                    self.fail(at, kind);
                }
                return;
            }
            match connection.reader.take(&self.buffer[taken..end], &mut self.expected) {
                Ok((more, None)) => taken += more,
                Ok((more, Some(answered))) => {
                    taken += more;
                    if taken < end && connection.in_flight == 1 {
                        // There are bytes after the complete response: the connection cannot be trusted.
                        self.answered(at, Answered { keep_alive: false, ..answered });
                        self.tally.fail(ErrorKind::Malformed, 1, self.now_ns, self.times.begin_ns);
                        return self.reconnect(at);
                    }
                    self.answered(at, answered);
                }
                Err(kind) => return self.fail(at, kind),
            }
        }
    }

    /// Counts the messages that a subscriber received in the last bytes.
    fn note_messages(&mut self) {
        let Some(ReceivedMessages { messages, .. }) = &mut self.expected.heard else { return };
        let is_counted = self.now_ns >= self.times.begin_ns && self.now_ns < self.times.end_ns;
        let unix_ns = clock::unix_nanoseconds();
        for message in messages.drain(..).filter(|_| is_counted) {
            self.tally.count(self.now_ns, self.times.begin_ns);
            if let Some(sent_ns) = message {
                self.tally.latency.record(unix_ns.saturating_sub(sent_ns));
            }
        }
    }

    /// Sends the pending pong of a subscriber, if any.
    fn reply(&mut self, at: usize) {
        let Some(ReceivedMessages { reply, .. }) = &mut self.expected.heard else { return };
        if reply.is_empty() {
            return;
        }
        let reply = std::mem::take(reply);
        let connection = &mut self.connections[at];
        let State::Open(socket) = &mut connection.state else { return };
        // A server that does not read gets no more pongs.
        if !connection.unsent.is_empty() {
            return;
        }
        match socket.send(&reply) {
            Moved::Bytes(sent) => connection.unsent.extend_from_slice(&reply[sent..]),
            Moved::WouldBlock => connection.unsent.extend_from_slice(&reply),
            Moved::Broken => self.fail(at, ErrorKind::Reset),
        }
    }

    #[inline]
    pub(super) fn answered(&mut self, at: usize, answered: Answered) {
        let subscribe = self.shared.plan.subscribe;
        if matches!(subscribe, Some(Transport::Events | Transport::WebSocket)) {
            // The end of an event stream is a lost connection.
            return self.fail(at, answered.error.unwrap_or(ErrorKind::Closed));
        }
        let connection = &mut self.connections[at];
        let (due_ns, sent_ns) = (connection.due_ns, connection.since_ns);
        let status = connection.reader.status();
        connection.in_flight -= 1;
        self.in_flight_count -= 1;
        let left = connection.in_flight;
        if self.is_counted(due_ns) {
            if subscribe.is_none() {
                self.tally.answer(due_ns, sent_ns, self.now_ns, self.times.begin_ns);
            }
            self.tally.statuses.add(status);
            if let Some(kind) = answered.error {
                self.tally.fail(kind, 1, due_ns, self.times.begin_ns);
            }
        } else {
            self.note_carried();
        }
        match (answered.keep_alive, left) {
            (true, 0) if self.shared.plan.close => self.reconnect(at),
            (true, 0) => self.freed.push(at as u32),
            (true, _) => {}
            (false, 0) => self.end(at),
            (false, _) => self.fail(at, ErrorKind::Closed),
        }
    }

    /// Sends the next requests on connections whose responses have arrived.
    #[inline]
    fn send_next(&mut self) {
        for index in 0..self.freed.len() {
            let at = self.freed[index] as usize;
            // Bytes after its response may have closed it.
            if self.connections[at].is_idle() {
                self.now_ns = clock::nanoseconds();
                self.next(at, self.now_ns);
            }
        }
        self.freed.clear();
    }

    /// Sends the next request on a free connection, or lets it idle.
    #[inline(always)]
    pub(super) fn next(&mut self, at: usize, from_ns: u64) {
        let next = match self.is_past() {
            true => None,
            false => self.pace.next(self.now_ns, from_ns >= self.times.begin_ns),
        };
        match next {
            Some(due_ns) => self.send(at, due_ns.min(from_ns)),
            None => self.idle.push_back(at as u32),
        }
    }

    #[inline(always)]
    pub(super) fn send(&mut self, at: usize, due_ns: u64) {
        let depth = self.shared.plan.pipeline;
        let kind = self.mix.pick();
        let connection = &mut self.connections[at];
        let State::Open(socket) = &mut connection.state else { return };
        connection.in_flight = depth as u32;
        let is_upgrade = self.shared.plan.subscribe == Some(Transport::WebSocket);
        let sent = Sent { is_head: self.mix.is_head(kind), is_upgrade, ..Sent::default() };
        connection.reader.sent(sent, depth as u32);
        connection.kind = kind as u32;
        connection.due_ns = due_ns;
        connection.since_ns = self.now_ns;
        self.in_flight_count += depth as u64;
        let bytes = connection.reader.resume(self.mix.bytes(kind, depth));
        match socket.send(&bytes) {
            Moved::Bytes(sent) if sent == bytes.len() => {}
            Moved::Bytes(sent) => connection.unsent.extend_from_slice(&bytes[sent..]),
            Moved::WouldBlock => connection.unsent.extend_from_slice(&bytes),
            Moved::Broken => self.fail(at, ErrorKind::Reset),
        }
    }

    fn send_rest(&mut self, at: usize) {
        let connection = &mut self.connections[at];
        let State::Open(socket) = &mut connection.state else { return };
        if connection.unsent.is_empty() && !socket.wants_room() {
            return;
        }
        match socket.send(&connection.unsent) {
            Moved::Bytes(sent) => drop(connection.unsent.drain(..sent)),
            Moved::WouldBlock => {}
            Moved::Broken => self.fail(at, ErrorKind::Reset),
        }
    }

    /// Whether a request that was due then, and ends now, belongs to the counted time. In the closed loop everything
    /// that ends in the window counts, whenever it started: leaving out requests that started before would drop one
    /// response per connection and still divide by the whole window. A count of requests, and the open loop, go by
    /// when a request was due.
    #[inline]
    pub(super) fn is_counted(&self, due_ns: u64) -> bool {
        let (is_begun, is_within) = (self.now_ns >= self.times.begin_ns, self.now_ns < self.times.end_ns);
        match (self.pace.is_open(), self.shared.plan.requests_max) {
            (true, _) => due_ns >= self.times.begin_ns,
            (false, None) => is_begun && is_within,
            (false, Some(_)) => due_ns >= self.times.begin_ns && is_within,
        }
    }

    /// Counts a response to a request that was due in the warm-up, if it came in the counted time: it is part of what the server has done
    /// in that time.
    #[inline]
    pub(super) fn note_carried(&mut self) {
        let is_within = self.now_ns >= self.times.begin_ns && self.now_ns < self.times.end_ns;
        self.carried += u64::from(is_within && self.pace.is_open());
    }

    /// The same for a request without a response. One of a closed loop that fails after the end was sent before it,
    /// and would otherwise be in no figure.
    pub(super) fn is_failure_counted(&self, due_ns: u64) -> bool {
        let is_due = due_ns < self.times.end_ns
            && (self.shared.plan.requests_max.is_none() || due_ns >= self.times.begin_ns);
        self.is_counted(due_ns) || !self.pace.is_open() && self.now_ns >= self.times.end_ns && is_due
    }
}
