//! An upstream: accepts connections, reads requests, and responds as drawn: early or late, in one way of framing or another, half or
//! not at all.

use std::os::unix::net::UnixListener;
use std::path::Path;

use crate::message::{Decoder, Framing, Head, Start, begins_body, body, chunked};
use crate::model::cache::{PLAIN_RESOURCES, Says};
use crate::model::{End, Planned, Sent as SentResponse};
use crate::scene::{REFUSED, TIME_MAX};
use crate::socket::{Did, Received, Sent, Socket, draw_piece, draw_room};
use crate::trace::{Actor, Event};
use crate::world::Shared;

/// The longest pause of an upstream that keeps the rules; shorter than any time limit for a response.
const PAUSE_MS_MAX: u64 = 3_000;

/// A connection at rest is closed sooner or later: at one of so many looks.
const IDLE_LOOKS: u16 = 400;

/// What it is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// It responds to clients' requests.
    Application,
    /// It allows them or not.
    Authorization,
}

pub(crate) struct Upstream {
    number: usize,
    role: Role,
    random: fastrand::Rng,
    listener: UnixListener,
    accepted: usize,
    connections: Vec<Connection>,
}

struct Connection {
    socket: Socket,
    actor: Actor,
    input: Vec<u8>,
    request: Option<Request>,
    output: Vec<u8>,
    sent: usize,
    wakes_at_ns: u64,
    /// Nothing was sent since the last pause: two of them could be longer than a time limit.
    has_paused: bool,
    /// What happens when all output is sent.
    then: Then,
    /// It has responded to a request.
    has_served: bool,
}

struct Request {
    /// `None` for a question of the authorization.
    planned: Option<Planned>,
    allows: bool,
    /// The response that it may confirm.
    etag: Option<String>,
    body: Decoder,
    behaviour: Behaviour,
    has_responded: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    /// The next request is read.
    Next,
    /// The connection is closed.
    Close,
    /// Nothing, for longer than any limit.
    Nothing,
}

/// How a request is treated.
#[derive(Debug, Clone, Copy)]
struct Behaviour {
    /// When the response begins.
    start: Begin,
    pauses: bool,
    interim: bool,
    closes: bool,
    fault: Option<Fault>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Begin {
    AfterHead,
    AfterBody,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// It closes before it has responded.
    NoResponse,
    /// It closes in the middle of its response.
    HalfResponse,
    /// It never responds.
    Silence,
    /// What it sends is no HTTP.
    Garbage,
    /// It responds and closes without reading the body.
    Deaf,
}

impl Upstream {
    pub(crate) fn new(number: usize, role: Role, path: &Path, random: fastrand::Rng) -> Upstream {
        let listener = UnixListener::bind(path).expect("a free path");
        listener.set_nonblocking(true).expect("a listener that does not block");
        Upstream { number, role, random, listener, accepted: 0, connections: Vec::new() }
    }

    /// When one of its connections goes on by itself.
    pub(crate) fn wakes_at_ns(&self) -> Option<u64> {
        self.connections.iter().map(|connection| connection.wakes_at_ns).filter(|at| *at > 0).min()
    }

