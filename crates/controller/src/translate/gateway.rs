//! Gateways: their listeners and those of their ListenerSets, their addresses, their certificate for backends, and their status.

use std::net::IpAddr;
use std::sync::Arc;

use flatout_tls::Identity;
use serde_json::{Value, json};

use super::Settings;
use super::address::assigned;
use super::certificate::Files;
use super::certificate_refs::identity;
use super::client_validation::ClientRules;
use super::grant::Referrer;
use super::listener::{ListenerState, Listening, across};
use super::listener_set::{SetState, sets_of};
use crate::condition::{Condition, StatusUpdate};
use crate::kinds::gateway::Gateway;
use crate::kinds::{GATEWAY_GROUP, ObjectKey, oldest_first};
use crate::objects::{Objects, find_kind};

/// A gateway of this controller.
pub(super) struct GatewayState<'o> {
    pub(super) gateway: &'o Gateway,
    /// Its own, then those of its ListenerSets.
    pub(super) listeners: Vec<ListenerState<'o>>,
    pub(super) sets: Vec<SetState<'o>>,
    pub(super) address: Option<IpAddr>,
    /// The certificate that backends are shown.
    pub(super) client: Option<Identity>,
    /// Why none of its listeners is served.
    refusal: Option<Condition>,
    /// Conditions that not all gateways have.
    further: Vec<Condition>,
}

/// The gateways of this controller, the oldest first.
pub(super) fn gateways<'o>(
    objects: &'o Objects,
    settings: &Settings,
    files: &mut Files,
) -> Vec<GatewayState<'o>> {
    let is_ours = |it: &&Gateway| {
        let class = objects.gateway_classes.get(&ObjectKey::new("", &it.spec.gateway_class_name));
        class.is_some_and(|class| class.spec.controller_name == settings.controller_name)
    };
    let ours = oldest_first(objects.gateways.values().filter(is_ours), |it| &it.metadata);
    let addresses = assigned(&ours, settings);
    let mut sets = sets_of(&ours, objects);
    let mut states = Vec::new();
    for (gateway, address) in ours.into_iter().zip(addresses) {
        let address = refused_parameters(gateway).map_or(address, Err);
        let (address, refusal) = match address {
            Ok(address) => (Some(address), None),
            Err(refusal) => (None, Some(refusal)),
        };
        let rules = ClientRules::of(gateway, objects, files);
        let (client, mut further) = backend_certificate(gateway, objects, files);
        further.extend(rules.insecure());
        let sets = sets.remove(&gateway.metadata.key()).unwrap_or_default();
        let listening = Listening { objects, settings, files: &mut *files, address, rules: &rules };
        let listeners = listening.of_gateway(gateway, &sets);
        states.push(GatewayState { gateway, listeners, sets, address, client, refusal, further });
    }
    across(&mut states);
    states
}

/// Why a gateway is refused that asks for parameters.
fn refused_parameters(gateway: &Gateway) -> Option<Condition> {
    let parameters = gateway.spec.infrastructure.as_ref().and_then(|it| it.parameters_ref.as_ref());
    let message = "infrastructure.parametersRef is not supported; remove it";
    parameters.map(|_| Condition::bad("Accepted", "InvalidParameters", message))
}

/// The certificate that backends of a gateway are shown, and whether it was found.
fn backend_certificate(
    gateway: &Gateway,
    objects: &Objects,
    files: &mut Files,
) -> (Option<Identity>, Vec<Condition>) {
    let backend = gateway.spec.tls.as_ref().and_then(|tls| tls.backend.as_ref());
    let Some(reference) = backend.and_then(|it| it.client_certificate_ref.as_ref()) else {
        return (None, Vec::new());
    };
    let from = Referrer::of_gateway_api("Gateway", &gateway.metadata.namespace);
    match identity(from, reference, "InvalidClientCertificateRef", objects, files) {
        Ok(found) => (Some(found), vec![Condition::good("ResolvedRefs")]),
        Err((reason, message)) => (None, vec![Condition::bad("ResolvedRefs", reason, message)]),
    }
}

impl<'o> GatewayState<'o> {
    /// Its listeners that are in none of its ListenerSets, or those of one.
    pub(super) fn listeners_of(&self, set: Option<usize>) -> impl Iterator<Item = &ListenerState<'o>> {
        self.listeners.iter().filter(move |it| it.set == set)
    }

    /// Whether its listeners could be served.
    pub(super) fn is_accepted(&self) -> bool {
        self.refusal.is_none()
    }

    /// Its status, once routes are attached, and those of its ListenerSets.
    pub(super) fn statuses(&self, settings: &Settings) -> Vec<Arc<StatusUpdate>> {
        let kind = |name| find_kind(&format!("{GATEWAY_GROUP}/v1"), name);
        let (Some(of_gateway), Some(of_set)) = (kind("Gateway"), kind("ListenerSet")) else {
            return Vec::new();
        };
        let update = |kind, key, status| Arc::new(StatusUpdate::new(kind, key, status));
        let mut all = vec![update(of_gateway, self.gateway.metadata.key(), self.status(settings))];
        for (at, set) in self.sets.iter().enumerate() {
            all.push(update(of_set, set.set.metadata.key(), set.status(at, self)));
        }
        all
    }

    fn status(&self, settings: &Settings) -> Value {
        let generation = self.gateway.metadata.generation;
        let is_bad = self.listeners_of(None).any(|it| it.bind.is_none());
        let is_any_accepted = self.listeners_of(None).any(ListenerState::is_accepted);
        let message = "some listeners are not served".to_owned();
        let mut conditions = match &self.refusal {
            Some(refusal) if refusal.name == "Programmed" => {
                vec![Condition::good("Accepted"), refusal.clone()]
            }
            Some(refusal) => {
                vec![refusal.clone(), Condition::bad("Programmed", "Invalid", refusal.message.clone())]
            }
            None if !is_any_accepted && is_bad => {
                let message = "no listener is accepted";
                vec![
                    Condition::bad("Accepted", "ListenersNotValid", message),
                    Condition::bad("Programmed", "Invalid", message),
                ]
            }
            None if is_bad => vec![
                Condition { reason: "ListenersNotValid", message, ..Condition::good("Accepted") },
                Condition::good("Programmed"),
            ],
            None => vec![Condition::good("Accepted"), Condition::good("Programmed")],
        };
        conditions.extend(self.further.iter().cloned());
        let published = match self.address {
            _ if !settings.published.is_empty() => settings.published.clone(),
            Some(address) if !address.is_unspecified() => vec![address.to_string()],
            _ => Vec::new(),
        };
        let kind_of = |text: &str| if text.parse::<IpAddr>().is_ok() { "IPAddress" } else { "Hostname" };
        let addresses: Vec<Value> =
            published.iter().map(|text| json!({"type": kind_of(text), "value": text})).collect();
        let conditions: Vec<Value> = conditions.iter().map(|it| it.json(generation)).collect();
        let listeners: Vec<Value> = self.listeners_of(None).map(|it| it.status(generation)).collect();
        let sets = (0..self.sets.len()).filter(|at| self.sets[*at].is_accepted(*at, self)).count();
        let mut status =
            json!({"conditions": conditions, "listeners": listeners, "attachedListenerSets": sets});
        if !addresses.is_empty() {
            status["addresses"] = Value::Array(addresses);
        }
        status
    }
}
