//! The little that threads share: when to begin, when to stop, and how far they are.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use flatout_lane::clock;

use crate::plan::Plan;
use crate::tally::Errors;

/// What all threads of a run see.
pub(crate) struct Shared<'p> {
    pub(crate) plan: &'p Plan,
    stop: &'p AtomicBool,
    ready: Barrier,
    set: Barrier,
    start_ns: AtomicU64,
    pub(crate) progress: Vec<Progress>,
}

/// How far one thread is; written now and then by it alone.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    requests: AtomicU64,
    errors: AtomicU64,
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
}

/// What a thread brings home.
pub(crate) struct Brought {
    pub(crate) tally: crate::tally::Tally,
    pub(crate) times: Times,
    pub(crate) cpu_ns: u64,
    pub(crate) over_ns: u64,
    pub(crate) unanswered: u64,
    pub(crate) unsent: u64,
    pub(crate) held: u64,
}

impl<'p> Shared<'p> {
    /// For `plan.threads` workers and one who watches.
    pub(crate) fn new(plan: &'p Plan, stop: &'p AtomicBool) -> Shared<'p> {
        Shared {
            plan,
            stop,
            ready: Barrier::new(plan.threads + 1),
            set: Barrier::new(plan.threads + 1),
            start_ns: AtomicU64::new(0),
            progress: (0..plan.threads).map(|_| Progress::default()).collect(),
        }
    }

    /// Waits until all are here, and says when what begins. Called once by each worker and by the one who watches.
    pub(crate) fn meet(&self) -> Times {
        if self.ready.wait().is_leader() {
            self.start_ns.store(clock::nanoseconds(), Ordering::Relaxed);
        }
        self.set.wait();
        let start_ns = self.start_ns.load(Ordering::Relaxed);
        let begin_ns = start_ns + self.plan.warmup.as_nanos() as u64;
        Times { start_ns, begin_ns, end_ns: begin_ns + self.plan.duration.as_nanos() as u64 }
    }

    /// Whether the run is to end early.
    #[inline]
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Requests and errors of all threads so far.
    pub(crate) fn progress(&self) -> (u64, u64) {
        self.progress.iter().fold((0, 0), |(requests, errors), progress| {
            let now = (progress.requests.load(Ordering::Relaxed), progress.errors.load(Ordering::Relaxed));
            (requests + now.0, errors + now.1)
        })
    }
}

impl Progress {
    #[inline]
    pub(crate) fn note(&self, requests: u64, errors: &Errors) {
        self.requests.store(requests, Ordering::Relaxed);
        self.errors.store(errors.sum(), Ordering::Relaxed);
    }
}

/// Sums of what all threads brought.
pub(crate) fn sum(all: &[Brought], of: fn(&Brought) -> u64) -> u64 {
    all.iter().map(of).sum()
}
