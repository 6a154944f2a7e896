//! Sites: select the site, the route and the rules for a request.
#![forbid(unsafe_code)]
// The data path: data from a client, a file or a plan must not crash a worker.
#![warn(clippy::unwrap_used, clippy::expect_used)]

mod access;
mod basic;
mod charset;
mod choice;
mod client;
mod compiled;
mod concurrency;
mod cors;
mod cost;
mod crawlers;
mod expires;
pub mod explain;
mod facts;
mod fault;
mod fields;
mod finish;
mod guard;
mod handler;
mod hosts;
mod late;
mod limit_status;
mod listed;
mod maps;
mod page_request;
mod pages;
mod passwords;
mod pattern;
mod permits;
pub mod plan;
mod rate;
mod readings;
mod render;
mod replace;
mod replaced;
mod reroute;
mod resolve;
mod response_rate;
mod rewrite;
mod steps;
mod stub_status;
mod suspend;
mod table;
#[cfg(test)]
mod tests;
mod tls_route;
mod upstream_fields;
mod upstream_redirect;
mod values;
mod worker;

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use flatout_engine::{Begun, Lane, Service};

use flatout_files as files;
use flatout_observe::observed::Notes;
use flatout_push::{History, WorkerChannels};
use resolve::Arrival;

pub use crawlers::verified_crawlers;
pub use fault::{Fault, Place};
pub use flatout_expression::Regex;
pub use flatout_gateway::{
    AuthDecision, AuthQuery, Caching, Client, Edits, Finish, Forwarded, Forwarding, ResponseOrigin, Stored,
};
pub use listed::{ListedRoute, ListedSite};
pub use plan::Plan;
pub use table::ROUTES_MAX;
pub use tls_route::TlsDecision;
pub use worker::WorkerSites;

/// All sites of a server, opened. Clones share everything, including counters.
#[derive(Clone)]
pub struct Sites {
    compiled: Arc<compiled::Compiled>,
    copies: worker::Copies,
    folder_plans: Arc<[files::Plan]>,
    folders: Arc<[files::Site]>,
    passwords: Option<Arc<passwords::Passwords>>,
    listed: Arc<Vec<ListedSite>>,
}

/// Why sites cannot be opened.
#[derive(Debug)]
pub enum Error {
    /// The plan is invalid.
    Fault(Fault),
    /// The folder of this index cannot be opened.
    Folder(usize, io::Error),
    /// The threads that check passwords or follow map files cannot be started.
    Threads(io::Error),
}

/// Opens all sites of a plan: checks it, reads its pages and files of users, and starts to watch its folders.
///
/// # Errors
/// See [`Error`].
pub fn open(plan: &Plan) -> Result<Sites, Error> {
    open_after(plan, None)
}

/// Like `open`, replacing `former`: folders and limits that both have are kept with their state and counters.
///
/// # Errors
/// See [`Error`].
pub fn open_after(plan: &Plan, former: Option<&Sites>) -> Result<Sites, Error> {
    let compiled = compiled::Compiled::after(plan, former.map(|former| &*former.compiled));
    let compiled = compiled.map_err(Error::Fault)?;
    maps::watch(&compiled.tables).map_err(Error::Threads)?;
    // Remembered logins stay: they are those of lists of users, which may be the same as before.
    let known = former.and_then(|former| former.passwords.clone());
    let start = || known.map_or_else(|| passwords::Passwords::start().map(Arc::new), Ok);
    let passwords = compiled.has_passwords().then(start);
    let former_folders = former.map(Sites::folders_by_root).unwrap_or_default();
    let open = |(at, folder): (usize, &files::Plan)| {
        let here = former_folders.get(&*folder.root).into_iter().flatten();
        let known = here.copied().find(|(plan, _)| *plan == folder).map(|(_, opened)| opened.clone());
        known.map_or_else(|| files::Site::open(folder.clone()), Ok).map_err(|error| Error::Folder(at, error))
    };
    Ok(Sites {
        passwords: passwords.transpose().map_err(Error::Threads)?,
        folder_plans: plan.folders.as_slice().into(),
        folders: plan.folders.iter().enumerate().map(open).collect::<Result<_, Error>>()?,
        compiled: Arc::new(compiled),
        copies: worker::Copies::default(),
        listed: Arc::new(listed::listed(plan)),
    })
}

