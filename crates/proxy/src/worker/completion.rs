//! How requests to an upstream end, and what happens to their connections.

use flatout_engine::{Outcome, write_error_page_of};
use flatout_gateway::ResponseOrigin;
use flatout_wire::Status;

use crate::connection::ConnectionProtocol;
use crate::failure::Failure;
use crate::receiver::Receiver;
use crate::request::job::{Job, Pulled};
use crate::table::{ServerId, UpstreamId};
use crate::worker::ProxyWorker;
use crate::worker::state::State;

impl ProxyWorker {
    /// The response is complete: the connection carries the next request, or is closed.
    pub(crate) fn complete(&self, state: &mut State, at: usize) {
        let Some(connection) = state.table.known(at) else { return };
        let (server_id, is_reusable) = (connection.server_id, connection.is_reusable());
        if let Some(job) = state.take_job(at) {
            job.trail.ended(&self.watch, state.counts_of(server_id));
            // Data still to be sent to the client does not concern this connection.
            if let Some(exchange) = job.receiver.exchange() {
                self.lane.detach(exchange);
            }
            state.end_job(job);
        }
        if let Some(server) = state.server(server_id) {
            server.succeeded();
        }
        self.release_connection(state, at, is_reusable);
    }

    /// A server's response is not passed on: another server gets the request.
    #[cold]
    pub(crate) fn rejected(&self, state: &mut State, at: usize, status: Status, is_whole: bool) {
        let Some(connection) = state.table.known(at) else { return };
        let (server_id, is_reusable) = (connection.server_id, is_whole && connection.is_reusable());
        let job = state.take_job(at);
        if let Some(exchange) = job.as_ref().and_then(|job| job.receiver.exchange()) {
            self.lane.detach(exchange);
        }
        self.release_connection(state, at, is_reusable);
        if let Some(job) = job {
            self.ask_another(state, job, server_id, status);
        }
    }

    /// A connection without a request goes to its pool, or is closed.
    fn release_connection(&self, state: &mut State, at: usize, is_reusable: bool) {
        let Some(connection) = state.table.known(at) else { return };
        let (server_id, guest) = (connection.server_id, connection.guest);
        let (upstream, group) =
            (self.upstreams.at(server_id.upstream), state.groups.at_mut(server_id.upstream));
        let is_leaving = group.shares.server(server_id.server).is_none_or(|server| server.is_leaving());
        let keeps = is_reusable && !is_leaving && upstream.plan.send_proxy_protocol.is_none();
        let is_wanted_here = !self.is_retired.get() || !group.queue.is_empty();
        if keeps && !is_wanted_here && self.hand_on(state, at) {
            return;
        }
        let group = state.groups.at_mut(server_id.upstream);
        let pool = group.pools.at_mut(server_id.server);
        if keeps && pool.idle.len() < upstream.plan.idle_max {
            pool.idle.push(at);
            pool.counts.up(|counts| &counts.idle);
            self.lane.set_deadline(guest, Some(upstream.plan.idle_time_max));
        } else {
            self.close(state, at);
        }
        self.dequeue(state, server_id.upstream);
    }

    /// Closes a connection, and drops its request if it has one.
    pub(crate) fn close(&self, state: &mut State, at: usize) {
        let job = state.take_job(at);
        let had_job = job.is_some();
        let Some(mut connection) = state.table.remove(at) else { return };
        let server_id = connection.server_id;
        self.lane.remove(connection.guest);
        if let Some(tunnel) = connection.tunnel() {
            self.lane.remove(tunnel.client());
            if let Some(job) = &job {
                job.trail.ended(&self.watch, state.counts_of(server_id));
            }
            tunnel.report_end(Outcome::Taken);
        }
        // What it held of its server is for the next one.
        drop(job);
        // A tunnel has no request any more, and its place is for one that waits.
        let was_tunnel =
            matches!(connection.protocol, ConnectionProtocol::Switching | ConnectionProtocol::Tunnel(_));
        let had_slot = connection.slot.take().is_some();
        state.pool(server_id).forget(at);
        if had_job || had_slot || was_tunnel {
            self.dequeue(state, server_id.upstream);
        }
    }

