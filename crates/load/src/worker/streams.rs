//! HTTP/2: concurrent requests on each connection.
//!
//! In a stage, each ready connection is received from until it is empty; then the next requests are sent, all of a
//! connection with one system call. Latencies are per request: from when it was due until this thread handles the
//! connection with its response.

use flatout_lane::clock;
use flatout_lane::poll::Ready;
use flatout_lane::socket::Moved;
use flatout_wire::h2::Room;

use super::Worker;
use crate::connection::place;
use crate::plan::Plan;
use crate::streams::{Blocks, Ended, Session};
use crate::tally::ErrorKind;

/// Bytes that are read at a time from a connection.
const READ_BYTES: usize = 64 << 10;

/// State shared by a thread's HTTP/2 connections.
pub(super) struct Streams {
    /// Concurrent streams per connection.
    count: usize,
    blocks: Blocks,
    /// Scratch space in which heads are assembled.
    room: Room,
    /// Results of requests that are not counted yet.
    ended: Vec<Ended>,
}

impl Streams {
    /// For thread `index` of `threads`.
    pub(super) fn new(plan: &Plan, count: usize, thread: (usize, usize)) -> Streams {
        let blocks = Blocks::new(&plan.requests, plan.tls.is_some(), thread, plan.seed);
        Streams { count, blocks, room: Room::default(), ended: Vec::new() }
    }
}

