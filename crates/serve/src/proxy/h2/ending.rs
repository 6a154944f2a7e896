//! The end of requests on streams, and of HTTP/2 connections.

use std::time::Duration;

use flatout_engine::ExchangeKey;
use flatout_lane::clock;
use flatout_wire::Status;
use flatout_wire::h2::{Code, StreamId};

use super::answering::Went;
use super::{Over, REFUSED_COSTS, Stream};
use crate::proxy::ending::BAD_ANSWER;
use crate::proxy::job::{Job, Pulled};
use crate::proxy::link::Place;
use crate::proxy::links::{Links, State};

/// How often a connection with requests is checked for streams whose server is silent.
pub(super) const TICK: Duration = Duration::from_secs(1);

/// Log text for a connection that cannot be opened.
const NO_H2: &str = "no HTTP/2";

impl Links {
    /// Finishes streams that have ended, and gives their places to queued requests.
    pub(super) fn bury(&self, state: &mut State, at: usize) {
        let Some((session, guest, place)) = state.table.get(at).and_then(|link| link.shared()) else {
            return;
        };
        if session.over.is_empty() {
            return;
        }
        // First of all, because a repeated request must not choose this connection again if it accepts no more.
        self.shelve(state, at);
        let mut ended = 0;
        while state.is_still(at, guest)
            && let Some((session, ..)) = state.table.get(at).and_then(|link| link.shared())
            && let Some((id, over)) = session.over.pop()
        {
            let Some(stream) = session.take(id) else { continue };
            ended += 1;
            if matches!(over, Over::Slow | Over::Unwanted) {
                session.machine.reset(id, Code::CANCEL, &mut session.out);
            }
            if !stream.held.is_empty() {
                // This credit belongs to the whole connection.
                session.machine.consumed(id, stream.held.len(), &mut session.out);
            }
            session.machine.release(id, &mut session.out);
            session.has_served |= over == Over::Whole;
            session.is_resting &= matches!(over, Over::Refused | Over::Unseen);
            self.schedule(session, guest);
            state.count_out(place);
            if let Some(exchange) = stream.job.waiter.exchange() {
                // Whatever is still to be sent to the client does not concern this connection.
                self.lane.detach(exchange);
            }
            self.stream_over(state, place, *stream, over);
        }
        if state.is_still(at, guest) {
            self.shelve(state, at);
        }
        for _ in 0..ended {
            self.dequeue(state, place.upstream);
        }
    }

    /// Finishes a request that was taken off its connection.
    fn stream_over(&self, state: &mut State, place: Place, stream: Stream, over: Over) {
        let mut job = stream.into_job();
        match over {
            Over::Whole => {
                job.trail.ended(&self.watch, state.counts_of(place));
                let upstream = self.upstreams.get(place.upstream);
                if let Some(server) = upstream.and_then(|upstream| upstream.servers.get(place.server)) {
                    server.succeeded();
                }
                state.end_job(job);
            }
            Over::Unwanted => state.end_job(job),
            Over::Refused => self.repeat_unseen(state, job, REFUSED_COSTS),
            Over::Unseen => self.repeat_unseen(state, job, 1),
            Over::BadBody => self.refuse_body(state, job),
            Over::Reset(code) => {
                // With these codes, the server need not be at fault.
                if !matches!(code, Code::NO_ERROR | Code::CANCEL) {
                    self.count_failure(state, place);
                }
                job.retries_left = 0;
                self.cut_or_repeat(state, job, place, Status::BAD_GATEWAY);
            }
            Over::Slow => {
                self.count_failure(state, place);
                self.cut_or_repeat(state, job, place, Status::GATEWAY_TIMEOUT);
            }
        }
    }

    fn cut_or_repeat(&self, state: &mut State, mut job: Box<Job>, place: Place, status: Status) {
        match job.is_answered {
            true => job.waiter.cut(&self.lane, &mut state.told),
            false => self.repeat_or_refuse(state, job, place, true, status),
        }
    }

    /// Repeats a request that the server has not processed: this counts as no attempt, and needs no retry budget.
    /// `refusals` is its cost.
    pub(super) fn repeat_unseen(&self, state: &mut State, mut job: Box<Job>, refusals: u8) {
        if job.is_answered {
            // The server has responded to a request that it says it has not processed.
            return job.waiter.cut(&self.lane, &mut state.told);
        }
        if !job.waiter.is_open(&self.lane) {
            return;
        }
        job.trail.failed(Status::BAD_GATEWAY);
        let is_there = matches!(job.pulled, Pulled::Not | Pulled::Waiting);
        let left = job.refusals_left.checked_sub(refusals).filter(|_| is_there);
        let Some(left) = left else { return self.refuse(state, job, Status::BAD_GATEWAY, BAD_ANSWER) };
        (job.refusals_left, job.tried) = (left, 0);
        self.dispatch(state, job);
    }