    /// The connection was closed or reset, during a request or while it was idle.
    pub(crate) fn broken(&self, state: &mut State, at: usize) {
        let Some(connection) = state.table.known(at) else { return };
        // After earlier requests, the server most likely closed it while it was idle.
        let was_idle = connection.uses > 1 && connection.held.is_empty();
        self.lost(state, at, was_idle, Failure::Closed, None);
    }

    /// The response is malformed: the server may have processed the request. `why`: what is wrong, if that is known.
    pub(crate) fn failed(&self, state: &mut State, at: usize, why: Option<&str>) {
        if let Some(connection) = state.table.known(at)
            && let Some(job) = connection.job.as_mut()
        {
            let upstream = self.upstreams.at(connection.server_id.upstream);
            if !upstream.plan.retry_on.invalid_response {
                job.retries_left = 0;
            }
        }
        self.lost(state, at, false, Failure::Malformed, why);
    }

    /// The connection failed, so the server saw nothing of the request. `why`: what the kernel or TLS says.
    pub(crate) fn not_connected(&self, state: &mut State, at: usize, failure: Failure, why: Option<&str>) {
        let Some(connection) = state.table.known(at) else { return };
        let (server_id, address) = (connection.server_id, connection.address.clone());
        let job = state.take_job(at);
        self.log(failure, server_id.upstream, Some(&address), job.as_deref(), why);
        self.count_failure(state, server_id);
        self.close(state, at);
        if let Some(job) = job {
            self.repeat_or_refuse(state, job, server_id, false, failure);
        }
        self.dequeue(state, server_id.upstream);
    }

    /// Closes a connection that cannot be used any more; its request is repeated if that is safe.
    fn lost(&self, state: &mut State, at: usize, was_idle: bool, failure: Failure, why: Option<&str>) {
        let Some(connection) = state.table.known(at) else { return };
        let (server_id, address) = (connection.server_id, connection.address.clone());
        let job = state.take_job(at);
        self.close(state, at);
        // An idle connection has none.
        let Some(mut job) = job else { return };
        if was_idle && !job.wants_new && !job.is_answered {
            // This is no retry: the server has refused nothing.
            job.wants_new = true;
            job.retries_left += 1;
        } else {
            self.log(failure, server_id.upstream, Some(&address), Some(&job), why);
            self.count_failure(state, server_id);
        }
        match job.is_answered {
            true => self.end_with(state, job, failure),
            false => self.repeat_or_refuse(state, job, server_id, true, failure),
        }
        self.dequeue(state, server_id.upstream);
    }

    /// Ends the request of a connection, not for the server's fault. The connection cannot be used any more.
    pub(crate) fn end_job_of(&self, state: &mut State, at: usize, failure: Failure) {
        let Some(connection) = state.table.known(at) else { return };
        let (server_id, address) = (connection.server_id, connection.address.clone());
        let job = state.take_job(at);
        self.close(state, at);
        if let Some(job) = job {
            self.log(failure, server_id.upstream, Some(&address), Some(&job), None);
            self.end_with(state, job, failure);
            self.dequeue(state, server_id.upstream);
        }
    }

    pub(crate) fn count_failure(&self, state: &State, server_id: ServerId) {
        let upstream = self.upstreams.at(server_id.upstream);
        if let Some(server) = state.server(server_id) {
            server.failed(&upstream.plan.passive);
        }
        if upstream.plan.outliers.is_some() {
            state.groups.at(server_id.upstream).shares.failed(server_id.server);
        }
        state.counts_of(server_id).up(|counts| &counts.failures);
    }

