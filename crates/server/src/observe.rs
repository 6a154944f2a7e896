//! Observes a server: its access logs, and its admin listener.

use std::sync::Arc;

use flatout_admin::{self as admin, Action, Admin};
use flatout_bus::Relay;
use flatout_engine::{Address, Error, Handle, Inherited, Server};
use flatout_observe::log::{self, Log};
use flatout_observe::metrics::{Metrics, ServerSource, Source};
use flatout_observe::observed::{Observers, Sites};
use flatout_proxy::Figures;
use flatout_push::Hub;
use flatout_site::{ListedRoute, ListedSite};

use crate::Failure;
use crate::live::Live;
use crate::upstreams::Upstreams;

/// The requested logs and listeners.
#[derive(Default)]
pub(crate) struct Options {
    /// The access logs.
    pub(crate) logs: Vec<log::Plan>,
    pub(crate) admin: Vec<Address>,
    pub(crate) admin_public: bool,
    /// Actions for operators.
    pub(crate) actions: Vec<Action>,
    /// Other sources of figures.
    pub(crate) sources: Vec<Arc<dyn Source>>,
}

/// A bound admin listener, and logs that are not open yet.
pub(crate) struct BoundObserver {
    logs: Vec<log::Plan>,
    sources: Vec<Arc<dyn Source>>,
    admin: Option<admin::Bound>,
}

/// The observation of a running server.
pub(crate) struct Observing {
    observers: Observers,
    admin: Option<admin::Bound>,
    serving: Option<Admin>,
    upstreams: Option<Arc<Upstreams>>,
    push: Option<Hub>,
    bus: Option<Arc<Relay>>,
}

impl Options {
    /// Binds the admin listener before privileges are dropped. `inherited` are its sockets from the process that this
    /// one replaces.
    pub(crate) fn bind(self, inherited: Vec<Inherited>) -> Result<BoundObserver, Failure> {
        let logs = self.logs;
        let plan = admin::Plan { listen: self.admin, public: self.admin_public, actions: self.actions };
        let has_admin = !plan.listen.is_empty();
        let admin = has_admin.then(|| admin::bind_inherited(plan, inherited)).transpose().map_err(failure)?;
        Ok(BoundObserver { logs, sources: self.sources, admin })
    }
}

impl BoundObserver {
    /// Opens the logs as the user who serves: this user reopens them after a rotation. Sites are counted by these
    /// numbers.
    pub(crate) fn open(self, sites: Sites) -> Result<Observing, Failure> {
        let open = |plan: log::Plan| {
            let path = plan.path.display().to_string();
            Log::open(plan)
                .map_err(|error| Failure::Run(format!("cannot open the access log `{path}`: {error}")))
        };
        let logs: Vec<Log> = self.logs.into_iter().map(open).collect::<Result<_, _>>()?;
        let metrics = self.admin.is_some().then(|| Metrics::new(sites));
        if let Some(metrics) = &metrics {
            logs.iter().for_each(|log| metrics.add(Arc::new(log.clone())));
            self.sources.into_iter().for_each(|source| metrics.add(source));
        }
        Ok(Observing {
            observers: Observers { logs, metrics },
            admin: self.admin,
            serving: None,
            upstreams: None,
            push: None,
            bus: None,
        })
    }
}

/// What is served now.
fn sites(live: &Live) -> Vec<admin::Site> {
    let route = |route: &ListedRoute| admin::Route {
        name: route.name.clone(),
        action: route.action.clone(),
        rules: route.rules.iter().map(|name| (*name).to_owned()).collect(),
    };
    let site = |site: &ListedSite| admin::Site {
        name: site.name.clone(),
        hosts: site.hosts.clone(),
        routes: site.routes.iter().map(route).collect(),
    };
    live.opened().sites.listed().iter().map(site).collect()
}

impl Observing {
    /// The observers that wrap each worker's service.
    pub(crate) fn observers(&self) -> Observers {
        self.observers.clone()
    }

    /// Adds a source of figures, if figures are shown.
    pub(crate) fn add(&self, source: Arc<dyn Source>) {
        if let Some(metrics) = &self.observers.metrics {
            metrics.add(source);
        }
    }

    /// Shows channels.
    pub(crate) fn watch_push(&mut self, hub: &Hub) {
        self.add(Arc::new(hub.clone()));
        self.push = Some(hub.clone());
    }

    /// Shows the bus to other servers.
    pub(crate) fn watch_bus(&mut self, relay: &Arc<Relay>) {
        self.add(relay.clone());
        self.bus = Some(relay.clone());
    }

    /// Shows the upstreams. Returns the counters for workers; `None` if metrics are disabled.
    pub(crate) fn watch_upstreams(&mut self, live: Live) -> Option<Figures> {
        let metrics = self.observers.metrics.as_ref()?;
        let figures = Figures::default();
        let upstreams = Arc::new(Upstreams::new(live, figures.clone()));
        metrics.add(upstreams.clone());
        self.upstreams = Some(upstreams);
        Some(figures)
    }

    /// Starts the admin listener of a running server. Returns its addresses.
    pub(crate) fn start(
        &mut self,
        server: &Server,
        live: &Live,
        version: &str,
    ) -> Result<Vec<Address>, Failure> {
        let (Some(bound), Some(metrics)) = (self.admin.take(), &self.observers.metrics) else {
            return Ok(Vec::new());
        };
        let thread_name = flatout_engine::Plan::default().thread_name;
        metrics.add(Arc::new(ServerSource::new(server.handle(), thread_name)));
        let live = live.clone();
        let admin = bound.start(admin::View {
            sites: Some(Arc::new(move || sites(&live))),
            metrics: metrics.clone(),
            handle: server.handle(),
            thread_name: thread_name.to_owned(),
            version: version.to_owned(),
            upstreams: self.upstreams.clone().map(|upstreams| upstreams as Arc<dyn admin::UpstreamSource>),
            push: self.push.clone(),
            bus: self.bus.clone(),
        });
        let admin = admin.map_err(failure)?;
        let addresses = admin.addresses().to_vec();
        self.serving = Some(admin);
        Ok(addresses)
    }

    /// A handle of the running admin listener.
    pub(crate) fn admin(&self) -> Option<Handle> {
        self.serving.as_ref().map(Admin::handle)
    }

    /// Writes the rest of the logs when the server has ended.
    pub(crate) fn close(self) {
        self.observers.logs.iter().for_each(Log::close);
        if let Some(admin) = self.serving {
            admin.close();
        }
    }
}

fn failure(error: Error) -> Failure {
    match error {
        error @ (Error::Plan(_) | Error::Listen(..)) => error.into(),
        error => Failure::Run(format!("the admin listener: {error}")),
    }
}
