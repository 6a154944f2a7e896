//! Servers of an upstream that come from elsewhere, such as a file. The last good list of each source is kept: a list with a mistake
//! changes nothing.
//!
//! ```text
//! follow: a thread ── file ──> SourceOwner: who owns the server ── Proxy::set_source ──> changes: the servers of the upstream
//! ```

pub(crate) mod file;
mod folder;
pub(crate) mod follow;
pub(crate) mod service;

use flatout_engine::{Severity, report};

use crate::Proxy;
use crate::changes::{SERVERS_MAX, ServerChanges};
use crate::control::names::Resolver;
use crate::plan::{Server, ServerSource, SourcePlace, Upstream};
use crate::upstream::LiveUpstream;

/// The state of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceStatus {
    /// The source.
    pub source: ServerSource,
    /// Servers in its last good list.
    pub servers_count: usize,
    /// Why its last good list stays in use, although it has another one or none.
    pub problem: Option<String>,
    /// How often it had such a problem.
    pub problems: u64,
    /// How often it has changed the servers of its upstream.
    pub changes: u64,
}

/// A source of an upstream, with its last good list.
#[derive(Debug, Clone)]
pub(crate) struct SourceEntry {
    pub(crate) status: SourceStatus,
    servers: Vec<Server>,
}

impl ServerSource {
    /// The servers that it has now, for this upstream.
    ///
    /// # Errors
    /// It cannot be read, or has mistakes: all of them, with their lines.
    pub fn read(&self, resolver: &Resolver, upstream: &Upstream) -> Result<Vec<Server>, String> {
        match &self.place {
            SourcePlace::File(path) => file::read(path, self, upstream),
            SourcePlace::Service { .. } => {
                let found = service::look_up_all(resolver, vec![(upstream.clone(), self.clone())]);
                found.into_iter().next().map_or_else(|| Err(service::late()), |(_, _, servers)| servers)
            }
        }
    }

    fn is_service(&self) -> bool {
        matches!(self.place, SourcePlace::Service { .. })
    }
}

impl SourceEntry {
    /// The source of an upstream that is opened: a file is read. If that fails, the list of `former` is used, which is the entry of this
    /// source before a reload.
    ///
    /// # Errors
    /// Its list has mistakes, or cannot be read, and there is no former one.
    fn open(
        source: &ServerSource,
        upstream: &Upstream,
        former: Option<SourceEntry>,
        looked_up: &LookedUp,
    ) -> Result<Self, String> {
        let found = match &source.place {
            SourcePlace::File(path) => file::read(path, source, upstream),
            SourcePlace::Service { .. } => {
                if let Some(former) = former {
                    return Ok(former);
                }
                looked_up.of(&upstream.name, source)
            }
        };
        let empty =
            SourceStatus { source: source.clone(), servers_count: 0, problem: None, problems: 0, changes: 0 };
        let is_new = former.is_none();
        let mut entry = former.unwrap_or(SourceEntry { status: empty, servers: Vec::new() });
        match found {
            Ok(servers) => entry.take(servers),
            Err(why) if is_new && !source.is_service() => return Err(format!("{}: {why}", source.place)),
            Err(why) => {
                if entry.status.problem.as_ref() != Some(&why) {
                    let (name, place, count) = (&upstream.name, &source.place, entry.status.servers_count);
                    report(
                        Severity::Error,
                        format_args!(
                            "upstream {name}: {place}: {why}; the {count} servers found before stay in use"
                        ),
                    );
                }
                entry.refuse(why);
            }
        }
        Ok(entry)
    }

    fn take(&mut self, servers: Vec<Server>) {
        self.status.servers_count = servers.len();
        self.status.problem = None;
        self.servers = servers;
    }

    fn refuse(&mut self, why: String) {
        if self.status.problem.as_ref() != Some(&why) {
            self.status.problems += 1;
            self.status.problem = Some(why);
        }
    }
}

/// What the services of a plan have when it is opened.
#[derive(Default)]
pub(crate) struct LookedUp(Vec<(String, ServerSource, Result<Vec<Server>, String>)>);

impl LookedUp {
    /// Looks up the services of these upstreams that `former` does not have, and waits a while for the results.
    pub(crate) fn new(upstreams: &[Upstream], resolver: &Resolver, former: &[LiveUpstream]) -> LookedUp {
        let is_known = |upstream: &Upstream, source: &ServerSource| {
            former.iter().any(|it| it.plan.name == upstream.name && it.plan.sources.contains(source))
        };
        let of = |upstream: &Upstream| {
            let new = upstream.sources.iter().filter(|it| it.is_service() && !is_known(upstream, it));
            new.map(|source| (upstream.clone(), source.clone())).collect::<Vec<_>>()
        };
        let new: Vec<_> = upstreams.iter().flat_map(of).collect();
        LookedUp(if new.is_empty() { Vec::new() } else { service::look_up_all(resolver, new) })
    }

