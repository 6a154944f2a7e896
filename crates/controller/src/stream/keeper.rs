//! Writes plans to the disk, on a thread of its own: neither requests nor later plans wait for the disk. If several plans are waiting, only
//! the newest one is written.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use flatout_engine::{Severity, report};

use super::kept_plan::{KeptPlan, StoredPlan};
use crate::run::RETRY_TIME;

/// The time within which changes of servers are written: there may be a hundred a second.
const SERVERS_TIME: Duration = Duration::from_secs(5);

/// The least time between two writes.
const PAUSE: Duration = Duration::from_millis(200);

/// Writes plans.
#[derive(Clone)]
pub(super) struct Keeper(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    has_changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The plan that is written next, and when.
    next: Option<(StoredPlan, Instant)>,
    /// More than its servers has changed since the last plan on the disk.
    is_plan: bool,
    /// Such a plan is being written.
    is_writing_plan: bool,
    /// No more plans are written.
    is_stopped: bool,
    /// Why the last write failed.
    fault: Option<String>,
}

/// What is on the disk of the plan that is served.
pub(super) struct DiskState {
    /// The plan is not on the disk yet, apart from its servers.
    pub(super) is_writing: bool,
    /// The last write failed.
    pub(super) fault: Option<String>,
}

impl Keeper {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system has no thread for it.
    pub(super) fn start(kept: KeptPlan) -> Result<Keeper, String> {
        let shared = Arc::new(Shared::default());
        let own = shared.clone();
        let spawned = thread::Builder::new().name("flatout-keeper".to_owned()).spawn(move || own.run(&kept));
        spawned.map_err(|error| format!("cannot start the thread that writes plans: {error}"))?;
        Ok(Keeper(shared))
    }

    /// Writes a plan at once.
    pub(super) fn keep_plan(&self, stored: StoredPlan) {
        self.keep(stored, true, Duration::ZERO);
    }

    /// Writes a plan that differs from the one before in its servers only. Several such changes are written together.
    pub(super) fn keep_servers(&self, stored: StoredPlan) {
        self.keep(stored, false, SERVERS_TIME);
    }

    /// Replaces the plan that is written next.
    fn keep(&self, stored: StoredPlan, is_plan: bool, within: Duration) {
        let mut state = self.0.lock();
        if state.is_stopped {
            return;
        }
        let due = Instant::now() + within;
        let due = state.next.take().map_or(due, |(_, former)| former.min(due));
        state.next = Some((stored, due));
        state.is_plan |= is_plan;
        self.0.has_changed.notify_all();
    }

    /// Writes at once what would be written later.
    pub(super) fn hurry(&self) {
        if let Some((_, due)) = &mut self.0.lock().next {
            *due = Instant::now();
        }
        self.0.has_changed.notify_all();
    }

    /// Writes no more plans, because another process writes newer ones.
    pub(super) fn stop(&self) {
        let mut state = self.0.lock();
        (state.is_stopped, state.is_plan, state.next) = (true, false, None);
    }

    pub(super) fn state(&self) -> DiskState {
        let state = self.0.lock();
        let is_writing = state.is_plan || state.is_writing_plan;
        let fault = state.fault.as_ref().map(|_| "the plan could not be written to the disk".to_owned());
        DiskState { is_writing, fault }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes plans for as long as the process lives.
    fn run(&self, kept: &KeptPlan) {
        loop {
            let stored = self.wait();
            let result = kept.write(&stored);
            let mut state = self.lock();
            let was_plan = std::mem::take(&mut state.is_writing_plan);
            match result {
                Ok(()) => state.fault = None,
                Err(why) => {
                    report(Severity::Error, format_args!("plan {} is not kept: {why}", stored.number));
                    state.fault = Some(why);
                    if !state.is_stopped {
                        state.is_plan |= was_plan;
                        state.next.get_or_insert((stored, Instant::now() + RETRY_TIME));
                    }
                }
            }
            drop(state);
            thread::sleep(PAUSE);
        }
    }

    /// Waits for the next plan that is due.
    fn wait(&self) -> StoredPlan {
        let mut state = self.lock();
        loop {
            let left = match &state.next {
                Some((_, due)) => due.saturating_duration_since(Instant::now()),
                None => Duration::MAX,
            };
            if left.is_zero()
                && let Some((stored, _)) = state.next.take()
            {
                state.is_writing_plan = std::mem::take(&mut state.is_plan);
                return stored;
            }
            state = match left {
                Duration::MAX => self.has_changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                left => self.has_changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::PlanData;

    fn stored(number: u64) -> StoredPlan {
        StoredPlan { number, plan: PlanData::empty() }
    }

    fn until(is_so: impl Fn() -> bool) {
        let began = Instant::now();
        while !is_so() {
            assert!(began.elapsed() < Duration::from_secs(30));
            thread::yield_now();
        }
    }

    #[test]
    fn the_newest_plan_gets_to_the_disk() {
        let folder = tempfile::tempdir().unwrap();
        let keeper = Keeper::start(KeptPlan::below(folder.path()).unwrap()).unwrap();
        let kept = KeptPlan::below(folder.path()).unwrap();
        let number = || kept.read().unwrap().map(|it| it.number);
        for plan in 1..=50 {
            keeper.keep_plan(stored(plan));
        }
        until(|| !keeper.state().is_writing);
        assert_eq!(number(), Some(50));
        keeper.keep(stored(51), false, Duration::from_secs(3600));
        assert!(!keeper.state().is_writing, "servers are written later");
        assert_eq!(number(), Some(50));
        keeper.hurry();
        until(|| number() == Some(51));
    }

    #[test]
    fn a_keeper_that_is_stopped_writes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let keeper = Keeper::start(KeptPlan::below(folder.path()).unwrap()).unwrap();
        let kept = KeptPlan::below(folder.path()).unwrap();
        keeper.keep_plan(stored(1));
        until(|| !keeper.state().is_writing);
        keeper.keep_servers(stored(2));
        keeper.stop();
        keeper.hurry();
        keeper.keep_plan(stored(3));
        assert!(!keeper.state().is_writing);
        thread::sleep(2 * PAUSE);
        assert_eq!(kept.read().unwrap().map(|it| it.number), Some(1));
    }

    #[test]
    fn a_disk_that_refuses_is_a_fault() {
        let folder = tempfile::tempdir().unwrap();
        let keeper = Keeper::start(KeptPlan::below(folder.path()).unwrap()).unwrap();
        let path = folder.path().join("plan.json");
        std::fs::create_dir_all(path.join("in-the-way")).unwrap();
        keeper.keep_plan(stored(1));
        until(|| keeper.state().fault.is_some());
        assert!(keeper.state().is_writing, "it is not on the disk");
        keeper.keep_plan(stored(2));
        assert!(keeper.state().is_writing, "and neither is the next one");
        std::fs::remove_dir_all(&path).unwrap();
        keeper.keep_plan(stored(3));
        until(|| !keeper.state().is_writing);
        assert!(keeper.state().fault.is_none());
        let kept = KeptPlan::below(folder.path()).unwrap();
        assert_eq!(kept.read().unwrap().map(|it| it.number), Some(3));
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir_all(path.join("in-the-way")).unwrap();
        keeper.keep_servers(stored(4));
        keeper.hurry();
        until(|| keeper.state().fault.is_some());
        assert!(!keeper.state().is_writing, "only servers are missing");
    }
}
