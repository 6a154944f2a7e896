//! ListenerSets: listeners that others add to a gateway, if it allows that.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::gateway::GatewayState;
use crate::condition::Condition;
use crate::kinds::gateway::{AllowedNamespaces, Gateway, ListenerSet};
use crate::kinds::{ObjectKey, oldest_first};
use crate::objects::Objects;

/// Listeners that ListenerSets may add to a gateway. Each may become a site, of which a plan has some thousands.
const ADDED_LISTENERS_MAX: usize = 1024;

/// A ListenerSet of a gateway of this controller.
pub(super) struct SetState<'o> {
    pub(super) set: &'o ListenerSet,
    /// Why the gateway does not have its listeners.
    pub(super) refusal: Option<String>,
}

/// The ListenerSets of each gateway, the oldest first.
pub(super) fn sets_of<'o>(
    gateways: &[&Gateway],
    objects: &'o Objects,
) -> BTreeMap<ObjectKey, Vec<SetState<'o>>> {
    let known: BTreeMap<ObjectKey, &Gateway> = gateways.iter().map(|it| (it.metadata.key(), *it)).collect();
    let mut found: BTreeMap<ObjectKey, Vec<SetState<'o>>> = BTreeMap::new();
    let mut counts: BTreeMap<ObjectKey, usize> = BTreeMap::new();
    for set in oldest_first(objects.listener_sets.values(), |it| &it.metadata) {
        let parent = set.spec.parent_ref.target(&set.metadata.namespace);
        let Some(("Gateway", key)) = parent else { continue };
        let Some(gateway) = known.get(&key) else { continue };
        let count = counts.entry(key.clone()).or_default();
        let refusal = refusal(gateway, set, *count, objects);
        if refusal.is_none() {
            *count += set.spec.listeners.len();
        }
        found.entry(key).or_default().push(SetState { set, refusal });
    }
    found
}

/// Why a gateway does not have the listeners of a set; `count` listeners were added to it before.
fn refusal(gateway: &Gateway, set: &ListenerSet, count: usize, objects: &Objects) -> Option<String> {
    let allowed = gateway.spec.allowed_listeners.as_ref().and_then(|it| it.namespaces.as_ref());
    // Unlike routes, sets of the same namespace are not allowed unless the gateway says so.
    let is_silent = allowed.is_none_or(|it| it.from.is_none());
    let namespaces = (gateway.metadata.namespace.as_str(), set.metadata.namespace.as_str());
    if is_silent || !AllowedNamespaces::allow(allowed, namespaces, objects) {
        return Some(
            "the gateway does not allow ListenerSets of this namespace (allowedListeners)".to_owned(),
        );
    }
    let all = count + set.spec.listeners.len();
    (all > ADDED_LISTENERS_MAX)
        .then(|| format!("{all} listeners in ListenerSets of one gateway; allowed are {ADDED_LISTENERS_MAX}"))
}

impl AllowedNamespaces {
    /// Whether objects of the second namespace may attach to an object of the first one; without rules those of the same may.
    pub(super) fn allow(
        rules: Option<&AllowedNamespaces>,
        (own, other): (&str, &str),
        objects: &Objects,
    ) -> bool {
        match rules.and_then(|it| it.from.as_deref()).unwrap_or("Same") {
            "All" => true,
            "Same" => own == other,
            "Selector" => {
                let namespace = objects.namespaces.get(&ObjectKey::new("", other));
                let labels = namespace.map(|it| &it.metadata.labels);
                let selector = rules.and_then(|it| it.selector.as_ref());
                selector.is_some_and(|selector| selector.matches(labels.unwrap_or(&Default::default())))
            }
            _ => false,
        }
    }
}

impl SetState<'_> {
    /// Whether the gateway has any of its listeners. `at` is its place among the sets of the gateway.
    pub(super) fn is_accepted(&self, at: usize, gateway: &GatewayState<'_>) -> bool {
        self.refusal.is_none()
            && gateway.is_accepted()
            && gateway.listeners_of(Some(at)).any(|it| it.bind.is_some())
    }

    /// Its status, once routes are attached.
    pub(super) fn status(&self, at: usize, gateway: &GatewayState<'_>) -> Value {
        let generation = self.set.metadata.generation;
        let is_bad = gateway.listeners_of(Some(at)).any(|it| it.bind.is_none());
        let bad = |reason, message: &str| {
            ["Accepted", "Programmed"].map(|name| Condition::bad(name, reason, message))
        };
        let conditions = match &self.refusal {
            Some(why) => bad("NotAllowed", why),
            None if !gateway.is_accepted() => bad("ParentNotAccepted", "the gateway is not accepted"),
            None if !self.is_accepted(at, gateway) => bad("ListenersNotValid", "no listener is served"),
            None if is_bad => {
                let message = "some listeners are not served".to_owned();
                let accepted =
                    Condition { reason: "ListenersNotValid", message, ..Condition::good("Accepted") };
                [accepted, Condition::good("Programmed")]
            }
            None => ["Accepted", "Programmed"].map(Condition::good),
        };
        let conditions: Vec<Value> = conditions.iter().map(|it| it.json(generation)).collect();
        let listeners: Vec<Value> = gateway.listeners_of(Some(at)).map(|it| it.status(generation)).collect();
        json!({"conditions": conditions, "listeners": listeners})
    }
}
