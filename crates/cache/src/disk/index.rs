//! The index of the records on disk, and of what invalidates them.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use flatout_engine::bug;
use foldhash::fast::RandomState;

use super::invalid::{Invalidations, Purges, RecordState, WriteId, is_of_all};
use crate::entry;
use crate::purge::Purge;

/// Bits that mark changed slots while the segments are read (1 MiB). Two slots with the same bit cost one record.
pub(super) const CHANGED_BITS: u64 = 8 << 20;

/// The slots of a response in the index.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slots {
    /// The hash of its key.
    pub(crate) key: u64,
    /// Its slots, its own last; twice the same if it has only one. A first variant is also listed in its own slot, so
    /// that it is found when another variant is the first.
    pub(crate) at: [u64; 2],
}

/// Where a record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RecordLocation {
    pub(super) segment: u32,
    pub(super) at: u32,
    pub(super) bytes: u32,
    /// The bytes at its end that are the body.
    pub(super) body_bytes: u32,
    pub(super) number: u64,
}

/// A record in the index.
#[derive(Debug, Clone, Copy)]
struct IndexedRecord {
    place: RecordLocation,
    /// When it was last requested in this process, in seconds since 1970.
    used_s: u32,
    /// It is listed and counted in its own slot; this is the slot of its key.
    is_copy: bool,
    /// Its body was compared with its checksum, by this process.
    is_verified: bool,
    /// How often it was read since, without being kept in memory.
    reads: u8,
}

/// One in this many reads of a verified record is kept in memory.
pub(super) const READS_PER_KEEP: u8 = 8;

/// How a record is to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RecordRead {
    pub(super) place: RecordLocation,
    /// The checksum of its body need not be computed again.
    pub(super) is_verified: bool,
    /// It is worth a place in memory.
    pub(super) is_kept: bool,
}

impl IndexedRecord {
    fn new(place: RecordLocation, used_s: u32, is_copy: bool) -> IndexedRecord {
        IndexedRecord { place, used_s, is_copy, is_verified: false, reads: 0 }
    }
}

/// Identifies a response that was offered to the disk.
pub(super) type Offer = u64;

/// The responses in a slot that wait to be written.
#[derive(Default)]
struct Queued {
    count: usize,
    /// The last one that was offered; it may have found no room.
    last: Offer,
}

/// The records by slot.
#[derive(Default)]
pub(super) struct Index {
    places: HashMap<u64, IndexedRecord, RandomState>,
    /// How many of them are copies.
    copies: usize,
    /// The last segment with a record of each key, whether it is listed or not: a restart may list it again.
    keys: HashMap<u64, u32, RandomState>,
    /// There may be records of other keys: a segment could not be read.
    has_other_keys: bool,
    /// How many responses of each key wait to be written.
    waiting: HashMap<u64, usize, RandomState>,
    /// The slots of these responses.
    queued: HashMap<u64, Queued, RandomState>,
    offers: Offer,
    /// The number of the first record of each segment.
    firsts: BTreeMap<u32, u64>,
    invalid: Invalidations,
    /// The number of the next record, as far as this process knows.
    next: u64,
    /// While the segments are read: slots whose records are older than what was stored meanwhile.
    changed: Option<Box<[u64]>>,
}

impl Index {
    pub(super) fn len(&self) -> usize {
        self.places.len() - self.copies
    }

    pub(super) fn get(&self, slot: u64) -> Option<RecordLocation> {
        self.places.get(&slot).map(|kept| kept.place)
    }

    /// Called before and after the segments are read.
    pub(super) fn set_reading(&mut self, is_reading: bool) {
        self.changed = is_reading.then(|| vec![0; CHANGED_BITS as usize / 64].into_boxed_slice());
        let (keys, waiting) = (&self.keys, &self.waiting);
        if !is_reading && !self.has_other_keys {
            self.invalid.retain_keys(|hash| keys.contains_key(hash) || waiting.contains_key(hash));
        }
    }

    /// Whether there may be records of a key, or will be.
    pub(super) fn may_have(&self, hash: u64) -> bool {
        self.changed.is_some()
            || self.has_other_keys
            || self.keys.contains_key(&hash)
            || self.waiting.contains_key(&hash)
    }

