//! How an entry comes into the table: under the locks that purges and invalidations take too.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use super::{Moment, Store};
use crate::cache::disk::Slots;
use crate::cache::entry::Entry;
use crate::cache::key::Key;

impl Store {
    /// Stores an entry, unless a purge or an invalidation has come since it was asked for. Returns it, and whether it is stored.
    pub(in crate::cache) fn insert(&self, key: &Key<'_>, entry: Entry, asked: Moment) -> (Arc<Entry>, bool) {
        let (entry, slot) = self.admit_at(
            key,
            entry,
            asked,
            |entry| self.place(key, entry),
            |entry, slot| self.keep(entry, key.hash, slot),
        );
        (entry, slot.is_some())
    }

    /// Counts an entry that was stored, and has it written to disk too. Called under the locks of `admit_at`: a purge or an invalidation
    /// that does not find the entry here any more is then behind it on disk, and so is what replaces it.
    pub(in crate::cache) fn keep(&self, entry: &Arc<Entry>, hash: u64, slot: u64) {
        self.tally.stored();
        if let Some(disk) = self.disk() {
            disk.put(entry, self.slots_on_disk(entry, hash, slot));
        }
    }

    /// The slots of an entry on disk, which is in `slot` here.
    pub(super) fn slots_on_disk(&self, entry: &Entry, hash: u64, slot: u64) -> Slots {
        let own = match slot == hash && !entry.selected().is_empty() {
            true => self.slot_of(hash, entry.selected()),
            false => slot,
        };
        Slots { key: hash, at: [slot, own] }
    }

    /// Takes an entry that was on disk into memory, in the same way. Returns the slot that it stands in.
    pub(super) fn admit(&self, key: &Key<'_>, entry: Entry, asked: Moment) -> (Arc<Entry>, Option<u64>) {
        self.admit_at(key, entry, asked, |entry| self.place(key, entry), |_, _| ())
    }

    /// The slot of an entry, and the family that it belongs to, if there is one.
    fn place(&self, key: &Key<'_>, entry: &Entry) -> (u64, Option<u64>) {
        let first = self.at(key.hash, key).filter(|first| first.vary() == entry.vary());
        let slot = match &first {
            Some(first) if first.selected() != entry.selected() => self.slot_of(key.hash, entry.selected()),
            _ => key.hash,
        };
        (slot, first.map(|first| first.family))
    }

    /// The same, with the slot and the family that `place` says; without one it gets a new one. `keep` is called with what was stored.
    pub(in crate::cache) fn admit_at(
        &self,
        key: &Key<'_>,
        mut entry: Entry,
        asked: Moment,
        place: impl FnOnce(&Entry) -> (u64, Option<u64>),
        keep: impl FnOnce(&Arc<Entry>, u64),
    ) -> (Arc<Entry>, Option<u64>) {
        // Whoever adds a purge waits for those who insert, and finds what they have inserted.
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
        // Forms are forms of a body.
        if former.is_none_or(|former| !former.shares_body(&entry)) {
            self.remove_forms(slot);
        }
        self.table.insert(slot, entry.clone());
        keep(&entry, slot);
        drop(change);
        (entry, Some(slot))
    }

    /// Whether a live entry with this one's body is in a slot.
    pub(in crate::cache) fn has_body_of(&self, plain: &Entry, slot: u64) -> bool {
        self.table.peek(&slot).is_some_and(|known| known.is_live() && known.shares_body(plain))
    }

    /// Stores a form in the slot `at`, if the plain entry or an update of it is still in `slot`.
    pub(in crate::cache) fn insert_beside(
        &self,
        plain: &Arc<Entry>,
        slot: u64,
        hash: u64,
        at: u64,
        form: Arc<Entry>,
    ) {
        // Whoever replaces the plain entry holds this lock, and removes its forms.
        let _change = self.stripe(hash);
        if self.has_body_of(plain, slot) {
            self.has_forms.store(true, Ordering::Release);
            self.table.insert(at, form);
        }
    }
}
