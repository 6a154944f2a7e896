//! Starts a server from a plan, in stages.
//!
//! ```text
//! Checked ── bind: addresses, certificates, the user ──> Bound ── open: folders, upstreams, logs ──> Open
//!         ── join: the bus, the process it replaces ──> Joined ── start: workers, admin listener ──> Started ── run
//! ```
//!
//! Everything before `open` has the rights of the starting user, everything after it those of the serving user.

use std::io::{self, ErrorKind};
use std::rc::Rc;
use std::sync::Arc;

use flatout_cache::Cache;
use flatout_engine::{Address, Handle, Server};
use flatout_observe::metrics::{self, TlsSource};
use flatout_observe::observed;
use flatout_proxy::{Figures, Proxy, Watch};
use flatout_push::Hub;
use flatout_site::{self as site, Sites};

use crate::addresses::Numbers;
use crate::bus::{BusRuntime, Closing};
use crate::certificates::Secure;
use crate::changes::Parts;
use crate::control::{Control, Running};
use crate::live::{Live, Opened};
use crate::log_files;
use crate::observe::{self, Observing};
use crate::plan::{Checked, NumberedSites, Plan, Source};
use crate::secure::{Before, HttpChallenges, SecurePort};
use crate::upgrade::{ListenerOwner, Predecessor, Successor};
use crate::worker::{Site, WorkerService};
use crate::{Failure, Operator, prerender, signals, upstream_state};

/// Starts a server, which this process serves until a signal ends it. `version` is that of the program, for the live page.
///
/// # Errors
/// The plan is wrong, or the machine refuses. The process that this one was to replace continues.
pub fn start(source: Box<dyn Source>, version: &str) -> Result<Started, Failure> {
    let mut successor = Successor::from_environment().map_err(Failure::Run)?;
    let started = start_as(source, version, &mut successor);
    if let (Err(failure), Some(successor)) = (&started, successor) {
        successor.refuse(&failure.to_string());
    }
    started
}

/// The same. A successor takes the listeners of the process it replaces, and its subscribers once it serves.
fn start_as(
    source: Box<dyn Source>,
    version: &str,
    successor: &mut Option<Successor>,
) -> Result<Started, Failure> {
    let checked = source.checked().map_err(Failure::Usage)?;
    checked.plan().messages.apply();
    let bound = Bound::bind(source, checked, successor)?;
    let joined = bound.open()?.join(successor)?;
    joined.start(successor.take(), version)
}

/// Its addresses are bound, and the process has switched to the serving user.
struct Bound {
    checked: Checked,
    control: Arc<Control>,
    numbers: Numbers,
    secure: Option<Secure>,
    observing: observe::BoundObserver,
    server: flatout_engine::Bound,
}

/// A server that serves now, for a message to whoever started it.
pub struct Welcome<'s> {
    /// Its plan.
    pub plan: &'s Plan,
    /// Its sites, with their folders.
    pub sites: &'s Sites,
    /// How many workers it has.
    pub workers_count: usize,
    /// Where it listens, with the ports that the system has chosen.
    pub addresses: &'s [Address],
    /// The same as URLs.
    pub urls: &'s [String],
    /// Where its admin listener listens.
    pub admin: &'s [Address],
}

/// What it serves is open.
struct Open {
    checked: Checked,
    control: Arc<Control>,
    secure: Option<Secure>,
    challenges: Option<HttpChallenges>,
    observing: Observing,
    /// Counters of upstreams, if metrics are on.
    figures: Option<Figures>,
    server: flatout_engine::Bound,
    hub: Hub,
    live: Live,
}

/// It gets the messages of other servers, and has those of the process it replaces.
struct Joined {
    open: Open,
    sharing: Option<BusRuntime>,
    /// Announces the end to other servers, also if this server does not start.
    closing: Option<Closing>,
}

/// It serves.
pub struct Started {
    checked: Checked,
    control: Arc<Control>,
    observing: Observing,
    admin: Vec<Address>,
    server: Server,
    live: Live,
    closing: Option<Closing>,
}

