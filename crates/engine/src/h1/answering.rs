//! From the service to the transport.

use flatout_lane::slab::Key;
use flatout_wire::Status;
use flatout_wire::h1::{Next, Refusal, Wants};

use super::reading::Step;
use super::{Fate, Left, Sending, Serving};
use crate::connection::Connection;
use crate::exchange::{Exchange, GuestEvent, Said, spawn_body, spawn_response};
use crate::output::{Drained, Follow};
use crate::readers::Job;
use crate::record::Record;
use crate::service::{Body, ExchangeKey, Outcome, Reply, Response, Takeover};

/// Encoded bytes of one response after which they are sent before more of its body is framed.
const OUT_BYTES_PER_SEND: u64 = 128 << 10;

impl Serving {
    /// The service has answered, or said how it will.
    #[inline]
    pub(super) fn replied(
        &mut self,
        key: Key,
        connection: &mut Connection,
        reply: Reply,
        nothing_behind: bool,
    ) {
        match reply {
            Reply::Now => {
                let close = self.closes(connection, &self.response, nothing_behind);
                let before = self.output.len();
                let Serving { output, response, prelude, .. } = self;
                let follow = output.encode(response, &mut connection.machine, close, prelude);
                if self.wants_ended {
                    self.note_response(connection, self.response.status(), self.response.note(), before);
                }
                self.response.reset();
                self.followed(key, connection, follow);
            }
            Reply::Later(future) => {
                let exchange = self.exchange(key, connection);
                let task = spawn_response(self.lane.clone(), ExchangeKey(exchange), future);
                self.lane.with(exchange, |exchange| exchange.task = Some(task));
            }
            Reply::Parked => {
                self.exchange(key, connection);
            }
            // Handled where the request's bytes are at hand.
            Reply::Leave(_) => connection.machine.close(),
        }
    }

    /// The connection's exchange; made, if there is none.
    fn exchange(&mut self, key: Key, connection: &mut Connection) -> Key {
        self.begin_window(connection);
        let exchange = match connection.exchange {
            Some(exchange) => exchange,
            None => self.lane.open(Exchange::called(key)),
        };
        connection.exchange = Some(exchange);
        exchange
    }

    /// Whether a response is the connection's last, for reasons of ours.
    #[inline]
    fn closes(&self, connection: &Connection, response: &Response, nothing_behind: bool) -> bool {
        connection.requests_left == 0
            || (self.draining && nothing_behind && !connection.is_holding())
            || self.has_too_much_unread(connection, response)
    }

    /// Encodes a response that came by key, whole or its start.
    fn respond(&mut self, key: Key, connection: &mut Connection, response: &mut Response) {
        let close = self.closes(connection, response, true);
        let before = self.output.len();
        let (status, note) = (response.status(), response.note());
        let follow = self.output.encode(response, &mut connection.machine, close, &self.prelude);
        if self.wants_ended {
            self.note_response(connection, status, note, before);
        }
        self.followed(key, connection, follow);
    }

    #[cold]
    fn note_response(&mut self, connection: &mut Connection, status: Status, note: u64, before: u64) {
        let sent_bytes = self.output.len() - before;
        if let Some(open) = connection.work.as_mut().and_then(|work| work.open.as_mut()) {
            open.status = Some(status);
            open.note = note;
            open.sent_bytes += sent_bytes;
        }
    }

    /// Goes on to what follows the encoded part of a response.
    #[inline]
    fn followed(&mut self, key: Key, connection: &mut Connection, follow: Follow) {
        match follow {
            Follow::Next(next) => self.over(connection, next),
            Follow::Stream(body) => {
                let exchange = self.exchange(key, connection);
                let task = spawn_body(self.lane.clone(), ExchangeKey(exchange), body);
                self.lane.with(exchange, |exchange| exchange.task = Some(task));
            }
            Follow::Pushed => {
                self.exchange(key, connection);
            }
            Follow::Take(takeover) => {
                self.over(connection, Next::Close);
                connection.work().takeover = Some(takeover);
            }
        }
    }

    /// Whether so much of the request's body is unread that it is not skipped for the sake of the next request. A response
    /// that is streamed may be reading it still.
    #[inline]
    fn has_too_much_unread(&self, connection: &Connection, response: &Response) -> bool {
        connection.machine.wants() == Wants::Body
            && connection
                .machine
                .length_left()
                .is_some_and(|left| left > u64::from(flatout_wire::h1::DISCARD_BYTES_MAX))
            && !matches!(response.body(), Body::Stream(_) | Body::Pushed)
    }

