//! Files of spooled responses. Threads write and read them: a disk may block, and a worker must not.

use std::collections::VecDeque;
use std::fmt;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::SystemTime;

use bytes::Bytes;
use flatout_engine::{FileRange, GuestKey, Mailbox, Witness};
use flatout_lane::{cpu, file};

use crate::spool::store::{SpoolSpace, SpoolStore};
#[cfg(feature = "simulation")]
use crate::worker::audit;

/// Threads. Started when the first response is written.
const THREADS: usize = 2;

/// Jobs that wait for a thread; above that, responses stay in memory.
const JOBS_MAX: usize = 1024;

/// Pieces below this size are copied together, so that each is not a system call.
const JOINED_BYTES_MAX: usize = 16 << 10;

/// The file of one response.
pub(crate) struct SpoolFile {
    /// Made by the first write.
    file: OnceLock<Arc<File>>,
    space: SpoolSpace,
}

impl SpoolFile {
    pub(crate) fn new(store: &Arc<SpoolStore>) -> Arc<SpoolFile> {
        Arc::new(SpoolFile { file: OnceLock::new(), space: SpoolSpace::new(store) })
    }

    /// Makes room for this many bytes in all, in the limit of all files. Returns whether there is.
    pub(crate) fn reserve(&self, bytes: u64) -> bool {
        self.space.reserve(bytes)
    }

    /// A range for the engine. The file exists until the engine has dropped it.
    pub(crate) fn range(self: &Arc<SpoolFile>, offset: u64, bytes: u64) -> Option<FileRange> {
        let file = self.file.get()?.clone();
        let modified = SystemTime::UNIX_EPOCH;
        Some(FileRange { file, offset, bytes, modified, witness: Some(self.clone()) })
    }

    fn write(&self, pieces: &[Bytes], mut offset: u64) -> io::Result<()> {
        #[cfg(feature = "simulation")]
        flatout_lane::jobs::check_disk()?;
        let file = match self.file.get() {
            Some(file) => file,
            None => {
                let folder = self.space.store.folder().ok_or(io::ErrorKind::NotFound)?;
                let made = Arc::new(file::nameless(&folder)?);
                self.file.get_or_init(|| made)
            }
        };
        let mut joined = Vec::new();
        for piece in pieces {
            if piece.len() < JOINED_BYTES_MAX {
                joined.extend_from_slice(piece);
                if joined.len() < JOINED_BYTES_MAX {
                    continue;
                }
                offset = write_at(file, &std::mem::take(&mut joined), offset)?;
                continue;
            }
            offset = write_at(file, &std::mem::take(&mut joined), offset)?;
            offset = write_at(file, piece, offset)?;
        }
        write_at(file, &joined, offset).map(drop)
    }

    fn read(&self, offset: u64, bytes: usize) -> io::Result<Bytes> {
        let file = self.file.get().ok_or(io::ErrorKind::NotFound)?;
        let mut read = vec![0; bytes];
        file.read_exact_at(&mut read, offset)?;
        Ok(read.into())
    }
}

fn write_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<u64> {
    file.write_all_at(bytes, offset)?;
    Ok(offset + bytes.len() as u64)
}

impl fmt::Debug for SpoolFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpoolFile").field("file", &self.file).finish_non_exhaustive()
    }
}

/// What follows a range may still be written; a range itself is written once before it is sent.
impl Witness for SpoolFile {
    fn is_unchanged(&self, _: &File, _: &Metadata) -> bool {
        true
    }
}

impl Drop for SpoolFile {
    /// Freeing the pages of a large file takes long: a thread does it.
    fn drop(&mut self) {
        if let Some(file) = self.file.take()
            && let Some(disk) = self.space.store.disk()
        {
            // Above the limit, it is closed here.
            let _ = disk.begin(DiskJob { work: Work::Close(file), done: None });
        }
    }
}

/// The threads.
pub(crate) struct Disk {
    jobs: SyncSender<DiskJob>,
    refused: Arc<RefusedGuests>,
}

/// Guests whose jobs found no room, the oldest first; each is here once.
#[derive(Default)]
struct RefusedGuests {
    queue: Mutex<VecDeque<(Mailbox, GuestKey)>>,
    /// Jobs that wait or are being done.
    jobs: AtomicUsize,
}

/// Guests that are called when a job has ended: one of them may be gone. When there are no jobs left, all are called.
const CALLED_PER_JOB: usize = 2;

pub(crate) struct DiskJob {
    pub(crate) work: Work,
    pub(crate) done: Option<Completion>,
}

pub(crate) enum Work {
    /// Write these pieces from this offset on.
    Write(Arc<SpoolFile>, Vec<Bytes>, u64),
    /// Read this many bytes from this offset on.
    Read(Arc<SpoolFile>, u64, usize),
    Close(Arc<File>),
}

