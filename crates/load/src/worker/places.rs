//! The connections of a thread's table: a socket is opened, fails or ends, and is replaced by the next one.

use std::os::fd::AsFd;

use flatout_lane::connect;
use flatout_lane::socket::Moved;
use flatout_tls::Shake;

use super::{CONNECTING_MAX, SWEEP_NS, Worker};
use crate::connection::{Connection, State};
use crate::handshakes::HTTP2;
use crate::socket::Socket;
use crate::subscribe::Transport;
use crate::tally::ErrorKind;

/// How long to wait after a failed connection, so that a server that refuses is not asked continuously.
const REST_NS: u64 = 100_000_000;

/// The shortest time limit of a long poll, whatever the limit of other responses.
const POLL_NS_MIN: u64 = 60_000_000_000;

/// The shortest time between two checks for timeouts: their precision.
const SWEEP_NS_MIN: u64 = 1_000_000;

/// How long a server may take to close a connection that it announced to close; then we close it.
const ENDING_NS_MAX: u64 = 1_000_000_000;

impl Worker<'_> {
    pub(super) fn begin_connection(&mut self, at: usize) {
        let plan = self.shared.plan;
        // Sources are distributed over all connections of the run, not just of this thread.
        let turn = at * plan.threads + self.index;
        let source = plan.sources.get(turn % plan.sources.len().max(1)).copied();
        let connection = &mut self.connections[at];
        connection.since_ns = self.now_ns;
        self.connecting_count += 1;
        let begun = connect::begin(&plan.remote, source).and_then(|socket| {
            self.poll.add_connection(socket.as_fd(), connection.token(at))?;
            Ok(socket)
        });
        match begun {
            Ok(socket) => connection.state = State::Connecting(socket),
            Err(_) => self.fail(at, ErrorKind::Connect),
        }
    }

    pub(super) fn connected(&mut self, at: usize) {
        let connection = &mut self.connections[at];
        let State::Connecting(socket) = std::mem::take(&mut connection.state) else { return };
        if connect::outcome(socket.as_fd()).is_err() {
            return self.fail(at, ErrorKind::Connect);
        }
        let Some(connector) = &self.connector else { return self.opened(at, Socket::Plain(socket)) };
        match connector.connect(socket) {
            Ok(channel) => {
                connection.state = State::Shaking(Box::new(channel));
                self.shake(at);
            }
            Err(_) => self.fail(at, ErrorKind::Handshake),
        }
    }

    /// Continues the TLS handshake.
    pub(super) fn shake(&mut self, at: usize) {
        let state = &mut self.connections[at].state;
        let State::Shaking(channel) = state else { return };
        match channel.shake() {
            Shake::GoesOn => return,
            Shake::Failed => return self.fail(at, ErrorKind::Handshake),
            Shake::Done => {}
        }
        let is_counted = self.now_ns >= self.times.begin_ns && self.now_ns < self.times.end_ns;
        self.tally.handshakes.note(channel, is_counted);
        if self.streams.is_some() && channel.protocol() != Some(HTTP2) {
            return self.fail(at, ErrorKind::Handshake);
        }
        if let State::Shaking(channel) = std::mem::take(state) {
            self.opened(at, Socket::Secured(channel));
        }
    }

    /// A connection is established.
    fn opened(&mut self, at: usize, socket: Socket) {
        let connection = &mut self.connections[at];
        connection.state = State::Open(socket);
        self.connecting_count -= 1;
        self.tally.connections_made += 1;
        let begun_ns = connection.since_ns;
        // Nothing is sent while connections are prepared: the pace has no requests yet.
        let from_ns = if self.shared.plan.close && !self.pace.is_open() { begun_ns } else { self.now_ns };
        match self.streams {
            None => self.next(at, from_ns),
            Some(_) => self.begin_session(at, from_ns),
        }
    }

    /// Waits for the server to close, as it announced.
    pub(super) fn end(&mut self, at: usize) {
        let connection = &mut self.connections[at];
        if let State::Open(socket) = std::mem::take(&mut connection.state) {
            connection.state = State::Ending(socket);
            connection.since_ns = self.now_ns;
            self.ending(at);
        }
    }

    pub(super) fn ending(&mut self, at: usize) {
        let State::Ending(socket) = &mut self.connections[at].state else { return };
        match socket.receive(&mut self.buffer) {
            Moved::Bytes(0) | Moved::Broken => self.reconnect(at),
            Moved::WouldBlock => {}
            Moved::Bytes(_) => {
                self.tally.fail(ErrorKind::Malformed, 1, self.now_ns, self.times.begin_ns);
                self.reconnect(at);
            }
        }
    }

    /// The server has closed its side.
    pub(super) fn closed(&mut self, at: usize) {
        let connection = &mut self.connections[at];
        if connection.in_flight == 0 {
            return self.reconnect(at);
        }
        match connection.reader.close(&self.expected) {
            Ok(answered) => self.answered(at, answered),
            Err(kind) => self.fail(at, kind),
        }
    }

    /// The connection was reset, perhaps while idle.
    pub(super) fn broken(&mut self, at: usize) {
        match self.connections[at].in_flight {
            0 => self.reconnect(at),
            _ => self.fail(at, ErrorKind::Reset),
        }
    }

    /// Counts everything in flight on a connection as failed, and reconnects.
    pub(super) fn fail(&mut self, at: usize, kind: ErrorKind) {
        if self.connections[at].session.is_some() {
            return self.fail_session(at, kind);
        }
        let connection = &mut self.connections[at];
        let is_made = matches!(connection.state, State::Open(_));
        let due_ns = if connection.in_flight > 0 { connection.due_ns } else { self.now_ns };
        let failed = u64::from(connection.in_flight.max(1));
        self.in_flight_count -= u64::from(connection.in_flight);
        let is_prepared = self.times.begin_ns != u64::MAX;
        if self.is_failure_counted(due_ns) || !is_prepared {
            self.tally.fail(kind, failed, due_ns, self.times.begin_ns);
        }
        if kind == ErrorKind::Timeout
            && self.is_failure_counted(due_ns)
            && self.shared.plan.subscribe.is_none()
        {
            // Its latency is at least this long. Leaving out the slowest requests would improve the percentiles.
            let sent_ns = self.connections[at].since_ns;
            self.tally.wait(due_ns, sent_ns, self.now_ns, failed, self.times.begin_ns);
        }
        if is_made && self.shared.plan.subscribe.is_none() {
            return self.reconnect(at);
        }
        if is_made {
            // A subscriber that is sent away at once reconnects no faster than to a server that refuses.
            return self.connections[at].close(self.now_ns + REST_NS);
        }
        self.connecting_count -= 1;
        self.connections[at].close(self.now_ns + REST_NS);
        if is_prepared && !self.pace.is_open() {
            // The request for this connection is lost: without taking it, a count of requests would never be reached.
            let _ = self.pace.next(self.now_ns, self.now_ns >= self.times.begin_ns);
        }
    }

    /// Closes a connection and opens the next one in its place.
    pub(super) fn reconnect(&mut self, at: usize) {
        if self.connections[at].is_beginning() {
            return;
        }
        self.connections[at].close(self.now_ns);
        let is_needed = !(self.pace.is_exhausted() || self.is_past());
        if is_needed && self.connecting_count < CONNECTING_MAX {
            self.begin_connection(at);
        }
    }

    /// Ends requests that take too long, and opens connections whose pause is over.
    pub(super) fn sweep(&mut self) {
        let plan = self.shared.plan;
        let (connect_ns, answer_ns) =
            (plan.connect_time_max.as_nanos() as u64, plan.answer_time_max.as_nanos() as u64);
        let answer_ns = match plan.subscribe {
            Some(Transport::LongPoll) => answer_ns.max(POLL_NS_MIN),
            _ => answer_ns,
        };
        let is_running = self.times.begin_ns != u64::MAX && !self.is_past();
        self.next_sweep_ns = self.next_deadline_ns(connect_ns, answer_ns);
        for at in 0..self.connections.len() {
            let connection = &self.connections[at];
            let waited_ns = self.now_ns.saturating_sub(connection.since_ns);
            match connection.state {
                State::Connecting(_) if waited_ns > connect_ns => self.fail(at, ErrorKind::Connect),
                State::Shaking(_) if waited_ns > connect_ns => self.fail(at, ErrorKind::Handshake),
                State::Open(_) if connection.session.is_some() => self.give_up(at, answer_ns),
                State::Open(_) if plan.subscribe.is_some() && connection.reader.is_in_body() => {}
                State::Open(_) if connection.in_flight > 0 && waited_ns > answer_ns => {
                    self.fail(at, ErrorKind::Timeout);
                }
                State::Ending(_) if waited_ns > ENDING_NS_MAX => self.reconnect(at),
                State::Resting { until_ns }
                    if is_running && until_ns <= self.now_ns && self.connecting_count < CONNECTING_MAX =>
                {
                    self.begin_connection(at);
                }
                _ => {}
            }
        }
    }

    /// When to look for timeouts again: when the next one is due, and at the latest after [`SWEEP_NS`]. What begins
    /// after this sweep cannot expire before its own time limit has passed.
    fn next_deadline_ns(&self, connect_ns: u64, answer_ns: u64) -> u64 {
        let limit_ns = SWEEP_NS.min(connect_ns).min(answer_ns);
        let latest_ns = self.now_ns + limit_ns;
        if self.streams.is_some() {
            // The times of streams are in the sessions: check often enough for a precision of one per cent.
            return self.now_ns + (answer_ns / 100).clamp(SWEEP_NS_MIN, SWEEP_NS);
        }
        let deadline_ns = |connection: &Connection| match connection.state {
            State::Connecting(_) | State::Shaking(_) => connection.since_ns + connect_ns + 1,
            State::Open(_) if connection.in_flight > 0 => connection.since_ns + answer_ns + 1,
            _ => u64::MAX,
        };
        let earliest_ns =
            self.connections.iter().map(deadline_ns).filter(|&at| at > self.now_ns).min().unwrap_or(u64::MAX);
        latest_ns.min(earliest_ns).max(self.now_ns + SWEEP_NS_MIN)
    }
}
