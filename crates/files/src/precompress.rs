//! Compresses text in advance on threads with the lowest priority, requested files first.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use flatout_wire::accept::Coding;

use super::entry::Entry;
use super::inbox::Inbox;
use flatout_compress::{compressed, give_way};

/// Requested texts in the queue; further ones wait with the rest.
const REQUESTED_MAX: usize = 4096;

/// Threads that compress the texts of folders without threads of their own.
const SHARED_THREADS_MAX: usize = 4;

/// How long a shared thread waits before it serves the next folder, if this one's results are not taken: it may be scanned for long.
const FULL_TIME: Duration = Duration::from_millis(5);

/// Texts of a folder to be compressed. Each is at most once in each queue, so the queues are bounded by the number of files.
pub(crate) struct Queue {
    waiting: Mutex<Waiting>,
    arrived: Condvar,
    /// The folder's.
    inbox: Arc<Inbox>,
}

#[derive(Default)]
struct Waiting {
    requested: VecDeque<Arc<Entry>>,
    rest: VecDeque<Weak<Entry>>,
    is_over: bool,
    /// It has no thread of its own.
    is_shared: bool,
    /// It is among the folders that the shared threads serve in turn.
    is_listed: bool,
}

/// The threads for folders without their own, and the folders that have texts, each once.
struct Compressors {
    state: Mutex<CompressorsState>,
    arrived: Condvar,
}

struct CompressorsState {
    folders: VecDeque<Arc<Queue>>,
    threads: usize,
    idle: usize,
}

static COMPRESSORS: Compressors = Compressors {
    state: Mutex::new(CompressorsState { folders: VecDeque::new(), threads: 0, idle: 0 }),
    arrived: Condvar::new(),
};

impl Waiting {
    fn is_empty(&self) -> bool {
        self.requested.is_empty() && self.rest.is_empty()
    }
}

impl Queue {
    pub(crate) fn new(inbox: Arc<Inbox>) -> Queue {
        Queue { waiting: Mutex::default(), arrived: Condvar::new(), inbox }
    }

    /// The folder has no thread of its own.
    pub(crate) fn share_threads(&self) {
        self.lock().is_shared = true;
    }

    /// A client accepts a compressed form: it goes first.
    pub(crate) fn request(self: &Arc<Self>, entry: &Arc<Entry>) {
        if entry.note_precompression_request() {
            let mut waiting = self.lock();
            if waiting.requested.len() < REQUESTED_MAX {
                waiting.requested.push_back(entry.clone());
                self.wake(waiting);
            }
        }
    }

    /// It is compressed when no requested text waits.
    pub(crate) fn add(self: &Arc<Self>, entry: &Arc<Entry>) {
        if entry.note_precompression_queued() {
            let mut waiting = self.lock();
            waiting.rest.push_back(Arc::downgrade(entry));
            self.wake(waiting);
        }
    }

    fn wake(self: &Arc<Self>, mut waiting: MutexGuard<'_, Waiting>) {
        if !waiting.is_shared {
            return self.arrived.notify_one();
        }
        if !std::mem::replace(&mut waiting.is_listed, true) {
            drop(waiting);
            COMPRESSORS.add(self.clone());
        }
    }

    /// Wakes all waiters.
    pub(crate) fn end(&self) {
        self.lock().is_over = true;
        self.arrived.notify_all();
    }

    /// Waits for the next text: returns it with its plain bytes. `None` after the end.
    fn next(&self) -> Option<(Arc<Entry>, Bytes)> {
        loop {
            let is_idle = |waiting: &mut Waiting| waiting.is_empty() && !waiting.is_over;
            let waiting = self.arrived.wait_while(self.lock(), is_idle);
            let waiting = waiting.unwrap_or_else(PoisonError::into_inner);
            if waiting.is_over {
                return None;
            }
            if let Some(text) = taken(waiting) {
                return Some(text);
            }
        }
    }

    /// Compresses the next text, if there is one, and room for the result. Returns whether the folder is still served.
    fn press_one(&self) -> bool {
        if !self.inbox.has_room() {
            thread::sleep(FULL_TIME);
            return true;
        }
        let waiting = self.lock();
        if waiting.is_over {
            return false;
        }
        taken(waiting).is_none_or(|text| self.press(text))
    }

