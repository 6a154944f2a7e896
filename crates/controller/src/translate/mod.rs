//! Objects in, a plan out: a pure function.
//!
//! ```text
//! Gateways ── listener: valid, bound, certificates ──> listeners ─┐
//! routes ──── attach: parents, namespaces, host names ────────────┼─> sites, one for each address and host name
//! TLSRoutes ─ pass_on: connections that are not looked into ──────┤
//!        ──── rule: matching, filter, backend ── upstreams ───────┤
//! Ingresses ──────────────────────────────────────────────────────┘   statuses, for whoever writes them back
//! ```
//!
//! A mistake in an object never stops the others: it is in the status of its object, and its requests get 500.

mod address;
mod annotation;
mod attach;
mod backend;
mod certificate;
mod endpoint;
mod filter;
mod grant;
mod hostname;
mod ingress;
mod listener;
mod policy;
mod precedence;
mod rule;
mod site;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use flatout_server::SiteListen;
use flatout_site::plan::{self as site_plan, PassthroughShare};
use flatout_tls::Profile;
use serde_json::{Value, json};

use self::attach::{Attachment, RouteHead, RuleFaults, attach, parents_status};
pub use self::backend::UpstreamBackend;
pub(crate) use self::backend::servers_of;
use self::backend::{Retry, UpstreamOptions, Upstreams};
pub use self::certificate::Files;
use self::filter::ListenerOrigin;
use self::grant::Referrer;
use self::ingress::IngressParts;
use self::listener::GatewayState;
use self::precedence::RequestMatch;
pub(crate) use self::precedence::parsed;
use self::rule::{CommonRule, ResolvedRule, duration};
use self::site::{FinishedSites, Sites};
pub(crate) use self::site::{health_site, number};
use crate::condition::{Condition, StatusUpdate};
use crate::kinds::route::{GrpcMatch, GrpcRule, HttpMatch, HttpRule, RouteSpec, TlsRoute, TlsRule};
use crate::kinds::{self, GATEWAY_GROUP, Object, ObjectKey};
use crate::objects::{Objects, find_kind};

/// The name of this controller in classes.
pub const CONTROLLER_NAME: &str = "flatout.dev/controller";

/// Retries of one request, at most: each takes a server's time.
const RETRIES_MAX: u32 = 16;

/// What the translation depends on, apart from objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The name in the classes that this controller serves.
    pub controller_name: String,
    /// The addresses at which gateways are bound. Gateways share the last one if there are more of them.
    pub addresses: Vec<IpAddr>,
    /// The addresses in the status of gateways, if not those above: of a load balancer, or a name.
    pub published: Vec<String>,
    /// Where `/healthz` and `/readyz` are served.
    pub health: Option<SocketAddr>,
    /// Addresses that the machine refuses for now: listeners there are not served.
    pub refused: BTreeSet<SocketAddr>,
    /// The addresses that gateways got last: [`Translation::assigned`].
    pub assigned: BTreeMap<ObjectKey, IpAddr>,
    /// The folder for certificates.
    pub folder: PathBuf,
}

/// What is served for some objects.
#[derive(Debug, Clone)]
pub struct Translation {
    /// Sites and upstreams.
    pub sites: site_plan::Plan,
    /// The addresses of each site.
    pub site_listen: Vec<Vec<SiteListen>>,
    /// The certificates of each site.
    pub site_secure: Vec<Option<Profile>>,
    /// Files that are written before.
    pub files: Files,
    /// The statuses of all objects of this controller.
    pub statuses: Vec<StatusUpdate>,
    /// The addresses of gateways.
    pub assigned: BTreeMap<ObjectKey, IpAddr>,
    /// Where the servers of each upstream come from.
    pub backends: Vec<UpstreamBackend>,
}

/// Translates all objects. A rule that the site layer refuses is left out, and said to be refused: that takes another translation.
pub fn translate(objects: &Objects, settings: &Settings) -> Translation {
    let mut refused = BTreeMap::new();
    loop {
        let (translation, removed) = translate_without(&refused, objects, settings);
        let before = refused.len();
        let mut others = Vec::new();
        for (route, why) in removed {
            // The name of a route is that of its rule and a number.
            match route.rsplit_once('.') {
                Some((rule, _)) if is_rule(rule) => drop(refused.insert(rule.to_owned(), why)),
                _ => others.push((route, why)),
            }
        }
        // Each round refuses at least one rule more.
        if refused.len() == before {
            for (route, why) in others {
                let message = format_args!("{route} is not served: {why}");
                flatout_engine::report(flatout_engine::Severity::Error, message);
            }
            return translation;
        }
    }
}

