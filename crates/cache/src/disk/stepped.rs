//! The writer without a thread, for the simulator: each of its steps is a job of `lane::jobs`.

use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{SyncSender, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};

use flatout_lane::jobs;

use super::writer::{Write, Writer};
use super::{Disk, Shared};

/// The writer, for the jobs that step it.
pub(super) type Steps = Arc<Mutex<Writer>>;

impl Disk {
    pub(super) fn stepped(shared: Arc<Shared>, queue: SyncSender<Write>, writer: Writer) -> Disk {
        let steps = Some(Arc::new(Mutex::new(writer)));
        let disk = Disk { shared, queue, writer: Mutex::new(None), steps, is_closed: AtomicBool::new(false) };
        // The first one reads the segments.
        disk.defer_step();
        disk
    }

    /// The writer does one more thing, sooner or later.
    pub(super) fn defer_step(&self) {
        if let Some(steps) = self.steps.clone() {
            jobs::defer_surely(move || {
                step(&steps);
            });
        }
    }

    /// Queues a job for the writer, if one more may wait.
    pub(super) fn try_send_stepped(&self, write: Write) -> Result<(), TrySendError<Write>> {
        if !jobs::has_room() {
            return Err(TrySendError::Full(write));
        }
        self.queue.try_send(write)?;
        self.defer_step();
        Ok(())
    }

    /// The writer does everything that waits, if it has no thread.
    pub(super) fn settle(&self) {
        if let Some(steps) = &self.steps {
            while step(steps) {}
        }
    }

    /// Writes what waits, unless the process was killed, and frees the folder.
    pub(super) fn close_stepped(&self) {
        if self.steps.is_none() || self.is_closed() {
            return;
        }
        if !jobs::has_crashed() {
            // Its queue is emptied right away.
            let _ = self.queue.send(Write::Stop);
            self.settle();
        }
        self.shared.segments.unlock();
    }
}

fn step(steps: &Steps) -> bool {
    steps.lock().unwrap_or_else(PoisonError::into_inner).step()
}
