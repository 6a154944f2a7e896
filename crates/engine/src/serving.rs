//! What happens to one connection in one turn: read, parse, call, encode, send.
//!
//! ```text
//! pump ── recv ──> read buffer ── consume ──> request | body ──> service ──> Output ── flush ──> socket
//!           ^                        │ what is left of it
//!           └── Connection::held <───┘
//! ```
//!
//! Bytes are parsed where the kernel put them: a connection owns a buffer only for the part of a request that has
//! not ended with the read.

use std::cell::RefCell;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Weak;

use flatout_lane::clock::{self, Moment};
use flatout_lane::slab::Key;
use flatout_lane::socket::{self, Moved};
use flatout_wire::head::{self, Field, HeadLimits};
use flatout_wire::{Framing, Head, Method, Status, target};
use tokio::sync::mpsc::UnboundedSender;

use crate::body;
use crate::connection::{After, Connection, Exchange, Making, Work};
use crate::incoming::{Fed, Incoming, Sink, Whole};
use crate::output::{Asked, Drained, Follow, Output, Prelude, Queue};
use crate::plan::Limits;
use crate::request::{Request, RequestBody};
use crate::response::{Body, Response, Takeover};
use crate::service::{BodyPlan, Reply, Service};
use crate::tasks;
use crate::worker::{Message, Worker};

/// Bytes of the worker's one read buffer, and so of one `recv`.
pub(crate) const READ_BYTES: usize = 64 << 10;
const _: () = assert!(crate::plan::HEAD_BYTES_MAX_CEILING < READ_BYTES);

/// Encoded answers are sent when a turn has made so many bytes of them.
const OUT_BYTES_PER_SEND: u64 = 128 << 10;

/// Reads of one connection before others have their turn.
const READS_PER_TURN: usize = 8;

/// Bytes of an unread body that are skipped for the sake of the next request; over it the connection closes.
const DISCARD_BYTES_MAX: u64 = 256 << 10;

/// Bytes thrown away after the last answer, so that the client can read it before the connection is reset.
const LINGER_BYTES_MAX: u32 = 1 << 20;

/// How long that goes on.
const LINGER_TIME_MAX: std::time::Duration = std::time::Duration::from_secs(2);

/// What is to become of a connection.
pub(crate) enum Fate {
    /// It stays in the lane.
    Keep,
    /// It stays and has more to do at once: others first.
    Again,
    /// It ends.
    Close,
    /// It leaves the lane.
    Take(Takeover),
}

/// All that serving needs besides the connection itself.
pub(crate) struct Serving {
    pub(crate) service: Box<dyn Service>,
    pub(crate) limits: Limits,
    pub(crate) now: Moment,
    pub(crate) prelude: Prelude,
    pub(crate) draining: bool,
    pub(crate) requests_count: u64,
    pub(crate) worker: Weak<RefCell<Worker>>,
    pub(crate) mailbox: UnboundedSender<Message>,
    head_limits: HeadLimits,
    idle_ticks: clock::Ticks,
    head_ticks: clock::Ticks,
    read: Box<[u8]>,
    output: Output,
    response: Response,
    fields: Vec<Field>,
    path: Vec<u8>,
}

/// What one look at the bytes came to.
enum Step {
    /// They are not a whole request yet.
    Partial,
    /// So many were used, and the answer, if any, was encoded.
    Used(usize),
    /// So many were used, and the last answer follows now.
    Last(usize, After),
}

impl Serving {
    pub(crate) fn new(
        service: Box<dyn Service>,
        limits: Limits,
        server_name: Option<&str>,
        worker: Weak<RefCell<Worker>>,
        mailbox: UnboundedSender<Message>,
    ) -> Serving {
        Serving {
            service,
            head_limits: HeadLimits {
                head_bytes_max: limits.head_bytes_max,
                target_bytes_max: limits.target_bytes_max,
                fields_max: limits.headers_max,
            },
            idle_ticks: clock::ticks(limits.idle_time_max),
            head_ticks: clock::ticks(limits.head_time_max),
            limits,
            now: clock::now(),
            prelude: Prelude::new(server_name),
            draining: false,
            requests_count: 0,
            worker,
            mailbox,
            read: vec![0; READ_BYTES].into_boxed_slice(),
            output: Output::default(),
            response: Response::new(),
            fields: Vec::new(),
            path: Vec::new(),
        }
    }