/// Whether a name is one of a route's rule.
fn is_rule(name: &str) -> bool {
    ["HTTPRoute/", "GRPCRoute/"].iter().any(|kind| name.starts_with(kind))
}

/// Translates all objects but these rules. Returns also the routes that the site layer refuses.
fn translate_without(
    refused: &BTreeMap<String, String>,
    objects: &Objects,
    settings: &Settings,
) -> (Translation, Vec<(String, String)>) {
    let mut files = Files::below(&settings.folder);
    let mut statuses = class_statuses(objects, settings);
    let mut gateways = listener::gateways(objects, settings, &mut files);
    let mut upstreams = Upstreams::new(objects, &mut files);
    let mut sites = Sites::default();
    sites.add_listeners(&gateways);
    let parts = &mut Parts {
        objects,
        settings,
        gateways: &mut gateways,
        upstreams: &mut upstreams,
        sites: &mut sites,
        refused,
    };
    let mut routes: Vec<AnyRoute<'_>> = objects.http_routes.values().map(AnyRoute::Http).collect();
    routes.extend(objects.grpc_routes.values().map(AnyRoute::Grpc));
    routes.extend(objects.tls_routes.values().map(AnyRoute::Tls));
    routes.sort_by(|one, other| one.head().metadata.age().cmp(&other.head().metadata.age()));
    for (age, route) in routes.iter().enumerate() {
        statuses.extend(parts.add(route, age));
    }
    statuses.extend(gateways.iter().filter_map(|gateway| gateway.status(settings)));
    statuses.extend(upstreams.policies.statuses(settings));
    let mut rates = Vec::new();
    let ingresses = IngressParts {
        objects,
        settings,
        upstreams: &mut upstreams,
        sites: &mut sites,
        files: &mut files,
        rates: &mut rates,
    };
    statuses.extend({ ingresses }.add_all());
    sites.add_health(settings.health);
    let FinishedSites { plan: sites, listens: site_listen, secure: site_secure, removed } =
        sites.finish(upstreams.list, rates);
    let backends = upstreams.backends;
    let assigned = gateways.iter().filter_map(|it| Some((it.gateway.metadata.key(), it.address?))).collect();
    (Translation { sites, site_listen, site_secure, files, statuses, assigned, backends }, removed)
}

