//! One run: a server with its workers, clients, upstreams and an operator, all on this thread, by a clock that moves only when nobody
//! has anything to do.

mod awake;
mod ending;
mod operator;
mod shared;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use flatout_lane::limit::simulated::set_bytes_max;
use flatout_lane::poll::simulated::set_events_max;
use flatout_lane::socket::simulated::{set_accepts_per_failure, set_send_buffer};
use flatout_lane::{clock, jobs};

use crate::client::Client;
use crate::disk::Disk;
use crate::reduce::Reduction;
use crate::scene::{APPLICATION, PASSED, Scene, TIME_MAX, upstream_path};
use crate::server::Server;
use crate::socket;
use crate::subscriber::{Publisher, Subscriber};
use crate::upstream::{Role, Upstream};
use awake::Awake;
pub(crate) use shared::Shared;

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

/// One in so many moves of the clock wakes everybody, and not only those who wait for the time: some leave at any time.
const ADVANCES_PER_LOOK: u8 = 4;

/// The host of all requests.
const HOST: &str = "a.test";

/// Turns of workers while nobody else does anything: far more than the work that others have left needs.
const BUSY_TURNS_MAX: u64 = 20_000;

/// Steps of a run: far more than the longest needs.
const STEPS_MAX: u64 = 50_000_000;

