//! Serves what the objects demand, and follows their changes.
//!
//! ```text
//! Store ── changed ──> translate ── files, plan ──> reload        (routes, listeners, certificates)
//!                                └─ servers ──────> set_servers   (endpoints: no reload, no connection is touched)
//!                                └─ statuses ─────> whoever writes them
//! ```
//!
//! Whatever fails, the server keeps the last plan that worked, and the next change tries again.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use flatout_engine::{Address, Severity, report, say};
use flatout_proxy::Server;
use flatout_server::{Checked, Failure, Invalid, Operator, Plan, Source, Started, start};
use flatout_tls::Awaited;

use crate::condition::StatusUpdate;
use crate::store::Store;
use crate::translate::{Files, Settings, Translation, translate};

/// Changes that arrive within this time are applied together.
const GATHER_TIME: Duration = Duration::from_millis(5);

/// How often addresses that the machine refused, and changes that failed, are tried again.
const RETRY_TIME: Duration = Duration::from_secs(10);

/// Addresses that may be refused at the start before it is given up.
const REFUSED_MAX: usize = 64;

/// The part of a plan that does not come from objects: workers, limits, logs, the admin listener.
pub type BasePlan = Box<dyn Fn() -> Plan + Send + Sync>;

/// Gets the statuses of all objects after each change.
pub type StatusWriter = Box<dyn FnMut(&[StatusUpdate]) + Send>;

/// Starts a server for the objects of a store, which follows their changes on a thread of its own.
///
/// # Errors
/// The base is wrong, or the machine refuses.
pub fn serve(
    store: Arc<Store>,
    mut settings: Settings,
    base: BasePlan,
    mut write: StatusWriter,
    version: &str,
) -> Result<Started, Failure> {
    let base = Arc::new(base);
    let (mut translation, mut seen) = store.read(|objects| translate(objects, &settings));
    let (latest, started) = loop {
        settings.assigned.clone_from(&translation.assigned);
        write_files(&translation.files, &settings.folder)
            .map_err(|error| Failure::Run(format!("certificates: {}: {error}", settings.folder.display())))?;
        let latest = Latest(Arc::new(Mutex::new(Arc::new(translation))));
        let source =
            PlanSource { base: base.clone(), latest: latest.clone(), folder: settings.folder.clone() };
        match start(Box::new(source), version) {
            Ok(started) => break (latest, started),
            Err(Failure::Listen(why, Address::Tcp(at), kind)) => {
                if settings.health == Some(at) || settings.refused.len() >= REFUSED_MAX {
                    return Err(Failure::Listen(why, Address::Tcp(at), kind));
                }
                refuse(&mut settings, at, &why);
            }
            Err(failure) => return Err(failure),
        }
        (translation, seen) = store.read(|objects| translate(objects, &settings));
    };
    write(&latest.read().statuses);
    let operator = started.operator();
    let mut follower = Follower {
        shape: shape(&latest.read()),
        servers: servers(&latest.read()),
        has_failed: false,
        latest,
        settings,
        operator,
        write,
    };
    let follow = move || loop {
        follower.wait(&store, seen);
        seen = follower.follow(&store);
    };
    let spawned = thread::Builder::new().name("flatout-control".to_owned()).spawn(follow);
    spawned.map_err(|error| Failure::Run(format!("cannot start the thread of the controller: {error}")))?;
    Ok(started)
}

/// The last translation that works, for the server's source.
#[derive(Clone)]
struct Latest(Arc<Mutex<Arc<Translation>>>);

impl Latest {
    fn read(&self) -> Arc<Translation> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn replace(&self, translation: Arc<Translation>) -> Arc<Translation> {
        std::mem::replace(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), translation)
    }
}

/// Makes plans of translations.
struct PlanSource {
    base: Arc<BasePlan>,
    latest: Latest,
    folder: std::path::PathBuf,
}

impl Source for PlanSource {
    fn checked(&self) -> Result<Checked, String> {
        let Translation { sites, site_listen, site_secure, .. } = &*self.latest.read();
        let mut plan = (self.base)();
        plan.sites = sites.clone();
        plan.site_listen = site_listen.clone();
        plan.site_secure = site_secure.clone();
        // Certificates may come later, and TLS must be ready for them. No client ever gets this one.
        plan.secure.awaited = vec![Awaited { path: self.folder.join("none.pem"), names: Vec::new() }];
        plan.check().map_err(|invalid| match invalid {
            Invalid::Sites(fault) => fault.to_string(),
            Invalid::Value(why) | Invalid::Address(_, why) | Invalid::Admin(why) => why,
            _ => "the plan of the controller is invalid".to_owned(),
        })
    }

