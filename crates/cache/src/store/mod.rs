//! The entries shared by all workers, and the requests in progress for new ones.
//!
//! An entry is stored in the slot of its key's hash. If a response varies, its first variant is stored there.
//! The slot of each other variant is a hash of the first slot and of the request fields that selected the
//! variant. All variants have the family number of the first one, so that none of them is found after the
//! first one was removed.

mod admission;
mod disk_reads;
mod inflight;
mod purge_queue;
mod removal;
mod table;
#[cfg(test)]
mod tests;
mod tier;

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, RwLock};

use foldhash::fast::RandomState;
use quick_cache::sync::Cache as Numbers;

use super::encodings::Maker;
use super::entry::Entry;
use super::key::{Key, KeyBuf};
use super::purge::Log;
use super::sweep::Sweeper;
use super::tally::{Tally, Totals};
pub(super) use disk_reads::DiskLoad;
pub(super) use inflight::FlightRole;
use inflight::Flights;
use purge_queue::PurgeWriter;
use table::{Table, table};
use tier::Tier;

/// The maximum size of an entry, as a share of the memory.
const ENTRY_SHARE: u64 = 16;

/// The maximum additional memory of bodies that are still arriving, as a share.
const HELD_SHARE: u64 = 4;

/// Locks of flights and of changes, by hash.
const STRIPES: usize = 64;

/// Maximum number of remembered keys whose responses could not be stored.
const PASSES_MAX: usize = 64 << 10;

/// Maximum number of keys whose requests are counted before they are stored.
const USES_MAX: usize = 64 << 10;

/// Maximum number of remembered invalidated keys: a response that was requested before the invalidation is
/// not stored.
const INVALIDATED_MAX: usize = 64 << 10;

pub(super) struct Store {
    table: Table,
    passes: Numbers<u64, u64>,
    uses: Numbers<u64, u32>,
    stripes: Box<[Mutex<Flights>]>,
    purges: RwLock<Log>,
    /// The number of invalidations so far, and the number of the last one of each recent key.
    invalidations: AtomicU64,
    invalidated: Numbers<u64, u64>,
    hashes: RandomState,
    families: AtomicU64,
    memory_bytes: AtomicU64,
    pub(super) tally: Tally,
    tier: Tier,
    purge_writer: PurgeWriter,
    /// Receives invalidated keys once another process replaces this one.
    pub(super) successor: Mutex<Option<SyncSender<KeyBuf>>>,
    /// Removes inactive entries, if configured.
    pub(super) sweeper: Mutex<Option<Sweeper>>,
    /// Makes compressed forms of entries.
    pub(super) maker: Maker,
    /// Whether a form was ever stored.
    has_forms: AtomicBool,
    /// Bytes of bodies that are still arriving, or read by slow clients.
    held_bytes: Arc<AtomicU64>,
}

/// Bytes of arriving bodies. They count until this is dropped.
pub(super) struct BodyReservation {
    bytes: u64,
    all: Arc<AtomicU64>,
}

impl BodyReservation {
    /// Counts these bytes too.
    pub(super) fn add(&mut self, mut other: BodyReservation) {
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// Counts at most this many bytes from now on.
    pub(super) fn shrink_to(&mut self, bytes: u64) {
        let less = self.bytes.saturating_sub(bytes);
        self.all.fetch_sub(less, Ordering::Relaxed);
        self.bytes -= less;
    }
}

impl Drop for BodyReservation {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The result of a lookup in memory.
pub(super) struct Found {
    pub(super) entry: Option<Arc<Entry>>,
    /// Its slot, or the slot it will probably have.
    pub(super) slot: u64,
    /// There are variants, but none for this request.
    pub(super) is_other_variant: bool,
}

/// How many purges and invalidations there had been when a response was requested.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Moment {
    purges: u64,
    invalidations: u64,
}

impl Store {
    pub(super) fn new(memory_bytes: u64) -> Store {
        let tally = Tally::default();
        Store {
            table: table(memory_bytes, tally.evicted.clone()),
            passes: Numbers::new(PASSES_MAX),
            uses: Numbers::new(USES_MAX),
            stripes: (0..STRIPES).map(|_| Mutex::default()).collect(),
            purges: RwLock::default(),
            invalidations: AtomicU64::new(0),
            invalidated: Numbers::new(INVALIDATED_MAX),
            hashes: RandomState::default(),
            families: AtomicU64::new(0),
            memory_bytes: AtomicU64::new(memory_bytes),
            tally,
            tier: Tier::default(),
            purge_writer: PurgeWriter::default(),
            successor: Mutex::default(),
            sweeper: Mutex::default(),
            maker: Maker::default(),
            has_forms: AtomicBool::new(false),
            held_bytes: Arc::default(),
        }
    }

