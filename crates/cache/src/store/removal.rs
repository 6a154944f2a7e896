//! Removes entries, and invalidates keys in both tiers.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Store;
use crate::entry::Entry;
use crate::key::Key;

impl Store {
    /// Removes this entry.
    pub(crate) fn remove(&self, slot: u64, entry: &Arc<Entry>) {
        entry.kill();
        self.remove_encodings(slot);
        self.table.remove_if(&slot, |known| Arc::ptr_eq(known, entry));
    }

    /// Removes the compressed encodings of the entry in a slot.
    pub(super) fn remove_encodings(&self, slot: u64) {
        if !self.has_encodings.load(Ordering::Acquire) {
            return;
        }
        for at in self.encoding_slots(slot) {
            if let Some(encoding) = self.table.peek(&at).filter(|encoding| encoding.is_encoding()) {
                encoding.kill();
                self.table.remove_if(&at, |known| Arc::ptr_eq(known, &encoding));
            }
        }
    }

    /// Removes the entry of a key, with all variants.
    pub(crate) fn invalidate(&self, key: &Key<'_>) {
        self.invalidate_with(key, || {
            if let Some(entry) = self.at(key.hash, key) {
                self.remove(key.hash, &entry);
            }
        });
    }

    /// Removes this entry, and all records of its key on disk. In memory, other variants of the key stay.
    pub(crate) fn remove_everywhere(&self, key: &Key<'_>, slot: u64, entry: &Arc<Entry>) {
        self.invalidate_with(key, || self.remove(slot, entry));
    }

    /// Marks this entry stale, and removes all records of its key on disk, which would be fresh.
    pub(crate) fn expire_everywhere(&self, entry: &Entry) {
        self.with_key_of(entry, |key| self.invalidate_with(key, || entry.expire()));
    }

    /// Invalidates all records of a key on disk, and changes the memory under the same lock.
    fn invalidate_with(&self, key: &Key<'_>, change: impl FnOnce()) {
        let _change = self.stripe(key.hash);
        // The disk comes first: a record that is read after the count has grown must already be invalid.
        self.forget_on_disk(key);
        self.invalidated.insert(key.hash, self.invalidations.fetch_add(1, Ordering::SeqCst));
        change();
        self.pass_on(key);
    }
}
