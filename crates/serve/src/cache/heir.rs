//! Passes invalidated keys to the process that replaces this one: it may have stored responses that the last requests
//! of this process invalidate.

use std::sync::PoisonError;
use std::sync::mpsc::{Receiver, sync_channel};

use super::Cache;
use super::key::Key;
use super::store::Store;

/// Maximum number of keys that wait to be sent. Above it, keys are invalidated in this process only.
const WAITING_MAX: usize = 4096;

/// An invalidated key in a form that another process can use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Invalidated {
    /// The URL, and the rest of the key.
    pub(crate) bytes: Vec<u8>,
    pub(crate) url_ends: usize,
    /// Whether it is a configured key.
    pub(crate) is_custom: bool,
}

impl Cache {
    /// Returns the keys that are invalidated from now on, for the process that replaces this one.
    pub(crate) fn pass_on(&self) -> Receiver<Invalidated> {
        let (heir, invalidated) = sync_channel(WAITING_MAX);
        *self.store.heir.lock().unwrap_or_else(PoisonError::into_inner) = Some(heir);
        invalidated
    }

    /// Invalidates a key that another process has invalidated.
    pub(crate) fn invalidate(&self, invalidated: &Invalidated) {
        let Invalidated { bytes, url_ends, is_custom } = invalidated;
        let store = &self.store;
        store.invalidate(&Key::of(bytes, *url_ends, *is_custom, |bytes| store.hash(bytes)));
    }
}

impl Store {
    /// Passes a key on, if another process replaces this one.
    pub(super) fn pass_on(&self, key: &Key<'_>) {
        if let Some(heir) = &*self.heir.lock().unwrap_or_else(PoisonError::into_inner) {
            let (bytes, url_ends, is_custom) = ([key.url, key.rest].concat(), key.url.len(), key.is_custom);
            let _ = heir.try_send(Invalidated { bytes, url_ends, is_custom });
        }
    }
}

/// For tests of an upgrade.
#[cfg(test)]
impl Cache {
    /// Stores an empty response.
    pub(crate) fn put(&self, url: &str) {
        use super::entry::{Entry, Parts};
        let key = self.key(url);
        let (status, policy) = (flatout_wire::Status::OK, flatout_wire::cache::Policy::default());
        let parts = Parts { key, vary: b"", selected: b"", lines: b"", status, policy };
        self.store.insert(&key, Entry::new(&parts, Vec::new()), self.store.moment());
    }

    pub(crate) fn has(&self, url: &str) -> bool {
        let key = self.key(url);
        self.store.at(key.hash, &key).is_some()
    }

    fn key<'u>(&self, url: &'u str) -> Key<'u> {
        Key::of(url.as_bytes(), url.len(), false, |bytes| self.store.hash(bytes))
    }
}
