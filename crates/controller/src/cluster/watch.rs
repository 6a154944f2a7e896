//! The objects of one kind: a list, and all changes since.

use std::collections::HashSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use flatout_engine::{Severity, report, say};
use futures_util::StreamExt;
use kube::Client;
use kube::core::DynamicObject;
use kube::runtime::WatchStreamExt;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{Config, DefaultBackoff, Error, Event, watcher};
use serde_json::Value;
use tokio::time::timeout;

use super::{CONNECT_TIME_MAX, SILENCE_MAX, api_of};
use crate::kinds::ObjectKey;
use crate::objects::{Insertion, Kind, Objects};
use crate::store::Store;

/// Secrets of these types have neither certificates nor users, and there are many of them.
const SECRETS: &str = "type!=kubernetes.io/service-account-token,type!=helm.sh/release.v1";

/// The API server is asked to end each watch after this time; the next one goes on where it ended. So a connection that is silent for longer
/// is known to be lost.
pub(super) const WATCH_TIME_S: u32 = 30;

/// The longest pause after an error. When the API server is back, a watch goes on after at most this time. If the server no longer has the
/// changes that were missed, a new list needs a second pause.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// An attempt that fails does so within this time. If an error is not followed by another one for longer, the watch works: one that goes on
/// where it ended shows nothing until an object changes, which may take days.
const ATTEMPT_TIME_MAX: Duration = PAUSE_MAX.saturating_add(CONNECT_TIME_MAX).saturating_add(SILENCE_MAX);

/// The usual pauses, which grow, but not beyond [`PAUSE_MAX`].
#[derive(Default)]
struct ShortPauses(DefaultBackoff);

impl Iterator for ShortPauses {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.0.next().map(|pause| pause.min(PAUSE_MAX))
    }
}

impl Backoff for ShortPauses {
    fn reset(&mut self) {
        self.0.reset();
    }
}

/// Follows a kind for as long as the process lives. `is_synced` is called once, after the first list.
pub(super) async fn follow(client: Client, kind: &'static Kind, store: Arc<Store>, is_synced: impl FnOnce()) {
    let config = match kind.name {
        "Secret" => Config::default().fields(SECRETS),
        _ => Config::default(),
    };
    let config = config.timeout(WATCH_TIME_S);
    let mut events = pin!(watcher(api_of(&client, kind), config).backoff(ShortPauses::default()));
    let mut is_synced = Some(is_synced);
    let mut listed = Vec::new();
    let mut fault = String::new();
    loop {
        let next = match fault.is_empty() {
            true => Ok(events.next().await),
            false => timeout(ATTEMPT_TIME_MAX, events.next()).await,
        };
        let Ok(event) = next else {
            report_recovered(&store, kind, &mut fault);
            continue;
        };
        let Some(event) = event else { return };
        match event {
            // It comes before the request for the list, which may fail again.
            Ok(Event::Init) => {
                listed.clear();
                continue;
            }
            Ok(Event::InitApply(object)) => listed.push(object),
            Ok(Event::InitDone) => {
                replace(&store, kind, std::mem::take(&mut listed));
                if let Some(is_synced) = is_synced.take() {
                    is_synced();
                }
            }
            Ok(Event::Apply(object)) => {
                store.change(|objects| {
                    insert(objects, kind, object).is_some_and(|(_, has_changed)| has_changed)
                });
            }
            Ok(Event::Delete(object)) => {
                let key = key_of(&object);
                store.change(|objects| objects.remove(kind, &key));
            }
            Err(error) => {
                let is_unknown = is_unknown(&error);
                store.figures.set_failing(kind.plural, !is_unknown);
                let text = format!("{}: {}", kind.plural, chain(&error));
                if text != fault {
                    report(
                        Severity::Warning,
                        format_args!("{text}; what was read stays in use, and it is tried again"),
                    );
                }
                fault = text;
                // The custom resource is not installed: the others are served.
                if is_unknown && let Some(is_synced) = is_synced.take() {
                    is_synced();
                }
                continue;
            }
        }
        report_recovered(&store, kind, &mut fault);
    }
}

/// Reports that a watch works again, if it did not.
fn report_recovered(store: &Store, kind: &Kind, fault: &mut String) {
    if !std::mem::take(fault).is_empty() {
        store.figures.set_failing(kind.plural, false);
        say(format_args!("{}: the API server responds again", kind.plural));
    }
}

/// Whether the API server does not have the kind.
fn is_unknown(error: &Error) -> bool {
    match error {
        Error::InitialListFailed(kube::Error::Api(status)) => status.code == 404,
        _ => false,
    }
}

/// Replaces all objects of a kind: those that are not in the list were deleted meanwhile.
fn replace(store: &Store, kind: &'static Kind, listed: Vec<DynamicObject>) {
    store.change(|objects| {
        let mut former: HashSet<ObjectKey> = objects.keys(kind).into_iter().collect();
        let mut has_changed = false;
        for object in listed {
            let key = key_of(&object);
            former.remove(&key);
            has_changed |= insert(objects, kind, object).is_some_and(|(_, has_changed)| has_changed);
        }
        for key in &former {
            has_changed |= objects.remove(kind, key);
        }
        has_changed
    });
}

/// Inserts an object. Returns whether it differs from the one before; none if it is malformed, and the one before stays.
fn insert(objects: &mut Objects, kind: &'static Kind, object: DynamicObject) -> Option<(ObjectKey, bool)> {
    let key = key_of(&object);
    match with_kind(kind, object).and_then(|value| objects.insert(value)) {
        Ok(inserted) => Some((key, matches!(inserted, Insertion::Changed(..)))),
        Err(why) => {
            report(Severity::Warning, format_args!("{why}"));
            None
        }
    }
}

/// An object as files have it: items of lists have neither kind nor version.
pub(super) fn with_kind(kind: &Kind, object: DynamicObject) -> Result<Value, String> {
    let mut value = serde_json::to_value(object).map_err(|error| error.to_string())?;
    let version = match kind.group {
        "" => kind.version.to_owned(),
        group => format!("{group}/{}", kind.version),
    };
    value["kind"] = Value::String(kind.name.to_owned());
    value["apiVersion"] = Value::String(version);
    Ok(value)
}

fn key_of(object: &DynamicObject) -> ObjectKey {
    let metadata = &object.metadata;
    ObjectKey::new(
        metadata.namespace.as_deref().unwrap_or_default(),
        metadata.name.as_deref().unwrap_or_default(),
    )
}

/// An error with its causes.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let shown = error.to_string();
        if !text.contains(&shown) {
            text = format!("{text}: {shown}");
        }
        cause = error.source();
    }
    text
}