    /// Begins a turn.
    pub(crate) fn tick(&mut self) {
        self.now = clock::now();
        self.prelude.follow(self.now.unix_seconds);
    }

    pub(crate) fn idle_deadline(&self) -> clock::Ticks {
        self.now.ticks + self.idle_ticks
    }

    /// Reads and serves what the socket has.
    pub(crate) fn pump(&mut self, key: Key, connection: &mut Connection) -> Fate {
        for _ in 0..READS_PER_TURN {
            if connection.lingering.is_some() {
                return self.throw_away(connection);
            }
            if !connection.readable || !connection.wants_input() {
                return Fate::Keep;
            }
            let carried = self.take_held(connection);
            let Some(room) = self.read.get_mut(carried..) else { return Fate::Close };
            let room_bytes = room.len();
            let fate = if room_bytes == 0 {
                self.consume(key, connection, 0, carried)
            } else {
                match socket::recv(connection.socket.as_fd(), room) {
                    Moved::Bytes(0) => return Fate::Close,
                    Moved::Bytes(read) => {
                        // A read that came up short emptied the socket: what comes next is a new edge. Only the end
                        // of the peer's side may have come with the same edge, and is read after the bytes.
                        connection.readable = read == room_bytes || connection.read_closed;
                        self.consume(key, connection, carried, carried + read)
                    }
                    Moved::WouldBlock => {
                        connection.readable = false;
                        self.hold(connection, 0, carried);
                        return Fate::Keep;
                    }
                    Moved::Broken => return Fate::Close,
                }
            };
            match fate {
                Fate::Keep => {}
                fate => return fate,
            }
        }
        Fate::Again
    }

    /// Goes on with what is held, after an answer was finished or a reader has caught up.
    pub(crate) fn resume(&mut self, key: Key, connection: &mut Connection) -> Fate {
        if !connection.held.is_empty() && connection.wants_input() {
            let held = self.take_held(connection);
            match self.consume(key, connection, 0, held) {
                Fate::Keep => {}
                fate => return fate,
            }
        }
        self.pump(key, connection)
    }

    /// The reader of a request's body has caught up. How fast the peer sends is judged from now on.
    pub(crate) fn read_on(&mut self, key: Key, connection: &mut Connection) -> Fate {
        if let Some(work) = connection.work.as_mut().filter(|work| work.incoming.is_some()) {
            work.moved_bytes = 0;
            connection.deadline = self.now.ticks + clock::ticks(self.limits.rate_window);
        }
        self.resume(key, connection)
    }

    /// The socket has room again.
    pub(crate) fn writable(&mut self, key: Key, connection: &mut Connection) -> Fate {
        let socket = connection.socket.as_fd();
        let Some(work) = connection.work.as_mut() else { return Fate::Keep };
        let Some(exchange) = work.exchange.as_mut() else { return Fate::Keep };
        if exchange.queue.is_empty() {
            return Fate::Keep;
        }
        let before = exchange.queue.bytes();
        let drained = exchange.queue.drain(socket);
        work.moved_bytes += before - exchange.queue.bytes();
        exchange.wake_body();
        match drained {
            Drained::All => self.settle(key, connection),
            Drained::Full => Fate::Keep,
            Drained::Yield => Fate::Again,
            Drained::Broken => Fate::Close,
        }
    }

    /// The response of a parked connection has come.
    pub(crate) fn answer(&mut self, key: Key, connection: &mut Connection, mut response: Response) -> Fate {
        let Some(asked) = connection.exchange().map(|exchange| exchange.asked) else { return Fate::Keep };
        let asked = self.last_or_not(connection, &response, asked, true);
        let follow = encode(&mut self.output, &mut response, asked, &self.prelude);
        let Some(exchange) = connection.exchange() else { return Fate::Keep };
        exchange.making = match follow {
            Follow::Next => Making::Done(After::Next),
            Follow::Close => Making::Done(After::Close),
            Follow::Take(takeover) => Making::Done(After::Take(takeover)),
            Follow::Stream(body, coding, keep_alive) => {
                exchange.task = Some(tasks::spawn_body(self.worker.clone(), key, body));
                Making::Stream(coding, After::of(keep_alive))
            }
        };
        match self.flush(connection) {
            Drained::Broken => Fate::Close,
            Drained::Yield => Fate::Again,
            Drained::All | Drained::Full => self.settle(key, connection),
        }
    }

