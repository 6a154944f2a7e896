//! From the transport to the service.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use flatout_lane::clock;
use flatout_lane::slab::Key;
use flatout_lane::socket::Moved;
use flatout_wire::h1::{Piece, Refusal, Wants};
use flatout_wire::{Framing, Head, Method, Status, head, target};

use super::{Fate, READ_BYTES, SLICE_BYTES, STAGE_SOCKETS, Sending, Serving};
use crate::connection::Connection;
use crate::exchange::{Exchange, Fed, Intake, Lane, Mail, Mailbox, Memory, Whole, panicked};
use crate::output::Drained;
use crate::plan::Limits;
use crate::record::Record;
use crate::service::{
    BodyPlan, ExchangeKey, Outcome, Parking, Reply, Request, RequestBody, Response, Service, stream,
};

/// Encoded responses are sent when one connection has so many bytes of them.
const OUT_BYTES_PER_SEND: u64 = 128 << 10;

/// Reads of one connection before others have their turn.
const READS_PER_TURN: usize = 8;

/// Requests of one connection after which the clock is looked at.
const REQUESTS_PER_LOOK: usize = 8;

/// How long a request's body may wait for memory before the answer is 503.
pub(crate) const STARVED_TIME_MAX: std::time::Duration = std::time::Duration::from_secs(5);

/// What one look at the bytes came to.
pub(super) enum Step {
    /// Nothing can be done with them now.
    Partial,
    /// So many were used.
    Used(usize),
}

/// Bytes in the read buffer: `at..end`, of which the first `carried` were there before.
struct Span {
    at: usize,
    end: usize,
    carried: usize,
}

impl Serving {
    /// Whether a connection's next bytes can be received beside those of others.
    #[inline]
    pub(crate) fn is_stageable(connection: &Connection) -> bool {
        connection.is_at_rest()
    }

    /// Receives into a slice of the read buffer: how many bytes.
    #[inline]
    pub(crate) fn receive_slice(&mut self, connection: &mut Connection, slice: usize) -> Result<usize, Fate> {
        debug_assert!(slice < STAGE_SOCKETS);
        let room = self.read.get_mut(slice * SLICE_BYTES..(slice + 1) * SLICE_BYTES).unwrap_or_default();
        match connection.transport.receive(room) {
            Moved::Bytes(0) | Moved::Broken => Err(Fate::Close(Outcome::ClientGone)),
            Moved::Bytes(read) => {
                // A read that came up short emptied the socket: what comes next is a new edge. Only the end of the
                // peer's side may have come with the same edge, and is read after the bytes.
                connection.readable = read == SLICE_BYTES || connection.read_closed;
                Ok(read)
            }
            Moved::WouldBlock => {
                connection.readable = false;
                Ok(0)
            }
        }
    }

    /// Serves what was received into a slice.
    #[inline]
    pub(crate) fn serve_slice(
        &mut self,
        key: Key,
        connection: &mut Connection,
        slice: usize,
        bytes: usize,
    ) -> Fate {
        let at = slice * SLICE_BYTES;
        self.consume(key, connection, Span { at, end: at + bytes, carried: 0 }, Sending::Staged)
    }

    /// Reads and serves what the socket has.
    pub(crate) fn pump(&mut self, key: Key, connection: &mut Connection) -> Fate {
        for _ in 0..READS_PER_TURN {
            if connection.lingering.is_some() {
                return self.throw_away(connection);
            }
            if !connection.readable || !self.wants_input(connection) {
                return self.notice_closed(connection);
            }
            let carried = self.take_held(connection);
            let Some(room) = self.read.get_mut(carried..) else { return Fate::Close(Outcome::Failed) };
            let room_bytes = room.len();
            let fate = if room_bytes == 0 {
                self.consume(key, connection, Span { at: 0, end: carried, carried: 0 }, Sending::AtOnce)
            } else {
                match connection.transport.receive(room) {
                    Moved::Bytes(0) | Moved::Broken => return Fate::Close(Outcome::ClientGone),
                    Moved::Bytes(read) => {
                        connection.readable = read == room_bytes || connection.read_closed;
                        let span = Span { at: 0, end: carried + read, carried };
                        self.consume(key, connection, span, Sending::AtOnce)
                    }
                    Moved::WouldBlock => {
                        connection.readable = false;
                        self.hold(connection, 0, carried);
                        return Fate::Keep;
                    }
                }
            };
            match fate {
                Fate::Keep => {}
                fate => return fate,
            }
        }
        Fate::Again
    }

