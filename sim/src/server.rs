//! The server that is simulated: its workers, and what they serve.

use std::path::Path;

use flatout_cache::Cache;
use flatout_engine::{Handle, SteppedWorker, bind};
use flatout_proxy::Watch;
use flatout_push::Hub;
use flatout_server::live::Live;
use flatout_server::simulation;

use crate::observer::Observer;
use crate::scene::{Configuration, Scene};
use crate::secure;

pub(crate) struct Server {
    pub(crate) observer: Option<Observer>,
    pub(crate) live: Live,
    pub(crate) handle: Handle,
    pub(crate) workers: Vec<SteppedWorker>,
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
        Server { observer, live, handle, workers }
    }

    /// The process is killed: nothing of it does anything any more.
    pub(crate) fn kill(self) {
        // The kernel frees what it had locked. Requests in progress may refer to it for ever.
        self.live.opened().cache.iter().for_each(Cache::leave_folder);
    }
}