    /// A deadline has passed.
    pub(crate) fn overdue(&self, state: &mut State, at: usize) {
        let Some(connection) = state.table.known(at) else { return };
        let upstream = self.upstreams.at(connection.server_id.upstream);
        if connection.is_connecting {
            return self.not_connected(state, at, Failure::ConnectTime, None);
        }
        let Some(job) = &mut connection.job else { return self.close(state, at) };
        if !connection.out.is_empty() && !job.is_answered {
            return self.lost(state, at, false, Failure::SendTime, None);
        }
        // A server is not slow while it waits for the client, in either direction. The engine sees to it that the client
        // takes what is sent; a client that sends nothing has its time here, or it could hold this connection for ever.
        let awaits_body = matches!(job.pulled, Pulled::Waiting | Pulled::Begun) && connection.out.is_empty();
        let awaits_room = job.is_answered && !job.receiver.has_room(&self.lane);
        if !awaits_body && !awaits_room {
            // The client may have made room in this very turn, for what the server has sent long ago.
            if self.moves_on(state, at) {
                return;
            }
            return self.lost(state, at, false, Failure::ReadTime, None);
        }
        // Once the response has begun, both sides may be silent, as in a call that streams both ways.
        if std::mem::take(&mut job.has_client_sent) || job.is_answered {
            return self.lane.set_deadline(connection.guest, Some(upstream.plan.read_time_max));
        }
        let failure = job.late_body();
        self.end_job_of(state, at, failure);
    }

    /// Passes on what a server has sent and its client has room for. Returns whether there was any.
    fn moves_on(&self, state: &mut State, at: usize) -> bool {
        let Some(connection) = state.table.known(at) else { return false };
        let has_more = connection.is_readable || !connection.held.is_empty();
        if !has_more || !connection.job.as_ref().is_some_and(|job| job.is_answered) {
            return false;
        }
        let (guest, uses, forwarded) = (connection.guest, connection.uses, connection.forwarded_bytes);
        self.pump(state, at);
        if !state.is_still(at, guest) {
            return true;
        }
        let Some(connection) = state.table.known(at) else { return true };
        let is_same = connection.uses == uses && connection.job.is_some();
        let has_moved = connection.forwarded_bytes != forwarded;
        if is_same && has_moved {
            let time_max = self.upstreams.at(connection.server_id.upstream).plan.read_time_max;
            self.lane.set_deadline(guest, Some(time_max));
        }
        !is_same || has_moved
    }

    /// Logs why a request or an attempt at it has failed.
    pub(crate) fn log(
        &self,
        failure: Failure,
        upstream: UpstreamId,
        server: Option<&str>,
        job: Option<&Job>,
        detail: Option<&str>,
    ) {
        failure.log(&self.upstreams.at(upstream).plan.name, server, job.map(Job::line), detail);
    }

    /// Ends a request that was taken off its connection: its response is cut if it has started.
    pub(crate) fn end_with(&self, state: &mut State, mut job: Box<Job>, failure: Failure) {
        if !job.is_answered {
            return self.refuse(state, job, failure);
        }
        state.count_ended(job.upstream, failure);
        job.receiver.cut(&self.lane, &mut state.decisions);
    }

    /// Sends an error response in place of the upstream's.
    pub(crate) fn refuse(&self, state: &mut State, mut job: Box<Job>, failure: Failure) {
        state.count_ended(job.upstream, failure);
        if job.receiver.is_rule() {
            return job.receiver.cut(&self.lane, &mut state.decisions);
        }
        let status = failure.status();
        if let Receiver::Passthrough(passthrough) = &mut job.receiver {
            if let Some(passthrough) = passthrough.take() {
                passthrough.ending.refuse(status, job.trail.note_number(&self.watch));
            }
            return;
        }
        let mut response = self.lane.response();
        response.set_status(status);
        if status == Status::SERVICE_UNAVAILABLE {
            response.header("Retry-After", "1");
        }
        write_error_page_of(&job.head, failure.text(), &mut response);
        job.trail.note(&self.watch, &mut response);
        job.receiver.answer(&self.lane, None, response, ResponseOrigin::Here);
    }
}
