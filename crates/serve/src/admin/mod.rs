//! The admin listener: figures of a server, for its operator only.
//!
//! It is a small server of the same engine, with one worker of its own on the control plane: one strict parser, and limits
//! that are tested already. No worker of the data plane serves it, and it is pinned to no CPU.
//!
//! ```text
//! Board (once a second: totals, engine, /proc) ──> Frame ──> history ──> /status
//!                                                    └─────> /events (SSE) ──> page, `flatout top`
//! Metrics ──────────────────────────────────────────────────> /metrics
//! ```

mod ask;
mod board;
mod client;
mod events;
mod frame;
mod service;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use flatout_engine::{Address, Error, Handle, Inherited, Limits, SocketPlan};

use crate::bus::Relay;
use crate::metrics::Metrics;
use crate::push::Hub;
use crate::{cache, upstreams};

pub use ask::ask;
pub use client::{Event, Watch};
pub use frame::{About, Bus, Cache, Frame, Push, Start, Upstream, UpstreamServer, Worker};

use board::Board;

/// Where it listens, for whom, and what else it can do.
#[derive(Clone, Default)]
pub struct Plan {
    /// `unix:PATH`, which only the user who starts the server may open, or a loopback address.
    pub listen: Vec<Address>,
    /// Whether other addresses are allowed. Every client there sees all figures and may call all actions.
    pub public: bool,
    /// What a POST to a path of its own does.
    pub actions: Vec<Action>,
}

/// Something that an operator may ask for, such as a reload.
#[derive(Clone)]
pub struct Action {
    /// Its path: `/reload`.
    pub path: &'static str,
    /// Does it, with the body of the request, on a thread that may wait: what happened, or why it could not be done.
    pub run: Arc<Act>,
}

/// What an action does.
pub type Act = dyn Fn(&[u8]) -> Result<String, String> + Send + Sync;

/// What is shown.
#[derive(Clone)]
pub struct View {
    /// The figures of its requests, and whatever else has figures.
    pub metrics: Metrics,
    /// The server.
    pub handle: Handle,
    /// What its workers' threads are called.
    pub thread_name: String,
    /// The program's version.
    pub version: String,
    /// Where the server listens.
    pub listen: Vec<String>,
    /// Who knows of upstreams and of a cache, if there are any.
    pub upstreams: Option<Arc<dyn Upstreams>>,
    /// Its channels, if there may be any.
    pub push: Option<Hub>,
    /// The bus to other servers, if there is one.
    pub bus: Option<Arc<Relay>>,
}

/// Knows the upstreams of a server, and its response cache.
pub trait Upstreams: Send + Sync {
    /// How they are now. Called once a second on the control plane; it does not wait.
    fn upstreams(&self) -> Vec<upstreams::Upstream>;

    /// How its cache is now, if it has one; the same.
    fn cache(&self) -> Option<cache::Figures>;
}

/// What the threads of the admin listener are called.
const THREAD_NAME: &str = "flatout-admin";

/// Connections of operators, pages and scrapers.
const CONNECTIONS_MAX: usize = 64;

/// Bytes of the body of an action.
const BODY_BYTES_MAX: u64 = 64 << 10;

/// How long it drains after another process has taken over: long enough to send the response that reports this.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(1);

/// The owner alone.
const UNIX_MODE: u32 = 0o600;

impl Plan {
    /// Says what cannot be, in words for the person who configured it.
    ///
    /// # Errors
    /// An address that others than this machine reach, unless that was asked for.
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

/// Binds it, with the rights of the moment: before the server becomes another user.
///
/// # Errors
/// A plan that cannot be, or an address that cannot be bound.
pub fn bind(plan: Plan) -> Result<Bound, Error> {
    bind_inherited(plan, Vec::new())
}

/// The same with the admin listeners of the process that this one replaces.
///
/// # Errors
/// As [`bind`].
pub fn bind_inherited(plan: Plan, inherited: Vec<Inherited>) -> Result<Bound, Error> {
    plan.check().map_err(Error::Plan)?;
    let listens = flatout_engine::Plan {
        listen: plan.listen.clone(),
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
    /// Starts to serve.
    ///
    /// # Errors
    /// A thread that cannot be started.
    pub fn start(self, view: View) -> Result<Admin, Error> {
        let Bound { bound, plan } = self;
        let plan = Arc::new(plan);
        let board = Arc::new(Board::new(view));
        let server = bound.start(move |_| {
            let clients = events::Clients::default();
            tokio::task::spawn_local(events::run(board.clone(), clients.clone()));
            Box::new(service::Admin::new(plan.clone(), board.clone(), clients))
        })?;
        Ok(Admin { server })
    }
}

/// A running admin listener.
pub struct Admin {
    server: flatout_engine::Server,
}

impl Admin {
    /// Where it listens, with the ports that the kernel chose.
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
        // A worker of it that failed has nothing to say here: the server itself has ended well or not.
        let _ = self.server.wait();
    }
}