pub(crate) struct World {
    folder: tempfile::TempDir,
    random: fastrand::Rng,
    /// The last one is served; those before it drain. Empty only while the server is started again.
    servers: Vec<Server>,
    /// The number of workers of each server.
    workers: usize,
    /// The number of workers of all servers of the run, including those of later upgrades.
    all_workers: usize,
    clients: Vec<Client>,
    upstreams: Vec<Upstream>,
    subscribers: Vec<Subscriber>,
    disk: Disk,
    publisher: Publisher,
    reloads_left: u32,
    purges_left: u32,
    crashes_left: u32,
    upgrades_left: u32,
    changes_left: u32,
    clock_steps_left: u32,
    /// Something was purged, and no crash was drawn since.
    has_purged: bool,
    /// Purges were written since a crash was drawn.
    has_written_purges: bool,
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
        socket::set_fine(scene.is_fine);
        set_send_buffer(scene.send_buffer_bytes);
        clock::simulated::set_slices(scene.slice_looks);
        set_accepts_per_failure(scene.accepts_per_failure);
        set_bytes_max(scene.limit_bytes);
        let folder = temporary_folder().expect("a temporary folder");
        let all_workers = scene.workers * (1 + scene.upgrades as usize);
        let upstream = |number, role, name, random: &mut fastrand::Rng| {
            socket::begin(all_workers + scene.clients + number);
            Upstream::new(number, role, &upstream_path(folder.path(), name), random.fork())
        };
        let upstreams = vec![
            upstream(0, Role::Application, APPLICATION[0], &mut random),
            upstream(1, Role::Authorization, "authorization", &mut random),
            upstream(2, Role::Application, APPLICATION[1], &mut random),
            upstream(3, Role::Passed, PASSED, &mut random),
            upstream(4, Role::Application, APPLICATION[2], &mut random),
        ];
        let clients: Vec<Client> =
            (0..scene.clients).map(|number| Client::new(number, scene, reduction, random.fork())).collect();
        let server = Server::start(&scene.configurations[0], scene, folder.path());
        let workers = server.workers.len();
        assert_eq!(workers, scene.workers, "workers of the server");
        let channels = scene.channels.filter(|_| !reduction.has_no_subscribers);
        let count = channels.map_or(0, |it| it.subscribers);
        let is_single = channels.is_some_and(|it| it.is_single);
        let subscribers: Vec<_> =
            (0..count).map(|number| Subscriber::new(number, is_single, random.fork())).collect();
        let publisher = Publisher::new(server.hub.clone(), channels, random.fork());
        let disk = Disk::new(scene.disk, random.fork());
        let actors = all_workers + clients.len() + upstreams.len() + subscribers.len() + 3;
        World {
            folder,
            random,
            servers: vec![server],
            workers,
            all_workers,
            clients,
            upstreams,
            subscribers,
            disk,
            publisher,
            reloads_left: scene.reloads,
            purges_left: scene.purges,
            crashes_left: scene.crashes,
            upgrades_left: scene.upgrades,
            changes_left: scene.server_changes,
            clock_steps_left: scene.clock_steps,
            has_purged: false,
            has_written_purges: false,
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
                    self.check_at_rest()?;
                }
                self.advance(shared, did_at_ns);
                busy_turns = 0;
                continue;
            };
            if !self.step(actor, shared)? {
                self.awake.sleep(actor);
            } else if actor < self.all_workers {
                busy_turns += 1;
                if busy_turns > BUSY_TURNS_MAX {
                    return Err(format!(
                        "worker {actor} is busy, although nobody else has anything to do: {}",
                        self.waiting()
                    ));
                }
                self.wake_after_turn();
            } else {
                busy_turns = 0;
                self.wake_after_peer(actor);
                (did_at_ns, is_checked) = (shared.now_ns, false);
            }
        }
        Err("the run does not end".to_owned())
    }

    /// The number of the operator among actors: the last.
    fn operator(&self) -> usize {
        self.all_workers + self.clients.len() + self.upstreams.len() + self.subscribers.len() + 2
    }

    /// Those who may have something to do after a turn of a worker.
    fn wake_after_turn(&mut self) {
        let (workers, operator) = (self.running_workers(), self.operator());
        let awake = &mut self.awake;
        // Mail and tasks: no socket shows them.
        workers.for_each(|worker| awake.wake(worker));
        socket::news(|peer| awake.wake(peer));
        // Some do what nobody has asked them to do: they leave.
        awake.wake(self.random.usize(self.all_workers..operator));
        awake.wake(operator);
        if jobs::count() > 0 {
            awake.wake(operator - 2);
        }
    }

    /// Those who may have something to do after somebody else has acted: peers are connected to workers only.
    fn wake_after_peer(&mut self, actor: usize) {
        let operator = self.operator();
        if actor + 1 >= operator {
            // Subscribers compare what they have with what was published. At an upgrade, workers have had turns.
            socket::news(|_| {});
            return self.awake.wake_all();
        }
        let workers = self.running_workers();
        workers.for_each(|worker| self.awake.wake(worker));
        self.awake.wake(operator);
    }

    /// The numbers of the workers of servers that were started.
    fn running_workers(&self) -> std::ops::Range<usize> {
        0..self.servers.len() * self.workers
    }

    fn step(&mut self, actor: usize, shared: &mut Shared<'_>) -> Result<bool, String> {
        socket::begin(actor);
        let did = self.act(actor, shared)?;
        match did {
            true if actor < self.all_workers => socket::worker_did(),
            true => socket::peer_did(),
            false => {}
        }
        Ok(did)
    }

    fn act(&mut self, actor: usize, shared: &mut Shared<'_>) -> Result<bool, String> {
        let mut at = actor;
        if at < self.all_workers {
            let number = at / self.workers;
            let Some(server) = self.servers.get_mut(number) else { return Ok(false) };
            let worker = &mut server.workers[at % self.workers];
            let did = worker.step().map_err(|error| format!("worker {at}: {error}"))?;
            if let (Some(invalidated), Some(next)) =
                (&self.servers[number].invalidated, self.servers.get(number + 1))
            {
                invalidated.pass_on(&next.live);
            }
            shared.has_unread &= !did;
            return Ok(did);
        }
        at -= self.all_workers;
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
            1 => self.publisher.step(self.folder.path(), shared),
            _ => self.operate(shared),
        }
    }

    /// Checks what must be true when nobody has anything to do.
    fn check_at_rest(&self) -> Result<(), String> {
        flatout_proxy::check_all()?;
        let mut workers = self.servers.iter().flat_map(|server| &server.workers).enumerate();
        workers.try_for_each(|(number, worker)| {
            worker.check_at_rest().map_err(|message| format!("worker {number}: {message}"))
        })
    }

    fn server(&self) -> &Server {
        self.servers.last().expect("a server, except in `crash`")
    }

    /// Moves the clock to when somebody may have something to do.
    fn advance(&mut self, shared: &mut Shared<'_>, did_at_ns: u64) {
        let wakes = self.clients.iter().map(Client::wakes_at_ns);
        let wakes = wakes.chain(self.upstreams.iter().map(Upstream::wakes_at_ns));
        let wakes = wakes.chain(self.subscribers.iter().map(Subscriber::wakes_at_ns));
        let wakes = wakes.chain([self.disk.wakes_at_ns(), self.publisher.wakes_at_ns()]);
        let wakes = (self.all_workers..).zip(wakes);
        let wakes = wakes.filter_map(|(actor, at)| Some((actor, at.filter(|at| *at > shared.now_ns)?)));
        let wakes: Vec<(usize, u64)> = wakes.collect();
        let next = wakes.iter().map(|(_, at)| *at).min().unwrap_or(u64::MAX);
        // What tasks wait for may be late by the precision of the server's time limits, and all else by more.
        let is_long = shared.now_ns - did_at_ns > LONG_AFTER_NS;
        let deadline = clock::simulated::next_deadline_ns().filter(|_| !is_long);
        let deadline = deadline.map_or(u64::MAX, |at_ns| at_ns.max(shared.now_ns + STEP_NS));
        let step_ns = if shared.scene.has_short_steps && !is_long { STEP_NS } else { LONG_STEP_NS };
        let to = next.min(deadline).min(shared.now_ns + step_ns);
        clock::simulated::set(Some(to));
        for worker in self.servers.iter_mut().flat_map(|server| &mut server.workers) {
            worker.advance(Duration::from_nanos(to - shared.now_ns));
        }
        shared.now_ns = to;
        if shared.scene.accepts_at_once() {
            shared.model.heads.read();
        }
        if self.random.u8(..ADVANCES_PER_LOOK) == 0 {
            return self.awake.wake_all();
        }
        wakes.iter().filter(|(_, at)| *at <= to).for_each(|(actor, _)| self.awake.wake(*actor));
        self.running_workers().for_each(|worker| self.awake.wake(worker));
        self.awake.wake(self.operator());
    }
}
