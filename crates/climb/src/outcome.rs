//! The result of a climb.

use flatout_load::{CLIENT_CPU_SHARE_MAX, Latency};
use flatout_profile::Profile;
use flatout_trial::compare::{Level, Verdict, judge};
use flatout_trial::{Block, Effect, End, Found, Noise, Objective};

use crate::plan::Error;
use crate::tuned::Reading;

/// The result of a climb.
#[derive(Debug)]
pub struct Outcome {
    /// The unchanged server against itself (A/A): the noise of this machine.
    pub noise: Option<Noise>,
    /// The same by the method of changes of the server, if the plan also has others; `noise` is by the method of those then.
    pub noise_of_servers: Option<Noise>,
    /// The result of each rung, in the plan's order.
    pub rungs: Vec<TriedRung>,
    /// Everything kept, against the unchanged server.
    pub total: Option<Effect>,
    /// Over the unchanged runs of `total`, or of `noise` if there is no `total`; `None` without any run.
    pub before: Option<Figures>,
    /// Over the runs of `total` with everything kept; `None` if nothing was kept. It differs from `before` as `total`
    /// says, because their runs alternated.
    pub after: Option<Figures>,
    /// The rate of all measurements, in requests per second; `None`: the highest possible.
    pub load_rate_per_s: Option<f64>,
    /// How requests arrive, in words: `64 connections in a closed loop`.
    pub load: Option<String>,
    /// What the CPU time is of, in words; `None` in files of earlier versions.
    pub cpu: Option<String>,
    /// Configuration edits that were kept, as a diff for `patch -p1 -d /`; empty if there were none, `None` if the
    /// server's configuration is not known.
    pub diff: Option<String>,
    /// The shell command that applies what helped; `None` if nothing did.
    pub apply: Option<String>,
    /// The command that undoes it; `None` if there is nothing to undo.
    pub take_back: Option<String>,
    /// The cost of a request before and after; or why it is not known.
    pub profiles: Result<Profiles, String>,
    /// How it ended.
    pub end: End<Error>,
    /// What could not be undone and why; `None` if everything was.
    pub left_behind: Option<String>,
    /// What the user still has to do, in this order; empty if the climb is complete.
    pub next: Vec<String>,
    /// What to compare the runs after a reboot with; `None` if no rung waits for one.
    pub waiting: Option<Waiting>,
}

/// A rung that waits for a reboot.
#[derive(Debug, Clone, PartialEq)]
pub struct Waiting {
    /// Its name.
    pub rung: String,
    /// The runs before the reboot, with everything kept applied.
    pub block: Block,
    /// The state of its tuning before the reboot; `None` for a variant.
    pub reading: Option<Reading>,
}

/// Sampled stacks of the server and of the kernel's work for it.
#[derive(Debug)]
pub struct Profiles {
    /// Unchanged.
    pub before: Profile,
    /// With everything kept; `None` if nothing was.
    pub after: Option<Profile>,
}

/// The result of one rung.
#[derive(Debug, Clone, PartialEq)]
pub struct TriedRung {
    /// Its name.
    pub name: String,
    /// Its status, figures and reason.
    pub found: Found,
    /// The shell command that applies only this change; `None` if there is nothing to try.
    pub apply: Option<String>,
    /// The command that undoes it.
    pub take_back: Option<String>,
}

/// The figures of one configuration.
#[derive(Debug, Clone)]
pub struct Figures {
    /// Correct responses per second: in a comparison, the level that matches its gain, otherwise the median of the
    /// runs. The same holds for p99 and CPU.
    pub requests_per_s: f64,
    /// Median latency.
    pub p50_ns: Option<f64>,
    /// The 99th percentile.
    pub p99_ns: Option<f64>,
    /// CPU time per request; [`Outcome::cpu`] says of what.
    pub cpu_us_per_request: Option<f64>,
    /// The share of the time that the generator's busiest thread was on its CPU; only our own generator reports it.
    pub generator_share: Option<f64>,
    /// Requests with a correct response.
    pub requests: u64,
    /// Requests with a wrong response, or none.
    pub errors: u64,
    /// The number of runs.
    pub runs: usize,
    /// The means of the runs, for comparison with another climb.
    pub means: Means,
    /// Latencies of all runs; only our own generator reports them.
    pub latency: Option<Latency>,
}

/// The mean of each figure over the runs; `None` with fewer than three runs that have it.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Means {
    /// Of requests per second.
    pub throughput: Option<Mean>,
    /// Of the 99th percentile of latency, in nanoseconds.
    pub p99: Option<Mean>,
    /// Of the server's CPU time per request, in microseconds.
    pub cpu: Option<Mean>,
}

/// A geometric mean, on which slow and fast runs have the same weight.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mean {
    /// The mean.
    pub mean: f64,
    /// The lower end of its 95 % confidence interval.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

impl Mean {
    /// The mean of these runs.
    pub(crate) fn of(runs: &[f64]) -> Option<Mean> {
        // The interval of a mean is that of a mean of ratios to 1.
        let pairs: Vec<(f64, f64)> = runs.iter().map(|figure| (*figure, 1.0)).collect();
        let Verdict { ratio: mean, low, high, .. } = judge(&pairs, Level::ONE);
        (low > 0.0 && high.is_finite()).then_some(Mean { mean, low, high })
    }
}

impl Means {
    /// The mean of the objective's figure.
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

    /// These figures, changed by an effect.
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

    /// Requests that one CPU serves per second.
    pub fn requests_per_cpu_s(&self) -> Option<f64> {
        self.cpu_us_per_request.filter(|cost| *cost > 0.0).map(|cost| 1e6 / cost)
    }
}
