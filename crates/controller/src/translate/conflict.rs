//! Routes that want the same requests: the older one wins, and the status of the other one says so.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use flatout_site::plan::{PathMatch, Route};
use serde_json::Value;

use super::attach::Attachment;
use super::hostname::HostName;
use crate::condition::{Condition, StatusUpdate};
use crate::kinds::ObjectKey;

/// Conflicts that the status of an object names.
const NAMED_MAX: usize = 5;

/// A gateway, a listener of it, and a kind of routes.
type TakenAt = (usize, usize, &'static str);

/// Host names that routes of a kind have at a listener, and which. One that HTTPRoutes have is not for GRPCRoutes, and the other
/// way round, as the standard demands.
#[derive(Default)]
pub(super) struct TakenNames(HashMap<TakenAt, Vec<(HostName, ObjectKey)>>);

impl TakenNames {
    /// Takes the names of a route, unless an older one of the other kind has some of them. Returns the parents that therefore do not
    /// serve the route, and why.
    pub(super) fn take(
        &mut self,
        (kind, key): &(&'static str, ObjectKey),
        attachments: &[Attachment],
    ) -> BTreeMap<usize, Condition> {
        let other_kind = match *kind {
            "HTTPRoute" => "GRPCRoute",
            "GRPCRoute" => "HTTPRoute",
            _ => return BTreeMap::new(),
        };
        let mut refused = BTreeMap::new();
        for it in attachments {
            let others = self.0.get(&(it.gateway, it.listener, other_kind)).into_iter().flatten();
            let is_taken = |name: &HostName| it.hostnames.iter().any(|own| own.intersection(name).is_some());
            if let Some((name, older)) = others.into_iter().find(|(name, _)| is_taken(name)) {
                let message =
                    format!("the older {other_kind} {older} has the host name {name} at this listener");
                refused.entry(it.parent).or_insert_with(|| Condition::bad("Accepted", "Conflicted", message));
            }
        }
        for it in attachments.iter().filter(|it| !refused.contains_key(&it.parent)) {
            let own = self.0.entry((it.gateway, it.listener, kind)).or_default();
            own.extend(it.hostnames.iter().map(|name| (name.clone(), key.clone())));
        }
        refused
    }
}

/// Says in the status of a route that some parents do not serve it.
pub(super) fn refuse_parents(status: &mut Arc<StatusUpdate>, refused: &BTreeMap<usize, Condition>) {
    if refused.is_empty() {
        return;
    }
    let parents = Arc::make_mut(status).status.get_mut("parents").and_then(Value::as_array_mut);
    for (at, parent) in parents.into_iter().flatten().enumerate() {
        let Some(condition) = refused.get(&at) else { continue };
        let conditions = parent.get_mut("conditions").and_then(Value::as_array_mut);
        for known in conditions.into_iter().flatten().filter(|it| it["type"] == condition.name) {
            *known = condition.json(known["observedGeneration"].as_i64().unwrap_or_default());
        }
    }
}

/// Routes of sites that get no requests, because a route of an older object has the same paths and conditions: their names, and the
/// names of those.
#[derive(Debug, Default)]
pub(super) struct Shadowed(BTreeMap<String, String>);

impl Shadowed {
    /// Adds those of one site, whose routes are in the order in which they are tried.
    pub(super) fn add(&mut self, routes: &[Route]) {
        let mut first: HashMap<(&PathMatch, Vec<&str>), &str> = HashMap::new();
        for route in routes {
            let (shares, mut conditions): (Vec<&str>, Vec<&str>) =
                route.when.iter().map(|it| it.source()).partition(|it| it.starts_with("random <"));
            conditions.sort_unstable();
            let key = (&route.path, conditions);
            match first.get(&key) {
                Some(older) if object_of(older) != object_of(&route.name) => {
                    self.0.entry(route.name.clone()).or_insert_with(|| (*older).to_owned());
                }
                Some(_) => {}
                // One with a share leaves requests to those behind it.
                None if shares.is_empty() => drop(first.insert(key, &route.name)),
                None => {}
            }
        }
    }

    /// Says so in the statuses of their objects.
    pub(super) fn report(&self, statuses: &mut [Arc<StatusUpdate>]) {
        let mut by_object: HashMap<&str, Vec<String>> = HashMap::new();
        for (name, older) in &self.0 {
            let (Some(object), Some(older)) = (object_of(name), object_of(older)) else { continue };
            let rest = name.get(object.len()..).unwrap_or_default();
            let what = match object.split('/').next() {
                Some("Ingress") => format!("the path {rest}"),
                _ => match rest.trim_start_matches('/').split_once('.') {
                    Some((rule, number)) => format!("rule {rule}, match {number}"),
                    None => rest.to_owned(),
                },
            };
            by_object.entry(object).or_default().push(format!("{what}: {}", older.replacen('/', " ", 1)));
        }
        if by_object.is_empty() {
            return;
        }
        for status in statuses {
            let object = format!("{}/{}", status.kind.name, status.key);
            let Some(conflicts) = by_object.get(object.as_str()) else { continue };
            let named: Vec<&str> = conflicts.iter().take(NAMED_MAX).map(String::as_str).collect();
            let more = conflicts.len().saturating_sub(NAMED_MAX);
            let more = if more > 0 { format!(", and {more} more") } else { String::new() };
            let message = format!("an older object has the same requests: {}{more}", named.join(", "));
            Arc::make_mut(status).add_conflict(message);
        }
    }
}

/// The object of a route's name, such as `HTTPRoute/default/a` of `HTTPRoute/default/a/0.1`.
pub(super) fn object_of(name: &str) -> Option<&str> {
    let (end, _) = name.match_indices('/').nth(2)?;
    name.get(..end)
}
