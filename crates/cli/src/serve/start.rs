//! Starts a server from plans, and replaces the plans while it runs.

use std::io::{self, ErrorKind, IsTerminal};
use std::sync::{Arc, Mutex, PoisonError};

use flatout_engine::tls::Acceptor;
use flatout_engine::{Address, Error, Handle, ProxyProtocol, say};
use flatout_report::text::several;
use flatout_serve::admin::Action;
use flatout_serve::cache::{Cache, Purge};
use flatout_serve::live::{Live, Opened};
use flatout_serve::metrics::{Source, TlsSource};
use flatout_serve::observed;
use flatout_serve::proxy::{Proxy, Resolver, Watch};
use flatout_serve::push::Hub;
use flatout_serve::secure::{Before, HttpChallenges, Secured};
use flatout_serve::site;
use flatout_serve::site::plan::{self, PathMatch, Route};
use flatout_serve::upgrade::{Former, Successor, Whose};

use super::certificates::{self, Issued};
use super::issue::Issue;
use super::issuing::Issuing;
use super::sharing::{self, Closing, Sharing};
use super::site::Built;
use super::source::Origin;
use super::upgrade::Upgrading;
use super::welcome::welcome;
use crate::{Failure, observe, signals};

/// Serves until a signal ends it.
pub(super) fn run(origin: Origin) -> Result<(), Failure> {
    let mut successor = Successor::from_environment().map_err(Failure::Run)?;
    let served = serve(origin, &mut successor);
    if let (Err(failure), Some(successor)) = (&served, successor) {
        successor.refuse(&failure.to_string());
    }
    served
}

