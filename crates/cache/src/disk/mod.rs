//! The tier on disk, which survives a restart, and a kill at any moment.
//!
//! ```text
//! DIR/lock
//! DIR/00000001.segment   record record record …        the oldest: removed whole when there is no room
//! DIR/00000002.segment   record record rec|             written by one thread; what is torn has no checksum and is gone
//! ```
//!
//! Responses, purges and invalidated keys are appended in order, with increasing numbers. An index in memory lists
//! the valid records; it is rebuilt from the segments when the cache is opened. Purges do not change records on disk:
//! a response that is read is compared with the later purges.

mod folder;
mod index;
mod invalid;
mod lookup;
#[cfg(test)]
mod older_tests;
#[cfg(test)]
mod once_tests;
mod record;
mod segments;
#[cfg(feature = "simulation")]
mod stepped;
#[cfg(test)]
mod takeover_tests;
#[cfg(test)]
mod tests;
mod writer;

use std::collections::HashSet;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use flatout_engine::say;

use crate::entry::{Entry, seconds};
use crate::key::Key;
use crate::purge::{Purge, PurgeScope};
use index::Index;
pub(super) use index::Slots;
pub(super) use invalid::WriteId;
pub(super) use lookup::DiskLookup;
use segments::Segments;
#[cfg(feature = "simulation")]
use stepped::Steps;
use writer::{ForgottenKey, Write, Writer};

/// Responses that may wait to be written; beyond that, they are not written.
const QUEUE_MAX: usize = 4096;

/// Bytes of them; the same.
const QUEUE_BYTES_MAX: u64 = 64 << 20;

/// Invalidated keys that may wait besides, when the queue is full.
const LATE_MAX: usize = 1024;

/// How long purges may take to be on disk.
const PURGE_TIME_MAX: Duration = Duration::from_secs(30);

/// A cache's folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskPlan {
    /// The folder of the segments.
    pub dir: PathBuf,
    /// Their total size.
    pub bytes_max: u64,
}

/// The tier on disk.
pub(super) struct Disk {
    shared: Arc<Shared>,
    queue: SyncSender<Write>,
    writer: Mutex<Option<JoinHandle<()>>>,
    /// The writer, without a thread.
    #[cfg(feature = "simulation")]
    steps: Option<Steps>,
    /// Another process may have the folder.
    is_closed: AtomicBool,
}

struct Shared {
    index: Mutex<Index>,
    segments: Segments,
    /// All segments were read; before that, a purge could still be unread.
    is_ready: AtomicBool,
    queued_bytes: AtomicU64,
    /// Invalidated keys for which the queue had no room, or a purge of everything instead.
    late: Mutex<Vec<Write>>,
    tally: DiskTally,
    has_reported: AtomicBool,
}

/// The counters of the tier.
#[derive(Default)]
pub(super) struct DiskTally {
    pub(super) hits: AtomicU64,
    pub(super) written: AtomicU64,
    /// Responses that were not written because the queue was full.
    pub(super) skipped: AtomicU64,
    pub(super) errors: AtomicU64,
}

/// The result of queueing a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OfferResult {
    Queued,
    /// Too many wait.
    Full,
    /// It is larger than the queue may be, or the writer has ended.
    Refused,
}

/// Hashes keys like the cache.
pub(super) type KeyHash = Box<dyn Fn(&[u8]) -> u64 + Send>;
/// Finds the slot of a variant.
pub(super) type VariantSlot = Box<dyn Fn(u64, &[u8]) -> u64 + Send>;