    /// Changes the size.
    pub(super) fn resize(&self, memory_bytes: u64) {
        if self.memory_bytes.swap(memory_bytes, Ordering::Relaxed) != memory_bytes {
            self.table.set_capacity(memory_bytes);
        }
    }

    fn memory_bytes(&self) -> u64 {
        self.memory_bytes.load(Ordering::Relaxed)
    }

    /// The maximum size of a stored body.
    pub(super) fn body_bytes_max(&self) -> u64 {
        self.memory_bytes() / ENTRY_SHARE
    }

    /// Counts bytes of an arriving body. The flag is whether there is room for them; if not, the response is
    /// passed through without being stored.
    pub(super) fn hold(&self, bytes: u64) -> (BodyReservation, bool) {
        let held_bytes_max = self.memory_bytes() / HELD_SHARE;
        let has_room = self.held_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes <= held_bytes_max;
        (BodyReservation { bytes, all: self.held_bytes.clone() }, has_room)
    }

    /// The hash of a key. It is seeded, so that clients cannot provoke collisions.
    #[inline]
    pub(super) fn hash(&self, bytes: &[u8]) -> u64 {
        self.hashes.hash_one(bytes)
    }

    pub(super) fn key_of<'k>(&self, key: &'k KeyBuf) -> Key<'k> {
        key.key(|bytes| self.hash(bytes))
    }

    /// Calls `act` with the key of an entry.
    fn with_key_of<T>(&self, entry: &Entry, act: impl FnOnce(&Key<'_>) -> T) -> T {
        let bytes = [entry.url(), entry.rest()].concat();
        act(&Key::of(&bytes, entry.url().len(), entry.is_custom(), |bytes| self.hash(bytes)))
    }

    /// The slot of a variant other than the first.
    pub(super) fn slot_of(&self, hash: u64, selected: &[u8]) -> u64 {
        self.hashes.hash_one((hash, selected))
    }

    pub(super) fn at(&self, slot: u64, key: &Key<'_>) -> Option<Arc<Entry>> {
        self.table.get(&slot).filter(|entry| entry.is_live() && entry.is_of(key))
    }

    /// Finds the entry for a request. `select` writes the request's values of the fields named in `Vary`.
    pub(super) fn find(&self, key: &Key<'_>, now_ms: u64, select: impl FnOnce(&[u8], &mut Vec<u8>)) -> Found {
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

    /// Marks an entry as used.
    pub(super) fn touch(&self, slot: u64) {
        let _ = self.table.get(&slot);
    }

    /// The entry in a slot, which is marked as used.
    pub(super) fn get(&self, slot: u64) -> Option<Arc<Entry>> {
        self.table.get(&slot)
    }

    /// The entry in a slot, without marking it as used.
    pub(super) fn peek(&self, slot: u64) -> Option<Arc<Entry>> {
        self.table.peek(&slot)
    }

    /// All counters.
    pub(super) fn totals(&self) -> Totals {
        let mut totals = self.tally.totals();
        totals.entries = self.table.len() as u64;
        totals.bytes = self.table.weight();
        totals
    }
}