/// The same. A successor takes the listeners of the process it replaces, and its subscribers once it serves.
fn serve(origin: Origin, successor: &mut Option<Successor>) -> Result<(), Failure> {
    let mut built = origin.read().map_err(Failure::Usage)?;
    built.complete().map_err(Failure::Usage)?;
    built.server.check().map_err(Failure::Usage)?;
    // As the starting user, who may read keys that the serving user may not.
    let acceptor = certificates::open(&built)?;
    built.server.tls.clone_from(&acceptor);
    // Find mistakes before anything is bound. Permissions are not checked yet: on a network file system root may have
    // fewer rights than the serving user.
    for folder in &built.sites.folders {
        let root = folder.root.display().to_string();
        match std::fs::metadata(&folder.root) {
            Ok(found) if !found.is_dir() => {
                return Err(cannot_read(&root, None, &ErrorKind::NotADirectory.into()));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(cannot_read(&root, None, &error));
            }
            _ => {}
        }
    }
    site::check(&built.sites).map_err(|fault| Failure::Usage(built.fault(&fault)))?;
    // Without rules, the site layer is skipped.
    let is_plain = is_plain(&built);
    let numbers = if is_plain { observed::Sites::single(EVERY_HOST) } else { observed::Sites::default() };
    number_sites(&mut built, &numbers);
    let fixed = fixed(&built);
    let user = built.server.user.clone();
    let reloading = Arc::new(Reloading {
        origin,
        fixed,
        numbers: numbers.clone(),
        running: Mutex::new(None),
        acceptor: acceptor.clone(),
        issued: Issued::default(),
    });
    let asked = reloading.clone();
    let reload = Action { path: "/reload", run: Arc::new(move |_| asked.reload()) };
    let asked = reloading.clone();
    let upgrading = Arc::new(Upgrading::new());
    let settled = upgrading.clone();
    let purge = Action {
        path: "/purge",
        run: Arc::new(move |what| {
            settled.check()?;
            asked.purge(what)
        }),
    };
    let asked = upgrading.clone();
    let upgrade = Action { path: "/upgrade", run: Arc::new(move |_| asked.upgrade()) };
    let observing = observe::Options {
        logs: built.logs.clone(),
        admin: built.admin.clone(),
        admin_public: built.admin_public,
        actions: vec![reload, purge, upgrade],
        sources: acceptor.clone().into_iter().map(|it| Arc::new(TlsSource(it)) as Arc<dyn Source>).collect(),
    };
    let mut inherited =
        |whose| successor.as_mut().map(|successor| successor.listeners(whose)).unwrap_or_default();
    let observing = observing.bind(inherited(Whose::Admin))?;
    let bound = flatout_engine::bind_inherited(built.server.clone(), inherited(Whose::Server));
    let bound = bound.map_err(failure)?;
    let challenges = match &acceptor {
        Some(acceptor) => begin_issuing(&built, acceptor, &reloading.issued)?,
        None => None,
    };
    // As the serving user: files that this user may not read are not served.
    let hub = Hub::new(built.push);
    let opened = open(&built, &hub, None).map_err(|error| not_opened(&built, user.as_deref(), error))?;
    let live = Live::new(opened);
    let asked = reloading.clone();
    signals::on(signals::SIGHUP, move || match asked.reload() {
        Ok(said) => say(format_args!("{said}")),
        Err(why) => say(format_args!("not reloaded, the old configuration stays in use: {why}")),
    })?;
    let asked = upgrading.clone();
    signals::on(signals::SIGUSR2, move || {
        if let Err(why) = asked.upgrade() {
            say(format_args!("not upgraded: {why}"));
        }
    })?;
    let mut observing = observing.open(numbers)?;
    let (served, observers) = (live.clone(), observing.observers());
    let figures = (!is_plain).then(|| observing.watch_upstreams(live.clone())).flatten();
    if let Some(metrics) = &observers.metrics {
        metrics.add(Arc::new(live.clone()));
    }
    let folder = is_plain.then(|| live.opened().sites.folders().first().cloned()).flatten();
    let before = Before {
        redirect: built.https_redirect.then(|| secure_port(&bound.addresses())),
        challenges,
        early_data: built.secure.early_data,
    };
    let make = move |worker| {
        observers.wrap(|notes| {
            let service = match &folder {
                Some(folder) => folder.service(),
                None => live.service(&worker, Watch::new(&notes, figures.clone())),
            };
            match before.is_needed() {
                true => Box::new(Secured::new(before.clone(), service)),
                false => service,
            }
        })
    };
    let has_push = served.opened().sites.has_push();
    if has_push && built.bus.is_some() {
        hub.expect_workers();
        if let Some(successor) = successor.as_ref() {
            successor.await_channels(&hub);
        }
    }
    let sharing = built.bus.clone().map(|plan| Sharing::begin(plan, &hub, &served)).transpose()?;
    let closing = sharing.clone().map(Closing);
    if let Some(sharing) = &sharing {
        observing.watch_bus(&sharing.relay);
        // Wait, so that the first subscribers find the history, and so that messages which the old process no
        // longer accepts are not lost.
        let keeps_messages = built.bus.as_ref().is_some_and(|bus| bus.history.is_some());
        if successor.is_some() || keeps_messages {
            sharing.wait_joined();
        }
    }
    if let Some(successor) = successor {
        successor.take_channels(&hub, has_push).map_err(Failure::Run)?;
    }
    let server = bound.start(make).map_err(failure)?;
    if let Some(acceptor) = acceptor {
        certificates::follow(acceptor, reloading.issued.clone())
            .map_err(|error| Failure::Run(format!("cannot start the TLS thread: {error}")))?;
    }
    if has_push {
        observing.watch_push(&hub);
    }
    let running = Running { live: served.clone(), handle: server.handle(), sharing: sharing.clone() };
    *reloading.running.lock().unwrap_or_else(PoisonError::into_inner) = Some(running);
    let admin = observing.start(&server)?;
    let workers = server.workers_count();
    let former =
        Former { server: server.handle(), admin: observing.admin(), hub: hub.clone(), live: served.clone() };
    match successor.take() {
        None => upgrading.set(former),
        Some(successor) => {
            let followed =
                successor.take_subscribers((hub, served.clone()), workers, move || upgrading.set(former));
            followed.map_err(|error| Failure::Run(format!("cannot start the upgrade thread: {error}")))?;
        }
    }
    let ended = match std::io::stderr().is_terminal() {
        true => {
            let urls = server.urls().to_vec();
            server.run_announced(|addresses| {
                welcome(&built, &served.opened().sites, workers, (addresses, &urls), &admin);
            })
        }
        // A single line, which programs wait for.
        false => server.run(),
    };
    drop(closing);
    observing.close();
    ended.map_err(failure)
}

/// Starts getting certificates if there is a state folder. Returns the responses to CAs, even without a domain: a
/// reload may add one.
fn begin_issuing(
    built: &Built,
    acceptor: &Acceptor,
    issued: &Issued,
) -> Result<Option<HttpChallenges>, Failure> {
    let challenges = HttpChallenges::default();
    let issuing = Issuing::begin(built, acceptor, &challenges)?;
    let is_there = issuing.is_some();
    *issued.lock().unwrap_or_else(PoisonError::into_inner) = issuing;
    Ok(is_there.then_some(challenges))
}

/// The port of the first TLS address.
fn secure_port(addresses: &[Address]) -> u16 {
    match addresses.first() {
        Some(Address::Tcp(address)) => address.port(),
        _ => 443,
    }
}

