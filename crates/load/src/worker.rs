//! One thread: its epoll set, its connections, and the loop that keeps them busy.
//!
//! ```text
//!            ┌─ due? ──── idle connection ── send ──────────────────────────┐
//! wait ──────┤                                                              ├── wait
//!            └─ ready? ── receive from up to 16 ── their answers ── send ───┘
//! ```
//!
//! In the closed loop a request costs a `recv`, a `send` and its share of an `epoll_wait`; sockets are registered
//! once, edge-triggered. As in the server, ready connections are handled in [stages](stage): the code of each step
//! stays in the cache, and consecutive sends wake the server less often.
//!
//! Latency runs from when the request was due (in the closed loop, just before it was sent) to when this thread
//! turned to its response. The clock is read before each send, and before each receive. Latency includes the wait for
//! this thread: if many responses are ready at once, the last of a stage has waited while the others were received,
//! and the next stage for the whole one, a microsecond or two per request. That makes latencies longer, never
//! shorter. While the thread is below its limit (see [`Outcome::warnings`](crate::Outcome::warnings)), a batch is a
//! few responses.

mod block;
mod places;
mod stage;
mod streams;

use std::borrow::Cow;
use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use flatout_lane::poll::Poll;
use flatout_lane::{clock, cpu};
use flatout_tls::Connector;

use self::stage::{READ_BUFFER_BYTES, Received, STAGE_SOCKETS};
use self::streams::Streams;
use crate::answers::Expected;
use crate::connection::{Connection, State};
use crate::pace::Pace;
use crate::request::Mix;
use crate::shared::{Shared, ThreadResult, Times};
use crate::subscribe::ReceivedMessages;
use crate::tally::Tally;

/// Connections that a thread opens at the same time: what a listener's queue accepts without loss.
const CONNECTING_MAX: usize = 256;

/// How often timeouts are checked at least. The next check is earlier if a request may expire before it.
const SWEEP_NS: u64 = 100_000_000;

/// How long after the end requests that were due before it may still be sent. A server that lags further behind is
/// overloaded, and the rest is reported as unsent.
const LATE_SEND_NS_MAX: u64 = 1_000_000_000;

/// How often a thread reports its progress in detail, if that is requested.
const TELLING_NS: u64 = 250_000_000;

/// The state of one thread.
pub(crate) struct Worker<'p> {
    shared: &'p Shared<'p>,
    index: usize,
    poll: Poll,
    connections: Vec<Connection>,
    /// Connections that may be idle, the longest idle first.
    idle: VecDeque<u32>,
    /// Connections of a stage.
    stage_sockets: usize,
    /// What the current stage has received.
    received: Vec<Received>,
    /// Connections whose responses have arrived, and that get their next requests.
    freed: Vec<u32>,
    connecting_count: usize,
    in_flight_count: u64,
    /// In the open loop: responses in the counted time to requests that were due in the warm-up.
    carried: u64,
    pace: Pace,
    mix: Mix,
    /// Starts TLS on connections, if they are encrypted.
    connector: Option<Connector>,
    /// What HTTP/2 connections share; `None` with HTTP/1.1.
    streams: Option<Streams>,
    expected: Expected<'p>,
    tally: Tally,
    buffer: Vec<u8>,
    times: Times,
    now_ns: u64,
    next_sweep_ns: u64,
    next_telling_ns: u64,
}

