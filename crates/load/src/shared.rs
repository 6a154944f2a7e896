//! State shared by threads: when to start, when to stop, and their progress.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex};
use std::time::Duration;

use flatout_lane::clock;

use crate::plan::Plan;
use crate::run::Live;
use crate::status::Statuses;
use crate::tally::{Errors, Latency, Tally};

/// Shared by all threads of a run.
pub(crate) struct Shared<'p> {
    pub(crate) plan: &'p Plan,
    stop: &'p AtomicBool,
    ready: Barrier,
    set: Barrier,
    start_ns: AtomicU64,
    /// Threads that have not ended.
    left: AtomicUsize,
    pub(crate) progress: Vec<Counted>,
}

/// The progress of one thread, which alone writes it.
#[derive(Debug, Default)]
pub(crate) struct Counted {
    requests: AtomicU64,
    errors: AtomicU64,
    detail: Mutex<Option<Detail>>,
}

/// The progress of all threads, in detail.
#[derive(Debug, Clone)]
pub struct Detail {
    /// Errors by kind.
    pub errors: Errors,
    /// Complete responses by status.
    pub statuses: Statuses,
    /// Bytes of responses in the counted time so far.
    pub bytes_read: u64,
    /// Latencies from when requests were due.
    pub latency: Latency,
    /// Requests that wait for their responses.
    pub open: u64,
    /// How long the oldest of them has waited since it was due.
    pub oldest_wait: Duration,
}

/// The times of a run, in nanoseconds since boot.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    /// Load begins.
    pub(crate) start_ns: u64,
    /// Counting begins.
    pub(crate) begin_ns: u64,
    /// Counting ends.
    pub(crate) end_ns: u64,
    /// Nothing more is sent.
    pub(crate) send_end_ns: u64,
}

/// The results of a thread.
pub(crate) struct ThreadResult {
    pub(crate) tally: Tally,
    pub(crate) times: Times,
    pub(crate) cpu_ns: u64,
    pub(crate) over_ns: u64,
    pub(crate) unanswered: u64,
    pub(crate) unsent: u64,
    pub(crate) answered_in_time: u64,
    pub(crate) carried: u64,
    pub(crate) held: u64,
}

impl<'p> Shared<'p> {
    /// For `plan.threads` workers and one watcher.
    pub(crate) fn new(plan: &'p Plan, stop: &'p AtomicBool) -> Shared<'p> {
        Shared {
            plan,
            stop,
            ready: Barrier::new(plan.threads + 1),
            set: Barrier::new(plan.threads + 1),
            start_ns: AtomicU64::new(0),
            left: AtomicUsize::new(plan.threads),
            progress: (0..plan.threads).map(|_| Counted::default()).collect(),
        }
    }

    /// Waits for all threads, and returns the times of the run. Called once by each worker and by the watcher.
    pub(crate) fn meet(&self) -> Times {
        if self.ready.wait().is_leader() {
            self.start_ns.store(clock::nanoseconds(), Ordering::Relaxed);
        }
        self.set.wait();
        let start_ns = self.start_ns.load(Ordering::Relaxed);
        let begin_ns = start_ns + self.plan.warmup.as_nanos() as u64;
        let end_ns = begin_ns + self.plan.duration.as_nanos() as u64;
        Times { start_ns, begin_ns, end_ns, send_end_ns: end_ns }
    }

    /// Called once by each worker at its end.
    pub(crate) fn leave(&self) {
        self.left.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether all workers have ended.
    pub(crate) fn is_over(&self) -> bool {
        self.left.load(Ordering::Relaxed) == 0
    }

    /// Whether the run is to end early.
    #[inline]
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// The progress of all threads, `elapsed` into the counted time.
    pub(crate) fn live(&self, elapsed: Option<Duration>) -> Live<'_> {
        let sum = |of: fn(&Counted) -> &AtomicU64| {
            self.progress.iter().map(|one| of(one).load(Ordering::Relaxed)).sum()
        };
        Live {
            elapsed,
            requests: sum(|one| &one.requests),
            errors: sum(|one| &one.errors),
            threads: &self.progress,
        }
    }
}

impl Counted {
    /// Stores a copy of the counts, unless the last one is being read. Copies a histogram, which costs about 30 µs:
    /// call it at most a few times per second.
    pub(crate) fn note_detail(&self, tally: &Tally, open: u64, oldest_wait: Duration) {
        let Ok(mut detail) = self.detail.try_lock() else { return };
        *detail = Some(Detail {
            errors: tally.errors,
            statuses: tally.statuses.clone(),
            bytes_read: tally.bytes_read,
            latency: tally.latency.clone(),
            open,
            oldest_wait,
        });
    }

    /// The merged copies of the threads.
    pub(crate) fn detail(threads: &[Counted]) -> Option<Detail> {
        let left = |one: &Counted| one.detail.lock().ok().and_then(|detail| detail.clone());
        threads.iter().filter_map(left).reduce(|mut sum, one| {
            sum.errors += one.errors;
            sum.statuses += &one.statuses;
            sum.bytes_read += one.bytes_read;
            sum.latency.merge(&one.latency);
            sum.open += one.open;
            sum.oldest_wait = sum.oldest_wait.max(one.oldest_wait);
            sum
        })
    }

    #[inline]
    pub(crate) fn note(&self, requests: u64, errors: &Errors) {
        self.requests.store(requests, Ordering::Relaxed);
        self.errors.store(errors.sum(), Ordering::Relaxed);
    }
}

/// Sums a figure over all threads.
pub(crate) fn sum(all: &[ThreadResult], of: fn(&ThreadResult) -> u64) -> u64 {
    all.iter().map(of).sum()
}