    fn name(&self) -> Option<String> {
        Some("the objects".to_owned())
    }

    fn owns_servers(&self) -> bool {
        true
    }
}

/// Applies changes of objects to a running server.
struct Follower {
    latest: Latest,
    settings: Settings,
    operator: Operator,
    write: StatusWriter,
    /// What is served, apart from servers.
    shape: u64,
    /// The servers of each upstream.
    servers: BTreeMap<String, Vec<Server>>,
    /// The last change could not be applied.
    has_failed: bool,
}

impl Follower {
    /// Waits for the next change, or until it is time to try again.
    fn wait(&mut self, store: &Store, seen: u64) {
        loop {
            if store.wait(seen, RETRY_TIME) {
                return thread::sleep(GATHER_TIME);
            }
            if self.has_failed || !self.settings.refused.is_empty() {
                self.settings.refused.clear();
                return;
            }
        }
    }

    /// Applies the current objects. Returns how often they had changed.
    fn follow(&mut self, store: &Store) -> u64 {
        loop {
            let (translation, seen) = store.read(|objects| translate(objects, &self.settings));
            self.settings.assigned.clone_from(&translation.assigned);
            match self.apply(Arc::new(translation)) {
                Ok(()) => self.has_failed = false,
                Err(Failure::Listen(why, Address::Tcp(at), _))
                    if self.settings.refused.len() < REFUSED_MAX =>
                {
                    refuse(&mut self.settings, at, &why);
                    continue;
                }
                Err(failure) => {
                    self.has_failed = true;
                    report(
                        Severity::Error,
                        format_args!("objects have changed, but the last plan stays in use: {failure}"),
                    );
                }
            }
            return seen;
        }
    }

    fn apply(&mut self, translation: Arc<Translation>) -> Result<(), Failure> {
        let (shape, servers) = (shape(&translation), servers(&translation));
        let is_reload = shape != self.shape;
        if is_reload {
            write_files(&translation.files, &self.settings.folder)
                .map_err(|error| Failure::Run(format!("certificates: {error}")))?;
            let former = self.latest.replace(translation.clone());
            match self.operator.reload() {
                Ok(message) => say(format_args!("{message}")),
                Err(failure) => {
                    self.latest.replace(former);
                    return Err(failure);
                }
            }
            remove_others(&translation.files, &former.files);
        } else {
            self.latest.replace(translation.clone());
        }
        self.shape = shape;
        for (upstream, wanted) in &servers {
            // A reload keeps servers that were changed since the last one.
            if is_reload || self.servers.get(upstream) != Some(wanted) {
                let changes = self.operator.set_servers(upstream, wanted).map_err(Failure::Run)?;
                if !is_reload && !changes.is_empty() {
                    say(format_args!("upstream {upstream}: {changes}"));
                }
            }
        }
        self.servers = servers;
        (self.write)(&translation.statuses);
        Ok(())
    }
}

/// Leaves out an address for now.
fn refuse(settings: &mut Settings, at: SocketAddr, why: &str) {
    report(Severity::Error, format_args!("listeners at {at} are not served for now: {why}"));
    settings.refused.insert(at);
}

/// Everything that only a reload changes.
fn shape(translation: &Translation) -> u64 {
    let mut sites = translation.sites.clone();
    sites.upstreams.iter_mut().for_each(|upstream| upstream.servers.clear());
    let mut hasher = DefaultHasher::new();
    format!("{:?}", (sites, &translation.site_listen, &translation.site_secure)).hash(&mut hasher);
    hasher.finish()
}

fn servers(translation: &Translation) -> BTreeMap<String, Vec<Server>> {
    translation.sites.upstreams.iter().map(|it| (it.name.clone(), it.servers.clone())).collect()
}

/// Writes certificates and keys that are not there, for this user only.
fn write_files(files: &Files, folder: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    for (path, content) in files.iter() {
        if fs::read(path).is_ok_and(|known| known == content) {
            continue;
        }
        let fresh = path.with_extension("new");
        let _ = fs::remove_file(&fresh);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
        file.write_all(content)?;
        fs::rename(&fresh, path)?;
    }
    Ok(())
}

/// Removes certificates that neither plan has.
fn remove_others(current: &Files, former: &Files) {
    let used: BTreeSet<&Path> = current.iter().map(|(path, _)| path).collect();
    for (path, _) in former.iter().filter(|(path, _)| !used.contains(path)) {
        // Nobody reads it any more; one that stays is no harm.
        let _ = fs::remove_file(path);
    }
}
