//! A connection of HTTP/1 or FastCGI to an upstream: one request at a time.

use super::fastcgi::{self, Records};
use super::response::{Made, application, authorization};
use super::{
    Arrived, Begin, Behaviour, Fault, LINGER_LOOKS, PAUSE_MS_MAX, Role, TRICKLE_PIECES, draw_leave,
    is_pausing,
};
use crate::message::{Decoder, Framing, Head, Start, chunked};
use crate::model::time::silence_ns_max;
use crate::scene::TIME_MAX;
use crate::socket::{Did, Received, Sent, Socket};
use crate::trace::{Actor, Event};
use crate::tunnel::Tunnel;
use crate::world::Shared;

/// The head after which a connection is a tunnel.
const SWITCHES: &[u8] =
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";

/// What a server sends when nothing has come for too long (RFC 9110, section 15.5.9).
const TIME_IS_OVER: &[u8] = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

pub(super) struct Connection {
    socket: Socket,
    actor: Actor,
    input: Vec<u8>,
    request: Option<Request>,
    output: Vec<u8>,
    sent: usize,
    wakes_at_ns: u64,
    /// Nothing was sent since the last pause: two of them could be longer than a time limit.
    has_paused: bool,
    /// Nothing was received since the last one.
    has_paused_reading: bool,
    /// What happens when all output is sent.
    then: Then,
    /// It has a whole request, and sends nothing until it wakes.
    is_silent: bool,
    /// It has responded to a request.
    has_served: bool,
    /// It closes if no request is there.
    leaves_at_rest: bool,
    /// What the connection has become, when its output is sent.
    tunnel: Option<Tunnel>,
    /// The request of FastCGI whose parameters are not complete; `None`: the connection is one of HTTP/1.
    records: Option<Records>,
}

struct Request {
    arrived: Arrived,
    body: Body,
    behaviour: Behaviour,
    has_responded: bool,
    /// It has left the rest of the body in the socket for a while.
    has_waited: bool,
    /// It asks for a tunnel.
    tunnel: Option<Tunnel>,
}

enum Body {
    Http1(Decoder),
    FastCgi(Records),
}

impl Body {
    fn take(&mut self, input: &mut Vec<u8>) -> Result<(), String> {
        match self {
            Body::Http1(decoder) => decoder.take(input),
            Body::FastCgi(records) => records.take(input, false),
        }
    }

