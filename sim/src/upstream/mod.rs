//! An upstream: accepts connections, reads requests, and responds as drawn: early or late, in one way of framing or another, half or
//! not at all.

mod fastcgi;
mod h1;
mod h2;
mod passed;
mod response;

use std::os::unix::net::UnixListener;
use std::path::Path;

use crate::frames::PREFACE;
use crate::message::is_part_of_body;
use crate::model::{Planned, ruled};
use crate::scene::routes::SHOWN_FIELD;
use crate::scene::{APPLICATION_NUMBERS, REFUSED, Scene};
use crate::socket::{Did, Listener, Received, Socket};
use crate::trace::{Actor, Event};
use crate::world::Shared;

/// The longest pause of an upstream that keeps the rules; three of them are shorter than any time limit for a response.
const PAUSE_MS_MAX: u64 = 3_000;

/// The longest pause of an authorization service. It pauses only once in a response.
const AUTHORIZATION_PAUSE_MS_MAX: u64 = 9_000;

/// A response that trickles has so many bytes, and is sent in so many pieces.
const TRICKLE_BYTES_MIN: usize = 150_000;
const TRICKLE_PIECES: usize = 14;

/// A connection at rest is closed sooner or later: at one of so many looks, or sooner while a request for it may be about to come.
const IDLE_LOOKS: u16 = 20;
const AWAITED_LOOKS: u16 = 4;

/// One that has closed its sending side is closed at one of so many looks.
const LINGER_LOOKS: u8 = 3;

/// What it is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// It responds to clients' requests.
    Application,
    /// It allows them or not.
    Authorization,
    /// It gets TLS connections that the server does not decrypt.
    Passed,
}

impl Role {
    /// Draws how long it pauses before its response.
    fn draw_pause_ms(self, random: &mut fastrand::Rng) -> u64 {
        let is_long = self == Role::Authorization && random.u8(..3) == 0;
        random.u64(1..=if is_long { AUTHORIZATION_PAUSE_MS_MAX } else { PAUSE_MS_MAX })
    }
}

pub(crate) struct Upstream {
    number: usize,
    role: Role,
    random: fastrand::Rng,
    listener: Listener,
    accepted: usize,
    connections: Vec<Connection>,
}

/// A connection, and what speaks on it.
enum Connection {
    /// Nothing is known before its first bytes.
    New(Option<Socket>, Vec<u8>, Actor),
    Http1(Box<h1::Connection>),
    Http2(Box<h2::Connection>),
    Passed(Box<passed::Connection>),
}

/// A request whose head has arrived.
struct Arrived {
    /// `None` for a question of the authorization.
    planned: Option<Planned>,
    allows: bool,
    /// The response that it may confirm.
    etag: Option<String>,
    /// Bytes of its body that were checked.
    checked: usize,
}

/// How a request is treated.
#[derive(Debug, Clone, Copy)]
struct Behaviour {
    /// When the response begins.
    start: Begin,
    pauses: bool,
    /// It pauses again and again in its response.
    is_slow: bool,
    /// It sends a long response in so few pieces, with such pauses between them, that the whole takes longer than any of it may.
    trickles: bool,
    interim: bool,
    closes: bool,
    /// It closes right behind its response, without having said so: a server may do that whenever a connection is at rest.
    leaves: bool,
    fault: Option<Fault>,
}

/// Draws whether a connection at rest is closed now.
fn draw_leave(random: &mut fastrand::Rng, shared: &Shared<'_>) -> bool {
    random.u16(..if shared.has_unread { AWAITED_LOOKS } else { IDLE_LOOKS }) == 0
}

