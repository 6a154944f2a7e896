//! A connection of HTTP/1: some requests, one after the other or pipelined.

use super::request::{draw_repeated, draw_request, draw_tunnel};
use super::{
    DISCARDED_BYTES_MAX, PAUSE_MS_MAX, POLL_PAUSE_MS_MAX, REPEATED_MAX, SLOW_CONNECTIONS, SLOW_STEPS,
    draw_count,
};
use crate::message::{Decoder, Framing, Head, Start, body, chunked, decoded};
use crate::model::servers::key_of;
use crate::model::{Excuse, Got, Planned, ResponseFields};
use crate::scene::{Occasion, TIME_MAX};
use crate::socket::{Did, Received, Sent, Socket};
use crate::trace::{Actor, Event};
use crate::tunnel::Tunnel;
use crate::world::Shared;

pub(super) struct Connection {
    socket: Socket,
    requests: Vec<Request>,
    /// All requests one after the other, and how much was sent.
    output: Vec<u8>,
    sent: usize,
    /// All are sent before the first response is there.
    is_pipelined: bool,
    /// All heads are the same, and it pauses between them.
    is_polling: bool,
    /// It has paused before the next request.
    has_waited: bool,
    /// What the connection becomes if its last request is responded to with 101, and whether it was.
    tunnel: Option<Tunnel>,
    has_switched: bool,
    /// Where a rule is broken, and how.
    fault: Option<(usize, Fault)>,
    /// It closes the connection while it waits for a response.
    leaves: bool,
    /// A rule was broken.
    has_failed: bool,
    /// How often the server had been killed when the connection was opened, and the time of that.
    crashes: u32,
    opened_ns: u64,
    /// It never pauses in the middle of something.
    is_steady: bool,
    /// It pauses again and again in the middle of a response.
    reads_slowly: bool,
    /// It has.
    is_slow: bool,
    /// Nothing more can be sent.
    is_broken: bool,
    /// When the client gives up, if it does.
    gives_up_at_ns: Option<u64>,
    input: Vec<u8>,
    /// After its last response it stays until the server closes.
    rests: bool,
    /// Its last request asks the server to close.
    asks_for_end: bool,
    /// When it had its last response, and began to wait for that.
    awaits_end_ns: Option<u64>,
    /// When it had its last response so far, or was opened.
    responded_ns: u64,
    /// The request whose response is next.
    next: usize,
    response: Option<(Head, Decoder)>,
}

struct Request {
    planned: Planned,
    /// Where its bytes begin and end in the output.
    begin: usize,
    head_end: usize,
    end: usize,
    /// It has asked whether its body is wanted, and got no word so far.
    awaits_100: bool,
    /// It has asked.
    expects: bool,
}

/// A client that leaves does so at one of so many steps at which it waits.
const LEAVE_STEPS: u8 = 3;

/// It pauses before one of so many pieces, and of so many pieces of a body where the server changes meanwhile.
const PAUSE_LOOKS: u8 = 16;
const BODY_LOOKS: u8 = 3;

/// One in so many uploads asks whether its body is wanted, and one in so many connections asks the server to close it.
const UPLOADS_PER_EXPECTATION: u8 = 5;
const CONNECTIONS_PER_END: u8 = 6;

/// How long the server waits for a head, or for the next request: a minute, as its limits are, and some.
const HEAD_NS_MAX: u64 = 75_000_000_000;

/// How long the server may take to close a connection as asked: nobody waits for anything then.
const END_NS_MAX: u64 = 2_000_000_000;

#[derive(Debug, Clone, Copy)]
enum Fault {
    /// The connection is closed.
    Close,
    /// Nothing more is sent, and the other side sees the end.
    CloseWrite,
    /// Nothing more is sent, until the client gives up.
    Silence,
    /// Nothing happens for longer than any limit.
    Absence,
}