/// Finds sites by listener and host name, as a server with this plan does.
#[derive(Debug, Clone)]
pub struct Finder(hosts::Hosts);

impl Finder {
    /// # Errors
    /// A host name is invalid, or used by two sites at the same listener.
    pub fn new(plan: &Plan) -> Result<Finder, Fault> {
        hosts::Hosts::new(&plan.sites).map(Finder)
    }

    /// The index of the site of a host name at a listener.
    pub fn find(&self, listener: u16, host: &[u8]) -> Option<usize> {
        self.0.find(listener, host)
    }
}

/// Checks a plan, with its pages and files of users, but not its folders.
///
/// # Errors
/// The first error in the plan.
pub fn check(plan: &Plan) -> Result<(), Fault> {
    compiled::Compiled::new(plan).map(drop)
}

/// Checks the rules of CORS of one route.
///
/// # Errors
/// An origin or a name is invalid, or credentials are for every origin.
pub fn check_cors(cors: &plan::Cors) -> Result<(), String> {
    cors::CompiledCors::new(cors, Place::Plan).map(drop).map_err(|fault| fault.reason)
}

/// A plan that is right.
#[derive(Debug, Clone)]
pub struct RightPlan(Arc<compiled::Compiled>);

/// Checks what differs from a former plan, if the plan keeps what is unchanged ([`Plan::keeps_unchanged`]); otherwise all of it.
///
/// # Errors
/// The first error in the plan.
pub fn check_after(plan: &Plan, former: Option<&RightPlan>) -> Result<RightPlan, Fault> {
    let compiled = compiled::Compiled::after(plan, former.map(|former| &*former.0))?;
    Ok(RightPlan(Arc::new(compiled)))
}

impl Sites {
    /// The folders, by their indices in the plan.
    pub fn folders(&self) -> &[files::Site] {
        &self.folders
    }

    /// All sites and routes in a few words.
    pub fn listed(&self) -> &[ListedSite] {
        &self.listed
    }

    /// Whether there is a site for this authority at the listener.
    pub fn has_host(&self, listener: u16, authority: &[u8]) -> bool {
        self.compiled.hosts.find(listener, authority).is_some()
    }

    /// The client that logs show of a request, if it is not the peer of its connection.
    #[inline]
    pub fn named_client(&self, begun: &Begun<'_>) -> Option<SocketAddr> {
        match begun.head {
            Some(head) if self.compiled.names_clients => {
                let &Begun { listener, peer, tls, .. } = begun;
                self.compiled
                    .named_client(head, Arrival { listener, peer, announcer: None, is_tls: tls.is_some() })
            }
            _ => None,
        }
    }

    /// Whether a listener is for the requests of a renderer.
    pub fn is_renderer(&self, listener: u16) -> bool {
        self.compiled.sites.iter().any(|site| site.renderer == Some(listener))
    }

    /// The name of the site with a renderer that serves this authority.
    pub fn rendered_site(&self, authority: &[u8]) -> Option<&str> {
        let compiled = &self.compiled;
        let mut sites = compiled.sites.iter().enumerate();
        let found = sites.find(|(at, site)| {
            site.renderer.is_some_and(|listener| compiled.hosts.find(listener, authority) == Some(*at))
        });
        found.map(|(_, site)| site.name.as_str())
    }

    /// The names of all sites with a renderer.
    pub fn rendered_sites(&self) -> impl Iterator<Item = &str> {
        self.compiled.sites.iter().filter(|site| site.renderer.is_some()).map(|site| site.name.as_str())
    }

    /// Whether any route has channels.
    pub fn has_push(&self) -> bool {
        let has = |route: &compiled::CompiledRoute| matches!(route.action, compiled::CompiledAction::Push(_));
        self.compiled.sites.iter().any(|site| site.routes.iter().any(has))
    }

    /// The groups of all routes with channels, and the histories of the routes.
    pub fn push_groups(&self) -> impl Iterator<Item = (&str, History)> {
        let routes = self.compiled.sites.iter().flat_map(|site| &site.routes);
        routes.filter_map(|route| match &route.action {
            compiled::CompiledAction::Push(plan) => Some((plan.group.as_str(), plan.history)),
            _ => None,
        })
    }