    /// A response is about to be queued.
    pub(super) fn queue(&mut self, slots: Slots) -> Offer {
        self.supersede(slots);
        self.offers += 1;
        *self.waiting.entry(slots.key).or_default() += 1;
        for slot in slots.at {
            let queued = self.queued.entry(slot).or_default();
            queued.count += 1;
            queued.last = self.offers;
        }
        self.offers
    }

    /// It does not wait any more.
    pub(super) fn unqueue(&mut self, slots: Slots) {
        match self.waiting.entry(slots.key) {
            Entry::Occupied(waiting) if *waiting.get() == 1 => drop(waiting.remove()),
            Entry::Occupied(mut waiting) => *waiting.get_mut() -= 1,
            Entry::Vacant(_) => bug!("a response leaves the queue of the disk whose key was not in it"),
        }
        for slot in slots.at {
            match self.queued.entry(slot) {
                Entry::Occupied(queued) if queued.get().count == 1 => drop(queued.remove()),
                Entry::Occupied(mut queued) => queued.get_mut().count -= 1,
                Entry::Vacant(_) => bug!("a response leaves the queue of the disk whose slot was not in it"),
            }
        }
    }

    /// There is a record at this place, of this key if it is a response.
    pub(super) fn note(&mut self, place: RecordLocation, key: Option<u64>) {
        self.number_from(place.number + 1);
        self.firsts.entry(place.segment).or_insert(place.number);
        if let Some(key) = key {
            self.keys.insert(key, place.segment);
        }
    }

    /// Not all segments could be read.
    pub(super) fn note_unread(&mut self) {
        self.has_other_keys = true;
    }

    /// Lists a record that was read from a segment. Its slots are as in [`Slots::at`].
    pub(super) fn insert_read(&mut self, at: [u64; 2], place: RecordLocation, used_s: u32) {
        for slot in at {
            let (word, bit) = bit_of(slot);
            let word = self.changed.as_ref().and_then(|words| words.get(word));
            match word.is_none_or(|word| word & bit == 0) {
                true => self.list(slot, IndexedRecord::new(place, used_s, slot != at[1])),
                // Also if only another slot with the same bit has changed: a listed record is older than this one.
                false => self.remove_slot(slot),
            }
        }
    }

    /// Lists a record that was written, in the slots for which no later response was offered. To be called before
    /// [`Index::unqueue`].
    pub(super) fn insert(
        &mut self,
        Slots { at, .. }: Slots,
        offer: Offer,
        place: RecordLocation,
        used_s: u32,
    ) {
        for slot in at {
            if self.queued.get(&slot).is_none_or(|queued| queued.last == offer) {
                self.list(slot, IndexedRecord::new(place, used_s, slot != at[1]));
            }
        }
    }

    fn list(&mut self, slot: u64, kept: IndexedRecord) {
        self.copies += usize::from(kept.is_copy);
        let former = self.places.insert(slot, kept);
        self.copies -= usize::from(former.is_some_and(|former| former.is_copy));
    }

    fn retain(&mut self, is_retained: impl Fn(&IndexedRecord) -> bool) {
        self.places.retain(|_, kept| {
            let is_retained = is_retained(kept);
            self.copies -= usize::from(!is_retained && kept.is_copy);
            is_retained
        });
    }

    /// A newer response was stored: removes the records in these slots, and ignores those that are read later.
    pub(super) fn supersede(&mut self, slots: Slots) {
        for slot in slots.at {
            self.remove_slot(slot);
            let (word, bit) = bit_of(slot);
            if let Some(word) = self.changed.as_mut().and_then(|words| words.get_mut(word)) {
                *word |= bit;
            }
        }
    }

    /// A record that is requested now.
    pub(super) fn read_used(&mut self, slot: u64, used_s: u32) -> Option<RecordRead> {
        let kept = self.places.get_mut(&slot)?;
        kept.used_s = kept.used_s.max(used_s);
        kept.reads = kept.reads.saturating_add(1);
        let is_kept = !kept.is_verified || kept.reads >= READS_PER_KEEP;
        if is_kept {
            kept.reads = 0;
        }
        Some(RecordRead { place: kept.place, is_verified: kept.is_verified, is_kept })
    }

    /// The body of a record has its checksum.
    pub(super) fn verified(&mut self, slot: u64, place: RecordLocation) {
        if let Some(kept) = self.places.get_mut(&slot).filter(|kept| kept.place == place) {
            kept.is_verified = true;
        }
    }

