//! Sends failed requests again, if that is safe and the budget allows it.

use flatout_lane::clock;
use flatout_wire::Status;

use crate::failure::Failure;
use crate::pool::Group;
use crate::request::job::Job;
use crate::select::balance::with_tried;
use crate::table::ServerId;
use crate::upstream::LiveUpstream;
use crate::worker::ProxyWorker;
use crate::worker::state::State;

/// Whether a request may still be sent again.
fn has_time(job: &Job) -> bool {
    job.retry_until_ns.is_none_or(|until_ns| clock::nanoseconds() < until_ns)
}

/// Whether another server is asked because this one has responded with `status`. Takes the retry from the budget.
#[cold]
pub(crate) fn rejects(
    group: &mut Group,
    job: &Job,
    upstream: &LiveUpstream,
    server: usize,
    status: Status,
) -> bool {
    let is_named = upstream.plan.retry_on.statuses.contains(&status.code());
    if !is_named || !job.may_ask_another(&group.shares, server) || !has_time(job) {
        return false;
    }
    let has_budget = group.budget.spend();
    if !has_budget {
        group.counts.up(|counts| &counts.no_budget);
    }
    has_budget
}

impl ProxyWorker {
    /// Repeats a request that failed at this server, if that is safe.
    pub(crate) fn repeat_or_refuse(
        &self,
        state: &mut State,
        mut job: Box<Job>,
        server_id: ServerId,
        was_seen: bool,
        failure: Failure,
    ) {
        if !job.receiver.is_open(&self.lane) {
            return;
        }
        job.trail.failed(failure.status());
        let upstream = self.upstreams.at(job.upstream);
        let is_wanted = job.wants_new || upstream.plan.retry_on.has(failure);
        if is_wanted && job.may_repeat(was_seen) && has_time(&job) && self.has_budget(state, &job, server_id)
        {
            job.retry();
            if state.groups.at(job.upstream).shares.active().len() == 1 {
                job.tried = 0;
            }
            return self.dispatch(state, job);
        }
        self.refuse(state, job, failure);
    }

    /// Sends a request to another server, in place of passing on a response. The retry was taken from the budget.
    pub(crate) fn ask_another(
        &self,
        state: &mut State,
        mut job: Box<Job>,
        server_id: ServerId,
        status: Status,
    ) {
        // These are about what was requested: the server has answered.
        match status {
            Status::FORBIDDEN | Status::NOT_FOUND => {
                if let Some(server) = state.server(server_id) {
                    server.succeeded();
                }
            }
            _ => self.count_failure(state, server_id),
        }
        state.counts_of(server_id).up(|counts| &counts.retries);
        job.trail.failed(status);
        job.retry();
        job.tried = with_tried(job.tried, server_id.server);
        job.stuck_to = job.stuck_to.filter(|&stuck_to| stuck_to != server_id.server);
        self.dispatch(state, job);
    }

    /// Takes a retry from the budget. Replacing a connection that had been idle costs none.
    fn has_budget(&self, state: &mut State, job: &Job, server_id: ServerId) -> bool {
        if job.wants_new {
            return true;
        }
        let group = state.groups.at_mut(server_id.upstream);
        let has_budget = group.budget.spend();
        match has_budget {
            true => group.pools.at(server_id.server).counts.up(|counts| &counts.retries),
            false => group.counts.up(|counts| &counts.no_budget),
        }
        has_budget
    }
}
