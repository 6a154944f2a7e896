//! Changes of the servers of a running upstream: by an operator, a watched file, or a controller. Each is published as a whole,
//! and each worker applies it at its next wake-up, without touching connections to other servers.
//!
//! ```text
//! set_servers, set_mode, set_weight ── list, marks ──> LiveUpstream ── notify ──> each worker: worker/servers.rs
//!                                                                        └─────> control: names, health checks
//! ```

use std::fmt;
use std::sync::{Arc, MutexGuard, PoisonError};

use crate::Proxy;
use crate::plan::{Address, Server, Tls, Upstream};
use crate::select::outliers::OutlierReason;
use crate::server::{EjectionCounts, LiveServer, ServerMode, ServerState};
use crate::sources::SourceStatus;
use crate::upstream::LiveUpstream;

/// Servers of an upstream that is changed while it runs: choosing one costs a look at each.
pub const SERVERS_MAX: usize = 1024;

/// What a change of the servers of an upstream has done, by their names in figures.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerChanges {
    /// Those that get requests from now on.
    pub added: Vec<String>,
    /// Those that get no more requests. What is in progress is finished.
    pub removed: Vec<String>,
    /// Those with another weight.
    pub weighted: Vec<String>,
    /// Those that their source drains from now on.
    pub drained: Vec<String>,
    /// Those that it drains no longer.
    pub resumed: Vec<String>,
}

impl ServerChanges {
    /// Whether nothing was to be changed.
    pub fn is_empty(&self) -> bool {
        *self == ServerChanges::default()
    }
}

impl fmt::Display for ServerChanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            ("added", &self.added),
            ("removed", &self.removed),
            ("new weight for", &self.weighted),
            ("drained", &self.drained),
            ("no longer drained", &self.resumed),
        ];
        let mut separator = "";
        for (what, names) in parts.iter().filter(|(_, names)| !names.is_empty()) {
            write!(f, "{separator}{what} {}", names.join(", "))?;
            separator = "; ";
        }
        if separator.is_empty() { f.write_str("no change") } else { Ok(()) }
    }
}

/// The state of an upstream.
#[derive(Debug, Clone, PartialEq)]
pub struct UpstreamState {
    /// Its name in the plan.
    pub name: String,
    /// Whether its servers are not as the plan has them.
    pub has_changes: bool,
    /// Its servers.
    pub servers: Vec<ServerStatus>,
    /// TLS to its servers, if those of the plan have it.
    pub planned_tls: Option<Tls>,
    /// Whether health checks look at its servers.
    pub is_checked: bool,
    /// The state of the sources of its servers.
    pub sources: Vec<SourceStatus>,
}

/// The state of a server.
#[derive(Debug, Clone, PartialEq)]
pub struct ServerStatus {
    /// Its name in figures.
    pub label: String,
    /// Its settings, with its current weight.
    pub server: Server,
    /// What an operator wants.
    pub mode: ServerMode,
    /// Its state.
    pub state: ServerState,
    /// Why it is ejected.
    pub ejection: Option<OutlierReason>,
    /// How often it was ejected.
    pub ejections: EjectionCounts,
}

impl Proxy {
    /// The state of its upstreams.
    pub fn states(&self) -> Vec<UpstreamState> {
        self.upstreams.iter().map(LiveUpstream::state).collect()
    }

    /// The state of an upstream.
    pub fn state(&self, upstream: &str) -> Option<UpstreamState> {
        self.find_state(upstream).ok()
    }

    /// The same, or which upstreams there are.
    ///
    /// # Errors
    /// There is no such upstream.
    pub fn find_state(&self, upstream: &str) -> Result<UpstreamState, String> {
        self.find_upstream(upstream).map(LiveUpstream::state)
    }

    /// The plan of an upstream. Its servers may have changed since.
    pub fn plan(&self, upstream: &str) -> Option<&Upstream> {
        self.find_upstream(upstream).ok().map(|it| &it.plan)
    }

    /// Upstreams whose changes are kept in a file.
    pub fn kept_upstreams(&self) -> impl Iterator<Item = &str> {
        self.upstreams.iter().filter(|it| it.plan.state_file.is_some()).map(|it| it.plan.name.as_str())
    }

