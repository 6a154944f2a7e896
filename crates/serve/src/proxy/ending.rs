//! How requests to an upstream end, and what happens to their connections.

use flatout_wire::Status;

use super::job::{Job, Pulled};
use super::link::Place;
use super::links::{Links, State};
use crate::site::MadeBy;

impl Links {
    /// The response is complete: the connection carries the next request, or is closed.
    pub(super) fn complete(&self, state: &mut State, at: usize) {
        let Some(link) = state.table.get(at) else { return };
        let (place, guest, is_reusable) = (link.place, link.guest, link.is_reusable());
        if let Some(job) = state.take_job(at) {
            job.trail.ended(&self.watch, state.counts_of(place));
            // Data still to be sent to the client does not concern this connection.
            if let Some(exchange) = job.waiter.exchange() {
                self.lane.detach(exchange);
            }
            state.end_job(job);
        }
        let (Some(upstream), Some(group)) =
            (self.upstreams.get(place.upstream), state.groups.get_mut(place.upstream))
        else {
            return;
        };
        if let Some(server) = upstream.servers.get(place.server) {
            server.succeeded();
        }
        let keeps = is_reusable && upstream.plan.send_proxy_protocol.is_none();
        let is_wanted_here = !self.is_retired.get() || !group.queue.is_empty();
        if keeps && !is_wanted_here && self.hand_on(state, at) {
            return;
        }
        let Some(group) = state.groups.get_mut(place.upstream) else { return };
        match group.pools.get_mut(place.server) {
            Some(pool) if keeps && pool.idle.len() < upstream.plan.idle_max => {
                pool.idle.push(at);
                pool.counts.up(|counts| &counts.idle);
                self.lane.set_deadline(guest, Some(upstream.plan.idle_time_max));
            }
            _ => self.close(state, at),
        }
        self.dequeue(state, place.upstream);
    }

    /// Closes a connection, and drops its request if it has one.
    pub(super) fn close(&self, state: &mut State, at: usize) {
        let had_job = state.take_job(at).is_some();
        let Some(link) = state.table.remove(at) else { return };
        self.lane.remove(link.guest);
        if let Some(tunnel) = &link.tunnel {
            self.lane.remove(tunnel.client());
        }
        let Some(group) = state.groups.get_mut(link.place.upstream) else { return };
        if let Some(pool) = group.pools.get_mut(link.place.server) {
            pool.shared.retain(|&shared| shared != at);
            pool.open = pool.open.saturating_sub(1);
            pool.counts.down(|counts| &counts.open);
            let idle = pool.idle.len();
            pool.idle.retain(|&idle| idle != at);
            if pool.idle.len() < idle {
                pool.counts.down(|counts| &counts.idle);
            }
        }
        if had_job {
            self.dequeue(state, link.place.upstream);
        }
    }

    /// The connection was closed or reset, during a request or while it was idle.
    pub(super) fn broken(&self, state: &mut State, at: usize) {
        let Some(link) = state.table.get(at) else { return };
        // After earlier requests, the server most likely closed it while it was idle.
        let was_idle = link.uses > 1 && link.held.is_empty();
        self.lost(state, at, was_idle, Status::BAD_GATEWAY);
    }

    /// The response is malformed: the server may have processed the request.
    pub(super) fn failed(&self, state: &mut State, at: usize) {
        if let Some(link) = state.table.get(at)
            && let Some(job) = link.job.as_mut()
        {
            job.retries_left = 0;
        }
        self.lost(state, at, false, Status::BAD_GATEWAY);
    }

    /// The connection failed, so the server saw nothing of the request.
    pub(super) fn not_connected(&self, state: &mut State, at: usize, status: Status) {
        let Some(link) = state.table.get(at) else { return };
        let place = link.place;
        let job = state.take_job(at);
        self.count_failure(state, place);
        self.close(state, at);
        if let Some(job) = job {
            self.repeat_or_refuse(state, job, place, false, status);
        }
        self.dequeue(state, place.upstream);
    }

    /// Closes a connection that cannot be used any more; its request is repeated if that is safe.
    fn lost(&self, state: &mut State, at: usize, was_idle: bool, status: Status) {
        let Some(link) = state.table.get(at) else { return };
        let place = link.place;
        let job = state.take_job(at);
        self.close(state, at);
        let Some(mut job) = job else { return };
        if job.is_answered {
            self.count_failure(state, place);
            job.waiter.cut(&self.lane, &mut state.told);
            return self.dequeue(state, place.upstream);
        }
        if was_idle && !job.wants_new {
            // This is no retry: the server has refused nothing.
            job.wants_new = true;
            job.retries_left += 1;
        } else {
            self.count_failure(state, place);
        }
        self.repeat_or_refuse(state, job, place, true, status);
        self.dequeue(state, place.upstream);
    }