    /// Goes on with what is held, after a response was finished or a reader has caught up.
    pub(crate) fn resume(&mut self, key: Key, connection: &mut Connection) -> Fate {
        if connection.is_holding() && self.wants_input(connection) {
            let end = self.take_held(connection);
            match self.consume(key, connection, Span { at: 0, end, carried: 0 }, Sending::AtOnce) {
                Fate::Keep => {}
                fate => return fate,
            }
        }
        self.pump(key, connection)
    }

    /// The reader of a request's body has caught up. How fast the peer sends is judged from now on.
    pub(crate) fn read_on(&mut self, key: Key, connection: &mut Connection) -> Fate {
        self.begin_window(connection);
        self.resume(key, connection)
    }

    /// Whether bytes from the socket could be used now.
    fn wants_input(&self, connection: &Connection) -> bool {
        match connection.machine.wants() {
            Wants::Head => !connection.is_sending(),
            Wants::Body => self.takes_body(connection),
            Wants::Answer | Wants::Nothing => false,
        }
    }

    /// Whether more of a body can be taken. One that is collected waits behind the response before it: that must be sent
    /// first, for what its own request is answered must not come into its midst.
    fn takes_body(&self, connection: &Connection) -> bool {
        let Some(exchange) = connection.exchange else { return true };
        let is_sending = connection.is_sending();
        let taken = self.lane.with(exchange, |exchange| match &exchange.intake {
            Some(intake) if intake.is_awaited() => !is_sending,
            Some(intake) => !intake.is_paused(),
            None => true,
        });
        taken.unwrap_or(true)
    }

    /// A client that has closed its side while its response is made is gone, unless half-closed connections are served.
    fn notice_closed(&self, connection: &Connection) -> Fate {
        let waits = connection.exchange.is_some() && connection.machine.wants() == Wants::Answer;
        if connection.read_closed && waits && !self.limits.half_close {
            return Fate::Close(Outcome::ClientGone);
        }
        Fate::Keep
    }

    /// Uses up a span of the read buffer.
    #[inline]
    fn consume(&mut self, key: Key, connection: &mut Connection, span: Span, sending: Sending) -> Fate {
        let Span { mut at, end, carried } = span;
        let records_at = self.records.len();
        let mut again = false;
        let mut steps = 0;
        while at < end && !(carried > 0 && steps == 0 && self.is_same_head(connection, &span)) {
            let step = match connection.machine.wants() {
                Wants::Head if connection.is_sending() => Step::Partial,
                Wants::Head => self.request(key, connection, at, end),
                Wants::Body => self.body(key, connection, at, end),
                Wants::Answer | Wants::Nothing => Step::Partial,
            };
            match step {
                Step::Partial => break,
                Step::Used(used) => at += used,
            }
            if self.output.len() >= OUT_BYTES_PER_SEND {
                match self.flush(key, connection, records_at) {
                    Drained::Broken => return Fate::Close(Outcome::ClientGone),
                    // No event tells that the socket takes more still; the queue ends the loop.
                    Drained::Yield => again = true,
                    Drained::All | Drained::Full | Drained::Cold => {}
                }
            }
            steps += 1;
            if steps % REQUESTS_PER_LOOK == 0 && at < end && self.is_over_budget() {
                again = true;
                break;
            }
        }
        self.hold(connection, at, end);
        if connection.machine.is_idle() && !connection.is_sending() {
            self.set_rest_deadline(connection, carried > 0 && at == span.at);
        }
        match self.finish_visit(key, connection, records_at, sending) {
            Fate::Keep if again => Fate::Again,
            fate => fate,
        }
    }

    /// Whether what was read brought nothing new: part of a head was parsed before, and without the end of a line there is
    /// nothing new to say of it.
    fn is_same_head(&self, connection: &Connection, span: &Span) -> bool {
        let fresh = self.read.get(span.at + span.carried..span.end).unwrap_or_default();
        connection.machine.is_idle()
            && !connection.is_sending()
            && span.end - span.at < self.head_limits.head_bytes_max
            && !fresh.contains(&b'\n')
    }

