//! What all spooled responses of a server share: limits, counters, and the threads that write their files.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use flatout_engine::say;
use flatout_lane::clock;

use crate::spool::disk::Disk;

/// After an error of the folder, responses are not written for this long. Meanwhile their upstreams wait for their clients.
const PAUSE: Duration = Duration::from_secs(10);

/// Where and how much of responses is kept while their clients are slow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpoolPlan {
    /// The folder of their files, which have no names in it; `None` keeps responses in memory only.
    pub folder: Option<PathBuf>,
    /// Bytes of all files.
    pub bytes_max: u64,
    /// Bytes of memory. Each response may have one piece of up to 256 KiB beyond it, so that it goes on.
    pub memory_max: u64,
}

impl SpoolPlan {
    /// Bytes of all files, by default.
    pub const BYTES_MAX: u64 = 4 << 30;
    /// Bytes of memory, by default.
    pub const MEMORY_MAX: u64 = 64 << 20;
}

impl Default for SpoolPlan {
    /// In memory only.
    fn default() -> SpoolPlan {
        SpoolPlan { folder: None, bytes_max: SpoolPlan::BYTES_MAX, memory_max: SpoolPlan::MEMORY_MAX }
    }
}

/// What is spooled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpoolFigures {
    /// Responses of which something is kept now.
    pub now: u64,
    /// Bytes of memory now.
    pub memory_bytes: u64,
    /// Bytes of files now.
    pub file_bytes: u64,
    /// Responses so far that were kept because their client was slow.
    pub responses: u64,
    /// Errors of the folder so far.
    pub errors: u64,
}

/// The folder of one configuration, and what all configurations share. What began under a configuration ends in its folder.
#[derive(Default)]
pub(crate) struct SpoolStore {
    folder: Mutex<Option<PathBuf>>,
    /// No file is written before this time ([`clock::nanoseconds`]).
    paused_until_ns: AtomicU64,
    shared: Arc<SharedSpool>,
}

/// Shared by all workers, and kept by a reload.
#[derive(Default)]
struct SharedSpool {
    memory_max: AtomicU64,
    bytes_max: AtomicU64,
    now: AtomicU64,
    memory_bytes: AtomicU64,
    file_bytes: AtomicU64,
    responses: AtomicU64,
    errors: AtomicU64,
    has_reported: AtomicBool,
    disk: OnceLock<Option<Disk>>,
}

impl SpoolStore {
    pub(crate) fn new(plan: SpoolPlan) -> Arc<SpoolStore> {
        let store = SpoolStore::default();
        store.set(plan);
        Arc::new(store)
    }

    /// For the configuration after this one, with its folder until another is set.
    pub(crate) fn next(&self) -> Arc<SpoolStore> {
        let folder = Mutex::new(self.folder());
        Arc::new(SpoolStore { folder, paused_until_ns: AtomicU64::new(0), shared: self.shared.clone() })
    }

    /// Applies limits to all configurations, and the folder to this one.
    pub(crate) fn set(&self, plan: SpoolPlan) {
        if let Some(folder) = plan.folder.as_ref().filter(|folder| !folder.is_dir()) {
            say(format_args!(
                "response buffering: {} is no folder; while that is so, responses are kept in memory only",
                folder.display()
            ));
        }
        self.shared.memory_max.store(plan.memory_max, Ordering::Relaxed);
        self.shared.bytes_max.store(plan.bytes_max, Ordering::Relaxed);
        *self.folder.lock().unwrap_or_else(PoisonError::into_inner) = plan.folder;
        self.paused_until_ns.store(0, Ordering::Relaxed);
    }