    /// Repeats a request that failed at `place`, if that is safe.
    pub(super) fn repeat_or_refuse(
        &self,
        state: &mut State,
        mut job: Box<Job>,
        place: Place,
        was_seen: bool,
        status: Status,
    ) {
        if !job.waiter.is_open(&self.lane) {
            return;
        }
        job.trail.failed(status);
        if job.may_repeat(was_seen) && self.has_budget(state, &job, place) {
            job.retries_left -= 1;
            if self.upstreams.get(job.upstream).is_some_and(|upstream| upstream.servers.len() == 1) {
                job.tried = 0;
            }
            return self.dispatch(state, job);
        }
        let reason = match status {
            Status::GATEWAY_TIMEOUT => TOO_SLOW,
            _ => BAD_ANSWER,
        };
        self.refuse(state, job, status, reason);
    }

    /// Takes a retry from the budget. Replacing a connection that had been idle costs none.
    fn has_budget(&self, state: &mut State, job: &Job, place: Place) -> bool {
        if job.wants_new {
            return true;
        }
        let Some(group) = state.groups.get_mut(place.upstream) else { return false };
        let has_budget = group.budget.spend();
        match has_budget {
            true => group.counts_of(place.server).up(|counts| &counts.retries),
            false => group.counts.up(|counts| &counts.no_budget),
        }
        has_budget
    }

    pub(super) fn count_failure(&self, state: &State, place: Place) {
        if let Some(upstream) = self.upstreams.get(place.upstream)
            && let Some(server) = upstream.servers.get(place.server)
        {
            server.failed(&upstream.plan.passive);
            state.counts_of(place).up(|counts| &counts.failures);
        }
    }

    /// A deadline has passed.
    pub(super) fn overdue(&self, state: &mut State, at: usize) {
        let Some(link) = state.table.get(at) else { return };
        let Some(upstream) = self.upstreams.get(link.place.upstream) else { return };
        if link.is_connecting {
            return self.not_connected(state, at, Status::GATEWAY_TIMEOUT);
        }
        let Some(job) = &link.job else { return self.close(state, at) };
        // A server is not slow while it waits for the client, in either direction.
        let awaits_body = matches!(job.pulled, Pulled::Waiting | Pulled::Begun) && link.out.is_empty();
        if awaits_body || (job.is_answered && !job.waiter.has_room(&self.lane)) {
            return self.lane.set_deadline(link.guest, Some(upstream.plan.read_time_max));
        }
        self.lost(state, at, false, Status::GATEWAY_TIMEOUT);
    }

    /// The client's body turned out to be malformed or too large while it was being sent.
    pub(super) fn give_up(&self, state: &mut State, at: usize) {
        let job = state.take_job(at);
        self.close(state, at);
        if let Some(job) = job {
            self.refuse_body(state, job);
        }
    }

    /// The same for a request that was already taken off its connection.
    pub(super) fn refuse_body(&self, state: &mut State, mut job: Box<Job>) {
        match job.is_answered {
            true => job.waiter.cut(&self.lane, &mut state.told),
            false => self.refuse(state, job, Status::BAD_REQUEST, BAD_BODY),
        }
    }

    /// Sends an error response in place of the upstream's.
    pub(super) fn refuse(&self, state: &mut State, mut job: Box<Job>, status: Status, reason: &str) {
        if job.waiter.is_rule() {
            return job.waiter.cut(&self.lane, &mut state.told);
        }
        let mut response = self.lane.response();
        response.set_status(status);
        response.header("Content-Type", "text/plain; charset=utf-8");
        if status == Status::SERVICE_UNAVAILABLE {
            response.header("Retry-After", "1");
        }
        response.buffer().extend_from_slice(reason.as_bytes());
        response.buffer().push(b'\n');
        job.trail.note(&self.watch, &mut response);
        job.waiter.answer(&self.lane, None, response, MadeBy::Here);
    }
}

pub(super) const BAD_ANSWER: &str = "the upstream sent no valid response";
const TOO_SLOW: &str = "the upstream did not respond in time";
const BAD_BODY: &str = "the request body is malformed or too large";