impl<'p> Worker<'p> {
    /// Pins the thread and allocates its tables.
    ///
    /// # Errors
    /// The epoll set cannot be created, or TLS files can no longer be read.
    pub(crate) fn new(shared: &'p Shared<'p>, index: usize) -> io::Result<Worker<'p>> {
        let plan = shared.plan;
        if let Some(&cpu) = plan.cpus.get(index % plan.cpus.len().max(1)) {
            cpu::pin(cpu)?;
        }
        clock::sharpen_timers();
        let count = share(plan.connections, plan.threads, index);
        let threads = (index, plan.threads);
        let requests = match plan.subscribe {
            Some(transport) => Cow::Owned(transport.requests(&plan.requests)),
            None => Cow::Borrowed(&plan.requests[..]),
        };
        let heard =
            plan.subscribe.map(|transport| ReceivedMessages::new(transport, plan.seed ^ index as u64));
        let connector = plan.tls.as_ref().map(|tls| tls.connector(plan.streams.is_some(), count));
        let now_ns = clock::nanoseconds();
        Ok(Worker {
            shared,
            index,
            poll: Poll::new()?,
            connections: (0..count).map(|_| Connection::default()).collect(),
            idle: VecDeque::with_capacity(count),
            received: Vec::with_capacity(STAGE_SOCKETS),
            stage_sockets: if plan.is_spread { 1 } else { STAGE_SOCKETS },
            freed: Vec::with_capacity(STAGE_SOCKETS),
            connecting_count: 0,
            in_flight_count: 0,
            carried: 0,
            pace: Pace::new(plan.pacing, &plan.stages, threads, (0, 0), 0, plan.seed),
            mix: Mix::new(&requests, plan.pipeline, plan.close, threads, plan.seed),
            connector: connector.transpose().map_err(io::Error::other)?,
            streams: plan.streams.map(|count| Streams::new(plan, count, threads)),
            expected: Expected::new(&plan.expect, plan.head_bytes_max, heard),
            tally: Tally::new(plan.pacing != crate::pace::Pacing::Closed, &plan.stages),
            buffer: vec![0; READ_BUFFER_BYTES],
            times: Times { start_ns: 0, begin_ns: u64::MAX, end_ns: u64::MAX, send_end_ns: u64::MAX },
            now_ns,
            next_sweep_ns: now_ns + SWEEP_NS,
            next_telling_ns: now_ns,
        })
    }

    /// Opens the connections; returns when each is open or has failed once.
    ///
    /// # Errors
    /// The epoll set has failed.
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

    /// Sends and receives until the end of the run, and returns the counts.
    ///
    /// # Errors
    /// The epoll set has failed.
    pub(crate) fn run(mut self, times: Times) -> io::Result<ThreadResult> {
        let plan = self.shared.plan;
        let requests_max =
            plan.requests_max.map_or(u64::MAX, |max| share(max as usize, plan.threads, self.index) as u64);
        let span = (times.start_ns, times.end_ns);
        self.times = times;
        let threads = (self.index, plan.threads);
        self.pace = Pace::new(plan.pacing, &plan.stages, threads, span, requests_max, plan.seed);
        self.now_ns = clock::nanoseconds();
        let mut cpu = clock::thread_cpu();
        let mut is_warming = !plan.warmup.is_zero();
        let mut answered_in_time = None;
        while !self.is_over() {
            if is_warming && self.now_ns >= times.begin_ns {
                is_warming = false;
                cpu = clock::thread_cpu();
            }
            match self.streams {
                None => self.send_what_is_due(),
                Some(_) => self.ask_what_is_due(),
            }
            let pause_ns =
                self.pace.next_due_ns().map_or(SWEEP_NS, |due_ns| due_ns.saturating_sub(self.now_ns));
            self.turn(if self.idle.is_empty() { SWEEP_NS } else { pause_ns })?;
            self.tell();
            if answered_in_time.is_none() && self.now_ns >= times.end_ns {
                answered_in_time = Some(self.tally.requests);
            }
        }
        // If it ended in the warm-up, it used nothing in the counted time.
        let used = if is_warming { Duration::ZERO } else { clock::thread_cpu() - cpu };
        let answered_in_time = answered_in_time.unwrap_or(self.tally.requests);
        Ok(ThreadResult { answered_in_time, ..self.finish(used) })
    }

    fn tell(&mut self) {
        let progress = &self.shared.progress[self.index];
        progress.note(self.tally.requests, &self.tally.errors);
        if self.shared.plan.live && self.now_ns >= self.next_telling_ns {
            self.next_telling_ns = self.now_ns + TELLING_NS;
            progress.note_detail(&self.tally, self.in_flight_count, self.oldest_wait());
        }
    }

    /// How long the oldest open request has waited since it was due.
    fn oldest_wait(&self) -> Duration {
        let open = self.connections.iter().filter_map(|connection| match &connection.session {
            Some(session) => session.oldest_due_ns(),
            None => (connection.in_flight > 0).then_some(connection.due_ns),
        });
        Duration::from_nanos(open.min().map_or(0, |due_ns| self.now_ns.saturating_sub(due_ns)))
    }

    fn is_over(&self) -> bool {
        let is_sent = self.is_past() || self.pace.is_exhausted();
        // Each request ends with its response or with the sweep's timeout. Waiting for all of them reports a server
        // that hangs, and leaves nothing for the next run to wait behind. Subscribers wait for ever.
        let is_answered = self.in_flight_count == 0 || self.shared.plan.subscribe.is_some() && self.is_past();
        is_sent && is_answered || self.shared.is_stopped()
    }

    /// Whether nothing more is sent.
    #[inline]
    fn is_past(&self) -> bool {
        let grace_ns = if self.pace.is_open() { LATE_SEND_NS_MAX } else { 0 };
        self.now_ns >= self.times.send_end_ns.saturating_add(grace_ns)
    }

    /// Gives due requests to free connections.
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

    /// Records the waits of requests that are open when a run is stopped, if they are longer than any other latency:
    /// they can only make the percentiles more accurate. A shorter wait says nothing about its latency.
    fn note_open_requests(&mut self) {
        if self.shared.plan.subscribe.is_some() || self.times.begin_ns > self.now_ns {
            return;
        }
        let longest_ns = self.tally.latency.max();
        for connection in self.connections.iter().filter(|connection| connection.in_flight > 0) {
            if self.now_ns.saturating_sub(connection.due_ns) > longest_ns {
                let count = u64::from(connection.in_flight);
                let (due_ns, sent_ns) = (connection.due_ns, connection.since_ns);
                self.tally.wait(due_ns, sent_ns, self.now_ns, count, self.times.begin_ns);
            }
        }
    }

    fn finish(mut self, cpu: Duration) -> ThreadResult {
        let mut unsent = 0;
        if self.pace.is_open() {
            // Requests that were due and found no free connection have waited at least until now.
            while let Some(due_ns) = self.pace.next(self.now_ns, true) {
                if self.is_counted(due_ns) {
                    self.tally.leave(due_ns, self.now_ns, self.times.begin_ns);
                    unsent += 1;
                }
            }
        }
        self.note_open_requests();
        if let Some(heard) = &self.expected.heard {
            self.tally.sequence = heard.sequence;
        }
        let sessions = self.connections.iter().filter_map(|connection| connection.session.as_ref());
        for allowed in sessions.filter_map(|session| session.streams_allowed()) {
            self.tally.allow_streams(allowed);
        }
        let held = self.connections.iter().filter(|found| matches!(found.state, State::Open(_))).count();
        ThreadResult {
            tally: self.tally,
            times: self.times,
            cpu_ns: cpu.as_nanos() as u64,
            over_ns: self.now_ns,
            unanswered: if self.shared.plan.subscribe.is_some() { 0 } else { self.in_flight_count },
            unsent,
            answered_in_time: 0,
            carried: self.carried,
            held: held as u64,
        }
    }
}

/// The share of thread `index` if `total` is divided as evenly as possible.
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
