//! What a climb came to.

use flatout_load::Latency;
use flatout_profile::Profile;
use flatout_trial::{Block, Effect, Found};

use crate::plan::Error;
use crate::tunings::Reading;

/// The result of a climb.
#[derive(Debug)]
pub struct Outcome {
    /// Nothing against nothing: what the noise of this machine looks like.
    pub noise: Option<Effect>,
    /// An effect that is no larger is none; a share, as all gains are.
    pub noise_floor: Option<f64>,
    /// What became of each rung, in the plan's order.
    pub rungs: Vec<Climbed>,
    /// All that was kept against nothing.
    pub total: Option<Effect>,
    /// Over all runs with nothing in place; none where not even one was made.
    pub before: Option<Figures>,
    /// Over all runs with everything in place that was kept; none where nothing was.
    pub after: Option<Figures>,
    /// The one shell command that applies what helped; none where nothing did.
    pub apply: Option<String>,
    /// The one that takes it back; none where there is nothing to take back.
    pub take_back: Option<String>,
    /// What a request costs before and after; or why that is not known.
    pub profiles: Result<Profiles, String>,
    /// How it ended.
    pub end: End,
    /// What could not be taken back and why; none where all is as it was.
    pub left_behind: Option<String>,
    /// What is left for the user to do, in this order; nothing where the climb is at its end.
    pub next: Vec<String>,
    /// What the runs after a reboot are to be held against; none where no rung waits for one.
    pub waiting: Option<Waiting>,
}

/// A rung that waits for a reboot.
#[derive(Debug, Clone, PartialEq)]
pub struct Waiting {
    /// Its name.
    pub rung: String,
    /// The runs before the reboot, with all that was kept in place.
    pub block: Block,
    /// How its tuning stands before the reboot; none of a variant.
    pub reading: Option<Reading>,
}

/// Sampled stacks of the server and of the kernel's work for it.
#[derive(Debug)]
pub struct Profiles {
    /// With nothing in place.
    pub before: Profile,
    /// With everything in place that was kept; none where nothing was.
    pub after: Option<Profile>,
}

/// What became of one rung.
#[derive(Debug, Clone, PartialEq)]
pub struct Climbed {
    /// Its name.
    pub name: String,
    /// Its status, figures and reason.
    pub found: Found,
}

/// The figures of one configuration.
#[derive(Debug, Clone)]
pub struct Figures {
    /// Good answers a second: the median of the runs.
    pub requests_per_s: f64,
    /// The latency that half of the requests did not exceed.
    pub p50_ns: Option<f64>,
    /// The same, 99 %.
    pub p99_ns: Option<f64>,
    /// What the server used for a request.
    pub cpu_us_per_request: Option<f64>,
    /// Requests that were answered.
    pub requests: u64,
    /// Requests that were answered wrongly or not at all.
    pub errors: u64,
    /// Runs behind all that.
    pub runs: usize,
    /// Latencies of all runs; only our own generator tells them.
    pub latency: Option<Latency>,
}

/// How a climb ended.
#[derive(Debug)]
pub enum End {
    /// All was found out.
    Done,
    /// The budget was used up before; what was not measured says so.
    Over,
    /// It was interrupted.
    Interrupted,
    /// It failed.
    Failed(Error),
}

impl Figures {
    /// Requests that a second of one CPU answers.
    pub fn requests_per_cpu_s(&self) -> Option<f64> {
        self.cpu_us_per_request.filter(|cost| *cost > 0.0).map(|cost| 1e6 / cost)
    }
}
