//! The result of a measurement, and its warnings.

use std::time::Duration;

use flatout_trial::Disturbance;

use crate::handshakes::Handshakes;
use crate::stages::Stage;
use crate::status::Statuses;
use crate::subscribe::Sequence;
use crate::tally::{ErrorKind, Errors, Latency, StageTally};

/// The result of one run.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Complete responses in the counted time, with any status.
    pub requests: u64,
    /// Errors by kind.
    pub errors: Errors,
    /// Complete responses by status.
    pub statuses: Statuses,
    /// The counted time. In the open loop it ends with the plan: the wait for open requests is not in it.
    pub elapsed: Duration,
    /// In the open loop: how long open requests were waited for after the counted time.
    pub open_wait: Duration,
    /// The responses that count for [`Outcome::requests_per_s`]: all, unless the server fell behind the rate of an
    /// open loop. Then only those of the counted time, because the others came later.
    pub rate_requests: u64,
    /// Bytes of responses in the counted time; in the open loop, of the requests that became due in it (HTTP/1).
    pub bytes_read: u64,
    /// Connections made, including those of the preparation.
    pub connections_made: u64,
    /// TLS handshakes, if connections are encrypted.
    pub handshakes: Option<Handshakes>,
    /// How many streams per connection the server allows, if fewer than the plan's (HTTP/2).
    pub streams_allowed: Option<u32>,
    /// Connections open at the end.
    pub connections_held: u64,
    /// From when requests were due; in the closed loop that is when they were sent.
    pub latency: Latency,
    /// In the open loop: from when requests were sent, as most tools report it.
    pub latency_raw: Option<Latency>,
    /// In the open loop: how late requests were sent although a connection was free.
    pub lag: Latency,
    /// Complete responses in each second.
    pub series: Vec<u64>,
    /// By stage, if the plan has some.
    pub stages: Vec<StageOutcome>,
    /// For subscribers: whether they received every message once.
    pub sequence: Option<Sequence>,
    /// Sent, but without a response when the run ended.
    pub unanswered: u64,
    /// In the open loop: due, but never sent because no connection was free. The latencies include their wait so far.
    pub unsent: u64,
    /// Of the counted requests, those with a response before the end of the planned time.
    pub answered_in_time: u64,
    /// In the open loop: responses in the counted time to requests that were due in the warm-up.
    pub carried: u64,
    /// CPU use of our threads.
    pub threads: Vec<ThreadUse>,
    /// CPU use of the server, if it could be read.
    pub server_cpu: Option<ServerCpu>,
    /// Whether it was stopped early.
    pub is_stopped: bool,
}

/// The result of one stage: of the requests that became due in it, whenever their responses came.
#[derive(Debug, Clone)]
pub struct StageOutcome {
    /// The stage.
    pub stage: Stage,
    /// Complete responses.
    pub requests: u64,
    /// Complete responses that came while the stage lasted, also to requests of earlier stages.
    pub responses_meanwhile: u64,
    /// Errors of all kinds.
    pub errors: u64,
    /// From when requests were due.
    pub latency: Latency,
}

impl StageOutcome {
    pub(crate) fn of((stage, tally): (&Stage, StageTally)) -> StageOutcome {
        let StageTally { requests, responses_meanwhile, errors, latency, .. } = tally;
        StageOutcome { stage: *stage, requests, responses_meanwhile, errors, latency }
    }

    /// Complete responses to its requests, whenever they came, for each second of the stage.
    pub fn requests_per_s(&self) -> f64 {
        self.requests as f64 / self.stage.time.as_secs_f64().max(1e-9)
    }

    /// Complete responses per second while the stage lasted.
    pub fn responses_per_s(&self) -> f64 {
        self.responses_meanwhile as f64 / self.stage.time.as_secs_f64().max(1e-9)
    }
}

/// CPU use of a thread.
#[derive(Debug, Clone, Copy)]
pub struct ThreadUse {
    /// Time on a CPU.
    pub cpu: Duration,
    /// Wall time.
    pub elapsed: Duration,
}

/// CPU use of the server's processes in the counted time.
#[derive(Debug, Clone, PartialEq)]
pub struct ServerCpu {
    /// The processes.
    pub pids: Vec<u32>,
    /// User time.
    pub user: Duration,
    /// Kernel time.
    pub kernel: Duration,
    /// CPU time of the whole machine, minus this process and its exited children: the server, the kernel's threads
    /// and interrupts that work for it, and whatever else runs. `None` if `/proc/stat` does not report it.
    pub machine: Option<Duration>,
    /// Network softirqs that are not in the CPU time of its processes: on top of the load generator, other programs, the
    /// kernel's threads and idle CPUs. `None` without a clock of them ([`crate::KernelWork`]).
    pub softirqs: Option<Duration>,
    /// The CPU time of the kernel's threads, without the softirqs within them; `None` without that clock.
    pub kernel_threads: Option<Duration>,
    /// What kept its threads from the CPUs.
    pub disturbance: Option<Disturbance>,
}