    pub(crate) fn folder(&self) -> Option<PathBuf> {
        self.folder.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn figures(&self) -> SpoolFigures {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let shared = &self.shared;
        SpoolFigures {
            now: read(&shared.now),
            memory_bytes: read(&shared.memory_bytes),
            file_bytes: read(&shared.file_bytes),
            responses: read(&shared.responses),
            errors: read(&shared.errors),
        }
    }

    /// The threads, started now if there are none; `None` if they cannot be.
    pub(crate) fn disk(&self) -> Option<&Disk> {
        self.shared.disk.get_or_init(Disk::start).as_ref()
    }

    /// Whether a file may be written now.
    pub(crate) fn is_writable(&self) -> bool {
        let has_folder = || self.folder.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        self.paused_until_ns.load(Ordering::Relaxed) <= clock::nanoseconds() && has_folder()
    }

    /// Whether this share of the memory, in quarters, is free or in use by others.
    pub(crate) fn has_memory(&self, quarters: u64) -> bool {
        self.shared.memory_bytes.load(Ordering::Relaxed)
            < self.shared.memory_max.load(Ordering::Relaxed) / 4 * quarters.min(4)
    }

    /// A file could not be written.
    pub(crate) fn failed(&self, error: &io::Error) {
        self.shared.errors.fetch_add(1, Ordering::Relaxed);
        self.paused_until_ns.store(clock::nanoseconds() + PAUSE.as_nanos() as u64, Ordering::Relaxed);
        if !self.shared.has_reported.swap(true, Ordering::Relaxed) {
            let folder = self.folder().unwrap_or_default();
            say(format_args!(
                "response buffering: cannot write to {}: {error}; upstreams wait for slow clients while that is so; such \
                 errors are counted, and not reported again",
                folder.display()
            ));
        }
    }
}

/// Bytes of memory that one response or request has, returned when it is dropped. It also counts the response.
pub(crate) struct SpoolMemory {
    store: Arc<SpoolStore>,
    bytes: u64,
    is_response: bool,
}

impl SpoolMemory {
    pub(crate) fn new(store: &Arc<SpoolStore>) -> SpoolMemory {
        store.shared.responses.fetch_add(1, Ordering::Relaxed);
        store.shared.now.fetch_add(1, Ordering::Relaxed);
        SpoolMemory { store: store.clone(), bytes: 0, is_response: true }
    }

    /// For the body of a request, which is not counted.
    pub(crate) fn of_request(store: &Arc<SpoolStore>) -> SpoolMemory {
        SpoolMemory { store: store.clone(), bytes: 0, is_response: false }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn take(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.store.shared.memory_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn release(&mut self, bytes: u64) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.store.shared.memory_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for SpoolMemory {
    fn drop(&mut self) {
        self.release(self.bytes);
        if self.is_response {
            self.store.shared.now.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Bytes of files that one file has, returned when it is dropped.
pub(crate) struct SpoolSpace {
    pub(crate) store: Arc<SpoolStore>,
    bytes: AtomicU64,
}

impl SpoolSpace {
    pub(crate) fn new(store: &Arc<SpoolStore>) -> SpoolSpace {
        SpoolSpace { store: store.clone(), bytes: AtomicU64::new(0) }
    }

    /// Makes it at least this large. Returns whether there is room among all files.
    pub(crate) fn reserve(&self, bytes: u64) -> bool {
        let missing = bytes.saturating_sub(self.bytes.load(Ordering::Relaxed));
        let all = &self.store.shared.file_bytes;
        if all.fetch_add(missing, Ordering::Relaxed) + missing
            > self.store.shared.bytes_max.load(Ordering::Relaxed)
            && missing > 0
        {
            all.fetch_sub(missing, Ordering::Relaxed);
            return false;
        }
        self.bytes.fetch_add(missing, Ordering::Relaxed);
        true
    }
}

impl Drop for SpoolSpace {
    fn drop(&mut self) {
        self.store.shared.file_bytes.fetch_sub(self.bytes.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_stay_in_the_folder_of_their_configuration() {
        let plan = |folder: Option<&str>, memory_max| SpoolPlan {
            folder: folder.map(PathBuf::from),
            memory_max,
            ..SpoolPlan::default()
        };
        let former = SpoolStore::new(plan(Some("/"), 100));
        let next = former.next();
        assert_eq!(next.folder(), former.folder());
        next.set(plan(None, 50));
        assert!(former.is_writable() && !next.is_writable());
        let mut kept = SpoolMemory::of_request(&former);
        kept.take(50);
        assert!(!former.has_memory(4) && !next.has_memory(4), "limits are those of both");
    }

    #[test]
    fn limits_are_of_all_responses_and_return_to_zero() {
        let plan = SpoolPlan { folder: None, bytes_max: 100, memory_max: 100 };
        let store = SpoolStore::new(plan);
        let (mut one, mut other) = (SpoolMemory::new(&store), SpoolMemory::new(&store));
        one.take(70);
        assert!(store.has_memory(3) && store.has_memory(4));
        other.take(10);
        assert!(!store.has_memory(3) && store.has_memory(4));
        let (first, second) = (SpoolSpace::new(&store), SpoolSpace::new(&store));
        assert!(first.reserve(60) && first.reserve(50) && !second.reserve(41) && second.reserve(40));
        let figures = store.figures();
        assert_eq!((figures.now, figures.memory_bytes, figures.file_bytes), (2, 80, 100));
        drop((one, other, first, second));
        assert_eq!(store.figures(), SpoolFigures { responses: 2, ..SpoolFigures::default() });
    }
}