    /// Ends an answer whose last byte was sent, and goes on to what comes after it.
    pub(crate) fn settle(&mut self, key: Key, connection: &mut Connection) -> Fate {
        let done = connection
            .exchange()
            .is_some_and(|exchange| exchange.queue.is_empty() && matches!(exchange.making, Making::Done(_)));
        if !done {
            return Fate::Keep;
        }
        let exchange = connection.work.as_mut().and_then(|work| work.exchange.take());
        let Some(mut exchange) = exchange else { return Fate::Keep };
        match std::mem::replace(&mut exchange.making, Making::Response) {
            Making::Done(After::Next) => {
                self.rest(connection);
                // While the server drains, an answer whose head was sent before could not say that it is the last.
                connection.readable |= self.draining;
                match self.resume(key, connection) {
                    Fate::Keep if self.draining && connection.is_idle() => Fate::Close,
                    fate => fate,
                }
            }
            Making::Done(After::Close) => self.close(connection),
            Making::Done(After::Take(takeover)) => Fate::Take(takeover),
            Making::Response | Making::Stream(..) => Fate::Close,
        }
    }

    /// A deadline has come.
    pub(crate) fn expire(&mut self, key: Key, connection: &mut Connection) -> Fate {
        if connection.lingering.is_some() {
            return Fate::Close;
        }
        let window = clock::ticks(self.limits.rate_window);
        let Some(work) = connection.work.as_mut() else {
            if connection.held.is_empty() {
                return Fate::Close;
            }
            return self.refuse(key, connection, Status::REQUEST_TIMEOUT, "the head did not come in time");
        };
        let sending = work.exchange.as_ref().is_some_and(|exchange| !exchange.queue.is_empty());
        let receiving = !work.is_blocked() && work.incoming.as_ref().is_some_and(|body| !body.is_paused());
        let wanted =
            self.limits.rate_min_bytes_per_s.saturating_mul(self.limits.rate_window.as_secs().max(1));
        // What the peer has taken: a send buffer may be full, and report no room, while its reader goes on steadily.
        let waiting = if sending { socket::unacknowledged_bytes(connection.socket.as_fd()) } else { 0 };
        // An answer is judged from its own start, not from a time when there was nothing to take.
        let before = std::mem::replace(&mut work.unacknowledged_bytes, sending.then_some(waiting));
        let taken = (work.moved_bytes + before.unwrap_or(waiting)).saturating_sub(waiting);
        let is_first = sending && before.is_none();
        if (!sending && !receiving) || is_first || taken >= wanted {
            work.moved_bytes = 0;
            connection.deadline = self.now.ticks + window;
            return Fate::Keep;
        }
        match &work.incoming {
            Some(incoming) if incoming.is_awaited() && work.exchange.is_none() => {
                self.refuse(key, connection, Status::REQUEST_TIMEOUT, "the body came too slowly")
            }
            _ => Fate::Close,
        }
    }

    /// Uses up `read[..total]`, of which `carried` bytes were there before.
    fn consume(&mut self, key: Key, connection: &mut Connection, carried: usize, total: usize) -> Fate {
        let mut at = 0;
        let mut last = None;
        let mut again = false;
        // Part of a head was parsed before: without the end of a line there is nothing new to say of it.
        let fresh = self.read.get(carried..total).unwrap_or_default();
        let wait = carried > 0
            && connection.work.is_none()
            && total < self.head_limits.head_bytes_max
            && !fresh.contains(&b'\n');
        while at < total && !wait {
            let step = if connection.incoming().is_some() {
                self.body_bytes(key, connection, at, total)
            } else if connection.work.is_some() {
                Step::Partial
            } else {
                self.request(key, connection, at, total)
            };
            match step {
                Step::Partial => break,
                Step::Used(used) => at += used,
                Step::Last(used, after) => {
                    at += used;
                    last = Some(after);
                    break;
                }
            }
            if self.output.len() >= OUT_BYTES_PER_SEND {
                match self.flush(connection) {
                    Drained::Broken => return Fate::Close,
                    // No event tells that the socket takes more still; the exchange ends the loop.
                    Drained::Yield => again = true,
                    Drained::All | Drained::Full => {}
                }
            }
        }
        self.hold(connection, at, total);
        if connection.work.is_none() && last.is_none() {
            self.set_rest_deadline(connection, carried > 0 && at == 0);
        }
        match self.finish_turn(key, connection, last) {
            Fate::Keep if again => Fate::Again,
            fate => fate,
        }
    }

