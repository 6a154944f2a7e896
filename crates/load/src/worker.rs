//! One thread: its epoll set, its connections, and the loop that keeps them busy.
//!
//! ```text
//!            ┌─ due? ── idle connection ── send ──┐
//! wait ──────┤                                    ├── wait
//!            └─ ready? ── read ── answers ── next ┘
//! ```
//!
//! For one request in the closed loop this is a `recv`, a `send` and its share of an `epoll_wait`; sockets are
//! registered once, edge-triggered. The clock is read once for each connection that is ready, before it is read
//! from: that moment ends one latency and begins the next.
//!
//! What a latency is: from when the request was due (in the closed loop, just before it was sent) to when this thread
//! turned to its response. It has the wait for this thread in it: where many responses are ready at once, the last of them
//! has waited while the others were read, a microsecond or two each. That makes latencies longer, never shorter; with the
//! thread under its limit (see [`Outcome::warnings`](crate::Outcome::warnings)) a batch is a few responses.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use flatout_lane::poll::{Poll, Ready};
use flatout_lane::socket::{self, Moved};
use flatout_lane::{clock, connect, cpu};

use crate::answers::{Answered, Expected};
use crate::connection::{Connection, State, place};
use crate::pace::Pace;
use crate::request::Mix;
use crate::shared::{Brought, Shared, Times};
use crate::tally::{ErrorKind, Tally};

/// Connections that a thread has begun and that are not made yet: what a listener's queue takes without loss.
const CONNECTING_MAX: usize = 256;

/// How long a place rests after a connection that failed, so that a refusing server is not asked without pause.
const REST_NS: u64 = 100_000_000;

/// How long a server may take to close a connection that it said it closes, until we do.
const ENDING_NS_MAX: u64 = 1_000_000_000;

/// How often timeouts are looked at; they are exact to this.
const SWEEP_NS: u64 = 100_000_000;

/// How long after the end requests that were due before it may still be sent; a server that lags further behind is
/// overloaded, and what it left waiting is told as such.
const LATE_SEND_NS_MAX: u64 = 1_000_000_000;

/// How often a thread reports its progress in detail, if that is requested.
const TELLING_NS: u64 = 250_000_000;

/// The one buffer that a thread reads into.
const READ_BUFFER_BYTES: usize = 256 << 10;

/// One thread's whole state.
pub(crate) struct Worker<'p> {
    shared: &'p Shared<'p>,
    index: usize,
    poll: Poll,
    connections: Vec<Connection>,
    /// Places that may be idle, the longest idle first.
    idle: VecDeque<u32>,
    connecting_count: usize,
    in_flight_count: u64,
    pace: Pace,
    mix: Mix,
    expected: Expected<'p>,
    tally: Tally,
    buffer: Vec<u8>,
    times: Times,
    now_ns: u64,
    next_sweep_ns: u64,
    next_telling_ns: u64,
}

