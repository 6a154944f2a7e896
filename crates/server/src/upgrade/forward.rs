//! Forwards publishes and invalidated keys of a process that was replaced.

use std::borrow::Cow;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::format::{self, Data, HistoryRecord, Note};
use super::link::LinkError;
use super::predecessor::SuccessorProcess;
use flatout_cache::KeyBuf;
use flatout_push::{Hub, Refused, WaitingPublish};

/// How long to wait at a time for publishes that reach this process.
const FORWARD_TIME: Duration = Duration::from_secs(1);

/// Forwards publishes to these channels, and invalidated keys, until this process ends.
pub(super) fn forward_all(
    successor: SuccessorProcess,
    hub: Option<Hub>,
    invalidated: Option<Receiver<KeyBuf>>,
) {
    let successor = Arc::new(Mutex::new(successor));
    if let Some(invalidated) = invalidated {
        let successor = successor.clone();
        let thread = std::thread::Builder::new().name("flatout-pass-on".to_owned());
        // Without this thread, the successor serves what it has stored until it is stale.
        let _ = thread.spawn(move || {
            while let Ok(key) = invalidated.recv()
                && lock(&successor).invalidate(key).is_ok()
            {}
        });
    }
    if let Some(hub) = hub {
        let thread = std::thread::Builder::new().name("flatout-forward".to_owned());
        // Without this thread, publishes that still arrive here are refused after a while, and retried.
        let _ = thread.spawn(move || {
            loop {
                let publishes = hub.wait_publishes(FORWARD_TIME);
                publishes.into_iter().for_each(|waiting| lock(&successor).forward(&hub, waiting));
            }
        });
    }
}

fn lock(successor: &Mutex<SuccessorProcess>) -> MutexGuard<'_, SuccessorProcess> {
    // A panic leaves no note incomplete.
    successor.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SuccessorProcess {
    fn invalidate(&self, key: KeyBuf) -> Result<(), LinkError> {
        let KeyBuf { bytes, url_ends, is_custom } = key;
        self.link.send(&Note::Invalidated { bytes, url_ends, is_custom }, &[])
    }

    pub(super) fn forward(&mut self, hub: &Hub, mut waiting: WaitingPublish) {
        if self.publish(&mut waiting).is_err() {
            waiting.batch.refused = Some(Refused::Moving);
        }
        hub.answer(waiting);
    }

    fn publish(&mut self, waiting: &mut WaitingPublish) -> Result<(), LinkError> {
        let batch = &mut waiting.batch;
        let entries = batch
            .entries
            .iter()
            .map(|(channel, publication)| (Cow::Borrowed(channel.as_str()), Data::of(publication)));
        let note = Note::Publish {
            group: Cow::Borrowed(&batch.group),
            history: HistoryRecord::of(batch.history),
            message_bytes_max: batch.message_bytes_max,
            entries: entries.collect(),
        };
        self.link.send(&note, &[])?;
        match self.link.receive()?.0 {
            Note::Published { ids, refused } => {
                batch.ids.extend(ids);
                batch.refused = refused.map(format::Refusal::refused);
                Ok(())
            }
            _ => Err(LinkError::Malformed),
        }
    }
}
