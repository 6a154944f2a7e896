//! What all workers know of an upstream: its servers and their state.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;

use crate::plan;
use crate::server::{LiveServer, ServerMode};
use crate::sources::{self, LookedUp, SourceEntry};
use crate::table::{FixedTable, UpstreamId};

/// All upstreams of a proxy.
pub(crate) struct Upstreams {
    table: FixedTable<LiveUpstream>,
    /// There may be thousands, and reloads and changes of servers look them up by name.
    by_name: HashMap<String, UpstreamId>,
}

/// An upstream, shared by all workers.
pub(crate) struct LiveUpstream {
    /// Its settings. `servers` are those of the plan, whatever has changed since.
    pub(crate) plan: plan::Upstream,
    /// Its servers now. One that existed before a reload is the same object, with its state.
    servers: ArcSwap<Vec<Arc<LiveServer>>>,
    /// How often they have changed.
    changes_count: AtomicU64,
    /// Where further servers come from. Only who changes the upstream writes it.
    sources: Mutex<Vec<SourceEntry>>,
    /// One change at a time.
    pub(crate) changing: Mutex<()>,
    /// The plan has replaced what operators had changed.
    pub(crate) has_lost_changes: bool,
    /// What sources want of servers, which may be in use by the upstream before: their weights, and whether they are drained.
    /// Until it takes effect.
    wanted: Mutex<Vec<WantedServer>>,
}

/// A server, its weight, and whether it is drained.
type WantedServer = (Arc<LiveServer>, u32, bool);

impl LiveUpstream {
    /// Servers with unchanged settings are taken from `former`; those with TLS files are opened anew. What operators have
    /// changed stays, unless the plan has other servers than before.
    ///
    /// # Errors
    /// The TLS settings of a server are invalid.
    #[cfg(test)]
    pub(crate) fn after(plan: plan::Upstream, former: &[LiveUpstream]) -> Result<LiveUpstream, String> {
        let former = former.iter().find(|former| former.plan.name == plan.name);
        let opened = LiveUpstream::open(plan, former, &LookedUp::default())?;
        opened.take_effect();
        Ok(opened)
    }

    /// The same after the upstream of this name, with what its services have. Nothing changes for servers that are in use, until it takes
    /// effect.
    ///
    /// # Errors
    /// The TLS settings of a server are invalid, or a source has a mistake.
    pub(crate) fn open(
        plan: plan::Upstream,
        former: Option<&LiveUpstream>,
        looked_up: &LookedUp,
    ) -> Result<LiveUpstream, String> {
        plan.check().map_err(|why| format!("upstream {}: {why}", plan.name))?;
        let known = former.map(LiveUpstream::servers).unwrap_or_default();
        let speaks_alike = former.is_some_and(|former| former.plan.speaks_alike(&plan));
        let has_changes = former.is_some_and(LiveUpstream::has_changes);
        let opened = |server: &plan::Server| {
            let opened = LiveServer::new(server.clone(), &plan);
            let opened = opened.map_err(|why| format!("upstream {}: {why}", plan.name))?;
            // An address may be there twice, with two limits.
            let mut alike = known.iter().filter(|it| it.plan.address == server.address);
            Ok::<_, String>(Arc::new(match (alike.next(), alike.next()) {
                (Some(former), None) => {
                    let is_alike = speaks_alike && former.plan.tls == server.tls;
                    opened.succeeding(former, is_alike)
                }
                _ => opened,
            }))
        };
        let entries = sources::open(&plan, former, looked_up)
            .map_err(|why| format!("upstream {}: {why}", plan.name))?;
        if !entries.is_empty() {
            let all = sources::all_servers(&plan, &entries);
            let all = all.map_err(|why| format!("upstream {}: {why}", plan.name))?;
            let of = |server: &plan::Server| {
                let known = known.iter().find(|it| it.plan.is_alike(server));
                let server = match known {
                    Some(known) if speaks_alike && !server.has_files() => known.clone(),
                    _ => opened(server)?,
                };
                Ok((server, known))
            };
            let found = all.iter().map(of).collect::<Result<Vec<_>, String>>()?;
            for (server, known) in &found {
                if let Some(known) = known {
                    server.set_mode_like(known);
                }
            }
            let servers: Vec<Arc<LiveServer>> = found.into_iter().map(|(server, _)| server).collect();
            let wanted =
                servers.iter().zip(&all).map(|(it, wanted)| (it.clone(), wanted.weight, wanted.drain));
            let wanted = Mutex::new(wanted.collect());
            return Ok(LiveUpstream { wanted, ..LiveUpstream::of(plan, servers, entries) });
        }
        let servers: Result<Vec<_>, String> =
            match former.filter(|former| former.plan.servers == plan.servers) {
                Some(_) => {
                    let stays = |server: &Arc<LiveServer>| {
                        if speaks_alike && !server.plan.has_files() {
                            return Ok(server.clone());
                        }
                        let opened = opened(&server.plan)?;
                        opened.changed_like(server);
                        Ok(opened)
                    };
                    known.iter().map(stays).collect()
                }
                None => {
                    // One that was changed is still in use: it must not be as planned before this plan is served.
                    let is_known = |known: &&Arc<LiveServer>, server: &plan::Server| {
                        speaks_alike && known.plan == *server && known.is_as_planned() && !server.has_files()
                    };
                    let stays = |server| match known.iter().find(|known| is_known(known, server)) {
                        Some(known) => Ok(known.clone()),
                        None => opened(server),
                    };
                    plan.servers.iter().map(stays).collect()
                }
            };
        let servers = servers?;
        let has_lost_changes = has_changes && former.is_some_and(|it| it.plan.servers != plan.servers);
        Ok(LiveUpstream { has_lost_changes, ..LiveUpstream::of(plan, servers, entries) })
    }

