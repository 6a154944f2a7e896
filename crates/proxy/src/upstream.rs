//! What all workers know of an upstream: its servers and their state.

use std::path::PathBuf;
use std::sync::Arc;

use crate::plan;
use crate::plan::Address;
use crate::server::LiveServer;
use crate::table::FixedTable;

/// All upstreams of a proxy.
pub(crate) type Upstreams = FixedTable<LiveUpstream>;

/// An upstream, shared by all workers.
pub(crate) struct LiveUpstream {
    pub(crate) plan: plan::Upstream,
    /// A server that existed before a reload is the same object, with its state.
    pub(crate) servers: FixedTable<Arc<LiveServer>>,
}

impl LiveUpstream {
    /// Servers with unchanged settings are taken from `former`; those with TLS files are opened anew.
    ///
    /// # Errors
    /// The TLS settings of a server are invalid.
    pub(crate) fn after(plan: plan::Upstream, former: &[LiveUpstream]) -> Result<LiveUpstream, String> {
        let former = former.iter().find(|former| former.plan.name == plan.name);
        let former = former.filter(|former| former.plan.speaks_alike(&plan));
        let known = |server: &plan::Server| {
            let is_known = |known: &&Arc<LiveServer>| known.plan == *server && !server.has_files();
            former.and_then(|former| former.servers.iter().find(is_known))
        };
        plan.check().map_err(|why| format!("upstream {}: {why}", plan.name))?;
        let open = |server: &plan::Server| match known(server) {
            Some(known) => Ok(known.clone()),
            None => LiveServer::new(server.clone(), plan.protocol)
                .map(Arc::new)
                .map_err(|why| format!("upstream {}: {why}", plan.name)),
        };
        let servers = plan.servers.iter().map(open).collect::<Result<_, _>>()?;
        Ok(LiveUpstream::of(plan, servers))
    }

    fn of(plan: plan::Upstream, servers: Vec<Arc<LiveServer>>) -> LiveUpstream {
        let none = plan::Server::new(Address::Unix(PathBuf::new()));
        let none = LiveServer::open(none, None);
        LiveUpstream { plan, servers: FixedTable::new(servers, Arc::new(none)) }
    }

    /// All upstreams of a proxy.
    pub(crate) fn table(upstreams: Vec<LiveUpstream>) -> Upstreams {
        let none = LiveUpstream::of(plan::Upstream::new("", Vec::new()), Vec::new());
        FixedTable::new(upstreams, none)
    }
}

impl plan::Upstream {
    /// Whether a server's state and connections stay valid when this upstream is replaced by `other`.
    fn speaks_alike(&self, other: &plan::Upstream) -> bool {
        (&self.active, self.passive, self.send_proxy_protocol, self.protocol)
            == (&other.active, other.passive, other.send_proxy_protocol, other.protocol)
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
        first.servers[1].failed(&first.plan.passive);
        let other = LiveUpstream::after(plan(&[3, 2], 1), std::slice::from_ref(&first)).unwrap();
        assert!(!Arc::ptr_eq(&other.servers[0], &first.servers[0]));
        assert!(Arc::ptr_eq(&other.servers[1], &first.servers[1]) && !other.servers[1].is_up());
        let lenient = LiveUpstream::after(plan(&[3, 2], 9), std::slice::from_ref(&other)).unwrap();
        assert!(lenient.servers[1].is_up(), "what was counted by other rules does not count");
    }
}