/// A thread that is on its CPU for more than this share of the time measures itself.
pub const CLIENT_CPU_SHARE_MAX: f64 = 0.90;

/// A thread that is on its CPU for less than this share of the time had to wait for it, if it was late.
const IDLE_CPU_SHARE: f64 = 0.50;

/// Requests that are sent later than this, at p99, distort the server's figures.
const LAG_MAX: Duration = Duration::from_millis(1);

impl ThreadUse {
    /// The share of its time that it spent on a CPU.
    pub fn share(&self) -> f64 {
        self.cpu.as_secs_f64() / self.elapsed.as_secs_f64().max(1e-9)
    }
}

impl Outcome {
    /// Complete responses per second: [`Outcome::rate_requests`] over the counted time.
    pub fn requests_per_s(&self) -> f64 {
        self.rate_requests as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// TLS handshakes per second, if connections are encrypted.
    pub fn handshakes_per_s(&self) -> Option<f64> {
        let counted = self.handshakes.as_ref()?.counted;
        Some(counted as f64 / self.elapsed.as_secs_f64().max(1e-9))
    }

    /// The server's CPU time per request in microseconds: user, kernel.
    pub fn server_cpu_us_per_request(&self) -> Option<(f64, f64)> {
        let used = self.server_cpu.as_ref().filter(|_| self.requests > 0)?;
        let each = |time: Duration| time.as_secs_f64() * 1e6 / self.requests as f64;
        Some((each(used.user), each(used.kernel)))
    }

    /// The machine's CPU time per request in microseconds, without ours: [`ServerCpu::machine`].
    pub fn machine_cpu_us_per_request(&self) -> Option<f64> {
        let used = self.server_cpu.as_ref().filter(|_| self.requests > 0)?;
        Some(used.machine?.as_secs_f64() * 1e6 / self.requests as f64)
    }

    /// Our own CPU time per request in microseconds.
    pub fn client_cpu_us_per_request(&self) -> f64 {
        let cpu: Duration = self.threads.iter().map(|thread| thread.cpu).sum();
        cpu.as_secs_f64() * 1e6 / self.requests.max(1) as f64
    }

    /// Warnings for the reader of the figures, one sentence each.
    pub fn warnings(&self) -> Vec<String> {
        let mut found = Vec::new();
        let busiest = self.threads.iter().map(ThreadUse::share).fold(0.0, f64::max);
        if busiest > CLIENT_CPU_SHARE_MAX {
            found.push(format!(
                "the load generator is the limit: one of its threads used its CPU {:.0} % of the time, so the \
                 server may be faster than this; use more threads",
                busiest * 100.0
            ));
        }
        let lag = Duration::from_nanos(self.lag.percentile(99.0));
        if lag > LAG_MAX {
            let why = match busiest < IDLE_CPU_SHARE {
                // It was not it that was busy.
                true => format!("other programs use the CPUs; this one used {:.0} % of one", busiest * 100.0),
                false => "the load generator could not keep up with the rate".to_owned(),
            };
            found.push(format!(
                "requests were sent late although connections were free (1 in 100 by {:.1} ms or more): {why}",
                lag.as_secs_f64() * 1e3
            ));
        }
        if self.unsent > 0 {
            found.push(format!(
                "{} requests were due but never sent, because no connection was free; they count with their wait \
                 until the end, so true latencies are longer",
                self.unsent
            ));
        }
        if self.requests == 0 && self.unanswered > 0 {
            found.push(format!("no response arrived; {} requests were waiting at the end", self.unanswered));
        }
        if self.errors.of(ErrorKind::Connect) > 0 {
            found.push(format!(
                "{} connections could not be opened; if the system has no ports left, use more source addresses",
                self.errors.of(ErrorKind::Connect)
            ));
        }
        if let Some(allowed) = self.streams_allowed {
            found.push(format!(
                "the server allows only {allowed} streams per connection; no more were open at a time"
            ));
        }
        if let Some(Sequence { missed, repeated, .. }) = self.sequence
            && missed + repeated > 0
        {
            found.push(format!(
                "by their numbers, {missed} messages are missing and {repeated} came twice or late"
            ));
        }
        if self.is_stopped {
            found.push("stopped early: this is the result so far".to_owned());
        }
        found
    }
}
