//! The end of requests on streams, and of HTTP/2 connections.

use std::rc::Rc;
use std::time::Duration;

use flatout_engine::ExchangeKey;
use flatout_lane::clock;
use flatout_wire::h2::{Code, StreamId};

use crate::connection::h2::frames::ReceiveOutcome;
use crate::connection::h2::stream::{Stream, StreamEnd};
use crate::connection::h2::{REFUSED_COSTS, Session};
use crate::failure::Failure;
use crate::request::job::Job;
use crate::table::ServerId;
use crate::worker::ProxyWorker;
use crate::worker::state::State;

/// How often a connection with requests is checked for streams whose server is silent.
pub(crate) const TICK: Duration = Duration::from_secs(1);

impl ProxyWorker {
    /// Finishes streams that have ended, and gives their places to queued requests.
    pub(crate) fn bury(&self, state: &mut State, at: usize) {
        let Some((session, guest, server_id)) = state.table.known(at).and_then(|connection| connection.h2())
        else {
            return;
        };
        if session.over.is_empty() {
            return;
        }
        // First of all, because a repeated request must not choose this connection again if it accepts no more.
        self.shelve(state, at);
        let mut ended = 0;
        while state.is_still(at, guest)
            && let Some((session, ..)) = state.table.known(at).and_then(|connection| connection.h2())
            && let Some((id, over)) = session.over.pop()
        {
            let Some(mut stream) = session.take(id) else { continue };
            ended += 1;
            if matches!(
                over,
                StreamEnd::Slow(_) | StreamEnd::Ended(_) | StreamEnd::Unwanted | StreamEnd::Rejected(_)
            ) {
                session.machine.reset(id, Code::CANCEL, &mut session.out);
            }
            let over = match over {
                // Only the end of the stream is missing: the response is complete by its length.
                StreamEnd::Slow(_) | StreamEnd::Ended(_) | StreamEnd::Reset(_) if stream.is_passed_on() => {
                    stream.job.receiver.end(&self.lane, b"", &mut state.decisions);
                    StreamEnd::Whole
                }
                over => over,
            };
            // This credit belongs to the whole connection.
            session.machine.consumed(id, stream.owed_bytes, &mut session.out);
            session.machine.release(id, &mut session.out);
            session.has_served |= over == StreamEnd::Whole;
            session.is_resting &= matches!(over, StreamEnd::Refused | StreamEnd::Unseen);
            self.schedule(session, guest);
            state.count_out(server_id);
            if let Some(exchange) = stream.job.receiver.exchange() {
                // Whatever is still to be sent to the client does not concern this connection.
                self.lane.detach(exchange);
            }
            self.stream_over(state, server_id, *stream, over);
        }
        if state.is_still(at, guest) {
            self.shelve(state, at);
        }
        for _ in 0..ended {
            self.dequeue(state, server_id.upstream);
        }
    }

    /// Finishes a request that was taken off its connection.
    fn stream_over(&self, state: &mut State, server_id: ServerId, stream: Stream, over: StreamEnd) {
        let mut job = stream.into_job();
        match over {
            StreamEnd::Whole => {
                job.trail.ended(&self.watch, state.counts_of(server_id));
                if let Some(server) = state.server(server_id) {
                    server.succeeded();
                }
                state.end_job(job);
            }
            StreamEnd::Unwanted => state.end_job(job),
            StreamEnd::Rejected(status) => self.ask_another(state, job, server_id, status),
            StreamEnd::Refused => self.repeat_unseen(state, job, REFUSED_COSTS),
            StreamEnd::Unseen => self.repeat_unseen(state, job, 1),
            StreamEnd::Ended(failure) => {
                self.log(
                    failure,
                    server_id.upstream,
                    Some(&self.address_of(state, server_id)),
                    Some(&job),
                    None,
                );
                self.end_with(state, job, failure);
            }
            StreamEnd::Reset(code) => {
                // With these codes, the server need not be at fault.
                if !matches!(code, Code::NO_ERROR | Code::CANCEL) {
                    self.count_failure(state, server_id);
                }
                job.retries_left = 0;
                self.cut_or_repeat(state, job, server_id, Failure::Reset, None);
            }
            StreamEnd::Slow(failure) => {
                self.count_failure(state, server_id);
                self.cut_or_repeat(state, job, server_id, failure, None);
            }
        }
    }