    /// One request at `read[at..end]`.
    #[inline]
    fn request(&mut self, key: Key, connection: &mut Connection, at: usize, end: usize) -> Step {
        let Serving { read, fields, path, .. } = self;
        let bytes = read.get(at..end).unwrap_or_default();
        let head = match connection.machine.head(bytes, fields, &self.head_limits) {
            Ok(Some(head)) => head,
            Ok(None) => return Step::Partial,
            Err(refusal) => return self.refuse(connection, refusal, end - at),
        };
        let Some(path) = normal_path(&head, path) else {
            connection.machine.give_up();
            return self.refuse(connection, BAD_PATH, end - at);
        };
        connection.requests_left = connection.requests_left.saturating_sub(1);
        connection.client_closes = !head.keep_alive;
        self.requests_count += 1;
        if self.wants_ended {
            let record = Record::of(head.method, path, head.len() as u64);
            connection.work().open = Some(record);
        }
        let rest = bytes.get(head.len()..).unwrap_or_default();
        let (body, used) = match head.framing {
            Framing::None => (RequestBody::NONE, head.len()),
            framing => match plan_body(&*self.service, &self.limits, &head, path) {
                Err(refusal) => {
                    connection.machine.give_up();
                    return self.refuse(connection, refusal, end - at);
                }
                Ok(BodyPlan::None) => (RequestBody::NONE, head.len()),
                Ok(BodyPlan::Whole { bytes_max }) => match connection.machine.whole_body(rest) {
                    Some(body) => {
                        (RequestBody::Whole { bytes: body, trailers: &[] }, head.len() + body.len())
                    }
                    None => {
                        let memory = Memory::none(self.bodies_bytes.clone(), self.limits.bodies_memory_max);
                        let bytes_max = bytes_max.unwrap_or(self.limits.body_bytes_max);
                        let intake = Intake::whole(head.bytes(), length_of(framing), bytes_max, memory);
                        let (used, nothing_came) = (head.len(), rest.is_empty());
                        self.expect_body(connection, Exchange::collecting(key, intake), nothing_came);
                        return Step::Used(used);
                    }
                },
                Ok(BodyPlan::Stream { bytes_max }) => {
                    let bytes_max = bytes_max.unwrap_or(self.limits.body_bytes_max);
                    let exchange = self.lane.open(Exchange::called(key));
                    let (sender, stream) = stream(length_of(framing), read_on(self.lane.mailbox(), exchange));
                    let intake = Intake::stream(sender, bytes_max);
                    self.lane.with(exchange, |exchange| exchange.intake = Some(intake));
                    connection.exchange = Some(exchange);
                    connection.deadline = self.now.ticks + self.window_ticks;
                    connection.work().judged_at = self.now.ticks;
                    if rest.is_empty() {
                        connection.machine.proceed(self.output.bytes());
                    }
                    (RequestBody::Stream(stream), head.len())
                }
            },
        };
        if self.wants_ended
            && let Some(open) = connection.work.as_mut().and_then(|work| work.open.as_mut())
        {
            open.received_bytes = used as u64;
        }
        let parking = Seat { lane: &self.lane, connection: key, exchange: Cell::new(connection.exchange) };
        let peer = connection.peer.address();
        let request = Request { head, path, body, peer, parking: Some(&parking) };
        let reply = call(&*self.service, request, &mut self.response);
        connection.exchange = parking.exchange.get();
        if let Reply::Leave(takeover) = reply {
            self.leave(connection, takeover);
            // Unused, the request is held, from its first byte on.
            return Step::Partial;
        }
        self.replied(key, connection, reply, at + used == end);
        Step::Used(used)
    }

    /// Has a body collected.
    fn expect_body(&mut self, connection: &mut Connection, exchange: Exchange, nothing_came: bool) {
        connection.exchange = Some(self.lane.open(exchange));
        self.begin_window(connection);
        if nothing_came {
            connection.machine.proceed(self.output.bytes());
        }
    }

