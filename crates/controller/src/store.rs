//! The objects, shared by who reads them and who serves them.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::figures::ControllerFigures;
use crate::objects::{ObjectChanges, Objects};

/// All objects, and how often they have changed.
#[derive(Default)]
pub struct Store {
    state: Mutex<StoreState>,
    has_changed: Condvar,
    pub(crate) figures: Arc<ControllerFigures>,
}

/// How far a reader has come.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen {
    /// How often objects had changed.
    pub(crate) changes: u64,
    /// When the first of the changes was made that were read; none, if nothing had changed.
    pub(crate) since: Option<Instant>,
}

#[derive(Default)]
struct StoreState {
    objects: Objects,
    changes: u64,
    /// When the first change was made that nobody has read.
    changed_at: Option<Instant>,
}

impl Store {
    /// Changes objects. `change` returns whether it did.
    pub fn change(&self, change: impl FnOnce(&mut Objects) -> bool) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if change(&mut state.objects) {
            state.changes += 1;
            state.changed_at.get_or_insert_with(Instant::now);
            self.has_changed.notify_all();
        }
    }

    /// The result of reading all objects, and how often they had changed by then.
    pub fn read<T>(&self, read: impl FnOnce(&Objects) -> T) -> (T, u64) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        (read(&state.objects), state.changes)
    }

    /// The result of reading all objects, with what has changed since the last time, and how often they had changed by then. For one
    /// reader only.
    pub(crate) fn read_changes<T>(&self, read: impl FnOnce(&Objects, ObjectChanges) -> T) -> (T, Seen) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = std::mem::replace(&mut state.objects.changed, ObjectChanges::none());
        let since = state.changed_at.take();
        (read(&state.objects, changed), Seen { changes: state.changes, since })
    }

    /// Waits until the objects have changed since then, at most for this time. Returns whether they have.
    pub fn wait(&self, since: u64, time_max: Duration) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.has_changed.wait_timeout_while(state, time_max, |state| state.changes == since);
        waited.unwrap_or_else(PoisonError::into_inner).0.changes != since
    }
}