impl<'p> Worker<'p> {
    /// Pins the thread and makes its tables.
    ///
    /// # Errors
    /// No epoll set to be had.
    pub(crate) fn new(shared: &'p Shared<'p>, index: usize) -> io::Result<Worker<'p>> {
        let plan = shared.plan;
        if let Some(&cpu) = plan.cpus.get(index % plan.cpus.len().max(1)) {
            cpu::pin(cpu)?;
        }
        clock::sharpen_timers();
        let count = share(plan.connections, plan.threads, index);
        let threads = (index, plan.threads);
        let now_ns = clock::nanoseconds();
        Ok(Worker {
            shared,
            index,
            poll: Poll::new()?,
            connections: (0..count).map(|_| Connection::default()).collect(),
            idle: VecDeque::with_capacity(count),
            connecting_count: 0,
            in_flight_count: 0,
            pace: Pace::new(plan.pacing, threads, (0, 0), 0, plan.seed),
            mix: Mix::new(&plan.requests, plan.pipeline, plan.close, threads, plan.seed),
            expected: Expected::new(&plan.expect, plan.head_bytes_max, plan.events),
            tally: Tally::new(plan.pacing != crate::pace::Pacing::Closed),
            buffer: vec![0; READ_BUFFER_BYTES],
            times: Times { start_ns: 0, begin_ns: u64::MAX, end_ns: u64::MAX },
            now_ns,
            next_sweep_ns: now_ns + SWEEP_NS,
            next_telling_ns: now_ns,
        })
    }

    /// Makes the connections; returns when each is made or has failed once.
    ///
    /// # Errors
    /// A broken epoll set.
    pub(crate) fn prepare(&mut self) -> io::Result<()> {
        let mut begun = 0;
        while !self.shared.is_stopped() && (begun < self.connections.len() || self.connecting_count > 0) {
            while begun < self.connections.len() && self.connecting_count < CONNECTING_MAX {
                self.begin_connection(begun);
                begun += 1;
            }
            self.turn(SWEEP_NS)?;
        }
        Ok(())
    }

    /// Sends and reads until the time is over, and brings home what was counted.
    ///
    /// # Errors
    /// A broken epoll set.
    pub(crate) fn run(mut self, times: Times) -> io::Result<Brought> {
        let plan = self.shared.plan;
        let requests_max =
            plan.requests_max.map_or(u64::MAX, |max| share(max as usize, plan.threads, self.index) as u64);
        let span = (times.start_ns, times.end_ns);
        self.times = times;
        self.pace = Pace::new(plan.pacing, (self.index, plan.threads), span, requests_max, plan.seed);
        self.now_ns = clock::nanoseconds();
        let mut cpu = clock::thread_cpu();
        let mut is_warming = !plan.warmup.is_zero();
        while !self.is_over() {
            if is_warming && self.now_ns >= times.begin_ns {
                is_warming = false;
                cpu = clock::thread_cpu();
            }
            self.send_what_is_due();
            let pause_ns =
                self.pace.next_due_ns().map_or(SWEEP_NS, |due_ns| due_ns.saturating_sub(self.now_ns));
            self.turn(if self.idle.is_empty() { SWEEP_NS } else { pause_ns })?;
            self.tell();
        }
        // Ended in the warm-up, it has used nothing in the counted time.
        let used = if is_warming { Duration::ZERO } else { clock::thread_cpu() - cpu };
        Ok(self.finish(used))
    }

    fn tell(&mut self) {
        let progress = &self.shared.progress[self.index];
        progress.note(self.tally.requests, &self.tally.errors);
        if self.shared.plan.live && self.now_ns >= self.next_telling_ns {
            self.next_telling_ns = self.now_ns + TELLING_NS;
            progress.note_detail(&self.tally);
        }
    }

    fn is_over(&self) -> bool {
        let is_sent = self.is_past() || self.pace.is_exhausted();
        // In an open loop what was sent is waited for; each ends by its answer or by the timeout of the sweep.
        let is_answered = self.in_flight_count == 0 || !self.pace.is_open() && self.is_past();
        is_sent && is_answered || self.shared.is_stopped()
    }

    /// Whether nothing is sent any more.
    #[inline]
    fn is_past(&self) -> bool {
        let grace_ns = if self.pace.is_open() { LATE_SEND_NS_MAX } else { 0 };
        self.now_ns >= self.times.end_ns.saturating_add(grace_ns)
    }

    /// Waits for events and serves each to completion.
    fn turn(&mut self, pause_ns: u64) -> io::Result<()> {
        let pause_ns = pause_ns.min(self.next_sweep_ns.saturating_sub(self.now_ns));
        let count = self.poll.wait(Duration::from_nanos(pause_ns))?;
        for index in 0..count {
            if let Some(event) = self.poll.event(index) {
                self.now_ns = clock::nanoseconds();
                self.ready(event);
            }
        }
        self.now_ns = clock::nanoseconds();
        if self.now_ns >= self.next_sweep_ns {
            self.next_sweep_ns = self.now_ns + SWEEP_NS;
            self.sweep();
        }
        Ok(())
    }

    fn ready(&mut self, event: Ready) {
        let (at, generation) = place(event.token);
        let Some(connection) = self.connections.get_mut(at).filter(|found| found.generation == generation)
        else {
            return;
        };
        match connection.state {
            State::Connecting(_) => return self.connected(at),
            State::Ending(_) => return self.ending(at),
            State::Open(_) | State::Resting { .. } => {}
        }
        if event.writable() && !connection.unsent.is_empty() {
            self.send_rest(at);
        }
        if event.readable() || event.hung_up() {
            self.read(at, event.read_closed() || event.hung_up());
        }
    }

    fn begin_connection(&mut self, at: usize) {
        let plan = self.shared.plan;
        // Sources are shared out over all connections of the run, not of this thread.
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

    fn connected(&mut self, at: usize) {
        let connection = &mut self.connections[at];
        let State::Connecting(socket) = std::mem::take(&mut connection.state) else { return };
        let outcome = connect::outcome(socket.as_fd());
        connection.state = State::Connecting(socket);
        if outcome.is_err() {
            return self.fail(at, ErrorKind::Connect);
        }
        if let State::Connecting(socket) = std::mem::take(&mut connection.state) {
            connection.state = State::Open(socket);
        }
        self.connecting_count -= 1;
        self.tally.connections_made += 1;
        let begun_ns = connection.since_ns;
        // While connections are prepared nothing is sent: the pace has nothing yet.
        let from_ns = if self.shared.plan.close && !self.pace.is_open() { begun_ns } else { self.now_ns };
        self.next(at, from_ns);
    }

    /// Sends the next request on a connection that is free, or lets it idle.
    #[inline]
    fn next(&mut self, at: usize, from_ns: u64) {
        let next = match self.is_past() {
            true => None,
            false => self.pace.next(self.now_ns, from_ns >= self.times.begin_ns),
        };
        match next {
            Some(due_ns) => self.send(at, due_ns.min(from_ns)),
            None => self.idle.push_back(at as u32),
        }
    }

    /// Gives requests that are due to connections that are free.
    fn send_what_is_due(&mut self) {
        if self.is_past() {
            return;
        }
        while let Some(&at) = self.idle.front() {
            let at = at as usize;
            if !self.connections[at].is_idle() {
                self.idle.pop_front();
                continue;
            }
            let Some(due_ns) = self.pace.next(self.now_ns, self.now_ns >= self.times.begin_ns) else {
                return;
            };
            self.idle.pop_front();
            if due_ns >= self.times.begin_ns {
                self.tally.lag.record(self.now_ns.saturating_sub(due_ns));
            }
            self.send(at, due_ns);
        }
    }

    #[inline]
    fn send(&mut self, at: usize, due_ns: u64) {
        let depth = self.shared.plan.pipeline;
        let kind = self.mix.pick();
        let connection = &mut self.connections[at];
        let State::Open(socket) = &connection.state else { return };
        connection.in_flight = depth as u32;
        connection.reader.sent(self.mix.is_head(kind), depth as u32);
        connection.kind = kind as u32;
        connection.due_ns = due_ns;
        connection.since_ns = self.now_ns;
        self.in_flight_count += depth as u64;
        let bytes = self.mix.bytes(kind, depth);
        match socket::send(socket.as_fd(), bytes) {
            Moved::Bytes(sent) if sent == bytes.len() => {}
            Moved::Bytes(sent) => connection.unsent.extend_from_slice(&bytes[sent..]),
            Moved::WouldBlock => connection.unsent.extend_from_slice(bytes),
            Moved::Broken => self.fail(at, ErrorKind::Reset),
        }
    }

    fn send_rest(&mut self, at: usize) {
        let connection = &mut self.connections[at];
        let State::Open(socket) = &connection.state else { return };
        match socket::send(socket.as_fd(), &connection.unsent) {
            Moved::Bytes(sent) => drop(connection.unsent.drain(..sent)),
            Moved::WouldBlock => {}
            Moved::Broken => self.fail(at, ErrorKind::Reset),
        }
    }

    /// Reads until the socket is empty. A read that came up short has emptied it, unless the end is near.
    #[inline]
    fn read(&mut self, at: usize, to_the_end: bool) {
        loop {
            let connection = &mut self.connections[at];
            let State::Open(socket) = &connection.state else { return };
            let generation = connection.generation;
            match socket::recv(socket.as_fd(), &mut self.buffer) {
                Moved::Bytes(0) => return self.closed(at),
                Moved::Bytes(count) => {
                    self.consume(at, count);
                    self.note_messages();
                    let is_empty = count < self.buffer.len() && !to_the_end;
                    if is_empty || self.connections[at].generation != generation {
                        return;
                    }
                }
                Moved::WouldBlock => return,
                Moved::Broken => return self.broken(at),
            }
        }
    }

    /// Counts the messages of event streams that the last bytes brought.
    fn note_messages(&mut self) {
        let Some(messages) = &mut self.expected.messages else { return };
        let is_counted = self.now_ns >= self.times.begin_ns && self.now_ns < self.times.end_ns;
        let unix_ns = clock::unix_nanoseconds();
        for message in messages.drain(..).filter(|_| is_counted) {
            self.tally.count(self.now_ns, self.times.begin_ns);
            if let Some(sent_ns) = message {
                self.tally.latency.record(unix_ns.saturating_sub(sent_ns));
            }
        }
    }

    /// Takes the answers out of the first `count` bytes of the buffer.
    #[inline]
    fn consume(&mut self, at: usize, count: usize) {
        self.tally.bytes_read += count as u64;
        let mut taken = 0;
        while taken < count {
            let connection = &mut self.connections[at];
            if connection.in_flight == 0 {
                return self.fail(at, ErrorKind::Malformed);
            }
            match connection.reader.take(&self.buffer[taken..count], &mut self.expected) {
                Ok((more, None)) => taken += more,
                Ok((more, Some(answered))) => {
                    taken += more;
                    if taken < count && connection.in_flight == 1 {
                        // Bytes that nobody asked for: the answer was whole, the connection is not to be trusted.
                        self.answered(at, Answered { keep_alive: false, ..answered });
                        self.tally.errors.add(ErrorKind::Malformed, 1);
                        return self.reconnect(at);
                    }
                    self.answered(at, answered);
                }
                Err(kind) => return self.fail(at, kind),
            }
        }
    }

    #[inline]
    fn answered(&mut self, at: usize, answered: Answered) {
        if self.shared.plan.events {
            // A stream of events that ends is one that was lost.
            return self.fail(at, answered.error.unwrap_or(ErrorKind::Closed));
        }
        let connection = &mut self.connections[at];
        let (due_ns, sent_ns) = (connection.due_ns, connection.since_ns);
        let status = connection.reader.status();
        connection.in_flight -= 1;
        self.in_flight_count -= 1;
        let left = connection.in_flight;
        if self.is_counted(due_ns) {
            self.tally.answer(due_ns, sent_ns, self.now_ns, self.times.begin_ns);
            self.tally.statuses.add(status);
            if let Some(kind) = answered.error {
                self.tally.errors.add(kind, 1);
            }
        }
        match (answered.keep_alive, left) {
            (true, 0) if self.shared.plan.close => self.reconnect(at),
            (true, 0) => self.next(at, self.now_ns),
            (true, _) => {}
            (false, 0) => self.end(at),
            (false, _) => self.fail(at, ErrorKind::Closed),
        }
    }

    /// Waits for the server to close, as it said it would.
    fn end(&mut self, at: usize) {
        let connection = &mut self.connections[at];
        if let State::Open(socket) = std::mem::take(&mut connection.state) {
            connection.state = State::Ending(socket);
            connection.since_ns = self.now_ns;
            self.ending(at);
        }
    }

    fn ending(&mut self, at: usize) {
        let State::Ending(socket) = &self.connections[at].state else { return };
        match socket::recv(socket.as_fd(), &mut self.buffer) {
            Moved::Bytes(0) | Moved::Broken => self.reconnect(at),
            Moved::WouldBlock => {}
            Moved::Bytes(_) => {
                self.tally.errors.add(ErrorKind::Malformed, 1);
                self.reconnect(at);
            }
        }
    }

    /// Whether the end of a request that was due then belongs to the counted time. In the closed loop what ends in the
    /// window counts, whenever it began: to leave out those that began before it would drop one response a connection and
    /// still divide by the whole window. A count of requests, and the open loop, go by when a request was due.
    #[inline]
    fn is_counted(&self, due_ns: u64) -> bool {
        let (is_begun, is_within) = (self.now_ns >= self.times.begin_ns, self.now_ns < self.times.end_ns);
        match (self.pace.is_open(), self.shared.plan.requests_max) {
            (true, _) => due_ns >= self.times.begin_ns,
            (false, None) => is_begun && is_within,
            (false, Some(_)) => due_ns >= self.times.begin_ns && is_within,
        }
    }

    /// The server has closed its side.
    fn closed(&mut self, at: usize) {
        let connection = &mut self.connections[at];
        if connection.in_flight == 0 {
            return self.reconnect(at);
        }
        match connection.reader.close(&self.expected) {
            Ok(answered) => self.answered(at, answered),
            Err(kind) => self.fail(at, kind),
        }
    }

    /// The connection was reset, perhaps while it idled.
    fn broken(&mut self, at: usize) {
        match self.connections[at].in_flight {
            0 => self.reconnect(at),
            _ => self.fail(at, ErrorKind::Reset),
        }
    }

    /// Counts all that is in flight on a connection as failed, and makes another one.
    fn fail(&mut self, at: usize, kind: ErrorKind) {
        let connection = &mut self.connections[at];
        let is_made = matches!(connection.state, State::Open(_));
        let due_ns = if connection.in_flight > 0 { connection.due_ns } else { self.now_ns };
        let failed = u64::from(connection.in_flight.max(1));
        self.in_flight_count -= u64::from(connection.in_flight);
        let is_prepared = self.times.begin_ns != u64::MAX;
        if self.is_counted(due_ns) || !is_prepared {
            self.tally.errors.add(kind, failed);
        }
        if kind == ErrorKind::Timeout && self.is_counted(due_ns) && !self.shared.plan.events {
            // Its latency is at least this. Left out, the slowest requests would make the percentiles better.
            let sent_ns = self.connections[at].since_ns;
            self.tally.wait(due_ns, sent_ns, self.now_ns, failed);
        }
        if is_made {
            return self.reconnect(at);
        }
        self.connecting_count -= 1;
        self.connections[at].close(self.now_ns + REST_NS);
        if is_prepared && !self.pace.is_open() {
            // The request that this connection was for is lost: only then does a count of requests reach its end.
            let _ = self.pace.next(self.now_ns, self.now_ns >= self.times.begin_ns);
        }
    }

    /// Closes a connection and begins the next one in its place.
    fn reconnect(&mut self, at: usize) {
        if let State::Connecting(_) = self.connections[at].state {
            return;
        }
        self.connections[at].close(self.now_ns);
        let is_needed = !(self.pace.is_exhausted() || self.is_past());
        if is_needed && self.connecting_count < CONNECTING_MAX {
            self.begin_connection(at);
        }
    }

    /// Ends what takes too long, and begins connections whose rest is over.
    fn sweep(&mut self) {
        let plan = self.shared.plan;
        let (connect_ns, answer_ns) =
            (plan.connect_time_max.as_nanos() as u64, plan.answer_time_max.as_nanos() as u64);
        let is_running = self.times.begin_ns != u64::MAX && !self.is_past();
        for at in 0..self.connections.len() {
            let connection = &self.connections[at];
            let waited_ns = self.now_ns.saturating_sub(connection.since_ns);
            match connection.state {
                State::Connecting(_) if waited_ns > connect_ns => self.fail(at, ErrorKind::Connect),
                State::Open(_) if plan.events && connection.reader.is_in_body() => {}
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

    fn finish(mut self, cpu: Duration) -> Brought {
        let mut unsent = 0;
        if self.pace.is_open() {
            // Requests that were due and found no free connection have waited at least until now.
            while let Some(due_ns) = self.pace.next(self.now_ns, true) {
                if self.is_counted(due_ns) {
                    self.tally.latency.record(self.now_ns - due_ns);
                    unsent += 1;
                }
            }
        }
        let held = self.connections.iter().filter(|found| matches!(found.state, State::Open(_))).count();
        Brought {
            tally: self.tally,
            times: self.times,
            cpu_ns: cpu.as_nanos() as u64,
            over_ns: self.now_ns,
            unanswered: if self.shared.plan.events { 0 } else { self.in_flight_count },
            unsent,
            held: held as u64,
        }
    }
}

/// What falls to thread `index` when `total` are shared out as evenly as can be.
fn share(total: usize, threads: usize, index: usize) -> usize {
    total / threads + usize::from(index < total % threads)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up() {
        for (total, threads) in [(10, 3), (2, 2), (7, 8), (1000, 7)] {
            assert_eq!((0..threads).map(|index| share(total, threads, index)).sum::<usize>(), total);
        }
    }
}
