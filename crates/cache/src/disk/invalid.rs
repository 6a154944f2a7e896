//! What makes records on disk invalid: purges and invalidated keys.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

use foldhash::fast::RandomState;

use crate::entry::Entry;
use crate::purge::{Purge, PurgeScope};

/// Maximum number of purges by prefix or tag. Above it, everything written before the oldest one is invalid.
const PURGES_MAX: usize = 1024;

/// Maximum number of invalidated keys with records on disk, and of purged URLs. Above it, everything written so far
/// is invalid.
const FORGOTTEN_MAX: usize = 256 << 10;

/// Identifies a job of the writer that appends a purge or an invalidated key.
pub(crate) type WriteId = u64;

/// The state of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RecordState {
    Good,
    /// It was purged softly.
    Expired,
    Gone,
}

/// The records that a purge or an invalidated key applies to.
#[derive(Debug, Clone, Copy, Default)]
struct Bar {
    /// Records with smaller numbers.
    number: u64,
    /// The last order that is not on disk yet. Until it is, all records on disk.
    waits_for: Option<WriteId>,
}

impl Bar {
    fn applies(&self, number: u64) -> bool {
        self.waits_for.is_some() || number < self.number
    }

    /// It is on disk with this number.
    fn written(&mut self, number: u64, order: Option<WriteId>) {
        self.number = self.number.max(number);
        // A record that was read from a segment does not complete an order.
        if self.waits_for == order {
            self.waits_for = None;
        }
    }
}

/// Purges by prefix or tag, or of everything, the oldest first.
#[derive(Default, Clone)]
pub(super) struct Purges(VecDeque<(Purge, Bar)>);

impl Purges {
    /// The state of a record with this number; `state` is the one without these purges.
    pub(super) fn state_of(&self, entry: &Entry, number: u64, state: RecordState) -> RecordState {
        let mut state = state;
        for (purge, bar) in &self.0 {
            if state == RecordState::Gone {
                break;
            }
            if bar.applies(number) && purge.fits(entry) {
                state = if purge.is_soft { RecordState::Expired } else { RecordState::Gone };
            }
        }
        state
    }
}

/// Purges and invalidated keys.
#[derive(Default)]
pub(super) struct Invalidations {
    /// Shared with threads that compare a record with them.
    purges: Arc<Purges>,
    /// Purged URLs by their hash, and whether softly.
    urls: HashMap<(u64, bool), Bar, RandomState>,
    forgotten: HashMap<u64, Bar, RandomState>,
    /// Hashes URLs.
    hashes: RandomState,
    /// Records with smaller numbers are invalid.
    floor: u64,
    orders: WriteId,
}

impl Invalidations {
    fn order(&mut self) -> WriteId {
        self.orders += 1;
        self.orders
    }

    /// Adds a purge that is not on disk yet. It applies to all records that are written before it.
    pub(super) fn purge_now(&mut self, purge: &Purge, next: u64) -> WriteId {
        let order = self.order();
        self.change_purge(purge, next, |bar| bar.waits_for = Some(order));
        order
    }

    /// Adds a purge that is on disk with this number: written by this order, or read from a segment.
    pub(super) fn purge(&mut self, purge: &Purge, number: u64, order: Option<WriteId>) {
        self.change_purge(purge, number, |bar| bar.written(number, order));
        if is_of_all(purge) {
            self.floor = self.floor.max(number);
            Arc::make_mut(&mut self.purges).0.retain(|(_, bar)| bar.applies(number));
        }
    }

    /// These purges will not be written, because a later one of everything will be.
    pub(super) fn lift_purges(&mut self, orders: &HashSet<WriteId>) {
        let lift = |bar: &mut Bar| {
            if bar.waits_for.is_some_and(|order| orders.contains(&order)) {
                bar.waits_for = None;
            }
        };
        Arc::make_mut(&mut self.purges).0.iter_mut().for_each(|(_, bar)| lift(bar));
        self.urls.values_mut().for_each(lift);
    }

    /// Whether there are purges that are not on disk yet.
    pub(super) fn has_unwritten_purges(&self) -> bool {
        let waits = |bar: &Bar| bar.waits_for.is_some();
        self.purges.0.iter().any(|(_, bar)| waits(bar)) || self.urls.values().any(waits)
    }

