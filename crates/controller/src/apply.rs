//! A running server that follows translations.
//!
//! ```text
//! Translation ── files, plan ──> reload        (routes, listeners, certificates)
//!             └─ servers ──────> set_servers   (endpoints: no reload, no connection is touched)
//! ```
//!
//! Whatever fails, the server keeps the last plan that worked.

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use flatout_engine::{Severity, report, say};
use flatout_observe::metrics;
use flatout_proxy::{Server, Upstream};
use flatout_server::{Checked, Failure, Invalid, Operator, Plan, Source, Started, start};
use flatout_tls::Awaited;

use crate::data::ServersByUpstream;
use crate::translate::{Files, Translation};

/// The part of a plan that does not come from objects: workers, limits, logs, the admin listener.
pub type BasePlan = Box<dyn Fn() -> Plan + Send + Sync>;

/// What a server is started with, besides a translation.
pub(crate) struct Foundation {
    pub(crate) base: Arc<BasePlan>,
    /// The folder for certificates.
    pub(crate) folder: PathBuf,
    /// The version of the program, for the live page.
    pub(crate) version: String,
    /// What is read, for messages.
    pub(crate) name: &'static str,
    pub(crate) metrics: Vec<Arc<dyn metrics::Source>>,
}

/// Applies translations to a running server.
pub(crate) struct Served {
    latest: Latest,
    folder: PathBuf,
    operator: Operator,
    /// The servers of each upstream.
    servers: ServersByUpstream,
}

/// The last translation that works, for the server's source.
#[derive(Clone)]
struct Latest(Arc<Mutex<Arc<Translation>>>);

impl Latest {
    fn read(&self) -> Arc<Translation> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes the servers of an upstream. Without another reader, nothing is copied.
    fn set_servers(&self, upstream: &str, servers: &[Server]) {
        let mut latest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = latest.sites.upstreams.iter().position(|it| it.name == upstream);
        if let Some(at) = known {
            Arc::make_mut(&mut *latest).sites.upstreams[at].servers = servers.to_vec();
        }
    }

    fn replace(&self, translation: Arc<Translation>) -> Arc<Translation> {
        std::mem::replace(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), translation)
    }
}

/// Makes plans of translations.
struct PlanSource {
    base: Arc<BasePlan>,
    latest: Latest,
    folder: PathBuf,
    name: &'static str,
    metrics: Vec<Arc<dyn metrics::Source>>,
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
        plan.check_all_but_sites().map_err(|invalid| match invalid {
            Invalid::Value(why) | Invalid::Address(_, why) | Invalid::Admin(why) => why,
            _ => "the plan of the controller is invalid".to_owned(),
        })
    }

    fn name(&self) -> Option<String> {
        Some(self.name.to_owned())
    }

    fn owns_servers(&self) -> bool {
        true
    }

    fn metrics(&self) -> Vec<Arc<dyn metrics::Source>> {
        self.metrics.clone()
    }
}

impl Served {
    /// Starts a server with a translation.
    ///
    /// # Errors
    /// The translation or the base is wrong, or the machine refuses.
    pub(crate) fn start(
        foundation: &Foundation,
        translation: Arc<Translation>,
    ) -> Result<(Served, Started), Failure> {
        let folder = &foundation.folder;
        write_files(&translation.files, folder)
            .map_err(|error| Failure::Run(format!("certificates: {}: {error}", folder.display())))?;
        let latest = Latest(Arc::new(Mutex::new(translation)));
        let source = PlanSource {
            base: foundation.base.clone(),
            latest: latest.clone(),
            folder: folder.clone(),
            name: foundation.name,
            metrics: foundation.metrics.clone(),
        };
        let started = start(Box::new(source), &foundation.version)?;
        let served = Served {
            servers: servers(&latest.read()),
            folder: folder.clone(),
            operator: started.operator(),
            latest,
        };
        Ok((served, started))
    }

    /// The servers are perhaps others than those of the translation: a former process has handed over its own. The next translation
    /// sets all of them.
    pub(crate) fn forget_servers(&mut self) {
        self.servers.clear();
    }

    /// The translation that is served.
    pub(crate) fn translation(&self) -> Arc<Translation> {
        self.latest.read()
    }

    /// Changes the servers of some upstreams, by their indices in the translation.
    ///
    /// # Errors
    /// Another process is taking over.
    pub(crate) fn set_servers_at(&mut self, changes: Vec<(usize, Vec<Server>)>) -> Result<(), Failure> {
        let translation = self.latest.read();
        let name = |at: usize| translation.sites.upstreams.get(at).map(|it| it.name.clone());
        let named: Vec<_> =
            changes.into_iter().filter_map(|(at, wanted)| Some((name(at)?, wanted))).collect();
        drop(translation);
        named.iter().try_for_each(|(upstream, wanted)| self.set_servers(upstream, wanted, false))
    }