/// Whether flags ask for one folder and nothing else.
fn is_plain(built: &Built) -> bool {
    let [site] = &built.sites.sites[..] else { return false };
    let [route] = &site.routes[..] else { return false };
    let usual = Route::new(PathMatch::prefix("/"), plan::Action::Files(0));
    let is_direct = built.server.proxy_protocol == ProxyProtocol::Nowhere;
    built.is_of_flags && is_direct && site.rewrites.is_empty() && format!("{route:?}") == format!("{usual:?}")
}

/// The name in metrics of the site for all hosts.
const EVERY_HOST: &str = "*";

/// Gives each site and each log of a site its number, which belongs to the site's name.
fn number_sites(built: &mut Built, numbers: &observed::Sites) {
    for site in &mut built.sites.sites {
        site.number = numbers.number(&site.name);
    }
    for log in &mut built.logs {
        let site = log.site.and_then(|site| built.sites.sites.get(usize::from(site)));
        log.site = site.map(|site| site.number);
    }
}

/// Opens a plan. Keeps from the former one what both have: folders, counters, upstreams with their state, and stored
/// responses.
fn open(built: &Built, hub: &Hub, former: Option<&Opened>) -> Result<Opened, NotOpened> {
    let sites =
        site::open_after(&built.sites, former.map(|former| &former.sites)).map_err(NotOpened::Site)?;
    let upstreams = built.sites.upstreams.clone();
    let proxy = Proxy::open_after(upstreams, &Resolver::System, former.map(|former| &former.proxy));
    let proxy = proxy.map_err(NotOpened::Proxy)?;
    let cache = is_cached(built).then(|| match former.and_then(|former| former.cache.as_ref()) {
        Some(former) => Cache::open_after(built.sites.cache.clone(), former),
        None => Cache::open(built.sites.cache.clone()),
    });
    Ok(Opened { sites, proxy, hub: hub.clone(), cache })
}

/// Whether any route caches responses.
fn is_cached(built: &Built) -> bool {
    built.sites.sites.iter().flat_map(|site| &site.routes).any(|route| route.rules.cache.is_some())
}

enum NotOpened {
    Site(site::Error),
    Proxy(io::Error),
}

/// Everything needed to reload.
struct Reloading {
    origin: Origin,
    /// Settings of the process.
    fixed: Vec<(&'static str, String)>,
    /// The numbers of all sites so far.
    numbers: observed::Sites,
    /// TLS, if it was in use at the start.
    acceptor: Option<Acceptor>,
    /// The automatic certificates.
    issued: Issued,
    /// `None` before the start. Reloads take turns.
    running: Mutex<Option<Running>>,
}

/// A running server, and its configuration.
struct Running {
    live: Live,
    handle: Handle,
    sharing: Option<Sharing>,
}

impl Reloading {
    /// Removes stored responses. Returns how many, or why it failed.
    fn purge(&self, what: &[u8]) -> Result<String, String> {
        let purge = Purge::from_text(&String::from_utf8_lossy(what)).map_err(|bad| bad.to_string())?;
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let cache = running.as_ref().and_then(|running| running.live.opened().cache.clone());
        let sharing = running.as_ref().and_then(|running| running.sharing.clone());
        drop(running);
        if let Some(sharing) = sharing {
            return Ok(sharing.purge(&purge));
        }
        let Some(cache) = cache else { return Err("this server has no cache (--cache)".to_owned()) };
        Ok(sharing::said(&purge, cache.purge(&purge)))
    }

    /// Reads the site file again and applies it. Returns what happened, or why the old plan stays.
    fn reload(&self) -> Result<String, String> {
        let Some(file) = &self.origin.file else {
            return Err("there is no site file; the server was started with flags".to_owned());
        };
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Running { live, handle, .. }) = &*running else {
            return Err("the server has not started yet".to_owned());
        };
        let mut built = self.origin.read()?;
        built.complete()?;
        number_sites(&mut built, &self.numbers);
        built.server.check()?;
        self.check_fixed(&built)?;
        let former = live.opened();
        let opened = open(&built, &former.hub, Some(&former));
        let opened = opened.map_err(|error| not_opened(&built, None, error).to_string())?;
        let change = handle.prepare(built.server.clone()).map_err(|error| error.to_string())?;
        self.replace_certificates(&built)?;
        // In this order, so that a new listener never serves the old plan.
        live.replace(opened);
        let changed = change.commit();
        let routes: usize = built.sites.sites.iter().map(|site| site.routes.len()).sum();
        let (sites, upstreams) = (built.sites.sites.len(), built.sites.upstreams.len());
        let counted =
            [several(sites, "site"), several(routes, "route"), several(upstreams, "upstream")].join(", ");
        let listed = |what: &str, addresses: Vec<Address>| match addresses.is_empty() {
            true => String::new(),
            false => {
                let names: Vec<String> = addresses.iter().map(Address::to_string).collect();
                format!("; {what} {}", names.join(" "))
            }
        };
        let added = listed("now listening on", changed.added);
        let removed = listed("no longer listening on", changed.removed);
        Ok(format!("reloaded {}: {counted}{added}{removed}", file.display()))
    }

