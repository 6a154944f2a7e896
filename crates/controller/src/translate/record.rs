//! Routes in a translation.
//!
//! ```text
//! route ── attach, rules ──> RouteRecord: upstreams, routes of sites, its status ── place ──> upstreams, sites, counts of listeners
//!                            (kept for the next translation)
//! ```

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use flatout_site::plan::PassthroughShare;
use flatout_tls::Identity;

use super::Settings;
use super::any_route::AnyRoute;
use super::attach::{Attached, Attachment, RouteHead, RuleFaults, attach, parents_status};
use super::backend::{UpstreamOptions, Upstreams};
use super::conflict::{TakenNames, refuse_parents};
use super::filter::ListenerOrigin;
use super::gateway::GatewayState;
use super::grant::Referrer;
use super::hostname::HostName;
use super::route_policy::RoutePolicies;
use super::rule::{CommonRule, RankedRoute, ResolvedRule, closed};
use super::site::Sites;
use crate::condition::StatusUpdate;
use crate::kinds::route::{BackendRef, TlsRoute, TlsRule};
use crate::kinds::{GATEWAY_GROUP, ObjectKey};
use crate::objects::{Objects, find_kind};

/// What a translation has made of a route. It depends on the route, its services, its [surroundings](super::surroundings::Surroundings),
/// namespaces and grants; not on other routes, but for the indices of upstreams.
#[derive(Default)]
pub(super) struct RouteRecord {
    /// The listeners that it is attached to, as parent, gateway and listener.
    counted: Vec<(usize, usize, usize)>,
    /// Those that serve it.
    attachments: Vec<Attachment>,
    /// The services that it refers to.
    services: Vec<ObjectKey>,
    /// The upstreams that it leads to, in the order of their first use, with their indices.
    pub(super) uses: Vec<(usize, String)>,
    served: Vec<ServedName>,
    /// None, if no parent is of this controller.
    status: Option<Arc<StatusUpdate>>,
}

impl RouteRecord {
    /// Whether it refers to one of these services.
    pub(super) fn leads_to(&self, services: &BTreeSet<ObjectKey>) -> bool {
        !services.is_empty() && self.services.iter().any(|it| services.contains(it))
    }
}

/// What is served for a host name of a listener.
struct ServedName {
    parent: usize,
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
    pub(super) policies: &'p mut RoutePolicies<'o>,
    pub(super) taken: TakenNames,
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
        let from = Referrer::of_gateway_api(head.kind, &head.metadata.namespace);
        let (mut faults, mut served) = (RuleFaults::default(), Vec::new());
        if let AnyRoute::Tls(route) = route {
            self.pass_on(route, from, &attachments, (&mut faults, &mut served));
        }
        for rule in route.rules() {
            let rule = rule.and_then(|rule| self.known_good(rule));
            match rule.and_then(|rule| self.serve(&rule, head, &attachments, (&mut faults, &mut served))) {
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
            Some(Arc::new(StatusUpdate::new(kind, head.metadata.key(), status)))
        };
        RouteRecord {
            counted,
            attachments,
            services: std::mem::take(&mut self.upstreams.looked_up),
            status: status(),
            uses: self.upstreams.take_used(),
            served,
        }
    }