    /// Serves another translation: by a reload, if anything but servers differs.
    ///
    /// # Errors
    /// The one before is served on, because the other one is wrong, or the machine refuses.
    pub(crate) fn apply(&mut self, translation: Arc<Translation>) -> Result<(), Failure> {
        let served = self.latest.read();
        // Such upstreams stay as they are in a reload, and whatever it adds finds their servers.
        let has_upstreams = served.has_upstreams_of(&translation);
        let is_reload = !(has_upstreams && served.has_sites_of(&translation));
        drop(served);
        if has_upstreams {
            self.set_all_servers(&translation, false)?;
        }
        if !is_reload {
            self.latest.replace(translation);
            return Ok(());
        }
        write_files(&translation.files, &self.folder)
            .map_err(|error| Failure::Run(format!("certificates: {error}")))?;
        let former = self.latest.replace(translation.clone());
        match self.operator.reload() {
            Ok(message) => say(format_args!("{message}")),
            Err(failure) => {
                self.latest.replace(former.clone());
                // Whatever is wrong with the rest, what is served has the servers that there are now.
                self.set_servers_alike(&former, &translation)?;
                return Err(failure);
            }
        }
        remove_others(&translation.files, &former.files);
        if !has_upstreams {
            self.servers.clear();
            self.set_all_servers(&translation, true)?;
        }
        Ok(())
    }

    /// Shows this text at `/readyz`, beside the plan that is served. Its status stays 200: what is served works.
    pub(crate) fn show_readiness(&mut self, text: &str) {
        let Some(changed) = self.translation().with_readiness(text) else { return };
        if let Err(failure) = self.apply(Arc::new(changed)) {
            report(Severity::Error, format_args!("/readyz cannot be changed: {failure}"));
        }
    }

    /// Changes the servers of all upstreams of a translation that have others.
    fn set_all_servers(&mut self, translation: &Translation, is_reload: bool) -> Result<(), Failure> {
        for upstream in &translation.sites.upstreams {
            self.set_servers(&upstream.name, &upstream.servers, is_reload)?;
        }
        Ok(())
    }

    /// Changes the servers of the upstreams that are served and that another translation has, too.
    fn set_servers_alike(&mut self, served: &Translation, other: &Translation) -> Result<(), Failure> {
        let known: HashMap<&str, &Upstream> =
            served.sites.upstreams.iter().map(|it| (it.name.as_str(), it)).collect();
        let is_served = |it: &&Upstream| known.get(it.name.as_str()).is_some_and(|known| known.is_alike(it));
        let mut alike = other.sites.upstreams.iter().filter(is_served);
        alike.try_for_each(|it| self.set_servers(&it.name, &it.servers, false))
    }

    /// Changes the servers of an upstream, unless it has them. After a reload it is asked anyway: that keeps servers that were changed
    /// since the one before.
    ///
    /// # Errors
    /// There is no such upstream, or another process is taking over.
    pub(crate) fn set_servers(
        &mut self,
        upstream: &str,
        wanted: &[Server],
        is_reload: bool,
    ) -> Result<(), Failure> {
        if !is_reload && self.servers.get(upstream).is_some_and(|known| known == wanted) {
            return Ok(());
        }
        let changes = self.operator.set_servers(upstream, wanted).map_err(Failure::Run)?;
        if !is_reload {
            // What a reload at the wish of an operator reads.
            self.latest.set_servers(upstream, wanted);
            if !changes.is_empty() {
                say(format_args!("upstream {upstream}: {changes}"));
            }
        }
        self.servers.insert(upstream.to_owned(), wanted.to_vec());
        Ok(())
    }
}

impl Served {
    /// Calls `act` on its own thread once another process has taken over. This process must not apply changes after that.
    ///
    /// # Errors
    /// The system has no thread for it.
    pub(crate) fn when_replaced(&self, act: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
        let operator = self.operator.clone();
        let wait = move || {
            operator.wait_for_successor();
            act();
        };
        match thread::Builder::new().name("flatout-replaced".to_owned()).spawn(wait) {
            Ok(_) => Ok(()),
            Err(error) => {
                Err(Failure::Run(format!("cannot start the thread that waits for upgrades: {error}")))
            }
        }
    }
}

impl Translation {
    /// Whether it differs in nothing but servers, so that no reload is needed.
    pub(crate) fn is_alike(&self, other: &Translation) -> bool {
        self.has_upstreams_of(other) && self.has_sites_of(other)
    }

    fn has_sites_of(&self, other: &Translation) -> bool {
        self.site_listen == other.site_listen
            && self.site_secure == other.site_secure
            && self.sites.rates == other.sites.rates
            && self.sites.sites == other.sites.sites
    }

    /// Whether both have the same upstreams, but for servers.
    fn has_upstreams_of(&self, other: &Translation) -> bool {
        self.sites.upstreams.len() == other.sites.upstreams.len()
            && self.sites.upstreams.iter().zip(&other.sites.upstreams).all(|(one, other)| one.is_alike(other))
    }
}

fn servers(translation: &Translation) -> ServersByUpstream {
    translation.sites.upstreams.iter().map(|it| (it.name.clone(), it.servers.clone())).collect()
}

/// Writes certificates and keys that are not there, for this user only.
fn write_files(files: &Files, folder: &Path) -> io::Result<()> {
    make_private(folder)?;
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

/// Makes a folder for this user only, unless it is there.
pub(crate) fn make_private(folder: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Removes certificates that neither plan has.
fn remove_others(current: &Files, former: &Files) {
    let used: BTreeSet<&Path> = current.iter().map(|(path, _)| path).collect();
    for (path, _) in former.iter().filter(|(path, _)| !used.contains(path)) {
        // Nobody reads it any more; one that stays is no harm.
        let _ = fs::remove_file(path);
    }
}
