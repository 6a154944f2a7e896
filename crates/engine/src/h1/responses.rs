//! From the service to the transport.

use flatout_lane::slab::Key;
use flatout_wire::h1::{Next, Refusal, Wants};

use super::Step;
use crate::bug;
use crate::connection::Connection;
use crate::exchange::{Exchange, Outgoing, spawn_body, spawn_response};
use crate::output::{Drained, Follow, Output, Piece};
use crate::service::{Body, BodyFault, Ended, ExchangeKey, Outcome, Reply, Response, Takeover};
use crate::serving::{Fate, FlushTime, OUT_BYTES_PER_SEND, Serving, refused};

impl Serving {
    /// Handles the reply of the service: a response, or how it will be made.
    #[inline]
    pub(super) fn handle_reply(
        &mut self,
        key: Key,
        connection: &mut Connection,
        reply: Reply,
        is_last_input: bool,
    ) {
        match reply {
            Reply::Now => {
                let close = self.closes(connection, &self.response, is_last_input);
                let before = self.output.len();
                let Serving { output, response, prelude, .. } = self;
                let follow = output.encode(response, &mut connection.machine, close, prelude);
                if self.wants_ended {
                    self.note_response(connection, self.response.status(), self.response.note(), before);
                }
                let filter = self.response.take_filter();
                self.response.reset();
                self.after_response(key, connection, follow);
                if let (Some(filter), Some(exchange)) = (filter, connection.exchange) {
                    self.lane.set_filter(exchange, filter);
                }
                // There is nothing to drop; `forget` lets the compiler omit the check.
                std::mem::forget(reply);
            }
            reply => self.handle_deferred_reply(key, connection, reply),
        }
    }

    #[inline(never)]
    fn handle_deferred_reply(&mut self, key: Key, connection: &mut Connection, reply: Reply) {
        match reply {
            Reply::Later(future) => {
                let exchange = self.exchange(key, connection);
                let task = spawn_response(self.lane.clone(), ExchangeKey(exchange), future);
                self.lane.with(exchange, |exchange| exchange.task = Some(task));
            }
            Reply::Parked => {
                self.exchange(key, connection);
            }
            // These are handled where they are made, while the request's bytes are available.
            Reply::Now | Reply::Leave(_) => {
                bug!("a reply was deferred that needs the request's bytes");
                connection.machine.close();
            }
        }
    }

    /// The connection's exchange; created if there is none.
    fn exchange(&mut self, key: Key, connection: &mut Connection) -> Key {
        match connection.work {
            Some(_) => self.begin_window(connection),
            // Nothing is transferred: the rate cannot be checked.
            None => connection.deadline = self.now.ticks + self.window_ticks,
        }
        let exchange = match connection.exchange {
            Some(exchange) => exchange,
            None => self.lane.open(Exchange::called(key)),
        };
        connection.exchange = Some(exchange);
        exchange
    }

    /// Whether a response is the connection's last, for our own reasons.
    #[inline]
    fn closes(&self, connection: &Connection, response: &Response, is_last_input: bool) -> bool {
        connection.requests_left == 0
            || (self.draining && is_last_input && !connection.is_holding())
            || self.has_too_much_unread(connection, response)
    }

    /// Encodes a response by key, or its start.
    fn respond(&mut self, key: Key, connection: &mut Connection, response: &mut Response) {
        let close = self.closes(connection, response, true);
        let before = self.output.len();
        let (status, note) = (response.status(), response.note());
        let follow = self.output.encode(response, &mut connection.machine, close, &self.prelude);
        if self.wants_ended {
            self.note_response(connection, status, note, before);
        }
        self.after_response(key, connection, follow);
    }

    /// Continues after the encoded part of a response: usually with the next request.
    #[inline]
    fn after_response(&mut self, key: Key, connection: &mut Connection, follow: Follow) {
        match follow {
            Follow::Next(Next::Request) if connection.exchange.is_none() && self.has_no_open_record() => {
                std::mem::forget(follow);
            }
            follow => self.follow_up(key, connection, follow),
        }
    }

