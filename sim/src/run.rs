//! Runs, each on a thread of its own, and what they give.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use flatout_lane::jobs;

use crate::pairs::{self, Properties};
use crate::panicked;
use crate::reduce::Reduction;
use crate::scene::Scene;
use crate::trace::Trace;
use crate::world::{Shared, World};

/// A step that takes longer, in real time, hangs: on a busy machine too, each takes less than a millisecond.
const STEP_TIME_MAX: Duration = Duration::from_secs(30);

/// What a run gave.
pub struct Report {
    /// The hash of all its events: the same for the same seed.
    pub hash: u64,
    /// Requests that were sent.
    pub requests: u64,
    /// Responses of upstreams that reached their client whole.
    pub whole: u64,
    /// Stored responses that were served after a crash of the server, and were stored before.
    pub survivors: u64,
    /// Subscribers that were moved to another server by an upgrade.
    pub moved: u64,
    /// Events.
    pub events: u64,
    /// Steps of actors.
    pub steps: u64,
    /// Clients that were drawn.
    pub clients: usize,
    /// The properties of its configurations, for [`crate::Pairs`].
    pub properties: Vec<Properties>,
    /// It was not waited for: its thread is lost.
    pub hangs: bool,
    /// Its last events, as a ladder.
    pub trace: Trace,
    /// What went wrong.
    pub failure: Option<Failure>,
}

/// A rule that the server has broken.
pub struct Failure {
    /// Which.
    pub message: String,
    /// What was drawn for the run.
    pub scene: String,
}

/// Runs what a seed draws.
///
/// # Panics
/// The system refuses what a simulation needs: sockets, descriptors, a temporary folder.
pub fn run(seed: u64) -> Report {
    run_reduced(seed, &Reduction::default())
}

/// Runs a part of what a seed draws, on a thread of its own: what former runs have left in variables of a thread changes nothing, and a
/// run that hangs or panics is reported as any other that fails.
///
/// # Panics
/// As [`run`].
pub fn run_reduced(seed: u64, reduction: &Reduction) -> Report {
    let (steps, reduction) = (Arc::new(AtomicU64::new(0)), reduction.clone());
    let (done, is_done) = channel();
    let of_thread = steps.clone();
    let builder = std::thread::Builder::new().name(format!("seed {seed}"));
    let run = move || drop(done.send(run_here(seed, &reduction, &of_thread)));
    builder.spawn(run).expect("a thread");
    let mut before = 0;
    loop {
        match is_done.recv_timeout(STEP_TIME_MAX) {
            Ok(report) => return report,
            Err(RecvTimeoutError::Disconnected) => {
                panic!("the run of seed {seed} has ended without a report")
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        let now = steps.load(Ordering::Relaxed);
        if now == before {
            let seconds = STEP_TIME_MAX.as_secs();
            return Report::hung(format!(
                "step {now} has not ended in {seconds} s of real time: it waits or loops"
            ));
        }
        before = now;
    }
}

fn run_here(seed: u64, reduction: &Reduction, steps: &AtomicU64) -> Report {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut scene = Scene::draw(&mut random);
    reduction.apply(&mut scene);
    let mut shared = Shared::new(&scene);
    let run = || World::new(&scene, reduction, random).run(&mut shared, steps);
    let result = catch_unwind(AssertUnwindSafe(run));
    let result = result.unwrap_or_else(|cause| Err(format!("a panic{}", panicked::text(&*cause))));
    jobs::clear();
    let requests = shared.requests();
    let Shared { model, trace, moved, .. } = shared;
    Report {
        hash: trace.hash(),
        requests: u64::from(requests),
        whole: model.whole,
        survivors: model.survivors,
        moved,
        events: trace.count(),
        steps: steps.load(Ordering::Relaxed),
        clients: scene.clients,
        properties: pairs::of_run(&scene),
        hangs: false,
        trace,
        failure: result.err().map(|message| Failure { message, scene: format!("{scene:#?}") }),
    }
}

impl Report {
    fn hung(message: String) -> Report {
        let failure = Failure { message, scene: String::new() };
        Report {
            hash: 0,
            requests: 0,
            whole: 0,
            survivors: 0,
            moved: 0,
            events: 0,
            steps: 0,
            clients: 0,
            properties: Vec::new(),
            hangs: true,
            trace: Trace::default(),
            failure: Some(failure),
        }
    }
}
