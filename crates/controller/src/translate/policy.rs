//! `BackendTLSPolicy`: TLS to the servers of a service, whose certificates are checked.
//!
//! A policy that is invalid closes its service: without it, requests could go to servers that nobody has checked.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use flatout_tls::SubjectName;
use rustls::pki_types::ServerName;
use serde_json::{Value, json};

use super::Settings;
use super::certificate::Files;
use super::certificate_refs::bundle;
use super::grant::Referrer;
use crate::condition::{Condition, StatusUpdate};
use crate::kinds::policy::{AlternativeName, BackendTlsPolicy};
use crate::kinds::{GATEWAY_GROUP, Metadata, ObjectKey, oldest_first};
use crate::objects::{KINDS, Objects};

/// Gateways in the status of a policy, as the standard limits them.
const ANCESTORS_MAX: usize = 16;

/// How certificates of servers are checked.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct CheckedTls {
    /// The name for SNI, which certificates must have.
    pub(super) name: String,
    /// The names of which certificates must have one, instead of that one; empty: that one.
    pub(super) alternatives: Vec<SubjectName>,
    /// The file with CA certificates.
    pub(super) authorities: PathBuf,
}

/// All policies.
pub(super) struct Policies<'o> {
    states: Vec<PolicyState<'o>>,
    /// The policy of a service, or of one of its ports.
    targets: BTreeMap<(ObjectKey, Option<String>), usize>,
}

struct PolicyState<'o> {
    policy: &'o BackendTlsPolicy,
    /// What it demands, or that it is invalid.
    tls: Result<CheckedTls, ()>,
    conditions: Vec<Condition>,
    /// The gateways with routes to its services.
    ancestors: BTreeSet<ObjectKey>,
}

impl<'o> Policies<'o> {
    /// All policies; of several for one target, the oldest counts.
    pub(super) fn new(objects: &'o Objects, files: &mut Files) -> Policies<'o> {
        let mut policies = Policies { states: Vec::new(), targets: BTreeMap::new() };
        for policy in oldest_first(objects.tls_policies.values(), |it| &it.metadata) {
            let (tls, mut conditions) = checked(policy, objects, files);
            let at = policies.states.len();
            for target in policy.spec.target_refs.iter().filter(|it| it.kind == "Service") {
                let service = ObjectKey::new(&policy.metadata.namespace, &target.name);
                let first = *policies.targets.entry((service, target.section_name.clone())).or_insert(at);
                if first != at {
                    let older = policies.states[first].policy.metadata.key();
                    let message = format!("the older policy {older} has the same target");
                    conditions.retain(|it| it.name != "Accepted");
                    conditions.push(Condition::bad("Accepted", "Conflicted", message));
                }
            }
            policies.states.push(PolicyState { policy, tls, conditions, ancestors: BTreeSet::new() });
        }
        policies
    }

    /// The policy for a port of a service, if there is one: what it demands, or why it cannot be met.
    pub(super) fn of(&self, service: &ObjectKey, port_name: &str) -> Option<Result<CheckedTls, String>> {
        let of = |section: Option<&str>| self.targets.get(&(service.clone(), section.map(str::to_owned)));
        let state = &self.states[*of(Some(port_name)).or_else(|| of(None))?];
        let invalid = |()| format!("the BackendTLSPolicy {} is invalid", state.policy.metadata.key());
        Some(state.tls.clone().map_err(invalid))
    }

    /// What each target demands, or the policy that is invalid.
    pub(super) fn by_target(&self) -> BTreeMap<(ObjectKey, Option<String>), Result<CheckedTls, ObjectKey>> {
        let demand = |at: usize| {
            let state = &self.states[at];
            state.tls.clone().map_err(|()| state.policy.metadata.key())
        };
        self.targets.iter().map(|(target, at)| (target.clone(), demand(*at))).collect()
    }

    /// Notes that routes of a gateway lead to a service.
    pub(super) fn add_ancestor(&mut self, service: &ObjectKey, gateway: &ObjectKey) {
        for state in self.states.iter_mut().filter(|it| it.policy.metadata.namespace == service.namespace) {
            let targets = &state.policy.spec.target_refs;
            if targets.iter().any(|it| it.kind == "Service" && it.name == service.name) {
                state.ancestors.insert(gateway.clone());
            }
        }
    }

    /// The statuses of those that concern a gateway of this controller.
    pub(super) fn statuses(&self, settings: &Settings) -> Vec<Arc<StatusUpdate>> {
        let used = self.states.iter().filter(|it| !it.ancestors.is_empty());
        let status = |it: &PolicyState<'_>| {
            policy_status("BackendTLSPolicy", &it.policy.metadata, &it.conditions, &it.ancestors, settings)
        };
        used.filter_map(status).collect()
    }
}

