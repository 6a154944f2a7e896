//! The objects, shared by who reads them and who serves them.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::objects::{ObjectChanges, Objects};

/// All objects, and how often they have changed.
#[derive(Default)]
pub struct Store {
    state: Mutex<StoreState>,
    has_changed: Condvar,
}

#[derive(Default)]
struct StoreState {
    objects: Objects,
    changes: u64,
}

impl Store {
    /// Changes objects. `change` returns whether it did.
    pub fn change(&self, change: impl FnOnce(&mut Objects) -> bool) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if change(&mut state.objects) {
            state.changes += 1;
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
    pub(crate) fn read_changes<T>(&self, read: impl FnOnce(&Objects, ObjectChanges) -> T) -> (T, u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = std::mem::replace(&mut state.objects.changed, ObjectChanges::none());
        (read(&state.objects, changed), state.changes)
    }

    /// Waits until the objects have changed since then, at most for this time. Returns whether they have.
    pub fn wait(&self, since: u64, time_max: Duration) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.has_changed.wait_timeout_while(state, time_max, |state| state.changes == since);
        waited.unwrap_or_else(PoisonError::into_inner).0.changes != since
    }
}
