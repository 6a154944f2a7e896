//! Finds the entry for a request among the variants of its key.

use std::hash::BuildHasher;
use std::sync::Arc;

use super::Store;
use crate::entry::Entry;
use crate::key::Key;

/// The result of a lookup in memory.
pub(crate) struct Found {
    pub(crate) entry: Option<Arc<Entry>>,
    /// Its slot, or the slot it will probably have.
    pub(crate) slot: u64,
    /// There are variants, but none for this request.
    pub(crate) is_other_variant: bool,
}

impl Store {
    /// The slot of a variant other than the first.
    pub(crate) fn slot_of(&self, hash: u64, selected: &[u8]) -> u64 {
        self.hashes.hash_one((hash, selected))
    }

    pub(crate) fn at(&self, slot: u64, key: &Key<'_>) -> Option<Arc<Entry>> {
        self.table.get(&slot).filter(|entry| entry.is_live() && entry.is_of(key))
    }

    /// Whether an entry in a slot may be served: variants of a first one that was removed stay in the table.
    pub(super) fn is_current(&self, key: &Key<'_>, slot: u64, entry: &Entry) -> bool {
        slot == key.hash || self.at(key.hash, key).is_some_and(|first| first.family == entry.family)
    }

    /// Finds the entry for a request. `select` writes the request's values of the fields named in `Vary`.
    pub(crate) fn find(&self, key: &Key<'_>, now_ms: u64, select: impl FnOnce(&[u8], &mut Vec<u8>)) -> Found {
        let Some(first) = self.at(key.hash, key) else {
            return Found { entry: None, slot: key.hash, is_other_variant: false };
        };
        // Without the first variant the others are not found.
        first.touch(now_ms);
        if first.vary().is_empty() {
            return Found { entry: Some(first), slot: key.hash, is_other_variant: false };
        }
        let mut selected = Vec::new();
        select(first.vary(), &mut selected);
        if first.selected() == selected {
            return Found { entry: Some(first), slot: key.hash, is_other_variant: false };
        }
        let slot = self.slot_of(key.hash, &selected);
        let is_it = |entry: &Arc<Entry>| entry.family == first.family && entry.selected() == selected;
        let entry = self.at(slot, key).filter(is_it);
        entry.iter().for_each(|entry| entry.touch(now_ms));
        Found { is_other_variant: entry.is_none(), entry, slot }
    }

    /// The slot for an entry, and its family, if there is one.
    pub(crate) fn place(&self, key: &Key<'_>, entry: &Entry) -> (u64, Option<u64>) {
        let first = self.at(key.hash, key).filter(|first| first.vary() == entry.vary());
        let slot = match &first {
            Some(first) if first.selected() != entry.selected() => self.slot_of(key.hash, entry.selected()),
            _ => key.hash,
        };
        (slot, first.map(|first| first.family))
    }
}