    /// It is served from now on: its servers are used as it says.
    pub(crate) fn take_effect(&self) {
        let wanted = std::mem::take(&mut *self.wanted.lock().unwrap_or_else(PoisonError::into_inner));
        for (server, weight, drains) in wanted {
            server.set_weight(weight);
            server.set_drained_by_source(drains);
        }
        // If servers are not compared, none is out of use because of a comparison.
        if self.plan.outliers.is_none() {
            for server in self.servers.load().iter() {
                server.readmit();
            }
        }
    }

    fn of(plan: plan::Upstream, servers: Vec<Arc<LiveServer>>, sources: Vec<SourceEntry>) -> LiveUpstream {
        LiveUpstream {
            plan,
            servers: ArcSwap::from_pointee(servers),
            changes_count: AtomicU64::new(0),
            sources: Mutex::new(sources),
            changing: Mutex::new(()),
            has_lost_changes: false,
            wanted: Mutex::default(),
        }
    }

    /// Its servers now.
    pub(crate) fn servers(&self) -> Arc<Vec<Arc<LiveServer>>> {
        self.servers.load_full()
    }

    /// Its sources, with their last good lists.
    pub(crate) fn sources(&self) -> MutexGuard<'_, Vec<SourceEntry>> {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether all its servers have left or are leaving, or it never had any.
    pub(crate) fn is_empty(&self) -> bool {
        self.servers.load().iter().all(|server| server.is_leaving())
    }

    /// Whoever reads this before the servers reads no older servers.
    pub(crate) fn changes_count(&self) -> u64 {
        self.changes_count.load(Ordering::Acquire)
    }

    /// Whether operators have changed its servers.
    pub(crate) fn has_changes(&self) -> bool {
        let servers = self.servers.load();
        if !self.plan.sources.is_empty() {
            return servers.iter().any(|server| server.mode() != ServerMode::Serving);
        }
        let planned = self.plan.servers.iter();
        servers.len() != self.plan.servers.len()
            || servers
                .iter()
                .zip(planned)
                .any(|(server, plan)| !server.is_as(plan) || server.mode() != ServerMode::Serving)
    }

    /// Publishes a change: of the list, or of servers in it. Workers have to be notified.
    pub(crate) fn publish(&self, servers: Option<Vec<Arc<LiveServer>>>) {
        if let Some(servers) = servers {
            self.servers.store(Arc::new(servers));
        }
        self.changes_count.fetch_add(1, Ordering::Release);
    }
}

impl Upstreams {
    pub(crate) fn new(upstreams: Vec<LiveUpstream>) -> Upstreams {
        let none = LiveUpstream::of(plan::Upstream::new("", Vec::new()), Vec::new(), Vec::new());
        let table = FixedTable::new(upstreams, none);
        let mut by_name = HashMap::with_capacity(table.len());
        for id in table.ids() {
            by_name.entry(table.at(id).plan.name.clone()).or_insert(id);
        }
        Upstreams { table, by_name }
    }

    pub(crate) fn find(&self, name: &str) -> Option<UpstreamId> {
        self.by_name.get(name).copied()
    }
}

impl Deref for Upstreams {
    type Target = FixedTable<LiveUpstream>;

    fn deref(&self) -> &FixedTable<LiveUpstream> {
        &self.table
    }
}