    /// Replaces the certificates, and gets those that the new plan asks for.
    fn replace_certificates(&self, built: &Built) -> Result<(), String> {
        let Some(acceptor) = self.acceptor.as_ref().filter(|_| built.is_secure()) else { return Ok(()) };
        let mut issued = self.issued.lock().unwrap_or_else(PoisonError::into_inner);
        if issued.is_none() && built.issue.is_any() {
            return Err("the first `domain` or `tls local` needs a restart".to_owned());
        }
        acceptor.replace(built.secure.clone())?;
        issued.as_mut().map_or(Ok(()), |issuing| issuing.replace(built))
    }

    /// Checks that the process-wide settings are unchanged.
    fn check_fixed(&self, built: &Built) -> Result<(), String> {
        let now = fixed(built);
        let differs = self.fixed.iter().zip(&now).filter(|(was, is)| was != is);
        let names: Vec<String> = differs.map(|((name, _), _)| format!("`{name}`")).collect();
        match names.is_empty() {
            true => Ok(()),
            false => Err(format!("changes to {} need a restart", names.join(", "))),
        }
    }
}

/// The process-wide settings of a plan, by name: they cannot change after the start.
fn fixed(built: &Built) -> Vec<(&'static str, String)> {
    let (server, socket) = (&built.server, &built.server.socket);
    // Sites may be reordered.
    let mut logs: Vec<String> = built.logs.iter().map(|log| format!("{log:?}")).collect();
    logs.sort();
    vec![
        ("workers", format!("{:?}", server.workers)),
        ("user", format!("{:?}", server.user)),
        ("backlog", format!("{:?}", socket.backlog)),
        ("nodelay", format!("{:?}", socket.nodelay)),
        ("tcp-keepalive", format!("{:?}", socket.keepalive)),
        ("defer-accept", format!("{:?}", socket.defer_accept)),
        ("congestion", format!("{:?}", socket.congestion)),
        ("share-port", format!("{:?}", socket.share_port)),
        ("locality", format!("{:?}", socket.locality)),
        ("connections-per-address", format!("{:?}", server.limits.connections_per_address_max)),
        ("push-*", format!("{:?}", built.push)),
        ("bus", sharing::fingerprint(built.bus.as_ref())),
        ("access-log", logs.join(" ")),
        ("admin", format!("{:?}", built.admin)),
        ("tls", format!("{:?}", built.is_secure())),
        ("early-data", format!("{:?}", built.secure.early_data)),
        (
            "acme-*",
            format!("{:?}", Issue { domains: Vec::new(), local: false, state: None, ..built.issue.clone() }),
        ),
        ("state", format!("{:?}", built.issue.state)),
        ("https-redirect", format!("{:?}", built.https_redirect)),
        ("admin-public", format!("{:?}", built.admin_public)),
    ]
}

fn not_opened(built: &Built, user: Option<&str>, error: NotOpened) -> Failure {
    match error {
        NotOpened::Site(site::Error::Fault(fault)) => Failure::Usage(built.fault(&fault)),
        NotOpened::Site(site::Error::Folder(at, error)) => {
            let root = built.sites.folders.get(at).map(|folder| folder.root.display().to_string());
            cannot_read(&root.unwrap_or_default(), user, &error)
        }
        NotOpened::Site(error) => Failure::Run(error.to_string()),
        NotOpened::Proxy(error) => Failure::Run(format!("upstreams: {error}")),
    }
}

fn cannot_read(root: &str, user: Option<&str>, error: &io::Error) -> Failure {
    match (error.kind(), user) {
        (ErrorKind::NotFound | ErrorKind::NotADirectory, _) => {
            Failure::Usage(format!("`{root}` is not a folder: {error}; give the folder to serve"))
        }
        (_, Some(user)) => Failure::Run(format!("cannot read `{root}` as user `{user}`: {error}")),
        (_, None) => Failure::Run(format!("cannot read `{root}`: {error}")),
    }
}

fn failure(error: Error) -> Failure {
    match error {
        Error::Plan(message) => Failure::Usage(message),
        error => Failure::Run(error.to_string()),
    }
}
