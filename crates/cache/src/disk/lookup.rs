//! Reads responses from the segments.

use std::io;
use std::sync::atomic::Ordering;

use super::index::{Index, RecordLocation};
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
    Here(Entry),
    /// Not in the page cache: reading it would block the worker.
    Cold,
}

impl Disk {
    /// Reads the response in a slot, unless that would block.
    pub(crate) fn look(&self, slot: u64, key: &Key<'_>, now_ms: u64) -> DiskLookup {
        let place = self.shared.when_ready(|index| index.get_used(slot, seconds(now_ms)));
        let Some(place) = place else { return DiskLookup::Nothing };
        if place.bytes > READ_NOW_BYTES_MAX {
            return DiskLookup::Cold;
        }
        match self.shared.segments.read_now(place) {
            Ok(Some(record)) => {
                self.shared.checked(slot, place, record, key).map_or(DiskLookup::Nothing, DiskLookup::Here)
            }
            Ok(None) => DiskLookup::Cold,
            Err(error) => {
                self.shared.failed("read", &error);
                DiskLookup::Nothing
            }
        }
    }

    /// Reads the response in a slot, waiting for the disk.
    pub(crate) fn load(&self, slot: u64, key: &Key<'_>) -> Option<Entry> {
        let place = self.shared.when_ready(|index| index.get(slot))?;
        match self.shared.segments.read(place) {
            Ok(record) => self.shared.checked(slot, place, record, key),
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
    fn checked(&self, slot: u64, place: RecordLocation, record: Record, key: &Key<'_>) -> Option<Entry> {
        let Record { text, body } = record;
        let entry = record::Head::read(&text).and_then(|head| head.entry(&text, body));
        let Some(entry) = entry else {
            self.index().remove(slot, place);
            self.failed("read", &io::Error::new(io::ErrorKind::InvalidData, "a record is damaged"));
            return None;
        };
        if !entry.is_of(key) {
            return None;
        }
        let (state, purges) = self.index().state_of(&entry, place, key.hash);
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