    fn of(&self, upstream: &str, source: &ServerSource) -> Result<Vec<Server>, String> {
        let found = self.0.iter().find(|(name, it, _)| name == upstream && it == source);
        found.map_or_else(|| Err(service::late()), |(_, _, servers)| servers.clone())
    }
}

/// The sources of an upstream, those of `former` with what they have.
///
/// # Errors
/// See [`SourceEntry::open`].
pub(crate) fn open(
    upstream: &Upstream,
    former: Option<&LiveUpstream>,
    looked_up: &LookedUp,
) -> Result<Vec<SourceEntry>, String> {
    let known = former.map(|it| it.sources().clone()).unwrap_or_default();
    let open = |source: &ServerSource| {
        let former = known.iter().find(|it| it.status.source == *source).cloned();
        SourceEntry::open(source, upstream, former, looked_up)
    };
    upstream.sources.iter().map(open).collect()
}

/// All servers of an upstream: those of its plan, then those of each source. Of several with one address, the first counts.
///
/// # Errors
/// They are too many.
pub(crate) fn all_servers(upstream: &Upstream, sources: &[SourceEntry]) -> Result<Vec<Server>, String> {
    let mut all: Vec<Server> = upstream.servers.clone();
    for server in sources.iter().flat_map(|it| &it.servers) {
        if !all.iter().any(|earlier| earlier.address == server.address) {
            all.push(server.clone());
        }
    }
    match all.len() {
        0..=SERVERS_MAX => Ok(all),
        count => Err(format!("the upstream would have {count} servers, at most {SERVERS_MAX} are allowed")),
    }
}

impl Proxy {
    /// All sources, each with the plan of its upstream.
    pub fn sources(&self) -> Vec<(Upstream, ServerSource)> {
        let of = |upstream: &LiveUpstream| {
            let plan = upstream.plan.clone();
            plan.sources.clone().into_iter().map(move |source| (plan.clone(), source))
        };
        self.upstreams.iter().flat_map(of).collect()
    }

    /// What looks its names up.
    pub fn resolver(&self) -> &Resolver {
        self.control.resolver()
    }

    /// Checks that operators may add, remove and weight servers of this upstream.
    ///
    /// # Errors
    /// There is no such upstream, or its servers are those of a source.
    pub fn check_has_no_source(&self, upstream: &str) -> Result<(), String> {
        self.change(upstream)?.0.check_has_no_source()
    }

    /// What a source of an upstream has now, or why that is not known or wrong. In that case nothing changes. Servers that stay keep their
    /// connections and their state.
    ///
    /// # Errors
    /// There is no such upstream or source, or the list cannot be used.
    pub fn set_source(
        &self,
        upstream: &str,
        source: &ServerSource,
        found: Result<Vec<Server>, String>,
    ) -> Result<ServerChanges, String> {
        let (upstream, _changing) = self.change(upstream)?;
        let mut entries = upstream.sources().clone();
        let Some(at) = entries.iter().position(|it| it.status.source == *source) else {
            return Err(format!("upstream {} has no {}", upstream.plan.name, source.place));
        };
        let result = found.and_then(|servers| {
            let mut wanted = entries.clone();
            wanted.iter_mut().skip(at).take(1).for_each(|entry| entry.take(servers.clone()));
            let changes = self.replace_servers(upstream, &all_servers(&upstream.plan, &wanted)?)?;
            entries = wanted;
            Ok(changes)
        });
        if let Some(entry) = entries.get_mut(at) {
            match &result {
                Ok(changes) => entry.status.changes += u64::from(!changes.is_empty()),
                Err(why) => entry.refuse(why.clone()),
            }
        }
        *upstream.sources() = entries;
        result
    }
}

impl LiveUpstream {
    /// The state of its sources.
    pub(crate) fn source_statuses(&self) -> Vec<SourceStatus> {
        self.sources().iter().map(|it| it.status.clone()).collect()
    }

    /// Checks that its list of servers is its own.
    ///
    /// # Errors
    /// It has a source.
    pub(crate) fn check_has_no_source(&self) -> Result<(), String> {
        let places: Vec<String> = self.plan.sources.iter().map(|it| it.place.to_string()).collect();
        match places.is_empty() {
            true => Ok(()),
            false => Err(format!(
                "the servers of upstream {} are those of {}: change them there; drain, down and up are possible here",
                self.plan.name,
                places.join(" and ")
            )),
        }
    }
}