/// The result of a job, for the worker; its guest is called when there is one.
#[derive(Clone)]
pub(crate) struct Completion {
    result: Arc<Mutex<Option<io::Result<Bytes>>>>,
    mailbox: Mailbox,
    guest: GuestKey,
}

impl Completion {
    pub(crate) fn new(mailbox: &Mailbox, guest: GuestKey) -> Completion {
        Completion { result: Arc::default(), mailbox: mailbox.clone(), guest }
    }

    /// The result, if the job is done: what was read.
    pub(crate) fn take(&self) -> Option<io::Result<Bytes>> {
        self.result.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Has the guest called when another job has ended.
    fn wait_for_room(&self, refused: &RefusedGuests) {
        let mut refused = refused.lock();
        if !refused.iter().any(|(mailbox, guest)| *guest == self.guest && *mailbox == self.mailbox) {
            refused.push_back((self.mailbox.clone(), self.guest));
            #[cfg(feature = "simulation")]
            audit::note_refused(&self.mailbox, self.guest);
        }
    }

    fn set(&self, result: io::Result<Bytes>) {
        *self.result.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
        self.mailbox.call_again(self.guest);
    }
}

impl Disk {
    /// Starts the threads; they end with the server. `None` if none can be started.
    pub(crate) fn start() -> Option<Disk> {
        let (jobs, receiver) = sync_channel(JOBS_MAX);
        let receiver = Arc::new(Mutex::new(receiver));
        let refused = Arc::<RefusedGuests>::default();
        #[cfg(feature = "simulation")]
        if flatout_lane::clock::simulated::is_set() {
            return Some(Disk { jobs, refused });
        }
        let started = (0..THREADS).filter(|index| {
            let (receiver, refused) = (receiver.clone(), refused.clone());
            let thread = std::thread::Builder::new().name(format!("flatout-spool-{index}"));
            thread.spawn(move || run(&receiver, &refused)).is_ok()
        });
        (started.count() > 0).then_some(Disk { jobs, refused })
    }

    /// Starts a job. Returns whether there was room for it. If not, the guest that waits for it is called when there may be.
    pub(crate) fn begin(&self, job: DiskJob) -> bool {
        #[cfg(feature = "simulation")]
        if flatout_lane::clock::simulated::is_set() {
            return self.begin_simulated(job);
        }
        self.refused.jobs.fetch_add(1, Ordering::AcqRel);
        let refused = match self.jobs.try_send(job) {
            Ok(()) => return true,
            Err(TrySendError::Full(job) | TrySendError::Disconnected(job)) => job,
        };
        if let Some(done) = &refused.done {
            done.wait_for_room(&self.refused);
            // The last job may have ended before the guest was added.
            if self.jobs.try_send(refused).is_ok() {
                return true;
            }
        }
        if self.refused.jobs.fetch_sub(1, Ordering::AcqRel) == 1 {
            // All others have ended meanwhile, and the last of them has called only a few.
            self.refused.call(usize::MAX);
        }
        false
    }

    #[cfg(feature = "simulation")]
    fn begin_simulated(&self, job: DiskJob) -> bool {
        let done = job.done.clone();
        if flatout_lane::jobs::defer(|| run_now(job)) {
            return true;
        }
        if let Some(done) = done {
            done.wait_for_room(&self.refused);
            let refused = self.refused.clone();
            flatout_lane::jobs::when_room(move || refused.call(usize::MAX));
        }
        false
    }
}

impl RefusedGuests {
    fn lock(&self) -> MutexGuard<'_, VecDeque<(Mailbox, GuestKey)>> {
        // Each change under the lock is a single step.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn job_ended(&self) {
        let are_all_done = self.jobs.fetch_sub(1, Ordering::AcqRel) == 1;
        self.call(if are_all_done { usize::MAX } else { CALLED_PER_JOB });
    }

    /// Calls so many, which ask again if they are still there.
    fn call(&self, most: usize) {
        let mut queue = self.lock();
        let count = queue.len().min(most);
        let called: Vec<_> = queue.drain(..count).collect();
        drop(queue);
        for (mailbox, guest) in called {
            #[cfg(feature = "simulation")]
            audit::note_called(&mailbox, guest);
            mailbox.call_again(guest);
        }
    }
}

fn run(jobs: &Mutex<Receiver<DiskJob>>, refused: &RefusedGuests) {
    // It was started by a worker, which is pinned to a CPU.
    cpu::unpin();
    loop {
        let next = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = next else { return };
        run_now(job);
        refused.job_ended();
    }
}

fn run_now(DiskJob { work, done }: DiskJob) {
    // Each ends with its part of the file: what the worker drops afterwards counts at once.
    let result = match work {
        Work::Write(file, pieces, offset) => file.write(&pieces, offset).map(|()| Bytes::new()),
        Work::Read(file, offset, bytes) => file.read(offset, bytes),
        Work::Close(file) => {
            drop(file);
            Ok(Bytes::new())
        }
    };
    if let Some(done) = done {
        done.set(result);
    }
}
