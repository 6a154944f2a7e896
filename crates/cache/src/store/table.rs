//! The table of the entries in memory: S3-FIFO by bytes.

use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use quick_cache::sync::Cache;
use quick_cache::{Lifecycle, OptionsBuilder, Weighter};

use crate::entry::Entry;

/// Shards of the table, each with its own lock. An entry may be as large as a shard, less the part for new
/// entries.
const SHARDS: usize = 8;

/// The typical weight of an entry, for the initial capacity of the table.
const ENTRY_BYTES_USUAL: u64 = 16 << 10;

/// Entries by slot.
pub(super) type Table =
    Cache<u64, Arc<Entry>, EntryWeighter, BuildHasherDefault<SlotHasher>, EvictionCounter>;

/// A table of this size. `evicted` counts evicted entries.
pub(super) fn table(memory_bytes: u64, evicted: Arc<AtomicU64>) -> Table {
    let options = OptionsBuilder::new()
        .estimated_items_capacity((memory_bytes / ENTRY_BYTES_USUAL).max(64) as usize)
        .weight_capacity(memory_bytes)
        .shards(SHARDS)
        .build();
    let evicted = EvictionCounter { count: evicted };
    match options {
        Ok(options) => Table::with_options(options, EntryWeighter, BuildHasherDefault::default(), evicted),
        // Never reached: all required options are set.
        Err(_) => Table::with(64, memory_bytes, EntryWeighter, BuildHasherDefault::default(), evicted),
    }
}

/// The memory of an entry, as its weight.
#[derive(Clone)]
pub(super) struct EntryWeighter;

impl Weighter<u64, Arc<Entry>> for EntryWeighter {
    fn weight(&self, _: &u64, entry: &Arc<Entry>) -> u64 {
        entry.weight()
    }
}

/// Counts evicted entries.
#[derive(Clone)]
pub(super) struct EvictionCounter {
    count: Arc<AtomicU64>,
}

impl Lifecycle<u64, Arc<Entry>> for EvictionCounter {
    type RequestState = ();

    fn on_evict(&self, (): &mut (), _: u64, entry: Arc<Entry>) {
        // Workers that have it in their hot set drop it too.
        entry.evict();
        self.count.fetch_add(1, Ordering::Relaxed);
    }
}

/// A hasher that returns the slot unchanged: slots are hashes already.
#[derive(Default)]
pub(super) struct SlotHasher(u64);

impl Hasher for SlotHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, slot: u64) {
        self.0 = slot;
    }
}
