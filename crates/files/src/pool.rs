//! The threads that index folders: a few for all folders of the process, started when they are needed.
//!
//! ```text
//! message for a folder ──> its task is due ─┐
//! its next timer ───────────────────────────┴─> the first thread that is idle ──> Indexer::step ──> due again later
//! ```

use std::collections::{BTreeSet, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::SyncSender;
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{io, thread};

use super::indexer::Indexer;

/// Threads at most: while that many folders are scanned, others wait.
const THREADS_MAX: usize = 4;

/// How much longer the epochs of folders without changes are for each folder: looking whether ten thousand roots have been replaced takes a
/// fifth of a CPU's time if it is done every second.
const LEEWAY_OF_FOLDER: Duration = Duration::from_millis(1);

/// The wait of a thread if nothing is due.
const IDLE_TIME: Duration = Duration::from_secs(3600);

/// The indexer of a folder, among those of the shared threads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Task(u64);

struct Pool {
    state: Mutex<Schedule>,
    changed: Condvar,
}

#[derive(Default)]
struct Schedule {
    tasks: HashMap<u64, Slot>,
    /// Those that no thread has, by the time when they are due.
    due: BTreeSet<(Instant, u64)>,
    /// The time for which an idle thread waits: the others wait for a notification.
    timer: Option<Instant>,
    idle: usize,
    threads: usize,
    added: u64,
}

struct Slot {
    /// `None`: a thread has it.
    indexer: Option<Box<Indexer>>,
    /// When it is due; while a thread has it, when it is due at the latest.
    due: Option<Instant>,
    /// Told when the first scan is over.
    ready: Option<SyncSender<()>>,
}

static POOL: LazyLock<Pool> = LazyLock::new(|| Pool { state: Mutex::default(), changed: Condvar::new() });

/// Indexes another folder, from now on. Returns whether a thread is free for it.
///
/// # Errors
/// There is no thread, and none can be started.
pub(crate) fn add(indexer: Indexer, ready: SyncSender<()>) -> io::Result<bool> {
    let mut state = POOL.lock();
    let mut is_free = state.idle > 0;
    if !is_free && state.threads < THREADS_MAX {
        let started = state.start_thread();
        is_free = started.is_ok();
        if state.threads == 0 {
            started?;
        }
    }
    state.added += 1;
    let (number, now) = (state.added, Instant::now());
    indexer.read_by(Task(number));
    state.tasks.insert(number, Slot { indexer: Some(Box::new(indexer)), due: Some(now), ready: Some(ready) });
    state.due.insert((now, number));
    drop(state);
    POOL.changed.notify_one();
    Ok(is_free)
}

/// How many folders are indexed.
#[cfg(test)]
pub(crate) fn count() -> usize {
    POOL.lock().tasks.len()
}

impl Task {
    /// It is due at this time, if not before.
    pub(crate) fn run_at(self, at: Instant) {
        let Task(number) = self;
        let mut state = POOL.lock();
        let Schedule { tasks, due, .. } = &mut *state;
        let Some(slot) = tasks.get_mut(&number) else { return };
        if slot.due.is_some_and(|due| due <= at) {
            return;
        }
        let former = slot.due.replace(at);
        if slot.indexer.is_some() {
            former.into_iter().for_each(|former| _ = due.remove(&(former, number)));
            due.insert((at, number));
            let is_first = due.first() == Some(&(at, number));
            drop(state);
            if is_first {
                // The thread with the timer is among them.
                POOL.changed.notify_all();
            }
        }
    }
}

impl Pool {
    fn run(&self) {
        let mut state = self.lock();
        loop {
            let Some((number, mut indexer)) = state.take_due() else {
                state = self.wait(state);
                continue;
            };
            // Another thread waits for the next one meanwhile.
            if state.idle > 0 {
                self.changed.notify_one();
            } else if state.threads < THREADS_MAX && state.tasks.len() > 1 {
                // Without another thread this one does it all.
                let _ = state.start_thread();
            }
            let leeway = LEEWAY_OF_FOLDER * u32::try_from(state.tasks.len()).unwrap_or(u32::MAX);
            drop(state);
            let next = catch_unwind(AssertUnwindSafe(|| indexer.step(leeway))).unwrap_or_else(|_| {
                indexer.give_up();
                None
            });
            // Dropped without the lock, if its folder is not served any more.
            let kept = next.map(|next| (indexer, next));
            state = self.lock();
            state.put_back(number, kept);
        }
    }

    /// Waits until something is due, or has changed.
    fn wait<'s>(&'s self, mut state: MutexGuard<'s, Schedule>) -> MutexGuard<'s, Schedule> {
        state.idle += 1;
        let first = state.due.first().map(|(at, _)| *at);
        let own = first.filter(|at| state.timer.is_none_or(|timer| *at < timer));
        state.timer = own.or(state.timer);
        let time = own.map_or(IDLE_TIME, |at| at.saturating_duration_since(Instant::now()));
        let waited = self.changed.wait_timeout(state, time);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        if own.is_some() && state.timer == own {
            state.timer = None;
        }
        state.idle -= 1;
        state
    }

    fn lock(&self) -> MutexGuard<'_, Schedule> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Schedule {
    fn start_thread(&mut self) -> io::Result<()> {
        thread::Builder::new().name("files-indexer".to_owned()).spawn(|| POOL.run())?;
        self.threads += 1;
        Ok(())
    }

    /// The indexer that is due first, if it is due now.
    fn take_due(&mut self) -> Option<(u64, Box<Indexer>)> {
        let &(at, number) = self.due.first().filter(|(at, _)| *at <= Instant::now())?;
        self.due.remove(&(at, number));
        let slot = self.tasks.get_mut(&number)?;
        slot.due = None;
        Some((number, slot.indexer.take()?))
    }

    /// After a step: the indexer, and when it is due without a message. `None`: its folder is not served any more.
    fn put_back(&mut self, number: u64, kept: Option<(Box<Indexer>, Instant)>) {
        let Some(slot) = self.tasks.get_mut(&number) else { return };
        if let Some(ready) = slot.ready.take() {
            // Nobody may wait any more.
            let _ = ready.try_send(());
        }
        let Some((indexer, next)) = kept else {
            self.tasks.remove(&number);
            return;
        };
        let due = slot.due.map_or(next, |due| due.min(next));
        (slot.indexer, slot.due) = (Some(indexer), Some(due));
        self.due.insert((due, number));
    }
}
