//! The result of a climb.

use flatout_load::{CLIENT_CPU_SHARE_MAX, Latency};
use flatout_profile::Profile;
use flatout_trial::compare::{Level, Verdict, judge};
use flatout_trial::{Block, Effect, End, Found, Objective};

use crate::plan::Error;
use crate::tunings::Reading;

/// The result of a climb.
#[derive(Debug)]
pub struct Ascent {
    /// Nothing against nothing: what the noise of this machine looks like.
    pub noise: Option<Effect>,
    /// The far end of that interval; a share, as all gains are.
    pub noise_floor: Option<f64>,
    /// What became of each rung, in the plan's order.
    pub rungs: Vec<TriedRung>,
    /// All that was kept against nothing.
    pub total: Option<Effect>,
    /// Over the runs of `total` with nothing in place, or where there is none over those of `noise`; none where not even one
    /// was made.
    pub before: Option<Figures>,
    /// Over the runs of `total` with everything in place that was kept; none where nothing was. It is as far from `before`
    /// as `total` says: their runs took turns.
    pub after: Option<Figures>,
    /// Requests a second at which everything was measured; none where it was the highest that could be had.
    pub load_rate_per_s: Option<f64>,
    /// Configuration edits that were kept, as a diff for `patch -p1 -d /`; empty if there were none, `None` if the
    /// server's configuration is not known.
    pub diff: Option<String>,
    /// The one shell command that applies what helped; none where nothing did.
    pub apply: Option<String>,
    /// The one that undoes it; none where there is nothing to undo.
    pub take_back: Option<String>,
    /// What a request costs before and after; or why that is not known.
    pub profiles: Result<Profiles, String>,
    /// How it ended.
    pub end: End<Error>,
    /// What could not be undone and why; none where all is as it was.
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
pub struct TriedRung {
    /// Its name.
    pub name: String,
    /// Its status, figures and reason.
    pub found: Found,
    /// The shell command that makes this change alone; none where there is nothing to try.
    pub apply: Option<String>,
    /// The one that undoes it.
    pub take_back: Option<String>,
}

/// The figures of one configuration.
#[derive(Debug, Clone)]
pub struct Figures {
    /// Good answers a second: where it is part of a comparison, the level that belongs to its gain, otherwise the median of
    /// the runs. So are the 99 % and the CPU.
    pub requests_per_s: f64,
    /// The latency that half of the requests did not exceed.
    pub p50_ns: Option<f64>,
    /// The same, 99 %.
    pub p99_ns: Option<f64>,
    /// What a request costs: the machine's CPU but for the load generator's, or that of the server's processes where the
    /// machine's is not known.
    pub cpu_us_per_request: Option<f64>,
    /// The part of the time that the generator's busiest thread was on its CPU; only our own generator reports it.
    pub generator_share: Option<f64>,
    /// Requests that were answered.
    pub requests: u64,
    /// Requests that were answered wrongly or not at all.
    pub errors: u64,
    /// Runs behind all that.
    pub runs: usize,
    /// The mean of the runs, for comparing with another climb.
    pub means: Means,
    /// Latencies of all runs; only our own generator reports them.
    pub latency: Option<Latency>,
}

/// The mean of each figure over the runs; none where fewer than three runs have it.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Means {
    /// Of requests a second.
    pub throughput: Option<Mean>,
    /// Of the latency that 99 % did not exceed, in nanoseconds.
    pub p99: Option<Mean>,
    /// Of the server's CPU for a request, in microseconds.
    pub cpu: Option<Mean>,
}

/// A geometric mean, which a slow run pulls no farther than a fast one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mean {
    /// The mean.
    pub mean: f64,
    /// The lower end of the interval that holds the true mean with 95 % confidence.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
}

impl Mean {
    /// Of runs' figures.
    pub(crate) fn of(runs: &[f64]) -> Option<Mean> {
        // The interval of a mean of ratios, all of them to 1, is that of a mean.
        let pairs: Vec<(f64, f64)> = runs.iter().map(|figure| (*figure, 1.0)).collect();
        let Verdict { ratio: mean, low, high, .. } = judge(&pairs, Level::ONE);
        (low > 0.0 && high.is_finite()).then_some(Mean { mean, low, high })
    }
}

impl Means {
    /// Of the figure that an objective is about.
    pub fn on(&self, objective: Objective) -> Option<Mean> {
        match objective {
            Objective::Throughput => self.throughput,
            Objective::P99 => self.p99,
            Objective::Cpu => self.cpu,
        }
    }
}

impl Figures {
    /// The same at the levels of a comparison: of its first set, or of the other.
    pub(crate) fn at_levels(mut self, effect: &Effect, is_first: bool) -> Figures {
        let level = |objective: Objective| {
            effect.levels(objective).map(|(first, other)| if is_first { first } else { other })
        };
        self.requests_per_s = level(Objective::Throughput).unwrap_or(self.requests_per_s);
        self.p99_ns = level(Objective::P99).or(self.p99_ns);
        self.cpu_us_per_request = level(Objective::Cpu).or(self.cpu_us_per_request);
        self
    }

    /// The levels that an effect makes of these.
    pub(crate) fn raised(&self, mut with: Figures, effect: &Effect) -> Figures {
        let gain = |objective: Objective| effect.on(objective).map(|estimate| 1.0 + estimate.gain);
        if let Some(times) = gain(Objective::Throughput) {
            with.requests_per_s = self.requests_per_s * times;
        }
        let less = |before: Option<f64>, objective: Objective| Some(before? / gain(objective)?);
        with.p99_ns = less(self.p99_ns, Objective::P99).or(with.p99_ns);
        with.cpu_us_per_request = less(self.cpu_us_per_request, Objective::Cpu).or(with.cpu_us_per_request);
        with
    }

    /// Whether the load generator was the limit, not the server.
    pub fn is_limited_by_generator(&self) -> bool {
        self.generator_share.is_some_and(|share| share > CLIENT_CPU_SHARE_MAX)
    }

    /// Requests that a second of one CPU answers.
    pub fn requests_per_cpu_s(&self) -> Option<f64> {
        self.cpu_us_per_request.filter(|cost| *cost > 0.0).map(|cost| 1e6 / cost)
    }
}