/// A route of a kind.
enum AnyRoute<'o> {
    Http(&'o Object<RouteSpec<HttpRule>>),
    Grpc(&'o Object<RouteSpec<GrpcRule>>),
    Tls(&'o Object<RouteSpec<TlsRule>>),
}

/// What routes are added to.
struct Parts<'p, 'o> {
    objects: &'o Objects,
    settings: &'p Settings,
    gateways: &'p mut Vec<GatewayState<'o>>,
    upstreams: &'p mut Upstreams<'o>,
    sites: &'p mut Sites,
    /// Rules that the site layer refuses, and why.
    refused: &'p BTreeMap<String, String>,
}

impl Parts<'_, '_> {
    /// Adds a route. Returns its status, if a parent is of this controller.
    fn add(&mut self, route: &AnyRoute<'_>, age: usize) -> Option<StatusUpdate> {
        let head = route.head();
        let (attachments, parents) = attach(head, self.gateways, self.objects);
        if parents.is_empty() {
            return None;
        }
        self.upstreams.looked_up.clear();
        let from = Referrer { group: GATEWAY_GROUP, kind: head.kind, namespace: &head.metadata.namespace };
        let mut faults = RuleFaults::default();
        if let AnyRoute::Tls(route) = route {
            self.pass_on(route, from, &attachments, &mut faults);
        }
        for rule in route.rules() {
            let rule = match rule.and_then(|rule| self.known_good(rule)) {
                Ok(rule) => ResolvedRule::new(rule, from, self.upstreams, &mut faults),
                Err(why) => {
                    faults.unsupported.push(why);
                    continue;
                }
            };
            match self.serve(&rule, &attachments, age) {
                Ok(()) => faults.good += 1,
                Err(why) => faults.unsupported.push(why),
            }
        }
        for attachment in &attachments {
            let gateway = self.gateways[attachment.gateway].gateway.metadata.key();
            for service in &self.upstreams.looked_up {
                self.upstreams.policies.add_ancestor(service, &gateway);
            }
        }
        if route.rules_count() == 0 {
            faults.good += 1;
        }
        let status = parents_status(head, &parents, &faults, self.settings);
        let kind = find_kind(&format!("{GATEWAY_GROUP}/v1"), head.kind)?;
        Some(StatusUpdate { kind, key: head.metadata.key(), status, notes: Vec::new() })
    }

    /// Passes the connections of a TLSRoute on at all listeners that it is attached to.
    fn pass_on(
        &mut self,
        route: &TlsRoute,
        from: Referrer<'_>,
        attachments: &[Attachment],
        faults: &mut RuleFaults,
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
        for attachment in attachments {
            let listener = &self.gateways[attachment.gateway].listeners[attachment.listener];
            let Some(bind) = listener.bind else { continue };
            for hostname in &attachment.hostnames {
                self.sites.add_passthrough((bind, &listener.hostname), hostname, &shares);
            }
        }
    }

    /// The rule, unless the site layer refuses it.
    fn known_good(&self, rule: CommonRule) -> Result<CommonRule, String> {
        self.refused.get(&rule.name).map_or(Ok(rule), |why| Err(why.clone()))
    }

    /// Serves a rule at all listeners that its route is attached to.
    fn serve(&mut self, rule: &ResolvedRule, attachments: &[Attachment], age: usize) -> Result<(), String> {
        // Also without an attachment: whether it is supported does not depend on listeners.
        rule.routes(ListenerOrigin { is_https: false, port: 80 }, age)?;
        for attachment in attachments {
            let listener = &self.gateways[attachment.gateway].listeners[attachment.listener];
            let Some(bind) = listener.bind else { continue };
            let origin = ListenerOrigin { is_https: listener.is_https(), port: listener.listener.port };
            let routes = rule.routes(origin, age)?;
            for hostname in &attachment.hostnames {
                self.sites.add_routes((bind, &listener.hostname), hostname, &routes);
            }
        }
        Ok(())
    }
}

impl AnyRoute<'_> {
    fn head(&self) -> RouteHead<'_> {
        match self {
            AnyRoute::Http(route) => RouteHead {
                kind: "HTTPRoute",
                metadata: &route.metadata,
                parents: &route.spec.parent_refs,
                hostnames: &route.spec.hostnames,
            },
            AnyRoute::Tls(route) => RouteHead {
                kind: "TLSRoute",
                metadata: &route.metadata,
                parents: &route.spec.parent_refs,
                hostnames: &route.spec.hostnames,
            },
            AnyRoute::Grpc(route) => RouteHead {
                kind: "GRPCRoute",
                metadata: &route.metadata,
                parents: &route.spec.parent_refs,
                hostnames: &route.spec.hostnames,
            },
        }
    }

    fn rules_count(&self) -> usize {
        match self {
            AnyRoute::Http(route) => route.spec.rules.len(),
            AnyRoute::Grpc(route) => route.spec.rules.len(),
            AnyRoute::Tls(route) => route.spec.rules.len(),
        }
    }

    /// Its rules in the form that all kinds for requests have in common, or what is not supported.
    fn rules(&self) -> Vec<Result<CommonRule, String>> {
        let (kind, key) = (self.head().kind, self.head().metadata.key());
        let name = |at: usize| format!("{kind}/{key}/{at}");
        match self {
            AnyRoute::Http(route) => {
                route.spec.rules.iter().enumerate().map(|(at, rule)| http_rule(rule, name(at))).collect()
            }
            AnyRoute::Grpc(route) => {
                route.spec.rules.iter().enumerate().map(|(at, rule)| grpc_rule(rule, name(at))).collect()
            }
            AnyRoute::Tls(_) => Vec::new(),
        }
    }
}

fn http_rule(rule: &HttpRule, name: String) -> Result<CommonRule, String> {
    let any = [HttpMatch::default()];
    let matches = if rule.matches.is_empty() { &any[..] } else { &rule.matches };
    let timeouts = rule.timeouts.clone().unwrap_or_default();
    let time = |text: &Option<String>| text.as_deref().map_or(Ok(None), duration);
    let options = UpstreamOptions {
        // A request that reaches either limit is not repeated, so the shorter one counts.
        request_time: [time(&timeouts.request)?, time(&timeouts.backend_request)?]
            .into_iter()
            .flatten()
            .min(),
        retry: rule.retry.as_ref().map(retry).transpose()?,
        ..UpstreamOptions::default()
    };
    Ok(CommonRule {
        name,
        matches: matches.iter().map(RequestMatch::of_http).collect::<Result<_, _>>()?,
        filters: rule.filters.clone(),
        backends: rule.backend_refs.clone(),
        options,
    })
}