    /// A response has come to its end: its exchange too.
    #[inline]
    fn over(&mut self, connection: &mut Connection, next: Next) {
        self.close_exchange(connection);
        if !self.wants_ended && next == Next::Request {
            return;
        }
        if let Some(open) = connection.work.as_mut().and_then(|work| work.open.take()) {
            self.records.push(open);
        }
        if next == Next::Skip {
            self.begin_window(connection);
        }
    }

    /// Ends the connection's exchange; a guest that is attached to it hears of it.
    #[inline]
    pub(super) fn close_exchange(&mut self, connection: &mut Connection) {
        if let Some(exchange) = connection.exchange.take() {
            self.end_exchange(exchange);
        }
    }

    fn end_exchange(&mut self, exchange: Key) {
        if let Some(guest) = self.lane.close(exchange) {
            self.notices.push((guest, GuestEvent::Gone(ExchangeKey(exchange))));
        }
    }

    /// The connection leaves HTTP with its request unanswered; the caller sees to it that the request's bytes are held.
    pub(super) fn leave(&mut self, connection: &mut Connection, takeover: Takeover) {
        connection.machine.close();
        self.close_exchange(connection);
        connection.work().takeover = Some(takeover);
    }

    /// Answers what is no request, or one that is not read on; it is the last response. The client may well be sending
    /// still, which must not reset the response away (see [`Serving::finish`]).
    pub(super) fn refuse(&mut self, connection: &mut Connection, refusal: Refusal, used: usize) -> Step {
        connection.readable = true;
        let mut response = Response::with_status(refusal.status);
        response.header("Content-Type", "text/plain; charset=utf-8");
        if refusal.status == Status::SERVICE_UNAVAILABLE {
            response.header("Retry-After", "1");
        }
        response.buffer().extend_from_slice(refusal.reason.as_bytes());
        response.buffer().push(b'\n');
        let before = self.output.len();
        self.output.encode(&mut response, &mut connection.machine, true, &self.prelude);
        if self.wants_ended {
            let work = connection.work();
            let open = work.open.take().unwrap_or_else(|| Record::refused(used as u64));
            let sent_bytes = self.output.len() - before;
            self.records.push(Record { status: Some(refusal.status), is_refused: true, sent_bytes, ..open });
        }
        self.close_exchange(connection);
        Step::Used(used)
    }

    /// Attends to what was said to a connection's exchange.
    pub(crate) fn attend(&mut self, key: Key, connection: &mut Connection) -> Fate {
        let records_at = self.records.len();
        while let Some(exchange) = connection.exchange {
            let Some(said) = self.lane.with(exchange, |exchange| exchange.outbox.pop_front()).flatten()
            else {
                break;
            };
            match said {
                Said::Answer(mut response) if connection.machine.owes_response() => {
                    self.respond(key, connection, &mut response);
                }
                Said::Answer(_) => {}
                Said::Inform(status, fields) => {
                    connection.machine.inform(status, &fields, self.output.bytes());
                }
                Said::Data(bytes) => {
                    let count = bytes.len();
                    self.lane.with(exchange, |exchange| exchange.outbox_bytes -= count as u64);
                    if !connection.machine.is_responding() {
                        continue;
                    }
                    let before = self.output.len();
                    // More than its Content-Length: the client would take the rest for the next response.
                    let Ok(behind) = connection.machine.data(count, self.output.bytes()) else {
                        return self.break_off(key, connection);
                    };
                    self.output.add(bytes);
                    self.output.bytes().extend_from_slice(behind);
                    let added = self.output.len() - before;
                    if let Some(open) = connection.work.as_mut().and_then(|work| work.open.as_mut()) {
                        open.sent_bytes += added;
                    }
                }
                Said::End(trailers) if connection.machine.is_responding() => {
                    // Less than its Content-Length: the client must not take the next response for the rest.
                    let Ok(next) = connection.machine.end(&trailers, self.output.bytes()) else {
                        return self.break_off(key, connection);
                    };
                    self.over(connection, next);
                }
                Said::End(_) => {}
                Said::Cut => return self.break_off(key, connection),
            }
            if self.output.len() >= OUT_BYTES_PER_SEND
                && self.flush(key, connection, records_at) == Drained::Broken
            {
                return Fate::Close(Outcome::ClientGone);
            }
        }
        match self.finish_visit(key, connection, records_at, Sending::AtOnce) {
            Fate::Keep if connection.exchange.is_none() => self.go_on(key, connection),
            fate => fate,
        }
    }

