//! Writes plans to the disk on a thread of its own: requests do not wait for it, and neither do later plans. Of several, only the newest
//! is written.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use flatout_engine::{Severity, report};

use super::kept_plan::{KeptPlan, StoredPlan};

/// After this time, what could not be written is tried again.
const RETRY_TIME: Duration = Duration::from_secs(5);

/// The least time between two writes.
const PAUSE: Duration = Duration::from_millis(200);

/// Writes plans.
pub(super) struct Keeper(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    has_changed: Condvar,
}

#[derive(Default)]
struct State {
    /// What is to be written, and when.
    wanted: Option<(StoredPlan, Instant)>,
    /// A plan waits, and not only servers.
    is_plan: bool,
    /// It is being written now.
    is_busy: bool,
    /// Why the last one is not on the disk.
    fault: Option<String>,
}

/// How far the disk is behind.
pub(super) struct DiskState {
    /// A plan that is served is not on the disk yet.
    pub(super) is_writing: bool,
    /// Why it could not be written.
    pub(super) fault: Option<String>,
}

impl Keeper {
    /// The time within which a plan is written.
    pub(super) const AT_ONCE: Duration = Duration::ZERO;

    /// The time within which changes of servers are: there may be a hundred a second.
    pub(super) const SERVERS_TIME: Duration = Duration::from_secs(5);

    /// # Errors
    /// There is no thread.
    pub(super) fn start(kept: KeptPlan) -> Result<Keeper, String> {
        let shared = Arc::new(Shared::default());
        let own = shared.clone();
        let spawned = thread::Builder::new().name("flatout-keeper".to_owned()).spawn(move || own.run(&kept));
        spawned.map_err(|error| format!("cannot start the thread that writes plans: {error}"))?;
        Ok(Keeper(shared))
    }

    /// Has a plan written within this time, instead of one that waits.
    pub(super) fn keep(&self, stored: StoredPlan, within: Duration) {
        let mut state = self.0.lock();
        let due = Instant::now() + within;
        let due = state.wanted.take().map_or(due, |(_, former)| former.min(due));
        state.wanted = Some((stored, due));
        state.is_plan |= within == Keeper::AT_ONCE;
        self.0.has_changed.notify_all();
    }

    /// Has what waits written at once.
    pub(super) fn hurry(&self) {
        if let Some((_, due)) = &mut self.0.lock().wanted {
            *due = Instant::now();
        }
        self.0.has_changed.notify_all();
    }

    pub(super) fn state(&self) -> DiskState {
        let state = self.0.lock();
        let is_writing = state.fault.is_none() && (state.is_plan || state.is_busy);
        let fault = state.fault.as_ref().map(|_| "the plan could not be written to the disk".to_owned());
        DiskState { is_writing, fault }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes for as long as the process lives.
    fn run(&self, kept: &KeptPlan) {
        loop {
            let stored = self.next();
            let result = kept.write(&stored);
            let mut state = self.lock();
            state.is_busy = false;
            match result {
                Ok(()) => state.fault = None,
                Err(why) => {
                    report(Severity::Error, format_args!("plan {} is not kept: {why}", stored.number));
                    state.fault = Some(why);
                    state.is_plan = true;
                    state.wanted.get_or_insert((stored, Instant::now() + RETRY_TIME));
                }
            }
            drop(state);
            thread::sleep(PAUSE);
        }
    }

    /// Waits for the next plan that is due.
    fn next(&self) -> StoredPlan {
        let mut state = self.lock();
        loop {
            let left = match &state.wanted {
                Some((_, due)) => due.saturating_duration_since(Instant::now()),
                None => Duration::MAX,
            };
            if left.is_zero()
                && let Some((stored, _)) = state.wanted.take()
            {
                state.is_busy = std::mem::take(&mut state.is_plan);
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
        StoredPlan { number, term: None, plan: PlanData::empty() }
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
            keeper.keep(stored(plan), Keeper::AT_ONCE);
        }
        until(|| !keeper.state().is_writing);
        assert_eq!(number(), Some(50));
        keeper.keep(stored(51), Duration::from_secs(3600));
        assert!(!keeper.state().is_writing, "servers are written later");
        assert_eq!(number(), Some(50));
        keeper.hurry();
        until(|| number() == Some(51));
    }

    #[test]
    fn a_disk_that_refuses_is_a_fault() {
        let folder = tempfile::tempdir().unwrap();
        let keeper = Keeper::start(KeptPlan::below(folder.path()).unwrap()).unwrap();
        std::fs::create_dir_all(folder.path().join("plan.json/in-the-way")).unwrap();
        keeper.keep(stored(1), Keeper::AT_ONCE);
        until(|| keeper.state().fault.is_some());
        assert!(!keeper.state().is_writing);
    }
}
