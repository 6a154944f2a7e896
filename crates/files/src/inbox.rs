//! Messages to the indexer from the watcher, the workers and the compressor. All queues are bounded.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use flatout_wire::accept::Coding;

use super::entry::Entry;
use super::pool::Task;

/// How long changes are gathered before a scan, because editors and deployments cause bursts.
const GATHER_TIME: Duration = Duration::from_millis(50);

/// Changed paths that are listed separately; beyond that the whole folder is scanned.
const CHANGED_MAX: usize = 10_000;

/// Entries that workers have asked for; beyond that they ask again later.
const REQUESTED_MAX: usize = 4096;

/// Queued results of the compressor; beyond that the compressor waits.
const COMPRESSED_MAX: usize = 64;

/// Compressed variants of one entry.
pub(crate) type Compressed = (Arc<Entry>, Vec<(Coding, Bytes)>);

/// A mailbox with one reader: a thread that waits for messages, or a task of the shared threads.
#[derive(Default)]
pub(crate) struct Inbox {
    batch: Mutex<Batch>,
    task: OnceLock<Task>,
    arrived: Condvar,
    has_room: Condvar,
}

/// The messages since the last batch.
#[derive(Default)]
pub(crate) struct Batch {
    /// Something may have changed at these paths, relative to the root.
    pub(crate) changed: BTreeSet<PathBuf>,
    pub(crate) compressed: Vec<Compressed>,
    /// Entries that clients requested and that are not in memory.
    pub(crate) requested: Vec<Arc<Entry>>,
    /// Why the watcher may miss changes.
    pub(crate) blind: Option<String>,
    /// The site is no longer served.
    pub(crate) is_over: bool,
}

impl Batch {
    /// One changed path.
    pub(crate) fn changed(path: impl Into<PathBuf>) -> Batch {
        Batch { changed: BTreeSet::from([path.into()]), ..Batch::default() }
    }

    fn is_empty(&self) -> bool {
        self.changed.is_empty()
            && self.compressed.is_empty()
            && self.requested.is_empty()
            && self.blind.is_none()
            && !self.is_over
    }

    /// How long further messages are waited for.
    fn gather_time(&self) -> Duration {
        match self.is_over || self.changed.is_empty() && self.requested.is_empty() {
            true => Duration::ZERO,
            false => GATHER_TIME,
        }
    }
}

impl Inbox {
    /// From now on this task is the reader.
    pub(crate) fn read_by(&self, task: Task) {
        // It has one reader.
        let _ = self.task.set(task);
    }

    /// Reports that something may have changed at a path.
    pub(crate) fn changed(&self, path: PathBuf) {
        self.tell(self.lock(), |batch| {
            if batch.changed.len() >= CHANGED_MAX {
                batch.changed.clear();
                batch.changed.insert(PathBuf::new());
            }
            // The root includes every path.
            if !batch.changed.contains(Path::new("")) {
                batch.changed.insert(path);
            }
        });
    }

    /// Reports that changes may be missed from now on.
    pub(crate) fn blind(&self, reason: String) {
        self.tell(self.lock(), |batch| batch.blind = Some(reason));
    }

    /// Asks for an entry to be loaded.
    pub(crate) fn request(&self, entry: &Arc<Entry>) {
        if entry.begin_asking() {
            self.tell(self.lock(), |batch| {
                if batch.requested.len() < REQUESTED_MAX {
                    batch.requested.push(entry.clone());
                } else {
                    entry.end_asking();
                }
            });
        }
    }

    /// Whether the next compressed variants would not block.
    pub(crate) fn has_room(&self) -> bool {
        let batch = self.lock();
        batch.compressed.len() < COMPRESSED_MAX || batch.is_over
    }

    /// Sends compressed variants; blocks while the queue is full. Returns whether the site is still served.
    pub(crate) fn compressed(&self, compressed: Compressed) -> bool {
        let is_full = |batch: &mut Batch| batch.compressed.len() >= COMPRESSED_MAX && !batch.is_over;
        let batch = self.has_room.wait_while(self.lock(), is_full).unwrap_or_else(PoisonError::into_inner);
        let is_served = !batch.is_over;
        self.tell(batch, |batch| batch.compressed.push(compressed));
        is_served
    }

    /// Wakes the indexer for the first message; later ones are gathered.
    fn tell(&self, mut batch: MutexGuard<'_, Batch>, note: impl FnOnce(&mut Batch)) {
        let was_empty = batch.is_empty();
        note(&mut batch);
        if was_empty {
            let gather_time = batch.gather_time();
            drop(batch);
            self.wake(gather_time);
        }
    }

    /// Wakes the reader: a thread now, a task after this time.
    fn wake(&self, gather_time: Duration) {
        match self.task.get() {
            Some(task) => task.run_at(Instant::now() + gather_time),
            None => self.arrived.notify_one(),
        }
    }

    /// Reports that the site is no longer served; messages after that are ignored.
    pub(crate) fn end(&self) {
        self.lock().is_over = true;
        self.wake(Duration::ZERO);
        self.has_room.notify_all();
    }

    /// Takes all messages.
    pub(crate) fn take_now(&self) -> Batch {
        self.taken(self.lock())
    }

    /// Waits for a message or until the given time, gathers messages for a little longer, and takes all of them.
    pub(crate) fn take(&self, until: Instant) -> Batch {
        let left = until.saturating_duration_since(Instant::now());
        let wait = |batch, time, is_empty: fn(&mut Batch) -> bool| {
            let waited = self.arrived.wait_timeout_while(batch, time, is_empty);
            waited.unwrap_or_else(PoisonError::into_inner).0
        };
        let mut batch = wait(self.lock(), left, |batch| batch.is_empty());
        let gather_time = batch.gather_time();
        if gather_time > Duration::ZERO {
            batch = wait(batch, gather_time, |batch| !batch.is_over);
        }
        self.taken(batch)
    }

    fn taken(&self, mut batch: MutexGuard<'_, Batch>) -> Batch {
        let is_over = batch.is_over;
        self.has_room.notify_all();
        // Once over, it stays over.
        std::mem::replace(&mut *batch, Batch { is_over, ..Batch::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Batch> {
        self.batch.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_changes_becomes_one_full_scan() {
        let inbox = Inbox::default();
        for number in 0..=CHANGED_MAX {
            inbox.changed(number.to_string().into());
        }
        let batch = inbox.take_now();
        assert_eq!(batch.changed, BTreeSet::from([PathBuf::new()]));
        inbox.changed("one".into());
        assert_eq!(inbox.take_now().changed, BTreeSet::from(["one".into()]));
        assert!(inbox.take_now().is_empty());
        inbox.end();
        assert!(inbox.take(Instant::now() + Duration::from_secs(60)).is_over);
    }
}