/// The status of a policy, for each gateway that it concerns.
pub(super) fn policy_status(
    kind: &'static str,
    metadata: &Metadata,
    conditions: &[Condition],
    gateways: &BTreeSet<ObjectKey>,
    settings: &Settings,
) -> Option<Arc<StatusUpdate>> {
    let conditions: Vec<Value> = conditions.iter().map(|it| it.json(metadata.generation)).collect();
    let ancestor = |gateway: &ObjectKey| {
        json!({
            "ancestorRef": {
                "group": GATEWAY_GROUP, "kind": "Gateway", "namespace": gateway.namespace, "name": gateway.name,
            },
            "controllerName": settings.controller_name,
            "conditions": conditions,
        })
    };
    let ancestors: Vec<Value> = gateways.iter().take(ANCESTORS_MAX).map(ancestor).collect();
    let kind = KINDS.iter().find(|it| it.name == kind)?;
    let status = json!({"ancestors": ancestors});
    Some(Arc::new(StatusUpdate::new(kind, metadata.key(), status)))
}

/// What a policy demands, and its conditions.
fn checked(
    policy: &BackendTlsPolicy,
    objects: &Objects,
    files: &mut Files,
) -> (Result<CheckedTls, ()>, Vec<Condition>) {
    let validation = &policy.spec.validation;
    let invalid = |message| (Err(()), vec![Condition::bad("Accepted", "Invalid", message)]);
    if let Some(name) = &validation.well_known {
        return invalid(format!("the well-known CA certificates {name}; name a ConfigMap"));
    }
    if !is_name(&validation.hostname) {
        return invalid(format!("got the hostname `{}`, need one such as example.org", validation.hostname));
    }
    let named: Result<Vec<_>, _> = validation.subject_alt_names.iter().map(alternative).collect();
    let mut alternatives = match named {
        Ok(alternatives) => alternatives,
        Err(message) => return invalid(message),
    };
    alternatives.sort();
    let from = Referrer::of_gateway_api("BackendTLSPolicy", &policy.metadata.namespace);
    let (bundle, fault) = bundle(from, &validation.authorities, "InvalidKind", objects);
    let resolved = match fault {
        Some((reason, message)) => Condition::bad("ResolvedRefs", reason, message),
        None => Condition::good("ResolvedRefs"),
    };
    if bundle.is_empty() {
        let accepted = Condition::bad("Accepted", "NoValidCACertificate", "there is no valid CA certificate");
        return (Err(()), vec![accepted, resolved]);
    }
    let authorities = files.add("ca", bundle);
    let tls = CheckedTls { name: validation.hostname.clone(), alternatives, authorities };
    (Ok(tls), vec![Condition::good("Accepted"), resolved])
}

/// Whether a server can be asked for a certificate of this name. One that TLS refuses would be refused with the whole plan.
fn is_name(text: &str) -> bool {
    ServerName::try_from(text).is_ok()
}

/// A name of which certificates must have one.
///
/// # Errors
/// It is of an unknown type, or has no value.
fn alternative(name: &AlternativeName) -> Result<SubjectName, String> {
    match (name.kind.as_str(), name.hostname.as_str(), name.uri.as_str()) {
        ("Hostname", host, _) if is_name(host) => Ok(SubjectName::Dns(host.to_ascii_lowercase())),
        ("URI", _, uri) if !uri.is_empty() => Ok(SubjectName::Uri(uri.to_owned())),
        ("Hostname" | "URI", ..) => {
            Err(format!("a name of the type {} without a value, or with an invalid one", name.kind))
        }
        (other, ..) => Err(format!("got a name of the type `{other}`, need Hostname or URI")),
    }
}
