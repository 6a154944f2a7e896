//! Requests that wait for a connection.

use std::time::Duration;

use flatout_lane::clock;

use crate::failure::Failure;
use crate::pool::{Group, Pool};
use crate::request::job::Job;
use crate::table::UpstreamId;
use crate::worker::ProxyWorker;
use crate::worker::state::State;

/// How often a queue is checked for requests that have waited too long.
const QUEUE_LOOK: Duration = Duration::from_millis(100);

/// How many queued requests are tried when a connection becomes free.
const DEQUEUE_TRIES_MAX: usize = 16;

impl ProxyWorker {
    /// Queues a request until a connection is free.
    pub(crate) fn enqueue(&self, state: &mut State, mut job: Box<Job>) {
        let index = job.upstream;
        job.slot = None;
        let (upstream, group) = (self.upstreams.at(index), state.groups.at_mut(index));
        if group.queue.len() >= upstream.plan.queue_max {
            group.counts.up(|counts| &counts.queue_full);
            self.log(Failure::QueueFull, index, None, Some(&job), None);
            return self.refuse(state, job, Failure::QueueFull);
        }
        job.queued_ns.get_or_insert_with(clock::nanoseconds);
        group.queue.push_back(job);
        group.counts.up(|counts| &counts.queued);
        if !std::mem::replace(&mut group.is_watched, true)
            && let Some(me) = self.owner()
        {
            tokio::task::spawn_local(async move {
                loop {
                    clock::sleep(QUEUE_LOOK).await;
                    if !me.expire_queue(index) {
                        return;
                    }
                }
            });
        }
    }

    /// Refuses requests that have waited too long. Returns whether others are still queued.
    fn expire_queue(&self, index: UpstreamId) -> bool {
        self.with_state(|state| {
            let upstream = self.upstreams.at(index);
            let time_max_ns = upstream.plan.queue_time_max.as_nanos() as u64;
            let oldest_ns = clock::nanoseconds().saturating_sub(time_max_ns);
            let Group { queue, counts, .. } = state.groups.at_mut(index);
            queue.retain(|job| {
                let is_open = job.receiver.is_open(&self.lane);
                if !is_open {
                    counts.down(|counts| &counts.queued);
                }
                is_open
            });
            loop {
                let group = state.groups.at_mut(index);
                // One that was dispatched and waits again is behind younger ones.
                let late = group.queue.iter().position(|job| job.queued_ns <= Some(oldest_ns));
                match late.and_then(|at| group.queue.remove(at)) {
                    Some(job) => {
                        group.counts.down(|counts| &counts.queued);
                        group.counts.up(|counts| &counts.queue_time);
                        self.log(Failure::QueueTime, index, None, Some(&job), None);
                        self.refuse(state, job, Failure::QueueTime);
                    }
                    None => break,
                }
            }
            self.use_slots(state, index);
            let group = state.groups.at_mut(index);
            group.is_watched = !group.queue.is_empty();
            group.is_watched
        })
    }

    /// Dispatches requests that have waited for a server at its limit: other workers tell nobody when they have made room there.
    fn use_slots(&self, state: &mut State, index: UpstreamId) {
        self.dequeue_while(state, index, |group| group.shares.has_free_slot());
    }

    /// Dispatches as many queued requests as the idle and the shared connections of an upstream have room for.
    pub(crate) fn use_streams(&self, state: &mut State, index: UpstreamId) {
        let has_room = |pool: &Pool| !pool.shared.is_empty() || !pool.idle.is_empty();
        self.dequeue_while(state, index, |group| group.pools.iter().any(has_room));
    }

    /// Each queued request has at most one turn.
    fn dequeue_while(&self, state: &mut State, index: UpstreamId, has_room: impl Fn(&Group) -> bool) {
        for _ in 0..state.groups.at(index).queue.len() {
            if !has_room(state.groups.at(index)) {
                return;
            }
            self.dispatch_first(state, index);
        }
    }

    /// Dispatches the next queued request, if a server that it may use has room. Some may use only servers that have none, as those for a
    /// named server: they wait again, and others are tried.
    pub(crate) fn dequeue(&self, state: &mut State, upstream: UpstreamId) {
        for _ in 0..DEQUEUE_TRIES_MAX.min(state.groups.at(upstream).queue.len()) {
            let before = state.groups.at(upstream).queue.len();
            self.dispatch_first(state, upstream);
            // It does not wait again.
            if state.groups.at(upstream).queue.len() < before {
                return;
            }
        }
    }

    /// Dispatches the first queued request whose client is still there.
    fn dispatch_first(&self, state: &mut State, upstream: UpstreamId) {
        loop {
            let group = state.groups.at_mut(upstream);
            let Some(job) = group.queue.pop_front() else { return };
            group.counts.down(|counts| &counts.queued);
            // Its client may have disconnected meanwhile.
            if job.receiver.is_open(&self.lane) {
                return self.dispatch(state, job);
            }
        }
    }
}
