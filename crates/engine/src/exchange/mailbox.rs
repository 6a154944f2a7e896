//! Messages from other threads to a worker.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use flatout_lane::poll::{Set, Token, Wake};
use flatout_lane::slab::Key;
use tokio::sync::oneshot;

use super::guest::GuestKey;
use super::lane::Lane;
use crate::listeners::{ListenersChange, NewLimits};
use crate::server::WorkerFigures;

/// Jobs waiting in one mailbox; above that [`Mailbox::run`] refuses.
const JOBS_MAX: usize = 16 << 10;

/// Sends jobs to one worker from any thread. Cheap to clone.
#[derive(Clone)]
pub struct Mailbox(Arc<MailboxInner>);

struct MailboxInner {
    state: Mutex<MailboxState>,
    wake: Wake,
}

#[derive(Default)]
struct MailboxState {
    mail: VecDeque<Mail>,
    jobs_count: usize,
    /// The worker has ended: nobody reads new messages.
    is_closed: bool,
}

/// A message to a worker. Besides jobs, which are limited, at most three `ReadOn` wait for each
/// request (wanted, caught up, dropped), one `Figures` for each request for them, one `Warm` for each connection, one `Again` for each guest, and one end of each
/// WebSocket.
pub(crate) enum Mail {
    /// Stop accepting; finish pending work until the deadline.
    Drain(DrainTime),
    /// Close everything now.
    Stop,
    /// Change the listeners.
    Listen(Box<ListenersChange>),
    /// Send back the sockets that this worker listens on.
    Sockets(usize, Sender<WorkerSockets>),
    /// Send back this worker's figures, counted now.
    Figures(oneshot::Sender<WorkerFigures>),
    /// Apply these limits to connections.
    Limits(Box<NewLimits>),
    /// The reader of this exchange's request body has caught up.
    ReadOn(Key),
    /// The file that this connection sends is in memory up to this offset.
    Warm(Key, u64),
    /// Call this guest's owner.
    Again(GuestKey),
    /// Run this on the worker.
    Run(LaneJob),
}

/// How long a drain may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DrainTime {
    /// For requests.
    pub(crate) requests: Duration,
    /// For connections that have switched to another protocol; at least as long.
    pub(crate) tunnels: Duration,
}

/// A worker's number, and copies of its listening sockets with their listeners' numbers.
pub(crate) type WorkerSockets = (usize, io::Result<Vec<(u32, OwnedFd)>>);

type LaneJob = Box<dyn FnOnce(&Lane) + Send>;

/// The worker has not kept up with its jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MailboxFull;

impl fmt::Display for MailboxFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the worker's mailbox is full: {JOBS_MAX} jobs wait")
    }
}

impl std::error::Error for MailboxFull {}

impl Mailbox {
    pub(crate) fn new() -> io::Result<Mailbox> {
        Ok(Mailbox(Arc::new(MailboxInner { state: Mutex::default(), wake: Wake::new()? })))
    }

    /// Runs `job` on the worker, within its next turn: there it may respond by key, push into bodies, register
    /// guests. Costs a lock, and a system call if the worker has nothing else waiting. A worker that has ended drops
    /// the job.
    ///
    /// # Errors
    /// The worker has [not kept up](MailboxFull); the job was not taken.
    pub fn run(&self, job: impl FnOnce(&Lane) + Send + 'static) -> Result<(), MailboxFull> {
        let mut state = self.0.lock();
        if state.jobs_count >= JOBS_MAX {
            return Err(MailboxFull);
        }
        state.jobs_count += usize::from(!state.is_closed);
        self.deliver(state, Mail::Run(Box::new(job)));
        Ok(())
    }

    /// Calls the guest's owner again, as [`Lane::call_again`] does on the worker. This is taken even if too many jobs
    /// wait, so callers must not repeat it before the owner was called.
    pub fn call_again(&self, guest: GuestKey) {
        self.post(Mail::Again(guest));
    }

    pub(crate) fn post(&self, mail: Mail) {
        self.deliver(self.0.lock(), mail);
    }

    fn deliver(&self, mut state: std::sync::MutexGuard<'_, MailboxState>, mail: Mail) {
        if state.is_closed {
            drop(state);
            return drop(mail);
        }
        let was_empty = state.mail.is_empty();
        state.mail.push_back(mail);
        drop(state);
        if was_empty {
            self.0.wake.wake();
        }
    }

    /// Makes it wake the worker's set.
    pub(crate) fn watch(&self, set: &Set) -> io::Result<()> {
        set.add_wake(&self.0.wake, Token::Wake.to_u64())
    }

    /// Drops current and future messages: the worker has ended.
    pub(crate) fn close(&self) {
        let mut state = self.0.lock();
        state.is_closed = true;
        let mail = std::mem::take(&mut state.mail);
        drop(state);
        // Outside of the lock: dropping a job may run service code.
        drop(mail);
    }

    /// Takes all messages.
    pub(crate) fn take(&self) -> VecDeque<Mail> {
        self.0.wake.clear();
        let mut state = self.0.lock();
        state.jobs_count = 0;
        std::mem::take(&mut state.mail)
    }
}

impl MailboxInner {
    fn lock(&self) -> std::sync::MutexGuard<'_, MailboxState> {
        // Every change under the lock is a single step, so a panic leaves it consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether it is that of the same worker.
impl PartialEq for Mailbox {
    fn eq(&self, other: &Mailbox) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Mailbox {}

impl fmt::Debug for Mailbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailbox").field("waiting", &self.0.lock().mail.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mailbox_is_bounded() {
        let mailbox = Mailbox::new().unwrap();
        assert!((0..JOBS_MAX).all(|_| mailbox.run(|_| ()).is_ok()));
        assert_eq!(mailbox.run(|_| ()), Err(MailboxFull));
        mailbox.post(Mail::Stop);
        // A paused guest would never continue without this.
        mailbox.call_again(GuestKey(Key::from_u64(1)));
        assert_eq!(mailbox.take().len(), JOBS_MAX + 2);
        assert!(mailbox.run(|_| ()).is_ok());
    }
}
