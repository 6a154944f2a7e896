//! The response cache: between the sites and the proxy, shared by all workers.
//!
//! ```text
//! request ── worker: key ──> hot (this worker's heads and entries) ──> lookup: store, disk (all workers) ── fresh ──> response
//!                                                                          │ stale, or nothing
//!                                                                          v
//!               fetch: one Flight for all that miss together <── Fill ── proxy ──> upstream
//!                        │ head, chunks as they come               └── complete: an Entry in the store
//!                        └──> every client that waits
//! ```
//!
//! [`flatout_wire::cache`] decides what may be stored and served. Hits are served in the lane, from an encoded head and shared bytes.
#![forbid(unsafe_code)]
// The data path: data from a client, a file or a plan must not crash a worker.
#![warn(clippy::unwrap_used, clippy::expect_used)]

mod disk;
mod encodings;
mod entry;
mod fetch;
mod hot;
mod key;
mod lookup;
mod plan;
mod policy;
mod purge;
mod respond;
mod slices;
mod status;
mod store;
mod tally;
mod worker;

use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use flatout_engine::Worker;
pub use flatout_wire::cache::is_never_stored;

pub use flatout_gateway::{Ignored, Rules, Validity};
pub use key::KeyBuf;
pub use plan::{DiskPlan, Plan};
pub use purge::{BadPurge, Purge, PurgeScope};
pub use tally::Figures;

use flatout_gateway::Forwarding;
use flatout_observe::metrics::{Family, Source};
use flatout_proxy::ProxyWorker;
use store::Store;

/// How long a reload or an upgrade waits until a folder is free that it does not need any more.
const LEAVE_TIME_MAX: Duration = Duration::from_secs(5);

/// A cache; clones are the same.
#[derive(Clone)]
pub struct Cache {
    plan: Plan,
    store: Arc<Store>,
}

impl Cache {
    /// Opens a cache with the responses on disk. If another process uses the folder, it is opened when that
    /// process releases it. Other errors are reported. Without the folder, responses are kept in memory only.
    pub fn open(plan: Plan) -> Cache {
        let cache = Cache { store: Arc::new(Store::new(plan.memory_bytes)), plan };
        cache.take_effect();
        cache
    }

    /// Opens a cache in the place of another one. If both have the same folder, or none, all that is stored stays, and the other settings
    /// of the plan count once `server::live::Live` serves it.
    pub fn open_after(plan: Plan, former: &Cache) -> Cache {
        let dir = |plan: &Plan| plan.disk.as_ref().map(|disk| disk.dir.clone());
        match dir(&plan) == dir(&former.plan) {
            true => Cache { store: former.store.clone(), plan },
            false => Cache::open(plan),
        }
    }

    fn take_effect(&self) {
        self.store.resize(self.plan.memory_bytes);
        if let Some(disk) = &self.plan.disk {
            self.store.use_folder(disk);
        }
        self.store.sweep_inactive(self.plan.inactive);
    }

    /// From now on, one cache is served in the place of another: its settings count, and a folder that it does not use is free.
    pub fn replace(former: Option<&Cache>, latter: Option<&Cache>) {
        let is_same = |former: &Cache| latter.is_some_and(|it| Arc::ptr_eq(&it.store, &former.store));
        match (former, latter) {
            (Some(former), Some(latter)) if is_same(former) => latter.take_effect(),
            (Some(former), _) => former.leave_folder(),
            (None, _) => {}
        }
    }

    /// Writes the queue and frees the folder for another process. New responses are stored in memory only.
    pub fn leave_folder(&self) {
        if self.plan.disk.is_none() {
            return;
        }
        let store = self.store.clone();
        #[cfg(feature = "simulation")]
        if flatout_lane::clock::simulated::is_set() {
            return store.leave_folder();
        }
        let (done, is_done) = channel::<()>();
        let thread = std::thread::Builder::new().name("flatout-leave".to_owned());
        let started = thread.spawn(move || {
            store.leave_folder();
            drop(done);
        });
        match started {
            // The time limit covers a hanging disk.
            Ok(_) => {
                let _ = is_done.recv_timeout(LEAVE_TIME_MAX);
            }
            Err(_) => self.store.leave_folder(),
        }
    }

    /// The plan that it was opened with.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// A worker's part of the cache, in front of its upstream connections.
    pub fn before(&self, worker: &Worker, proxy_worker: Rc<ProxyWorker>) -> Rc<dyn Forwarding> {
        Rc::new(worker::CacheService(worker::CacheWorker::new(worker, self.store.clone(), proxy_worker)))
    }

    /// Its counters and its size.
    pub fn figures(&self) -> Figures {
        self.store.figures()
    }

    /// Removes responses, or marks them stale. When it returns, no worker serves them any more. Returns their number.
    pub fn purge(&self, purge: &Purge) -> usize {
        self.store.purge(purge)
    }

    /// The same for threads that must not block: it does not wait until the purge is on disk. If the process is killed
    /// before that, a restart may find purged responses again.
    pub fn purge_soon(&self, purge: &Purge) -> usize {
        self.store.purge_soon(purge)
    }

    /// Whether purges of [`Cache::purge_soon`] are not on disk yet, for the simulator.
    #[cfg(feature = "simulation")]
    pub fn has_purges_to_write(&self) -> bool {
        self.store.has_purges_to_write()
    }

    /// Waits until the purges of [`Cache::purge_soon`] are on disk, at most 30 seconds.
    pub fn wait_for_purges(&self) {
        self.store.wait_for_purges();
    }
}

impl Source for Cache {
    fn collect(&self, into: &mut Vec<Family>) {
        self.store.collect(into);
    }
}