impl plan::Upstream {
    /// Whether a server's state and connections stay valid when this upstream is replaced by `other`.
    pub(crate) fn speaks_alike(&self, other: &plan::Upstream) -> bool {
        (&self.active, self.passive, self.source, self.send_proxy_protocol, self.protocol)
            == (&other.active, other.passive, other.source, other.send_proxy_protocol, other.protocol)
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::plan::Address;

    #[test]
    fn servers_stay_where_nothing_changed_for_them() {
        let plan = |ports: &[u16], failures_max| {
            let server = |&port| plan::Server::new(Address::Socket(([127, 0, 0, 1], port).into()));
            let mut plan = plan::Upstream::new("u", ports.iter().map(server).collect());
            plan.passive.failures_max = failures_max;
            plan
        };
        let first = LiveUpstream::after(plan(&[1, 2], 1), &[]).unwrap();
        first.servers()[1].failed(&first.plan.passive);
        let other = LiveUpstream::after(plan(&[3, 2], 1), std::slice::from_ref(&first)).unwrap();
        assert!(!Arc::ptr_eq(&other.servers()[0], &first.servers()[0]));
        assert!(Arc::ptr_eq(&other.servers()[1], &first.servers()[1]) && !other.servers()[1].is_up());
        let lenient = LiveUpstream::after(plan(&[3, 2], 9), std::slice::from_ref(&other)).unwrap();
        assert!(lenient.servers()[1].is_up(), "what was counted by other rules does not count");
    }

    /// A server whose files of TLS may have changed, or whose settings have, is opened anew.
    #[test]
    fn a_server_that_is_opened_anew_fares_as_before() {
        let plan = |requests_max, send_proxy_protocol| {
            let address = Address::Name("app.test".to_owned(), 80);
            let server = plan::Server { requests_max, ..plan::Server::new(address) };
            let upstream = plan::Upstream::new("u", vec![server]);
            plan::Upstream { send_proxy_protocol, ..upstream }
        };
        let first = LiveUpstream::after(plan(1, None), &[]).unwrap();
        let known = first.servers()[0].clone();
        known.found_at(vec![([127, 0, 0, 1], 80).into()]);
        known.set_healthy(false);
        for (latter, is_up) in [(plan(2, None), false), (plan(1, Some(plan::ProxyProtocol::V1)), true)] {
            let latter = LiveUpstream::after(latter, std::slice::from_ref(&first)).unwrap();
            let server = latter.servers()[0].clone();
            assert!(!Arc::ptr_eq(&server, &known));
            assert_eq!((server.remote(), server.is_up()), (known.remote(), is_up));
        }
        known.set_healthy(true);
        known.eject(crate::OutlierReason::Time { times: 3.0 }, &plan::Outliers::default());
        let compared = plan::Upstream { outliers: Some(plan::Outliers::default()), ..plan(2, None) };
        let latter = LiveUpstream::after(compared, std::slice::from_ref(&first)).unwrap();
        assert!(latter.servers()[0].is_only_ejected() && latter.servers()[0].ejection().is_some());
    }

    /// A plan that is read may be refused after that.
    #[test]
    fn servers_in_use_change_when_the_plan_takes_effect() {
        let address = Address::Socket(([127, 0, 0, 1], 1).into());
        let plan = || plan::Upstream::new("u", vec![plan::Server::new(address.clone())]);
        let compared = plan::Upstream { outliers: Some(plan::Outliers::default()), ..plan() };
        let first = LiveUpstream::after(compared, &[]).unwrap();
        let server = first.servers()[0].clone();
        server.eject(crate::OutlierReason::Time { times: 3.0 }, &plan::Outliers::default());
        let latter = LiveUpstream::open(plan(), Some(&first), &LookedUp::default()).unwrap();
        assert!(server.is_only_ejected() && Arc::ptr_eq(&latter.servers()[0], &server));
        latter.take_effect();
        assert!(server.is_up());
    }

    #[test]
    fn changes_stay_until_the_plan_has_other_servers() {
        let server = |port| plan::Server::new(Address::Socket(([127, 0, 0, 1], port).into()));
        let plan = |ports: &[u16]| plan::Upstream::new("u", ports.iter().map(|&port| server(port)).collect());
        let first = LiveUpstream::after(plan(&[1, 2]), &[]).unwrap();
        assert!(!first.has_changes());
        first.servers()[1].set_mode(crate::server::ServerMode::Draining);
        first.servers()[0].set_weight(7);
        assert!(first.has_changes());
        let alike = LiveUpstream::after(plan(&[1, 2]), std::slice::from_ref(&first)).unwrap();
        assert!(alike.servers()[1].is_leaving() && alike.servers()[0].weight() == 7);
        assert!(alike.has_changes() && !alike.has_lost_changes);
        let stricter = plan::Upstream { send_proxy_protocol: Some(plan::ProxyProtocol::V1), ..plan(&[1, 2]) };
        let stricter = LiveUpstream::after(stricter, std::slice::from_ref(&first)).unwrap();
        assert!(!Arc::ptr_eq(&stricter.servers()[1], &first.servers()[1]));
        assert!(stricter.servers()[1].is_leaving() && stricter.servers()[0].weight() == 7);
        let other = LiveUpstream::after(plan(&[2, 3]), std::slice::from_ref(&alike)).unwrap();
        assert!(!other.servers()[0].is_leaving() && other.has_lost_changes && !other.has_changes());
        assert!(alike.servers()[1].is_leaving(), "what is still served has not changed");
    }
}
