//! Removes entries: invalidated, purged, or inactive.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use super::{Moment, Store};
use crate::disk::WriteId;
use crate::entry::{Entry, seconds};
use crate::key::Key;
use crate::purge::Purge;

impl Store {
    /// Removes this entry.
    pub(crate) fn remove(&self, slot: u64, entry: &Arc<Entry>) {
        entry.kill();
        self.remove_forms(slot);
        self.table.remove_if(&slot, |known| Arc::ptr_eq(known, entry));
    }

    /// Removes the compressed forms of the entry in a slot.
    pub(super) fn remove_forms(&self, slot: u64) {
        if !self.has_forms.load(Ordering::Acquire) {
            return;
        }
        for at in self.form_slots(slot) {
            if let Some(form) = self.table.peek(&at).filter(|form| form.is_form()) {
                form.kill();
                self.table.remove_if(&at, |known| Arc::ptr_eq(known, &form));
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

    /// The current counts of purges and invalidations.
    pub(crate) fn moment(&self) -> Moment {
        let purges = self.purges.read().unwrap_or_else(PoisonError::into_inner).count();
        Moment { purges, invalidations: self.invalidations.load(Ordering::SeqCst) }
    }

    /// From now on, responses that this purge applies to are not stored if they were requested before. Returns the
    /// order of its mark on disk.
    pub(crate) fn begin_purge(&self, purge: &Purge) -> Option<WriteId> {
        // The disk comes first: a record that is read after the log has grown must already be purged.
        let order = self.mark_on_disk(purge);
        let mut log = self.purges.write().unwrap_or_else(PoisonError::into_inner);
        log.add(purge);
        order
    }

    /// Removes entries, or marks them stale. Examines all entries.
    pub(crate) fn purge(&self, purge: &Purge) -> usize {
        let (count, _) = self.purge_memory(purge);
        self.purge_disk(std::slice::from_ref(purge));
        count
    }

    /// The same, without writing the purge to disk. Also returns the order of its mark there.
    pub(super) fn purge_memory(&self, purge: &Purge) -> (usize, Option<WriteId>) {
        let order = self.begin_purge(purge);
        let is_meant = |entry: &Entry| entry.is_live() && !entry.is_form() && purge.fits(entry);
        let found: Vec<(u64, Arc<Entry>)> = self.table.iter().filter(|(_, entry)| is_meant(entry)).collect();
        for (slot, entry) in &found {
            match purge.is_soft {
                true => entry.expire(),
                false => self.remove(*slot, entry),
            }
        }
        self.tally.purged(found.len());
        (found.len(), order)
    }

    /// Removes entries that were not requested in `inactive_s` seconds. Each sweep reports uses in memory to
    /// the disk, so entries on disk stay for one more period. Examines all entries. Returns the number of
    /// removed entries.
    pub(crate) fn sweep(&self, now_ms: u64, inactive_s: u32, period_s: u32) -> usize {
        let now_s = seconds(now_ms);
        let mut count = 0;
        for (slot, entry) in self.table.iter().filter(|(_, entry)| !entry.is_form()) {
            let is_inactive = now_s.saturating_sub(entry.used_s()) > inactive_s;
            if is_inactive {
                self.remove(slot, &entry);
                count += 1;
            }
            let Some(disk) = self.disk() else { continue };
            let at = match entry.selected().is_empty() {
                true => [slot; 2],
                false => self.with_key_of(&entry, |key| self.slots_on_disk(&entry, key.hash, slot).at),
            };
            match is_inactive {
                true => disk.remove(at),
                false => disk.used(at, entry.used_s()),
            }
        }
        if let Some(disk) = self.disk() {
            count += disk.sweep(now_s, inactive_s.saturating_add(period_s));
        }
        self.tally.inactive(count);
        count
    }
}
