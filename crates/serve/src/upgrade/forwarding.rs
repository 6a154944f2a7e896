//! Forwards publishes and invalidated keys of a process that was replaced.

use std::borrow::Cow;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::format::{self, Data, Kept, Note};
use super::giving::Successor;
use super::link::Lost;
use crate::cache::Invalidated;
use crate::push::{Held, Hub, Refused};

/// How long to wait at a time for publishes that reach this process.
const FORWARD_TIME: Duration = Duration::from_secs(1);

/// Forwards publishes to these channels, and invalidated keys, until this process ends.
pub(super) fn forward_all(
    successor: Successor,
    hub: Option<Hub>,
    invalidated: Option<Receiver<Invalidated>>,
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
                let held = hub.wait_held(FORWARD_TIME);
                held.into_iter().for_each(|held| lock(&successor).forward(&hub, held));
            }
        });
    }
}

fn lock(successor: &Mutex<Successor>) -> MutexGuard<'_, Successor> {
    // A panic leaves no note incomplete.
    successor.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Successor {
    fn invalidate(&self, key: Invalidated) -> Result<(), Lost> {
        let Invalidated { bytes, url_ends, is_custom } = key;
        self.link.send(&Note::Invalidated { bytes, url_ends, is_custom }, &[])
    }

    pub(super) fn forward(&mut self, hub: &Hub, mut held: Held) {
        if self.publish(&mut held).is_err() {
            held.batch.refused = Some(Refused::Moving);
        }
        hub.answer(held);
    }

    fn publish(&mut self, held: &mut Held) -> Result<(), Lost> {
        let batch = &mut held.batch;
        let entries = batch
            .entries
            .iter()
            .map(|(channel, publication)| (Cow::Borrowed(channel.as_str()), Data::of(publication)));
        let note = Note::Publish {
            history: Kept::of(batch.history),
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
            _ => Err(Lost::Malformed),
        }
    }
}
