//! Routes in a translation.
//!
//! ```text
//! route ── attach, rules ──> RouteRecord: upstreams, routes of sites, its status ── place ──> upstreams, sites, counts of listeners
//!                            (kept for the next translation)
//! ```

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use flatout_site::plan::PassthroughShare;

use super::Settings;
use super::any_route::AnyRoute;
use super::attach::{Attached, Attachment, RuleFaults, attach, parents_status};
use super::backend::{UpstreamOptions, Upstreams};
use super::filter::ListenerOrigin;
use super::grant::Referrer;
use super::hostname::HostName;
use super::listener::GatewayState;
use super::rule::{CommonRule, RankedRoute, ResolvedRule};
use super::site::Sites;
use crate::condition::StatusUpdate;
use crate::kinds::route::TlsRoute;
use crate::kinds::{GATEWAY_GROUP, ObjectKey};
use crate::objects::{Objects, find_kind};

/// What a translation has made of a route. It depends on the route, and on objects that change rarely: gateways, services, grants; not on
/// other routes, but for the indices of upstreams.
#[derive(Default)]
pub(super) struct RouteRecord {
    /// The listeners that it is attached to, as gateway and listener.
    counted: Vec<(usize, usize)>,
    /// The gateways that serve it.
    gateways: Vec<usize>,
    /// The services that it refers to.
    services: Vec<ObjectKey>,
    /// The upstreams that it leads to, in the order of their first use, with their indices.
    pub(super) uses: Vec<(usize, String)>,
    served: Vec<ServedName>,
    /// None, if no parent is of this controller.
    status: Option<Arc<StatusUpdate>>,
}

/// What is served for a host name of a listener.
struct ServedName {
    bind: SocketAddr,
    of_listener: HostName,
    hostname: HostName,
    what: ServedWhat,
}

#[derive(Clone)]
enum ServedWhat {
    Routes(Arc<[RankedRoute]>),
    Passed(Arc<[PassthroughShare]>),
}

/// What routes are added to.
pub(super) struct Parts<'p, 'o> {
    pub(super) objects: &'o Objects,
    pub(super) settings: &'p Settings,
    pub(super) gateways: &'p mut Vec<GatewayState<'o>>,
    pub(super) upstreams: &'p mut Upstreams<'o>,
    pub(super) sites: &'p mut Sites,
    /// Rules that the site layer refuses, and why.
    pub(super) refused: &'p BTreeMap<String, String>,
}

impl Parts<'_, '_> {
    /// Makes the record of a route. Only upstreams are added by that.
    pub(super) fn make(&mut self, route: &AnyRoute<'_>) -> RouteRecord {
        let head = route.head();
        let Attached { attachments, parents, counted } = attach(head, self.gateways, self.objects);
        if parents.is_empty() {
            return RouteRecord::default();
        }
        self.upstreams.looked_up.clear();
        self.upstreams.used.clear();
        let from = Referrer { group: GATEWAY_GROUP, kind: head.kind, namespace: &head.metadata.namespace };
        let (mut faults, mut served) = (RuleFaults::default(), Vec::new());
        if let AnyRoute::Tls(route) = route {
            self.pass_on(route, from, &attachments, (&mut faults, &mut served));
        }
        for rule in route.rules() {
            let rule = match rule.and_then(|rule| self.known_good(rule)) {
                Ok(rule) => ResolvedRule::new(rule, from, self.upstreams, &mut faults),
                Err(why) => {
                    faults.unsupported.push(why);
                    continue;
                }
            };
            match self.serve(&rule, &attachments, &mut served) {
                Ok(()) => faults.good += 1,
                Err(why) => faults.unsupported.push(why),
            }
        }
        if route.rules_count() == 0 {
            faults.good += 1;
        }
        let status = || {
            let kind = find_kind(&format!("{GATEWAY_GROUP}/v1"), head.kind)?;
            let status = parents_status(head, &parents, &faults, self.settings);
            Some(Arc::new(StatusUpdate { kind, key: head.metadata.key(), status, notes: Vec::new() }))
        };
        RouteRecord {
            counted,
            gateways: attachments.iter().map(|it| it.gateway).collect(),
            services: std::mem::take(&mut self.upstreams.looked_up),
            status: status(),
            uses: self.upstreams.take_used(),
            served,
        }
    }

