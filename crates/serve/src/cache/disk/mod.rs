//! The tier on disk: what survives a restart, and a kill at any moment.
//!
//! ```text
//! DIR/lock
//! DIR/00000001.segment   record record record …        the oldest: removed whole when there is no room
//! DIR/00000002.segment   record record rec|             written by one thread; what is torn has no checksum and is gone
//! ```
//!
//! Responses, purges and invalidated keys are appended in their order, with growing numbers. What there is stands in an index in
//! memory, which is made anew by reading the segments when the cache is opened. Purges are not carried out on disk: a response that
//! is read is compared with those that came after it.

mod index;
mod record;
mod segments;
#[cfg(test)]
mod tests;

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use flatout_engine::say;

use super::entry::{Entry, seconds};
use super::key::Key;
use super::purge::Purge;
use super::slices::is_slice;
use index::{Index, Place};
use record::{Kind, Text};
use segments::{Record, Segments};

/// Responses that may wait to be written; beyond that, they are not written.
const QUEUE_MAX: usize = 4096;

/// Bytes of them; the same.
const QUEUE_BYTES_MAX: u64 = 64 << 20;

/// How long nothing is written after an error.
const PAUSE: Duration = Duration::from_secs(10);

/// How long a purge may take to be on disk.
const PURGE_TIME_MAX: Duration = Duration::from_secs(30);

/// A cache's folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskPlan {
    /// Where the segments are.
    pub dir: PathBuf,
    /// How large they may be together.
    pub bytes_max: u64,
}

/// The tier on disk.
pub(super) struct Disk {
    shared: Arc<Shared>,
    queue: SyncSender<Write>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    index: Mutex<Index>,
    segments: Segments,
    /// All segments were read: before, a purge that is not read yet would be missed.
    is_ready: AtomicBool,
    queued_bytes: AtomicU64,
    tally: DiskTally,
    has_complained: AtomicBool,
}

/// What the tier counts.
#[derive(Default)]
pub(super) struct DiskTally {
    pub(super) hits: AtomicU64,
    pub(super) written: AtomicU64,
    /// Responses that were not written because too many waited.
    pub(super) skipped: AtomicU64,
    pub(super) errors: AtomicU64,
}

/// A job for the writer.
enum Write {
    /// A response, with its slot, and whether its key is the operator's.
    Entry(Arc<Entry>, u64, bool),
    Purge(Purge, SyncSender<()>),
    /// A key, its hash, and whether it is the operator's.
    Forget(Vec<u8>, usize, u64, bool),
    /// Remove the segments of which nothing is left.
    Reclaim,
    Stop,
}

/// The result of a look at the disk.
pub(super) enum Looked {
    Nothing,
    Here(Entry),
    /// It is not in the kernel's memory: reading it would have the worker wait.
    Cold,
}

/// Hashes keys as the cache does.
pub(super) type Hash = Box<dyn Fn(&[u8]) -> u64 + Send>;
/// Finds the slot of a variant.
pub(super) type Slot = Box<dyn Fn(u64, &[u8]) -> u64 + Send>;

impl Disk {
    /// Opens the folder and begins to read what is in it. All of it counts as asked for now.
    ///
    /// # Errors
    /// It cannot be made, read or written, or another process has it.
    pub(super) fn open(plan: &DiskPlan, now_ms: u64, hash: Hash, slot: Slot) -> io::Result<Disk> {
        let shared = Arc::new(Shared {
            segments: Segments::open(&plan.dir, plan.bytes_max)?,
            index: Mutex::default(),
            is_ready: AtomicBool::new(false),
            queued_bytes: AtomicU64::new(0),
            tally: DiskTally::default(),
            has_complained: AtomicBool::new(false),
        });
        let (queue, orders) = sync_channel(QUEUE_MAX);
        let of_writer = shared.clone();
        let writer = std::thread::Builder::new().name("flatout-cache".to_owned()).spawn(move || {
            let mut next = of_writer.read_all(seconds(now_ms), &hash, &slot);
            of_writer.is_ready.store(true, Ordering::Release);
            let mut paused_until = None;
            while let Ok(order) = orders.recv() {
                if matches!(order, Write::Stop) {
                    return;
                }
                of_writer.write(order, &mut next, &mut paused_until);
            }
        })?;
        Ok(Disk { shared, queue, writer: Mutex::new(Some(writer)) })
    }