impl Connection {
    /// Sends or receives something.
    pub(super) fn step(
        &mut self,
        random: &mut fastrand::Rng,
        shared: &mut Shared<'_>,
        actor: Actor,
        wakes_at_ns: &mut u64,
    ) -> Result<Did, String> {
        self.has_failed |= shared.may_be_killed(self.crashes, self.opened_ns);
        if self.gives_up_at_ns.is_some_and(|at| shared.now_ns >= at) {
            self.check_patience(shared)?;
        }
        if let Some(tunnel) = self.tunnel.as_mut().filter(|_| self.has_switched) {
            return tunnel.step(&mut self.socket, &mut self.input, random, shared, actor, wakes_at_ns);
        }
        // In drawn order, so that neither always comes first.
        let order = if random.bool() { [true, false] } else { [false, true] };
        for sends in order {
            let did = match sends {
                true => self.send(random, shared, actor, wakes_at_ns),
                false => self.receive(random, shared, actor, wakes_at_ns)?,
            };
            if did != Did::Nothing {
                return Ok(did);
            }
        }
        Ok(Did::Nothing)
    }

    /// It gives up. A server does not wait so long for a head, nor for another request.
    fn check_patience(&self, shared: &Shared<'_>) -> Result<(), String> {
        let Some(request) = self.requests.get(self.next) else { return Ok(()) };
        let is_in_head = (request.begin..request.head_end).contains(&self.sent) && self.response.is_none();
        let is_known = shared.scene.accepts_at_once() && self.crashes == shared.crashes();
        let waited_ns = shared.now_ns - self.responded_ns;
        match is_in_head && is_known && waited_ns > HEAD_NS_MAX {
            true => Err(format!(
                "the server has waited {} s for the rest of the head of request {}",
                waited_ns / 1_000_000_000,
                request.planned.id
            )),
            false => Ok(()),
        }
    }

    /// After its last response it stays until the server closes.
    pub(super) fn rest(&mut self) {
        self.rests = true;
    }

    /// Whether it has all its responses, and stays.
    pub(super) fn is_resting(&self) -> bool {
        self.rests && self.next == self.requests.len()
    }

    /// When its client gives up, if it does.
    pub(super) fn gives_up_at_ns(&self) -> Option<u64> {
        self.gives_up_at_ns
    }

    /// What its client waits for, for a message.
    pub(super) fn waits_for(&self) -> Option<String> {
        if self.awaits_end_ns.is_some() {
            return Some("the end of a connection that was to be closed after its last response".to_owned());
        }
        let request = self.requests.get(self.next)?;
        Some(format!(
            "the response to request {} ({} {}, {} of {} bytes sent)",
            request.planned.id,
            request.planned.method,
            request.planned.target(),
            self.sent,
            self.output.len()
        ))
    }

