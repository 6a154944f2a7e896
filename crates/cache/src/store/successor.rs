//! Passes invalidated keys to the process that replaces this one: it may have stored responses that the last requests
//! of this process invalidate.

use std::sync::PoisonError;
use std::sync::mpsc::{Receiver, sync_channel};

use super::Store;
use crate::Cache;
use crate::key::{Key, KeyBuf};

/// Maximum number of keys that wait to be sent. Above it, keys are invalidated in this process only.
const WAITING_MAX: usize = 4096;

impl Cache {
    /// Returns the keys that are invalidated from now on, for the process that replaces this one.
    pub fn pass_on(&self) -> Receiver<KeyBuf> {
        let (successor, invalidated) = sync_channel(WAITING_MAX);
        *self.store.successor.lock().unwrap_or_else(PoisonError::into_inner) = Some(successor);
        invalidated
    }

    /// Invalidates a key that another process has invalidated.
    pub fn invalidate(&self, key: &KeyBuf) {
        self.store.invalidate(&self.store.key_of(key));
    }
}

impl Store {
    /// Passes a key on, if another process replaces this one.
    pub(crate) fn pass_on(&self, key: &Key<'_>) {
        if let Some(successor) = &*self.successor.lock().unwrap_or_else(PoisonError::into_inner) {
            let _ = successor.try_send(key.to_buf());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::TryRecvError;

    use super::*;
    use crate::Plan;
    use crate::entry::{Entry, Parts};

    #[test]
    fn an_invalidated_key_is_removed_and_passed_on() {
        let cache = Cache::open(Plan { memory_bytes: 1 << 20, ..Plan::default() });
        let [first, second] = [b"http://t/a", b"http://t/b"].map(|url| KeyBuf {
            bytes: url.to_vec(),
            url_ends: url.len(),
            is_custom: false,
        });
        for key in [&first, &second] {
            let key = cache.store.key_of(key);
            let (status, policy) = (flatout_wire::Status::OK, flatout_wire::cache::Policy::default());
            let parts = Parts { key, vary: b"", selected: b"", lines: b"", status, policy };
            cache.store.insert(&key, Entry::new(&parts, Vec::new()), cache.store.moment());
        }
        let passed_on = cache.pass_on();
        cache.invalidate(&first);
        let has = |key| cache.store.at(cache.store.key_of(key).hash, &cache.store.key_of(key)).is_some();
        assert!(!has(&first) && has(&second));
        assert_eq!(passed_on.try_recv(), Ok(first));
        assert_eq!(passed_on.try_recv(), Err(TryRecvError::Empty));
    }
}
