//! Limits how many requests are in progress at once for each key, with a queue for requests that exceed the limit.
//!
//! A request in progress holds a [`Permit`]. When it is dropped, it goes to the next request in the queue, on
//! whichever worker that one waits.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use flatout_engine::bug;
use flatout_wire::Status;
use foldhash::fast::RandomState;
use tokio::sync::oneshot;

use super::plan::Concurrency;

/// The requests in progress under one limit, shared by all workers.
#[derive(Debug)]
pub(crate) struct Gate {
    keys: Mutex<HashMap<u64, KeyState, RandomState>>,
    requests_max: u32,
    queue_max: u32,
    pub(crate) queue_time_max: Duration,
    keys_max: usize,
    /// The status of a refusal.
    pub(crate) status: Status,
}

/// The state of one key.
#[derive(Debug, Default)]
struct KeyState {
    under_way: u32,
    waiting: VecDeque<oneshot::Sender<Permit>>,
}

/// One request's permit.
#[derive(Debug)]
pub(crate) struct Permit {
    gate: Option<Arc<Gate>>,
    key: u64,
}

impl Permit {
    /// That of a request beyond a limit that is a dry run.
    pub(crate) const NONE: Permit = Permit { gate: None, key: 0 };
}

/// The result of entering.
#[derive(Debug)]
pub(crate) enum GateResult {
    Now(Permit),
    /// It waits for this; dropping the receiver leaves the queue.
    Queued(oneshot::Receiver<Permit>),
    /// There is no permit, and the queue is full.
    Full,
}

impl Gate {
    pub(crate) fn new(plan: &Concurrency) -> Arc<Gate> {
        let Concurrency { requests_max, queue_max, queue_time_max, keys_max, status, .. } = *plan;
        let status = Status::from_code(status).unwrap_or(Status::SERVICE_UNAVAILABLE);
        Arc::new(Gate { keys: Mutex::default(), requests_max, queue_max, queue_time_max, keys_max, status })
    }

    pub(crate) fn enter(self: &Arc<Self>, key: u64) -> GateResult {
        let mut keys = self.lock();
        let has_room = keys.len() < self.keys_max;
        let place = match keys.entry(key) {
            Entry::Occupied(place) => place.into_mut(),
            Entry::Vacant(place) if has_room => place.insert(KeyState::default()),
            Entry::Vacant(_) => return GateResult::Full,
        };
        if place.under_way < self.requests_max {
            place.under_way += 1;
            return GateResult::Now(Permit { gate: Some(self.clone()), key });
        }
        // Remove waiters that have given up.
        if place.waiting.len() >= self.queue_max as usize {
            place.waiting.retain(|waiting| !waiting.is_closed());
        }
        if place.waiting.len() >= self.queue_max as usize {
            return GateResult::Full;
        }
        let (sender, receiver) = oneshot::channel();
        place.waiting.push_back(sender);
        GateResult::Queued(receiver)
    }

    /// How many requests are in progress.
    pub(crate) fn in_progress(&self) -> u64 {
        self.lock().values().map(|key| u64::from(key.under_way)).sum()
    }

    /// Passes a permit to the next waiter in the queue, or releases it.
    fn leave(self: Arc<Self>, key: u64) {
        let mut permit = Permit { gate: Some(self.clone()), key };
        loop {
            let mut keys = self.lock();
            let Entry::Occupied(mut place) = keys.entry(key) else {
                bug!("a permit is returned whose key has none");
                break;
            };
            let Some(next) = place.get_mut().waiting.pop_front() else {
                place.get_mut().under_way -= 1;
                if place.get().under_way == 0 {
                    place.remove();
                }
                break;
            };
            drop(keys);
            match next.send(permit) {
                Ok(()) => return,
                Err(back) => permit = back,
            }
        }
        // It was released.
        permit.gate = None;
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, KeyState, RandomState>> {
        // Each change under the lock is a single step, so a panic leaves the data consistent.
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(gate) = self.gate.take() {
            gate.leave(self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::Limited;
    use super::*;

    fn gate(requests_max: u32, queue_max: u32) -> Arc<Gate> {
        Gate::new(&Concurrency {
            name: "a".to_owned(),
            key: Limited::Everyone,
            requests_max,
            queue_max,
            queue_time_max: Duration::from_secs(1),
            keys_max: 2,
            status: 503,
        })
    }

    fn permit(entered: GateResult) -> Permit {
        let GateResult::Now(permit) = entered else { panic!("{entered:?}") };
        permit
    }

    fn receiver(entered: GateResult) -> oneshot::Receiver<Permit> {
        let GateResult::Queued(receiver) = entered else { panic!("{entered:?}") };
        receiver
    }

    #[test]
    fn permits_go_to_waiters_in_order() {
        let gate = gate(2, 2);
        let (first, second) = (permit(gate.enter(1)), permit(gate.enter(1)));
        let (mut third, mut fourth) = (receiver(gate.enter(1)), receiver(gate.enter(1)));
        assert!(matches!(gate.enter(1), GateResult::Full));
        assert!(third.try_recv().is_err());
        drop(first);
        let third = third.try_recv().unwrap();
        assert!(fourth.try_recv().is_err());
        drop(second);
        let fourth = fourth.try_recv().unwrap();
        assert!(matches!(gate.enter(1), GateResult::Queued(_)));
        drop((third, fourth));
        // The queued waiter had gone.
        assert!(gate.lock().is_empty(), "a key without requests is forgotten");
    }

    #[test]
    fn an_abandoned_waiter_frees_its_permit() {
        let gate = gate(1, 1);
        let first = permit(gate.enter(1));
        drop(receiver(gate.enter(1)));
        let mut second = receiver(gate.enter(1));
        drop(first);
        let second = second.try_recv().unwrap();
        // A permit that was sent but not received.
        let third = receiver(gate.enter(1));
        drop(second);
        drop(third);
        drop(permit(gate.enter(1)));
        assert!(gate.lock().is_empty());
    }

    #[test]
    fn keys_are_bounded_and_limited_separately() {
        let gate = gate(1, 0);
        let first = permit(gate.enter(1));
        let second = permit(gate.enter(2));
        assert!(matches!(gate.enter(1), GateResult::Full));
        assert!(matches!(gate.enter(3), GateResult::Full));
        drop(second);
        drop(permit(gate.enter(3)));
        drop(first);
    }

    #[test]
    fn permits_never_exceed_the_limit() {
        use std::sync::atomic::{AtomicU32, Ordering};
        let gate = gate(3, 100);
        let (inside, most) = (AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let permit = match gate.enter(7) {
                            GateResult::Now(permit) => permit,
                            GateResult::Queued(receiver) => receiver.blocking_recv().unwrap(),
                            GateResult::Full => panic!("the queue is long enough"),
                        };
                        most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        inside.fetch_sub(1, Ordering::SeqCst);
                        drop(permit);
                    }
                });
            }
        });
        assert!(most.load(Ordering::SeqCst) <= 3);
        assert!(gate.lock().is_empty());
    }
}
