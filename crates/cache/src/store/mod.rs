//! The entries shared by all workers, and the requests in progress for new ones.
//!
//! Objects. An [`Entry`] is one stored response, and never changes but for its state (live, expired, evicted, dead)
//! and the time of its last use. A *slot* is the number under which the table has an entry. The first variant of a
//! key is in the slot of the key's hash; the slot of another variant is a hash of that and of the request fields that
//! selected it. All variants have the *family* of the first one, so that none is found after the first one was
//! removed. A `Flight` is a request in progress for a slot. The log has the latest purges.
//!
//! Locks, in the order in which they are taken: the log of purges (an insert reads it, a purge writes it), the stripe
//! of a key's hash (inserts, invalidations, encodings) or of a slot (flights), the missing folder or the index of the
//! disk, a shard of the table. A lookup takes only the last one. An insert holds the log and the stripe until the
//! entry is queued for the disk, so that records of purges come after those of the entries they apply to.
//!
//! References. The table has one of each entry. A worker's hot entry, a response being sent and an update by a 304
//! have others, so an entry may outlive its slot: whoever uses one later must check [`Entry::is_live`], one byte
//! that is written only when the entry ends. Replaced and purged entries are dead before their slot has another
//! entry. A `Moment` is the count of purges and invalidations when a response was requested; one that was purged or
//! invalidated since then is not stored. A flight leaves its stripe at the latest when its leader is dropped.

mod admission;
mod disk_reads;
mod inflight;
mod purge;
mod purge_queue;
mod removal;
mod reservation;
mod successor;
mod sweep;
mod table;
#[cfg(test)]
mod tests;
mod tier;
mod variants;

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, RwLock};

use foldhash::fast::RandomState;
use quick_cache::sync::Cache as Numbers;

use crate::encodings::Encoder;
use crate::entry::Entry;
use crate::key::{Key, KeyBuf};
use crate::tally::{Tally, Totals};
pub(crate) use disk_reads::DiskLoad;
pub(crate) use inflight::FlightRole;
use inflight::Flights;
pub(crate) use purge::Moment;
use purge::PurgeLog;
use purge_queue::PurgeWriter;
pub(crate) use reservation::BodyReservation;
use sweep::Sweeper;
use table::{Table, table};
use tier::Tier;
pub(crate) use variants::Found;

/// The maximum size of an entry, as a share of the memory.
const ENTRY_SHARE: u64 = 16;

/// Locks of flights and of changes, by hash.
const STRIPES: usize = 64;

/// Maximum number of remembered keys whose responses could not be stored.
const PASSES_MAX: usize = 64 << 10;

/// Maximum number of keys whose requests are counted before they are stored.
const USES_MAX: usize = 64 << 10;

/// Maximum number of remembered invalidated keys: a response that was requested before the invalidation is
/// not stored.
const INVALIDATED_MAX: usize = 64 << 10;

pub(crate) struct Store {
    table: Table,
    passes: Numbers<u64, u64>,
    uses: Numbers<u64, u32>,
    stripes: Box<[Mutex<Flights>]>,
    purges: RwLock<PurgeLog>,
    /// The number of invalidations so far, and the number of the last one of each recent key.
    invalidations: AtomicU64,
    invalidated: Numbers<u64, u64>,
    hashes: RandomState,
    families: AtomicU64,
    memory_bytes: AtomicU64,
    pub(crate) tally: Tally,
    tier: Tier,
    purge_writer: PurgeWriter,
    /// Receives invalidated keys once another process replaces this one.
    pub(crate) successor: Mutex<Option<SyncSender<KeyBuf>>>,
    /// Removes inactive entries, if configured.
    pub(crate) sweeper: Mutex<Option<Sweeper>>,
    /// Makes compressed encodings of entries.
    pub(crate) encoder: Encoder,
    /// Whether an encoding was ever stored.
    has_encodings: AtomicBool,
    /// Bytes of bodies that are still arriving, or read by slow clients.
    reserved_bytes: Arc<AtomicU64>,
    /// Bytes of bodies that were read from disk for one response each.
    once_bytes: Arc<AtomicU64>,
}

impl Store {
    pub(crate) fn new(memory_bytes: u64) -> Store {
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
            encoder: Encoder::default(),
            has_encodings: AtomicBool::new(false),
            reserved_bytes: Arc::default(),
            once_bytes: Arc::default(),
        }
    }

    /// Changes the size.
    pub(crate) fn resize(&self, memory_bytes: u64) {
        if self.memory_bytes.swap(memory_bytes, Ordering::Relaxed) != memory_bytes {
            self.table.set_capacity(memory_bytes);
        }
    }

    fn memory_bytes(&self) -> u64 {
        self.memory_bytes.load(Ordering::Relaxed)
    }

    /// The maximum size of a stored body.
    pub(crate) fn body_bytes_max(&self) -> u64 {
        self.memory_bytes() / ENTRY_SHARE
    }

    /// The hash of a key. It is seeded, so that clients cannot provoke collisions.
    #[inline]
    pub(crate) fn hash(&self, bytes: &[u8]) -> u64 {
        self.hashes.hash_one(bytes)
    }

    pub(crate) fn key_of<'k>(&self, key: &'k KeyBuf) -> Key<'k> {
        key.key(|bytes| self.hash(bytes))
    }

    /// Calls `act` with the key of an entry.
    fn with_key_of<T>(&self, entry: &Entry, act: impl FnOnce(&Key<'_>) -> T) -> T {
        let bytes = [entry.url(), entry.rest()].concat();
        act(&Key::of(&bytes, entry.url().len(), entry.is_custom(), |bytes| self.hash(bytes)))
    }

    /// Marks an entry as used.
    pub(crate) fn touch(&self, slot: u64) {
        let _ = self.table.get(&slot);
    }

    /// The entry in a slot, which is marked as used.
    pub(crate) fn get(&self, slot: u64) -> Option<Arc<Entry>> {
        self.table.get(&slot)
    }

    /// The entry in a slot, without marking it as used.
    pub(crate) fn peek(&self, slot: u64) -> Option<Arc<Entry>> {
        self.table.peek(&slot)
    }

    /// All counters.
    pub(crate) fn totals(&self) -> Totals {
        let mut totals = self.tally.totals();
        totals.entries = self.table.len() as u64;
        totals.bytes = self.table.weight();
        totals
    }
}
