//! Tables whose entries are never removed, and the ids of these.

use std::ops::{Deref, DerefMut};

use flatout_engine::bug;

/// An upstream of this proxy. Routes name upstreams by index: it is checked once, when a request enters the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UpstreamId(usize);

/// A server of an upstream of this proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ServerId {
    pub(crate) upstream: UpstreamId,
    pub(crate) server: usize,
}

/// Entries that are never removed. An id is made only for an entry, so a lookup cannot miss. One that does is reported
/// as a bug, and gets an entry without effect.
pub(crate) struct FixedTable<T> {
    entries: Vec<T>,
    none: T,
}

impl From<UpstreamId> for usize {
    fn from(id: UpstreamId) -> usize {
        id.0
    }
}

impl<T> FixedTable<T> {
    pub(crate) fn new(entries: Vec<T>, none: T) -> FixedTable<T> {
        FixedTable { entries, none }
    }

    /// Adds an entry, whose id is the former length.
    pub(crate) fn push(&mut self, entry: T) {
        self.entries.push(entry);
    }

    /// The upstream at this index, if the table of upstreams has so many.
    pub(crate) fn id(&self, index: usize) -> Option<UpstreamId> {
        (index < self.entries.len()).then_some(UpstreamId(index))
    }

    /// The ids of all upstreams.
    pub(crate) fn ids(&self) -> impl Iterator<Item = UpstreamId> + use<T> {
        (0..self.entries.len()).map(UpstreamId)
    }

    #[inline]
    pub(crate) fn at(&self, id: impl Into<usize>) -> &T {
        let id = id.into();
        let Some(entry) = self.entries.get(id) else {
            bug!("no entry {id} of {}", self.entries.len());
            return &self.none;
        };
        entry
    }

    #[inline]
    pub(crate) fn at_mut(&mut self, id: impl Into<usize>) -> &mut T {
        let id = id.into();
        let count = self.entries.len();
        let Some(entry) = self.entries.get_mut(id) else {
            bug!("no entry {id} of {count}");
            return &mut self.none;
        };
        entry
    }
}

impl<T> Deref for FixedTable<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.entries
    }
}

impl<T> DerefMut for FixedTable<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.entries
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_made_for_entries_only() {
        let mut table = FixedTable::new(vec!["a", "b"], "none");
        let ids: Vec<_> = table.ids().map(|id| *table.at(id)).collect();
        assert_eq!(ids, ["a", "b"]);
        assert_eq!(table.id(2), None);
        *table.at_mut(table.id(1).unwrap()) = "c";
        assert_eq!(table.last(), Some(&"c"));
    }

    #[test]
    #[cfg(debug_assertions)]
    fn a_lookup_of_a_missing_entry_is_a_bug() {
        let table = FixedTable::new(vec![1], 0);
        assert!(std::panic::catch_unwind(|| *table.at(1_usize)).is_err());
    }
}