    /// Compresses a text, and keeps the results that are worth it. Returns whether the folder is still served.
    fn press(&self, (entry, plain): (Arc<Entry>, Bytes)) -> bool {
        let variants = variants(&plain);
        variants.is_empty() || self.inbox.compressed((entry, variants))
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The next text, with its plain bytes, if it is still to be compressed.
fn taken(mut waiting: MutexGuard<'_, Waiting>) -> Option<(Arc<Entry>, Bytes)> {
    let entry = waiting.requested.pop_front().or_else(|| {
        let rest = waiting.rest.pop_front()?.upgrade()?;
        rest.clear_precompression_queued();
        Some(rest)
    });
    drop(waiting);
    let entry = entry.filter(|entry| !entry.is_gone())?;
    let plain = entry.begin_pressing()?;
    Some((entry, plain))
}

impl Compressors {
    /// A folder has texts. Starts another thread if all are busy; if that is not possible, one of the others gets there.
    fn add(&self, folder: Arc<Queue>) {
        let mut state = self.lock();
        state.folders.push_back(folder);
        if state.folders.len() > state.idle && state.threads < SHARED_THREADS_MAX {
            let thread = thread::Builder::new().name("files-compress".to_owned());
            let started = thread.spawn(|| {
                give_way();
                COMPRESSORS.run();
            });
            state.threads += usize::from(started.is_ok());
        }
        self.arrived.notify_one();
    }

    fn run(&self) {
        loop {
            let folder = self.next();
            // A text that makes the compressor panic is left as it is.
            let is_served = catch_unwind(AssertUnwindSafe(|| folder.press_one())).unwrap_or(true);
            let mut waiting = folder.lock();
            waiting.is_listed = is_served && !waiting.is_empty();
            if waiting.is_listed {
                drop(waiting);
                self.add(folder);
            }
        }
    }

    /// The folder whose turn it is.
    fn next(&self) -> Arc<Queue> {
        let mut state = self.lock();
        loop {
            if let Some(folder) = state.folders.pop_front() {
                return folder;
            }
            state.idle += 1;
            state = self.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
        }
    }

    fn lock(&self) -> MutexGuard<'_, CompressorsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Compresses the texts of a folder until the folder is not served any more.
pub(crate) fn run(queue: &Queue) {
    give_way();
    while let Some(text) = queue.next() {
        if !queue.press(text) {
            return;
        }
    }
}

/// The compressed forms of a text that are clearly smaller than it.
pub(crate) fn variants(plain: &Bytes) -> Vec<(Coding, Bytes)> {
    let of = |coding| Some((coding, compressed(coding, plain)?));
    [Coding::Brotli, Coding::Zstd, Coding::Gzip].into_iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::time::UNIX_EPOCH;

    use super::super::entry::Content;
    use super::super::write_detection::Stamp;
    use super::*;

    fn entry(name: &str) -> Arc<Entry> {
        let stamp = Stamp { device: 1, inode: 1, bytes: 1000, modified: UNIX_EPOCH };
        let entry = Entry::new(name.into(), stamp, Vec::new(), None);
        entry.set_contents(vec![(Coding::Identity, Content::Memory(Bytes::from_static(b"text")))], None);
        Arc::new(entry)
    }

    #[test]
    fn requested_files_are_first_and_none_repeats() {
        let queue = Arc::new(Queue::new(Arc::default()));
        let entries: Vec<Arc<Entry>> = ["a.css", "b.css", "c.css", "d.png"].map(entry).into();
        entries.iter().for_each(|entry| queue.add(entry));
        queue.request(&entries[2]);
        queue.request(&entries[2]);
        let next = || queue.next().map(|(entry, _)| entry.path.clone());
        let order: Vec<_> = (0..3).map(|_| next().unwrap()).collect();
        assert_eq!(order, ["c.css", "a.css", "b.css"].map(std::path::PathBuf::from));
        queue.end();
        assert_eq!(next(), None);
    }

    #[test]
    fn compressed_files_can_be_decompressed() {
        let text = Bytes::from("all work and no play makes jack a dull boy\n".repeat(50));
        let made = variants(&text);
        assert_eq!(made.len(), 3);
        for (coding, bytes) in made {
            let mut back = Vec::new();
            match coding {
                Coding::Gzip => _ = flate2::read::GzDecoder::new(&bytes[..]).read_to_end(&mut back).unwrap(),
                Coding::Zstd => back = zstd::bulk::decompress(&bytes, 10_000).unwrap(),
                Coding::Brotli => brotli::BrotliDecompress(&mut &bytes[..], &mut back).unwrap(),
                Coding::Identity => unreachable!("never made"),
            }
            assert_eq!(back, text);
        }
    }

    #[test]
    fn incompressible_files_are_not_kept() {
        let mut state = 1u32;
        let noise = (0..2000).map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        });
        assert!(variants(&noise.collect()).is_empty());
    }
}