    /// The client of a request is gone: its stream is reset, the others continue.
    pub(super) fn client_gone(&self, state: &mut State, at: usize, key: ExchangeKey) {
        let Some((session, _, place)) = state.table.get(at).and_then(|link| link.shared()) else { return };
        if let Some(id) = session.by_exchange(key) {
            session.end(id, Over::Unwanted);
            return self.bury(state, at);
        }
        let mut waiting = session.waiting.iter();
        if let Some(index) = waiting.position(|job| job.waiter.exchange() == Some(key)) {
            let job = session.waiting.swap_remove(index);
            state.count_out(place);
            state.end_job(job);
            self.shelve(state, at);
        }
    }

    /// The connection could not be opened: no request was processed. `why` is given if the server is at fault, not
    /// the network.
    pub(super) fn not_opened(&self, state: &mut State, at: usize, status: Status, why: Option<String>) {
        let Some((session, _, place)) = state.table.get(at).and_then(|link| link.shared()) else { return };
        let waiting = std::mem::take(&mut session.waiting);
        self.blame(place, NO_H2, why);
        self.count_failure(state, place);
        self.close(state, at);
        for job in waiting {
            state.count_out(place);
            self.repeat_or_refuse(state, job, place, false, status);
        }
        self.dequeue(state, place.upstream);
    }

    /// The connection has ended, or cannot continue: incomplete requests are repeated if that is safe.
    pub(super) fn lost_h2(&self, state: &mut State, at: usize, went: Went) {
        let Some(link) = state.table.get(at) else { return };
        link.is_readable = false;
        link.held = Vec::new();
        let is_fault = matches!(went, Went::Fault(_));
        let why = match went {
            Went::Fault(why) => Some(why),
            _ => None,
        };
        let Some((session, guest, place)) = link.shared() else { return };
        if !session.is_ready {
            let why = why.or(Some("it closed the connection and sent no SETTINGS".to_owned()));
            return self.not_opened(state, at, Status::BAD_GATEWAY, why);
        }
        // Send our GOAWAY, if the server still reads.
        let _ = session.flush(&self.lane, guest, &mut false);
        session.is_gone = true;
        let is_whole = |id: &StreamId, session: &super::Session| {
            session.find(*id).and_then(|at| session.streams.get(at)).is_some_and(|it| it.stream.end.is_some())
        };
        let lost: Vec<StreamId> =
            session.streams.iter().map(|entry| entry.id).filter(|id| !is_whole(id, session)).collect();
        let (receipts, has_served) = (session.receipts, session.has_served);
        let taken: Vec<Box<Stream>> = lost.into_iter().filter_map(|id| session.take(id)).collect();
        self.blame(place, "broken HTTP/2", why);
        self.shelve(state, at);
        let mut has_failed = is_fault;
        for stream in taken {
            state.count_out(place);
            if let Some(exchange) = stream.job.waiter.exchange() {
                self.lane.detach(exchange);
            }
            // A connection that served earlier requests was most likely closed by the server while idle.
            let was_idle = !is_fault && has_served && stream.began == receipts && !stream.job.wants_new;
            let mut job = stream.into_job();
            if was_idle {
                // Opening a new connection is no retry: the server has not refused the request.
                job.wants_new = true;
                job.retries_left += 1;
            } else if is_fault {
                job.retries_left = 0;
            }
            has_failed |= !was_idle;
            self.cut_or_repeat(state, job, place, Status::BAD_GATEWAY);
        }
        if has_failed {
            self.count_failure(state, place);
        }
        self.dequeue(state, place.upstream);
    }

    fn blame(&self, place: Place, what: &str, why: Option<String>) {
        if let Some(why) = why
            && let Some(upstream) = self.upstreams.get(place.upstream)
            && let Some(server) = upstream.servers.get(place.server)
        {
            server.complain_of(&upstream.plan.name, what, why);
        }
    }

    /// A deadline has expired: of connecting, of an idle connection, or of the periodic check of streams.
    pub(super) fn overdue_h2(&self, state: &mut State, at: usize) {
        let Some(link) = state.table.get(at) else { return };
        let Some(upstream) = self.upstreams.get(link.place.upstream) else { return };
        let is_connecting = link.is_connecting;
        let Some((session, guest, _)) = link.shared() else { return };
        if !session.is_ready {
            let why = (!is_connecting).then(|| "it sent no SETTINGS in time".to_owned());
            return self.not_opened(state, at, Status::GATEWAY_TIMEOUT, why);
        }
        if session.streams.is_empty() {
            session.machine.leave_now(&mut session.out);
            let _ = session.flush(&self.lane, guest, &mut false);
            return self.close(state, at);
        }
        session.machine.refill();
        let now_ns = clock::nanoseconds();
        let time_max_ns = upstream.plan.read_time_max.as_nanos() as u64;
        let mut slow = Vec::new();
        for entry in &mut session.streams {
            let stream = &mut entry.stream;
            // A server is not slow while it waits for the client, in either direction.
            if stream.awaits_client() {
                stream.seen_ns = now_ns;
            } else if now_ns.saturating_sub(stream.seen_ns) > time_max_ns {
                slow.push(entry.id);
            }
        }
        slow.into_iter().for_each(|id| session.end(id, Over::Slow));
        self.lane.set_deadline(guest, Some(TICK));
        self.bury(state, at);
    }
}
