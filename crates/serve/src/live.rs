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

use arc_swap::ArcSwap;
use flatout_engine::{BodyPlan, Reply, Request, Response, Service, Worker};
use flatout_wire::Head;
use flatout_wire::target::PathForm;

use crate::cache::Cache;
use crate::metrics::{Family, Source};
use crate::proxy::{Links, Proxy, Watch};
use crate::push::{Desk, Hub};
use crate::site::{Forwarding, Sites};

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
}

impl Opened {
    /// Sets the limit for messages of other servers. Without routes with channels, it stays as it is.
    fn limit_messages(&self) {
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
        opened.limit_messages();
        let shared = Shared { opened: ArcSwap::from_pointee(opened), count: AtomicU64::new(0) };
        Live { shared: Arc::new(shared) }
    }

    /// What is served now.
    pub fn opened(&self) -> Arc<Opened> {
        self.shared.opened.load_full()
    }

    /// Serves `opened` from now on. Requests in progress finish with the old sites.
    pub fn replace(&self, opened: Opened) {
        opened.limit_messages();
        let opened = Arc::new(opened);
        let former = self.shared.opened.swap(opened.clone());
        // A thread that sees the new count also sees what was stored before it.
        self.shared.count.fetch_add(1, Ordering::Release);
        Cache::replace(former.cache.as_ref(), opened.cache.as_ref());
    }

    /// Another process serves from now on. What only one of them can have is free for it.
    pub(crate) fn leave(&self) {
        if let Some(cache) = &self.opened().cache {
            cache.leave_folder();
        }
    }

    /// One worker's service, made on its thread. `watch` observes its upstream requests.
    pub fn service(&self, worker: &Worker, watch: Watch) -> Box<dyn Service> {
        let count = self.shared.count.load(Ordering::Acquire);
        let (desk, opened) = (OnceCell::new(), self.shared.opened.load_full());
        let links = opened.proxy.watched_links(worker, watch);
        Box::new(Replaced {
            count: Cell::new(count),
            service: RefCell::new(made(&opened, worker, links.clone(), &desk)),
            links: RefCell::new(links),
            desk,
            shared: self.shared.clone(),
            worker: worker.clone(),
            has_planned: Cell::new(false),
        })
    }
}

/// Figures of what is served now.
impl Source for Live {
    fn collect(&self, into: &mut Vec<Family>) {
        if let Some(cache) = &self.opened().cache {
            cache.collect(into);
        }
    }
}

fn made(opened: &Opened, worker: &Worker, links: Rc<Links>, desk: &OnceCell<Rc<Desk>>) -> Rc<dyn Service> {
    let forwarding: Rc<dyn Forwarding> = match &opened.cache {
        Some(cache) => cache.before(worker, links),
        None => links,
    };
    // Subscribers stay with their desk, whatever is served.
    let desk =
        opened.sites.has_push().then(|| desk.get_or_init(|| Desk::new(&opened.hub, &worker.lane)).clone());
    opened.sites.service_with(forwarding, desk).into()
}

/// A service that checks whether it was replaced.
struct Replaced {
    shared: Arc<Shared>,
    worker: Worker,
    count: Cell<u64>,
    service: RefCell<Rc<dyn Service>>,
    /// Its upstream connections.
    links: RefCell<Rc<Links>>,
    desk: OnceCell<Rc<Desk>>,
    /// The body of the next request was planned; the same sites must answer it.
    has_planned: Cell<bool>,
}

impl Replaced {
    #[inline]
    fn service(&self) -> Rc<dyn Service> {
        if self.shared.count.load(Ordering::Acquire) != self.count.get() {
            self.renew();
        }
        self.service.borrow().clone()
    }

    #[cold]
    fn renew(&self) {
        // Load the counter first: if another replacement follows, the next request rebuilds.
        self.count.set(self.shared.count.load(Ordering::Acquire));
        let opened = self.shared.opened.load_full();
        let former = self.links.borrow().clone();
        let links = opened.proxy.links_after(&self.worker, &former);
        let made = made(&opened, &self.worker, links.clone(), &self.desk);
        // Drop the old ones only after the new ones are in place.
        drop((self.service.replace(made), self.links.replace(links)));
    }
}

impl Service for Replaced {
    fn body(&self, head: &Head<'_>, path: &[u8]) -> BodyPlan {
        self.has_planned.set(true);
        self.service().body(head, path)
    }

    #[inline]
    fn call(&self, request: Request<'_>, response: &mut Response) -> Reply {
        let service = match self.has_planned.replace(false) {
            true => self.service.borrow().clone(),
            false => self.service(),
        };
        service.call(request, response)
    }

    fn believes_proxy(&self, peer: Option<SocketAddr>) -> bool {
        // Use the current list of trusted proxies: a connection may arrive before the first request after a reload.
        self.service().believes_proxy(peer)
    }

    fn path_form(&self) -> PathForm {
        self.service.borrow().path_form()
    }
}