impl Bound {
    fn bind(
        source: Box<dyn Source>,
        mut checked: Checked,
        successor: &mut Option<Successor>,
    ) -> Result<Bound, Failure> {
        check_folders(&checked)?;
        let is_one_folder = checked.is_one_folder();
        let numbers = Numbers::of(match is_one_folder {
            true => observed::Sites::single(EVERY_HOST),
            false => observed::Sites::default(),
        });
        checked.number(&numbers)?;
        prerender::prepare(&checked)?;
        // As the starting user, who may read keys that the serving user may not.
        let secure = Secure::open(checked.plan())?;
        if let Some(secure) = &secure {
            checked.set_tls_rules(|profile| secure.acceptor.rules(profile));
        }
        let own_metrics = source.metrics();
        let control = Control::new(source, numbers.clone());
        let acceptor = secure.as_ref().map(|secure| &secure.acceptor);
        let plan = checked.plan();
        // Files that requests name do not exist yet.
        let logs = plan.logs.iter().filter(|log| !log.has_variable_name());
        log_files::give(logs.map(|log| log.path.as_path()), plan.server.user.as_deref());
        let observing = observe::Options {
            logs: plan.logs.clone(),
            admin: plan.admin.clone(),
            admin_public: plan.admin_public,
            actions: control.actions(),
            sources: acceptor
                .cloned()
                .into_iter()
                .map(|it| Arc::new(TlsSource(it)) as Arc<dyn metrics::Source>)
                .chain(own_metrics)
                .collect(),
        };
        let mut inherited =
            |whose| successor.as_mut().map(|successor| successor.listeners(whose)).unwrap_or_default();
        let observing = observing.bind(inherited(ListenerOwner::Admin))?;
        let listening = checked.listening(acceptor);
        let server = flatout_engine::bind_inherited(listening, inherited(ListenerOwner::Server))
            .map_err(Failure::from)?;
        // Before anything is served: a signal that arrives now drains what was accepted.
        let server = server.catch_signals().map_err(Failure::from)?;
        Ok(Bound { checked, control, numbers, secure, observing, server })
    }

    /// Opens what it serves, as the serving user: files that this user may not read are not served.
    fn open(self) -> Result<Open, Failure> {
        let Bound { checked, control, numbers, secure, observing, server } = self;
        let challenges = secure.as_ref().map(|secure| secure.begin(checked.plan())).transpose()?.flatten();
        let hub = Hub::new(checked.plan().push);
        let opened = open(&checked, &hub, None)?;
        let opened = Opened { prerender: prerender::open(&checked, None)?, ..opened };
        take_effect(&opened, &checked);
        let live = Live::new(opened);
        control.follow_signals()?;
        let mut observing = observing.open(numbers.sites)?;
        let (logs, reopening) = (observing.observers().logs, control.clone());
        signals::on(signals::SIGUSR1, move || {
            logs.iter().for_each(flatout_observe::log::Log::reopen);
            reopening.reopened_by_signal();
        })?;
        // Without rules, the site layer is skipped.
        let figures = (!checked.is_one_folder()).then(|| observing.watch_upstreams(live.clone())).flatten();
        observing.add(Arc::new(live.clone()));
        Ok(Open { checked, control, secure, challenges, observing, figures, server, hub, live })
    }
}

impl Open {
    fn has_push(&self) -> bool {
        self.live.opened().sites.has_push()
    }

    /// Joins the bus, and takes over the channels of the process to be replaced.
    fn join(self, successor: &mut Option<Successor>) -> Result<Joined, Failure> {
        let (has_push, bus) = (self.has_push(), self.checked.plan().bus.clone());
        if has_push && bus.is_some() {
            self.hub.expect_workers();
            if let Some(successor) = successor.as_ref() {
                successor.await_channels(&self.hub);
            }
        }
        // Wait, so that the first subscribers find the history, and so that messages which the old process no longer
        // accepts are not lost.
        let waits = successor.is_some() || bus.as_ref().is_some_and(|bus| bus.history.is_some());
        let sharing = bus.map(|bus| BusRuntime::begin(bus, &self.hub, &self.live)).transpose()?;
        let closing = sharing.clone().map(Closing);
        let mut joined = Joined { open: self, sharing, closing };
        if let Some(sharing) = &joined.sharing {
            joined.open.observing.watch_bus(&sharing.relay);
            if waits {
                sharing.wait_joined();
            }
        }
        if let Some(successor) = successor {
            let relay = joined.sharing.as_ref().map(|sharing| &*sharing.relay);
            successor.take_channels(&joined.open.hub, relay, has_push).map_err(Failure::Run)?;
            let proxy = &joined.open.live.opened().proxy;
            let owns_servers = joined.open.control.owns_servers();
            upstream_state::take_over(proxy, &successor.changed_upstreams(), owns_servers);
        }
        Ok(joined)
    }

