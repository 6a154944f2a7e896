//! Blocks of load: the connections stay open between them.

use std::io;
use std::time::Duration;

use flatout_lane::clock;
use flatout_trial::Turn;

use super::{SWEEP_NS, Worker};
use crate::pace::Pace;
use crate::shared::Times;
use crate::tally::{ErrorKind, Errors, Latency, Tally};

impl Worker<'_> {
    /// Sends for `time`, and waits for all responses. Every response counts, because the server has worked for it.
    ///
    /// # Errors
    /// The epoll set has failed.
    pub(crate) fn block(&mut self, time: Duration, seed: u64) -> io::Result<Turn> {
        let plan = self.shared.plan;
        let start_ns = clock::nanoseconds();
        let send_end_ns = start_ns + time.as_nanos() as u64;
        self.now_ns = start_ns;
        self.times = Times { start_ns, begin_ns: start_ns, end_ns: u64::MAX, send_end_ns };
        let threads = (self.index, plan.threads);
        self.pace = Pace::new(plan.pacing, &plan.stages, threads, (start_ns, send_end_ns), u64::MAX, seed);
        // Connections that the server closed at the end of the last block are opened again.
        self.next_sweep_ns = start_ns;
        let (requests, errors) = (self.tally.requests, self.tally.errors);
        loop {
            match self.streams {
                None => self.send_what_is_due(),
                Some(_) => self.ask_what_is_due(),
            }
            if self.is_over() {
                break;
            }
            let next_ns = self.pace.next_due_ns().unwrap_or(send_end_ns).min(send_end_ns);
            let pause_ns = match self.now_ns < send_end_ns {
                true if self.idle.is_empty() => send_end_ns.saturating_sub(self.now_ns),
                true => next_ns.saturating_sub(self.now_ns),
                false => SWEEP_NS,
            };
            self.turn(pause_ns)?;
        }
        let since = |kind| self.tally.errors.of(kind) - errors.of(kind);
        let bad = since(ErrorKind::BadStatus) + since(ErrorKind::UnexpectedBody);
        let requests = self.tally.requests - requests;
        Ok(Turn {
            requests,
            good: requests.saturating_sub(bad),
            errors: self.tally.errors.sum() - Errors::sum(&errors),
            elapsed_s: Duration::from_nanos(clock::nanoseconds() - start_ns).as_secs_f64(),
            cpu_s: None,
            machine_s: None,
        })
    }

    /// Forgets what was counted so far: it was the warm-up.
    pub(crate) fn forget(&mut self) {
        self.tally = Tally::new(self.pace.is_open(), &[]);
    }

    /// The latencies since then.
    pub(crate) fn into_latency(self) -> Latency {
        self.tally.latency
    }
}