    pub(super) fn new(
        socket: Socket,
        requests_max: usize,
        random: &mut fastrand::Rng,
        shared: &mut Shared<'_>,
    ) -> Connection {
        let mut output = Vec::new();
        let is_polling = shared.scene.shares_resources && random.u8(..4) == 0;
        let mut all: Vec<Planned> = if is_polling {
            draw_repeated(random.usize(3..=REPEATED_MAX).min(requests_max), random, shared)
        } else {
            let count = draw_count(random).min(requests_max);
            (0..count).map(|_| draw_request(random, shared)).collect()
        };
        let has_tunnel = !is_polling && shared.scene.may_tunnel() && random.u8(..5) == 0;
        if let Some(last) = all.last_mut().filter(|_| has_tunnel) {
            *last = draw_tunnel(random, shared);
        }
        let may_fail = shared.scene.clients_fail;
        let is_occasion = shared.scene.changes == Occasion::ClientLeaves;
        let tunnel = all.last().and_then(|last| Tunnel::of_client(last, random, may_fail));
        // By a generator of its own.
        let mut fields = fastrand::Rng::with_seed(random.get_seed());
        let asks_for_end = !is_polling && !has_tunnel && fields.u8(..CONNECTIONS_PER_END) == 0;
        let (mut requests, count) = (Vec::with_capacity(all.len()), all.len());
        for (at, mut planned) in all.into_iter().enumerate() {
            planned.address = socket.announced();
            let begin = output.len();
            let expects =
                has_body(&planned) && planned.body_length > 0 && fields.u8(..UPLOADS_PER_EXPECTATION) == 0;
            let lines = match (expects, asks_for_end && at + 1 == count) {
                (false, false) => "",
                (true, false) => "Expect: 100-continue\r\n",
                (false, true) => "Connection: close\r\n",
                (true, true) => "Expect: 100-continue\r\nConnection: close\r\n",
            };
            let head_end = write_request(&planned, lines, random, &mut output);
            requests.push(Request {
                planned,
                begin,
                head_end,
                end: output.len(),
                awaits_100: expects,
                expects,
            });
        }
        for request in &requests {
            shared.model.plan(request.planned.clone());
        }
        let fault = (may_fail && !has_tunnel && random.u8(..3) == 0).then(|| {
            let fault = *random
                .choice(&[Fault::Close, Fault::CloseWrite, Fault::Silence, Fault::Absence])
                .expect("some");
            (random.usize(..=output.len()), fault)
        });
        Connection {
            socket,
            requests,
            output,
            sent: 0,
            is_pipelined: !is_polling && !has_tunnel && random.u8(..3) == 0,
            is_polling,
            has_waited: false,
            tunnel,
            has_switched: false,
            fault,
            leaves: may_fail && !has_tunnel && random.u8(..if is_occasion { 2 } else { 8 }) == 0,
            has_failed: false,
            crashes: shared.crashes(),
            opened_ns: shared.now_ns,
            is_steady: random.bool(),
            reads_slowly: random.u8(..SLOW_CONNECTIONS) == 0,
            is_slow: false,
            is_broken: false,
            gives_up_at_ns: None,
            input: Vec::new(),
            rests: false,
            asks_for_end,
            awaits_end_ns: None,
            responded_ns: shared.now_ns,
            next: 0,
            response: None,
        }
    }

    /// How much may be sent now.
    fn sendable(&self) -> usize {
        let end = match self.is_pipelined {
            true => self.output.len(),
            false => self.requests.get(self.next).map_or(self.sent, |request| match request.awaits_100 {
                true => request.head_end,
                false => request.end,
            }),
        };
        match self.fault {
            Some((at, _)) => end.min(at),
            None => end,
        }
    }

    fn send(
        &mut self,
        random: &mut fastrand::Rng,
        shared: &mut Shared<'_>,
        actor: Actor,
        wakes_at_ns: &mut u64,
    ) -> Did {
        if self.gives_up_at_ns.is_some_and(|at| shared.now_ns >= at) {
            shared.event(actor, Event::Close);
            return self.abandon(shared);
        }
        if self.is_broken {
            return Did::Nothing;
        }
        if let Some((at, fault)) = self.fault
            && self.sent == at
        {
            self.has_failed = true;
            self.is_broken = true;
            self.fault = None;
            return match fault {
                Fault::Close => {
                    shared.event(actor, Event::Close);
                    self.abandon(shared)
                }
                Fault::CloseWrite => {
                    shared.event(actor, Event::CloseWrite);
                    self.socket.close_write();
                    Did::Something
                }
                Fault::Silence => {
                    self.gives_up_at_ns = Some(shared.now_ns + 2 * TIME_MAX.as_nanos() as u64);
                    Did::Something
                }
                Fault::Absence => {
                    let pause_ms = 2 * TIME_MAX.as_millis() as u64;
                    *wakes_at_ns = shared.pause(actor, pause_ms);
                    self.gives_up_at_ns = Some(*wakes_at_ns + TIME_MAX.as_nanos() as u64);
                    Did::Something
                }
            };
        }
        let end = self.sendable();
        if self.sent >= end {
            if self.leaves && self.next < self.requests.len() && random.u8(..LEAVE_STEPS) == 0 {
                self.has_failed = true;
                shared.event(actor, Event::Close);
                return self.abandon(shared);
            }
            return Did::Nothing;
        }
        // Not before the first one: the time for a handshake of TLS is limited.
        let is_next = |next: &Request| next.begin == self.sent;
        let is_between =
            self.is_polling && self.next > 0 && self.requests.get(self.next).is_some_and(is_next);
        let waits = is_between && !self.has_waited && random.bool();
        self.has_waited |= is_between;
        let is_in = |request: &Request| (request.head_end..request.end).contains(&self.sent);
        let is_in_body = self.requests.get(self.next).is_some_and(is_in);
        let looks = match shared.scene.changes {
            Occasion::BodyWaits if is_in_body => BODY_LOOKS,
            _ => PAUSE_LOOKS,
        };
        if (waits || !self.is_steady && random.u8(..looks) == 0) && !self.socket.is_announcing() {
            self.is_slow |= !waits;
            if is_in_body {
                // When the clock has moved, the server has certainly read the head.
                shared.invite_in_body(shared.now_ns + 1);
            }
            let pause_ms = random.u64(1..=if waits { POLL_PAUSE_MS_MAX } else { PAUSE_MS_MAX });
            *wakes_at_ns = shared.pause(actor, pause_ms);
            return Did::Something;
        }
        let length = self.socket.draw_piece(random, end - self.sent);
        let piece = &self.output[self.sent..self.sent + length];
        for request in &self.requests {
            if (self.sent..self.sent + piece.len()).contains(&request.begin) {
                shared.event(actor, Event::Request(request.planned.id, request.planned.summary()));
                shared.begin(request.planned.id, self.opened_ns);
            }
        }
        match self.socket.send(piece) {
            Sent::Bytes(bytes) => {
                self.sent += bytes;
                // Of those behind another request it is not known when the server reads them.
                if let Some(request) = self.requests.get(self.next)
                    && self.socket.is_plain()
                    && !self.is_polling
                    && !shared.may_be_of_former(self.opened_ns)
                    && (self.next == 0 || !shared.scene.has_separate_ends())
                    && (self.sent - bytes..self.sent).contains(&(request.head_end - 1))
                {
                    shared.sent_head(request.planned.id);
                }
                shared.event(actor, Event::Sent(bytes));
                shared.has_unread = true;
                Did::Something
            }
            Sent::Full => Did::Nothing,
            Sent::Broken => {
                self.is_broken = true;
                Did::Something
            }
        }
    }

