//! Reads responses from disk when they are requested, into memory or for one response.

use std::sync::Arc;

use super::{BodyReservation, Moment, Store};
use crate::disk::DiskLookup;
use crate::entry::Entry;
use crate::key::Key;

/// A longer body is always read into memory, where all its readers share it.
const ONCE_BYTES_MAX: usize = 64 << 10;

/// The result of a lookup on disk.
pub(crate) enum DiskLoad {
    Nothing,
    /// Read into memory.
    Here,
    /// Read for one response: it stays on disk only, in this slot.
    Once(Arc<Entry>, BodyReservation, u64),
    /// On disk, at this slot, but not in the page cache: reading it would block.
    Cold(u64),
}

impl Store {
    /// Reads the response to a request from disk, unless that would block. `slot` is where it is expected. One that is read
    /// rarely, and that `is_fresh`, is not put into memory, where it would push out another.
    pub(crate) fn read_from_disk(
        &self,
        key: &Key<'_>,
        slot: u64,
        now_ms: u64,
        select: impl Fn(&[u8], &mut Vec<u8>),
        is_fresh: impl Fn(&Entry) -> bool,
    ) -> DiskLoad {
        let Some(disk) = self.disk() else { return DiskLoad::Nothing };
        let asked = self.moment();
        let mut slot = slot;
        // The first variant is read first, as it leads to the others.
        for _ in 0..2 {
            let (entry, is_kept) = match disk.look(slot, key, now_ms) {
                DiskLookup::Nothing => return DiskLoad::Nothing,
                DiskLookup::Cold => return DiskLoad::Cold(slot),
                DiskLookup::Here(entry, is_kept) => (entry, is_kept),
            };
            let mut selected = Vec::new();
            select(entry.vary(), &mut selected);
            let is_it = entry.selected() == selected;
            if is_it
                && !is_kept
                && entry.body().len() <= ONCE_BYTES_MAX
                && is_fresh(&entry)
                && let Some(reservation) = self.hold_once(entry.weight())
            {
                return DiskLoad::Once(Arc::new(entry), reservation, slot);
            }
            entry.touch(now_ms);
            if self.admit(key, entry, asked).1.is_none() {
                return DiskLoad::Nothing;
            }
            if is_it {
                return DiskLoad::Here;
            }
            slot = self.slot_of(key.hash, &selected);
        }
        DiskLoad::Nothing
    }

    /// Reads a response from disk into memory, waiting for the disk.
    pub(crate) fn read_from_disk_slowly(
        &self,
        key: &Key<'_>,
        slot: u64,
        now_ms: u64,
        asked: Moment,
    ) -> Option<Arc<Entry>> {
        let entry = self.disk()?.load(slot, key)?;
        entry.touch(now_ms);
        let (entry, slot) = self.admit(key, entry, asked);
        slot.map(|_| entry)
    }
}