    fn cut_or_repeat(
        &self,
        state: &mut State,
        job: Box<Job>,
        server_id: ServerId,
        failure: Failure,
        detail: Option<&str>,
    ) {
        let address = self.address_of(state, server_id);
        self.log(failure, server_id.upstream, Some(&address), Some(&job), detail);
        match job.is_answered {
            true => self.end_with(state, job, failure),
            false => self.repeat_or_refuse(state, job, server_id, true, failure),
        }
    }

    /// The address of a server, for logs.
    fn address_of(&self, state: &State, server_id: ServerId) -> Rc<str> {
        state.groups.at(server_id.upstream).pools.at(server_id.server).address.clone()
    }

    /// Repeats a request that the server has not processed: this counts as no attempt, and needs no retry budget.
    /// `refusals` is its cost.
    pub(crate) fn repeat_unseen(&self, state: &mut State, mut job: Box<Job>, refusals: u8) {
        if job.is_answered {
            // The server has responded to a request that it says it has not processed.
            return self.end_with(state, job, Failure::Refused);
        }
        if !job.receiver.is_open(&self.lane) {
            return;
        }
        job.trail.failed(Failure::Refused.status());
        let left = job.refusals_left.checked_sub(refusals).filter(|_| job.has_whole_body());
        let Some(left) = left else {
            self.log(Failure::Refused, job.upstream, None, Some(&job), None);
            return self.refuse(state, job, Failure::Refused);
        };
        (job.refusals_left, job.tried) = (left, 0);
        self.dispatch(state, job);
    }

    /// The client of a request is gone: its stream is reset, the others continue.
    pub(crate) fn client_gone(&self, state: &mut State, at: usize, key: ExchangeKey) {
        let Some((session, _, server_id)) = state.table.known(at).and_then(|connection| connection.h2())
        else {
            return;
        };
        if let Some(id) = session.by_exchange(key) {
            session.end(id, StreamEnd::Unwanted);
            return self.bury(state, at);
        }
        let mut waiting = session.waiting.iter();
        if let Some(index) = waiting.position(|job| job.receiver.exchange() == Some(key)) {
            let job = session.waiting.swap_remove(index);
            state.count_out(server_id);
            state.end_job(job);
            self.shelve(state, at);
        }
    }

    /// The connection could not be opened. The request that was sent without the server's SETTINGS, if there is one, may
    /// have been processed; the others were not sent. `why`: what the kernel, TLS or HTTP/2 says.
    pub(crate) fn not_opened(&self, state: &mut State, at: usize, failure: Failure, why: Option<&str>) {
        let Some(connection) = state.table.known(at) else { return };
        let address = connection.address.clone();
        let Some((session, _, server_id)) = connection.h2() else { return };
        let waiting = std::mem::take(&mut session.waiting);
        let sent: Vec<StreamId> = session.streams.iter().map(|entry| entry.id).collect();
        let sent: Vec<Box<Job>> =
            sent.into_iter().filter_map(|id| session.take(id)).map(|stream| stream.into_job()).collect();
        let first = sent.first().or(waiting.first());
        self.log(failure, server_id.upstream, Some(&address), first.map(|job| &**job), why);
        self.count_failure(state, server_id);
        for job in &sent {
            if let Some(exchange) = job.receiver.exchange() {
                self.lane.detach(exchange);
            }
        }
        self.close(state, at);
        for job in sent {
            state.count_out(server_id);
            self.repeat_or_refuse(state, job, server_id, true, failure);
        }
        for job in waiting {
            state.count_out(server_id);
            self.repeat_or_refuse(state, job, server_id, false, failure);
        }
        self.dequeue(state, server_id.upstream);
    }