    /// Bytes of a body at `read[at..end]`.
    fn body(&mut self, key: Key, connection: &mut Connection, at: usize, end: usize) -> Step {
        if !self.takes_body(connection) {
            return Step::Partial;
        }
        let bytes = self.read.get(at..end).unwrap_or_default();
        if !self.make_room(key, connection, bytes.len()) {
            return Step::Partial;
        }
        let bytes = self.read.get(at..end).unwrap_or_default();
        let mut trailers = Vec::new();
        let mut used = 0;
        loop {
            let rest = bytes.get(used..).unwrap_or_default();
            let (taken, piece) = match connection.machine.body(rest, &mut trailers) {
                Ok(stepped) => stepped,
                Err(refusal) => return self.broken_body(connection, refusal, end - at),
            };
            used += taken;
            match piece {
                Piece::NeedMore => break,
                Piece::End => {
                    note_received(connection, used);
                    return self.whole_body(key, connection, used, trailers, at + used == end);
                }
                Piece::Data(data) => {
                    let fed = connection.exchange.and_then(|exchange| {
                        self.lane.with(exchange, |exchange| {
                            exchange.intake.as_mut().map(|intake| intake.feed(data))
                        })
                    });
                    match fed.flatten() {
                        // The end of the body, if it has come, is not the reader's to wait for.
                        Some(Ok(Fed::Paused)) if connection.machine.length_left() != Some(0) => break,
                        Some(Ok(_)) | None => {}
                        Some(Err(fault)) => {
                            connection.machine.give_up();
                            return self.broken_body(connection, fault.refusal(), end - at);
                        }
                    }
                }
            }
        }
        note_received(connection, used);
        if used == 0 { Step::Partial } else { Step::Used(used) }
    }

    /// Makes memory for bytes of a body that is collected; where there is none, the connection waits.
    fn make_room(&mut self, key: Key, connection: &mut Connection, bytes: usize) -> bool {
        let room = connection.exchange.and_then(|exchange| {
            self.lane
                .with(exchange, |exchange| exchange.intake.as_mut().map(|intake| intake.make_room(bytes)))
        });
        let has_room = room.flatten().unwrap_or(true);
        if !has_room && !connection.work().is_starved {
            connection.work().is_starved = true;
            connection.deadline = self.now.ticks + clock::ticks(STARVED_TIME_MAX);
            self.starved.push(key);
        } else if has_room && connection.work().is_starved {
            connection.work().is_starved = false;
            self.begin_window(connection);
        }
        has_room
    }

    /// A body that cannot be read on. If its request was not served yet, it is refused; else its reader was told, and the
    /// response, begun or still to come, is the last.
    fn broken_body(&mut self, connection: &mut Connection, refusal: Refusal, used: usize) -> Step {
        connection.readable = true;
        let is_called = match connection.exchange {
            None => false,
            Some(key) => {
                let was = self.lane.with(key, |exchange| {
                    (exchange.is_called, exchange.intake.take().inspect(Intake::spoil))
                });
                was.is_some_and(|(is_called, _)| is_called)
            }
        };
        if !is_called && connection.machine.owes_response() {
            self.close_exchange(connection);
            return self.refuse(connection, refusal, used);
        }
        Step::Used(used)
    }

    /// A body that has come to its end.
    fn whole_body(
        &mut self,
        key: Key,
        connection: &mut Connection,
        used: usize,
        trailers: flatout_wire::h1::Trailers,
        nothing_behind: bool,
    ) -> Step {
        let Some(exchange) = connection.exchange else {
            return Step::Used(used);
        };
        let intake = self.lane.with(exchange, |exchange| exchange.intake.take()).flatten();
        let whole = intake.and_then(|intake| intake.finish(trailers));
        if let Some((whole, trailers)) = whole {
            self.whole_request(key, connection, &whole, &trailers, nothing_behind);
        }
        Step::Used(used)
    }

    /// A request whose body was collected.
    fn whole_request(
        &mut self,
        key: Key,
        connection: &mut Connection,
        whole: &Whole,
        trailers: &[(Vec<u8>, Vec<u8>)],
        nothing_behind: bool,
    ) {
        if let Some(exchange) = connection.exchange {
            self.lane.with(exchange, |exchange| exchange.is_called = true);
        }
        let Serving { fields, path, head_limits, .. } = self;
        // It was parsed before: the same bytes have the same meaning.
        let Ok(Some(head)) = head::parse(&whole.head, fields, head_limits) else { return };
        let Some(path) = normal_path(&head, path) else { return };
        let body = RequestBody::Whole { bytes: &whole.body, trailers };
        let parking = Seat { lane: &self.lane, connection: key, exchange: Cell::new(connection.exchange) };
        let peer = connection.peer.address();
        let request = Request { head, path, body, peer, parking: Some(&parking) };
        let reply = call(&*self.service, request, &mut self.response);
        if let Reply::Leave(takeover) = reply {
            let mut bytes = whole.head.clone();
            match head.framing {
                Framing::Chunked => {
                    flatout_wire::chunk::chunk_head(whole.body.len(), &mut bytes);
                    bytes.extend_from_slice(&whole.body);
                    bytes.extend_from_slice(if whole.body.is_empty() { b"\r\n" } else { b"\r\n0\r\n\r\n" });
                }
                Framing::Length(_) | Framing::None => bytes.extend_from_slice(&whole.body),
            }
            connection.work().held = bytes;
            self.leave(connection, takeover);
            return;
        }
        self.replied(key, connection, reply, nothing_behind);
    }