impl Disk {
    /// Opens the folder and starts to read it. All entries count as requested now.
    ///
    /// # Errors
    /// The folder cannot be created, read or written, or another process uses it.
    pub(super) fn open(plan: &DiskPlan, now_ms: u64, hash: KeyHash, slot: VariantSlot) -> io::Result<Disk> {
        let shared = Arc::new(Shared::open(plan)?);
        shared.index().set_reading(true);
        let (queue, orders) = sync_channel(QUEUE_MAX);
        let now_s = seconds(now_ms);
        let writer =
            Writer { shared: shared.clone(), orders, now_s, hash, slot, next: None, paused_until_ns: 0 };
        #[cfg(feature = "simulation")]
        if flatout_lane::clock::simulated::is_set() {
            return Ok(Disk::stepped(shared, queue, writer));
        }
        let thread = std::thread::Builder::new().name("flatout-cache".to_owned());
        let thread = thread.spawn(move || writer.run())?;
        Ok(Disk {
            shared,
            queue,
            writer: Mutex::new(Some(thread)),
            #[cfg(feature = "simulation")]
            steps: None,
            is_closed: AtomicBool::new(false),
        })
    }

    /// Queues a response to be written, unless too many wait. In both cases, older records in its slots are no longer
    /// read. If it is not written, a restart may find one of them again.
    pub(super) fn put(&self, entry: &Arc<Entry>, slots: Slots) {
        if self.offer(entry, slots) != OfferResult::Queued {
            self.shared.tally.skipped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The same, without counting skipped responses.
    pub(super) fn offer(&self, entry: &Arc<Entry>, slots: Slots) -> OfferResult {
        let (bytes, queued_bytes) = (entry.weight(), &self.shared.queued_bytes);
        let offer = self.shared.index().queue(slots);
        let is_full = queued_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes > QUEUE_BYTES_MAX;
        let offered = match is_full {
            true if bytes > QUEUE_BYTES_MAX => OfferResult::Refused,
            true => OfferResult::Full,
            false => match self.try_send(Write::Entry(entry.clone(), slots, offer)) {
                Ok(()) => return OfferResult::Queued,
                Err(TrySendError::Full(_)) => OfferResult::Full,
                Err(TrySendError::Disconnected(_)) => OfferResult::Refused,
            },
        };
        queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.shared.index().unqueue(slots);
        offered
    }

    /// Invalidates a key with all variants.
    pub(super) fn forget(&self, key: &Key<'_>) {
        let mut index = self.shared.index();
        // Most requests with unsafe methods are for URLs that were never stored.
        if !index.may_have(key.hash) {
            return;
        }
        let order = index.forget_now(key.hash);
        drop(index);
        let forgotten = ForgottenKey { key: key.to_buf(), hash: key.hash, order };
        // It is called under the lock of a stripe, and must not wait for room.
        if let Err(TrySendError::Full(order)) = self.try_send(Write::Forget(forgotten)) {
            self.forget_late(order);
        }
    }

    /// Keeps the order to invalidate a key until the writer has finished its current job. If there are too many,
    /// everything is purged.
    fn forget_late(&self, order: Write) {
        let mut late = self.shared.late();
        late.push(order);
        if late.len() <= LATE_MAX {
            return;
        }
        let all = Purge { scope: PurgeScope::All, is_soft: false };
        let mut index = self.shared.index();
        let order = index.purge_now(&all);
        for late in late.drain(..) {
            if let Write::Forget(ForgottenKey { hash, order, .. }) = late {
                index.lift(hash, order);
            }
        }
        late.push(Write::Purge(all, order, sync_channel(1).0));
    }

    /// Applies a purge from now on, without writing it. It applies to all records until it is written or lifted.
    pub(super) fn mark(&self, purge: &Purge) -> WriteId {
        self.shared.index().purge_now(purge)
    }

    /// These purges were marked, and will not be written, because a later one of everything will be.
    pub(super) fn lift_purges(&self, orders: &HashSet<WriteId>) {
        self.shared.index().lift_purges(orders);
    }

    /// Purges, from now on and after a restart.
    pub(super) fn purge(&self, purges: &[Purge]) {
        let until = Instant::now() + PURGE_TIME_MAX;
        let begun: Vec<_> = purges.iter().filter_map(|purge| self.begin_purge(purge)).collect();
        #[cfg(feature = "simulation")]
        self.settle();
        for is_written in begun {
            // If the writer has ended, another process owns the folder.
            let _ = is_written.recv_timeout(until.saturating_duration_since(Instant::now()));
        }
    }

    /// Purges from now on, and soon after a restart too. Returns what reports that.
    pub(super) fn begin_purge(&self, purge: &Purge) -> Option<Receiver<()>> {
        let order = self.shared.index().purge_now(purge);
        let (done, is_done) = sync_channel(1);
        let queued = self.queue.send(Write::Purge(purge.clone(), order, done));
        #[cfg(feature = "simulation")]
        self.defer_step();
        queued.ok().map(|()| is_done)
    }

    fn try_send(&self, write: Write) -> Result<(), TrySendError<Write>> {
        #[cfg(feature = "simulation")]
        if self.steps.is_some() {
            return self.try_send_stepped(write);
        }
        self.queue.try_send(write)
    }

    /// Updates the time of the last request for the entry in these slots, which memory knows.
    pub(super) fn used(&self, at: [u64; 2], used_s: u32) {
        let mut index = self.shared.index();
        at.into_iter().for_each(|slot| index.used(slot, used_s));
    }

    /// The next read of the entry in this slot is kept in memory.
    pub(super) fn keep_next(&self, slot: u64) {
        self.shared.index().keep_next(slot);
    }

    /// Removes the entry in these slots; a restart may find it again.
    pub(super) fn remove(&self, at: [u64; 2]) {
        let mut index = self.shared.index();
        at.into_iter().for_each(|slot| index.remove_slot(slot));
    }

    /// Removes entries that were not requested in `inactive_s` seconds, and the oldest segments if they have
    /// no valid records. Returns the number of removed entries.
    pub(super) fn sweep(&self, now_s: u32, inactive_s: u32) -> usize {
        let count = self.shared.index().sweep(now_s, inactive_s);
        // If the queue is full, the next sweep removes them.
        let _ = self.try_send(Write::Reclaim);
        count
    }

    /// Changes the size. If it is smaller, segments are removed when the next one is started.
    pub(super) fn resize(&self, bytes_max: u64) {
        self.shared.segments.resize(bytes_max);
    }

    /// Writes what waits, and frees the folder for others. Nothing is written afterwards.
    pub(super) fn close(&self) {
        #[cfg(feature = "simulation")]
        self.close_stepped();
        self.is_closed.store(true, Ordering::Release);
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(writer) = writer.take() {
            let _ = self.queue.send(Write::Stop);
            let _ = writer.join();
            self.shared.segments.unlock();
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    pub(super) fn tally(&self) -> &DiskTally {
        &self.shared.tally
    }

    /// Entries, and bytes of segments.
    pub(super) fn size(&self) -> (u64, u64) {
        (self.shared.index().len() as u64, self.shared.segments.bytes())
    }

    /// Waits until all segments were read.
    #[cfg(test)]
    pub(super) fn wait_until_ready(&self) {
        while !self.shared.is_ready.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn open(plan: &DiskPlan) -> io::Result<Shared> {
        Ok(Shared {
            segments: Segments::open(&plan.dir, plan.bytes_max)?,
            index: Mutex::default(),
            is_ready: AtomicBool::new(false),
            queued_bytes: AtomicU64::new(0),
            late: Mutex::default(),
            tally: DiskTally::default(),
            has_reported: AtomicBool::new(false),
        })
    }

    fn index(&self) -> std::sync::MutexGuard<'_, Index> {
        // Each change under the lock leaves consistent data.
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn late(&self) -> std::sync::MutexGuard<'_, Vec<Write>> {
        // Each change under the lock leaves consistent data.
        self.late.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an error, and reports the first one: requests go to the upstream as if there were no disk.
    fn failed(&self, action: &str, error: &io::Error) {
        self.tally.errors.fetch_add(1, Ordering::Relaxed);
        if !self.has_reported.swap(true, Ordering::Relaxed) {
            say(format_args!(
                "the cache's folder: {action}: {error}; such errors are counted, and not reported again"
            ));
        }
    }
}