    /// The next read of a record is kept in memory.
    pub(super) fn keep_next(&mut self, slot: u64) {
        if let Some(kept) = self.places.get_mut(&slot) {
            kept.reads = READS_PER_KEEP;
        }
    }

    /// Updates the time of the last request of a record, if there is one.
    pub(super) fn used(&mut self, slot: u64, used_s: u32) {
        if let Some(kept) = self.places.get_mut(&slot) {
            kept.used_s = kept.used_s.max(used_s);
        }
    }

    /// Removes records that were not requested in `inactive_s` seconds. Returns how many.
    pub(super) fn sweep(&mut self, now_s: u32, inactive_s: u32) -> usize {
        let before = self.len();
        self.retain(|kept| now_s.saturating_sub(kept.used_s) <= inactive_s);
        before - self.len()
    }

    /// Whether a segment still has valid records.
    pub(super) fn has_segment(&self, segment: u32) -> bool {
        self.places.values().any(|kept| kept.place.segment == segment)
    }

    pub(super) fn number_from(&mut self, next: u64) {
        self.next = self.next.max(next);
    }

    /// Removes a record, unless another has taken its slot.
    pub(super) fn remove(&mut self, slot: u64, place: RecordLocation) {
        if self.get(slot) == Some(place) {
            self.remove_slot(slot);
        }
    }

    pub(super) fn remove_slot(&mut self, slot: u64) {
        let removed = self.places.remove(&slot);
        self.copies -= usize::from(removed.is_some_and(|removed| removed.is_copy));
    }

    pub(super) fn remove_segment(&mut self, segment: u32) {
        self.retain(|kept| kept.place.segment != segment);
        self.keys.retain(|_, last| *last != segment);
        self.firsts.remove(&segment);
        let first = self.firsts.values().next().copied();
        self.invalid.prune(first.unwrap_or(self.next));
    }

    /// Adds a purge that is not on disk yet. It applies to all records written before it. Returns its order.
    pub(super) fn purge_now(&mut self, purge: &Purge) -> WriteId {
        self.invalid.purge_now(purge, self.next)
    }

    /// These purges will not be written, because a later one of everything will be.
    pub(super) fn lift_purges(&mut self, orders: &HashSet<WriteId>) {
        self.invalid.lift_purges(orders);
    }

    /// Whether there are purges that are not on disk yet.
    pub(super) fn has_unwritten_purges(&self) -> bool {
        self.invalid.has_unwritten_purges()
    }

    /// Adds a purge that is on disk with this number: written by this order, or read from a segment.
    pub(super) fn purge(&mut self, purge: &Purge, number: u64, order: Option<WriteId>) {
        self.number_from(number + 1);
        self.invalid.purge(purge, number, order);
        if is_of_all(purge) {
            self.retain(|kept| kept.place.number > number);
        }
    }

    /// Adds an invalidated key that is not on disk yet. Returns its order.
    pub(super) fn forget_now(&mut self, hash: u64) -> WriteId {
        self.invalid.forget_now(hash, self.next)
    }

    /// Adds an invalidated key that was read from a segment and has this number.
    pub(super) fn forget_read(&mut self, hash: u64, number: u64) {
        // Without a record before it, it applies to nothing.
        if self.keys.contains_key(&hash) {
            self.invalid.forget(hash, number, None);
        }
    }

    /// Sets the number of an invalidated key. Returns whether it has to be written: only if there are records of it.
    pub(super) fn forget(&mut self, hash: u64, number: u64, order: WriteId) -> bool {
        if !self.may_have(hash) {
            self.invalid.lift(hash, order);
            return false;
        }
        self.invalid.forget(hash, number, Some(order));
        true
    }

    /// This order to invalidate a key will not be written, because a later purge of everything will be.
    pub(super) fn lift(&mut self, hash: u64, order: WriteId) {
        self.invalid.lift(hash, order);
    }

    /// The state of a record, whose key has this hash, before it is compared with the returned purges.
    pub(super) fn state_of(
        &self,
        entry: &entry::Entry,
        place: RecordLocation,
        hash: u64,
    ) -> (RecordState, Arc<Purges>) {
        self.invalid.state_of(entry, place.number, hash)
    }
}

/// The word and the bit that mark a slot.
fn bit_of(slot: u64) -> (usize, u64) {
    let bit = slot % CHANGED_BITS;
    ((bit / 64) as usize, 1 << (bit % 64))
}
