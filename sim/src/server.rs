//! The server that is simulated: its workers, and what they serve.

use std::io;
use std::path::Path;
use std::time::Duration;

use flatout_cache::Cache;
use flatout_engine::{Handle, SteppedWorker, bind};
use flatout_proxy::Watch;
use flatout_push::Hub;
use flatout_server::live::Live;
use flatout_server::simulation;

use crate::observer::Observer;
use crate::scene::{Configuration, Scene};
use crate::secure;
use crate::socket::Watched;

pub(crate) struct Server {
    pub(crate) observer: Option<Observer>,
    pub(crate) live: Live,
    pub(crate) handle: Handle,
    pub(crate) workers: Vec<SimulatedWorker>,
}

/// A worker, and whether there are events for it.
pub(crate) struct SimulatedWorker {
    stepped: SteppedWorker,
    watched: Watched,
}

impl Server {
    /// Starts one.
    ///
    /// # Panics
    /// The system refuses what a simulation needs.
    pub(crate) fn start(configuration: &Configuration, scene: &Scene, folder: &Path, hub: &Hub) -> Server {
        let checked = configuration.checked(scene, folder);
        let acceptor = scene.has_tls.then(|| secure::acceptor(folder));
        let bound = bind(checked.listening(acceptor.as_ref())).expect("a free path");
        let opened = simulation::open(&checked, hub, None).unwrap_or_else(|failure| panic!("{failure}"));
        let live = Live::new(opened);
        let observer = scene.is_observed.then(|| Observer::new(folder));
        let make = |worker| match &observer {
            Some(observer) => observer.service(&live, &worker),
            None => live.service(&worker, Watch::default()),
        };
        let (handle, workers) = bound.start_stepped(make).expect("workers");
        let workers = workers.into_iter().map(SimulatedWorker::new).collect();
        Server { observer, live, handle, workers }
    }

    /// The process is killed: nothing of it does anything any more.
    pub(crate) fn kill(self) {
        // The kernel frees what it had locked. Requests in progress may refer to it for ever.
        self.live.opened().cache.iter().for_each(Cache::leave_folder);
    }
}

impl SimulatedWorker {
    fn new(stepped: SteppedWorker) -> SimulatedWorker {
        let watched = Watched::of_worker(stepped.events().expect("a worker that has just begun"));
        SimulatedWorker { stepped, watched }
    }

    /// One turn, if there is anything to do. Returns whether there was.
    pub(crate) fn step(&mut self) -> io::Result<bool> {
        self.stepped.step(self.watched.is_ready())
    }

    pub(crate) fn advance(&mut self, time: Duration) {
        self.stepped.advance(time);
    }

    pub(crate) fn has_tasks(&self) -> bool {
        self.stepped.has_tasks()
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.stepped.has_ended()
    }
}
