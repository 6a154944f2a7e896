//! Sends failed requests again, if that is safe and the budget allows it.

use crate::failure::Failure;
use crate::request::job::Job;
use crate::table::ServerId;
use crate::worker::ProxyWorker;
use crate::worker::state::State;

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
        if job.may_repeat(was_seen) && self.has_budget(state, &job, server_id) {
            job.retries_left -= 1;
            if self.upstreams.at(job.upstream).servers.len() == 1 {
                job.tried = 0;
            }
            return self.dispatch(state, job);
        }
        self.refuse(state, job, failure);
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
