//! One run: a server with its workers, clients, upstreams and an operator, all on this thread, by a clock that moves only when nobody
//! has anything to do.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use flatout_cache::{Purge, PurgeScope};
use flatout_lane::poll::simulated::set_events_max;
use flatout_lane::socket::simulated::set_send_buffer;
use flatout_lane::{clock, jobs};
use flatout_push::{Hub, Limits};
use flatout_server::simulation;

use crate::client::Client;
use crate::crash;
use crate::disk::Disk;
use crate::model::cache::{Moment, RESOURCES, TAGS, tag_name};
use crate::model::push::{CHANNELS, channel_name};
use crate::model::{Model, resource_target};
use crate::reduce::Reduction;
use crate::scene::{APPLICATION, Scene, TIME_MAX, cache_path, upstream_path};
use crate::secure::Clients;
use crate::server::{Server, SimulatedWorker};
use crate::socket;
use crate::subscriber::{GROUP, Publisher, Subscriber};
use crate::trace::{Actor, Event, Trace};
use crate::upstream::{Role, Upstream};

/// A file system in memory.
const MEMORY_FOLDER: &str = "/dev/shm";

/// Where the clock of each run begins: a whole number of ticks.
const BEGIN_NS: u64 = 1_000_000_000_000;

/// How far the clock moves at most when nobody has anything to do: the precision of the server's time limits, and more when nobody has
/// done anything for a while.
const STEP_NS: u64 = 125_000_000;
const LONG_STEP_NS: u64 = 1_000_000_000;
const LONG_AFTER_NS: u64 = 5_000_000_000;

/// If nobody has done anything for so long, nobody will.
const QUIET_NS_MAX: u64 = 6 * TIME_MAX.as_nanos() as u64;

/// A server that drains closes connections at rest at once, and others when they have had their last response.
const REST_NS_MAX: u64 = 5_000_000_000;

/// The host of all requests.
const HOST: &str = "a.test";

/// The longest time between two purges.
const PURGE_PAUSE_NS_MAX: u64 = 2_000_000_000;

/// Turns of workers while nobody else does anything: far more than the work that others have left needs.
const BUSY_TURNS_MAX: u64 = 20_000;

/// Steps of a run: far more than the longest needs.
const STEPS_MAX: u64 = 50_000_000;

/// What all actors see and change.
pub(crate) struct Shared<'s> {
    pub(crate) now_ns: u64,
    pub(crate) scene: &'s Scene,
    pub(crate) model: Model,
    pub(crate) trace: Trace,
    /// What clients need for TLS.
    pub(crate) secure: Option<Clients>,
    /// Something was sent to the server since its workers have done anything.
    pub(crate) has_unread: bool,
    /// An upstream has broken a rule.
    pub(crate) upstreams_failed: bool,
    /// The authorization service has got a request, whose request waits.
    pub(crate) is_asked: bool,
    /// The configuration that is served.
    served: usize,
    requests: u32,
    /// Connections to the server.
    opened: u64,
    /// How often the server was killed.
    pub(crate) crashes: u32,
    /// Long polls on connections that had one before.
    pub(crate) polls: u64,
}

