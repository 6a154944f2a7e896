//! One run of load, by our own generator or another.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use flatout_load::{
    self as load, Arrival, ErrorKind, KernelWork, Latency, Outcome, Pacing, Remote, ServerCpu,
    ServerProcesses, ThreadUse,
};
use flatout_trial::{Disturbance, Sample, Turn};

use crate::command;
use crate::evidence::{self, SEEN_TIME};
use crate::lab::Lab;
use crate::output::parse_output;
use crate::plan::{Error, Generator};

/// The result of one run.
pub(crate) struct Run {
    pub(crate) sample: Sample,
    pub(crate) p50_ns: Option<f64>,
    pub(crate) latency: Option<Latency>,
    /// The share of the time that its busiest thread was on its CPU.
    pub(crate) generator_share: Option<f64>,
}

/// The result of one short block of load.
pub(crate) struct Block {
    pub(crate) turn: Turn,
    pub(crate) latency: Latency,
    pub(crate) generator_share: f64,
    pub(crate) disturbance: Option<Disturbance>,
}

/// What all runs have in common.
pub(crate) struct Load<'p> {
    pub(crate) generator: Generator,
    pub(crate) remote: Remote,
    pub(crate) url: String,
    pub(crate) lab: Option<Lab>,
    pub(crate) stop: &'p AtomicBool,
    /// Whether all changes are to the server: then CPU time is that of its processes, without other programs.
    pub(crate) is_server_alone: bool,
    /// Runs of our own generator so far.
    pub(crate) runs_count: AtomicU64,
    /// The clock of the kernel's work for the server, or why there is none.
    pub(crate) kernel_work: Result<Arc<KernelWork>, String>,
}

/// Warm-up of a block: long enough for the server to accept its connections.
const BLOCK_WARMUP: Duration = Duration::from_millis(10);

/// Time limit of a run of another generator.
const COMMAND_TIME_MAX: Duration = Duration::from_secs(600);

