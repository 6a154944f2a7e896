//! One run: a server with its workers, clients, upstreams and an operator, all on this thread, by a clock that moves only when nobody
//! has anything to do.

use std::time::Duration;

use flatout_cache::{Purge, PurgeScope};
use flatout_engine::bind;
use flatout_lane::clock;
use flatout_proxy::Watch;
use flatout_push::{Hub, Limits};
use flatout_server::live::Live;
use flatout_server::simulation;

use crate::client::Client;
use crate::model::cache::{Moment, RESOURCES, TAGS, tag_name};
use crate::model::{Model, resource_target};
use crate::reduce::Reduction;
use crate::scene::{APPLICATION, Scene, TIME_MAX, upstream_path};
use crate::trace::{Actor, Event, Trace};
use crate::upstream::{Role, Upstream};

/// Where the clock of each run begins: a whole number of ticks.
const BEGIN_NS: u64 = 1_000_000_000_000;

/// How far the clock moves at most when nobody has anything to do: the precision of the server's time limits, and more when nobody has
/// done anything for a while.
const STEP_NS: u64 = 125_000_000;
const LONG_STEP_NS: u64 = 1_000_000_000;
const LONG_AFTER_NS: u64 = 5_000_000_000;

/// If nobody has done anything for so long, nobody will.
const QUIET_NS_MAX: u64 = 6 * TIME_MAX.as_nanos() as u64;

/// The host of all requests.
const HOST: &str = "a.test";

/// The longest time between two purges.
const PURGE_PAUSE_NS_MAX: u64 = 2_000_000_000;

/// Steps of a run: far more than the longest needs.
const STEPS_MAX: u64 = 50_000_000;

/// What all actors see and change.
pub(crate) struct Shared<'s> {
    pub(crate) now_ns: u64,
    pub(crate) scene: &'s Scene,
    pub(crate) model: Model,
    pub(crate) trace: Trace,
    /// An upstream has broken a rule.
    pub(crate) upstreams_failed: bool,
    requests: u32,
}

impl Shared<'_> {
    pub(crate) fn event(&mut self, actor: Actor, event: Event) {
        self.trace.add(self.now_ns, actor, event);
    }

    /// Now, after all events so far.
    pub(crate) fn moment(&self) -> Moment {
        Moment { order: self.trace.count(), ns: self.now_ns }
    }

    /// A number that no other request of the run has.
    pub(crate) fn next_id(&mut self) -> u32 {
        self.requests += 1;
        self.requests
    }
}

/// What a run gave.
pub struct Report {
    /// The hash of all its events: the same for the same seed.
    pub hash: u64,
    /// Requests that were sent.
    pub requests: u64,
    /// Responses of upstreams that reached their client whole.
    pub whole: u64,
    /// Events.
    pub events: u64,
    /// Clients that were drawn.
    pub clients: usize,
    /// What went wrong, and the events before it.
    pub failure: Option<Failure>,
}

/// A rule that the server has broken.
pub struct Failure {
    /// Which.
    pub message: String,
    /// What was drawn for the run.
    pub scene: String,
    /// Its events, as a ladder.
    pub trace: String,
}

/// Runs what a seed draws.
///
/// # Panics
/// The system refuses what a simulation needs: sockets, descriptors, a temporary folder.
pub fn run(seed: u64) -> Report {
    run_reduced(seed, &Reduction::default())
}

/// Runs a part of what a seed draws.
///
/// # Panics
/// As [`run`].
pub fn run_reduced(seed: u64, reduction: &Reduction) -> Report {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut scene = Scene::draw(&mut random);
    reduction.apply(&mut scene);
    clock::simulated::set(Some(BEGIN_NS));
    let mut shared = Shared {
        now_ns: BEGIN_NS,
        scene: &scene,
        model: Model::default(),
        trace: Trace::default(),
        upstreams_failed: false,
        requests: 0,
    };
    let result = World::new(&scene, reduction, random).run(&mut shared);
    clock::simulated::set(None);
    let Shared { model, trace, requests, .. } = shared;
    Report {
        hash: trace.hash(),
        requests: u64::from(requests),
        whole: model.whole,
        events: trace.count(),
        clients: scene.clients,
        failure: result.err().map(|message| Failure {
            message,
            scene: format!("{scene:#?}"),
            trace: trace.to_string(),
        }),
    }
}

