//! Sites that are replaced while they are served.
//!
//! ```text
//! control plane ── open ──> Opened ── atomic swap, count ──> each worker, at its next request ──> its service, made anew
//! ```
//!
//! A worker checks a counter before each request and rebuilds its service if the counter has changed. That is one
//! load of a cache line which only reloads write. Requests already started finish with the old parts, which are
//! dropped with the last request that uses them.

use std::cell::{Cell, OnceCell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::prerender::{self, Renderer};
use arc_swap::ArcSwap;
use flatout_cache::Cache;
use flatout_engine::{
    Begun, Prepared, Reply, Request, Response, Service, Ticket, Worker, bug, request_random,
};
use flatout_observe::metrics::{Family, Source};
use flatout_proxy::{Proxy, ProxyWorker, Watch};
use flatout_push::{Hub, WorkerChannels};
use flatout_site::{Forwarding, Sites, TlsDecision, WorkerSites};
use flatout_wire::Head;
use flatout_wire::target::PathForm;

/// Opened sites and upstreams.
#[derive(Clone)]
pub struct Opened {
    /// The sites.
    pub sites: Sites,
    /// Their upstreams.
    pub proxy: Proxy,
    /// The channels of the process: they stay when sites are replaced.
    pub hub: Hub,
    /// The cache, if responses are cached.
    pub cache: Option<Cache>,
    /// The renderer, if a route has one.
    pub prerender: Option<Renderer>,
}

impl Opened {
    /// Sets the groups of channels, and the limit for messages of other servers. Without routes with channels, the limit stays as it is.
    fn configure_channels(&self) {
        self.hub.serve_groups(self.sites.push_groups());
        if let Some(bytes_max) = self.sites.push_bytes_max() {
            self.hub.limit_messages(bytes_max);
        }
    }
}

/// What is served now; clones share it.
#[derive(Clone)]
pub struct Live {
    shared: Arc<Shared>,
}

struct Shared {
    opened: ArcSwap<Opened>,
    /// How often `opened` was replaced.
    count: AtomicU64,
}

impl Live {
    /// Serves `opened`.
    pub fn new(opened: Opened) -> Live {
        opened.configure_channels();
        let shared = Shared { opened: ArcSwap::from_pointee(opened), count: AtomicU64::new(0) };
        Live { shared: Arc::new(shared) }
    }

    /// What is served now.
    pub fn opened(&self) -> Arc<Opened> {
        self.shared.opened.load_full()
    }

    /// Serves `opened` from now on. Requests in progress finish with the old sites.
    pub fn replace(&self, opened: Opened) {
        let opened = Arc::new(opened);
        // Until every worker has changed, requests come for both.
        let served = self.opened();
        opened.hub.serve_groups(served.sites.push_groups().chain(opened.sites.push_groups()));
        let former = self.shared.opened.swap(opened.clone());
        // A thread that sees the new count also sees what was stored before it.
        self.shared.count.fetch_add(1, Ordering::Release);
        // After that: subscribers whose route was removed do not find it when they come back.
        opened.configure_channels();
        Cache::replace(former.cache.as_ref(), opened.cache.as_ref());
    }

    /// Another process serves from now on. What only one of them can have is free for it.
    pub(crate) fn leave(&self) {
        if let Some(cache) = &self.opened().cache {
            cache.leave_folder();
        }
    }

    /// One worker's sites as a service of their own, without logs, metrics and the steps of TLS.
    pub fn service(&self, worker: &Worker, watch: Watch) -> Box<dyn Service> {
        Box::new(self.worker(worker, watch))
    }

    /// One worker's part, made on its thread. `watch` observes its upstream requests.
    pub(crate) fn worker(&self, worker: &Worker, watch: Watch) -> LiveService {
        let count = self.shared.count.load(Ordering::Acquire);
        let (worker_channels, opened) = (OnceCell::new(), self.shared.opened.load_full());
        let proxy_worker = opened.proxy.watched_worker(worker, watch);
        let (service, worker_sites) =
            made(&opened, &WorkerSites::default(), worker, proxy_worker.clone(), &worker_channels);
        LiveService {
            count: Cell::new(count),
            service: RefCell::new(service),
            proxy_worker: RefCell::new(proxy_worker),
            worker_channels,
            sites: RefCell::new((opened.sites.clone(), Box::new(worker_sites))),
            shared: self.shared.clone(),
            worker: worker.clone(),
        }
    }
}

impl std::fmt::Debug for Live {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Live").field("count", &self.shared.count).finish_non_exhaustive()
    }
}

/// Figures of what is served now.
impl Source for Live {
    fn collect(&self, into: &mut Vec<Family>) {
        if let Some(cache) = &self.opened().cache {
            cache.collect(into);
        }
        if let Some(renderer) = &self.opened().prerender {
            prerender::collect(renderer, into);
        }
    }
}

