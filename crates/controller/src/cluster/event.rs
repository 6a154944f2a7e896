//! Events on objects, for `kubectl describe`: what has become wrong with them.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::core::DynamicObject;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};

use super::Leadership;
use crate::condition::StatusUpdate;

/// Events of one change of a status.
const EVENTS_MAX: usize = 8;

/// Characters of a text, as the API server limits them.
const NOTE_CHARS_MAX: usize = 1000;

/// Writes events.
pub(super) struct Events(Recorder);

impl Events {
    pub(super) fn new(client: Client, leadership: &Leadership) -> Events {
        let Leadership { controller_name, identity, .. } = leadership;
        let reporter = Reporter { controller: controller_name.clone(), instance: Some(identity.clone()) };
        Events(Recorder::new(client, reporter))
    }

    /// Writes what was not wrong with an object before. An event that cannot be written is lost: the status has it too.
    pub(super) async fn write(
        &self,
        object: &DynamicObject,
        update: &StatusUpdate,
        former: &StatusUpdate,
    ) -> Result<(), kube::Error> {
        let known: BTreeSet<String> = former.faults().into_iter().collect();
        let metadata = &object.metadata;
        let about = ObjectReference {
            api_version: Some(format!("{}/{}", update.kind.group, update.kind.version)),
            kind: Some(update.kind.name.to_owned()),
            name: metadata.name.clone(),
            namespace: metadata.namespace.clone(),
            uid: metadata.uid.clone(),
            ..ObjectReference::default()
        };
        for fault in update.faults().iter().filter(|it| !known.contains(*it)).take(EVENTS_MAX) {
            let event = Event {
                type_: EventType::Warning,
                reason: reason(fault).to_owned(),
                note: Some(fault.chars().take(NOTE_CHARS_MAX).collect()),
                action: "Translate".to_owned(),
                secondary: None,
            };
            self.0.publish(&event, &about).await?;
        }
        Ok(())
    }
}

/// The reason in a fault such as `Accepted UnsupportedValue: …`; a note of an Ingress has none.
fn reason(fault: &str) -> &str {
    let head = fault.split(':').next().unwrap_or_default();
    match head.split_once(' ') {
        Some((_, reason)) if is_word(reason) => reason,
        _ => "Invalid",
    }
}

/// Whether a text is one of the standard's words, such as `BackendNotFound`.
fn is_word(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_uppercase()) && text.chars().all(char::is_alphanumeric)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_those_of_conditions() {
        assert_eq!(reason("ResolvedRefs BackendNotFound: there is no Service default/a"), "BackendNotFound");
        assert_eq!(reason("Programmed Invalid"), "Invalid");
        assert_eq!(reason("not served: the annotation auth-url"), "Invalid");
        assert_eq!(reason("10.0.0.1:80 is not available for HTTP"), "Invalid");
    }
}