    /// Without a request: idle, or waiting for the rest of a head, whose time counts from its first bytes on.
    #[inline]
    fn set_rest_deadline(&mut self, connection: &mut Connection, head_goes_on: bool) {
        if !connection.is_holding() {
            connection.deadline = self.idle_deadline();
        } else if !head_goes_on {
            connection.deadline = self.now.ticks + self.head_ticks;
        }
    }

    /// Moves the held bytes to the front of the read buffer, and says how many.
    #[inline]
    fn take_held(&mut self, connection: &mut Connection) -> usize {
        let Some(work) = connection.work.as_mut() else { return 0 };
        let held = std::mem::take(&mut work.held);
        let count = held.len().min(READ_BYTES);
        if let (Some(room), Some(held)) = (self.read.get_mut(..count), held.get(..count)) {
            room.copy_from_slice(held);
        }
        count
    }

    #[inline]
    fn hold(&mut self, connection: &mut Connection, at: usize, end: usize) {
        if let Some(rest) = self.read.get(at..end).filter(|rest| !rest.is_empty()) {
            connection.work().held.extend_from_slice(rest);
        }
    }
}

const BAD_PATH: Refusal = Refusal { status: Status::BAD_REQUEST, reason: "the path is malformed" };

const TOO_LARGE: Refusal =
    Refusal { status: Status::CONTENT_TOO_LARGE, reason: "the request body is too large" };

/// Makes the exchange of the request that is being served, if its service asks for it.
struct Seat<'a> {
    lane: &'a Lane,
    connection: Key,
    exchange: Cell<Option<Key>>,
}

impl Parking for Seat<'_> {
    fn park(&self) -> ExchangeKey {
        let key = self.exchange.get().unwrap_or_else(|| self.lane.open(Exchange::called(self.connection)));
        self.exchange.set(Some(key));
        ExchangeKey(key)
    }
}

fn note_received(connection: &mut Connection, bytes: usize) {
    let work = connection.work();
    work.moved_bytes += bytes as u64;
    if let Some(open) = &mut work.open {
        open.received_bytes += bytes as u64;
    }
}

fn plan_body(
    service: &dyn Service,
    limits: &Limits,
    head: &Head<'_>,
    path: &[u8],
) -> Result<BodyPlan, Refusal> {
    let plan = catch_unwind(AssertUnwindSafe(|| service.body(head, path)));
    let plan = plan.unwrap_or(BodyPlan::Whole { bytes_max: None });
    match plan {
        BodyPlan::None => {}
        BodyPlan::Whole { bytes_max } | BodyPlan::Stream { bytes_max } => {
            let bytes_max = bytes_max.unwrap_or(limits.body_bytes_max);
            if matches!(head.framing, Framing::Length(length) if length > bytes_max) {
                return Err(TOO_LARGE);
            }
        }
    }
    Ok(plan)
}

/// Calls the service; its panic becomes the answer 500, the connection's last.
#[inline]
fn call(service: &dyn Service, request: Request<'_>, response: &mut Response) -> Reply {
    match catch_unwind(AssertUnwindSafe(|| service.call(request, response))) {
        Ok(reply) => reply,
        Err(_) => {
            *response = panicked();
            Reply::Now
        }
    }
}

/// The path that routing sees: see [`target::normal_path`].
#[inline]
fn normal_path<'a>(head: &Head<'a>, scratch: &'a mut Vec<u8>) -> Option<&'a [u8]> {
    let is_path = !matches!(head.method, Method::Connect) && head.path() != b"*";
    if head.path_needs_care && is_path {
        return target::normal_path(head.path(), scratch).ok();
    }
    Some(head.path())
}

fn length_of(framing: Framing) -> Option<u64> {
    match framing {
        Framing::Length(length) => Some(length),
        Framing::None => Some(0),
        Framing::Chunked => None,
    }
}

/// Asks the worker to read on; a worker that has ended has no connection to go on with.
fn read_on(mailbox: Mailbox, exchange: Key) -> Box<dyn Fn() + Send + Sync> {
    Box::new(move || mailbox.post(Mail::ReadOn(exchange)))
}
