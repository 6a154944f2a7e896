//! The reverse proxy: requests go to upstream servers over connections in the worker's own lane.
//!
//! ```text
//! client ── worker::forward ──> Job ── dispatch: server, connection ──> begin ──> upstream
//!              │ park                    │ or queue                      ^ send_body: pulled by key
//!              v                         v                               │
//! client <── Receiver: answer, push <── receive: head, body <── UpstreamConnection <── ready (the lane's events)
//! ```
//!
//! A request is parked, and its head rewritten from what was parsed. Its upstream connection is a guest of the lane,
//! so it needs neither a task nor a future. Bodies are pulled and pushed by the exchange's key, no faster than the
//! receiving side accepts them. Large ones go through a pipe without passing through the program.
//!
//! The rooms, each of which uses only those below it:
//!
//! | room | holds |
//! |---|---|
//! | `worker` | a worker's part: what happens to requests and connections, and when |
//! | `control` | what runs on a thread of its own: names and health checks |
//! | `pool` | the connections to each server, and the requests that wait for one |
//! | `connection` | one connection over HTTP/1 or HTTP/2: bytes to responses, and tunnels |
//! | `request` | the job of a request: its head, and whether it may be sent again |
//! | `receiver` | who gets the response: a client, a rule or a cache |
//! | `spool` | responses whose client is slow, in memory and in files |
//! | `select` | which server gets a request, and the retry budget |
//! | `changes` | what an operator or a controller changes of the servers of a running upstream |
//! | `sources` | servers of files and of SRV records: read, checked and followed |
//! | `upstream`, `server` | what all workers share: servers, and whether they are up |
//! | `watch`, `figures`, `failure` | logs, counters, and the reasons of errors |
//! | `plan`, `address`, `hash` | settings |
#![forbid(unsafe_code)]
// The data path: data from a client, a file or a plan must not crash a worker.
#![warn(clippy::unwrap_used, clippy::expect_used)]

mod address;
mod changes;
mod connection;
mod control;
mod failure;
mod figures;
mod hash;
mod plan;
mod pool;
mod receiver;
mod request;
mod select;
mod server;
mod sources;
mod spool;
mod table;
mod upstream;
mod watch;
mod worker;

use std::io;
use std::rc::Rc;
use std::sync::Arc;

use flatout_engine::Worker;

pub use changes::{SERVERS_MAX, ServerChanges, ServerStatus, UpstreamState};
pub use control::names::Resolver;
pub use failure::Failure;
pub use figures::{Figures, ServerFigures, UpstreamFigures};
pub use flatout_gateway::{BufferRequests, Forward, Host, Mirror, PARAM};
pub use plan::{
    Active, Address, Balance, Cgi, HealthCheck, Key, NamedHost, NamedServers, Outliers, Passive, Protocol,
    ProxyProtocol, RetryOn, Server, ServerSource, SourcePlace, Tls, Upstream,
};
pub use receiver::{Disposition, ParkedClient, ResponseSink};
pub use request::fields::withholds;
pub use request::trailers::may_be_trailer;
pub use request::upgrade::{carries_requests, is_protocol_name};
pub use select::outliers::OutlierReason;
pub use server::{EjectionCounts, ServerMode, ServerState};
pub use sources::SourceStatus;
pub use sources::follow::{SourceFollower, SourceOwner};
pub use sources::service::service;
pub use spool::store::{SpoolFigures, SpoolPlan};
pub use watch::Watch;
pub use worker::ProxyWorker;
#[cfg(feature = "simulation")]
pub use worker::audit::{check_all, forget_all};
pub use worker::forward::{Prepared, body_plan};
pub use worker::passthrough::{Passthrough, PassthroughEnd, PassthroughEnding};

/// The upstreams of a server, shared by all its workers. Clones are the same proxy.
#[derive(Clone)]
pub struct Proxy {
    upstreams: Arc<upstream::Upstreams>,
    spool: Arc<spool::store::SpoolStore>,
    control: Arc<control::Control>,
    /// Notifies workers of changes of servers, also parts that are replaced.
    changes: tokio::sync::watch::Sender<()>,
    /// Looks up names that requests name.
    lookups: control::lookups::Lookups,
}

