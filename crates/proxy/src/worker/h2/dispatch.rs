//! From requests to frames.

use flatout_engine::GuestEvent;
use flatout_lane::clock;
use flatout_wire::h1::Length;
use flatout_wire::h2::Asking;

use crate::connection::Flushed;
use crate::connection::h2::frames::ReceiveOutcome;
use crate::connection::h2::head::encode_head;
use crate::connection::h2::stream::{Entry, Stream};
use crate::request::job::{Job, Pulled};
use crate::worker::ProxyWorker;
use crate::worker::h2::completion::TICK;
use crate::worker::send::measured_now;
use crate::worker::state::State;

/// Calls to receive what a server sent before it closed: 32 MiB, more than the receive buffer of a socket usually holds.
const LAST_CALLS_MAX: usize = 64;

impl ProxyWorker {
    /// Gives a request to a connection with room. Returns the request if the connection turns out to be closed.
    pub(crate) fn join(&self, state: &mut State, at: usize, mut job: Box<Job>) -> Option<Box<Job>> {
        let Some(connection) = state.table.known(at) else {
            // It must not be chosen again.
            state.groups.at_mut(job.upstream).pools.iter_mut().for_each(|pool| pool.unlist(at));
            return Some(job);
        };
        let guest = connection.guest;
        // If the server closes while we send, it may have processed the request. Before sending one that must not be
        // repeated, read what the server has sent.
        if !job.is_idempotent && connection.session().is_some_and(|session| session.is_idle()) {
            connection.is_readable = true;
            self.pump_h2(state, at);
            if !state.is_still(at, guest) {
                return Some(job);
            }
        }
        if let Some(connection) = state.table.known(at) {
            job.trail.begin(&self.watch, &connection.address);
        }
        self.enlist(state, at, job);
        None
    }

    /// Assigns a request to a connection: sends it at once, or when the connection is open.
    pub(crate) fn enlist(&self, state: &mut State, at: usize, job: Box<Job>) {
        let Some((session, guest, server_id)) = state.table.known(at).and_then(|connection| connection.h2())
        else {
            return;
        };
        if let Some(exchange) = job.receiver.exchange() {
            self.lane.attach(exchange, guest);
        }
        let is_ready = session.is_ready;
        if !is_ready {
            session.waiting.push(job);
            state.count_in(server_id);
        } else {
            state.count_in(server_id);
            self.start(state, at, job);
        }
        self.shelve(state, at);
    }

    /// Sends the head of a request over an open connection. The server's count of requests already includes it.
    pub(crate) fn start(&self, state: &mut State, at: usize, mut job: Box<Job>) {
        let Some(connection) = state.table.known(at) else { return };
        let Some((session, guest, server_id)) = connection.h2() else { return };
        let group = state.groups.at(server_id.upstream);
        let Some(server) = group.shares.server(server_id.server) else { return };
        job.trail.connected();
        job.sent_ns = measured_now(self.upstreams.at(server_id.upstream));
        let is_whole = job.pulled == Pulled::Not && job.body.is_empty();
        let length = match job.length {
            Some(Length::Known(bytes)) => Some(bytes),
            _ => None,
        };
        let asking = Asking { is_whole, is_head: job.sent.is_head, is_connect: false, length };
        let host = job.names_server.then_some(server.name.as_str());
        let encode =
            |block: &mut Vec<u8>| encode_head(&job.head, host, job.length, server.is_secure(), block);
        let Some(id) = session.machine.ask(asking, encode, &mut session.out) else {
            // The connection was chosen because it had room.
            state.count_out(server_id);
            return self.repeat_unseen(state, job, 1);
        };
        if session.streams.is_empty() {
            session.machine.refill();
        }
        // Without its SETTINGS, the time to open the connection runs.
        if session.streams.is_empty() && session.is_ready {
            self.lane.set_deadline(guest, Some(TICK));
        }
        let exchange = job.receiver.exchange();
        let growth = state.windows.growth(exchange.and_then(|key| self.lane.connection(key)));
        let stream = Box::new(Stream::new(job, session.receipts, clock::nanoseconds(), growth));
        session.has_stored |= stream.job.stored.is_some();
        session.streams.push(Entry { id, exchange, stream });
        if !is_whole {
            session.give_turn(id);
        }
        self.schedule(session, guest);
        state.counts_of(server_id).up(|counts| &counts.requests);
    }