    /// What each worker runs.
    fn make(
        &self,
        before: Before,
    ) -> impl Fn(flatout_engine::Worker) -> Box<dyn flatout_engine::Service> + Send + Sync + 'static {
        let (live, observers, figures) =
            (self.live.clone(), self.observing.observers(), self.figures.clone());
        let is_one_folder = self.checked.is_one_folder();
        let folder = is_one_folder.then(|| live.opened().sites.folders().first().cloned()).flatten();
        move |worker| {
            let (notes, observer) = observers.worker();
            let site = match &folder {
                Some(folder) => Site::Folder(folder.service()),
                None => Site::Sites(live.worker(&worker, Watch::new(&notes, figures.clone()))),
            };
            let before = before.is_needed().then(|| before.clone());
            Box::new(WorkerService { observer: observer.map(Rc::new), before, site })
        }
    }
}

impl Joined {
    /// Starts the workers and the admin listener, and takes the subscribers of the process to be replaced.
    fn start(self, successor: Option<Successor>, version: &str) -> Result<Started, Failure> {
        let Joined { open, sharing, closing } = self;
        let plan = open.checked.plan();
        let secure_port = SecurePort::new(open.server.secure_port());
        let before = Before {
            redirect: plan.https_redirect.then(|| secure_port.clone()),
            sites: Some(open.live.clone()),
            challenges: open.challenges.clone(),
            early_data: plan.secure.early_data,
        };
        let (make, has_push) = (open.make(before), open.has_push());
        let Open { checked, control, secure, mut observing, figures, server, hub, live, .. } = open;
        let server = server.start(make).map_err(Failure::from)?;
        if let Some(secure) = &secure {
            let following = secure.clone().follow();
            following.map_err(|error| Failure::Run(format!("cannot start the TLS thread: {error}")))?;
        }
        if has_push {
            observing.watch_push(&hub);
        }
        let (restart, handle) = (checked.plan().restart.clone(), server.handle());
        let relay = sharing.as_ref().map(|sharing| sharing.relay.clone());
        let parts = Parts::of(checked.plan());
        control.set(Running {
            restart,
            parts,
            numbered: NumberedSites::default(),
            secure,
            secure_port,
            live: live.clone(),
            handle,
            sharing,
            figures,
        });
        let admin = observing.start(&server, &live, version)?;
        let former = Predecessor {
            server: server.handle(),
            admin: observing.admin(),
            hub: hub.clone(),
            relay,
            live: live.clone(),
        };
        match successor {
            None => control.begin(former),
            Some(successor) => {
                let begun = control.clone();
                let workers = server.workers_count();
                let followed =
                    successor.take_subscribers((hub, live.clone()), workers, move || begun.begin(former));
                followed
                    .map_err(|error| Failure::Run(format!("cannot start the upgrade thread: {error}")))?;
            }
        }
        Ok(Started { checked, control, observing, admin, server, live, closing })
    }
}

impl Started {
    /// Changes it while it runs.
    pub fn operator(&self) -> Operator {
        Operator::of(&self.control)
    }