/// Whether a connection or a stream is in a pause. A pause that is over is cleared.
fn is_pausing(wakes_at_ns: &mut u64, shared: &Shared<'_>) -> bool {
    if shared.now_ns < *wakes_at_ns {
        return true;
    }
    *wakes_at_ns = 0;
    false
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
        let listener = Listener::new(listener);
        Upstream { number, role, random, listener, accepted: 0, connections: Vec::new() }
    }

    /// When one of its connections goes on by itself.
    pub(crate) fn wakes_at_ns(&self) -> Option<u64> {
        self.connections.iter().filter_map(Connection::wakes_at_ns).min()
    }

    /// Checks what must be true when everybody has done everything.
    pub(crate) fn check_at_rest(&self) -> Result<(), String> {
        self.connections.iter().try_for_each(|connection| match connection {
            Connection::Http2(connection) => {
                connection.check_at_rest().map_err(|message| format!("upstream {}: {message}", self.number))
            }
            Connection::New(..) | Connection::Http1(_) | Connection::Passed(_) => Ok(()),
        })
    }

    /// Does one thing. Returns whether there was one.
    pub(crate) fn step(&mut self, shared: &mut Shared<'_>) -> Result<bool, String> {
        if let Some(socket) = self.listener.accept() {
            let actor = Actor::Upstream(self.number, self.accepted);
            self.accepted += 1;
            shared.event(actor, Event::Open);
            self.connections.push(match self.role {
                Role::Passed => Connection::Passed(Box::new(passed::Connection::new(socket, actor))),
                Role::Application | Role::Authorization => Connection::New(Some(socket), Vec::new(), actor),
            });
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
    /// When it goes on by itself.
    fn wakes_at_ns(&self) -> Option<u64> {
        match self {
            Connection::New(..) => None,
            Connection::Http1(connection) => Some(connection.wakes_at_ns()).filter(|at| *at > 0),
            Connection::Http2(connection) => connection.wakes_at_ns(),
            Connection::Passed(connection) => Some(connection.wakes_at_ns()).filter(|at| *at > 0),
        }
    }

    fn step(
        &mut self,
        role: Role,
        random: &mut fastrand::Rng,
        shared: &mut Shared<'_>,
    ) -> Result<Did, String> {
        match self {
            Connection::New(..) => Ok(self.begin(random, shared)),
            Connection::Http1(connection) => connection.step(role, random, shared),
            Connection::Http2(connection) => connection.step(role, random, shared),
            Connection::Passed(connection) => connection.step(random, shared),
        }
    }

    /// Finds out the protocol.
    fn begin(&mut self, random: &mut fastrand::Rng, shared: &mut Shared<'_>) -> Did {
        let Connection::New(socket, input, actor) = self else { return Did::Nothing };
        let Some(received_from) = socket else { return Did::Ended };
        match received_from.receive(input, PREFACE.len() - input.len()) {
            Received::Nothing => return Did::Nothing,
            Received::Bytes(bytes) => shared.event(*actor, Event::Received(bytes)),
            Received::End | Received::Reset => {
                shared.event(*actor, Event::Closed);
                return Did::Ended;
            }
        }
        if PREFACE.starts_with(input) && input.len() < PREFACE.len() {
            return Did::Something;
        }
        let (is_h2, input, actor) = (input == PREFACE, std::mem::take(input), *actor);
        let Some(socket) = socket.take() else { return Did::Ended };
        *self = match is_h2 {
            true => Connection::Http2(Box::new(h2::Connection::new(socket, actor, input, random))),
            false => Connection::Http1(Box::new(h1::Connection::new(socket, actor, input))),
        };
        Did::Something
    }
}

impl Arrived {
    /// Checks a request by its head; `field` returns a field's value.
    fn new<'h>(
        role: Role,
        method: &str,
        target: &str,
        field: impl Fn(&str) -> Option<&'h str>,
        shared: &mut Shared<'_>,
        actor: Actor,
    ) -> Result<Arrived, String> {
        let etag = field("if-none-match").map(|etag| etag.trim_matches('"').to_owned());
        if role == Role::Authorization {
            shared.invite_change(shared.now_ns);
            let target = field("x-forwarded-uri").unwrap_or_default();
            let named = target.rsplit_once("?id=").and_then(|(_, id)| id.parse().ok());
            // A server that asks has read the request.
            named.into_iter().for_each(|id| shared.model.heads.read_one(id));
            let allows = !target.starts_with(REFUSED);
            return Ok(Arrived { planned: None, allows, etag, checked: 0 });
        }
        let now = shared.moment();
        let planned = shared.model.head(method, target, field("x-request"), now, shared.scene)?;
        shared.model.request_id(&planned, field("x-request-id"), shared.scene)?;
        if let Actor::Upstream(number, _) = actor {
            shared.model.may_get(number, planned.id)?;
            shared.model.server_gets(number, &planned, now, shared.scene)?;
        }
        let client = field("remote-addr").or(field("x-forwarded-for")).and_then(|text| text.parse().ok());
        if client != planned.address {
            let expected = planned.address;
            return Err(format!(
                "request {}: its client is {expected:?}, but {client:?} for its upstream",
                planned.id
            ));
        }
        let added = field("x-added");
        let (model, scene) = (&shared.model, shared.scene);
        let is_right = model.configurations_of(planned.id, scene).any(|it| it.adds_field == added.is_some());
        if !is_right {
            return Err(format!("request {}: X-Added is {added:?}, against the rules", planned.id));
        }
        let shown = field(SHOWN_FIELD);
        let expected = planned.shown();
        let is_right =
            model.configurations_of(planned.id, scene).any(|it| it.shows_request == shown.is_some());
        if !is_right || shown.is_some_and(|shown| shown != expected) {
            return Err(format!("request {}: X-Shown is {shown:?}, expected {expected:?}", planned.id));
        }
        ruled::check_request(&planned, &field, model.configurations_of(planned.id, scene))?;
        shared.event(actor, Event::SeenHead(planned.id));
        Ok(Arrived { planned: Some(planned), allows: true, etag, checked: 0 })
    }

    /// Checks `CONTENT_LENGTH`: a script reads so many bytes of the body.
    fn check_length(&self, length: Option<&str>) -> Result<(), String> {
        let Some(planned) = &self.planned else { return Ok(()) };
        let is_right = match length {
            Some(length) => length.parse() == Ok(planned.body_length),
            None => planned.body_length == 0,
        };
        match is_right {
            true => Ok(()),
            false => Err(format!(
                "request {}: CONTENT_LENGTH is {length:?}, its body has {} bytes",
                planned.id, planned.body_length
            )),
        }
    }

    /// Checks what has come of its body so far.
    fn check_body(
        &mut self,
        body: &[u8],
        is_complete: bool,
        shared: &mut Shared<'_>,
        actor: Actor,
    ) -> Result<(), String> {
        let Some(planned) = &self.planned else { return Ok(()) };
        let (id, of) = (planned.id, planned.body_length);
        if !is_part_of_body(id, self.checked, &body[self.checked..]) || body.len() > of {
            return Err(format!("an upstream got another body of request {id} than its client sent"));
        }
        self.checked = body.len();
        if is_complete {
            shared.event(actor, Event::SeenRequest(id));
            if body.len() != of {
                let got = body.len();
                return Err(format!(
                    "an upstream got {got} bytes as the whole body of request {id}, which has {of}"
                ));
            }
        }
        Ok(())
    }
}

