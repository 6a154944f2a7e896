//! Reads responses from the segments.

use std::io;
use std::sync::atomic::Ordering;

use super::index::{Index, RecordRead};
use super::invalid::RecordState;
use super::record;
use super::segments::Record;
use super::{Disk, Shared};
use crate::entry::{Entry, seconds};
use crate::key::Key;

/// Longer records are read by another thread: copying them and computing the checksum would delay other requests of
/// the worker. A slice of 1 MiB with its fields is shorter.
pub(super) const READ_NOW_BYTES_MAX: u32 = (1 << 20) + (64 << 10);

/// The result of a look at the disk.
pub(crate) enum DiskLookup {
    Nothing,
    /// It was read; the flag is whether it is worth a place in memory.
    Here(Entry, bool),
    /// Not in the page cache: reading it would block the worker.
    Cold,
}

impl Disk {
    /// Reads the response in a slot, unless that would block.
    pub(crate) fn look(&self, slot: u64, key: &Key<'_>, now_ms: u64) -> DiskLookup {
        let read = self.shared.when_ready(|index| index.read_used(slot, seconds(now_ms)));
        let Some(read) = read else { return DiskLookup::Nothing };
        if read.place.bytes > READ_NOW_BYTES_MAX {
            return DiskLookup::Cold;
        }
        match self.shared.segments.read_now(read.place) {
            Ok(Some(record)) => match self.shared.checked(slot, read, record, key) {
                Some(entry) => DiskLookup::Here(entry, read.is_kept),
                None => DiskLookup::Nothing,
            },
            Ok(None) => DiskLookup::Cold,
            Err(error) => {
                self.shared.failed("read", &error);
                DiskLookup::Nothing
            }
        }
    }

    /// Reads the response in a slot, waiting for the disk. What comes from the disk itself is always verified.
    pub(crate) fn load(&self, slot: u64, key: &Key<'_>) -> Option<Entry> {
        let place = self.shared.when_ready(|index| index.get(slot))?;
        match self.shared.segments.read(place) {
            Ok(record) => {
                let read = RecordRead { place, is_verified: false, is_kept: true };
                self.shared.checked(slot, read, record, key)
            }
            Err(error) => {
                self.shared.failed("read", &error);
                None
            }
        }
    }
}

impl Shared {
    fn when_ready<T>(&self, act: impl FnOnce(&mut Index) -> Option<T>) -> Option<T> {
        self.is_ready.load(Ordering::Acquire).then(|| act(&mut self.index())).flatten()
    }

    /// The entry of a record, if it is complete, has this key, and was not purged.
    fn checked(&self, slot: u64, read: RecordRead, record: Record, key: &Key<'_>) -> Option<Entry> {
        let (Record { text, body }, place) = (record, read.place);
        let entry = record::Head::read(&text).and_then(|head| head.entry(&text, body, read.is_verified));
        let Some(entry) = entry else {
            self.index().remove(slot, place);
            self.failed("read", &io::Error::new(io::ErrorKind::InvalidData, "a record is damaged"));
            return None;
        };
        if !entry.is_of(key) {
            return None;
        }
        let (state, purges) = {
            let mut index = self.index();
            if !read.is_verified {
                index.verified(slot, place);
            }
            index.state_of(&entry, place, key.hash)
        };
        match purges.state_of(&entry, place.number, state) {
            RecordState::Gone => {
                self.index().remove(slot, place);
                return None;
            }
            RecordState::Expired => entry.expire(),
            RecordState::Good => {}
        }
        self.tally.hits.fetch_add(1, Ordering::Relaxed);
        Some(entry)
    }
}