    /// Upstreams whose plan has replaced what operators had changed.
    pub fn lost_changes(&self) -> impl Iterator<Item = &str> {
        self.upstreams.iter().filter(|it| it.has_lost_changes).map(|it| it.plan.name.as_str())
    }

    /// The servers of this upstream are these from now on; there may be none. Those that it has already stay as they are, with
    /// their connections, marks and counters, and get the weight given here. Others are added, and those that are not named are
    /// removed: they get no more requests, finish what is in progress, and their idle connections are closed.
    ///
    /// Requests see the new list at once or, at the latest, when their worker wakes up next.
    ///
    /// # Errors
    /// There is no such upstream, it has a source of servers, or the list does not fit its settings. Nothing has changed then.
    pub fn set_servers(&self, upstream: &str, servers: &[Server]) -> Result<ServerChanges, String> {
        let (upstream, _changing) = self.change(upstream)?;
        upstream.check_has_no_source()?;
        self.replace_servers(upstream, servers)
    }

    /// The same, for an upstream that is being changed.
    pub(crate) fn replace_servers(
        &self,
        upstream: &LiveUpstream,
        servers: &[Server],
    ) -> Result<ServerChanges, String> {
        let former = upstream.servers();
        // A controller asks after each of its reloads, for all upstreams.
        if former.len() == servers.len() && former.iter().zip(servers).all(|(known, it)| known.is_as(it)) {
            return Ok(ServerChanges::default());
        }
        upstream.check_servers(servers)?;
        let mut changes = ServerChanges::default();
        let mut current = Vec::with_capacity(servers.len());
        for wanted in servers {
            let is_known = |it: &&Arc<LiveServer>| it.plan.is_alike(wanted);
            if let Some(known) = former.iter().find(is_known) {
                current.push(known.clone());
                continue;
            }
            let opened = LiveServer::new(wanted.clone(), &upstream.plan)?;
            opened.joins();
            changes.added.push(opened.label.clone());
            current.push(Arc::new(opened));
        }
        if servers.iter().any(|it| matches!(it.address, Address::Name(..))) {
            let begun = self.control.need_names();
            begun.map_err(|error| format!("names cannot be looked up: {error}"))?;
        }
        // From here on nothing fails.
        for (server, wanted) in current.iter().zip(servers) {
            if server.weight() != wanted.weight.max(1) {
                server.set_weight(wanted.weight);
                changes.weighted.push(server.label.clone());
            }
            if server.set_drained_by_source(wanted.drain) {
                let list = if wanted.drain { &mut changes.drained } else { &mut changes.resumed };
                list.push(server.label.clone());
            }
        }
        let is_same = current.len() == former.len()
            && current.iter().zip(former.iter()).all(|(one, other)| Arc::ptr_eq(one, other));
        let leaving: Vec<_> =
            former.iter().filter(|it| !current.iter().any(|stays| Arc::ptr_eq(stays, it))).collect();
        // Before any leaves: a worker that finds none of its servers must know that there are others.
        upstream.publish((!is_same).then_some(current));
        for server in leaving {
            server.leaves();
            changes.removed.push(server.label.clone());
        }
        self.publish(upstream, None);
        Ok(changes)
    }

    /// Sets what an operator wants of a server. Returns the former mode.
    ///
    /// # Errors
    /// There is no such upstream, or it has no such server.
    pub fn set_mode(&self, upstream: &str, server: &Address, mode: ServerMode) -> Result<ServerMode, String> {
        let (upstream, _changing) = self.change(upstream)?;
        let server = upstream.find(server)?;
        let former = server.mode();
        if former != mode {
            server.set_mode(mode);
            self.publish(upstream, None);
        }
        Ok(former)
    }

    /// Sets the weight of a server; at least 1. Returns the former weight.
    ///
    /// # Errors
    /// There is no such upstream, it has a source of servers, or it has no such server.
    pub fn set_weight(&self, upstream: &str, server: &Address, weight: u32) -> Result<u32, String> {
        let (upstream, _changing) = self.change(upstream)?;
        upstream.check_has_no_source()?;
        let server = upstream.find(server)?;
        let former = server.weight();
        server.set_weight(weight);
        self.publish(upstream, None);
        Ok(former)
    }

