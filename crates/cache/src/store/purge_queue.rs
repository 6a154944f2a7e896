//! Purges that are written to disk in the background.

use std::collections::HashSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::Store;
use crate::disk::WriteId;
use crate::purge::{Purge, PurgeScope};

/// Maximum number of purges that wait to be written. Above it, everything on disk is purged.
const WAITING_MAX: usize = 1024;

/// How long [`Store::wait_for_purges`] waits.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// The purges to be written, in order.
#[derive(Default)]
pub(super) struct PurgeWriter {
    state: Mutex<PurgeQueue>,
    /// Some were written.
    has_gone_on: Condvar,
}

#[derive(Default)]
struct PurgeQueue {
    /// With the orders of their marks.
    purges: Vec<(Purge, Option<WriteId>)>,
    /// How many were queued so far, and how many of these were written.
    queued: u64,
    written: u64,
    /// Whether a thread is writing them.
    is_running: bool,
}

impl PurgeWriter {
    fn state(&self) -> MutexGuard<'_, PurgeQueue> {
        // Each change under the lock leaves consistent data.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The purges to be written, and how many were queued so far. If there are none, the thread ends.
    fn take(&self) -> Option<(Vec<Purge>, u64)> {
        let mut state = self.state();
        state.is_running = !state.purges.is_empty();
        let purges = std::mem::take(&mut state.purges).into_iter().map(|(purge, _)| purge).collect();
        state.is_running.then_some((purges, state.queued))
    }

    /// This many were written so far.
    fn note_written(&self, written: u64) {
        self.state().written = written;
        self.has_gone_on.notify_all();
    }
}

impl Store {
    /// Like [`Store::purge`], but does not wait until the purge is on disk.
    pub(crate) fn purge_soon(self: &Arc<Store>, purge: &Purge) -> usize {
        let (count, order) = self.purge_memory(purge);
        if self.has_folder() {
            self.purge_disk_later(purge, order);
        }
        count
    }

    fn purge_disk_later(self: &Arc<Store>, purge: &Purge, order: Option<WriteId>) {
        let mut state = self.purge_writer.state();
        state.queued += 1;
        state.purges.push((purge.clone(), order));
        if state.purges.len() > WAITING_MAX {
            let all = Purge { scope: PurgeScope::All, is_soft: false };
            // Its mark comes first, so that it replaces those of the purges that are not written.
            let order = self.mark_on_disk(&all);
            let dropped: HashSet<WriteId> = state.purges.drain(..).filter_map(|(_, order)| order).collect();
            self.disk().into_iter().for_each(|disk| disk.lift_purges(&dropped));
            state.purges.push((all, order));
        }
        if std::mem::replace(&mut state.is_running, true) {
            return;
        }
        drop(state);
        let store = self.clone();
        #[cfg(feature = "simulation")]
        if flatout_lane::clock::simulated::is_set() {
            flatout_lane::jobs::defer_surely(move || store.purge_waiting());
            return;
        }
        let thread = std::thread::Builder::new().name("flatout-purge".to_owned());
        let started = thread.spawn(move || store.purge_waiting());
        if started.is_err() {
            self.purge_waiting();
        }
    }

    fn purge_waiting(&self) {
        while let Some((purges, queued)) = self.purge_writer.take() {
            self.purge_disk(&purges);
            self.purge_writer.note_written(queued);
        }
    }

    /// Waits until the purges so far are on disk, for a limited time.
    pub(crate) fn wait_for_purges(&self) {
        let state = self.purge_writer.state();
        let queued = state.queued;
        let waits = |state: &mut PurgeQueue| state.written < queued;
        let waited = self.purge_writer.has_gone_on.wait_timeout_while(state, WAIT_MAX, waits);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Purges are queued, and written only by [`Store::write_purges`].
    #[cfg(test)]
    pub(crate) fn hold_purges(&self) {
        self.purge_writer.state().is_running = true;
    }

    /// Writes the purges that wait.
    #[cfg(test)]
    pub(crate) fn write_purges(&self) {
        self.purge_waiting();
    }

    /// Whether purges wait to be written.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn has_purges_to_write(&self) -> bool {
        let state = self.purge_writer.state();
        state.written < state.queued
    }
}