    /// Sends what the turn has made; an answer that does not fit stays as the connection's exchange.
    fn finish_turn(&mut self, key: Key, connection: &mut Connection, last: Option<After>) -> Fate {
        if !self.output.is_empty() {
            match self.flush(connection) {
                Drained::Broken => return Fate::Close,
                Drained::Yield => {
                    self.set_after(connection, last);
                    return Fate::Again;
                }
                Drained::All | Drained::Full => {}
            }
        }
        match last {
            None => match self.settle(key, connection) {
                // The last answer was sent before the drain began, and only now the rest of its request was read.
                Fate::Keep if self.draining && connection.is_idle() && !connection.readable => Fate::Close,
                fate => fate,
            },
            Some(after) if connection.exchange().is_some() => {
                self.set_after(connection, Some(after));
                self.settle(key, connection)
            }
            Some(After::Take(takeover)) => Fate::Take(takeover),
            Some(_) => self.close(connection),
        }
    }

    fn set_after(&self, connection: &mut Connection, last: Option<After>) {
        if let (Some(exchange), Some(after)) = (connection.exchange(), last) {
            exchange.making = Making::Done(after);
        }
    }

    /// One request at `read[at..total]`.
    fn request(&mut self, key: Key, connection: &mut Connection, at: usize, total: usize) -> Step {
        let Serving { read, fields, path, .. } = self;
        let Some(bytes) = read.get(at..total) else { return Step::Partial };
        let head = match head::parse(bytes, fields, &self.head_limits) {
            Ok(Some(head)) => head,
            Ok(None) => return Step::Partial,
            Err(fault) => return self.last_answer(connection, fault.status(), fault.reason(), total - at),
        };
        let Some(path) = normal_path(&head, path) else {
            return self.last_answer(connection, Status::BAD_REQUEST, "the path is malformed", total - at);
        };
        connection.requests_left = connection.requests_left.saturating_sub(1);
        self.requests_count += 1;
        let rest = bytes.get(head.len()..).unwrap_or_default();
        let mut asked = Asked::of(&head);
        asked.keep_alive &= connection.requests_left > 0;
        let (body, used) = match head.framing {
            Framing::None => (RequestBody::NONE, head.len()),
            framing => match plan_body(&*self.service, &self.limits, &head, path) {
                Err(status) => {
                    let reason = "the request body is too large";
                    return self.last_answer(connection, status, reason, total - at);
                }
                Ok(BodyMode::Whole(bytes_max)) => match framing {
                    Framing::Length(length) if length <= rest.len() as u64 => {
                        let (body, _) = rest.split_at(length as usize);
                        (RequestBody::Whole { bytes: body, trailers: &[] }, head.len() + body.len())
                    }
                    _ => {
                        let whole = Whole { head: head.bytes().to_vec(), ..Whole::default() };
                        let used = head.len();
                        let expects_continue = head.expects_continue && rest.is_empty();
                        let incoming = Incoming::new(framing, bytes_max, Sink::Whole(whole));
                        self.start_body(connection, incoming, expects_continue);
                        return Step::Used(used);
                    }
                },
                Ok(BodyMode::Stream(bytes_max)) => {
                    let (sender, stream) = body::stream(length_of(framing), resume(&self.mailbox, key));
                    let incoming = Incoming::new(framing, bytes_max, Sink::Stream(sender));
                    let expects_continue = head.expects_continue && rest.is_empty();
                    let work = connection.work();
                    work.incoming = Some(incoming);
                    connection.deadline = self.now.ticks + clock::ticks(self.limits.rate_window);
                    if expects_continue {
                        self.output.raw(CONTINUE);
                    }
                    (RequestBody::Stream(stream), head.len())
                }
            },
        };
        let request = Request { head, path, body, peer: connection.peer };
        let reply = call(&*self.service, request, &mut self.response);
        let nothing_behind = at + used == total;
        self.replied(key, connection, reply, asked, nothing_behind, used)
    }

