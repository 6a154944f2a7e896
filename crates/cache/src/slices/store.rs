//! Slices in the store, and on disk.

use std::sync::Arc;

use crate::disk::DiskLookup;
use crate::entry::Entry;
use crate::key::Key;
use crate::store::{Moment, Store};

/// The result of looking for a slice.
pub(crate) enum Slice {
    Nothing,
    Here(Arc<Entry>),
    /// It has to be read from the disk first.
    Cold,
}

impl Store {
    /// Stores a slice in its slot, under the conditions of [`Store::insert`].
    pub(crate) fn insert_slice(
        &self,
        key: &Key<'_>,
        slice: Entry,
        (slot, family): (u64, u64),
        asked: Moment,
    ) -> Arc<Entry> {
        let keep = |slice: &Arc<Entry>, slot| self.keep(slice, key.hash, slot);
        self.admit_at(key, slice, asked, |_| (slot, Some(family)), keep).0
    }

    /// The manifest of this key, if it differs from the one found before.
    pub(crate) fn manifest(&self, key: &Key<'_>, seen: Option<&Arc<Entry>>) -> Option<Arc<Entry>> {
        let is_new = |entry: &Arc<Entry>| seen.is_none_or(|seen| !Arc::ptr_eq(seen, entry));
        self.at(key.hash, key).filter(|entry| entry.is_manifest() && is_new(entry))
    }

    /// Removes the manifest of this family, and so all its slices, if it is still stored.
    pub(crate) fn remove_manifest(&self, key: &Key<'_>, family: u64) {
        if self.at(key.hash, key).is_some_and(|entry| entry.is_manifest() && entry.family == family) {
            self.invalidate(key);
        }
    }

    /// The slice in a slot, if it belongs to this family and has these marks. Reads the disk too, unless that would
    /// block.
    pub(crate) fn slice(&self, key: &Key<'_>, of: (u64, u64), selected: &[u8], now_ms: u64) -> Slice {
        let (slot, family) = of;
        let is_it = |entry: &Arc<Entry>| entry.family == family && entry.selected() == selected;
        if let Some(entry) = self.at(slot, key).filter(is_it) {
            entry.touch(now_ms);
            return Slice::Here(entry);
        }
        let asked = self.moment();
        match self.disk().map_or(DiskLookup::Nothing, |disk| disk.look(slot, key, now_ms)) {
            DiskLookup::Here(entry, _) if entry.selected() == selected => {
                entry.touch(now_ms);
                Slice::Here(self.admit_at(key, entry, asked, |_| (slot, Some(family)), |_, _| ()).0)
            }
            DiskLookup::Here(..) | DiskLookup::Nothing => Slice::Nothing,
            DiskLookup::Cold => Slice::Cold,
        }
    }

    /// The same; may block.
    pub(crate) fn slice_slowly(
        &self,
        key: &Key<'_>,
        (slot, family): (u64, u64),
        selected: &[u8],
        now_ms: u64,
    ) -> Option<Arc<Entry>> {
        let asked = self.moment();
        let entry = self.disk()?.load(slot, key).filter(|entry| entry.selected() == selected)?;
        entry.touch(now_ms);
        Some(self.admit_at(key, entry, asked, |_| (slot, Some(family)), |_, _| ()).0)
    }
}