impl Proxy {
    /// A proxy to these upstreams, which routes name by index. If some have names, it waits a while for them to
    /// resolve; names that do not are looked up again periodically.
    ///
    /// # Errors
    /// The thread cannot be started, or the resolver's configuration or a certificate cannot be read.
    pub fn open(upstreams: Vec<Upstream>, resolver: &Resolver) -> io::Result<Proxy> {
        Proxy::open_after(upstreams, resolver, None)
    }

    /// Like `open`, replacing `former`: state of servers that both have is kept, and it waits only for new names. `former` is used as before
    /// until this one [takes effect](Proxy::take_effect).
    ///
    /// # Errors
    /// See [`Proxy::open`].
    pub fn open_after(
        upstreams: Vec<Upstream>,
        resolver: &Resolver,
        former: Option<&Proxy>,
    ) -> io::Result<Proxy> {
        let spool = match former {
            Some(former) => former.spool.next(),
            None => spool::store::SpoolStore::new(SpoolPlan::default()),
        };
        let changes =
            former.map_or_else(|| tokio::sync::watch::Sender::new(()), |former| former.changes.clone());
        let known = former.map_or(&[][..], |former| &**former.upstreams);
        let looked_up = sources::LookedUp::new(&upstreams, resolver, known);
        let open = |plan: Upstream| {
            let former = former.and_then(|former| former.upstream_named(&plan.name));
            upstream::LiveUpstream::open(plan, former, &looked_up)
        };
        let opened: Result<Vec<_>, _> = upstreams.into_iter().map(open).collect();
        let upstreams = Arc::new(upstream::Upstreams::new(opened.map_err(io::Error::other)?));
        let (lookups, begun) = control::lookups::Lookups::new();
        let control = control::Control::start(&upstreams, resolver, changes.subscribe(), begun)?;
        Ok(Proxy { upstreams, spool, control: Arc::new(control), changes, lookups })
    }

    /// It is used in place of the one before from now on: what its plan says of servers that both have counts.
    pub fn take_effect(&self) {
        self.upstreams.iter().for_each(upstream::LiveUpstream::take_effect);
    }

    /// Whether it has these upstreams, whatever their servers are: it can then serve a plan with them, and get their servers by
    /// [`Proxy::set_servers`].
    pub fn is_of(&self, upstreams: &[Upstream]) -> bool {
        self.upstreams.len() == upstreams.len()
            && self.upstreams.iter().zip(upstreams).all(|(live, plan)| live.plan.is_alike(plan))
    }

    pub(crate) fn upstream_named(&self, name: &str) -> Option<&upstream::LiveUpstream> {
        self.upstreams.find(name).map(|id| self.upstreams.at(id))
    }

    /// Sets where responses are kept whose clients are slow, and how much of them; by default in memory. The limits also apply to a
    /// proxy that this one replaces or that replaces it; what that one has begun stays in its folder.
    pub fn set_spool(&self, plan: SpoolPlan) {
        self.spool.set(plan);
    }

    /// What is kept of responses whose clients are slow.
    pub fn spooled(&self) -> SpoolFigures {
        self.spool.figures()
    }

    /// One worker's part of it.
    pub fn worker(&self, worker: &Worker) -> Rc<ProxyWorker> {
        self.watched_worker(worker, Watch::default())
    }

    /// The same, observed by `watch`.
    pub fn watched_worker(&self, worker: &Worker, watch: Watch) -> Rc<ProxyWorker> {
        let changes = self.changes.subscribe();
        let shared = (self.upstreams.clone(), self.lookups.clone());
        ProxyWorker::new(worker, shared, changes, self.spool.clone(), watch)
    }

    /// Like `worker`, replacing this worker's `former` part: it takes over connections to servers that both have,
    /// those in use when they become idle. If `former` is a part of this proxy, it stays.
    pub fn worker_after(&self, worker: &Worker, former: &Rc<ProxyWorker>) -> Rc<ProxyWorker> {
        if former.is_part_of(&self.upstreams) {
            return former.clone();
        }
        let successor = self.watched_worker(worker, former.watch.clone());
        successor.succeed(former);
        successor
    }
}
