//! What must be true of each worker's connections when nobody has anything to do; for the simulator.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::{Rc, Weak};

use flatout_engine::{GuestKey, Mailbox};
use flatout_lane::{clock, jobs};

use crate::pool::Group;
use crate::table::{ServerId, UpstreamId};
use crate::worker::ProxyWorker;
use crate::worker::state::State;

/// How late a request may be that has waited too long: a queue is looked at from time to time, and the clock moves in steps.
const LATE_NS_MAX: u64 = 2_500_000_000;

/// How long such a request may be there: one that was sent in vain waits again, and is refused at the next look.
const LOOK_NS_MAX: u64 = 1_000_000_000;

thread_local! {
    /// Since when queues have requests that have waited too long, by worker, age of its configuration, and upstream.
    static LATE: RefCell<HashMap<(usize, bool, String), u64>> = RefCell::default();
    static WORKERS: RefCell<Vec<Weak<ProxyWorker>>> = const { RefCell::new(Vec::new()) };
    /// Guests whose jobs the disk had no room for, and that were not called since.
    static REFUSED: RefCell<Vec<(Mailbox, GuestKey)>> = const { RefCell::new(Vec::new()) };
}

/// The disk has no room for a job of this guest.
pub(crate) fn note_refused(mailbox: &Mailbox, guest: GuestKey) {
    REFUSED.with_borrow_mut(|refused| refused.push((mailbox.clone(), guest)));
}

/// It is called, because there may be room now.
pub(crate) fn note_called(mailbox: &Mailbox, guest: GuestKey) {
    REFUSED.with_borrow_mut(|refused| refused.retain(|(at, it)| *it != guest || *at != *mailbox));
}

/// From now on, [`check_all`] looks at this part too.
pub(super) fn watch(worker: &Rc<ProxyWorker>) {
    WORKERS.with_borrow_mut(|workers| workers.push(Rc::downgrade(worker)));
}

/// Forgets all parts so far: their process was killed, and what it did at that moment stays undone.
pub fn forget_all() {
    WORKERS.with_borrow_mut(Vec::clear);
    REFUSED.with_borrow_mut(Vec::clear);
}

/// Checks the parts of all workers of this thread.
///
/// # Errors
/// What is wrong.
pub fn check_all() -> Result<(), String> {
    let waiting = REFUSED.with_borrow(Vec::len);
    if waiting > 0 && jobs::count() == 0 {
        return Err(format!("{waiting} jobs wait for room at a disk that has nothing to do"));
    }
    WORKERS.with_borrow_mut(|workers| {
        workers.retain(|worker| worker.strong_count() > 0);
        workers.iter().filter_map(Weak::upgrade).try_for_each(|worker| {
            let state = &mut *worker.state.borrow_mut();
            worker.upstreams.ids().try_for_each(|id| worker.check(state, id)).map_err(|message| {
                let age = if worker.is_retired.get() { ", of a former configuration" } else { "" };
                format!("the proxy of worker {}{age}: {message}", worker.index)
            })
        })
    })
}

impl ProxyWorker {
    fn check(&self, state: &mut State, upstream: UpstreamId) -> Result<(), String> {
        let plan = &self.upstreams.at(upstream).plan;
        let name = &plan.name;
        for server in 0..state.groups.at(upstream).pools.len() {
            let id = ServerId { upstream, server };
            let all: Vec<usize> = (0..state.table.len())
                .filter(|at| state.table.find(*at).is_some_and(|it| it.server_id == id))
                .collect();
            let pool = state.groups.at(upstream).pools.at(server);
            if pool.open != all.len() {
                return Err(format!(
                    "it counts {} connections to a server of {name}, and has {}",
                    pool.open,
                    all.len()
                ));
            }
            let idle = pool.idle.clone();
            if idle.iter().chain(&pool.shared).any(|at| !all.contains(at)) {
                return Err(format!("a connection to a server of {name} is listed, and is not there"));
            }
            if idle.iter().any(|at| state.table.find(*at).is_some_and(|it| it.job.is_some())) {
                return Err(format!(
                    "a connection to a server of {name} has a request, and is listed as idle"
                ));
            }
        }
        let Group { pools, queue, shares, .. } = state.groups.at(upstream);
        let time_max_ns = plan.queue_time_max.as_nanos() as u64 + LATE_NS_MAX;
        let oldest_ns = clock::nanoseconds().saturating_sub(time_max_ns);
        let is_late = queue.iter().filter_map(|job| job.queued_ns).any(|since_ns| since_ns < oldest_ns);
        let key = (self.index, self.is_retired.get(), name.clone());
        let late_since_ns = LATE.with_borrow_mut(|late| match is_late {
            true => Some(*late.entry(key).or_insert_with(clock::nanoseconds)),
            false => {
                late.remove(&key);
                None
            }
        });
        if late_since_ns.is_some_and(|since_ns| clock::nanoseconds() > since_ns + LOOK_NS_MAX) {
            return Err(format!("a request has waited for {name} longer than its queue-time"));
        }
        // With several servers, or limits of them, a request may wait for one although another has room.
        let [pool] = &**pools else { return Ok(()) };
        // Nor is there room at a server that was removed: what a former configuration has waits until its time is over.
        // Other workers do not say when they have made room at a server with a limit.
        let has_limit =
            shares.server(0).is_none_or(|server| server.plan.requests_max > 0 || server.is_leaving());
        let waits = queue.iter().any(|job| job.receiver.is_open(&self.lane));
        let has_room = !pool.idle.is_empty() || !pool.shared.is_empty() || pool.open < plan.connections_max;
        if waits && has_room && !has_limit {
            return Err(format!(
                "requests wait for {name}, although {} connections are idle and {} of {} are open",
                pool.idle.len() + pool.shared.len(),
                pool.open,
                plan.connections_max
            ));
        }
        Ok(())
    }
}
