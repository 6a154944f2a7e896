//! `BackendTLSPolicy`: TLS to the servers of a service, whose certificates are checked.
//!
//! A policy that is invalid closes its service: without it, requests could go to servers that nobody has checked.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use flatout_tls::Certificate;
use serde_json::{Value, json};

use super::Settings;
use super::certificate::Files;
use crate::condition::{Condition, StatusUpdate};
use crate::kinds::policy::{AuthorityRef, BackendTlsPolicy};
use crate::kinds::{GATEWAY_GROUP, ObjectKey};
use crate::objects::{Objects, find_kind};

/// Gateways in the status of a policy, as the standard limits them.
const ANCESTORS_MAX: usize = 16;

/// How certificates of servers are checked.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct CheckedTls {
    /// The name for SNI, which certificates must have.
    pub(super) name: String,
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
        let mut sorted: Vec<&BackendTlsPolicy> = objects.tls_policies.values().collect();
        sorted.sort_by_key(|policy| policy.metadata.age());
        let mut policies = Policies { states: Vec::new(), targets: BTreeMap::new() };
        for policy in sorted {
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
        let Some(kind) = find_kind(&format!("{GATEWAY_GROUP}/v1"), "BackendTLSPolicy") else {
            return Vec::new();
        };
        let used = self.states.iter().filter(|it| !it.ancestors.is_empty());
        let status = |state: &PolicyState<'_>| {
            let generation = state.policy.metadata.generation;
            let conditions: Vec<Value> = state.conditions.iter().map(|it| it.json(generation)).collect();
            let ancestor = |gateway: &ObjectKey| {
                json!({
                    "ancestorRef": {
                        "group": GATEWAY_GROUP, "kind": "Gateway", "namespace": gateway.namespace, "name": gateway.name,
                    },
                    "controllerName": settings.controller_name,
                    "conditions": conditions,
                })
            };
            let ancestors: Vec<Value> = state.ancestors.iter().take(ANCESTORS_MAX).map(ancestor).collect();
            let key = state.policy.metadata.key();
            let status = json!({"ancestors": ancestors});
            Arc::new(StatusUpdate { kind, key, status, notes: Vec::new() })
        };
        used.map(status).collect()
    }
}

/// What a policy demands, and its conditions.
fn checked(
    policy: &BackendTlsPolicy,
    objects: &Objects,
    files: &mut Files,
) -> (Result<CheckedTls, ()>, Vec<Condition>) {
    let validation = &policy.spec.validation;
    let unsupported = match (&validation.well_known, validation.subject_alt_names.is_empty()) {
        (Some(name), _) => Some(format!("the well-known CA certificates {name}; name a ConfigMap")),
        (None, false) => Some("subjectAltNames are not supported".to_owned()),
        (None, true) => None,
    };
    if let Some(message) = unsupported {
        return (Err(()), vec![Condition::bad("Accepted", "Invalid", message)]);
    }
    let mut bundle = Vec::new();
    let mut fault = None;
    for reference in &validation.authorities {
        match authorities(reference, &policy.metadata.namespace, objects) {
            Ok(text) => bundle.extend_from_slice(format!("{}\n", text.trim_end()).as_bytes()),
            Err(found) => fault = fault.or(Some(found)),
        }
    }
    let resolved = match fault {
        Some((reason, message)) => Condition::bad("ResolvedRefs", reason, message),
        None => Condition::good("ResolvedRefs"),
    };
    if bundle.is_empty() {
        let accepted = Condition::bad("Accepted", "NoValidCACertificate", "there is no valid CA certificate");
        return (Err(()), vec![accepted, resolved]);
    }
    let authorities = files.add("ca", bundle);
    let tls = CheckedTls { name: validation.hostname.clone(), authorities };
    (Ok(tls), vec![Condition::good("Accepted"), resolved])
}

/// The CA certificates that a reference leads to, or the reason of a condition.
fn authorities<'o>(
    reference: &AuthorityRef,
    namespace: &str,
    objects: &'o Objects,
) -> Result<&'o str, (&'static str, String)> {
    const INVALID: &str = "InvalidCACertificateRef";
    if !reference.group.is_empty() || reference.kind != "ConfigMap" {
        let message =
            format!("CA certificates of the kind {}; only ConfigMaps are supported", reference.kind);
        return Err(("InvalidKind", message));
    }
    let key = ObjectKey::new(namespace, &reference.name);
    let config = objects.config_maps.get(&key).ok_or((INVALID, format!("there is no ConfigMap {key}")))?;
    let text = config.data.authorities.as_deref();
    let text = text.ok_or((INVALID, format!("the ConfigMap {key} has no ca.crt")))?;
    Certificate::check_authorities(text.as_bytes())
        .map_err(|why| (INVALID, format!("the ConfigMap {key}: ca.crt: {why}")))?;
    Ok(text)
}
