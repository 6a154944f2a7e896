//! The figures of one run, and the one that counts.

/// The figures of one run.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Sample {
    /// Correct responses per second.
    pub requests_per_s: f64,
    /// The 99th percentile of latency.
    pub p99_ns: Option<f64>,
    /// The server's CPU time per request.
    pub cpu_us_per_request: Option<f64>,
    /// The machine's without the load generator, as a check of it.
    pub machine_us_per_request: Option<f64>,
    /// Requests with a correct response.
    pub requests: u64,
    /// Requests with a wrong response, or none.
    pub errors: u64,
    /// What kept the server from its CPUs meanwhile, if that is known.
    pub disturbance: Option<Disturbance>,
}

/// What kept a server from its CPUs: seconds in each second.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Disturbance {
    /// Its threads were ready to run, and other threads had the CPUs (`schedstat`); the sum of all threads.
    pub waited: f64,
    /// The hypervisor had taken CPUs of this machine (`steal` of `/proc/stat`); the sum of all CPUs.
    pub stolen: f64,
    /// The quota of its cgroup had stopped it (`throttled_usec` of `cpu.stat`).
    pub throttled: f64,
}

impl Disturbance {
    /// The mean of those that are known.
    pub fn mean(all: impl IntoIterator<Item = Option<Disturbance>>) -> Option<Disturbance> {
        let known: Vec<Disturbance> = all.into_iter().flatten().collect();
        let mean = |of: fn(&Disturbance) -> f64| known.iter().map(of).sum::<f64>() / known.len() as f64;
        (!known.is_empty()).then(|| Disturbance {
            waited: mean(|one| one.waited),
            stolen: mean(|one| one.stolen),
            throttled: mean(|one| one.throttled),
        })
    }
}

/// The objective that a change is kept for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Objective {
    /// More requests per second.
    #[default]
    Throughput,
    /// A lower 99th percentile of latency.
    P99,
    /// Less CPU time per request.
    Cpu,
}

impl Objective {
    /// All objectives, in the order in which they are shown.
    pub const ALL: [Objective; 3] = [Objective::Throughput, Objective::P99, Objective::Cpu];

    /// Its name in arguments and results.
    pub fn name(self) -> &'static str {
        match self {
            Objective::Throughput => "throughput",
            Objective::P99 => "p99",
            Objective::Cpu => "cpu",
        }
    }

    /// Converts a figure to its own unit, and back.
    pub(crate) fn of_figure(self, figure: f64) -> f64 {
        match self {
            Objective::Throughput => figure,
            Objective::P99 | Objective::Cpu => 1.0 / figure,
        }
    }

    /// The figure of which more is better: requests per second, or the inverse of latency and cost. `None` if the run
    /// does not report it.
    pub fn figure(self, sample: &Sample) -> Option<f64> {
        let inverse = |value: Option<f64>| value.filter(|value| *value > 0.0).map(|value| 1.0 / value);
        match self {
            Objective::Throughput => Some(sample.requests_per_s),
            Objective::P99 => inverse(sample.p99_ns),
            Objective::Cpu => inverse(sample.cpu_us_per_request),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_is_better_in_every_figure() {
        let slow = Sample {
            requests_per_s: 100.0,
            p99_ns: Some(2e6),
            cpu_us_per_request: Some(9.0),
            ..Sample::default()
        };
        let fast = Sample { requests_per_s: 200.0, p99_ns: Some(1e6), cpu_us_per_request: Some(4.0), ..slow };
        for objective in Objective::ALL {
            assert!(objective.figure(&fast) > objective.figure(&slow), "{}", objective.name());
        }
        let unknown = Sample { p99_ns: None, cpu_us_per_request: Some(0.0), ..slow };
        assert_eq!((Objective::P99.figure(&unknown), Objective::Cpu.figure(&unknown)), (None, None));
    }
}
