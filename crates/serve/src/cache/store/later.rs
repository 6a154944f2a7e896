//! Purges that are written to disk in the background.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::Store;
use crate::cache::purge::{Purge, What};

/// Maximum number of purges that wait to be written. Above it, everything on disk is purged.
const WAITING_MAX: usize = 1024;

/// How long [`Store::wait_for_purges`] waits.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// The purges to be written, in order.
#[derive(Default)]
pub(super) struct Later {
    state: Mutex<State>,
    is_done: Condvar,
}

#[derive(Default)]
struct State {
    purges: VecDeque<Purge>,
    /// Whether a thread is writing them.
    is_running: bool,
}

impl Later {
    fn state(&self) -> MutexGuard<'_, State> {
        // Each change under the lock leaves consistent data.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next purge to be written. If there is none, the thread ends.
    fn next(&self) -> Option<Purge> {
        let mut state = self.state();
        let next = state.purges.pop_front();
        if next.is_none() {
            state.is_running = false;
            self.is_done.notify_all();
        }
        next
    }
}

impl Store {
    /// Like [`Store::purge`], but does not wait until the purge is on disk.
    pub(in crate::cache) fn purge_soon(self: &Arc<Store>, purge: &Purge) -> usize {
        let count = self.purge_memory(purge);
        if self.has_folder() {
            self.purge_disk_later(purge);
        }
        count
    }

    fn purge_disk_later(self: &Arc<Store>, purge: &Purge) {
        let mut state = self.later.state();
        if state.purges.len() >= WAITING_MAX {
            state.purges.clear();
            state.purges.push_back(Purge { what: What::All, is_soft: false });
        } else {
            state.purges.push_back(purge.clone());
        }
        if std::mem::replace(&mut state.is_running, true) {
            return;
        }
        drop(state);
        let store = self.clone();
        let thread = std::thread::Builder::new().name("flatout-purge".to_owned());
        let started = thread.spawn(move || store.purge_waiting());
        if started.is_err() {
            self.purge_waiting();
        }
    }

    fn purge_waiting(&self) {
        while let Some(purge) = self.later.next() {
            self.purge_disk(&purge);
        }
    }

    /// Waits until the purges so far are on disk, for a limited time.
    pub(in crate::cache) fn wait_for_purges(&self) {
        let waited =
            self.later.is_done.wait_timeout_while(self.later.state(), WAIT_MAX, |state| state.is_running);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Whether purges wait to be written.
    #[cfg(test)]
    pub(in crate::cache) fn has_purges_to_write(&self) -> bool {
        self.later.state().is_running
    }
}