    /// The upstream of this name, for one change at a time.
    pub(crate) fn change(&self, name: &str) -> Result<(&LiveUpstream, MutexGuard<'_, ()>), String> {
        let upstream = self.find_upstream(name)?;
        let changing = upstream.changing.lock().unwrap_or_else(PoisonError::into_inner);
        Ok((upstream, changing))
    }

    fn find_upstream(&self, name: &str) -> Result<&LiveUpstream, String> {
        self.upstream_named(name).ok_or_else(|| {
            let names: Vec<&str> = self.upstreams.iter().map(|it| it.plan.name.as_str()).collect();
            match names.is_empty() {
                true => format!("there is no upstream `{name}`: no route has one"),
                false => format!("there is no upstream `{name}`; there are {}", names.join(", ")),
            }
        })
    }

    fn publish(&self, upstream: &LiveUpstream, servers: Option<Vec<Arc<LiveServer>>>) {
        upstream.publish(servers);
        self.changes.send_replace(());
    }
}

impl Server {
    /// Whether these are settings of one and the same server, whatever its weight is.
    pub(crate) fn is_alike(&self, other: &Server) -> bool {
        let of = |it: &Server| (it.backup, it.requests_max);
        (&self.address, &self.tls, of(self)) == (&other.address, &other.tls, of(other))
    }
}

impl LiveServer {
    /// Whether it is this server, with this weight and drained or not.
    pub(crate) fn is_as(&self, wanted: &Server) -> bool {
        self.plan.is_alike(wanted)
            && self.weight() == wanted.weight.max(1)
            && self.is_drained_by_source() == wanted.drain
    }
}

impl LiveUpstream {
    fn state(&self) -> UpstreamState {
        let of = |it: &Arc<LiveServer>| ServerStatus {
            label: it.label.clone(),
            server: Server { weight: it.weight(), drain: it.is_drained_by_source(), ..it.plan.clone() },
            mode: it.mode(),
            state: it.state(self.plan.slow_start),
            ejection: it.ejection(),
            ejections: it.ejection_counts(),
        };
        let servers = self.servers().iter().map(of).collect();
        UpstreamState {
            name: self.plan.name.clone(),
            has_changes: self.has_changes(),
            servers,
            planned_tls: self.plan.tls_of_servers(),
            is_checked: self.plan.active.is_some(),
            sources: self.source_statuses(),
        }
    }

    /// Checks that its servers may be these.
    fn check_servers(&self, servers: &[Server]) -> Result<(), String> {
        let name = &self.plan.name;
        if servers.len() > SERVERS_MAX {
            return Err(format!("upstream {name}: got {} servers, at most {SERVERS_MAX}", servers.len()));
        }
        for (at, server) in servers.iter().enumerate() {
            if servers.iter().take(at).any(|earlier| earlier.address == server.address) {
                return Err(format!("upstream {name}: {} is listed twice", server.address));
            }
        }
        let plan = crate::plan::Upstream { servers: servers.to_vec(), ..self.plan.clone() };
        plan.check().map_err(|why| format!("upstream {name}: {why}"))
    }

    fn find(&self, address: &Address) -> Result<Arc<LiveServer>, String> {
        let servers = self.servers();
        if let Some(found) = servers.iter().find(|it| it.plan.address == *address) {
            return Ok(found.clone());
        }
        let labels: Vec<&str> = servers.iter().map(|it| it.label.as_str()).collect();
        Err(no_server(&self.plan.name, address, &labels))
    }
}

impl UpstreamState {
    /// Its server with this address.
    ///
    /// # Errors
    /// There is none.
    pub fn server(&self, address: &Address) -> Result<&ServerStatus, String> {
        self.servers.iter().find(|it| it.server.address == *address).ok_or_else(|| {
            let labels: Vec<&str> = self.servers.iter().map(|it| it.label.as_str()).collect();
            no_server(&self.name, address, &labels)
        })
    }
}

/// The message for an address that none of an upstream's servers has.
fn no_server(upstream: &str, address: &Address, labels: &[&str]) -> String {
    let has = if labels.is_empty() { "none".to_owned() } else { labels.join(", ") };
    format!("upstream {upstream} has no server {address}; it has {has}")
}
