//! The time that a request may take as a whole.

use std::time::Duration;

use flatout_engine::ExchangeKey;
use flatout_lane::clock;

use crate::connection::h2::stream::StreamEnd;
use crate::failure::Failure;
use crate::request::job::Job;
use crate::upstream::LiveUpstream;
use crate::worker::ProxyWorker;
use crate::worker::state::State;

/// How often requests are checked, while some have a limit.
const LOOK: Duration = Duration::from_millis(250);

impl ProxyWorker {
    /// When a request to this upstream has to be over. It began with the head of its exchange, or begins now.
    pub(crate) fn ends_ns(&self, upstream: &LiveUpstream, exchange: Option<ExchangeKey>) -> Option<u64> {
        let time_max = upstream.plan.request_time_max?;
        let age = exchange.map_or(Duration::ZERO, |key| self.lane.age(key));
        Some(clock::nanoseconds() + time_max.saturating_sub(age).as_nanos() as u64)
    }

    /// Makes sure that a request with a limit is ended in time. Returns whether it still has time.
    pub(crate) fn watch_time(&self, state: &mut State, job: &Job) -> bool {
        if job.is_overdue(clock::nanoseconds()) {
            self.log(Failure::RequestTime, job.upstream, None, Some(job), None);
            return false;
        }
        if !std::mem::replace(&mut state.is_timing, true)
            && let Some(me) = self.owner()
        {
            tokio::task::spawn_local(async move {
                loop {
                    clock::sleep(LOOK).await;
                    if !me.with_state(|state| me.end_overdue(state)) {
                        return;
                    }
                }
            });
        }
        true
    }

    /// Ends requests that have taken too long, wherever they are. Returns whether others with a limit are left.
    fn end_overdue(&self, state: &mut State) -> bool {
        let now_ns = clock::nanoseconds();
        let mut is_timing = false;
        for index in self.upstreams.ids() {
            loop {
                let group = state.groups.at_mut(index);
                is_timing |= group.queue.iter().any(|job| job.ends_ns.is_some());
                let late = group.queue.iter().position(|job| job.is_overdue(now_ns));
                let Some(job) = late.and_then(|at| group.queue.remove(at)) else { break };
                group.counts.down(|counts| &counts.queued);
                self.log(Failure::RequestTime, index, None, Some(&job), None);
                self.refuse(state, job, Failure::RequestTime);
            }
        }
        for at in 0..state.table.len() {
            let Some(connection) = state.table.find(at) else { continue };
            if let Some(job) = &connection.job {
                is_timing |= job.ends_ns.is_some();
                if job.is_overdue(now_ns) {
                    self.end_job_of(state, at, Failure::RequestTime);
                }
            } else if connection.session().is_some() {
                is_timing |= self.end_overdue_h2(state, at, now_ns);
            }
        }
        state.is_timing = is_timing;
        is_timing
    }

    fn end_overdue_h2(&self, state: &mut State, at: usize, now_ns: u64) -> bool {
        let Some((session, guest, server_id)) = state.table.known(at).and_then(|connection| connection.h2())
        else {
            return false;
        };
        let is_timing = session.jobs().any(|job| job.ends_ns.is_some());
        let late = session.end_late(|job| job.is_overdue(now_ns), StreamEnd::Ended(Failure::RequestTime));
        for job in late {
            state.count_out(server_id);
            self.log(Failure::RequestTime, job.upstream, None, Some(&job), None);
            self.refuse(state, job, Failure::RequestTime);
        }
        self.bury(state, at);
        if state.is_still(at, guest) {
            self.shelve(state, at);
        }
        is_timing
    }
}