    /// Bytes of a body at `read[at..total]`.
    fn body_bytes(&mut self, key: Key, connection: &mut Connection, at: usize, total: usize) -> Step {
        let Some(bytes) = self.read.get(at..total) else { return Step::Partial };
        let Some(work) = connection.work.as_mut() else { return Step::Partial };
        let is_blocked = work.is_blocked();
        let Some(incoming) = work.incoming.as_mut() else { return Step::Partial };
        if is_blocked || incoming.is_paused() {
            return Step::Partial;
        }
        work.moved_bytes += bytes.len() as u64;
        let used = match incoming.feed(bytes) {
            Ok(Fed::More) => return Step::Used(bytes.len()),
            Ok(Fed::Paused(used)) => return Step::Used(used),
            Ok(Fed::Whole(used)) => used,
            Err(fault) => {
                let awaited = incoming.is_awaited();
                work.incoming = None;
                if awaited {
                    connection.work = None;
                    return self.last_answer(connection, fault.status(), fault.reason(), total - at);
                }
                return self.broken_stream(connection, total - at);
            }
        };
        let whole = work.incoming.take().and_then(Incoming::into_whole);
        if work.exchange.is_none() {
            connection.work = None;
        }
        match whole {
            Some(whole) => self.whole_request(key, connection, whole, used, at + used == total),
            None => Step::Used(used),
        }
    }

    /// A streamed body that cannot be read on: its reader was told. The answer, if it is still to come, is the
    /// last; one that is on its way, or none at all, ends here.
    fn broken_stream(&mut self, connection: &mut Connection, used: usize) -> Step {
        connection.readable = true;
        match connection.exchange() {
            Some(exchange) => {
                exchange.asked.keep_alive = false;
                if let Making::Stream(_, after) | Making::Done(after) = &mut exchange.making {
                    *after = After::Close;
                }
                Step::Used(used)
            }
            None => {
                connection.work = None;
                Step::Last(used, After::Close)
            }
        }
    }

    /// A request whose body was collected.
    fn whole_request(
        &mut self,
        key: Key,
        connection: &mut Connection,
        whole: Whole,
        used: usize,
        nothing_behind: bool,
    ) -> Step {
        let Serving { fields, path, head_limits, .. } = self;
        let Ok(Some(head)) = head::parse(&whole.head, fields, head_limits) else {
            return self.last_answer(connection, Status::BAD_REQUEST, "the head is malformed", used);
        };
        let Some(path) = normal_path(&head, path) else {
            return self.last_answer(connection, Status::BAD_REQUEST, "the path is malformed", used);
        };
        let mut asked = Asked::of(&head);
        asked.keep_alive &= connection.requests_left > 0;
        let body = RequestBody::Whole { bytes: &whole.body, trailers: &whole.trailers };
        let request = Request { head, path, body, peer: connection.peer };
        let reply = call(&*self.service, request, &mut self.response);
        self.replied(key, connection, reply, asked, nothing_behind, used)
    }

    /// The service has answered, or promised to.
    fn replied(
        &mut self,
        key: Key,
        connection: &mut Connection,
        reply: Reply,
        asked: Asked,
        nothing_behind: bool,
        used: usize,
    ) -> Step {
        match reply {
            Reply::Now => {
                let asked = self.last_or_not(connection, &self.response, asked, nothing_behind);
                let follow = encode(&mut self.output, &mut self.response, asked, &self.prelude);
                self.response.reset();
                match follow {
                    Follow::Next if connection.work.is_none() => Step::Used(used),
                    Follow::Next => {
                        self.rest(connection);
                        Step::Used(used)
                    }
                    Follow::Close => Step::Last(used, After::Close),
                    Follow::Take(takeover) => Step::Last(used, After::Take(takeover)),
                    Follow::Stream(body, coding, keep_alive) => {
                        let mut exchange =
                            Exchange::new(asked, Making::Stream(coding, After::of(keep_alive)));
                        exchange.task = Some(tasks::spawn_body(self.worker.clone(), key, body));
                        self.park(connection, exchange);
                        Step::Used(used)
                    }
                }
            }
            Reply::Later(future) => {
                let mut exchange = Exchange::new(asked, Making::Response);
                exchange.task = Some(tasks::spawn_response(self.worker.clone(), key, future));
                self.park(connection, exchange);
                Step::Used(used)
            }
        }
    }