    /// Adds what a record has to sites and listeners. Its upstreams are there. `age` is the place of its route among all.
    pub(super) fn place(&mut self, record: &RouteRecord, age: usize) -> Option<Arc<StatusUpdate>> {
        for (gateway, listener) in &record.counted {
            self.gateways[*gateway].listeners[*listener].attached += 1;
        }
        for gateway in &record.gateways {
            let gateway = self.gateways[*gateway].gateway.metadata.key();
            for service in &record.services {
                self.upstreams.policies.add_ancestor(service, &gateway);
            }
        }
        for ServedName { bind, of_listener, hostname, what } in &record.served {
            match what {
                ServedWhat::Routes(routes) => {
                    self.sites.add_routes((*bind, of_listener), hostname, (age, routes));
                }
                ServedWhat::Passed(shares) => {
                    self.sites.add_passthrough((*bind, of_listener), hostname, shares);
                }
            }
        }
        record.status.clone()
    }

    /// Passes the connections of a TLSRoute on at all listeners that it is attached to.
    fn pass_on(
        &mut self,
        route: &TlsRoute,
        from: Referrer<'_>,
        attachments: &[Attachment],
        (faults, served): (&mut RuleFaults, &mut Vec<ServedName>),
    ) {
        let [rule, others @ ..] = &route.spec.rules[..] else { return };
        let options = UpstreamOptions { is_passthrough: true, ..UpstreamOptions::default() };
        let mut shares = Vec::new();
        for backend in &rule.backend_refs {
            let found = self.upstreams.of_reference(from, backend, &options);
            let upstream = found.map_err(|why| faults.unresolved.get_or_insert(why).clone()).ok();
            shares.push(PassthroughShare { weight: backend.weight.unwrap_or(1), upstream });
        }
        faults.good += 1;
        if !others.is_empty() {
            faults
                .unsupported
                .push("a TLSRoute has one rule: nothing tells its connections apart".to_owned());
        }
        let shares: Arc<[PassthroughShare]> = shares.into();
        self.each_name(attachments, |_| Ok(ServedWhat::Passed(shares.clone())), served).unwrap_or_default();
    }

    /// The rule, unless the site layer refuses it.
    fn known_good(&self, rule: CommonRule) -> Result<CommonRule, String> {
        self.refused.get(&rule.name).map_or(Ok(rule), |why| Err(why.clone()))
    }

    /// Serves a rule at all listeners that its route is attached to.
    fn serve(
        &mut self,
        rule: &ResolvedRule,
        attachments: &[Attachment],
        served: &mut Vec<ServedName>,
    ) -> Result<(), String> {
        // Also without an attachment: whether it is supported does not depend on listeners.
        rule.routes(ListenerOrigin { is_https: false, port: 80 })?;
        let routes = |origin| Ok(ServedWhat::Routes(rule.routes(origin)?.into()));
        self.each_name(attachments, routes, served)
    }

    /// Adds what is served for each host name of each listener.
    fn each_name(
        &self,
        attachments: &[Attachment],
        what: impl Fn(ListenerOrigin) -> Result<ServedWhat, String>,
        served: &mut Vec<ServedName>,
    ) -> Result<(), String> {
        for attachment in attachments {
            let listener = &self.gateways[attachment.gateway].listeners[attachment.listener];
            let Some(bind) = listener.bind else { continue };
            let what = what(ListenerOrigin { is_https: listener.is_https(), port: listener.listener.port })?;
            for hostname in &attachment.hostnames {
                let (of_listener, hostname) = (listener.hostname.clone(), hostname.clone());
                served.push(ServedName { bind, of_listener, hostname, what: what.clone() });
            }
        }
        Ok(())
    }
}
