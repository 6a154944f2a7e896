//! Purges entries, and remembers the latest purges for responses that were requested before them.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use super::Store;
use crate::disk::WriteId;
use crate::entry::Entry;
use crate::purge::Purge;

/// Purges that are remembered; a response requested before the oldest of them is not stored.
const REMEMBERED_MAX: usize = 256;

/// How many purges and invalidations there had been when a response was requested.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Moment {
    pub(super) purges: u64,
    pub(super) invalidations: u64,
}

/// The latest purges.
#[derive(Default)]
pub(crate) struct PurgeLog {
    /// The number of all purges so far.
    count: u64,
    last: VecDeque<Purge>,
}

impl PurgeLog {
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    pub(crate) fn add(&mut self, purge: &Purge) {
        self.count += 1;
        if self.last.len() == REMEMBERED_MAX {
            self.last.pop_front();
        }
        self.last.push_back(purge.clone());
    }

    /// Whether an entry was purged after it was requested, at which time there were `count` purges.
    pub(crate) fn has_purged(&self, entry: &Entry, count: u64) -> bool {
        let missed = usize::try_from(self.count.saturating_sub(count)).unwrap_or(usize::MAX);
        missed > self.last.len() || self.last.iter().rev().take(missed).any(|purge| purge.fits(entry))
    }
}

impl Store {
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
    pub(crate) fn purge_memory(&self, purge: &Purge) -> (usize, Option<WriteId>) {
        let order = self.begin_purge(purge);
        let is_meant = |entry: &Entry| entry.is_live() && !entry.is_encoding() && purge.fits(entry);
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::purge::tests::entry;

    #[test]
    fn responses_requested_before_a_purge_are_purged() {
        let mut log = PurgeLog::default();
        let purge = Purge::from_text("hard url http://a/").unwrap();
        let (one, other) = (entry("http://a/", ""), entry("http://b/", ""));
        log.add(&purge);
        assert!(log.has_purged(&one, 0) && !log.has_purged(&one, 1) && !log.has_purged(&other, 0));
        for _ in 0..REMEMBERED_MAX {
            log.add(&purge);
        }
        assert!(log.has_purged(&other, 0), "what is forgotten may have been about it");
        assert!(!log.has_purged(&other, 1) && log.count() == REMEMBERED_MAX as u64 + 1);
    }
}