impl Behaviour {
    /// Whether it pauses before the next piece of its response.
    fn draw_pause(self, random: &mut fastrand::Rng) -> bool {
        self.trickles || random.u8(..if self.is_slow { 2 } else { 24 }) == 0
    }

    fn draw(random: &mut fastrand::Rng, scene: &Scene, actor: Actor) -> Behaviour {
        let faults = [Fault::NoResponse, Fault::HalfResponse, Fault::Silence, Fault::Garbage, Fault::Deaf];
        let fails = scene.upstreams_fail && (random.u8(..6) == 0) != scene.upstreams_fail_mostly;
        let fault = fails.then(|| *random.choice(&faults).expect("some"));
        let fails_always = |number| scene.failing_server.map(|at| APPLICATION_NUMBERS[at]) == Some(number);
        let fault = match actor {
            Actor::Upstream(number, _) if fails_always(number) => Some(Fault::NoResponse),
            _ => fault,
        };
        let is_hasty = scene.upstreams_are_hasty && random.u8(..4) > 0;
        Behaviour {
            start: if is_hasty || random.u8(..4) == 0 { Begin::AfterHead } else { Begin::AfterBody },
            pauses: random.u8(..4) == 0 || scene.responses_are_late && random.bool(),
            is_slow: random.u8(..12) == 0,
            trickles: random.u8(..100) == 0,
            interim: random.u8(..8) == 0,
            closes: random.u8(..10) == 0,
            leaves: random.u8(..16) == 0 || is_hasty && random.bool(),
            fault,
        }
    }
}