    /// Adds what a record has to sites and listeners. Its upstreams are there. `age` is the place of its route among all routes and Ingresses.
    pub(super) fn place(
        &mut self,
        record: &RouteRecord,
        route: &(&'static str, ObjectKey),
        age: usize,
    ) -> Option<Arc<StatusUpdate>> {
        let refused = self.taken.take(route, &record.attachments);
        let is_placed = |parent: usize| !refused.contains_key(&parent);
        for (_, gateway, listener) in record.counted.iter().filter(|(parent, ..)| is_placed(*parent)) {
            self.gateways[*gateway].listeners[*listener].attached += 1;
        }
        for attachment in record.attachments.iter().filter(|it| is_placed(it.parent)) {
            let gateway = self.gateways[attachment.gateway].gateway.metadata.key();
            for service in &record.services {
                self.upstreams.policies.add_ancestor(service, &gateway);
            }
            self.policies.add_ancestor(route, &gateway);
        }
        for served in record.served.iter().filter(|it| is_placed(it.parent)) {
            let ServedName { bind, of_listener, hostname, what, .. } = served;
            match what {
                ServedWhat::Routes(routes) => {
                    self.sites.add_routes((*bind, of_listener), hostname, (age, routes));
                }
                ServedWhat::Passed(shares) => {
                    self.sites.add_passthrough((*bind, of_listener), hostname, shares);
                }
            }
        }
        let mut status = record.status.clone();
        status.iter_mut().for_each(|status| refuse_parents(status, &refused));
        status
    }

    /// Passes the connections of a TLSRoute on at all listeners that it is attached to: as they are, or what is inside.
    fn pass_on(
        &mut self,
        route: &TlsRoute,
        from: Referrer<'_>,
        attachments: &[Attachment],
        (faults, served): (&mut RuleFaults, &mut Vec<ServedName>),
    ) {
        let [rule, others @ ..] = &route.spec.rules[..] else { return };
        let ends_here = |it: &Attachment| self.gateways[it.gateway].listeners[it.listener].ending().is_here();
        let (inside, behind): (Vec<_>, Vec<_>) = attachments.iter().partition(|it| ends_here(it));
        for (at, is_decrypted) in [(behind, false), (inside, true)] {
            // Without any attachment too: mistakes in backends do not depend on listeners.
            let is_needed = !at.is_empty() || (attachments.is_empty() && !is_decrypted);
            if is_needed {
                let shares = self.shares(rule, from, is_decrypted, faults);
                self.each_name(&at, |_| Ok(ServedWhat::Passed(shares.clone())), served).unwrap_or_default();
            }
        }
        faults.good += 1;
        if !others.is_empty() {
            let why = "a TLSRoute has one rule: its connections have nothing that rules could match";
            faults.unsupported.push(why.to_owned());
        }
    }

    /// Where the connections of a rule go.
    fn shares(
        &mut self,
        rule: &TlsRule,
        from: Referrer<'_>,
        is_decrypted: bool,
        faults: &mut RuleFaults,
    ) -> Arc<[PassthroughShare]> {
        let options = UpstreamOptions { is_passthrough: true, is_decrypted, ..UpstreamOptions::default() };
        let share = |backend: &BackendRef| {
            let found = self.upstreams.of_reference(from, backend, &options);
            let upstream = found.map_err(|why| faults.unresolved.get_or_insert(why).clone()).ok();
            PassthroughShare { weight: backend.weight.unwrap_or(1), upstream }
        };
        rule.backend_refs.iter().map(share).collect()
    }

    /// The rule, unless the site layer refuses it.
    fn known_good(&self, rule: CommonRule) -> Result<CommonRule, String> {
        self.refused.get(&rule.name).map_or(Ok(rule), |why| Err(why.clone()))
    }

    /// Serves a rule at all listeners that its route is attached to. Gateways that show backends another certificate have other upstreams.
    fn serve(
        &mut self,
        rule: &CommonRule,
        head: RouteHead<'_>,
        attachments: &[Attachment],
        (faults, served): (&mut RuleFaults, &mut Vec<ServedName>),
    ) -> Result<(), String> {
        let from = Referrer::of_gateway_api(head.kind, &head.metadata.namespace);
        let mut by_client: BTreeMap<Option<Identity>, Vec<&Attachment>> = BTreeMap::new();
        for attachment in attachments {
            let client = self.gateways[attachment.gateway].client.clone();
            by_client.entry(client).or_default().push(attachment);
        }
        // Without an attachment too: whether a rule is supported does not depend on listeners.
        if by_client.is_empty() {
            by_client.insert(None, Vec::new());
        }
        let invalid = Cell::new(None);
        for (client, attachments) in by_client {
            let mut rule = rule.clone();
            rule.options.client = client;
            let rule = ResolvedRule::new(rule, from, self.upstreams, faults);
            let routes = |origin| {
                let mut routes = rule.routes(origin)?;
                for (share, it) in routes.iter_mut().enumerate() {
                    if let Err(why) = self.policies.apply(head, share, &mut it.route) {
                        // A less specific route may lead to the same service, without the limit.
                        it.route = closed(&it.route);
                        invalid.set(Some(why));
                    }
                }
                Ok(ServedWhat::Routes(routes.into()))
            };
            routes(ListenerOrigin { is_https: false, port: 80 })?;
            self.each_name(&attachments, routes, served)?;
        }
        invalid.take().map_or(Ok(()), Err)
    }

    /// Adds what is served for each host name of each listener.
    fn each_name(
        &self,
        attachments: &[&Attachment],
        what: impl Fn(ListenerOrigin) -> Result<ServedWhat, String>,
        served: &mut Vec<ServedName>,
    ) -> Result<(), String> {
        for attachment in attachments {
            let listener = &self.gateways[attachment.gateway].listeners[attachment.listener];
            let Some(bind) = listener.bind else { continue };
            let what = what(ListenerOrigin { is_https: listener.is_https(), port: listener.listener.port })
                .map_err(|why| format!("at the listener {}: {why}", listener.listener.name))?;
            for hostname in &attachment.hostnames {
                let (of_listener, hostname) = (listener.hostname.clone(), hostname.clone());
                let parent = attachment.parent;
                served.push(ServedName { parent, bind, of_listener, hostname, what: what.clone() });
            }
        }
        Ok(())
    }
}