impl Worker<'_> {
    /// Starts the session of an open connection, and sends its first requests.
    pub(super) fn begin_session(&mut self, at: usize, from_ns: u64) {
        let Some(streams) = &self.streams else { return };
        let session = Session::new(self.shared.plan, streams.count);
        self.connections[at].session = Some(Box::new(session));
        self.ask(at, from_ns);
        // No event reports bytes that came with the end of the handshake, such as the SETTINGS that several streams
        // wait for.
        self.hear(at, false);
        self.ask(at, self.now_ns);
    }

    /// Handles events from number `from` on, and returns the number of the next one.
    pub(super) fn stage_of_streams(&mut self, from: usize, count: usize) -> usize {
        let mut next = from;
        self.freed.clear();
        while next < count && self.freed.len() < self.stage_sockets {
            if let Some(event) = self.poll.event(next) {
                self.receive_streams(event);
            }
            next += 1;
        }
        for index in 0..self.freed.len() {
            self.now_ns = clock::nanoseconds();
            self.ask(self.freed[index] as usize, self.now_ns);
        }
        next
    }

    fn receive_streams(&mut self, event: Ready) {
        self.now_ns = clock::nanoseconds();
        let (at, generation) = place(event.token);
        match self.connections.get(at).filter(|found| found.generation == generation) {
            None => {}
            Some(connection) if connection.session.is_none() => self.change(at),
            Some(_) => {
                self.hear(at, event.read_closed() || event.hung_up());
                self.freed.push(at as u32);
            }
        }
    }

    /// Receives until the socket is empty. Nothing is received while output is pending: an event reports when the
    /// socket has room, and the input is still there then.
    fn hear(&mut self, at: usize, to_the_end: bool) {
        while self.flush(at) {
            let Some((socket, session)) = self.connections[at].multiplexed() else { return };
            let kept = session.copy_rest(&mut self.buffer);
            let moved = socket.receive(&mut self.buffer[kept..READ_BYTES]);
            let has_more = socket.holds_end();
            let count = match moved {
                Moved::WouldBlock => return,
                Moved::Bytes(0) => return self.lost(at, ErrorKind::Closed),
                Moved::Broken => return self.lost(at, ErrorKind::Reset),
                Moved::Bytes(count) => count,
            };
            // Frames of several streams share a read: the open loop counts bytes from when counting starts.
            if self.is_counted(self.now_ns) {
                self.tally.bytes_read += count as u64;
            }
            if let Err(kind) = self.take_streams(at, kept + count) {
                // Try to send our GOAWAY. The server may have closed already.
                self.flush(at);
                return self.fail_session(at, kind);
            }
            if self.is_replaced(at) || (kept + count < READ_BYTES && !has_more && !to_the_end) {
                return;
            }
            self.now_ns = clock::nanoseconds();
        }
    }

    /// Processes the first `count` bytes of the buffer as input of a connection.
    fn take_streams(&mut self, at: usize, count: usize) -> Result<(), ErrorKind> {
        let Some((_, session)) = self.connections[at].multiplexed() else { return Ok(()) };
        let Some(streams) = &mut self.streams else { return Ok(()) };
        let bytes = &self.buffer[..count];
        let taken = session.take(bytes, &mut streams.room, &self.expected, &mut streams.ended);
        self.count_ended();
        taken
    }

    /// Replaces a connection that can send no more requests. Returns whether it did.
    fn is_replaced(&mut self, at: usize) -> bool {
        let is_over = self.connections[at].session.as_ref().is_some_and(|session| session.is_over());
        if is_over {
            self.flush(at);
            self.reconnect(at);
        }
        is_over
    }

    /// The connection was closed, perhaps while idle.
    fn lost(&mut self, at: usize, kind: ErrorKind) {
        match &self.connections[at].session {
            Some(session) if session.in_flight() > 0 => self.fail(at, kind),
            _ => self.reconnect(at),
        }
    }

    /// Counts all requests of a connection as failed, and reconnects.
    pub(super) fn fail_session(&mut self, at: usize, kind: ErrorKind) {
        let (Some(session), Some(streams)) = (&mut self.connections[at].session, &mut self.streams) else {
            return;
        };
        let is_end = matches!(kind, ErrorKind::Closed | ErrorKind::Reset);
        let kind = if is_end && session.is_left() { ErrorKind::GoAway } else { kind };
        session.fail(kind, &mut streams.ended);
        if streams.ended.is_empty() && (self.is_counted(self.now_ns) || self.times.begin_ns == u64::MAX) {
            self.tally.fail(kind, 1, self.now_ns, self.times.begin_ns);
        }
        self.count_ended();
        self.reconnect(at);
    }

    /// Abandons requests of a connection that have waited too long.
    pub(super) fn give_up(&mut self, at: usize, answer_ns: u64) {
        let (Some(session), Some(streams)) = (&mut self.connections[at].session, &mut self.streams) else {
            return;
        };
        session.give_up(self.now_ns.saturating_sub(answer_ns), &mut streams.ended);
        if !streams.ended.is_empty() {
            self.count_ended();
            if !self.is_replaced(at) {
                self.ask(at, self.now_ns);
            }
        }
    }

    fn count_ended(&mut self) {
        let Some(streams) = &mut self.streams else { return };
        let mut ended = std::mem::take(&mut streams.ended);
        for Ended { due_ns, since_ns, status, error } in ended.drain(..) {
            self.in_flight_count -= 1;
            let is_counted = match status {
                Some(_) => self.is_counted(due_ns),
                None => self.is_failure_counted(due_ns),
            };
            if !is_counted {
                if status.is_some() {
                    self.note_carried();
                }
                continue;
            }
            if let Some(status) = status {
                self.tally.answer(due_ns, since_ns, self.now_ns, self.times.begin_ns);
                self.tally.statuses.add(status);
            }
            if let Some(kind) = error {
                self.tally.fail(kind, 1, due_ns, self.times.begin_ns);
            }
            if error == Some(ErrorKind::Timeout) {
                // Its latency is at least this long. Leaving out the slowest requests would improve the percentiles.
                self.tally.wait(due_ns, since_ns, self.now_ns, 1, self.times.begin_ns);
            }
        }
        if let Some(streams) = &mut self.streams {
            streams.ended = ended;
        }
    }

    /// Distributes due requests among connections with free streams, in turn.
    pub(super) fn ask_what_is_due(&mut self) {
        if self.is_past() {
            return;
        }
        self.freed.clear();
        while let Some(&at) = self.idle.front() {
            let at = at as usize;
            if !self.can_ask(at) {
                self.idle.pop_front();
                self.connections[at].is_queued = false;
                continue;
            }
            let Some(due_ns) = self.pace.next(self.now_ns, self.now_ns >= self.times.begin_ns) else { break };
            self.idle.rotate_left(1);
            if due_ns >= self.times.begin_ns {
                self.tally.lag.record(self.now_ns.saturating_sub(due_ns));
            }
            if self.connections[at].session.as_ref().is_some_and(|session| session.out.is_empty()) {
                self.freed.push(at as u32);
            }
            self.ask_one(at, due_ns);
        }
        for index in 0..self.freed.len() {
            self.ask(self.freed[index] as usize, self.now_ns);
        }
    }

    fn can_ask(&mut self, at: usize) -> bool {
        self.connections[at].multiplexed().is_some_and(|(_, session)| session.can_ask())
    }

    fn ask_one(&mut self, at: usize, due_ns: u64) {
        if let (Some(session), Some(streams)) = (&mut self.connections[at].session, &mut self.streams) {
            let is_sent = session.ask(&mut streams.blocks, due_ns, self.now_ns);
            self.in_flight_count += u64::from(is_sent);
        }
    }

    /// Sends the requests that are due on a connection, as many as it has room for, and bodies as the windows allow.
    fn ask(&mut self, at: usize, from_ns: u64) {
        loop {
            if let Some((_, session)) = self.connections[at].multiplexed() {
                session.send_bodies();
            }
            while !self.is_past() && self.can_ask(at) {
                let Some(due_ns) = self.pace.next(self.now_ns, from_ns >= self.times.begin_ns) else {
                    self.queue(at);
                    break;
                };
                self.ask_one(at, due_ns.min(from_ns));
            }
            let has_bytes =
                self.connections[at].multiplexed().is_some_and(|(_, session)| !session.out.is_empty());
            if !has_bytes || !self.flush(at) {
                return;
            }
        }
    }

    /// Queues a connection to wait for due requests; it is in the queue at most once.
    fn queue(&mut self, at: usize) {
        if !std::mem::replace(&mut self.connections[at].is_queued, true) {
            self.idle.push_back(at as u32);
        }
    }

    /// Sends pending output. Returns whether all of it was sent.
    fn flush(&mut self, at: usize) -> bool {
        let Some((socket, session)) = self.connections[at].multiplexed() else { return false };
        if session.out.is_empty() && !socket.wants_room() {
            return true;
        }
        match socket.send(&session.out) {
            Moved::Bytes(sent) if sent == session.out.len() => {
                session.out.clear();
                !socket.wants_room()
            }
            Moved::Bytes(sent) => {
                session.out.drain(..sent);
                false
            }
            Moved::WouldBlock => false,
            Moved::Broken => {
                self.lost(at, ErrorKind::Reset);
                false
            }
        }
    }
}