impl Load<'_> {
    /// One run against the server with these processes. `None` if it was interrupted.
    pub(crate) fn run(&self, pids: &[u32]) -> Result<Option<Run>, Error> {
        self.run_by(&self.generator, pids)
    }

    /// The same for the time of a profile, if the generator supports a duration; all of it is counted.
    pub(crate) fn run_for(&self, time: Duration, pids: &[u32]) -> Result<Option<Run>, Error> {
        match &self.generator {
            Generator::Own(plan) => {
                let plan = load::Plan { duration: time, warmup: Duration::ZERO, ..(**plan).clone() };
                self.run_by(&Generator::Own(Box::new(plan)), pids)
            }
            Generator::Command(_) => self.run(pids),
        }
    }

    /// From now on, our own generator sends requests at this rate, in an open loop with random arrivals, like those of
    /// many clients: bursts or equal intervals let the kernel handle packets together that would arrive apart.
    pub(crate) fn at_rate(&mut self, per_s: f64) {
        if let Generator::Own(plan) = &mut self.generator {
            plan.pacing = Pacing::Open { per_s, arrival: Arrival::Poisson };
        }
    }

    /// How requests arrive, in words.
    pub(crate) fn pattern(&self) -> String {
        let Generator::Own(plan) = &self.generator else { return "by another load generator".to_owned() };
        match plan.pacing {
            Pacing::Open { per_s, arrival } => {
                let times = match arrival {
                    Arrival::Poisson => "random times",
                    Arrival::Constant => "equal intervals",
                };
                format!("{per_s:.0} requests/s at {times}, over {} connections", plan.connections)
            }
            Pacing::Closed if plan.is_spread => {
                format!(
                    "{} connections in a closed loop, each request sent as soon as a response is read",
                    plan.connections
                )
            }
            Pacing::Closed => format!("{} connections in a closed loop", plan.connections),
            Pacing::Staged { .. } => format!("stages, over {} connections", plan.connections),
        }
    }

    /// What the CPU time is of, in words.
    pub(crate) fn cpu_meaning(&self) -> String {
        let clock = match &self.kernel_work {
            Ok(work) => work.failure().map_or(Ok(()), Err),
            Err(why) => Err(why.as_str()),
        };
        cpu_meaning(clock, self.is_server_alone)
    }

    /// The random seed of the next batch of blocks.
    pub(crate) fn seed_of_batch(&self, plan: &load::Plan) -> u64 {
        plan.seed.wrapping_add(self.runs_count.fetch_add(1, Ordering::Relaxed) << 16)
    }

    /// How many responses under a short load there were, and how many had another body than this. `None` if that is not known.
    pub(crate) fn compare_bodies(&self, body: Vec<u8>) -> Option<(u64, u64)> {
        let Generator::Own(plan) = &self.generator else { return None };
        let expect = load::Expect { body: Some(body), ..plan.expect.clone() };
        let plan = load::Plan { expect, duration: SEEN_TIME, warmup: Duration::ZERO, ..(**plan).clone() };
        let outcome = load::run(&plan, self.stop, &mut |_| {}).ok()?;
        (outcome.requests > 0).then(|| evidence::compare_bodies(&outcome))
    }

    /// The fields of its requests, if they are known.
    pub(crate) fn fields(&self) -> &[(String, String)] {
        match &self.generator {
            Generator::Own(plan) => plan.requests.first().map_or(&[], |request| &request.fields),
            Generator::Command(_) => &[],
        }
    }

    /// A block of load by our own generator, on new connections. `None` if it was interrupted.
    pub(crate) fn block(
        &self,
        plan: &load::Plan,
        time: Duration,
        pids: &[u32],
    ) -> Result<Option<Block>, Error> {
        let plan = load::Plan { duration: time, warmup: plan.warmup.min(BLOCK_WARMUP), ..plan.clone() };
        let outcome = self.in_client(|| self.own(&plan, pids))?;
        Ok(outcome.map(|outcome| Block {
            turn: self.turn(&outcome),
            generator_share: generator_share(&outcome),
            disturbance: outcome.server_cpu.as_ref().and_then(|used| used.disturbance),
            latency: outcome.latency,
        }))
    }

    fn run_by(&self, generator: &Generator, pids: &[u32]) -> Result<Option<Run>, Error> {
        self.in_client(|| match generator {
            // Other random times for each pair of runs: the same would be off in the same direction every time.
            Generator::Own(plan) => {
                let number = self.runs_count.fetch_add(1, Ordering::Relaxed);
                let plan = load::Plan { seed: plan.seed + number / 2, ..(**plan).clone() };
                self.own(&plan, pids).map(|outcome| self.run_of(outcome))
            }
            Generator::Command(command) => self.other(command, pids),
        })
    }

    /// Runs a function where requests are sent from. `None` if it was interrupted.
    fn in_client<T: Send>(&self, run: impl FnOnce() -> Result<T, Error> + Send) -> Result<Option<T>, Error> {
        let ran = match &self.lab {
            Some(lab) => lab.in_client(run)?,
            None => run(),
        };
        if self.stop.load(Ordering::Relaxed) { Ok(None) } else { ran.map(Some) }
    }

    fn own(&self, plan: &load::Plan, pids: &[u32]) -> Result<Outcome, Error> {
        let plan = load::Plan {
            remote: self.remote.clone(),
            server_pids: pids.to_vec(),
            kernel_work: self.kernel_work.clone().ok(),
            ..plan.clone()
        };
        load::run(&plan, self.stop, &mut |_| {}).map_err(|error| match error {
            load::Error::Connect(..) => Error::Server(format!("the server cannot be reached: {error}")),
            error => Error::Generator(error.to_string()),
        })
    }

    /// The figures of a run of our own generator.
    fn turn(&self, outcome: &Outcome) -> Turn {
        let bad = outcome.errors.of(ErrorKind::BadStatus) + outcome.errors.of(ErrorKind::UnexpectedBody);
        let requests = outcome.requests;
        let cpu_us = outcome.server_cpu.as_ref().and_then(|used| self.cpu_us(used, requests));
        Turn {
            requests,
            good: requests.saturating_sub(bad),
            errors: outcome.errors.sum(),
            elapsed_s: outcome.elapsed.as_secs_f64().max(1e-9),
            cpu_s: cpu_us.map(|each| each * requests as f64 / 1e6),
            // Without the kernel's work, the machine's time is the figure itself, or has work that the figure has not.
            machine_s: outcome
                .server_cpu
                .as_ref()
                .filter(|used| used.softirqs.is_some())
                .and_then(|used| Some(used.machine?.as_secs_f64())),
        }
    }

    fn run_of(&self, outcome: Outcome) -> Run {
        let turn = self.turn(&outcome);
        let percentile = |percent| (outcome.requests > 0).then(|| outcome.latency.percentile(percent) as f64);
        let sample = Sample {
            requests_per_s: turn.good as f64 / turn.elapsed_s,
            p99_ns: percentile(99.0),
            cpu_us_per_request: turn.cpu_s.map(|cpu_s| cpu_s * 1e6 / turn.requests as f64),
            machine_us_per_request: turn
                .machine_s
                .filter(|_| turn.requests > 0)
                .map(|machine_s| machine_s * 1e6 / turn.requests as f64),
            requests: turn.requests,
            errors: turn.errors,
            disturbance: outcome.server_cpu.as_ref().and_then(|used| used.disturbance),
        };
        let (p50_ns, share) = (percentile(50.0), generator_share(&outcome));
        Run { sample, p50_ns, latency: Some(outcome.latency), generator_share: Some(share) }
    }

    fn other(&self, command: &str, pids: &[u32]) -> Result<Run, Error> {
        let server = ServerProcesses::find(pids, &self.remote)
            .map(|server| server.with(self.kernel_work.as_ref().ok()));
        let before = server.as_ref().and_then(ServerProcesses::used);
        let environment = [("FLATOUT_URL", self.url.clone())];
        let ran = command::run(command, &environment, COMMAND_TIME_MAX, Some(self.stop))
            .map_err(Error::Generator)?;
        let after = server.as_ref().and_then(ServerProcesses::used);
        // A run without a single response, on an overloaded machine, carries no information. The generator has not
        // failed.
        let is_empty = parse_output(&ran.stdout).is_ok_and(|reading| reading.requests == Some(0));
        if !ran.status.success() && !is_empty {
            let why = command::last_words(&ran);
            return Err(Error::Generator(format!(
                "the load generator `{command}` failed ({}){why}",
                ran.status
            )));
        }
        let reading = parse_output(&ran.stdout)
            .map_err(|error| Error::Generator(format!("the load generator `{command}`: {error}")))?;
        let used = before.zip(after).and_then(|(before, after)| after.since(&before));
        let disturbance = used.as_ref().and_then(|used| used.disturbance);
        let requests = reading.requests.filter(|requests| *requests > 0);
        let cpu = used.zip(requests).and_then(|(used, requests)| self.cpu_us(&used, requests));
        let sample = Sample {
            requests_per_s: reading.requests_per_s,
            p99_ns: reading.p99_ns,
            cpu_us_per_request: cpu,
            machine_us_per_request: None,
            requests: reading.requests.unwrap_or(0),
            errors: reading.errors,
            disturbance,
        };
        Ok(Run { sample, p50_ns: reading.p50_ns, latency: None, generator_share: None })
    }

    fn cpu_us(&self, used: &ServerCpu, requests: u64) -> Option<f64> {
        cpu_us(used, requests, self.is_server_alone)
    }
}