    #[inline(never)]
    fn follow_up(&mut self, key: Key, connection: &mut Connection, follow: Follow) {
        match follow {
            Follow::Next(next) => self.end_request(connection, next),
            Follow::Stream(body) => {
                let exchange = self.exchange(key, connection);
                let task = spawn_body(self.lane.clone(), ExchangeKey(exchange), body);
                self.lane.with(exchange, |exchange| exchange.task = Some(task));
            }
            Follow::Pushed => {
                self.exchange(key, connection);
            }
            Follow::Take(takeover) => {
                self.end_request(connection, Next::Close);
                connection.work().takeover = Some(takeover);
            }
        }
    }

    /// Whether so much of the request's body is unread that it is not skipped for the next request. A response that
    /// is streamed may still be reading it.
    #[inline]
    fn has_too_much_unread(&self, connection: &Connection, response: &Response) -> bool {
        connection.machine.wants() == Wants::Body
            && connection
                .machine
                .length_left()
                .is_some_and(|left| left > u64::from(flatout_wire::h1::DISCARD_BYTES_MAX))
            && !matches!(response.body(), Body::Stream(_) | Body::Pushed)
            && !self.is_body_held(connection)
    }

    /// A response has ended, and its exchange, unless somebody reads the rest of the request's body.
    #[inline]
    pub(super) fn end_request(&mut self, connection: &mut Connection, mut next: Next) {
        if next == Next::Body {
            if self.is_body_held(connection) {
                self.begin_window(connection);
                self.end_response(connection.exchange);
                self.close_record(connection);
                return;
            }
            next = connection.machine.skip_rest();
        }
        self.fail_body(connection, BodyFault::Responded);
        self.close_exchange(connection);
        if !self.wants_ended && next == Next::Request {
            return;
        }
        self.close_record(connection);
        if next == Next::Skip {
            self.begin_window(connection);
        }
    }

    /// The connection leaves HTTP without a response to its request; the caller makes sure that the request's bytes
    /// are held.
    pub(super) fn leave(&mut self, connection: &mut Connection, takeover: Takeover) {
        connection.machine.close();
        self.close_exchange(connection);
        connection.work().takeover = Some(takeover);
    }

    /// Responds to an invalid request, or to one that is not read further; it is the last response. The client may
    /// still be sending, which must not cause a reset that discards the response (see [`Serving::finish`]).
    pub(super) fn refuse(&mut self, connection: &mut Connection, refusal: Refusal, used: usize) -> Step {
        connection.readable = true;
        let mut response = refused(refusal);
        let before = self.output.len();
        self.output.encode(&mut response, &mut connection.machine, true, &self.prelude);
        if self.wants_ended {
            let sent_bytes = self.output.len() - before;
            let sent_head_bytes = self.output.head_ends_at().saturating_sub(before) as u32;
            let status = Some(refusal.status);
            if self.close_record(connection)
                && let Some(record) = self.records.last_mut()
            {
                record.ended =
                    Ended { status, sent_bytes, sent_head_bytes, outcome: Outcome::Refused, ..record.ended };
            }
        }
        self.close_exchange(connection);
        Step::Used(used)
    }

