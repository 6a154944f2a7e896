//! Runs a plan: starts the threads, watches them, and merges their results.

use std::sync::atomic::AtomicBool;
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use flatout_lane::clock;

use crate::find_max::OfferedLoad;
use crate::outcome::{Outcome, StageOutcome, ThreadUse};
use crate::pace::Pacing;
use crate::plan::{Error, Plan};
use crate::probe::probe;
use crate::server_cpu::ServerProcesses;
use crate::shared::{Counted, Detail, Shared, ThreadResult, Times, sum};
use crate::tally::Tally;
use crate::worker::Worker;

/// The progress of a run, reported about ten times per second.
#[derive(Debug, Clone, Copy)]
pub struct Live<'r> {
    /// Since counting started; `None` before.
    pub elapsed: Option<Duration>,
    /// Complete responses in the counted time so far.
    pub requests: u64,
    /// Errors of all kinds so far.
    pub errors: u64,
    pub(crate) threads: &'r [Counted],
}

impl Live<'_> {
    /// More detail, slightly delayed; `None` before there is any, and unless [`Plan::live`] asks for it.
    pub fn detail(&self) -> Option<Detail> {
        Counted::detail(self.threads)
    }
}

/// How often the threads are checked.
const WATCH_TIME: Duration = Duration::from_millis(100);

type Joined<'s> = Vec<ScopedJoinHandle<'s, std::io::Result<ThreadResult>>>;