    /// The body cannot be finished: what was said so far is sent, and the connection is cut.
    fn break_off(&mut self, key: Key, connection: &mut Connection) -> Fate {
        let records_at = self.records.len();
        self.flush(key, connection, records_at);
        Fate::Close(Outcome::Failed)
    }

    /// After a response, the next request may be held already.
    fn go_on(&mut self, key: Key, connection: &mut Connection) -> Fate {
        if connection.machine.is_idle() && !connection.is_sending() {
            connection.deadline = self.idle_deadline();
        }
        // While the server drains, a response whose head was sent before could not say that it is the last.
        connection.readable |= self.draining;
        match self.resume(key, connection) {
            Fate::Keep if self.draining && connection.is_at_rest() => self.finish(connection),
            fate => fate,
        }
    }

    /// The socket has room again.
    pub(crate) fn writable(&mut self, key: Key, connection: &mut Connection) -> Fate {
        let Some(work) = connection.work.as_mut() else { return Fate::Keep };
        if work.queue.is_empty() {
            return Fate::Keep;
        }
        let before = work.queue.bytes();
        let drained = self.drain(key, connection);
        let work = connection.work();
        work.moved_bytes += before - work.queue.bytes();
        self.note_unsent(connection);
        match drained {
            Drained::All => {
                let records_at = self.records.len();
                self.sent(connection, records_at);
                match self.settle(connection) {
                    Fate::Keep if connection.exchange.is_none() => self.go_on(key, connection),
                    fate => fate,
                }
            }
            Drained::Full | Drained::Cold => Fate::Keep,
            Drained::Yield => Fate::Again,
            Drained::Broken => Fate::Close(Outcome::ClientGone),
        }
    }

    /// Sends what is queued. What is not in memory is read there by others meanwhile, and then is the socket's turn again.
    fn drain(&mut self, key: Key, connection: &mut Connection) -> Drained {
        let work = connection.work.get_or_insert_default();
        loop {
            if work.is_warming {
                return Drained::Cold;
            }
            match work.queue.drain(&mut connection.transport) {
                Drained::Cold => {}
                drained => return drained,
            }
            let mailbox = self.lane.mailbox();
            let job = work.queue.cold().map(|(file, offset, bytes)| Job {
                file,
                offset,
                bytes,
                connection: key,
                mailbox,
            });
            match job.is_some_and(|job| self.readers.read(job)) {
                true => work.is_warming = true,
                false => work.queue.trust_little(),
            }
        }
    }

    /// The file that a connection sends is in memory up to there.
    pub(crate) fn warmed(&mut self, key: Key, connection: &mut Connection, until: u64) -> Fate {
        let Some(work) = connection.work.as_mut().filter(|work| work.is_warming) else { return Fate::Keep };
        work.is_warming = false;
        work.queue.trust(until);
        self.begin_window(connection);
        self.writable(key, connection)
    }

    /// Sends what the visit has made, or leaves it for the end of the stage, and goes on to what follows.
    #[inline]
    pub(super) fn finish_visit(
        &mut self,
        key: Key,
        connection: &mut Connection,
        records_at: usize,
        sending: Sending,
    ) -> Fate {
        if self.output.is_empty() {
            return self.settle(connection);
        }
        let is_plain =
            connection.machine.is_idle() && connection.exchange.is_none() && !connection.is_sending();
        if sending == Sending::Staged
            && is_plain
            && let Some(span) = self.output.leave()
        {
            connection.rest();
            self.left.push(Left { key, span, records: records_at..self.records.len() });
            return Fate::Keep;
        }
        match self.flush(key, connection, records_at) {
            Drained::Broken => Fate::Close(Outcome::ClientGone),
            Drained::Yield => Fate::Again,
            Drained::All | Drained::Full | Drained::Cold => self.settle(connection),
        }
    }

    /// Sends the output of the connection in hand, behind what its queue holds.
    pub(super) fn flush(&mut self, key: Key, connection: &mut Connection, records_at: usize) -> Drained {
        if self.output.is_empty() {
            return Drained::All;
        }
        let work = connection.work.get_or_insert_default();
        let had_queue = !work.queue.is_empty();
        let drained = match self.output.send(&mut connection.transport, &mut work.queue) {
            Some(drained) => drained,
            None => {
                self.output.move_to(&mut work.queue);
                self.drain(key, connection)
            }
        };
        let work = connection.work.get_or_insert_default();
        let is_sending = !work.queue.is_empty();
        if is_sending && !had_queue {
            work.unacknowledged_bytes = None;
            self.begin_window(connection);
        }
        if self.wants_ended {
            self.note_first_byte(connection, records_at);
        }
        match is_sending {
            false => self.sent(connection, records_at),
            true => {
                let unsent = self.records.drain(records_at..);
                connection.work().unsent.extend(unsent);
            }
        }
        self.note_unsent(connection);
        drained
    }

