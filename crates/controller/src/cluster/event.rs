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
        let faults = update.faults_with_reasons();
        let metadata = &object.metadata;
        let about = ObjectReference {
            api_version: Some(format!("{}/{}", update.kind.group, update.kind.version)),
            kind: Some(update.kind.name.to_owned()),
            name: metadata.name.clone(),
            namespace: metadata.namespace.clone(),
            uid: metadata.uid.clone(),
            ..ObjectReference::default()
        };
        for (reason, fault) in faults.iter().filter(|(_, fault)| !known.contains(fault)).take(EVENTS_MAX) {
            let event = Event {
                type_: EventType::Warning,
                reason: (*reason).to_owned(),
                note: Some(fault.chars().take(NOTE_CHARS_MAX).collect()),
                action: "Translate".to_owned(),
                secondary: None,
            };
            self.0.publish(&event, &about).await?;
        }
        Ok(())
    }
}