    /// Handles the items given to a connection's exchange.
    pub(crate) fn attend_h1(&mut self, key: Key, connection: &mut Connection) -> Fate {
        let records_at = self.records.len();
        let mut again = false;
        let reads_on =
            connection.exchange.and_then(|key| self.lane.with(key, |it| std::mem::take(&mut it.reads_on)));
        if reads_on == Some(true) {
            self.begin_window(connection);
            if self.proceeds(connection) {
                connection.machine.proceed(self.output.bytes());
            }
        }
        while let Some(exchange) = connection.exchange {
            let Some(item) = self.lane.with(exchange, Exchange::dequeue).flatten() else {
                break;
            };
            match item {
                Outgoing::Answer(mut response) if connection.machine.owes_response() => {
                    self.respond(key, connection, &mut response);
                    self.lane.give_back(response);
                }
                Outgoing::Answer(_) => {}
                Outgoing::Inform(status, fields) => {
                    connection.machine.inform(status, &fields, self.output.bytes());
                }
                Outgoing::Data(bytes) => {
                    let count = bytes.len();
                    if !self.frame_data(connection, count, |output| output.add(bytes)) {
                        return self.abort_response(key, connection, records_at);
                    }
                }
                Outgoing::Pipe(pipe) => {
                    let count = pipe.bytes();
                    if !self.frame_data(connection, count, |output| output.add_pipe(pipe)) {
                        return self.abort_response(key, connection, records_at);
                    }
                }
                Outgoing::File(range) => {
                    let count = range.bytes as usize;
                    if !self.frame_data(connection, count, |output| output.add_piece(Piece::File(range))) {
                        return self.abort_response(key, connection, records_at);
                    }
                }
                Outgoing::End(trailers) if connection.machine.is_responding() => {
                    let before = self.output.len();
                    // Shorter than its Content-Length: the client must not take the next response for the rest.
                    let Ok(next) = connection.machine.end(&trailers, self.output.bytes()) else {
                        return self.abort_response(key, connection, records_at);
                    };
                    self.note_sent(connection, before);
                    self.end_request(connection, next);
                }
                Outgoing::End(_) => {}
                Outgoing::Leave(takeover, head) => {
                    if connection.machine.owes_response() {
                        connection.work().held.splice(..0, head);
                        self.leave(connection, takeover);
                    }
                }
                // The response has ended before.
                Outgoing::Cut if connection.machine.is_reading_on() => {}
                // A connection that leaves HTTP has no exchange: only streams of HTTP/2 are left.
                Outgoing::Cut | Outgoing::Abandon => return self.abort_response(key, connection, records_at),
                Outgoing::GiveUpAfter(time) => connection.transport.give_up_after(time),
            }
            if self.output.len() >= OUT_BYTES_PER_SEND {
                match self.flush(key, connection, records_at) {
                    Drained::Broken => return Fate::Close(Outcome::ClientGone),
                    // No event will report that the socket still accepts more.
                    Drained::Yield => again = true,
                    Drained::All | Drained::Full | Drained::Cold => {}
                }
            }
        }
        let fate = match self.finish_visit(key, connection, records_at, FlushTime::AtOnce) {
            Fate::Keep => self.continue_input(key, connection),
            fate => fate,
        };
        match fate {
            Fate::Keep if again => Fate::Again,
            fate => fate,
        }
    }

    /// Frames a piece of a body. Fails if the body becomes longer than its Content-Length: the client would take the
    /// rest for the next response.
    fn frame_data(
        &mut self,
        connection: &mut Connection,
        bytes: usize,
        add: impl FnOnce(&mut Output),
    ) -> bool {
        if !connection.machine.is_responding() {
            return true;
        }
        let before = self.output.len();
        let Ok(behind) = connection.machine.data(bytes, self.output.bytes()) else { return false };
        add(&mut self.output);
        self.output.bytes().extend_from_slice(behind);
        self.note_sent(connection, before);
        true
    }

    /// The body cannot be completed: what was encoded is sent, and then the connection is aborted.
    fn abort_response(&mut self, key: Key, connection: &mut Connection, records_at: usize) -> Fate {
        connection.machine.close();
        connection.work().is_cut = true;
        self.close_exchange(connection);
        self.finish_visit(key, connection, records_at, FlushTime::AtOnce)
    }

    /// After a response, the next request may already be held.
    pub(super) fn continue_input(&mut self, key: Key, connection: &mut Connection) -> Fate {
        if connection.machine.is_idle() && !connection.is_sending() {
            connection.deadline = self.idle_deadline();
        }
        // While the server drains: a response whose head was sent before could not announce that it is the last.
        connection.readable |= self.draining;
        match self.resume_h1(key, connection) {
            Fate::Keep if self.draining && connection.is_at_rest() => self.finish(connection),
            fate => fate,
        }
    }
}