/// Runs `plan`, and blocks until it is done: at most its warm-up, duration and timeouts. Setting `stop` ends it
/// within a tenth of a second with the result so far; `watch` is called meanwhile.
///
/// # Errors
/// An invalid plan, a server that cannot be reached or speaks another protocol, or threads that cannot be started.
pub fn run(plan: &Plan, stop: &AtomicBool, watch: &mut dyn FnMut(&Live<'_>)) -> Result<Outcome, Error> {
    plan.check().map_err(|fault| Error::Plan(fault.message))?;
    probe(plan)?;
    let server = ServerProcesses::of(plan);
    let shared = Shared::new(plan, stop);
    let watcher = thread::current();
    let (brought, server_cpu) = thread::scope(|scope| {
        let threads: Joined<'_> = (0..plan.threads)
            .map(|index| {
                let (shared, watcher) = (&shared, &watcher);
                scope.spawn(move || {
                    let brought = work(shared, index);
                    shared.leave();
                    watcher.unpark();
                    brought
                })
            })
            .collect();
        let times = shared.meet();
        let server_cpu = watch_over(&shared, times, &threads, server, watch);
        let brought: std::io::Result<Vec<ThreadResult>> = threads.into_iter().map(join).collect();
        (brought, server_cpu)
    });
    let mut outcome = merge(plan, &brought.map_err(Error::System)?);
    outcome.server_cpu = server_cpu;
    outcome.is_stopped = shared.is_stopped();
    Ok(outcome)
}

/// One thread from start to end. Even if it fails, it meets the others at the barrier, so that none waits in vain.
fn work(shared: &Shared<'_>, index: usize) -> std::io::Result<ThreadResult> {
    let prepared = Worker::new(shared, index).and_then(|mut worker| worker.prepare().map(|()| worker));
    let times = shared.meet();
    prepared?.run(times)
}

fn join(thread: ScopedJoinHandle<'_, std::io::Result<ThreadResult>>) -> std::io::Result<ThreadResult> {
    thread.join().unwrap_or_else(|_| Err(std::io::Error::other("a thread of the load generator panicked")))
}

/// Reports progress until all threads are done, and reads the server's CPU time when counting starts and ends.
fn watch_over(
    shared: &Shared<'_>,
    times: Times,
    threads: &Joined<'_>,
    server: Option<ServerProcesses>,
    watch: &mut dyn FnMut(&Live<'_>),
) -> Option<crate::outcome::ServerCpu> {
    let mut before = None;
    let mut after = None;
    // A thread that panics does not call `leave`, but it is finished.
    while !shared.is_over() && !threads.iter().all(ScopedJoinHandle::is_finished) {
        let now_ns = clock::nanoseconds();
        if now_ns >= times.begin_ns && before.is_none() {
            before = server.as_ref().and_then(ServerProcesses::used);
        }
        if now_ns >= times.end_ns && after.is_none() {
            after = server.as_ref().and_then(ServerProcesses::used);
        }
        watch(&shared.live(now_ns.checked_sub(times.begin_ns).map(Duration::from_nanos)));
        // Wake up at the start or the end of the counted time, if one of them is near.
        let next_ns = [times.begin_ns, times.end_ns].into_iter().filter(|&at| at > now_ns).min();
        let pause = next_ns.map_or(WATCH_TIME, |at| Duration::from_nanos(at - now_ns)).min(WATCH_TIME);
        thread::park_timeout(pause);
    }
    let after = after.or_else(|| server.as_ref().and_then(ServerProcesses::used));
    after?.since(&before?)
}

/// The responses that count for the rate. A server that keeps up has served all requests; the few that were in service
/// at the planned end belong to it. One that falls behind has served what came until then, also to requests of the warm-up.
fn rate_requests(plan: &Plan, outcome: &Outcome) -> u64 {
    let rate_per_s = match plan.pacing {
        Pacing::Closed => return outcome.requests,
        Pacing::Open { per_s, .. } => per_s,
        Pacing::Staged { .. } => plan.stages.last().map_or(0.0, |stage| stage.to_per_s),
    };
    let load = OfferedLoad::of(outcome, rate_per_s);
    if load.is_sustained() { outcome.requests } else { load.served() }
}

fn merge(plan: &Plan, all: &[ThreadResult]) -> Outcome {
    let mut tally = Tally::new(plan.pacing != Pacing::Closed, &plan.stages);
    all.iter().for_each(|one| tally.merge(&one.tally));
    let begin_ns = all.iter().map(|one| one.times.begin_ns).min().unwrap_or(0);
    let end_ns = all.iter().map(|one| one.times.end_ns).max().unwrap_or(0);
    let over_ns = all.iter().map(|one| one.over_ns).max().unwrap_or(0);
    // If it ended early, by count or by the user, the time runs until the last response. Otherwise it runs until the
    // planned end.
    let counted_to_ns = match over_ns < end_ns {
        true if plan.requests_max.is_some() => tally.last_answer_ns,
        true => over_ns,
        false => end_ns,
    };
    let mut outcome = Outcome {
        requests: tally.requests,
        rate_requests: 0,
        open_wait: Duration::from_nanos(tally.last_answer_ns.saturating_sub(counted_to_ns)),
        errors: tally.errors,
        statuses: tally.statuses,
        elapsed: Duration::from_nanos(counted_to_ns.saturating_sub(begin_ns)),
        bytes_read: tally.bytes_read,
        connections_made: tally.connections_made,
        handshakes: plan.tls.is_some().then_some(tally.handshakes),
        streams_allowed: tally.streams_allowed.filter(|allowed| plan.streams > Some(*allowed as usize)),
        connections_held: sum(all, |one| one.held),
        latency: tally.latency,
        latency_raw: tally.latency_raw,
        lag: tally.lag,
        series: tally.series,
        stages: plan.stages.iter().zip(tally.stages).map(StageOutcome::of).collect(),
        sequence: plan.subscribe.map(|_| tally.sequence),
        unanswered: sum(all, |one| one.unanswered),
        unsent: sum(all, |one| one.unsent),
        answered_in_time: sum(all, |one| one.answered_in_time),
        carried: sum(all, |one| one.carried),
        threads: all
            .iter()
            .map(|one| ThreadUse {
                cpu: Duration::from_nanos(one.cpu_ns),
                elapsed: Duration::from_nanos(one.over_ns.saturating_sub(one.times.begin_ns)),
            })
            .collect(),
        server_cpu: None,
        is_stopped: false,
    };
    outcome.rate_requests = rate_requests(plan, &outcome);
    outcome
}
