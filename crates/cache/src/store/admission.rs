//! Inserts entries into the table, under the locks that purges and invalidations take too.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use super::{Moment, Store};
use crate::disk::Slots;
use crate::entry::Entry;
use crate::key::Key;

impl Store {
    /// Stores an entry, unless it was purged or invalidated since it was requested from the upstream. Returns
    /// it, and whether it is stored.
    pub(crate) fn insert(&self, key: &Key<'_>, entry: Entry, asked: Moment) -> (Arc<Entry>, bool) {
        let (entry, slot) = self.admit_at(
            key,
            entry,
            asked,
            |entry| self.place(key, entry),
            |entry, slot| self.keep(entry, key.hash, slot),
        );
        (entry, slot.is_some())
    }

    /// Counts a stored entry, and queues it for the disk. Called under the locks of `admit_at`, so that its record
    /// comes before those of purges, invalidations and replacements that no longer find it in memory.
    pub(crate) fn keep(&self, entry: &Arc<Entry>, hash: u64, slot: u64) {
        self.tally.stored();
        if let Some(disk) = self.disk() {
            disk.put(entry, self.slots_on_disk(entry, hash, slot));
        }
    }

    /// The slots on disk of an entry that is in `slot` in memory.
    pub(super) fn slots_on_disk(&self, entry: &Entry, hash: u64, slot: u64) -> Slots {
        let own = match slot == hash && !entry.selected().is_empty() {
            true => self.slot_of(hash, entry.selected()),
            false => slot,
        };
        Slots { key: hash, at: [slot, own] }
    }

    /// Inserts an entry from disk into memory under the same conditions. Returns its slot, if it was inserted.
    pub(super) fn admit(&self, key: &Key<'_>, entry: Entry, asked: Moment) -> (Arc<Entry>, Option<u64>) {
        self.admit_at(key, entry, asked, |entry| self.place(key, entry), |_, _| ())
    }

    /// The same with the slot and the family that `place` returns. Without a family it gets a new one. `keep` is
    /// called with the inserted entry, under the locks.
    pub(crate) fn admit_at(
        &self,
        key: &Key<'_>,
        mut entry: Entry,
        asked: Moment,
        place: impl FnOnce(&Entry) -> (u64, Option<u64>),
        keep: impl FnOnce(&Arc<Entry>, u64),
    ) -> (Arc<Entry>, Option<u64>) {
        // A purge takes the write lock: it waits for inserts in progress, and finds their entries.
        let log = self.purges.read().unwrap_or_else(PoisonError::into_inner);
        if log.has_purged(&entry, asked.purges) {
            return (Arc::new(entry), None);
        }
        let change = self.stripe(key.hash);
        if self.invalidated.get(&key.hash).is_some_and(|number| number >= asked.invalidations) {
            return (Arc::new(entry), None);
        }
        let (slot, family) = place(&entry);
        entry.family = family.unwrap_or_else(|| self.families.fetch_add(1, Ordering::Relaxed));
        let entry = Arc::new(entry);
        let former = self.table.peek(&slot);
        former.iter().for_each(|former| former.kill());
        // Compressed encodings depend on the body only.
        if former.is_none_or(|former| !former.shares_body(&entry)) {
            self.remove_encodings(slot);
        }
        self.table.insert(slot, entry.clone());
        keep(&entry, slot);
        drop(change);
        (entry, Some(slot))
    }

    /// Whether a live entry with this one's body is in a slot.
    pub(crate) fn has_body_of(&self, plain: &Entry, slot: u64) -> bool {
        self.table.peek(&slot).is_some_and(|known| known.is_live() && known.shares_body(plain))
    }

    /// Stores an encoding in the slot `at`, if the plain entry or an update of it is still in `slot`.
    pub(crate) fn insert_beside(
        &self,
        plain: &Arc<Entry>,
        slot: u64,
        hash: u64,
        at: u64,
        encoding: Arc<Entry>,
    ) {
        // The plain entry is replaced under this lock, which also removes its encodings.
        let _change = self.stripe(hash);
        if self.has_body_of(plain, slot) {
            self.has_encodings.store(true, Ordering::Release);
            self.table.insert(at, encoding);
        }
    }
}