    fn is_complete(&self) -> bool {
        match self {
            Body::Http1(decoder) => decoder.is_complete,
            Body::FastCgi(records) => records.is_complete,
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Body::Http1(decoder) => &decoder.body,
            Body::FastCgi(records) => &records.body,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    /// The next request is read.
    Next,
    /// The connection is closed.
    Close,
    /// Nothing, for longer than any limit.
    Nothing,
    /// The sending side is closed, and what still comes is not read: so servers make sure that their last response arrives.
    Linger,
}

impl Connection {
    /// `input` was received already.
    pub(super) fn new(socket: Socket, actor: Actor, input: Vec<u8>) -> Connection {
        let is_fastcgi = input.first() == Some(&fastcgi::VERSION);
        Connection {
            socket,
            actor,
            input,
            request: None,
            output: Vec::new(),
            sent: 0,
            wakes_at_ns: 0,
            has_paused: false,
            has_paused_reading: false,
            then: Then::Next,
            is_silent: false,
            has_served: false,
            leaves_at_rest: false,
            tunnel: None,
            records: is_fastcgi.then(Records::default),
        }
    }

    /// When it goes on by itself; 0 if it waits for its peer.
    pub(super) fn wakes_at_ns(&self) -> u64 {
        self.wakes_at_ns
    }

    pub(super) fn step(
        &mut self,
        role: Role,
        random: &mut fastrand::Rng,
        shared: &mut Shared<'_>,
    ) -> Result<Did, String> {
        if is_pausing(&mut self.wakes_at_ns, shared) {
            return Ok(Did::Nothing);
        }
        if let Some(tunnel) = self.tunnel.as_mut().filter(|_| self.sent == self.output.len()) {
            let (input, wakes_at_ns) = (&mut self.input, &mut self.wakes_at_ns);
            return tunnel.step(&mut self.socket, input, random, shared, self.actor, wakes_at_ns);
        }
        if std::mem::take(&mut self.is_silent) {
            return self.end_silence(shared);
        }
        if self.sent < self.output.len() && random.bool() {
            match self.send(random, shared) {
                Did::Nothing => {}
                did => return Ok(did),
            }
        }
        if self.respond(role, random, shared) {
            return Ok(Did::Something);
        }
        match self.receive(role, random, shared)? {
            Did::Nothing => {}
            did => return Ok(did),
        }
        Ok(self.send(random, shared))
    }

    /// It was silent for longer than the server waits: the server must have closed the connection.
    fn end_silence(&mut self, shared: &mut Shared<'_>) -> Result<Did, String> {
        match self.socket.receive(&mut self.input, 1) {
            Received::End | Received::Reset => {
                shared.event(self.actor, Event::Closed);
                Ok(Did::Ended)
            }
            Received::Nothing | Received::Bytes(_) => Err(format!(
                "an upstream was silent for {} ms, longer than the read-time, and the server still waits for its response",
                silence_ns_max(&shared.scene.configurations) / 1_000_000
            )),
        }
    }

    fn receive(
        &mut self,
        role: Role,
        random: &mut fastrand::Rng,
        shared: &mut Shared<'_>,
    ) -> Result<Did, String> {
        let reads = match &self.request {
            // It reads a request only when the one before has its response.
            Some(request) => !request.body.is_complete() && request.behaviour.fault != Some(Fault::Deaf),
            None => self.then == Then::Next && self.sent == self.output.len(),
        };
        if !reads {
            return Ok(Did::Nothing);
        }
        // The next request may have come with the end of the one before.
        if self.request.is_none() && !self.input.is_empty() {
            self.read(role, random, shared)?;
            if self.request.is_some() {
                return Ok(Did::Something);
            }
        }
        if shared.scene.upstreams_are_hasty
            && let Some(did) = self.hurry(role, random, shared)?
        {
            return Ok(did);
        }
        // It is slow to read a body.
        if self.request.is_some() && !self.has_paused_reading && random.u8(..24) == 0 {
            self.has_paused_reading = true;
            let pause_ms = random.u64(1..=PAUSE_MS_MAX);
            self.wakes_at_ns = shared.pause(self.actor, pause_ms);
            return Ok(Did::Something);
        }
        let most = self.socket.draw_room(random);
        match self.socket.receive(&mut self.input, most) {
            Received::Nothing => {
                let is_at_rest = self.request.is_none() && self.input.is_empty() && self.has_served;
                if is_at_rest && (self.leaves_at_rest || draw_leave(random, shared)) {
                    return Ok(self.leave(random, shared));
                }
                return Ok(Did::Nothing);
            }
            Received::Bytes(bytes) => {
                self.has_paused_reading = false;
                shared.event(self.actor, Event::Received(bytes));
            }
            Received::End | Received::Reset => {
                shared.event(self.actor, Event::Closed);
                return Ok(Did::Ended);
            }
        }
        self.read(role, random, shared)?;
        Ok(Did::Something)
    }

    fn read(
        &mut self,
        role: Role,
        random: &mut fastrand::Rng,
        shared: &mut Shared<'_>,
    ) -> Result<(), String> {
        if self.request.is_none() {
            let Some((head, body)) = self.read_head()? else { return Ok(()) };
            let Start::Request { method, target } = &head.start else { return Err("no request".to_owned()) };
            let arrived = Arrived::new(role, method, target, |name| head.field(name), shared, self.actor)?;
            if let Body::FastCgi(_) = body {
                arrived.check_length(head.field("content-length"))?;
            }
            let behaviour = Behaviour::draw(random, shared.scene, self.actor);
            // Also if it never gets to respond.
            shared.upstreams_failed |= behaviour.fault.is_some();
            let tunnel = self.asked_tunnel(&arrived, &head, random, shared)?;
            self.request =
                Some(Request { arrived, body, behaviour, has_responded: false, has_waited: false, tunnel });
        }
        let Some(request) = &mut self.request else { return Ok(()) };
        request.body.take(&mut self.input)?;
        request.arrived.check_body(request.body.bytes(), request.body.is_complete(), shared, self.actor)
    }

    /// The tunnel that a request asks for.
    fn asked_tunnel(
        &self,
        arrived: &Arrived,
        head: &Head,
        random: &mut fastrand::Rng,
        shared: &Shared<'_>,
    ) -> Result<Option<Tunnel>, String> {
        if head.field("upgrade").is_none() {
            return Ok(None);
        }
        let may_fail = shared.scene.upstreams_fail;
        let planned = arrived.planned.as_ref();
        let tunnel = planned.and_then(|planned| Tunnel::of_upstream(planned, random, may_fail));
        tunnel.ok_or_else(|| "an upstream got a request to upgrade, which nobody sent".to_owned()).map(Some)
    }

    /// The next request's head, and what reads its body.
    fn read_head(&mut self) -> Result<Option<(Head, Body)>, String> {
        let Some(records) = &mut self.records else {
            let Some((head, length)) = Head::request(&self.input)? else { return Ok(None) };
            self.input.drain(..length);
            let body = Decoder::new(head.framing(Framing::None)?);
            return Ok(Some((head, Body::Http1(body))));
        };
        records.take(&mut self.input, true)?;
        let head = records.head()?;
        Ok(head.map(|head| (head, Body::FastCgi(std::mem::take(records)))))
    }

    /// Makes the response if it is time. Returns whether it did something.
    fn respond(&mut self, role: Role, random: &mut fastrand::Rng, shared: &mut Shared<'_>) -> bool {
        let Some(request) = &mut self.request else { return false };
        if request.has_responded {
            if self.sent == self.output.len() && request.body.is_complete() && self.then == Then::Next {
                self.leaves_at_rest = request.behaviour.leaves && request.behaviour.fault.is_none();
                self.request = None;
                return true;
            }
            return false;
        }
        if request.behaviour.start == Begin::AfterBody && !request.body.is_complete() {
            return false;
        }
        if std::mem::take(&mut request.behaviour.pauses) {
            self.has_paused = true;
            let pause_ms = role.draw_pause_ms(random);
            self.wakes_at_ns = shared.pause(self.actor, pause_ms);
            return true;
        }
        request.has_responded = true;
        self.has_served = true;
        let tunnel = request.tunnel.take().filter(|_| request.behaviour.fault.is_none());
        if let (Some(tunnel), Some(planned)) = (tunnel, &request.arrived.planned) {
            shared.model.switch(planned.id);
            shared.event(self.actor, Event::Responds(planned.id, 101));
            self.output = SWITCHES.to_vec();
            (self.sent, self.then, self.tunnel) = (0, Then::Nothing, Some(tunnel));
            return true;
        }
        let made = match role {
            Role::Application => application(
                &request.arrived,
                request.behaviour,
                self.records.is_none(),
                random,
                shared,
                self.actor,
            ),
            Role::Authorization | Role::Passed => authorization(&request.arrived, request.behaviour),
        };
        request.behaviour.trickles &= made.is_long();
        let (response, end) = match self.records {
            Some(_) => fastcgi::written(random, &cgi(&made)),
            None => {
                let response = written(&made, random);
                let end = response.len();
                (response, end)
            }
        };
        let Behaviour { closes, fault, .. } = request.behaviour;
        // Scripts cannot announce an end: a request could be on its way.
        self.then = if closes && self.records.is_none() { Then::Close } else { Then::Next };
        self.output.clear();
        self.sent = 0;
        match fault {
            None => self.output = response,
            Some(Fault::NoResponse) => {
                self.then = Then::Close;
                if shared.scene.failing_server.is_some() && role == Role::Application {
                    let now = shared.moment();
                    shared.model.server_fails(now);
                }
            }
            Some(Fault::Silence) => {
                self.then = Then::Nothing;
                // Of a request that is still sent, the limits are others.
                let silence_ns = match request.body.is_complete() {
                    true => silence_ns_max(&shared.scene.configurations),
                    false => 3 * TIME_MAX.as_nanos() as u64,
                };
                self.wakes_at_ns = shared.now_ns + silence_ns;
                self.is_silent = request.body.is_complete();
            }
            Some(Fault::Garbage) => {
                // No record of FastCGI either.
                self.output = b"HTTP/1.1 twohundred\r\n\r\n".to_vec();
                self.then = Then::Close;
            }
            Some(Fault::HalfResponse) => {
                let length = random.usize(..end);
                self.output = response;
                self.output.truncate(length);
                self.then = Then::Close;
            }
            Some(Fault::Deaf) => {
                self.output = response;
                self.then = Then::Close;
            }
        }
        true
    }

    /// What a hasty upstream does when it has responded before it has read the body: it leaves the rest in the socket for a while, and then
    /// reads all of it and closes the connection in one step. Between these two, the server cannot send anything.
    fn hurry(
        &mut self,
        role: Role,
        random: &mut fastrand::Rng,
        shared: &mut Shared<'_>,
    ) -> Result<Option<Did>, String> {
        let is_early = |request: &&mut Request| request.has_responded && request.behaviour.fault.is_none();
        let has_sent = self.sent == self.output.len() && self.then == Then::Next;
        let Some(request) = self.request.as_mut().filter(|request| has_sent && is_early(request)) else {
            return Ok(None);
        };
        if !std::mem::replace(&mut request.has_waited, true) {
            let pause_ms = random.u64(1..=PAUSE_MS_MAX);
            self.wakes_at_ns = shared.pause(self.actor, pause_ms);
            return Ok(Some(Did::Something));
        }
        if random.bool() {
            return Ok(None);
        }
        let mut did = None;
        while let Received::Bytes(bytes) = self.socket.receive(&mut self.input, usize::MAX) {
            shared.event(self.actor, Event::Received(bytes));
            self.has_paused_reading = false;
            did = Some(Did::Something);
            self.read(role, random, shared)?;
        }
        let is_over = self.request.as_ref().is_some_and(|request| request.body.is_complete());
        // What is left belongs to the next request.
        if is_over && self.input.is_empty() {
            self.request = None;
            return Ok(Some(self.leave(random, shared)));
        }
        Ok(did)
    }

    /// Closes a connection at rest, or its sending side.
    fn leave(&mut self, random: &mut fastrand::Rng, shared: &mut Shared<'_>) -> Did {
        // Many servers say why. It must not become the response to a request that comes later.
        if self.records.is_none() && random.bool() {
            self.socket.send(TIME_IS_OVER);
        }
        if random.bool() {
            shared.event(self.actor, Event::Close);
            return Did::Ended;
        }
        shared.event(self.actor, Event::CloseWrite);
        self.socket.close_write();
        self.then = Then::Linger;
        Did::Something
    }

    /// Whether its response is sent, and it closes now.
    fn leaves(&self) -> bool {
        let is_over = |request: &Request| {
            let Behaviour { leaves, fault, .. } = request.behaviour;
            leaves && fault.is_none() && request.has_responded && request.body.is_complete()
        };
        self.sent == self.output.len()
            && self.then == Then::Next
            && self.request.as_ref().is_some_and(is_over)
    }

    fn send(&mut self, random: &mut fastrand::Rng, shared: &mut Shared<'_>) -> Did {
        if self.sent == self.output.len() {
            let request = self.request.as_ref();
            let is_over = request.is_some_and(|request| request.has_responded);
            let is_read = request.is_some_and(|request| request.body.is_complete());
            let has_fault = request.is_some_and(|request| request.behaviour.fault.is_some());
            return match self.then {
                // One that keeps the rules reads the whole request before.
                Then::Close if is_over && (has_fault || is_read) => {
                    shared.event(self.actor, Event::Close);
                    Did::Ended
                }
                Then::Nothing if self.wakes_at_ns == 0 => Did::Ended,
                Then::Linger if random.u8(..LINGER_LOOKS) == 0 => {
                    shared.event(self.actor, Event::Close);
                    Did::Ended
                }
                _ => Did::Nothing,
            };
        }
        let trickles = self.request.as_ref().is_some_and(|request| request.behaviour.trickles);
        let pauses = self.request.as_ref().is_some_and(|request| request.behaviour.draw_pause(random));
        if pauses && !self.has_paused {
            self.has_paused = true;
            let pause_ms = random.u64(1..=PAUSE_MS_MAX);
            self.wakes_at_ns = shared.pause(self.actor, pause_ms);
            return Did::Something;
        }
        let rest = &self.output[self.sent..];
        let length = match trickles {
            true => rest.len().min(self.output.len() / TRICKLE_PIECES + 1),
            false => self.socket.draw_piece(random, rest.len()),
        };
        let piece = &rest[..length];
        match self.socket.send(piece) {
            Sent::Bytes(bytes) => {
                self.has_paused = false;
                self.sent += bytes;
                shared.event(self.actor, Event::Sent(bytes));
                if self.leaves() {
                    return self.leave(random, shared);
                }
                Did::Something
            }
            Sent::Full => Did::Nothing,
            Sent::Broken => {
                shared.event(self.actor, Event::Closed);
                Did::Ended
            }
        }
    }
}

/// A response as a script writes it. FastCGI's records, not the response itself, mark its end.
fn cgi(made: &Made) -> Vec<u8> {
    let mut out = format!("Status: {} Status\r\n{}", made.status, made.lines).into_bytes();
    if let (Framing::Length(length), false) = (made.framing, matches!(made.status, 204 | 304)) {
        out.extend_from_slice(format!("Content-Length: {length}\r\n").as_bytes());
    }
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(made.body.unwrap_or_default());
    out
}

/// A response as bytes.
fn written(made: &Made, random: &mut fastrand::Rng) -> Vec<u8> {
    let mut out = Vec::new();
    if made.is_after_interim {
        out.extend_from_slice(b"HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\n");
    }
    out.extend_from_slice(format!("HTTP/1.1 {} Status\r\n{}", made.status, made.lines).as_bytes());
    if made.closes {
        out.extend_from_slice(b"Connection: close\r\n");
    }
    let may_have_framing = !matches!(made.status, 204 | 304);
    match made.framing {
        Framing::Chunked if may_have_framing => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n"),
        Framing::Length(length) if may_have_framing => {
            out.extend_from_slice(format!("Content-Length: {length}\r\n\r\n").as_bytes());
        }
        _ => out.extend_from_slice(b"\r\n"),
    }
    if let Some(body) = &made.body {
        match made.framing {
            Framing::Chunked => out.extend_from_slice(&chunked(random, body)),
            _ => out.extend_from_slice(body),
        }
    }
    out
}
