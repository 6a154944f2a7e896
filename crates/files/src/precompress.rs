//! Compresses text in advance on a thread with the lowest priority, requested files first.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
use flatout_wire::accept::Coding;

use super::entry::Entry;
use super::inbox::Inbox;
use flatout_compress::{compressed, give_way};

/// Requested texts in the queue; further ones wait with the rest.
const REQUESTED_MAX: usize = 4096;

/// Texts to be compressed. Each is at most once in each queue, so the queues are bounded by the number of files.
#[derive(Default)]
pub(crate) struct Queue {
    waiting: Mutex<Waiting>,
    arrived: Condvar,
}

#[derive(Default)]
struct Waiting {
    requested: VecDeque<Arc<Entry>>,
    rest: VecDeque<Weak<Entry>>,
    is_over: bool,
}

impl Queue {
    /// A client accepts a compressed form: it goes first.
    pub(crate) fn request(&self, entry: &Arc<Entry>) {
        if entry.note_precompression_request() {
            let mut waiting = self.lock();
            if waiting.requested.len() < REQUESTED_MAX {
                waiting.requested.push_back(entry.clone());
                self.arrived.notify_one();
            }
        }
    }

    /// It is compressed when no requested text waits.
    pub(crate) fn add(&self, entry: &Arc<Entry>) {
        if entry.note_precompression_queued() {
            self.lock().rest.push_back(Arc::downgrade(entry));
            self.arrived.notify_one();
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
            let is_idle = |waiting: &mut Waiting| {
                waiting.requested.is_empty() && waiting.rest.is_empty() && !waiting.is_over
            };
            let waiting = self.arrived.wait_while(self.lock(), is_idle);
            let mut waiting = waiting.unwrap_or_else(PoisonError::into_inner);
            if waiting.is_over {
                return None;
            }
            let entry = waiting.requested.pop_front().or_else(|| {
                let rest = waiting.rest.pop_front()?.upgrade()?;
                rest.clear_precompression_queued();
                Some(rest)
            });
            drop(waiting);
            if let Some(entry) = entry.filter(|entry| !entry.is_gone())
                && let Some(plain) = entry.begin_pressing()
            {
                return Some((entry, plain));
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Compresses queued files and returns results that are worth keeping, until it is stopped.
pub(crate) fn run(queue: &Queue, indexer: &Inbox) {
    give_way();
    while let Some((entry, plain)) = queue.next() {
        let variants = variants(&plain);
        if !variants.is_empty() && !indexer.compressed((entry, variants)) {
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
        let queue = Queue::default();
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
