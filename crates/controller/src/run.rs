//! Serves what the objects demand, and follows their changes, all in one process.
//!
//! ```text
//! Store ── changed ──> translate ──┬── Served ──> the server of this process
//!                                  └── statuses ─> whoever writes them
//! ```
//!
//! Whatever fails, the server keeps the last plan that worked, and the next change tries again.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use flatout_engine::{Address, Severity, report};
use flatout_server::{Failure, Started};

use crate::apply::{BasePlan, Foundation, Served};
use crate::condition::StatusUpdate;
use crate::leader::Leader;
use crate::store::Store;
use crate::stream::acknowledge::{Programming, with_programming};
use crate::translate::{Settings, Translator, servers_of};

/// Changes that arrive within this time are applied together.
pub(crate) const GATHER_TIME: Duration = Duration::from_millis(5);

/// How often addresses that the machine refused, and changes that failed, are tried again.
pub(crate) const RETRY_TIME: Duration = Duration::from_secs(10);

/// Addresses that may be refused before it is given up.
pub(crate) const REFUSED_MAX: usize = 64;

/// Gets the statuses of all objects after each change.
pub type StatusWriter = Box<dyn FnMut(&[Arc<StatusUpdate>]) + Send>;

/// Starts a server for the objects of a store, which follows their changes on a thread of its own, until another process has taken over.
///
/// # Errors
/// The base is wrong, or the machine refuses.
pub fn serve(
    store: Arc<Store>,
    mut settings: Settings,
    base: BasePlan,
    mut write: StatusWriter,
    leader: Arc<Leader>,
    version: &str,
) -> Result<Started, Failure> {
    let foundation = Foundation {
        base: Arc::new(base),
        folder: settings.folder.clone(),
        version: version.to_owned(),
        name: "the objects",
        metrics: vec![store.figures.clone()],
    };
    let mut translator = Translator::default();
    let (mut served, started, seen) = loop {
        let (translation, seen) =
            store.read_changes(|objects, changed| translator.translate(objects, changed, &settings));
        settings.assigned.clone_from(&translation.assigned);
        match Served::start(&foundation, Arc::new(translation)) {
            Ok((served, started)) => break (served, started, seen),
            Err(Failure::Listen(why, Address::Tcp(at), kind)) => {
                if settings.health == Some(at) || settings.refused.len() >= REFUSED_MAX {
                    return Err(Failure::Listen(why, Address::Tcp(at), kind));
                }
                refuse(&mut settings, at, &why);
            }
            Err(failure) => return Err(failure),
        }
    };
    let is_replaced = Arc::new(AtomicBool::new(false));
    let flag = is_replaced.clone();
    served.when_replaced(move || {
        flag.store(true, Ordering::Relaxed);
        leader.retire();
    })?;
    // The objects that were just read are newer than what a former process has handed over.
    served.forget_servers();
    let has_failed = served.apply(served.translation()).is_err();
    write(&served.translation().statuses);
    let mut follower = Follower { served, translator, settings, write, has_failed };
    let follow = move || {
        let mut seen = seen.changes;
        loop {
            follower.wait(&store, seen);
            if is_replaced.load(Ordering::Relaxed) {
                return;
            }
            seen = follower.follow(&store);
        }
    };
    let spawned = thread::Builder::new().name("flatout-control".to_owned()).spawn(follow);
    spawned.map_err(|error| Failure::Run(format!("cannot start the thread of the controller: {error}")))?;
    Ok(started)
}

/// Applies changes of objects to a running server.
struct Follower {
    served: Served,
    translator: Translator,
    settings: Settings,
    write: StatusWriter,
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
        let served = self.served.translation();
        let mut is_all = self.has_failed;
        let (servers, seen) = store.read_changes(|objects, changed| {
            is_all |= !changed.are_endpoints();
            let servers = (!is_all).then(|| servers_of(objects, &served.backends, &changed.services));
            self.translator.note(changed);
            servers
        });
        // It is changed in place, if nobody else reads it.
        drop(served);
        let Some(servers) = servers else { return self.follow_all(store, seen.since) };
        match self.served.set_servers_at(servers) {
            Ok(()) => store.figures.took_effect(seen.since),
            Err(failure) => self.fail(&failure),
        }
        seen.changes
    }

    /// Applies the current objects as a whole, with changes that were read before, and made since then. Returns how often they had
    /// changed.
    fn follow_all(&mut self, store: &Store, since: Option<Instant>) -> u64 {
        loop {
            let (translation, seen) = store
                .read_changes(|objects, changed| self.translator.translate(objects, changed, &self.settings));
            self.settings.assigned.clone_from(&translation.assigned);
            let translation = Arc::new(translation);
            match self.served.apply(translation.clone()) {
                Ok(()) => {
                    self.has_failed = false;
                    (self.write)(&translation.statuses);
                    store.figures.took_effect(since.or(seen.since));
                    store.figures.set_refused(false);
                }
                Err(Failure::Listen(why, Address::Tcp(at), _))
                    if self.settings.refused.len() < REFUSED_MAX =>
                {
                    refuse(&mut self.settings, at, &why);
                    continue;
                }
                Err(failure) => {
                    let programming =
                        Programming::Refused(format!("the plan before stays in use: {failure}"));
                    (self.write)(&with_programming(&translation.statuses, &programming));
                    store.figures.set_refused(true);
                    self.fail(&failure);
                    self.served.show_readiness(&unready("the plan before stays in use", &failure));
                }
            }
            return seen.changes;
        }
    }

    fn fail(&mut self, failure: &Failure) {
        self.has_failed = true;
        let message = format_args!("objects have changed, but the last plan stays in use: {failure}");
        report(Severity::Error, message);
    }
}

/// The text of `/readyz` while the objects as a whole cannot be served.
pub(crate) fn unready(state: &str, why: &dyn std::fmt::Display) -> String {
    format!("ok: the objects cannot be served, {state}: {why}\n")
}

/// Leaves out an address for now.
fn refuse(settings: &mut Settings, at: SocketAddr, why: &str) {
    report_refused(at, why);
    settings.refused.insert(at);
}

pub(crate) fn report_refused(at: SocketAddr, why: &str) {
    report(Severity::Error, format_args!("listeners at {at} are not served for now: {why}"));
}