    /// Sends what a connection left in the output during the stage.
    #[inline]
    pub(crate) fn send_left(&mut self, left: &Left, connection: &mut Connection) -> Fate {
        let (drained, rest) = self.output.send_left(left.span.clone(), &mut connection.transport);
        if let Some(rest) = rest {
            connection.work().queue.push(crate::output::Piece::Bytes(rest));
            self.begin_window(connection);
        }
        if self.wants_ended {
            self.end_left(left, connection, drained);
        }
        match drained {
            Drained::Broken => Fate::Close(Outcome::ClientGone),
            // Held requests wait behind the stage, and what could not be sent for the socket's room.
            _ if connection.is_holding() && !connection.is_sending() => Fate::Again,
            _ => Fate::Keep,
        }
    }

    #[cold]
    fn end_left(&mut self, left: &Left, connection: &mut Connection, drained: Drained) {
        let peer = connection.peer.address();
        match drained {
            Drained::All => {
                for record in self.records.get(left.records.clone()).unwrap_or_default() {
                    record.end(&*self.service, Outcome::Sent, peer);
                }
            }
            Drained::Broken => {
                for record in self.records.get(left.records.clone()).unwrap_or_default() {
                    record.end(&*self.service, Outcome::ClientGone, peer);
                }
            }
            Drained::Full | Drained::Yield | Drained::Cold => {
                let records = self.records.get_mut(left.records.clone()).unwrap_or_default();
                let moved = records.iter_mut().map(|record| std::mem::replace(record, Record::refused(0)));
                connection.work().unsent.extend(moved);
            }
        }
    }

    /// Ends a stage: all was sent.
    #[inline]
    pub(crate) fn clear_stage(&mut self) {
        self.left.clear();
        self.records.clear();
        self.output.clear();
    }

    #[cold]
    fn note_first_byte(&mut self, connection: &mut Connection, records_at: usize) {
        let now_ns = flatout_lane::clock::nanoseconds();
        let work = connection.work();
        let open = work.open.iter_mut().filter(|open| open.status.is_some());
        let done = self.records.get_mut(records_at..).unwrap_or_default().iter_mut();
        for record in done.chain(open) {
            record.first_byte_ns.get_or_insert(now_ns);
        }
    }

    /// The kernel has taken all: those requests are over whose responses were.
    #[inline]
    fn sent(&mut self, connection: &mut Connection, records_at: usize) {
        if self.wants_ended {
            let peer = connection.peer.address();
            let unsent = connection.work.as_mut().map(|work| std::mem::take(&mut work.unsent));
            for record in unsent.into_iter().flatten().chain(self.records.drain(records_at..)) {
                record.end(&*self.service, Outcome::Sent, peer);
            }
        }
        connection.rest();
    }

    /// Tells the exchange how much of its body waits, and whoever waits for room that there is some.
    #[inline]
    fn note_unsent(&mut self, connection: &mut Connection) {
        let Some(key) = connection.exchange else { return };
        let unsent = connection.work.as_ref().map_or(0, |work| work.queue.bytes());
        let heard = self.lane.with(key, |exchange| {
            let had_room = exchange.has_room();
            exchange.unsent_bytes = unsent;
            match exchange.has_room() {
                true => (exchange.room.take(), exchange.guest.filter(|_| !had_room)),
                false => (None, None),
            }
        });
        let Some((room, guest)) = heard else { return };
        if let Some(room) = room {
            room.wake();
        }
        if let Some(guest) = guest {
            self.notices.push((guest, GuestEvent::Room(ExchangeKey(key))));
        }
    }

    /// What follows once everything is sent.
    #[inline]
    pub(super) fn settle(&mut self, connection: &mut Connection) -> Fate {
        if connection.is_sending() {
            return Fate::Keep;
        }
        if connection.machine.wants() == Wants::Nothing {
            return match connection.work.as_mut().and_then(|work| work.takeover.take()) {
                Some(takeover) => Fate::Take(takeover),
                None => self.finish(connection),
            };
        }
        connection.rest();
        // The last response was sent before the drain began, and only now the rest of its request was read.
        if self.draining && connection.is_at_rest() && !connection.readable {
            return self.finish(connection);
        }
        Fate::Keep
    }
}