/// Which requests of a rule are sent again.
///
/// # Errors
/// A status that is no error, or too many attempts.
fn retry(retry: &kinds::route::RouteRetry) -> Result<Retry, String> {
    if let Some(code) = retry.codes.iter().find(|code| !(400..600).contains(*code)) {
        return Err(format!("retries for the status {code}; allowed are 400 to 599"));
    }
    if let Some(attempts) = retry.attempts.filter(|attempts| *attempts > RETRIES_MAX) {
        return Err(format!("{attempts} retries of a request; allowed are {RETRIES_MAX}"));
    }
    let mut statuses = retry.codes.clone();
    statuses.sort_unstable();
    statuses.dedup();
    Ok(Retry { statuses, attempts: retry.attempts })
}

fn grpc_rule(rule: &GrpcRule, name: String) -> Result<CommonRule, String> {
    let any = [GrpcMatch::default()];
    let matches = if rule.matches.is_empty() { &any[..] } else { &rule.matches };
    let of_backends = rule.backend_refs.iter().flat_map(|it| &it.filters);
    if rule.filters.iter().chain(of_backends).any(|filter| filter.kind == "RequestMirror") {
        return Err(
            "RequestMirror is not supported for gRPC: the length of its bodies is not known".to_owned()
        );
    }
    Ok(CommonRule {
        name,
        matches: matches.iter().map(RequestMatch::of_grpc).collect::<Result<_, _>>()?,
        filters: rule.filters.clone(),
        backends: rule.backend_refs.clone(),
        options: UpstreamOptions { is_h2c: true, ..UpstreamOptions::default() },
    })
}

/// The statuses of the classes of this controller.
fn class_statuses(objects: &Objects, settings: &Settings) -> Vec<StatusUpdate> {
    let Some(kind) = find_kind(&format!("{GATEWAY_GROUP}/v1"), "GatewayClass") else { return Vec::new() };
    let ours = objects
        .gateway_classes
        .values()
        .filter(|class| class.spec.controller_name == settings.controller_name);
    let status = |class: &Object<crate::kinds::gateway::GatewayClassSpec>| {
        let generation = class.metadata.generation;
        let accepted = match &class.spec.parameters_ref {
            None => Condition::good("Accepted"),
            Some(_) => {
                Condition::bad("Accepted", "InvalidParameters", "parametersRef is not supported; remove it")
            }
        };
        let features: Vec<Value> = FEATURES.iter().map(|name| json!({"name": name})).collect();
        let status = json!({"conditions": [accepted.json(generation)], "supportedFeatures": features});
        StatusUpdate { kind, key: class.metadata.key(), status, notes: Vec::new() }
    };
    ours.map(status).collect()
}

/// The features of the Gateway API that are supported, in the standard's order: sorted by name.
pub const FEATURES: &[&str] = &[
    "BackendTLSPolicy",
    "GRPCRoute",
    "GRPCRouteNamedRouteRule",
    "Gateway",
    "GatewayAddressEmpty",
    "GatewayHTTPListenerIsolation",
    "GatewayPort8080",
    "GatewayStaticAddresses",
    "HTTPRoute",
    "HTTPRoute303RedirectStatusCode",
    "HTTPRoute307RedirectStatusCode",
    "HTTPRoute308RedirectStatusCode",
    "HTTPRouteBackendProtocolH2C",
    "HTTPRouteBackendProtocolWebSocket",
    "HTTPRouteBackendRequestHeaderModification",
    "HTTPRouteBackendTimeout",
    "HTTPRouteCORS",
    "HTTPRouteHostRewrite",
    "HTTPRouteMethodMatching",
    "HTTPRouteNamedRouteRule",
    "HTTPRouteParentRefPort",
    "HTTPRoutePathRedirect",
    "HTTPRoutePathRewrite",
    "HTTPRoutePortRedirect",
    "HTTPRouteQueryParamMatching",
    "HTTPRouteRequestTimeout",
    "HTTPRouteResponseHeaderModification",
    "HTTPRouteSchemeRedirect",
    "ReferenceGrant",
    "TLSRoute",
];