    fn receive(
        &mut self,
        random: &mut fastrand::Rng,
        shared: &mut Shared<'_>,
        actor: Actor,
        wakes_at_ns: &mut u64,
    ) -> Result<Did, String> {
        let most = self.socket.draw_room(random);
        let received = self.socket.receive(&mut self.input, most);
        match received {
            Received::Nothing => return Ok(Did::Nothing),
            Received::Bytes(bytes) => shared.event(actor, Event::Received(bytes)),
            Received::End => shared.event(actor, Event::Closed),
            Received::Reset => shared.event(actor, Event::Reset),
        }
        self.take_responses(shared, actor)?;
        if self.has_switched {
            return Ok(Did::Something);
        }
        let ended = matches!(received, Received::End | Received::Reset);
        if !ended {
            if self.reads_slowly && self.response.is_some() && random.u8(..SLOW_STEPS) == 0 {
                self.is_slow = true;
                let pause_ms = random.u64(1..=PAUSE_MS_MAX);
                *wakes_at_ns = shared.pause(actor, pause_ms);
            }
            if self.next < self.requests.len() {
                return Ok(Did::Something);
            }
            if !self.input.is_empty() {
                return Err(format!("{} bytes after the last response", self.input.len()));
            }
            // Half a request is no rest.
            let has_sent = self.sent == self.output.len();
            self.rests &= has_sent;
            if self.asks_for_end && has_sent && !self.has_failed {
                self.awaits_end_ns.get_or_insert(shared.now_ns);
                return Ok(Did::Something);
            }
            if self.rests {
                return Ok(Did::Something);
            }
            shared.event(actor, Event::Close);
            return Ok(Did::Ended);
        }
        self.end(received == Received::Reset, shared, actor)?;
        Ok(Did::Ended)
    }