    fn change_purge(&mut self, purge: &Purge, next: u64, change: impl FnOnce(&mut Bar)) {
        if let PurgeScope::Url(url) = &purge.scope {
            let key = (self.hashes.hash_one(url.as_bytes()), purge.is_soft);
            return change_in(&mut self.urls, key, &mut self.floor, next, change);
        }
        let Purges(purges) = Arc::make_mut(&mut self.purges);
        if let Some((_, bar)) = purges.iter_mut().find(|(known, _)| known == purge) {
            return change(bar);
        }
        let mut bar = Bar::default();
        change(&mut bar);
        purges.push_back((purge.clone(), bar));
        if purges.len() > PURGES_MAX
            && let Some((_, oldest)) = purges.pop_front()
        {
            self.floor = self.floor.max(if oldest.waits_for.is_some() { next } else { oldest.number });
        }
    }

    /// Adds an invalidated key that is not on disk yet.
    pub(super) fn forget_now(&mut self, hash: u64, next: u64) -> WriteId {
        let order = self.order();
        self.change_forgotten(hash, next, |bar| bar.waits_for = Some(order));
        order
    }

    /// Adds an invalidated key that is on disk with this number: written by this order, or read from a segment.
    pub(super) fn forget(&mut self, hash: u64, number: u64, order: Option<WriteId>) {
        self.change_forgotten(hash, number, |bar| bar.written(number, order));
    }

    /// This order will not be written: there are no records of this key, or everything is purged.
    pub(super) fn lift(&mut self, hash: u64, order: WriteId) {
        if self.forgotten.get(&hash).is_some_and(|bar| bar.waits_for == Some(order)) {
            self.forgotten.remove(&hash);
        }
    }

    /// Drops keys that are not kept.
    pub(super) fn retain_keys(&mut self, is_kept: impl Fn(&u64) -> bool) {
        self.forgotten.retain(|hash, _| is_kept(hash));
    }

    /// Drops purges and keys without effect: the first record that is left has this number.
    pub(super) fn prune(&mut self, first: u64) {
        Arc::make_mut(&mut self.purges).0.retain(|(_, bar)| bar.applies(first));
        self.urls.retain(|_, bar| bar.applies(first));
        self.forgotten.retain(|_, bar| bar.applies(first));
    }

    fn change_forgotten(&mut self, hash: u64, next: u64, change: impl FnOnce(&mut Bar)) {
        change_in(&mut self.forgotten, hash, &mut self.floor, next, change);
    }

    /// The state of a record with this number, whose key has this hash, before it is compared with the returned
    /// purges. That comparison may take long, and needs no lock.
    pub(super) fn state_of(&self, entry: &Entry, number: u64, hash: u64) -> (RecordState, Arc<Purges>) {
        let is_forgotten = self.forgotten.get(&hash).is_some_and(|bar| bar.applies(number));
        let (is_gone, is_expired) = self.is_purged_by_url(entry, number);
        let state = match number < self.floor || is_forgotten || is_gone {
            true => RecordState::Gone,
            false if is_expired => RecordState::Expired,
            false => RecordState::Good,
        };
        (state, self.purges.clone())
    }

    /// Whether it was purged by its URL, and whether it was marked stale.
    fn is_purged_by_url(&self, entry: &Entry, number: u64) -> (bool, bool) {
        if self.urls.is_empty() {
            return (false, false);
        }
        let hash = self.hashes.hash_one(entry.url());
        let is_purged = |is_soft| self.urls.get(&(hash, is_soft)).is_some_and(|bar| bar.applies(number));
        (is_purged(false), is_purged(true))
    }
}

/// Changes the bar of a key or a URL.
fn change_in<K: Eq + Hash>(
    bars: &mut HashMap<K, Bar, RandomState>,
    key: K,
    floor: &mut u64,
    next: u64,
    change: impl FnOnce(&mut Bar),
) {
    if bars.len() >= FORGOTTEN_MAX && !bars.contains_key(&key) {
        *floor = next.max(*floor);
        bars.clear();
    }
    change(bars.entry(key).or_default());
}

/// Whether it removes everything.
pub(super) fn is_of_all(purge: &Purge) -> bool {
    purge.scope == PurgeScope::All && !purge.is_soft
}

#[cfg(test)]
mod tests {
    use flatout_wire::Status;
    use flatout_wire::cache::Policy;

    use super::*;
    use crate::entry::Parts;
    use crate::key::Key;

    const HASH: u64 = 7;