    fn park(&mut self, connection: &mut Connection, exchange: Exchange) {
        connection.deadline = self.now.ticks + clock::ticks(self.limits.rate_window);
        connection.work().exchange = Some(exchange);
    }

    fn start_body(&mut self, connection: &mut Connection, incoming: Incoming, expects_continue: bool) {
        if expects_continue {
            self.output.raw(CONTINUE);
        }
        connection.deadline = self.now.ticks + clock::ticks(self.limits.rate_window);
        connection.work = Some(Box::new(Work { incoming: Some(incoming), ..Work::default() }));
    }

    /// Decides whether an answer is the connection's last, for reasons of our own.
    ///
    /// While the server drains, the last answer is the one behind which nothing more was read.
    #[inline]
    fn last_or_not(
        &self,
        connection: &mut Connection,
        response: &Response,
        mut asked: Asked,
        nothing_behind: bool,
    ) -> Asked {
        if self.draining && nothing_behind && connection.held.is_empty() {
            asked.keep_alive = false;
        }
        let unread = connection.incoming().and_then(|incoming| incoming.length_left());
        if unread.is_some_and(|left| left > DISCARD_BYTES_MAX) && !matches!(response.body(), Body::Stream(_))
        {
            asked.keep_alive = false;
        }
        asked
    }

    /// Answers what is no request, or one that is not read on; the connection closes behind it. The client may
    /// well be sending still, which must not reset the answer away (see [`Serving::close`]).
    fn last_answer(
        &mut self,
        connection: &mut Connection,
        status: Status,
        reason: &str,
        used: usize,
    ) -> Step {
        connection.readable = true;
        let mut response = Response::with_status(status);
        response.header("Content-Type", "text/plain; charset=utf-8");
        response.buffer().extend_from_slice(reason.as_bytes());
        response.buffer().push(b'\n');
        self.output.encode(&mut response, Asked::unknown(), &self.prelude);
        Step::Last(used, After::Close)
    }

    /// The same, when no bytes came but time has passed.
    fn refuse(&mut self, key: Key, connection: &mut Connection, status: Status, reason: &str) -> Fate {
        connection.work = None;
        match self.last_answer(connection, status, reason, 0) {
            Step::Last(_, after) => self.finish_turn(key, connection, Some(after)),
            Step::Partial | Step::Used(_) => Fate::Close,
        }
    }

    /// Sends the output, behind the queue of the connection's exchange if it has one.
    fn flush(&mut self, connection: &mut Connection) -> Drained {
        let socket = connection.socket.as_fd();
        if let Some(exchange) = connection.work.as_mut().and_then(|work| work.exchange.as_mut()) {
            return self.output.flush(socket, &mut exchange.queue);
        }
        let mut queue = Queue::default();
        let drained = self.output.flush(socket, &mut queue);
        if !queue.is_empty() {
            let mut exchange = Exchange::new(Asked::unknown(), Making::Done(After::Next));
            exchange.queue = queue;
            self.park(connection, exchange);
        }
        drained
    }

    /// Between two requests: an unread body is skipped if it is small, and work ends when there is none.
    fn rest(&mut self, connection: &mut Connection) {
        match connection.incoming() {
            // It belongs to the next request.
            Some(incoming) if incoming.is_awaited() => {
                connection.deadline = self.now.ticks + clock::ticks(self.limits.rate_window);
            }
            Some(incoming) => incoming.discard(DISCARD_BYTES_MAX),
            None => {
                connection.work = None;
                connection.deadline = self.idle_deadline();
            }
        }
    }

    /// Without work: idle, or waiting for the rest of a head, whose time counts from its first bytes on.
    #[inline]
    fn set_rest_deadline(&mut self, connection: &mut Connection, head_goes_on: bool) {
        if connection.held.is_empty() {
            connection.deadline = self.idle_deadline();
        } else if !head_goes_on {
            connection.deadline = self.now.ticks + self.head_ticks;
        }
    }