/// The share of the time that its busiest thread was on its CPU.
fn generator_share(outcome: &Outcome) -> f64 {
    outcome.threads.iter().map(ThreadUse::share).fold(0.0, f64::max)
}

/// What [`cpu_us`] is of, in words; the error is why there is no clock of softirqs.
fn cpu_meaning(clock: Result<(), &str>, is_server_alone: bool) -> String {
    match (clock, is_server_alone) {
        (Ok(()), true) => "the server's processes and the network softirqs for it".to_owned(),
        (Ok(()), false) => {
            "the server's processes, the network softirqs for it, and, except where two servers run side by side, the kernel's \
             threads"
                .to_owned()
        }
        (Err(why), true) => format!("the server's processes, without softirqs outside of them ({why})"),
        (Err(why), false) => {
            format!(
                "the machine without the load generator, other programs included, or, where two servers run side by side, the server's \
                 processes ({why})"
            )
        }
    }
}

/// Why a clock of softirqs could not be started, in words.
pub(crate) fn why_no_clock(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(_) => format!("a clock of softirqs needs root and BPF: {error}"),
        None => error.to_string(),
    }
}

/// CPU time per request: of the server's processes and of the kernel's softirqs for it. If not all changes are to the server, they
/// may move work to the kernel's threads: these count too. Where the softirqs are not known, it is the machine's then, without the
/// load generator.
fn cpu_us(used: &ServerCpu, requests: u64, is_server_alone: bool) -> Option<f64> {
    let processes = used.user + used.kernel;
    let time = match (used.softirqs, used.machine) {
        (Some(softirqs), _) if is_server_alone => processes + softirqs,
        (Some(softirqs), _) => processes + softirqs + used.kernel_threads.unwrap_or_default(),
        (None, Some(machine)) if !is_server_alone => machine,
        (None, _) => processes,
    };
    (requests > 0).then(|| time.as_secs_f64() * 1e6 / requests as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_without_a_clock_is_reported() {
        let refused = why_no_clock(&io::Error::from_raw_os_error(1));
        let text = cpu_meaning(Err(&refused), true);
        assert!(text.contains("without softirqs") && text.contains("needs root and BPF: "), "{text}");
        let container = io::Error::new(io::ErrorKind::Unsupported, "a clock needs the host's process ids");
        let text = cpu_meaning(Err(&why_no_clock(&container)), false);
        assert!(text.ends_with("(a clock needs the host's process ids)"), "{text}");
    }

    /// Between the blocks of two servers, neither the machine's time nor that of the kernel's threads is read.
    #[test]
    fn work_that_two_servers_side_by_side_do_not_count_is_reported() {
        for clock in [Ok(()), Err("no root")] {
            let text = cpu_meaning(clock, false);
            assert!(text.contains("two servers run side by side"), "{text}");
            assert!(!cpu_meaning(clock, true).contains("side by side"));
        }
    }

    /// RPS moves half of the work from the server's processes to another CPU: that is no gain.
    #[test]
    fn work_that_was_moved_away_still_costs() {
        let used = |own_ms: u64, machine_ms: Option<u64>| ServerCpu {
            pids: vec![1],
            user: Duration::from_millis(own_ms / 2),
            kernel: Duration::from_millis(own_ms / 2),
            machine: machine_ms.map(Duration::from_millis),
            softirqs: None,
            kernel_threads: None,
            disturbance: None,
        };
        assert_eq!(cpu_us(&used(1000, Some(1200)), 100_000, false), Some(12.0));
        assert_eq!(cpu_us(&used(500, Some(1200)), 100_000, false), Some(12.0));
        assert_eq!(cpu_us(&used(500, None), 100_000, false), Some(5.0));
        assert_eq!(cpu_us(&used(500, None), 0, false), None);
        let known = ServerCpu {
            softirqs: Some(Duration::from_millis(300)),
            kernel_threads: Some(Duration::from_millis(100)),
            ..used(500, Some(1200))
        };
        assert_eq!(cpu_us(&known, 100_000, false), Some(9.0), "other programs are no cost of the server");
        assert_eq!(cpu_us(&known, 100_000, true), Some(8.0));
        let alone = cpu_us(&used(500, Some(1200)), 100_000, true);
        assert_eq!(alone, Some(5.0), "other programs are no cost of a server that alone is changed");
    }
}