impl<'s> Shared<'s> {
    pub(crate) fn new(scene: &'s Scene) -> Shared<'s> {
        Shared {
            now_ns: BEGIN_NS,
            scene,
            model: Model::default(),
            trace: Trace::default(),
            secure: scene.has_tls.then(Clients::new),
            has_unread: false,
            upstreams_failed: false,
            is_asked: false,
            served: 0,
            requests: 0,
            opened: 0,
            crashes: 0,
            polls: 0,
        }
    }

    /// How many messages of a channel are kept.
    pub(crate) fn history(&self) -> usize {
        self.scene.channels.map_or(0, |channels| channels.history)
    }

    /// Requests that were sent.
    pub(crate) fn requests(&self) -> u32 {
        self.requests
    }

    pub(crate) fn event(&mut self, actor: Actor, event: Event) {
        let is_client = matches!(actor, Actor::Client(_) | Actor::Subscriber(_));
        self.opened += u64::from(is_client && event == Event::Open);
        self.trace.add(self.now_ns, actor, event);
    }

    /// Another configuration is served.
    fn serve(&mut self, configuration: usize) {
        self.served = configuration;
        self.model.heads.serve(configuration);
    }

    /// The last byte of a request's head was sent, on a connection where the server waits for it.
    pub(crate) fn sent_head(&mut self, id: u32) {
        self.model.heads.sent(id, self.served);
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

/// Who may have something to do, in an order that the seed decides.
struct Awake {
    actors: Vec<usize>,
    /// Where each actor is among them.
    places: Vec<Option<usize>>,
}

impl Awake {
    fn new(actors: usize) -> Awake {
        Awake { actors: (0..actors).collect(), places: (0..actors).map(Some).collect() }
    }

    fn draw(&self, random: &mut fastrand::Rng) -> Option<usize> {
        random.choice(&self.actors).copied()
    }

    fn wake(&mut self, actor: usize) {
        if self.places[actor].is_none() {
            self.places[actor] = Some(self.actors.len());
            self.actors.push(actor);
        }
    }

    fn wake_all(&mut self) {
        (0..self.places.len()).for_each(|actor| self.wake(actor));
    }

    fn sleep(&mut self, actor: usize) {
        let Some(place) = self.places[actor].take() else { return };
        self.actors.swap_remove(place);
        if let Some(moved) = self.actors.get(place) {
            self.places[*moved] = Some(place);
        }
    }
}

pub(crate) struct World {
    folder: tempfile::TempDir,
    random: fastrand::Rng,
    hub: Hub,
    /// `None` only while it is started again.
    server: Option<Server>,
    /// Its workers.
    workers: usize,
    clients: Vec<Client>,
    upstreams: Vec<Upstream>,
    subscribers: Vec<Subscriber>,
    disk: Disk,
    publisher: Publisher,
    reloads_left: u32,
    purges_left: u32,
    crashes_left: u32,
    /// When the next purge is due.
    purges_at_ns: u64,
    /// Actors that may have something to do.
    awake: Awake,
}

/// In memory, where there is such a file system: what a run does must not wait for a disk.
fn temporary_folder() -> std::io::Result<tempfile::TempDir> {
    tempfile::tempdir_in(MEMORY_FOLDER).or_else(|_| tempfile::tempdir())
}

impl World {
    pub(crate) fn new(scene: &Scene, reduction: &Reduction, mut random: fastrand::Rng) -> World {
        clock::simulated::set(Some(BEGIN_NS));
        set_events_max(scene.events_max);
        set_send_buffer(scene.send_buffer_bytes);
        let folder = temporary_folder().expect("a temporary folder");
        let upstream = |number, role, name, random: &mut fastrand::Rng| {
            Upstream::new(number, role, &upstream_path(folder.path(), name), random.fork())
        };
        let upstreams = vec![
            upstream(0, Role::Application, APPLICATION[0], &mut random),
            upstream(1, Role::Authorization, "authorization", &mut random),
            upstream(2, Role::Application, APPLICATION[1], &mut random),
        ];
        let clients: Vec<Client> =
            (0..scene.clients).map(|number| Client::new(number, scene, reduction, random.fork())).collect();
        let hub = Hub::new(Limits::default());
        let server = Server::start(&scene.configurations[0], scene, folder.path(), &hub);
        let workers = server.workers.len();
        let count = scene.channels.filter(|_| !reduction.has_no_subscribers).map_or(0, |it| it.subscribers);
        let subscribers: Vec<_> = (0..count).map(|number| Subscriber::new(number, random.fork())).collect();
        let channels = scene.channels.filter(|_| !reduction.has_no_subscribers);
        let publisher = Publisher::new(hub.clone(), channels, random.fork());
        let disk = Disk::new(scene.disk, random.fork());
        let actors = workers + clients.len() + upstreams.len() + subscribers.len() + 3;
        World {
            folder,
            random,
            hub,
            server: Some(server),
            workers,
            clients,
            upstreams,
            subscribers,
            disk,
            publisher,
            reloads_left: scene.reloads,
            purges_left: scene.purges,
            crashes_left: scene.crashes,
            purges_at_ns: BEGIN_NS,
            awake: Awake::new(actors),
        }
    }

    pub(crate) fn run(mut self, shared: &mut Shared<'_>, steps: &AtomicU64) -> Result<(), String> {
        let (mut did_at_ns, mut is_checked) = (shared.now_ns, false);
        // Of workers, since anybody else has done something or the clock has moved.
        let mut busy_turns = 0;
        for _ in 0..STEPS_MAX {
            steps.fetch_add(1, Ordering::Relaxed);
            if self.clients.iter().all(Client::is_done) && self.subscribers.iter().all(Subscriber::is_done) {
                return self.end(shared);
            }
            let Some(actor) = self.awake.draw(&mut self.random) else {
                if shared.now_ns - did_at_ns > QUIET_NS_MAX {
                    return Err(self.stuck(shared));
                }
                if !std::mem::replace(&mut is_checked, true) {
                    flatout_proxy::check_all()?;
                }
                self.advance(shared, did_at_ns);
                busy_turns = 0;
                continue;
            };
            if !self.step(actor, shared)? {
                self.awake.sleep(actor);
            } else if actor < self.workers {
                busy_turns += 1;
                if busy_turns > BUSY_TURNS_MAX {
                    return Err(format!(
                        "worker {actor} is busy, although nobody else has anything to do: {}",
                        self.waiting()
                    ));
                }
                // A worker's own timers are no reason to wait for ever.
                self.awake.wake_all();
            } else {
                busy_turns = 0;
                // Peers are connected to workers only.
                (0..self.workers).for_each(|worker| self.awake.wake(worker));
                self.awake.wake(self.operator());
                (did_at_ns, is_checked) = (shared.now_ns, false);
            }
        }
        Err("the run does not end".to_owned())
    }

    /// The number of the operator among actors: the last.
    fn operator(&self) -> usize {
        self.workers + self.clients.len() + self.upstreams.len() + self.subscribers.len() + 2
    }

    fn step(&mut self, actor: usize, shared: &mut Shared<'_>) -> Result<bool, String> {
        let did = self.act(actor, shared)?;
        if did {
            socket::somebody_did(actor < self.workers);
        }
        Ok(did)
    }

    fn act(&mut self, actor: usize, shared: &mut Shared<'_>) -> Result<bool, String> {
        let mut at = actor;
        if at < self.workers {
            let did =
                self.server_mut().workers[at].step().map_err(|error| format!("worker {at}: {error}"))?;
            shared.has_unread &= !did;
            return Ok(did);
        }
        at -= self.workers;
        if let Some(client) = self.clients.get_mut(at) {
            return client.step(self.folder.path(), shared);
        }
        at -= self.clients.len();
        if let Some(upstream) = self.upstreams.get_mut(at) {
            return upstream.step(shared);
        }
        at -= self.upstreams.len();
        if let Some(subscriber) = self.subscribers.get_mut(at) {
            return subscriber.step(self.folder.path(), shared);
        }
        match at - self.subscribers.len() {
            0 => {
                let did = self.disk.step(shared);
                self.note_written_purges(shared);
                Ok(did)
            }
            1 => self.publisher.step(shared),
            _ => Ok(self.operate(shared)),
        }
    }

    /// The operator purges and reloads, now and then.
    fn operate(&mut self, shared: &mut Shared<'_>) -> bool {
        if self.purges_left > 0 && shared.now_ns >= self.purges_at_ns && self.random.u8(..4) == 0 {
            self.purges_left -= 1;
            self.purges_at_ns = shared.now_ns + self.random.u64(..PURGE_PAUSE_NS_MAX);
            return self.purge(shared);
        }
        // Most interesting is a crash while something is written.
        let looks = if jobs::count() > 0 { 16 } else { 128 };
        if self.crashes_left > 0 && self.random.u8(..looks) == 0 {
            self.crash(shared);
            return true;
        }
        // Most interesting is a reload while a request waits.
        let looks = if std::mem::take(&mut shared.is_asked) { 2 } else { 32 };
        if self.reloads_left == 0 || self.random.u8(..looks) > 0 {
            return false;
        }
        let next = (shared.served + 1) % shared.scene.configurations.len();
        self.reloads_left -= 1;
        let configuration = &shared.scene.configurations[next];
        let checked = configuration.checked(shared.scene, self.folder.path());
        let former = self.server().live.opened();
        let opened = simulation::open(&checked, &self.hub, Some(&former))
            .unwrap_or_else(|failure| panic!("{failure}"));
        self.server().live.replace(opened);
        shared.serve(next);
        shared.event(Actor::Operator, Event::Reload(next));
        true
    }

    /// Purges that are on disk hold after a crash too.
    fn note_written_purges(&self, shared: &mut Shared<'_>) {
        if self.crashes_left > 0 {
            let opened = self.server().live.opened();
            let has_written = opened.cache.as_ref().is_none_or(|cache| !cache.has_purges_to_write());
            shared.model.note_written_purges(has_written);
        }
    }

    /// The server is killed, and started again on what is left of its folder.
    fn crash(&mut self, shared: &mut Shared<'_>) {
        self.crashes_left -= 1;
        let has_lost_power = self.random.bool();
        self.note_written_purges(shared);
        jobs::set_crashed(true);
        self.server.take().into_iter().for_each(Server::kill);
        flatout_proxy::forget_all();
        crash::lose_unsynced(&cache_path(self.folder.path()), has_lost_power, &mut self.random);
        jobs::set_crashed(false);
        self.disk.start_again();
        let configuration = &shared.scene.configurations[shared.served];
        self.server = Some(Server::start(configuration, shared.scene, self.folder.path(), &self.hub));
        shared.event(Actor::Operator, Event::Crash(has_lost_power));
        shared.crashes += 1;
        shared.model.crash(shared.moment());
        self.awake.wake_all();
    }

    fn server(&self) -> &Server {
        self.server.as_ref().expect("a server, except in `crash`")
    }

    fn server_mut(&mut self) -> &mut Server {
        self.server.as_mut().expect("a server, except in `crash`")
    }

    fn purge(&mut self, shared: &mut Shared<'_>) -> bool {
        let opened = self.server().live.opened();
        let Some(cache) = &opened.cache else { return false };
        // Most interesting is a purge while its resource is requested.
        let awaited = shared.model.awaited().filter(|_| self.random.bool());
        let resource = awaited.unwrap_or_else(|| self.random.u8(..RESOURCES));
        let is_soft = self.random.u8(..3) == 0;
        let scheme = if shared.scene.has_tls { "https" } else { "http" };
        let (scope, purged) = match self.random.u8(..8) {
            0 => (PurgeScope::All, (0..RESOURCES).collect()),
            1 => (PurgeScope::Prefix(format!("{scheme}://{HOST}/")), (0..RESOURCES).collect()),
            2 => (PurgeScope::Prefix(format!("{scheme}://other.test/")), Vec::new()),
            3 | 4 => {
                let tag = resource % TAGS;
                (PurgeScope::Tag(tag_name(tag)), (tag..RESOURCES).step_by(TAGS.into()).collect())
            }
            _ => (PurgeScope::Url(format!("{scheme}://{HOST}{}", resource_target(resource))), vec![resource]),
        };
        // With a folder, it is written by and by.
        cache.purge_soon(&Purge { scope, is_soft });
        if purged.is_empty() {
            shared.model.purge_others(shared.moment());
        }
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
        let wakes = wakes.chain(self.subscribers.iter().filter_map(Subscriber::wakes_at_ns));
        let wakes = wakes.chain(self.publisher.wakes_at_ns()).chain(self.disk.wakes_at_ns());
        let next = wakes.filter(|at| *at > shared.now_ns).min().unwrap_or(u64::MAX);
        // Tasks wait for times that are not known. All other time limits of the server may be late.
        let has_tasks = self.server().workers.iter().any(SimulatedWorker::has_tasks);
        let is_long = !has_tasks || shared.now_ns - did_at_ns > LONG_AFTER_NS;
        let to = next.min(shared.now_ns + if is_long { LONG_STEP_NS } else { STEP_NS });
        clock::simulated::set(Some(to));
        for worker in &mut self.server_mut().workers {
            worker.advance(Duration::from_nanos(to - shared.now_ns));
        }
        shared.now_ns = to;
        shared.model.heads.read();
        self.awake.wake_all();
    }

    /// All clients are done: nothing may be left of them.
    fn end(&mut self, shared: &mut Shared<'_>) -> Result<(), String> {
        self.settle(shared)?;
        flatout_proxy::check_all()?;
        self.clients.iter().try_for_each(Client::check_at_rest)?;
        self.upstreams.iter().try_for_each(Upstream::check_at_rest)?;
        self.server().handle.drain();
        let rest_until_ns = shared.now_ns + REST_NS_MAX;
        let until_ns = shared.now_ns + QUIET_NS_MAX;
        while !self.server().workers.iter().all(SimulatedWorker::has_ended) {
            if shared.now_ns > until_ns {
                let figures = self.server().handle.figures();
                return Err(format!("all clients are gone, and the server does not end: {figures:?}"));
            }
            if shared.now_ns > rest_until_ns
                && let Some(at) = self.clients.iter().position(|client| !client.is_gone())
            {
                return Err(format!(
                    "the server drains, and the connection of client {at}, which is at rest, stays open"
                ));
            }
            self.settle(shared)?;
            self.advance(shared, shared.now_ns);
        }
        self.nothing_is_left(shared)
    }

    /// Everybody does everything that there is to do now.
    fn settle(&mut self, shared: &mut Shared<'_>) -> Result<(), String> {
        let mut did = true;
        while did {
            did = false;
            // Nothing is published or changed any more.
            for actor in 0..self.operator() - 1 {
                did |= self.step(actor, shared)?;
            }
        }
        Ok(())
    }

    /// What the server counts is what has happened, and nothing of it is left.
    fn nothing_is_left(&self, shared: &Shared<'_>) -> Result<(), String> {
        let figures = self.server().handle.figures();
        if figures.connections > 0 {
            return Err(format!("the server has ended, and counts {} connections", figures.connections));
        }
        if shared.crashes > 0 {
            // The figures are those of the last one only.
            return Ok(());
        }
        if figures.accepted > shared.opened {
            return Err(format!(
                "the server counts {} connections, {} came",
                figures.accepted, shared.opened
            ));
        }
        // Of those that were begun, some were not sent to the end of their heads.
        let (least, most) = (shared.model.whole, u64::from(shared.requests) + shared.opened + shared.polls);
        if !(least..=most).contains(&figures.requests) {
            let counted = figures.requests;
            return Err(format!("the server counts {counted} requests; there were {least} to {most}"));
        }
        if let Some(observer) = &self.server().observer {
            observer.check(&shared.model)?;
        }
        let Some(_) = shared.scene.channels else { return Ok(()) };
        let left: u32 =
            (0..CHANNELS).map(|channel| self.hub.subscribers(GROUP, &channel_name(channel))).sum();
        match left {
            0 => Ok(()),
            left => Err(format!("all subscribers are gone, and {left} are counted")),
        }
    }

    /// Who waits, when nobody has anything to do.
    fn stuck(&self, shared: &Shared<'_>) -> String {
        let quiet_s = QUIET_NS_MAX / 1_000_000_000;
        format!(
            "nothing has happened for {quiet_s} s of {} s: {}",
            (shared.now_ns - BEGIN_NS) / 1_000_000_000,
            self.waiting()
        )
    }

    /// Which clients wait for what.
    fn waiting(&self) -> String {
        let waiting: Vec<String> = self.clients.iter().filter_map(Client::waits_for).collect();
        waiting.join("; ")
    }
}
