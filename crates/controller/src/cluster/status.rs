//! Statuses are written by the leader, and only those that have changed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use flatout_engine::{Severity, report};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use tokio::sync::watch::Receiver;

use super::event::Events;
use super::watch::chain;
use super::{Leadership, api_at, in_time};
use crate::condition::StatusUpdate;
use crate::kinds::ObjectKey;
use crate::leader::Leader;

/// How often what could not be written, or was not this process's to write, is tried again.
const RETRY_TIME: Duration = Duration::from_secs(2);

/// A status that is not written in this time is tried again later: the others must not wait for a response that never comes.
const WRITE_TIME_MAX: Duration = Duration::from_secs(10);

/// What was written of each object, by kind and place.
type Written = BTreeMap<(&'static str, ObjectKey), Arc<StatusUpdate>>;

/// Writes statuses for as long as the process lives.
pub(super) async fn follow(
    client: Client,
    leadership: Leadership,
    leader: Arc<Leader>,
    mut latest: Receiver<Vec<Arc<StatusUpdate>>>,
) {
    let mut written = Written::new();
    let events = Events::new(client.clone(), &leadership);
    let writing = Writing { client, controller_name: leadership.controller_name, events };
    loop {
        if leader.leads() {
            let wanted = latest.borrow_and_update().clone();
            writing.write_all(wanted, &mut written).await;
        } else {
            // Another process may write others meanwhile.
            written.clear();
        }
        tokio::select! {
            changed = latest.changed() => if changed.is_err() {
                // The writer is gone: the process ends.
                return std::future::pending().await;
            },
            () = tokio::time::sleep(RETRY_TIME) => {}
        }
    }
}

/// What statuses are written with.
struct Writing {
    client: Client,
    controller_name: String,
    events: Events,
}

impl Writing {
    async fn write_all(&self, wanted: Vec<Arc<StatusUpdate>>, written: &mut Written) {
        // Routes and policies that have left all gateways of this controller lose its entries.
        let present: BTreeSet<(&str, &ObjectKey)> = wanted.iter().map(|it| (it.kind.name, &it.key)).collect();
        let has_left = |(kind, key): &&(&'static str, ObjectKey)| {
            (kind.ends_with("Route") || kind.ends_with("Policy")) && !present.contains(&(*kind, key))
        };
        let left: Vec<(&'static str, ObjectKey)> = written.keys().filter(has_left).cloned().collect();
        for place in left {
            if let Some(former) = written.remove(&place) {
                let list = if place.0.ends_with("Policy") { "ancestors" } else { "parents" };
                let emptied = StatusUpdate::new(former.kind, former.key.clone(), json!({list: []}));
                let written = in_time(WRITE_TIME_MAX, self.write(&emptied, Some(&former))).await;
                report_fault(&emptied, written);
            }
        }
        for update in wanted {
            let place = (update.kind.name, update.key.clone());
            let former = written.get(&place);
            if former == Some(&update) {
                continue;
            }
            let result = in_time(WRITE_TIME_MAX, self.write(&update, former)).await;
            if result.is_ok() {
                written.insert(place, update);
            } else {
                report_fault(&update, result);
            }
        }
    }

    /// Writes a status, and events for what was not wrong in the one before: that of this process, or else that in the object.
    async fn write(
        &self,
        update: &StatusUpdate,
        former: Option<&Arc<StatusUpdate>>,
    ) -> Result<(), kube::Error> {
        let api = api_at(&self.client, update.kind, &update.key);
        let object = api.get(&update.key.name).await?;
        let in_object = object.data.get("status").cloned().unwrap_or_default();
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let status = merged(&in_object, &update.status, &self.controller_name, &now);
        if status != in_object {
            // The version: what was merged must not undo what others have written since.
            let patch =
                json!({"metadata": {"resourceVersion": object.metadata.resource_version}, "status": status});
            api.patch_status(&update.key.name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        }
        let of_object = StatusUpdate::new(update.kind, update.key.clone(), in_object);
        let before = former.map_or(&of_object, |it| &**it);
        if let Err(error) = self.events.write(&object, update, before).await {
            let (kind, key) = (update.kind.name, &update.key);
            report(
                Severity::Warning,
                format_args!("an event of {kind} {key} was not written: {}", chain(&error)),
            );
        }
        Ok(())
    }
}

fn report_fault(update: &StatusUpdate, result: Result<(), kube::Error>) {
    match result {
        // Someone else has changed or removed it: the watch will bring that.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
        Err(error) => report(
            Severity::Warning,
            format_args!(
                "the status of {} {} was not written: {}",
                update.kind.name,
                update.key,
                chain(&error)
            ),
        ),
        Ok(()) => {}
    }
}

/// The status to be written: conditions that stay keep their time, and entries of other controllers stay.
fn merged(former: &Value, wanted: &Value, controller_name: &str, now: &str) -> Value {
    let mut status = wanted.clone();
    let is_ours = |parent: &Value| parent["controllerName"] == controller_name;
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    keep_times(&mut status, former, now);
    for (entries, reference) in [("parents", "parentRef"), ("ancestors", "ancestorRef")] {
        let Some(ours) = status.get_mut(entries).and_then(Value::as_array_mut) else { continue };
        for entry in ours.iter_mut() {
            let known = list(&former[entries])
                .into_iter()
                .find(|it| is_ours(it) && it[reference] == entry[reference]);
            keep_times(entry, &known.unwrap_or_default(), now);
        }
        ours.extend(list(&former[entries]).into_iter().filter(|it| !is_ours(it)));
    }
    if let Some(listeners) = status.get_mut("listeners").and_then(Value::as_array_mut) {
        for listener in listeners {
            let known = list(&former["listeners"]).into_iter().find(|it| it["name"] == listener["name"]);
            keep_times(listener, &known.unwrap_or_default(), now);
        }
    }
    status
}

/// Gives each condition the time of its last change.
fn keep_times(part: &mut Value, former: &Value, now: &str) {
    let known = former["conditions"].as_array().cloned().unwrap_or_default();
    let Some(conditions) = part.get_mut("conditions").and_then(Value::as_array_mut) else { return };
    for condition in conditions {
        let is_same = |it: &&Value| it["type"] == condition["type"] && it["status"] == condition["status"];
        let time = known.iter().find(is_same).map(|it| it["lastTransitionTime"].clone());
        condition["lastTransitionTime"] = time.unwrap_or_else(|| Value::String(now.to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn condition(status: &str, time: &str) -> Value {
        match time {
            "" => json!({"type": "Accepted", "status": status}),
            time => json!({"type": "Accepted", "status": status, "lastTransitionTime": time}),
        }
    }

    #[test]
    fn conditions_keep_the_time_of_their_last_change() {
        let former = json!({"conditions": [condition("True", "early")]});
        let same = merged(&former, &json!({"conditions": [condition("True", "")]}), "ours", "now");
        assert_eq!(same["conditions"][0]["lastTransitionTime"], "early");
        let other = merged(&former, &json!({"conditions": [condition("False", "")]}), "ours", "now");
        assert_eq!(other["conditions"][0]["lastTransitionTime"], "now");
    }

    #[test]
    fn entries_of_other_controllers_stay() {
        let of = |name: &str, parent: &str, conditions: Value| json!({"controllerName": name, "parentRef": {"name": parent}, "conditions": [conditions]});
        let former = json!({"parents": [
            of("theirs", "a", condition("False", "early")),
            of("ours", "a", condition("True", "early")),
            of("ours", "gone", condition("True", "early")),
        ]});
        let wanted = json!({"parents": [of("ours", "a", condition("True", ""))]});
        let status = merged(&former, &wanted, "ours", "now");
        assert_eq!(
            status["parents"],
            json!([
                of("ours", "a", condition("True", "early")),
                of("theirs", "a", condition("False", "early"))
            ])
        );
        let left = merged(&former, &json!({"parents": []}), "ours", "now");
        assert_eq!(left["parents"], json!([of("theirs", "a", condition("False", "early"))]));
    }

    #[test]
    fn ancestors_of_policies_are_those_of_all_controllers() {
        let of = |name: &str, time: &str| json!({"controllerName": name, "ancestorRef": {"name": "gw"}, "conditions": [condition("True", time)]});
        let former = json!({"ancestors": [of("theirs", "early"), of("ours", "early")]});
        let status = merged(&former, &json!({"ancestors": [of("ours", "")]}), "ours", "now");
        assert_eq!(status["ancestors"], json!([of("ours", "early"), of("theirs", "early")]));
    }

    #[test]
    fn listeners_are_compared_by_name() {
        let listener =
            |name: &str, time: &str| json!({"name": name, "conditions": [condition("True", time)]});
        let former = json!({"listeners": [listener("b", "early")]});
        let wanted = json!({"listeners": [listener("a", ""), listener("b", "")]});
        let status = merged(&former, &wanted, "ours", "now");
        assert_eq!(status["listeners"], json!([listener("a", "now"), listener("b", "early")]));
    }
}
