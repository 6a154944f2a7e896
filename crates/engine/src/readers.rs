//! Reads files ahead on other threads: a worker that sends a file whose pages are not in memory would block on the
//! disk, and all its connections with it.

use std::fs::File;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use flatout_lane::slab::Key;
use flatout_lane::{cpu, file};

use crate::exchange::{Mail, Mailbox};

/// Threads that wait for disks. Started when the first file is found not to be in memory.
const THREADS: usize = 2;

/// Ranges that wait for a thread; above that, workers read small pieces themselves.
const JOBS_MAX: usize = 256;

/// The readers of one server.
#[derive(Default)]
pub(crate) struct Readers {
    jobs: OnceLock<Option<SyncSender<Job>>>,
}

/// A range to read into memory, and the connection that waits for it.
pub(crate) struct Job {
    pub(crate) file: Arc<File>,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) connection: Key,
    pub(crate) mailbox: Mailbox,
}

impl Readers {
    /// Requests a range; the worker gets [`Mail::Warm`] after the attempt. `false` means that the job was not
    /// accepted.
    pub(crate) fn read(&self, job: Job) -> bool {
        #[cfg(feature = "simulation")]
        if flatout_lane::clock::simulated::is_set() {
            return flatout_lane::jobs::defer_surely(move || warm(&job));
        }
        let jobs = self.jobs.get_or_init(start);
        jobs.as_ref().is_some_and(|jobs| jobs.try_send(job).is_ok())
    }
}

/// Starts the threads; they end with the server. `None` if no thread can be started.
fn start() -> Option<SyncSender<Job>> {
    let (sender, receiver) = sync_channel(JOBS_MAX);
    let receiver = Arc::new(Mutex::new(receiver));
    let started = (0..THREADS).filter(|index| {
        let receiver = receiver.clone();
        let thread = std::thread::Builder::new().name(format!("flatout-read-{index}"));
        thread.spawn(move || run(&receiver)).is_ok()
    });
    (started.count() > 0).then_some(sender)
}

fn run(jobs: &Mutex<Receiver<Job>>) {
    // It was started by a worker, which is pinned to a CPU.
    cpu::unpin();
    loop {
        let next = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = next else { return };
        warm(&job);
    }
}

fn warm(job: &Job) {
    // Sending the file will report errors.
    let _ = file::warm(&job.file, job.offset, job.bytes);
    job.mailbox.post(Mail::Warm(job.connection, job.offset + job.bytes));
}