    fn take_responses(&mut self, shared: &mut Shared<'_>, actor: Actor) -> Result<(), String> {
        loop {
            if self.response.is_none() {
                let Some((head, length)) = Head::response(&self.input)? else { return Ok(()) };
                self.input.drain(..length);
                let Start::Response { status } = head.start else { return Err("no response".to_owned()) };
                let request = self.requests.get(self.next).ok_or("a response without a request")?;
                if status == 101 && request.planned.tunnel.is_some() {
                    shared.event(actor, Event::Response(request.planned.id, status));
                    shared.model.ended += 1;
                    self.has_switched = true;
                    return Ok(());
                }
                if (100..200).contains(&status) {
                    self.go_on_after(status)?;
                    continue;
                }
                let framing = match is_without_body(request.planned.method, status) {
                    true => Framing::None,
                    false => head.framing(Framing::Close)?,
                };
                self.response = Some((head, Decoder::new(framing)));
            }
            let Some((_, decoder)) = &mut self.response else { return Ok(()) };
            decoder.take(&mut self.input)?;
            if !decoder.is_complete {
                return Ok(());
            }
            if self.finish(shared, actor)? {
                return Ok(());
            }
        }
    }

    /// A response that is not the last of its request has come.
    fn go_on_after(&mut self, status: u16) -> Result<(), String> {
        match self.requests.get_mut(self.next) {
            Some(request) if status == 100 && !request.expects => {
                Err(format!("request {} got 100 Continue, for which it has not asked", request.planned.id))
            }
            Some(request) if status == 100 => {
                request.awaits_100 = false;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Checks the current response. Returns whether it is the last of the connection.
    fn finish(&mut self, shared: &mut Shared<'_>, actor: Actor) -> Result<bool, String> {
        let (Some((head, decoder)), Some(request)) = (self.response.take(), self.requests.get(self.next))
        else {
            return Ok(true);
        };
        let Start::Response { status } = head.start else { return Ok(true) };
        shared.event(actor, Event::Response(request.planned.id, status));
        let coding =
            head.field("content-encoding").filter(|_| !is_without_body(request.planned.method, status));
        if coding.is_some() && !request.planned.accepts_gzip() {
            return Err(format!("request {}: a coding that it does not accept", request.planned.id));
        }
        let body = decoded(coding, &decoder.body, decoder.is_complete)
            .map_err(|message| format!("request {}: {message}", request.planned.id))?;
        let got = Got {
            status,
            sent: head.field("x-sent"),
            confirmed: head.field("x-confirmed"),
            age: head.field("age").and_then(|age| age.parse().ok()),
            etag: head.field("etag"),
            content_range: head.field("content-range"),
            location: head.field("location"),
            fields: ResponseFields::of(|name| head.field(name)),
            all: if request.planned.has_inputs() { head.pairs().collect() } else { Vec::new() },
            body: &body,
            sent_bytes: decoder.body.len(),
            is_complete: decoder.is_complete,
        };
        let excuse = self.excuse(self.has_failed, shared);
        let now = shared.moment();
        shared.model.response(request.planned.id, &got, excuse, now, shared.scene)?;
        self.next += 1;
        self.responded_ns = shared.now_ns;
        self.has_waited = false;
        let closes = head.field("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
        if self.asks_for_end && self.next == self.requests.len() && !closes && decoder.is_complete {
            let id = request.planned.id;
            return Err(format!(
                "request {id} asks for the end of its connection, its response does not say so"
            ));
        }
        if closes {
            // What was sent behind it is not served. A head that was not read to its end gets a body, whatever its method.
            self.input.clear();
            self.requests.truncate(self.next);
            self.is_broken = true;
        }
        Ok(self.next == self.requests.len())
    }

    /// The connection has ended.
    fn end(&mut self, is_reset: bool, shared: &mut Shared<'_>, actor: Actor) -> Result<(), String> {
        let waited_ns = self.awaits_end_ns.map_or(0, |since_ns| shared.now_ns - since_ns);
        // Its upstream may still read the body, or end the response later.
        let is_over = self.requests.last().is_some_and(|last| !has_body(&last.planned))
            && !shared.scene.has_separate_ends()
            && !shared.upstreams_failed;
        if waited_ns > END_NS_MAX && is_over {
            return Err(format!(
                "the server has closed a connection {} ms after its last response, which was to end it",
                waited_ns / 1_000_000
            ));
        }
        if let Some((head, mut decoder)) = self.response.take() {
            if !is_reset {
                decoder.end();
            }
            self.response = Some((head, decoder));
            self.finish(shared, actor)?;
            // The connection has ended with it: requests behind it were not served.
            return Ok(());
        }
        let Some(request) = self.requests.get(self.next) else { return Ok(()) };
        // Of a body in chunks it is not known whether it is over a limit until it is read. And while the upstream still reads a
        // body, it is not known how much of it will be left to skip. If the response has begun by then, it does not say that
        // it is the last.
        let was_unknown = |request: &Request| {
            request.end - request.begin > DISCARDED_BYTES_MAX
                || shared.scene.is_too_large(request.planned.body_length)
        };
        // A response that had all of its length, when its upstream broke off before the end of its stream.
        let was_cut = self.next > 0 && shared.upstreams_failed;
        let is_excused = self.has_failed || was_cut || self.requests.iter().take(self.next).any(was_unknown);
        let drains = shared.may_be_of_former(self.opened_ns);
        if self.sent <= request.begin && self.next > 0 {
            // It had not begun.
            return match is_excused || drains {
                true => Ok(()),
                false => Err(format!(
                    "the connection ended before request {}, without Connection: close",
                    request.planned.id
                )),
            };
        }
        let excuse = self.excuse(is_excused, shared);
        shared.model.no_response(request.planned.id, excuse, shared.scene)
    }

    fn excuse(&self, client: bool, shared: &Shared<'_>) -> Excuse {
        Excuse {
            client,
            is_slow: self.is_slow || self.has_failed,
            upstream: shared.upstreams_failed,
            drains: shared.may_be_of_former(self.opened_ns),
        }
    }

    /// The client has closed the connection itself.
    fn abandon(&mut self, shared: &mut Shared<'_>) -> Did {
        shared.client_leaves();
        shared.model.ended += 1;
        Did::Ended
    }
}

fn has_body(planned: &Planned) -> bool {
    matches!(planned.method, "POST" | "PUT")
}

/// Whether a response has no body, whatever its fields say.
fn is_without_body(method: &str, status: u16) -> bool {
    method == "HEAD" || matches!(status, 204 | 304)
}

/// Appends a request with these lines more in its head. Returns where its head ends.
fn write_request(planned: &Planned, lines: &str, random: &mut fastrand::Rng, output: &mut Vec<u8>) -> usize {
    let Planned { method, host, .. } = planned;
    let head = format!("{method} {} HTTP/1.1\r\nHost: {host}\r\n", planned.target());
    output.extend_from_slice(head.as_bytes());
    if planned.has_inputs() {
        output.extend_from_slice(format!("X-Request: {}\r\n", planned.named).as_bytes());
        for (name, value) in planned.inputs().fields(planned.is_preflight()) {
            output.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
    }
    if let Some(key) = key_of(planned) {
        output.extend_from_slice(format!("X-Key: key-{key}\r\n").as_bytes());
    }
    if planned.resource.is_some() {
        let named = format!("X-Request: {}\r\n{}", planned.named, planned.asks.lines());
        output.extend_from_slice(named.as_bytes());
    }
    if planned.tunnel.is_some() {
        output.extend_from_slice(b"Connection: Upgrade\r\nUpgrade: websocket\r\n");
    }
    if planned.accepts_gzip() {
        output.extend_from_slice(b"Accept-Encoding: gzip\r\n");
    }
    if let Some(own) = planned.own_id() {
        output.extend_from_slice(format!("X-Request-Id: {own}\r\n").as_bytes());
    }
    output.extend_from_slice(lines.as_bytes());
    let has_body = has_body(planned);
    let body = body(planned.id, planned.body_length);
    let is_chunked = has_body && random.bool();
    let framing = match (has_body, is_chunked) {
        (false, _) => String::new(),
        (true, false) => format!("Content-Length: {}\r\n", body.len()),
        (true, true) => "Transfer-Encoding: chunked\r\n".to_owned(),
    };
    output.extend_from_slice(format!("{framing}\r\n").as_bytes());
    let head_end = output.len();
    if is_chunked {
        output.extend_from_slice(&chunked(random, body));
    } else if has_body {
        output.extend_from_slice(body);
    }
    head_end
}