struct World {
    folder: tempfile::TempDir,
    random: fastrand::Rng,
    live: Live,
    hub: Hub,
    handle: flatout_engine::Handle,
    workers: Vec<flatout_engine::SteppedWorker>,
    clients: Vec<Client>,
    upstreams: Vec<Upstream>,
    /// The configuration that is served.
    served: usize,
    purges_left: u32,
    /// When the next purge is due.
    purges_at_ns: u64,
    /// Actors that had nothing to do since something happened.
    quiet: Vec<bool>,
}

impl World {
    fn new(scene: &Scene, reduction: &Reduction, mut random: fastrand::Rng) -> World {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let checked = scene.configurations[0].checked(scene, folder.path());
        let upstream = |number, role, name, random: &mut fastrand::Rng| {
            Upstream::new(number, role, &upstream_path(folder.path(), name), random.fork())
        };
        let upstreams = vec![
            upstream(0, Role::Application, APPLICATION[0], &mut random),
            upstream(1, Role::Authorization, "authorization", &mut random),
            upstream(2, Role::Application, APPLICATION[1], &mut random),
        ];
        let clients: Vec<Client> =
            (0..scene.clients).map(|number| Client::new(number, reduction, random.fork())).collect();
        let bound = bind(checked.listening(None)).expect("a free path");
        let hub = Hub::new(Limits::default());
        let opened = simulation::open(&checked, &hub, None).unwrap_or_else(|failure| panic!("{failure}"));
        let live = Live::new(opened);
        let make = |worker| live.service(&worker, Watch::default());
        let (handle, workers) = bound.start_stepped(make).expect("workers");
        let actors = workers.len() + clients.len() + upstreams.len() + 1;
        World {
            folder,
            random,
            live,
            hub,
            handle,
            workers,
            clients,
            upstreams,
            served: 0,
            purges_left: scene.purges,
            purges_at_ns: BEGIN_NS,
            quiet: vec![false; actors],
        }
    }

    fn run(mut self, shared: &mut Shared<'_>) -> Result<(), String> {
        let mut did_at_ns = shared.now_ns;
        for _ in 0..STEPS_MAX {
            if self.clients.iter().all(Client::is_done) {
                return self.end(shared);
            }
            let actor = self.random.usize(..self.quiet.len());
            if self.quiet[actor] {
                if !self.quiet.iter().all(|is_quiet| *is_quiet) {
                    continue;
                }
                if shared.now_ns - did_at_ns > QUIET_NS_MAX {
                    return Err(self.stuck(shared));
                }
                self.advance(shared, did_at_ns);
                continue;
            }
            if self.step(actor, shared)? {
                self.quiet.fill(false);
                // A worker's own timers are no reason to wait for ever.
                if actor >= self.workers.len() {
                    did_at_ns = shared.now_ns;
                }
            } else {
                self.quiet[actor] = true;
            }
        }
        Err("the run does not end".to_owned())
    }

    fn step(&mut self, actor: usize, shared: &mut Shared<'_>) -> Result<bool, String> {
        let mut at = actor;
        if let Some(worker) = self.workers.get_mut(at) {
            return worker.step().map_err(|error| format!("worker {at}: {error}"));
        }
        at -= self.workers.len();
        if let Some(client) = self.clients.get_mut(at) {
            return client.step(self.folder.path(), shared);
        }
        at -= self.clients.len();
        match self.upstreams.get_mut(at) {
            Some(upstream) => upstream.step(shared),
            None => Ok(self.operate(shared)),
        }
    }

