//! Conditions in the status of objects.

use serde_json::{Value, json};

use crate::kinds::ObjectKey;
use crate::objects::Kind;

/// A condition, as the standard names it. The time of its last change is added by whoever writes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// Its type, such as `Accepted`.
    pub name: &'static str,
    /// Whether it is true.
    pub is_true: bool,
    /// The reason, one of the standard's words.
    pub reason: &'static str,
    /// The reason in words.
    pub message: String,
}

impl Condition {
    /// A condition that is true, with its name as the reason.
    pub fn good(name: &'static str) -> Condition {
        Condition { name, is_true: true, reason: name, message: String::new() }
    }

    /// A condition that is false.
    pub fn bad(name: &'static str, reason: &'static str, message: impl Into<String>) -> Condition {
        Condition { name, is_true: false, reason, message: message.into() }
    }

    /// As the API server takes it.
    pub(crate) fn json(&self, generation: i64) -> Value {
        json!({
            "type": self.name,
            "status": if self.is_true { "True" } else { "False" },
            "reason": self.reason,
            "message": self.message,
            "observedGeneration": generation,
        })
    }
}

/// The condition of a route that requests do not reach because an older object has them. The standard has none.
const CONFLICTED: &str = "flatout.dev/Conflicted";

/// The reason of a fault that is not a condition.
const NOTE_REASON: &str = "Invalid";

/// The status of an object, to be written back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatusUpdate {
    /// The kind.
    pub kind: &'static Kind,
    /// The object.
    pub key: ObjectKey,
    /// What the field `status` gets; other controllers' entries of `parents` are kept.
    pub status: Value,
    /// What is wrong with it and has no place in its status.
    pub notes: Vec<String>,
}

impl StatusUpdate {
    /// A status without notes.
    pub(crate) fn new(kind: &'static Kind, key: ObjectKey, status: Value) -> StatusUpdate {
        StatusUpdate { kind, key, status, notes: Vec::new() }
    }

    /// Notes that other objects get its requests: a condition of each parent of a route, and else a note.
    pub(crate) fn add_conflict(&mut self, message: String) {
        let Some(parents) = self.status.get_mut("parents").and_then(Value::as_array_mut) else {
            self.notes.push(message);
            return;
        };
        for conditions in parents.iter_mut().filter_map(|it| it.get_mut("conditions")?.as_array_mut()) {
            let generation = conditions.first().and_then(|it| it["observedGeneration"].as_i64());
            let condition =
                Condition { is_true: true, ..Condition::bad(CONFLICTED, "OlderObject", message.clone()) };
            conditions.push(condition.json(generation.unwrap_or_default()));
        }
    }

    /// What is wrong with it: conditions that are false, as `Accepted Reason`, and notes.
    pub fn faults(&self) -> Vec<String> {
        self.faults_with_reasons().into_iter().map(|(_, fault)| fault).collect()
    }

    /// The same faults, each after its reason. The reason of a note is `Invalid`.
    pub(crate) fn faults_with_reasons(&self) -> Vec<(&str, String)> {
        let mut found = self.notes.iter().map(|note| (NOTE_REASON, note.clone())).collect();
        collect_faults(&self.status, &mut found);
        found
    }
}

fn collect_faults<'s>(value: &'s Value, found: &mut Vec<(&'s str, String)>) {
    match value {
        Value::Object(map) => {
            let text = |name: &str| map.get(name).and_then(Value::as_str).unwrap_or_default();
            // Only these are bad when they are true.
            let is_inverse = matches!(
                text("type"),
                "Conflicted" | CONFLICTED | "PartiallyInvalid" | "InsecureFrontendValidationMode"
            );
            let is_fault = if is_inverse { text("status") == "True" } else { text("status") == "False" };
            if map.contains_key("reason") && is_fault {
                let message = text("message");
                let separator = if message.is_empty() { "" } else { ": " };
                let reason = text("reason");
                found.push((reason, format!("{} {reason}{separator}{message}", text("type"))));
            }
            map.values().for_each(|value| collect_faults(value, found));
        }
        Value::Array(list) => list.iter().for_each(|value| collect_faults(value, found)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_have_the_reasons_of_their_conditions() {
        let kind = crate::objects::find_kind("gateway.networking.k8s.io/v1", "HTTPRoute").unwrap();
        let unresolved = Condition::bad("ResolvedRefs", "BackendNotFound", "there is no Service default/a");
        let insecure =
            Condition { reason: "ConfigurationChanged", ..Condition::good("InsecureFrontendValidationMode") };
        let conditions = [Condition::good("Accepted"), unresolved, insecure].map(|it| it.json(1));
        let status = json!({"parents": [{"conditions": conditions}]});
        let note = "not served: the annotation auth-url".to_owned();
        let update = StatusUpdate {
            notes: vec![note.clone()],
            ..StatusUpdate::new(kind, ObjectKey::default(), status)
        };
        assert_eq!(
            update.faults_with_reasons(),
            [
                ("Invalid", note),
                ("BackendNotFound", "ResolvedRefs BackendNotFound: there is no Service default/a".to_owned()),
                ("ConfigurationChanged", "InsecureFrontendValidationMode ConfigurationChanged".to_owned()),
            ]
        );
    }
}