    /// Handles an event of an HTTP/2 connection, or of one of its requests.
    pub(crate) fn happened_h2(&self, state: &mut State, at: usize, event: GuestEvent) {
        let Some(connection) = state.table.known(at) else { return };
        if let GuestEvent::Socket(ready) = event {
            connection.note(ready);
            if connection.is_connecting && !self.connected_h2(state, at) {
                return;
            }
            return self.pump_h2(state, at);
        }
        let Some((session, guest, _)) = connection.h2() else { return };
        match event {
            GuestEvent::Again => {
                session.is_scheduled = false;
                if session.has_stored {
                    session.resume_stored();
                }
                if session.has_spools {
                    session.end_abandoned();
                }
                if session.holding > 0 {
                    self.release_held(state, at, None);
                }
                self.pump_h2(state, at);
            }
            GuestEvent::Body(key) => {
                if let Some(id) = session.by_exchange(key) {
                    session.give_turn(id);
                    self.schedule(session, guest);
                }
            }
            GuestEvent::Room(key) => {
                if let Some(id) = session.by_exchange(key) {
                    self.release_held(state, at, Some(id));
                    self.pump_h2(state, at);
                }
            }
            GuestEvent::Gone(key) => self.client_gone(state, at, key),
            GuestEvent::Deadline => self.overdue_h2(state, at),
            GuestEvent::Draining | GuestEvent::Socket(_) => {}
        }
    }

    /// Transfers everything possible, in both directions.
    pub(crate) fn pump_h2(&self, state: &mut State, at: usize) {
        let Some(connection) = state.table.known(at) else { return };
        if connection.is_connecting {
            return;
        }
        let guest = connection.guest;
        let outcome = self.receive_h2(state, at);
        self.bury(state, at);
        if !state.is_still(at, guest) {
            return;
        }
        match outcome {
            ReceiveOutcome::On => {}
            ReceiveOutcome::Opened => self.opened(state, at),
            lost => return self.lost_h2(state, at, lost),
        }
        if !state.is_still(at, guest) {
            return;
        }
        if self.say(state, at) == Flushed::Broken {
            return self.receive_last_h2(state, at);
        }
        self.bury(state, at);
        self.shelve(state, at);
    }

    /// The server accepts no more, but it may have responded before it closed, and no event may have reported that yet.
    #[cold]
    fn receive_last_h2(&self, state: &mut State, at: usize) {
        let Some(connection) = state.table.known(at) else { return };
        connection.is_readable = true;
        let guest = connection.guest;
        let outcome = self.receive_rest_h2(state, at);
        self.bury(state, at);
        if state.is_still(at, guest) {
            let fault = matches!(outcome, ReceiveOutcome::Fault(_)).then_some(outcome);
            self.lost_h2(state, at, fault.unwrap_or(ReceiveOutcome::Ended));
        }
    }

    /// Receives until nothing is left, or the connection has failed.
    fn receive_rest_h2(&self, state: &mut State, at: usize) -> ReceiveOutcome {
        for _ in 0..LAST_CALLS_MAX {
            let Some((session, ..)) = state.table.known(at).and_then(|connection| connection.h2()) else {
                break;
            };
            // The server no longer reads: frames for it are dropped.
            session.out.clear();
            session.sent = 0;
            if session.machine.is_closed() {
                break;
            }
            let outcome = self.receive_h2(state, at);
            let has_more = state.table.known(at).is_some_and(|connection| connection.is_readable);
            if !has_more || !matches!(outcome, ReceiveOutcome::On | ReceiveOutcome::Opened) {
                return outcome;
            }
        }
        ReceiveOutcome::Ended
    }
}
