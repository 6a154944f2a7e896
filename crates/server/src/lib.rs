//! A whole server: what a plan opens, binds and starts; reload, upgrade to a new process, certificates, the bus.
//!
//! ```text
//! Source ──> Plan ── check ──> Checked ──┬── start ──> Started ── run, until a signal ends it
//!                                        └── change of a running server: SIGHUP, or `/reload` of the admin listener
//! ```
//!
//! It does not know where a plan comes from (flags, a file, a test), and prints nothing but log lines: the message on
//! a terminal is a callback of its user.
#![forbid(unsafe_code)]
// The data path: data from a client, a file or a plan must not crash a worker.
#![warn(clippy::unwrap_used, clippy::expect_used)]

mod acme_plan;
mod acme_run;
mod addresses;
mod bus;
mod certificates;
mod changes;
mod control;
mod examine;
mod failure;
pub mod live;
mod log_files;
mod observe;
mod operator;
mod passthrough;
mod plan;
pub mod prerender;
pub mod secure;
mod signals;
mod sources;
mod start;
mod turns;
pub mod upgrade;
mod upstream_commands;
mod upstream_state;
pub mod upstreams;
mod worker;

/// For the simulator in `sim/`, which runs a server without starting one.
#[cfg(feature = "simulation")]
pub mod simulation {
    use std::rc::Rc;

    use flatout_engine::{Service, Worker};
    use flatout_observe::observed::Observers;
    use flatout_proxy::Watch;
    use flatout_push::Hub;

    use crate::live::{Live, Opened};
    pub use crate::upgrade::simulated::{Arriving, HandingOver, Invalidated, hand_over, take_upstreams};
    use crate::worker::{Site, WorkerService};
    use crate::{Checked, Failure};

    /// Opens what a plan serves, and keeps from the former one what both have.
    ///
    /// # Errors
    /// A folder, a file or the system refuses.
    pub fn open(checked: &Checked, hub: &Hub, former: Option<&Opened>) -> Result<Opened, Failure> {
        let opened = crate::start::open(checked, hub, former)?;
        crate::start::take_effect(&opened, checked);
        Ok(opened)
    }

    /// What a worker runs, as in a server that is started.
    pub fn service(live: &Live, worker: &Worker, observers: &Observers) -> Box<dyn Service> {
        let (notes, observer) = observers.worker();
        let site = Site::Sites(live.worker(worker, Watch::new(&notes, None)));
        Box::new(WorkerService { observer: observer.map(Rc::new), before: None, site })
    }
}

pub use acme_plan::{Issue, LISTEN_DEFAULT};
pub use addresses::{Numbers, SiteListen};
pub use examine::{Lack, examine};
pub use failure::Failure;
pub use operator::Operator;
pub use plan::{AcmePart, Checked, Invalid, Plan, SecurePart, Source};
pub use prerender::PrerenderPlan;
pub use start::{Started, Welcome, start};