    /// The largest limit of a message of all routes with channels.
    pub fn push_bytes_max(&self) -> Option<usize> {
        let of = |route: &compiled::CompiledRoute| match &route.action {
            compiled::CompiledAction::Push(plan) => Some(plan.message_bytes_max),
            _ => None,
        };
        self.compiled.sites.iter().flat_map(|site| site.routes.iter().filter_map(of)).max()
    }

    /// The folders with their settings.
    fn folders_by_root(&self) -> HashMap<&Path, Vec<(&files::Plan, &files::Site)>> {
        let mut folders: HashMap<&Path, Vec<_>> = HashMap::new();
        for (plan, opened) in self.folder_plans.iter().zip(&*self.folders) {
            folders.entry(&plan.root).or_default().push((plan, opened));
        }
        folders
    }

    /// Drops what a worker has served, without having it wait.
    pub fn free(self, worker_sites: Box<WorkerSites>) {
        let count = self.listed.len();
        compiled::free(count, (self, worker_sites));
    }

    /// One worker's service; made on its thread.
    pub fn service(&self, forwarding: Rc<dyn Forwarding>) -> Box<dyn Service> {
        self.service_with(forwarding, None, None, None)
    }

    /// Like `service`, with the worker's part of all channels, with its lane: the limits of its server for request bodies apply, and
    /// with its notes, in which rules for responses find the attempts at upstreams.
    pub fn service_with(
        &self,
        forwarding: Rc<dyn Forwarding>,
        worker_channels: Option<Rc<WorkerChannels>>,
        lane: Option<Lane>,
        notes: Option<&Rc<Notes>>,
    ) -> Box<dyn Service> {
        let worker_sites = self.worker_sites(&WorkerSites::default());
        self.service_of(&worker_sites, forwarding, worker_channels, lane, notes)
    }

    /// How many requests in progress count for a limit of requests at once.
    pub fn permits(&self) -> u64 {
        self.compiled.permits()
    }

    /// Makes what each worker will need, so that its requests do not wait for that. `former` are the sites that these replace.
    pub fn copy_for(&self, workers: usize, former: &Sites) {
        self.copies.make(workers, &self.compiled.sites, &former.compiled.sites);
    }

    /// A worker's sites, after those of the plan before.
    pub fn worker_sites(&self, former: &WorkerSites) -> WorkerSites {
        WorkerSites::after(&self.compiled.sites, former, &self.copies)
    }

    /// Like `service_with`, with the worker's own of these sites.
    pub fn service_of(
        &self,
        worker_sites: &WorkerSites,
        forwarding: Rc<dyn Forwarding>,
        worker_channels: Option<Rc<WorkerChannels>>,
        lane: Option<Lane>,
        notes: Option<&Rc<Notes>>,
    ) -> Box<dyn Service> {
        let folders = self.folders.iter().map(files::Site::part_of_site).collect();
        let sites = (&*self.compiled, worker_sites);
        let passwords = self.passwords.clone();
        let worker =
            worker::SiteWorker::new(sites, folders, passwords, forwarding, worker_channels, (lane, notes));
        Box::new(worker.service())
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Error::Fault(fault) => fault.fmt(f),
            Error::Folder(at, error) => write!(f, "folder {}: {error}", at + 1),
            Error::Threads(error) => {
                write!(f, "cannot start the threads that check passwords or follow map files: {error}")
            }
        }
    }
}

impl std::error::Error for Error {}

/// The cost of a new password's hash: about a tenth of a second.
const PASSWORD_COST: u32 = 11;

/// The longest password that bcrypt uses as a whole.
const PASSWORD_BYTES_MAX: usize = 72;

/// The salted bcrypt hash of a password, as `basic-auth` takes it.
///
/// # Errors
/// The password is empty, longer than 72 bytes, or contains a NUL; or the system has no random numbers.
pub fn hash_password(password: &str) -> Result<String, String> {
    if password.is_empty() || password.len() > PASSWORD_BYTES_MAX || password.contains('\0') {
        let bytes = password.len();
        return Err(format!(
            "the password has {bytes} bytes; allowed 1 to {PASSWORD_BYTES_MAX}, without NUL"
        ));
    }
    bcrypt::hash(password, PASSWORD_COST).map_err(|error| format!("the password cannot be hashed: {error}"))
}