    /// The connection has ended, or cannot continue: incomplete requests are repeated if that is safe.
    pub(crate) fn lost_h2(&self, state: &mut State, at: usize, outcome: ReceiveOutcome) {
        let Some(connection) = state.table.known(at) else { return };
        connection.is_readable = false;
        connection.held = Vec::new();
        let is_fault = matches!(outcome, ReceiveOutcome::Fault(_));
        let why = match outcome {
            ReceiveOutcome::Fault(why) => Some(why),
            _ => None,
        };
        let Some((session, guest, server_id)) = connection.h2() else { return };
        if !session.is_ready {
            let why = why.as_deref().unwrap_or("it closed the connection and sent no SETTINGS");
            return self.not_opened(state, at, Failure::NoHttp2, Some(why));
        }
        // Send our GOAWAY, if the server still reads.
        let _ = session.flush(&self.lane, guest, &mut false);
        session.is_gone = true;
        let is_whole = |id: &StreamId, session: &Session| {
            session.find(*id).and_then(|at| session.streams.get(at)).is_some_and(|it| it.stream.end.is_some())
        };
        let lost: Vec<StreamId> =
            session.streams.iter().map(|entry| entry.id).filter(|id| !is_whole(id, session)).collect();
        let (receipts, has_served) = (session.receipts, session.has_served);
        let taken: Vec<Box<Stream>> = lost.into_iter().filter_map(|id| session.take(id)).collect();
        self.shelve(state, at);
        let mut has_failed = is_fault;
        for stream in taken {
            state.count_out(server_id);
            if let Some(exchange) = stream.job.receiver.exchange() {
                self.lane.detach(exchange);
            }
            // A connection that served earlier requests was most likely closed by the server while idle.
            let was_idle = !is_fault
                && has_served
                && stream.began == receipts
                && !stream.job.wants_new
                && !stream.job.is_answered;
            let mut job = stream.into_job();
            if was_idle {
                // Opening a new connection is no retry: the server has not refused the request.
                job.wants_new = true;
                job.retries_left += 1;
                self.repeat_or_refuse(state, job, server_id, true, Failure::Closed);
                continue;
            }
            has_failed = true;
            if is_fault {
                job.retries_left = 0;
                self.cut_or_repeat(state, job, server_id, Failure::Malformed, why.as_deref());
            } else {
                self.cut_or_repeat(state, job, server_id, Failure::Closed, None);
            }
        }
        if has_failed {
            self.count_failure(state, server_id);
        }
        self.dequeue(state, server_id.upstream);
    }

    /// A deadline has expired: of connecting, of an idle connection, or of the periodic check of streams.
    pub(crate) fn overdue_h2(&self, state: &mut State, at: usize) {
        let Some(connection) = state.table.known(at) else { return };
        let upstream = self.upstreams.at(connection.server_id.upstream);
        let is_connecting = connection.is_connecting;
        let Some((session, guest, _)) = connection.h2() else { return };
        if !session.is_ready {
            if !is_connecting && self.start_without_settings(state, at) {
                return self.pump_h2(state, at);
            }
            let why = (!is_connecting).then_some("it sent no SETTINGS in time");
            return self.not_opened(state, at, Failure::ConnectTime, why);
        }
        if session.streams.is_empty() {
            session.machine.leave_now(&mut session.out);
            let _ = session.flush(&self.lane, guest, &mut false);
            return self.close(state, at);
        }
        session.machine.refill();
        let now_ns = clock::nanoseconds();
        let late = session.streams.iter_mut().filter_map(|entry| {
            let over = entry.stream.late(now_ns, &upstream.plan, &self.lane)?;
            Some((entry.id, over))
        });
        for (id, over) in late.collect::<Vec<_>>() {
            session.end(id, over);
        }
        self.lane.set_deadline(guest, Some(TICK));
        self.bury(state, at);
    }
}
