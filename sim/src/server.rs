//! The server that is simulated: its workers, and what they serve.

use std::io;
use std::path::Path;
use std::time::Duration;

use flatout_cache::Cache;
use flatout_engine::{Bound, Handle, Inherited, SteppedWorker, bind_inherited};
use flatout_observe::observed::Observers;
use flatout_push::{Hub, Limits};
use flatout_server::live::Live;
use flatout_server::simulation::{self, Invalidated};
use flatout_server::upgrade::Predecessor;

use crate::bus::{self, Carried};
use crate::observer::Observer;
use crate::scene::{Configuration, Scene};
use crate::secure;
use crate::socket::{self, Watched};

pub(crate) struct Server {
    pub(crate) hub: Hub,
    pub(crate) observer: Option<Observer>,
    pub(crate) live: Live,
    pub(crate) handle: Handle,
    pub(crate) workers: Vec<SimulatedWorker>,
    /// What it has sent over the bus.
    pub(crate) carried: Option<Carried>,
    /// What it invalidates for the server that has replaced it.
    pub(crate) invalidated: Option<Invalidated>,
}

/// A worker, and whether there are events for it.
pub(crate) struct SimulatedWorker {
    stepped: SteppedWorker,
    watched: Watched,
}

impl Server {
    /// The parts of this server that an upgrade hands over.
    pub(crate) fn predecessor(&self) -> Predecessor {
        let (server, hub, live) = (self.handle.clone(), self.hub.clone(), self.live.clone());
        Predecessor { server, admin: None, hub, relay: None, live }
    }

    /// Steps the workers until they have nothing left to do and `is_done` returns true.
    pub(crate) fn work_until(&mut self, mut is_done: impl FnMut() -> bool) -> Result<(), String> {
        loop {
            let mut did = false;
            for (number, worker) in self.workers.iter_mut().enumerate() {
                socket::worker_did();
                did |= worker.step().map_err(|error| format!("worker {number}: {error}"))?;
            }
            if did {
                continue;
            }
            if is_done() {
                return Ok(());
            }
            self.hub.note_rest();
            std::thread::yield_now();
        }
    }

    /// Starts one.
    ///
    /// # Panics
    /// The system refuses what a simulation needs.
    pub(crate) fn start(configuration: &Configuration, scene: &Scene, folder: &Path) -> Server {
        Opening::new(configuration, scene, folder, Vec::new()).start()
    }

    /// The process is killed: nothing of it does anything any more.
    pub(crate) fn kill(self) {
        // The kernel frees what it had locked. Requests in progress may refer to it for ever.
        self.live.opened().cache.iter().for_each(Cache::leave_folder);
    }
}

/// A server whose workers are not started yet.
pub(crate) struct Opening {
    bound: Bound,
    pub(crate) hub: Hub,
    pub(crate) live: Live,
    observer: Option<Observer>,
    carried: Option<Carried>,
}

impl Opening {
    /// Opens a server. It listens on `inherited` sockets where there are any, and binds the others.
    ///
    /// # Panics
    /// The system refuses what a simulation needs.
    pub(crate) fn new(
        configuration: &Configuration,
        scene: &Scene,
        folder: &Path,
        inherited: Vec<Inherited>,
    ) -> Opening {
        let checked = configuration.checked(scene, folder);
        let acceptor = scene.has_tls.then(|| secure::acceptor(folder));
        let bound = bind_inherited(checked.listening(acceptor.as_ref()), inherited).expect("a free path");
        let hub = Hub::new(Limits::default());
        let has_bus = scene.channels.is_some_and(|channels| channels.has_bus);
        let carried = has_bus.then(|| bus::join(&hub));
        let opened = simulation::open(&checked, &hub, None).unwrap_or_else(|failure| panic!("{failure}"));
        let live = Live::new(opened);
        let observer = scene.is_observed.then(|| Observer::new(folder));
        Opening { bound, hub, live, observer, carried }
    }

    /// Starts its workers.
    ///
    /// # Panics
    /// As [`Opening::new`].
    pub(crate) fn start(self) -> Server {
        let Opening { bound, hub, live, observer, carried } = self;
        let observers =
            observer.as_ref().map_or_else(Observers::default, |observer| observer.observers.clone());
        let make = |worker| simulation::service(&live, &worker, &observers);
        let (handle, workers) = bound.start_stepped(make).expect("workers");
        let workers = workers.into_iter().map(SimulatedWorker::new).collect();
        Server { hub, observer, live, handle, workers, carried, invalidated: None }
    }
}

impl SimulatedWorker {
    fn new(stepped: SteppedWorker) -> SimulatedWorker {
        let watched = Watched::of_worker(stepped.events().expect("a worker that has just begun"));
        SimulatedWorker { stepped, watched }
    }

    /// One turn, if there is anything to do. Returns whether there was.
    pub(crate) fn step(&mut self) -> io::Result<bool> {
        self.stepped.step(self.watched.is_worker_ready())
    }

    pub(crate) fn advance(&mut self, time: Duration) {
        self.stepped.advance(time);
    }

    /// Checks what must be true when nobody has anything to do.
    pub(crate) fn check_at_rest(&self) -> Result<(), String> {
        self.stepped.check_at_rest()
    }

    /// Memory of the request bodies that all workers of its server collect.
    pub(crate) fn bodies_bytes(&self) -> u64 {
        self.stepped.bodies_bytes()
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.stepped.has_ended()
    }
}