    /// Does one thing. Returns whether there was one.
    pub(crate) fn step(&mut self, shared: &mut Shared<'_>) -> Result<bool, String> {
        if let Ok((stream, _)) = self.listener.accept() {
            let actor = Actor::Upstream(self.number, self.accepted);
            self.accepted += 1;
            shared.event(actor, Event::Open);
            self.connections.push(Connection::new(Socket::new(stream), actor));
            return Ok(true);
        }
        let count = self.connections.len();
        let first = if count > 0 { self.random.usize(..count) } else { 0 };
        for at in (first..count).chain(0..first) {
            match self.connections[at].step(self.role, &mut self.random, shared)? {
                Did::Nothing => {}
                Did::Something => return Ok(true),
                Did::Ended => {
                    self.connections.swap_remove(at);
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}

impl Connection {
    fn new(socket: Socket, actor: Actor) -> Connection {
        Connection {
            socket,
            actor,
            input: Vec::new(),
            request: None,
            output: Vec::new(),
            sent: 0,
            wakes_at_ns: 0,
            has_paused: false,
            then: Then::Next,
            has_served: false,
        }
    }

    fn step(
        &mut self,
        role: Role,
        random: &mut fastrand::Rng,
        shared: &mut Shared<'_>,
    ) -> Result<Did, String> {
        if shared.now_ns < self.wakes_at_ns {
            return Ok(Did::Nothing);
        }
        self.wakes_at_ns = 0;
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

    fn receive(
        &mut self,
        role: Role,
        random: &mut fastrand::Rng,
        shared: &mut Shared<'_>,
    ) -> Result<Did, String> {
        let reads = match &self.request {
            // It reads a request only when the one before has its response.
            Some(request) => !request.body.is_complete && request.behaviour.fault != Some(Fault::Deaf),
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
        let most = draw_room(random);
        match self.socket.receive(&mut self.input, most) {
            Received::Nothing => {
                let is_at_rest = self.request.is_none() && self.input.is_empty() && self.has_served;
                if is_at_rest && random.u16(..IDLE_LOOKS) == 0 {
                    shared.event(self.actor, Event::Close);
                    return Ok(Did::Ended);
                }
                return Ok(Did::Nothing);
            }
            Received::Bytes(bytes) => shared.event(self.actor, Event::Received(bytes)),
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
            let Some((head, length)) = Head::request(&self.input)? else { return Ok(()) };
            self.input.drain(..length);
            let Start::Request { method, target } = &head.start else { return Err("no request".to_owned()) };
            let (planned, allows) = match role {
                Role::Application => {
                    let planned = {
                        let (named, now) = (head.field("x-request"), shared.moment());
                        shared.model.head(method, target, named, now, shared.scene)?
                    };
                    let added = head.field("x-added");
                    let mut adds =
                        shared.scene.configurations.iter().map(|configuration| configuration.adds_field);
                    if added.is_some() && !adds.clone().any(|adds| adds)
                        || added.is_none() && adds.all(|adds| adds)
                    {
                        return Err(format!(
                            "request {}: X-Added is {added:?}, against the rules",
                            planned.id
                        ));
                    }
                    shared.event(self.actor, Event::SeenHead(planned.id));
                    (Some(planned), true)
                }
                Role::Authorization => {
                    (None, !head.field("x-forwarded-uri").unwrap_or_default().starts_with(REFUSED))
                }
            };
            let body = Decoder::new(head.framing(Framing::None)?);
            let behaviour = Behaviour::draw(random, shared.scene.upstreams_fail);
            // Also if it never gets to respond.
            shared.upstreams_failed |= behaviour.fault.is_some();
            let etag = head.field("if-none-match").map(|etag| etag.trim_matches('"').to_owned());
            self.request = Some(Request { planned, allows, etag, body, behaviour, has_responded: false });
        }
        let Some(request) = &mut self.request else { return Ok(()) };
        request.body.take(&mut self.input)?;
        let Some(planned) = &request.planned else { return Ok(()) };
        if !begins_body(planned.id, &request.body.body) || request.body.body.len() > planned.body_length {
            return Err(format!(
                "an upstream got another body of request {} than its client sent",
                planned.id
            ));
        }
        if request.body.is_complete {
            shared.event(self.actor, Event::SeenRequest(planned.id));
            if request.body.body.len() != planned.body_length {
                let (got, of) = (request.body.body.len(), planned.body_length);
                return Err(format!(
                    "an upstream got {got} bytes as the whole body of request {}, which has {of}",
                    planned.id
                ));
            }
        }
        Ok(())
    }

    /// Makes the response if it is time. Returns whether it did something.
    fn respond(&mut self, role: Role, random: &mut fastrand::Rng, shared: &mut Shared<'_>) -> bool {
        let Some(request) = &mut self.request else { return false };
        if request.has_responded {
            if self.sent == self.output.len() && request.body.is_complete && self.then == Then::Next {
                self.request = None;
                return true;
            }
            return false;
        }
        if request.behaviour.start == Begin::AfterBody && !request.body.is_complete {
            return false;
        }
        if std::mem::take(&mut request.behaviour.pauses) {
            self.has_paused = true;
            let pause_ms = random.u64(1..=PAUSE_MS_MAX);
            shared.event(self.actor, Event::Pause(pause_ms));
            self.wakes_at_ns = shared.now_ns + pause_ms * 1_000_000;
            return true;
        }
        request.has_responded = true;
        self.has_served = true;
        let response = match role {
            Role::Application => application(request, random, shared, self.actor),
            Role::Authorization => authorization(request),
        };
        let Behaviour { closes, fault, .. } = request.behaviour;
        self.then = if closes { Then::Close } else { Then::Next };
        self.output.clear();
        self.sent = 0;
        match fault {
            None => self.output = response,
            Some(Fault::NoResponse) => self.then = Then::Close,
            Some(Fault::Silence) => {
                self.then = Then::Nothing;
                self.wakes_at_ns = shared.now_ns + 3 * TIME_MAX.as_nanos() as u64;
            }
            Some(Fault::Garbage) => {
                self.output = b"HTTP/1.1 twohundred\r\n\r\n".to_vec();
                self.then = Then::Close;
            }
            Some(Fault::HalfResponse) => {
                let length = random.usize(..response.len());
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

    fn send(&mut self, random: &mut fastrand::Rng, shared: &mut Shared<'_>) -> Did {
        if self.sent == self.output.len() {
            let request = self.request.as_ref();
            let is_over = request.is_some_and(|request| request.has_responded);
            let is_read = request.is_some_and(|request| request.body.is_complete);
            let has_fault = request.is_some_and(|request| request.behaviour.fault.is_some());
            return match self.then {
                // One that keeps the rules reads the whole request before.
                Then::Close if is_over && (has_fault || is_read) => {
                    shared.event(self.actor, Event::Close);
                    Did::Ended
                }
                Then::Nothing if self.wakes_at_ns == 0 => Did::Ended,
                _ => Did::Nothing,
            };
        }
        if !self.has_paused && random.u8(..24) == 0 {
            self.has_paused = true;
            let pause_ms = random.u64(1..=PAUSE_MS_MAX);
            shared.event(self.actor, Event::Pause(pause_ms));
            self.wakes_at_ns = shared.now_ns + pause_ms * 1_000_000;
            return Did::Something;
        }
        let rest = &self.output[self.sent..];
        match self.socket.send(&rest[..draw_piece(random, rest.len())]) {
            Sent::Bytes(bytes) => {
                self.has_paused = false;
                self.sent += bytes;
                shared.event(self.actor, Event::Sent(bytes));
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

impl Behaviour {
    fn draw(random: &mut fastrand::Rng, may_fail: bool) -> Behaviour {
        let faults = [Fault::NoResponse, Fault::HalfResponse, Fault::Silence, Fault::Garbage, Fault::Deaf];
        let fault = (may_fail && random.u8(..6) == 0).then(|| *random.choice(&faults).expect("some"));
        Behaviour {
            start: if random.u8(..4) == 0 { Begin::AfterHead } else { Begin::AfterBody },
            pauses: random.u8(..4) == 0,
            interim: random.u8(..8) == 0,
            closes: random.u8(..6) == 0,
            fault,
        }
    }
}

/// The response to a client's request.
fn application(
    request: &Request,
    random: &mut fastrand::Rng,
    shared: &mut Shared<'_>,
    actor: Actor,
) -> Vec<u8> {
    let Some(planned) = &request.planned else { return Vec::new() };
    let confirmed = request.etag.as_ref().filter(|_| planned.resource.is_some() && random.bool());
    let is_plain = planned.resource.is_some_and(|resource| resource < PLAIN_RESOURCES);
    let status = match (planned.resource, confirmed) {
        (_, Some(_)) => 304,
        (Some(_), None) if is_plain => 200,
        (Some(_), None) => *random.choice(&[200, 200, 200, 200, 200, 201, 204, 404, 500]).expect("some"),
        (None, None) => *random.choice(&[200, 200, 200, 201, 204, 304, 404, 500]).expect("some"),
    };
    let drawn = Says::draw(random, planned);
    // The cookie of a 304 would be its client's only.
    let says = Says { sets_cookie: drawn.sets_cookie && confirmed.is_none(), ..drawn };
    let body_length = match random.u8(..5) {
        0 => 0,
        1 => random.usize(1..=100),
        2 => random.usize(1..=16_384),
        3 => random.usize(1..=70_000),
        _ => random.usize(1..=300_000),
    };
    let framing = match random.u8(..3) {
        0 => Framing::Chunked,
        1 if request.behaviour.closes => Framing::Close,
        _ => Framing::Length(body_length),
    };
    let has_body = planned.method != "HEAD" && !matches!(status, 204 | 304);
    let body_tag = random.u32(..);
    let end = match request.behaviour.fault {
        Some(Fault::HalfResponse) if framing == Framing::Close => End::Unknown,
        Some(Fault::HalfResponse) => End::Cut,
        _ => End::Whole(body_length),
    };
    let name = shared.model.respond(
        planned.id,
        SentResponse { status, body_tag, end, says: says.clone(), responded: shared.moment() },
    );
    shared.event(actor, Event::Responds(planned.id, status));
    let mut out = Vec::new();
    if request.behaviour.interim {
        out.extend_from_slice(b"HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\n");
    }
    let field = if confirmed.is_some() { "X-Confirmed" } else { "X-Sent" };
    out.extend_from_slice(format!("HTTP/1.1 {status} Status\r\n{field}: {name}\r\n").as_bytes());
    if planned.resource.is_some() {
        let etag = confirmed.unwrap_or(&name);
        out.extend_from_slice(format!("ETag: \"{etag}\"\r\n{}", says.lines()).as_bytes());
    }
    if request.behaviour.closes {
        out.extend_from_slice(b"Connection: close\r\n");
    }
    let may_have_framing = !matches!(status, 204 | 304);
    match framing {
        Framing::Chunked if may_have_framing => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n"),
        Framing::Length(length) if may_have_framing => {
            out.extend_from_slice(format!("Content-Length: {length}\r\n\r\n").as_bytes());
        }
        _ => out.extend_from_slice(b"\r\n"),
    }
    if has_body {
        let body = body(body_tag, body_length);
        match framing {
            Framing::Chunked => out.extend_from_slice(&chunked(random, &body)),
            _ => out.extend_from_slice(&body),
        }
    }
    out
}

/// The response of the authorization service.
fn authorization(request: &Request) -> Vec<u8> {
    let (status, text) = if request.allows { (200, "") } else { (403, "refused") };
    let closes = if request.behaviour.closes { "Connection: close\r\n" } else { "" };
    format!("HTTP/1.1 {status} Status\r\n{closes}Content-Length: {}\r\n\r\n{text}", text.len()).into_bytes()
}