    /// The operator purges and reloads, now and then.
    fn operate(&mut self, shared: &mut Shared<'_>) -> bool {
        if self.purges_left > 0 && shared.now_ns >= self.purges_at_ns && self.random.u8(..4) == 0 {
            self.purges_left -= 1;
            self.purges_at_ns = shared.now_ns + self.random.u64(..PURGE_PAUSE_NS_MAX);
            return self.purge(shared);
        }
        let next = self.served + 1;
        let Some(configuration) = shared.scene.configurations.get(next).filter(|_| self.random.u8(..32) == 0)
        else {
            return false;
        };
        let checked = configuration.checked(shared.scene, self.folder.path());
        let former = self.live.opened();
        let opened = simulation::open(&checked, &self.hub, Some(&former))
            .unwrap_or_else(|failure| panic!("{failure}"));
        self.live.replace(opened);
        self.served = next;
        shared.event(Actor::Operator, Event::Reload(next));
        true
    }

    fn purge(&mut self, shared: &mut Shared<'_>) -> bool {
        let opened = self.live.opened();
        let Some(cache) = &opened.cache else { return false };
        // Most interesting is a purge while its resource is requested.
        let awaited = shared.model.awaited().filter(|_| self.random.bool());
        let resource = awaited.unwrap_or_else(|| self.random.u8(..RESOURCES));
        let is_soft = self.random.u8(..3) == 0;
        let (scope, purged) = match self.random.u8(..8) {
            0 => (PurgeScope::All, (0..RESOURCES).collect()),
            1 => (PurgeScope::Prefix(format!("http://{HOST}/")), (0..RESOURCES).collect()),
            2 => (PurgeScope::Prefix("http://other.test/".to_owned()), Vec::new()),
            3 | 4 => {
                let tag = resource % TAGS;
                (PurgeScope::Tag(tag_name(tag)), (tag..RESOURCES).step_by(TAGS.into()).collect())
            }
            _ => (PurgeScope::Url(format!("http://{HOST}{}", resource_target(resource))), vec![resource]),
        };
        cache.purge(&Purge { scope, is_soft });
        for resource in purged {
            shared.event(Actor::Operator, Event::Purge(resource, is_soft));
            shared.model.purge(resource, is_soft, shared.moment());
        }
        true
    }

    /// Moves the clock to when somebody may have something to do.
    fn advance(&mut self, shared: &mut Shared<'_>, did_at_ns: u64) {
        let wakes = self.clients.iter().filter_map(Client::wakes_at_ns);
        let wakes = wakes.chain(self.upstreams.iter().filter_map(Upstream::wakes_at_ns));
        let next = wakes.filter(|at| *at > shared.now_ns).min().unwrap_or(u64::MAX);
        let is_long = shared.now_ns - did_at_ns > LONG_AFTER_NS;
        let to = next.min(shared.now_ns + if is_long { LONG_STEP_NS } else { STEP_NS });
        clock::simulated::set(Some(to));
        for worker in &mut self.workers {
            worker.advance(Duration::from_nanos(to - shared.now_ns));
        }
        shared.now_ns = to;
        self.quiet.fill(false);
    }

    /// All clients are done: nothing may be left of them.
    fn end(&mut self, shared: &mut Shared<'_>) -> Result<(), String> {
        self.handle.drain();
        let until_ns = shared.now_ns + QUIET_NS_MAX;
        while !self.workers.iter().all(flatout_engine::SteppedWorker::has_ended) {
            if shared.now_ns > until_ns {
                let figures = self.handle.figures();
                return Err(format!("all clients are gone, and the server does not end: {figures:?}"));
            }
            let mut did = true;
            while did {
                did = false;
                for actor in (0..self.workers.len())
                    .chain(self.workers.len() + self.clients.len()..self.quiet.len() - 1)
                {
                    did |= self.step(actor, shared)?;
                }
            }
            self.advance(shared, shared.now_ns);
        }
        Ok(())
    }

    /// Who waits, when nobody has anything to do.
    fn stuck(&self, shared: &Shared<'_>) -> String {
        let waiting: Vec<String> = self.clients.iter().filter_map(Client::waits_for).collect();
        let quiet_s = QUIET_NS_MAX / 1_000_000_000;
        format!(
            "nothing has happened for {quiet_s} s of {} s: {}",
            (shared.now_ns - BEGIN_NS) / 1_000_000_000,
            waiting.join("; ")
        )
    }
}
