//! Reading files ahead, off the workers: a worker that sends a file whose pages are not in memory would wait for the disk,
//! and everybody else for the worker.

use std::fs::File;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use flatout_lane::slab::Key;
use flatout_lane::{cpu, file};

use crate::exchange::{Mail, Mailbox};

/// Threads that wait for disks. Made when the first file is found not to be in memory.
const THREADS: usize = 2;

/// Ranges that wait for one of them; over it workers read small pieces themselves.
const JOBS_MAX: usize = 256;

/// The readers of one server.
#[derive(Default)]
pub(crate) struct Readers {
    jobs: OnceLock<Option<SyncSender<Job>>>,
}

/// A range to be read into memory, and the connection that waits for it.
pub(crate) struct Job {
    pub(crate) file: Arc<File>,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) connection: Key,
    pub(crate) mailbox: Mailbox,
}

impl Readers {
    /// Has a range read; the worker gets [`Mail::Warm`] once that was tried. `false` means that the job was not accepted.
    pub(crate) fn read(&self, job: Job) -> bool {
        let jobs = self.jobs.get_or_init(start);
        jobs.as_ref().is_some_and(|jobs| jobs.try_send(job).is_ok())
    }
}

/// Starts the threads; they end with the server. `None` where there is no thread to be had.
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
    // A worker has started it, and is pinned to a CPU of its own.
    cpu::unpin();
    loop {
        let next = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = next else { return };
        // What cannot be read will be found by sending it.
        let _ = file::warm(&job.file, job.offset, job.bytes);
        job.mailbox.post(Mail::Warm(job.connection, job.offset + job.bytes));
    }
}