    /// Serves until a signal ends it, or another process has taken over. Without `welcome`, a single line is written to
    /// stderr, which programs wait for.
    ///
    /// # Errors
    /// A worker failed.
    pub fn run(self, welcome: Option<&dyn Fn(&Welcome<'_>)>) -> Result<(), Failure> {
        let Started { checked, control, observing, admin, server, live, closing } = self;
        let workers_count = server.workers_count();
        let ended = match welcome {
            Some(welcome) => {
                let urls = server.urls().to_vec();
                server.run_announced(|addresses| {
                    let (plan, opened) = (checked.plan(), live.opened());
                    let sites = &opened.sites;
                    welcome(&Welcome { plan, sites, workers_count, addresses, urls: &urls, admin: &admin });
                })
            }
            None => server.run(),
        };
        if control.end() {
            // Otherwise they are cut: a live page never ends.
            observing.admin().iter().for_each(Handle::drain);
        }
        drop(closing);
        observing.close();
        prerender::end(live.opened().prerender.as_ref());
        ended.map_err(Failure::from)
    }
}

/// The name in metrics of the site for all hosts.
const EVERY_HOST: &str = "*";

/// Opens what a plan serves, apart from the renderer. Keeps from the former one what both have: folders, counters, upstreams with their
/// state, and stored responses. Nothing changes for the former one.
pub(crate) fn open(checked: &Checked, hub: &Hub, former: Option<&Opened>) -> Result<Opened, Failure> {
    let (sites, user) = (&checked.plan().sites, checked.plan().server.user.as_deref());
    let opened = site::open_after(sites, former.map(|former| &former.sites));
    let opened = opened.map_err(|error| match error {
        site::Error::Fault(fault) => Failure::Usage(fault.to_string()),
        site::Error::Folder(at, error) => {
            let root = sites.folders.get(at).map(|folder| folder.root.display().to_string());
            cannot_read(&root.unwrap_or_default(), user, &error)
        }
        error => Failure::Run(error.to_string()),
    })?;
    let known = former.map(|it| &it.proxy).filter(|it| sites.keeps_unchanged && it.is_of(&sites.upstreams));
    let proxy = match known {
        Some(known) => known.clone(),
        None => Proxy::open_after(sites.upstreams.clone(), &sites.resolver, former.map(|it| &it.proxy))
            .map_err(|error| Failure::Run(format!("upstreams: {error}")))?,
    };
    if former.is_none() {
        upstream_state::restore(&proxy).map_err(Failure::Run)?;
    }
    let cache = checked.is_cached().then(|| match former.and_then(|former| former.cache.as_ref()) {
        Some(former) => Cache::open_after(sites.cache.clone(), former),
        None => Cache::open(sites.cache.clone()),
    });
    Ok(Opened { sites: opened, proxy, hub: hub.clone(), cache, prerender: None })
}

/// What was opened is served from now on.
pub(crate) fn take_effect(opened: &Opened, checked: &Checked) {
    opened.proxy.set_spool(checked.plan().sites.spool.clone());
    opened.proxy.take_effect();
}

/// Finds missing folders before anything is bound. Permissions are not checked yet: on a network file system root may
/// have fewer rights than the serving user.
fn check_folders(checked: &Checked) -> Result<(), Failure> {
    missing_folders(&checked.plan().sites).next().map_or(Ok(()), |(_, failure)| Err(failure))
}

/// The folders that do not exist, with their index and why a server does not start.
pub(crate) fn missing_folders(sites: &flatout_site::plan::Plan) -> impl Iterator<Item = (usize, Failure)> {
    sites.folders.iter().enumerate().filter_map(|(at, folder)| {
        let root = folder.root.display().to_string();
        match std::fs::metadata(&folder.root) {
            Ok(found) if !found.is_dir() => {
                Some((at, cannot_read(&root, None, &ErrorKind::NotADirectory.into())))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Some((at, cannot_read(&root, None, &error))),
            _ => None,
        }
    })
}

/// Why a folder cannot be served.
pub(crate) fn cannot_read(root: &str, user: Option<&str>, error: &io::Error) -> Failure {
    match (error.kind(), user) {
        (ErrorKind::NotFound | ErrorKind::NotADirectory, _) => {
            Failure::Usage(format!("`{root}` is not a folder: {error}; give the folder to serve"))
        }
        (_, Some(user)) => Failure::Run(format!("cannot read `{root}` as user `{user}`: {error}")),
        (_, None) => Failure::Run(format!("cannot read `{root}`: {error}")),
    }
}
