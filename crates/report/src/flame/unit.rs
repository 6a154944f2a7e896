//! Costs in readable units.

use flatout_profile::{Clock, Comparison, Per, Profile};

/// The unit of a column of costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    /// Time; a cost is in nanoseconds.
    Time {
        /// Whether per request.
        per_request: bool,
    },
    /// Cycles of the CPU.
    Cycles {
        /// Whether per request.
        per_request: bool,
    },
    /// A share of the total; 1.0 is all.
    Share,
}

impl Unit {
    /// The unit of a profile's costs, and the factor from weight to cost.
    pub(super) fn of(profile: &Profile) -> (Unit, f64) {
        let per_request = profile.per_request(1);
        (Unit::new(profile.clock, per_request.is_some()), per_request.unwrap_or(1.0))
    }

    /// The unit of a comparison's costs.
    pub(super) fn of_comparison(comparison: &Comparison) -> Unit {
        match comparison.per {
            Per::Request(clock) => Unit::new(clock, true),
            Per::Share => Unit::Share,
        }
    }

    /// The heading of a column.
    pub(super) fn heading(self) -> &'static str {
        match self {
            Unit::Time { per_request: true } => "µs/request",
            Unit::Time { per_request: false } => "CPU ms",
            Unit::Cycles { per_request: true } => "cycles/request",
            Unit::Cycles { per_request: false } => "Mcycles",
            Unit::Share => "share",
        }
    }

    /// The divisor of a cost for that heading.
    pub(super) fn divisor(self) -> f64 {
        match self {
            Unit::Time { per_request: true } => 1e3,
            Unit::Time { per_request: false } => 1e6,
            Unit::Cycles { per_request: true } => 1.0,
            Unit::Cycles { per_request: false } => 1e6,
            Unit::Share => 0.01,
        }
    }

    /// Useful number of decimals.
    pub(super) fn digits(self) -> usize {
        match self {
            Unit::Time { per_request: true } => 3,
            Unit::Cycles { per_request: true } => 0,
            _ => 1,
        }
    }

    /// A cost without its unit.
    pub(super) fn number(self, cost: f64) -> String {
        let digits = self.digits();
        format!("{:.digits$}{}", cost / self.divisor(), if self == Unit::Share { "%" } else { "" })
    }

    fn new(clock: Clock, per_request: bool) -> Unit {
        match clock {
            Clock::CpuTime => Unit::Time { per_request },
            Clock::Cycles => Unit::Cycles { per_request },
        }
    }
}

/// What was profiled and how, in a line.
pub(super) fn facts(profile: &Profile) -> String {
    let clock = match profile.clock {
        Clock::CpuTime => "cpu-clock",
        Clock::Cycles => "cycles",
    };
    let requests = profile.request_count.map(|count| format!(", {count:.0} requests"));
    format!(
        "{:.1} s at {} Hz on {} CPUs ({clock}): {} samples, {} lost{}",
        profile.time.as_secs_f64(),
        profile.rate_hz,
        profile.cpu_count,
        profile.sample_count,
        profile.lost_count,
        requests.unwrap_or_default(),
    )
}

/// The idle share of all CPUs' time; `None` if unknown: cycles are not counted while a CPU is idle.
pub(super) fn idle_share(profile: &Profile) -> Option<f64> {
    let all_ns = profile.time.as_nanos() as f64 * profile.cpu_count as f64;
    let is_known = profile.clock == Clock::CpuTime && profile.idle_weight > 0 && all_ns > 0.0;
    is_known.then(|| (profile.idle_weight as f64 / all_ns).min(1.0))
}