    /// Queues a response to be written, unless too many wait.
    pub(super) fn put(&self, entry: &Arc<Entry>, slot: u64, key: &Key<'_>) {
        let bytes = entry.weight();
        let tally = &self.shared.tally;
        if self.shared.queued_bytes.load(Ordering::Relaxed) + bytes > QUEUE_BYTES_MAX {
            tally.skipped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.shared.queued_bytes.fetch_add(bytes, Ordering::Relaxed);
        let order = Write::Entry(entry.clone(), slot, key.is_custom);
        if self.queue.try_send(order).is_err() {
            self.shared.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
            tally.skipped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Reads the response in a slot, unless that would block.
    pub(super) fn look(&self, slot: u64, key: &Key<'_>, now_ms: u64) -> Looked {
        let Some(place) = self.shared.place(slot) else { return Looked::Nothing };
        self.used(slot, seconds(now_ms));
        match self.shared.segments.read_now(place) {
            Ok(Some(record)) => {
                self.shared.checked(slot, place, record, key).map_or(Looked::Nothing, Looked::Here)
            }
            Ok(None) => Looked::Cold,
            Err(error) => {
                self.shared.failed("read", &error);
                Looked::Nothing
            }
        }
    }

    /// Reads the response in a slot, waiting for the disk.
    pub(super) fn load(&self, slot: u64, key: &Key<'_>) -> Option<Entry> {
        let place = self.shared.place(slot)?;
        match self.shared.segments.read(place) {
            Ok(record) => self.shared.checked(slot, place, record, key),
            Err(error) => {
                self.shared.failed("read", &error);
                None
            }
        }
    }

    /// Forgets a key, in all variants.
    pub(super) fn forget(&self, key: &Key<'_>) {
        self.shared.index().forget_now(key.hash);
        let bytes = [key.url, key.rest].concat();
        // Where the queue is full, it is forgotten in this process, which is all that can be promised.
        let _ = self.queue.try_send(Write::Forget(bytes, key.url.len(), key.hash, key.is_custom));
    }

    /// Purges, from now on and after a restart.
    pub(super) fn purge(&self, purge: &Purge) {
        self.shared.index().purge_now(purge);
        let (done, is_done) = sync_channel(1);
        if self.queue.send(Write::Purge(purge.clone(), done)).is_ok() {
            let _ = is_done.recv_timeout(PURGE_TIME_MAX);
        }
    }

    /// What is in a slot was asked for at this time, which memory knows.
    pub(super) fn used(&self, slot: u64, used_s: u32) {
        self.shared.index().used(slot, used_s);
    }

    /// Removes what is in a slot; a restart may find it again.
    pub(super) fn remove(&self, slot: u64) {
        self.shared.index().remove_slot(slot);
    }

    /// Removes what nobody has asked for in `inactive_s` seconds, and the oldest segments if nothing is left of them. Returns how many
    /// responses were removed.
    pub(super) fn sweep(&self, now_s: u32, inactive_s: u32) -> usize {
        let count = self.shared.index().sweep(now_s, inactive_s);
        // Where the queue is full, the next sweep removes them.
        let _ = self.queue.try_send(Write::Reclaim);
        count
    }

    pub(super) fn tally(&self) -> &DiskTally {
        &self.shared.tally
    }

    /// Entries, and bytes of segments.
    pub(super) fn size(&self) -> (u64, u64) {
        (self.shared.index().len() as u64, self.shared.segments.bytes())
    }

    /// Waits until what there was has been read.
    #[cfg(test)]
    pub(super) fn wait_until_ready(&self) {
        while !self.shared.is_ready.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // What waits is written first.
        let _ = self.queue.send(Write::Stop);
        if let Some(writer) = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = writer.join();
        }
    }
}

impl Shared {
    fn index(&self) -> std::sync::MutexGuard<'_, Index> {
        // Every change in the lock leaves it whole.
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn place(&self, slot: u64) -> Option<Place> {
        self.is_ready.load(Ordering::Acquire).then(|| self.index().get(slot)).flatten()
    }

    /// The entry of a record, if it is whole, of this key, and was not purged.
    fn checked(&self, slot: u64, place: Place, record: Record, key: &Key<'_>) -> Option<Entry> {
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
        let mut index = self.index();
        let state = index.state_of(&entry, place, key.hash);
        match state {
            index::State::Gone => {
                index.remove(slot, place);
                return None;
            }
            index::State::Expired => entry.expire(),
            index::State::Good => {}
        }
        drop(index);
        self.tally.hits.fetch_add(1, Ordering::Relaxed);
        Some(entry)
    }

    /// Reads all segments. Returns the number of the next record.
    fn read_all(&self, now_s: u32, hash: &Hash, slot: &Slot) -> u64 {
        let mut last = 0;
        let read = self.segments.read_all(|place, head, text| {
            last = last.max(head.number);
            let key = if head.is_custom { text.rest.to_vec() } else { [text.url, text.rest].concat() };
            let key_hash = hash(&key);
            let mut index = self.index();
            match head.kind {
                Kind::Entry => {
                    let at = if text.selected.is_empty() { key_hash } else { slot(key_hash, text.selected) };
                    // The first variant stands under its key as well: which one is first, a restart may change.
                    index.insert(at, place, now_s);
                    if at != key_hash && !is_slice(text.vary) {
                        index.insert(key_hash, place, now_s);
                    }
                }
                Kind::Forget => index.forget(key_hash, head.number),
                Kind::Purge => {
                    if let Ok(purge) = Purge::from_text(&String::from_utf8_lossy(text.lines)) {
                        index.purge(purge, head.number);
                    }
                }
            }
        });
        if let Err(error) = read {
            self.failed("read", &error);
        }
        self.index().number_from(last + 1);
        last + 1
    }

    fn write(&self, order: Write, next: &mut u64, paused_until: &mut Option<Instant>) {
        let number = *next;
        *next += 1;
        let is_paused = paused_until.is_some_and(|until| Instant::now() < until);
        let mut bytes = Vec::new();
        let written = match &order {
            Write::Entry(entry, slot, is_custom) => {
                self.queued_bytes.fetch_sub(entry.weight(), Ordering::Relaxed);
                // What was replaced meanwhile is not worth a write.
                if is_paused || entry.is_dead() {
                    return;
                }
                let text = Text::of(entry);
                if !record::write(Kind::Entry, number, *is_custom, text, Some(entry), &mut bytes) {
                    return;
                }
                self.append(&bytes, entry.body().len() as u32, number).map(|place| {
                    // It may have been purged while it was written.
                    if !entry.is_dead() {
                        self.index().insert(*slot, place, entry.used_s());
                        self.tally.written.fetch_add(1, Ordering::Relaxed);
                    }
                })
            }
            Write::Forget(key, url_ends, hash, is_custom) => {
                self.index().forget(*hash, number);
                let (url, rest) = key.split_at_checked(*url_ends).unwrap_or((key, b""));
                record::write(
                    Kind::Forget,
                    number,
                    *is_custom,
                    Text { url, rest, ..Text::default() },
                    None,
                    &mut bytes,
                );
                let written = self.append(&bytes, 0, number).map(drop);
                self.clear_unless(written)
            }
            Write::Purge(purge, done) => {
                self.index().purge(purge.clone(), number);
                let lines = purge.to_text();
                let text = Text { lines: lines.as_bytes(), ..Text::default() };
                record::write(Kind::Purge, number, false, text, None, &mut bytes);
                let written = self.append(&bytes, 0, number).and_then(|_| self.segments.sync());
                let written = self.clear_unless(written);
                let _ = done.send(());
                written
            }
            Write::Reclaim => {
                let removed = self.segments.remove_oldest(|segment| self.index().has_segment(segment));
                // It says nothing of whether writes succeed.
                return removed.unwrap_or_else(|error| self.failed("remove", &error));
            }
            Write::Stop => Ok(()),
        };
        match written {
            Ok(()) => *paused_until = None,
            Err(error) => {
                *paused_until = Some(Instant::now() + PAUSE);
                self.failed("write", &error);
            }
        }
    }

    /// What is not known to be out of date after a restart must not be there then.
    fn clear_unless(&self, written: io::Result<()>) -> io::Result<()> {
        if written.is_err() {
            let removed = self.segments.clear();
            removed.into_iter().for_each(|segment| self.index().remove_segment(segment));
        }
        written
    }

    fn append(&self, bytes: &[u8], body_bytes: u32, number: u64) -> io::Result<Place> {
        self.segments.append(bytes, body_bytes, number, |segment| self.index().remove_segment(segment))
    }

    /// Counts an error, and says the first one: requests go to the upstream as if there were no disk.
    fn failed(&self, what: &str, error: &io::Error) {
        self.tally.errors.fetch_add(1, Ordering::Relaxed);
        if !self.has_complained.swap(true, Ordering::Relaxed) {
            say(format_args!(
                "the cache's folder: {what}: {error}; such errors are counted, and not reported again"
            ));
        }
    }
}