    fn state(invalid: &Invalidations, number: u64) -> RecordState {
        let key = Key { url: b"http://a/", rest: b"", is_custom: false, hash: HASH };
        let policy = Policy::default();
        let parts = Parts { key, vary: b"", selected: b"", lines: b"", status: Status::OK, policy };
        let entry = Entry::new(&parts, Vec::new());
        let (state, purges) = invalid.state_of(&entry, number, HASH);
        purges.state_of(&entry, number, state)
    }

    /// How a purge or a key becomes known.
    #[derive(Clone, Copy)]
    enum Known {
        Now,
        Read(u64),
        Written(u64, WriteId),
    }

    fn after(purge: Option<&str>, known: &[Known]) -> Invalidations {
        let purge = purge.map(|text| Purge::from_text(text).unwrap());
        let mut invalid = Invalidations::default();
        for known in known {
            match (&purge, *known) {
                (Some(purge), Known::Now) => {
                    invalid.purge_now(purge, 20);
                }
                (Some(purge), Known::Read(number)) => invalid.purge(purge, number, None),
                (Some(purge), Known::Written(number, order)) => invalid.purge(purge, number, Some(order)),
                (None, Known::Now) => {
                    invalid.forget_now(HASH, 20);
                }
                (None, Known::Read(number)) => invalid.forget(HASH, number, None),
                (None, Known::Written(number, order)) => invalid.forget(HASH, number, Some(order)),
            }
        }
        invalid
    }

    /// Reading an old record of it, or completing an earlier order, does not complete the last one.
    #[test]
    fn pending_purges_apply_to_all_records() {
        use Known::{Now, Read, Written};
        for purge in [None, Some("hard url http://a/"), Some("hard prefix http://a/"), Some("hard all")] {
            let gone = |known: &[Known], number| state(&after(purge, known), number) == RecordState::Gone;
            assert!(gone(&[Read(5)], 4) && !gone(&[Read(5)], 5), "{purge:?}");
            assert!(gone(&[Now], 19), "{purge:?}");
            assert!(gone(&[Now, Read(5)], 19), "{purge:?}: read behind it");
            assert!(gone(&[Now, Now, Written(20, 1)], 21), "{purge:?}: ordered again");
            let both = [Now, Now, Written(20, 1), Written(25, 2)];
            assert!(gone(&both, 21) && !gone(&both, 25), "{purge:?}");
            assert!(gone(&[Now, Written(20, 1), Read(5)], 19), "{purge:?}: an older record of it");
        }
        for soft in ["soft all", "soft url http://a/"] {
            assert_eq!(state(&after(Some(soft), &[Now, Read(5)]), 19), RecordState::Expired);
        }
    }

    #[test]
    fn purges_without_records_are_dropped() {
        let mut invalid = Invalidations::default();
        for (at, text) in ["hard url http://a/", "hard tag x"].iter().enumerate() {
            invalid.purge(&Purge::from_text(text).unwrap(), 5 + at as u64, None);
        }
        invalid.forget(HASH, 7, None);
        invalid.prune(6);
        assert_eq!((invalid.urls.len(), invalid.purges.0.len(), invalid.forgotten.len()), (0, 0, 1));
        let order = invalid.forget_now(HASH, 8);
        invalid.prune(100);
        assert_eq!(state(&invalid, 100), RecordState::Gone);
        invalid.lift(HASH, order - 1);
        assert_eq!(state(&invalid, 100), RecordState::Gone);
        invalid.lift(HASH, order);
        assert_eq!(state(&invalid, 100), RecordState::Good);
    }

    #[test]
    fn purges_that_will_not_be_written_are_lifted() {
        for text in ["hard url http://a/", "hard prefix http://a/"] {
            let mut invalid = Invalidations::default();
            let purge = Purge::from_text(text).unwrap();
            let first = invalid.purge_now(&purge, 5);
            let second = invalid.purge_now(&purge, 5);
            invalid.lift_purges(&HashSet::from([first]));
            assert_eq!(state(&invalid, 100), RecordState::Gone, "it was ordered again");
            invalid.lift_purges(&HashSet::from([first, second]));
            assert_eq!(state(&invalid, 100), RecordState::Good);
        }
    }

    #[test]
    fn many_purged_urls_leave_others_valid() {
        let mut invalid = Invalidations::default();
        for at in 0..2 * PURGES_MAX {
            invalid.purge(&Purge::from_text(&format!("hard url http://b/{at}")).unwrap(), 10, None);
        }
        assert_eq!(state(&invalid, 1), RecordState::Good);
    }
}
