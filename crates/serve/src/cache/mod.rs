//! The response cache: between the sites and the proxy, shared by all workers.
//!
//! ```text
//! request ── key ──> Front (this worker's hot entries) ──> Store (all workers: S3-FIFO by bytes) ── fresh ──> response
//!                                                             │ stale, or nothing
//!                                                             v
//!                       Flight: one for all that miss together <── Fill ── proxy ──> upstream
//!                         │ head, chunks as they come              └── whole: an Entry in the Store
//!                         └──> every client that waits
//! ```
//!
//! [`flatout_wire::cache`] decides what may be stored and served. Hits are served in the lane, from an encoded head and shared bytes.

mod disk;
mod entry;
mod fill;
mod flight;
mod follow;
mod forms;
mod front;
mod invalidate;
mod key;
mod label;
mod plan;
mod purge;
mod repeat;
mod respond;
mod slice_fill;
mod slice_store;
mod sliced;
mod slices;
mod store;
mod sweep;
mod tally;
mod worker;

use std::rc::Rc;
use std::sync::Arc;

use flatout_engine::{Worker, say};
use flatout_lane::clock;

pub use plan::{DiskPlan, Ignored, Plan, Rules, Validity};
pub use purge::{BadPurge, Purge, What};
pub use tally::Figures;

use crate::metrics::{Family, Source};
use crate::proxy::Links;
use crate::site::Forwarding;
use store::Store;
use sweep::Sweeper;

/// A cache; clones are the same.
#[derive(Clone)]
pub struct Cache {
    plan: Plan,
    store: Arc<Store>,
    _sweeper: Option<Arc<Sweeper>>,
}

impl Cache {
    /// Opens a cache with the responses that are on disk. If the folder cannot be used, it reports that once and uses memory only.
    pub fn open(plan: Plan) -> Cache {
        let mut store = Store::new(plan.memory_bytes);
        if let Some(disk) = &plan.disk
            && let Err(error) = store.open_disk(disk, clock::unix_milliseconds())
        {
            let dir = disk.dir.display();
            say(format_args!(
                "the cache's folder `{dir}` cannot be used: {error}; responses are kept in memory only"
            ));
        }
        let store = Arc::new(store);
        let sweeper = plan.inactive.and_then(|inactive| {
            let started = Sweeper::start(&store, inactive);
            started.inspect_err(|error| say(format_args!("the cache keeps what is inactive: {error}"))).ok()
        });
        Cache { store, plan, _sweeper: sweeper.map(Arc::new) }
    }

    /// The plan that it was opened with.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// A worker's part of the cache, in front of its connections to upstreams.
    pub fn before(&self, worker: &Worker, links: Rc<Links>) -> Rc<dyn Forwarding> {
        worker::Caching::new(worker, self.store.clone(), links)
    }

    /// What it has counted, and what it holds.
    pub fn figures(&self) -> Figures {
        self.store.figures()
    }

    /// Removes responses, or marks them stale. When it returns, no worker serves them any more. Returns their number.
    pub fn purge(&self, purge: &Purge) -> usize {
        self.store.purge(purge)
    }
}

impl Source for Cache {
    fn collect(&self, into: &mut Vec<Family>) {
        self.store.collect(into);
    }
}