/// A worker's service, and its sites; copies that `former` has too are kept.
fn made(
    opened: &Opened,
    former: &WorkerSites,
    worker: &Worker,
    proxy_worker: Rc<ProxyWorker>,
    worker_channels: &OnceCell<Rc<WorkerChannels>>,
) -> (Rc<dyn Service>, WorkerSites) {
    let notes = proxy_worker.notes().cloned();
    let worker_sites = opened.sites.worker_sites(former);
    let forwarding: Rc<dyn Forwarding> = match &opened.cache {
        Some(cache) => cache.before(worker, proxy_worker),
        None => proxy_worker,
    };
    // Subscribers stay with their worker_channels, whatever is served.
    let worker_channels = opened
        .sites
        .has_push()
        .then(|| worker_channels.get_or_init(|| WorkerChannels::new(&opened.hub, &worker.lane)).clone());
    let lane = Some(worker.lane.clone());
    let service =
        opened.sites.service_of(&worker_sites, forwarding, worker_channels, lane, notes.as_ref()).into();
    (service, worker_sites)
}

/// A request goes on in the sites that have decided about its body, although others may have replaced them since.
struct LiveTicket {
    service: Rc<dyn Service>,
    /// That service's own.
    ticket: Option<Ticket>,
}

/// One worker's sites, which check whether they were replaced.
pub(crate) struct LiveService {
    shared: Arc<Shared>,
    worker: Worker,
    count: Cell<u64>,
    service: RefCell<Rc<dyn Service>>,
    /// The sites that it serves, and its own of them.
    sites: RefCell<(Sites, Box<WorkerSites>)>,
    /// Its upstream connections.
    proxy_worker: RefCell<Rc<ProxyWorker>>,
    worker_channels: OnceCell<Rc<WorkerChannels>>,
}

impl LiveService {
    #[inline]
    fn service(&self) -> Rc<dyn Service> {
        self.follow();
        self.service.borrow().clone()
    }

    /// Takes the present sites, if others were served before.
    #[inline]
    fn follow(&self) {
        if self.shared.count.load(Ordering::Acquire) != self.count.get() {
            self.renew();
        }
    }

    #[cold]
    fn renew(&self) {
        // Load the counter first: if another replacement follows, the next request rebuilds.
        self.count.set(self.shared.count.load(Ordering::Acquire));
        let opened = self.shared.opened.load_full();
        let former = self.proxy_worker.borrow().clone();
        let proxy_worker = opened.proxy.worker_after(&self.worker, &former);
        let (service, worker_sites) =
            made(&opened, &self.sites.borrow().1, &self.worker, proxy_worker.clone(), &self.worker_channels);
        // Drop the old ones only after the new ones are in place.
        let (sites, worker_sites) = self.sites.replace((opened.sites.clone(), Box::new(worker_sites)));
        drop((self.service.replace(service), self.proxy_worker.replace(proxy_worker)));
        sites.free(worker_sites);
    }

    /// What becomes of a connection with TLS, and the proxy that it is passed on by.
    pub(crate) fn passthrough(
        &self,
        name: Option<&str>,
        peer: Option<SocketAddr>,
        listener: u16,
    ) -> (TlsDecision, Rc<ProxyWorker>) {
        // A connection may arrive before the first request after a reload.
        self.follow();
        let [random, _] = request_random(0);
        (self.sites.borrow().0.route_tls(listener, name, peer, random), self.proxy_worker.borrow().clone())
    }

    /// See [`Sites::named_client`].
    #[inline]
    pub(crate) fn named_client(&self, begun: &Begun<'_>) -> Option<SocketAddr> {
        self.follow();
        self.sites.borrow().0.named_client(begun)
    }
}

impl Service for LiveService {
    fn prepare(&self, head: &Head<'_>, path: &[u8], listener: u16) -> Prepared {
        let service = self.service();
        let Prepared { body, ticket } = service.prepare(head, path, listener);
        Prepared { body, ticket: Some(Ticket::new(LiveTicket { service, ticket })) }
    }

    #[inline]
    fn call(&self, mut request: Request<'_>, response: &mut Response) -> Reply {
        let service = match request.ticket.take().map(Ticket::open::<LiveTicket>) {
            None => self.service(),
            Some(Ok(ticket)) => {
                let LiveTicket { service, ticket } = *ticket;
                request.ticket = ticket;
                service
            }
            Some(Err(_)) => {
                bug!("a request has the ticket of another service");
                self.service()
            }
        };
        service.call(request, response)
    }

    fn believes_proxy(&self, peer: Option<SocketAddr>, listener: u16) -> bool {
        // Use the current list of trusted proxies: a connection may arrive before the first request after a reload.
        self.service().believes_proxy(peer, listener)
    }

    fn path_form(&self) -> PathForm {
        self.service.borrow().path_form()
    }
}