    /// Ends the connection after its last answer. Closing a socket with unread bytes resets it, and a reset may
    /// overtake the answer: so where the client may still be sending, only our side is closed, and what comes is
    /// thrown away for a while.
    fn close(&mut self, connection: &mut Connection) -> Fate {
        let unread = connection.readable || !connection.held.is_empty() || connection.incoming().is_some();
        if !unread {
            return Fate::Close;
        }
        connection.work = None;
        connection.held = Vec::new();
        connection.lingering = Some(LINGER_BYTES_MAX);
        connection.deadline = self.now.ticks + clock::ticks(LINGER_TIME_MAX);
        socket::shutdown_write(connection.socket.as_fd());
        self.throw_away(connection)
    }

    fn throw_away(&mut self, connection: &mut Connection) -> Fate {
        while connection.readable {
            match socket::recv(connection.socket.as_fd(), &mut self.read) {
                Moved::Bytes(0) | Moved::Broken => return Fate::Close,
                Moved::WouldBlock => connection.readable = false,
                Moved::Bytes(read) => {
                    let left = connection.lingering.unwrap_or(0).checked_sub(read as u32);
                    if left.is_none() {
                        return Fate::Close;
                    }
                    connection.lingering = left;
                    connection.readable = read == self.read.len() || connection.read_closed;
                }
            }
        }
        Fate::Keep
    }

    /// Moves the held bytes to the front of the read buffer, and says how many.
    #[inline]
    fn take_held(&mut self, connection: &mut Connection) -> usize {
        if connection.held.is_empty() {
            return 0;
        }
        let held = std::mem::take(&mut connection.held);
        let count = held.len().min(self.read.len());
        if let (Some(room), Some(held)) = (self.read.get_mut(..count), held.get(..count)) {
            room.copy_from_slice(held);
        }
        count
    }

    #[inline]
    fn hold(&mut self, connection: &mut Connection, at: usize, total: usize) {
        if let Some(rest) = self.read.get(at..total).filter(|rest| !rest.is_empty()) {
            connection.held.extend_from_slice(rest);
        }
    }
}

const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

enum BodyMode {
    Whole(u64),
    Stream(u64),
}

fn plan_body(
    service: &dyn Service,
    limits: &Limits,
    head: &Head<'_>,
    path: &[u8],
) -> Result<BodyMode, Status> {
    let plan = catch_unwind(AssertUnwindSafe(|| service.body(head, path)));
    let plan = plan.unwrap_or(BodyPlan::Whole { bytes_max: None });
    let (BodyPlan::Whole { bytes_max } | BodyPlan::Stream { bytes_max }) = plan;
    let bytes_max = bytes_max.unwrap_or(limits.body_bytes_max);
    if matches!(head.framing, Framing::Length(length) if length > bytes_max) {
        return Err(Status::CONTENT_TOO_LARGE);
    }
    Ok(match plan {
        BodyPlan::Whole { .. } => BodyMode::Whole(bytes_max),
        BodyPlan::Stream { .. } => BodyMode::Stream(bytes_max),
    })
}

/// Calls the service; its panic becomes the answer 500, the connection's last.
#[inline]
fn call(service: &dyn Service, request: Request<'_>, response: &mut Response) -> Reply {
    match catch_unwind(AssertUnwindSafe(|| service.call(request, response))) {
        Ok(reply) => reply,
        Err(_) => {
            *response = tasks::panicked();
            Reply::Now
        }
    }
}

/// Encodes an answer. Its body may be the author's own and panic when it is asked for its length, or dropped: then
/// nothing of it stays, and the answer is the one to a panic.
#[inline]
fn encode(output: &mut Output, response: &mut Response, asked: Asked, prelude: &Prelude) -> Follow {
    let before = output.mark();
    match catch_unwind(AssertUnwindSafe(|| output.encode(response, asked, prelude))) {
        Ok(follow) => follow,
        Err(_) => {
            output.back_to(before);
            output.encode(&mut tasks::panicked(), asked, prelude)
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

fn resume(mailbox: &UnboundedSender<Message>, key: Key) -> Box<dyn Fn() + Send + Sync> {
    let mailbox = mailbox.clone();
    Box::new(move || {
        // A worker that has ended has no connection to go on with.
        let _ = mailbox.send(Message::Resume(key));
    })
}
