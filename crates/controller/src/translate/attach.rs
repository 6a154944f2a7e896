//! Which routes attach to which listeners, and why others do not.

use serde_json::{Value, json};

use super::Settings;
use super::backend::Unresolved;
use super::gateway::GatewayState;
use super::hostname::HostName;
use super::listener::ListenerState;
use crate::condition::Condition;
use crate::kinds::Metadata;
use crate::kinds::gateway::AllowedNamespaces;
use crate::kinds::route::ParentRef;
use crate::objects::Objects;

/// Parents of one route, as the standard limits them.
const PARENTS_MAX: usize = 32;

/// What a route is, apart from its rules.
#[derive(Clone, Copy)]
pub(super) struct RouteHead<'r> {
    pub(super) kind: &'static str,
    pub(super) metadata: &'r Metadata,
    pub(super) parents: &'r [ParentRef],
    pub(super) hostnames: &'r [String],
}

/// A listener that serves a route, for these host names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Attachment {
    /// The place of the parent that names the listener among those in the status.
    pub(super) parent: usize,
    pub(super) gateway: usize,
    pub(super) listener: usize,
    pub(super) hostnames: Vec<HostName>,
}

/// Where a route is attached.
pub(super) struct Attached<'r> {
    /// The listeners that serve it.
    pub(super) attachments: Vec<Attachment>,
    pub(super) parents: Vec<ParentState<'r>>,
    /// All listeners that it is attached to, also those that are not bound, as parent, gateway and listener.
    pub(super) counted: Vec<(usize, usize, usize)>,
}

/// A parent of a route, and whether the route is attached to it.
pub(super) struct ParentState<'r> {
    reference: &'r ParentRef,
    refusal: Option<Condition>,
}

/// What is wrong with the rules of a route.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct RuleFaults {
    /// Rules that are not supported or invalid.
    pub(super) unsupported: Vec<String>,
    /// The number of rules that are served.
    pub(super) good: usize,
    /// The first backend that was not found.
    pub(super) unresolved: Option<Unresolved>,
}

/// Attaches a route to its parents.
pub(super) fn attach<'r>(
    route: RouteHead<'r>,
    gateways: &[GatewayState<'_>],
    objects: &Objects,
) -> Attached<'r> {
    let (mut attachments, mut parents, mut counted) = (Vec::new(), Vec::new(), Vec::new());
    for reference in route.parents.iter().take(PARENTS_MAX) {
        let Some((at, set)) = find_parent(reference, &route.metadata.namespace, gateways) else { continue };
        let mut refusal = Condition::bad(
            "Accepted",
            "NoMatchingParent",
            "no listener of the parent has this name and port",
        );
        let mut is_attached = false;
        let listeners = gateways[at].listeners.iter().enumerate();
        for (listener_at, listener) in listeners.filter(|(_, it)| it.set == set) {
            let has_name = reference.section_name.as_ref().is_none_or(|name| *name == listener.listener.name);
            if !has_name || reference.port.is_some_and(|port| port != listener.listener.port) {
                continue;
            }
            if !is_allowed(route, listener, objects) {
                keep_worst(
                    &mut refusal,
                    "NotAllowedByListeners",
                    "the listener does not allow routes of this kind or namespace",
                );
                continue;
            }
            let hostnames = common_names(route.hostnames, &listener.hostname);
            if hostnames.is_empty() {
                keep_worst(
                    &mut refusal,
                    "NoMatchingListenerHostname",
                    "no host name of the route is one of the listener's",
                );
                continue;
            }
            is_attached = true;
            let parent = parents.len();
            counted.push((parent, at, listener_at));
            if listener.bind.is_some() {
                attachments.push(Attachment { parent, gateway: at, listener: listener_at, hostnames });
            }
        }
        parents.push(ParentState { reference, refusal: (!is_attached).then_some(refusal) });
    }
    Attached { attachments, parents, counted }
}

/// The gateway of a parent, and which of its ListenerSets the parent is, if it is one.
fn find_parent(
    reference: &ParentRef,
    own_namespace: &str,
    gateways: &[GatewayState<'_>],
) -> Option<(usize, Option<usize>)> {
    let (kind, key) = reference.target(own_namespace)?;
    let mut all = gateways.iter().enumerate();
    match kind {
        "Gateway" => all.find(|(_, it)| it.gateway.metadata.key() == key).map(|(at, _)| (at, None)),
        "ListenerSet" => all.find_map(|(at, gateway)| {
            let set = gateway.sets.iter().position(|it| it.set.metadata.key() == key)?;
            Some((at, Some(set)))
        }),
        _ => None,
    }
}

/// The reason that came closest to being attached is reported.
fn keep_worst(refusal: &mut Condition, reason: &'static str, message: &str) {
    let rank = |reason: &str| {
        ["NoMatchingParent", "NotAllowedByListeners", "NoMatchingListenerHostname"]
            .iter()
            .position(|it| *it == reason)
    };
    if rank(refusal.reason) < rank(reason) {
        *refusal = Condition::bad("Accepted", reason, message);
    }
}

fn is_allowed(route: RouteHead<'_>, listener: &ListenerState<'_>, objects: &Objects) -> bool {
    let allowed = listener.listener.allowed_routes.as_ref().and_then(|allowed| allowed.namespaces.as_ref());
    let namespaces = (listener.namespace, route.metadata.namespace.as_str());
    listener.kinds.contains(&route.kind) && AllowedNamespaces::allow(allowed, namespaces, objects)
}

/// The host names that a route and a listener have in common.
fn common_names(of_route: &[String], of_listener: &HostName) -> Vec<HostName> {
    if of_route.is_empty() {
        return vec![of_listener.clone()];
    }
    let names = of_route.iter().filter_map(|text| HostName::parse(Some(text)).ok());
    let mut common: Vec<HostName> = names.filter_map(|name| name.intersection(of_listener)).collect();
    common.sort();
    common.dedup();
    common
}

/// The `parents` of a route's status.
pub(super) fn parents_status(
    route: RouteHead<'_>,
    parents: &[ParentState<'_>],
    faults: &RuleFaults,
    settings: &Settings,
) -> Value {
    let of_parent = |parent: &ParentState<'_>| {
        let mut conditions = vec![match (&parent.refusal, &faults.unsupported[..]) {
            (Some(refusal), _) => refusal.clone(),
            (None, [first, ..]) if faults.good == 0 => {
                Condition::bad("Accepted", "UnsupportedValue", first.clone())
            }
            (None, _) => Condition::good("Accepted"),
        }];
        if faults.good > 0
            && let [first, ..] = &faults.unsupported[..]
        {
            conditions.push(Condition {
                is_true: true,
                ..Condition::bad("PartiallyInvalid", "UnsupportedValue", format!("dropped rule: {first}"))
            });
        }
        conditions.push(match &faults.unresolved {
            Some(unresolved) => unresolved.condition(),
            None => Condition::good("ResolvedRefs"),
        });
        let generation = route.metadata.generation;
        let conditions: Vec<Value> = conditions.iter().map(|it| it.json(generation)).collect();
        json!({
            "parentRef": parent.reference,
            "controllerName": settings.controller_name,
            "conditions": conditions,
        })
    };
    json!({"parents": parents.iter().map(of_parent).collect::<Vec<_>>()})
}
