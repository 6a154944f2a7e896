//! Objects in, a plan out: a pure function.
//!
//! ```text
//! Gateways, ListenerSets ── listener: valid, bound, ... ──> listeners ─┐
//! routes ──── attach: parents, namespaces, host names ────────────┼─> sites, one for each address and host name
//! TLSRoutes ─ pass_on: connections that are not looked into ──────┤
//!        ──── rule: matching, filter, backend ── upstreams ───────┤
//! Ingresses ──────────────────────────────────────────────────────┘   statuses, for whoever writes them back
//! ```
//!
//! A mistake in an object never stops the others: it is in the status of its object, and its requests get 500.

mod address;
mod annotation;
mod any_route;
mod attach;
mod auth_service;
mod backend;
mod certificate;
mod certificate_refs;
mod client_validation;
mod conflict;
mod endpoint;
mod filter;
mod gateway;
mod grant;
mod hostname;
mod ingress;
mod listener;
mod listener_set;
mod memo;
mod policy;
mod precedence;
mod record;
mod route_policy;
mod rule;
mod site;
mod surroundings;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use flatout_server::SiteListen;
use flatout_site::plan as site_plan;
use flatout_tls::Profile;
use serde_json::{Value, json};

pub(crate) use self::annotation::{BURST_MULTIPLIER, bytes};
pub use self::backend::UpstreamBackend;
pub(crate) use self::backend::servers_of;
pub use self::certificate::Files;
pub use self::memo::Translator;
pub(crate) use self::precedence::{
    anchored, escaped, is_special, literal_start, may_begin_otherwise, parsed,
};
pub(crate) use self::site::{health_site, number};
use crate::condition::{Condition, StatusUpdate};
use crate::kinds::{GATEWAY_GROUP, Object, ObjectKey};
use crate::objects::{ObjectChanges, Objects, find_kind};

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
    pub statuses: Vec<Arc<StatusUpdate>>,
    /// The addresses of gateways.
    pub assigned: BTreeMap<ObjectKey, IpAddr>,
    /// Where the servers of each upstream come from.
    pub backends: Vec<UpstreamBackend>,
}

/// Translates all objects. A rule that the site layer refuses is left out, and said to be refused: that takes another translation.
pub fn translate(objects: &Objects, settings: &Settings) -> Translation {
    Translator::default().translate(objects, ObjectChanges::default(), settings)
}

/// The statuses of the classes of this controller.
fn class_statuses(objects: &Objects, settings: &Settings) -> Vec<Arc<StatusUpdate>> {
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
        Arc::new(StatusUpdate::new(kind, class.metadata.key(), status))
    };
    ours.map(status).collect()
}

/// The features of the Gateway API that are supported, in the standard's order: sorted by name.
pub const FEATURES: &[&str] = &[
    "BackendTLSPolicy",
    "BackendTLSPolicySANValidation",
    "GRPCRoute",
    "GRPCRouteNamedRouteRule",
    "Gateway",
    "GatewayAddressEmpty",
    "GatewayBackendClientCertificate",
    "GatewayFrontendClientCertificateValidation",
    "GatewayFrontendClientCertificateValidationInsecureFallback",
    "GatewayHTTPListenerIsolation",
    "GatewayHTTPSListenerDetectMisdirectedRequests",
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
    "HTTPRouteDestinationPortMatching",
    "HTTPRouteHostRewrite",
    "HTTPRouteMethodMatching",
    "HTTPRouteNamedRouteRule",
    "HTTPRouteParentRefPort",
    "HTTPRoutePathRedirect",
    "HTTPRoutePathRewrite",
    "HTTPRoutePortRedirect",
    "HTTPRouteQueryParamMatching",
    "HTTPRouteRequestMirror",
    "HTTPRouteRequestMultipleMirrors",
    "HTTPRouteRequestPercentageMirror",
    "HTTPRouteRequestTimeout",
    "HTTPRouteResponseHeaderModification",
    "HTTPRouteSchemeRedirect",
    "ListenerSet",
    "ReferenceGrant",
    "TLSRoute",
    "TLSRouteModeMixed",
    "TLSRouteModeTerminate",
];
