//! The admin listener: figures of a server, for its operator only.
//!
//! It is a small server of the same engine, with its own worker on the control plane, so it has the same strict
//! parser and tested limits. No worker of the data plane serves it, and it is not pinned to a CPU.
//!
//! ```text
//! Board (once a second: totals, engine, /proc) ──> Frame ──> history ──> /status
//!                                                    └─────> /events (SSE) ──> page, `flatout top`
//! Metrics ──────────────────────────────────────────────────> /metrics
//! ```
#![forbid(unsafe_code)]
// Data from a client must not crash the listener.
#![warn(clippy::unwrap_used, clippy::expect_used)]

mod ask;
mod board;
mod client;
mod events;
mod frame;
mod service;
#[cfg(test)]
mod tests;
pub mod upstreams;

use std::sync::Arc;
use std::time::Duration;

use flatout_bus::Relay;
use flatout_cache as cache;
use flatout_engine::{Address, Error, Handle, Inherited, Limits, Listen, SocketPlan};
use flatout_observe::metrics::Metrics;
use flatout_push::Hub;

pub use ask::{ask, ask_within, health};
pub use client::{Event, Watch};
pub use frame::{
    About, Bus, Cache, CrawlerRequests, Frame, Message, Prerender, Push, Route, Site, SiteFigures, Start,
    Upstream, UpstreamServer, Worker,
};

use board::Board;

/// The settings of the admin listener.
#[derive(Clone, Default)]
pub struct Plan {
    /// `unix:PATH`, which only the user that starts the server may open, or a loopback address.
    pub listen: Vec<Address>,
    /// Whether other addresses are allowed. Every client there sees all figures and may call all actions.
    pub public: bool,
    /// The actions, each of which is a POST to its own path.
    pub actions: Vec<Action>,
}

/// An action that an operator may request, such as a reload.
#[derive(Clone)]
pub struct Action {
    /// Its path: `/reload`.
    pub path: &'static str,
    /// Runs it with the body of the request, on a thread that may block. Returns what happened, or why it failed.
    pub run: Arc<Act>,
}

/// The function of an action.
pub type Act = dyn Fn(&[u8]) -> Result<String, String> + Send + Sync;

/// The function that lists sites.
pub type Listing = dyn Fn() -> Vec<Site> + Send + Sync;

/// What the listener shows.
#[derive(Clone)]
pub struct View {
    /// The metrics of the server.
    pub metrics: Metrics,
    /// The server.
    pub handle: Handle,
    /// The name of its workers' threads.
    pub thread_name: String,
    /// The program's version.
    pub version: String,
    /// Reports upstreams and the cache, if any.
    pub upstreams: Option<Arc<dyn UpstreamSource>>,
    /// Reports its sites and routes, if it has any. Called once a second on the control plane; must not block.
    pub sites: Option<Arc<Listing>>,
    /// Its channels, if any.
    pub push: Option<Hub>,
    /// The bus to other servers, if there is one.
    pub bus: Option<Arc<Relay>>,
}

/// Reports the upstreams of a server, its response cache and its renderer. A trait although only `server` implements it: a reload
/// replaces both, and `server` is above this crate.
pub trait UpstreamSource: Send + Sync {
    /// The current upstreams. Called once a second on the control plane; must not block.
    fn upstreams(&self) -> Vec<upstreams::UpstreamSnapshot>;

    /// The current state of the cache, if there is one. Must not block either.
    fn cache(&self) -> Option<cache::Figures>;

    /// The current state of the renderer, if there is one. Must not block either.
    fn renderer(&self) -> Option<upstreams::RendererSnapshot>;
}

/// The name of the admin listener's threads.
const THREAD_NAME: &str = "flatout-admin";

/// Connections of operators, pages and scrapers.
const CONNECTIONS_MAX: usize = 64;

/// The limit for the body of an action.
const BODY_BYTES_MAX: u64 = 64 << 10;

/// How long it drains after another process has taken over: long enough to send the response that reports this.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(1);

/// For the owner only.
const UNIX_MODE: u32 = 0o600;

impl Plan {
    /// Checks the plan; errors are for the person who configured it.
    ///
    /// # Errors
    /// The address can be reached from other hosts, and that was not allowed explicitly.
    pub fn check(&self) -> Result<(), String> {
        let others = self.listen.iter().find(|address| match address {
            Address::Tcp(address) => !address.ip().to_canonical().is_loopback(),
            Address::Unix(_) => false,
        });
        match others {
            Some(address) if !self.public => Err(format!(
                "other machines could reach the admin listener at {address}; use 127.0.0.1, [::1] or unix:PATH, or make it public"
            )),
            _ => Ok(()),
        }
    }
}

/// An admin listener that is bound but does not serve yet.
pub struct Bound {
    bound: flatout_engine::Bound,
    plan: Plan,
}

/// Binds it with the current privileges, before the server drops them.
///
/// # Errors
/// The plan is invalid, or an address cannot be bound.
pub fn bind(plan: Plan) -> Result<Bound, Error> {
    bind_inherited(plan, Vec::new())
}

/// The same with the admin listeners of the process that this one replaces.
///
/// # Errors
/// See [`bind`].
pub fn bind_inherited(plan: Plan, inherited: Vec<Inherited>) -> Result<Bound, Error> {
    plan.check().map_err(Error::Plan)?;
    let listens = flatout_engine::Plan {
        listen: plan.listen.iter().cloned().map(Listen::from).collect(),
        workers: Some(1),
        socket: SocketPlan { unix_mode: Some(UNIX_MODE), ..SocketPlan::default() },
        limits: Limits {
            connections_max: Some(CONNECTIONS_MAX),
            body_bytes_max: BODY_BYTES_MAX,
            ..Limits::default()
        },
        thread_name: THREAD_NAME,
        pin: false,
        takes_handed_over: false,
        drain_time_max: DRAIN_TIME_MAX,
        ..flatout_engine::Plan::default()
    };
    let bound = flatout_engine::bind_inherited(listens, inherited)?;
    Ok(Bound { bound, plan })
}

impl Bound {
    /// Starts serving.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn start(self, view: View) -> Result<Admin, Error> {
        let Bound { bound, plan } = self;
        let plan = Arc::new(plan);
        let board = Arc::new(Board::new(view));
        let server = bound.start(move |_| {
            let clients = events::Clients::default();
            tokio::task::spawn_local(events::run(board.clone(), clients.clone()));
            Box::new(service::AdminService::new(plan.clone(), board.clone(), clients))
        })?;
        Ok(Admin { server })
    }
}

/// A running admin listener.
pub struct Admin {
    server: flatout_engine::Server,
}

impl Admin {
    /// The bound addresses, with the ports that the kernel chose.
    pub fn addresses(&self) -> &[Address] {
        self.server.addresses()
    }

    /// A handle that drains the server.
    pub fn handle(&self) -> Handle {
        self.server.handle()
    }

    /// Stops the server. Responses in progress are cut, unless it is already draining.
    pub fn close(self) {
        let handle = self.server.handle();
        let is_draining = *handle.draining().borrow();
        if !is_draining {
            handle.stop();
        }
        // A failure of its worker is not reported here; the server reports its own end.
        let _ = self.server.wait();
    }
}
