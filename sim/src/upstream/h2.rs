//! A connection of HTTP/2 to an upstream, by the crate `h2`: several requests at once.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use h2::server::{self, SendResponse};
use h2::{Reason, RecvStream, SendStream};

use super::response::{Made, application, authorization};
use super::{
    Arrived, Begin, Behaviour, Fault, PAUSE_MS_MAX, Role, TRICKLE_BYTES_MIN, TRICKLE_PIECES, draw_leave,
    is_pausing,
};
use crate::carrier::{Carrier, Wire};
use crate::message::Framing;
use crate::scene::TIME_MAX;
use crate::socket::{Did, Socket, draw_piece};
use crate::trace::{Actor, Event};
use crate::world::Shared;

/// The windows of a connection on which much has come already.
const WINDOW_LATER: u32 = 1 << 20;

pub(super) struct Connection {
    wire: Rc<RefCell<Wire>>,
    actor: Actor,
    state: State,
    /// The windows of the upstream, in bytes.
    window: u32,
    streams: Vec<Stream>,
    /// It has said that it accepts no further requests.
    is_leaving: bool,
    has_served: bool,
    /// It closes without a word.
    is_broken: bool,
}

type Driver = server::Connection<Carrier, Bytes>;

enum State {
    Handshake(Pin<Box<dyn Future<Output = Result<Driver, h2::Error>>>>),
    Open(Box<Driver>),
    Ended,
}

/// A request, until its response is sent.
struct Stream {
    arrived: Arrived,
    behaviour: Behaviour,
    /// `None` when it is complete.
    body: Option<RecvStream>,
    received: Vec<u8>,
    unreleased: usize,
    responder: Option<SendResponse<Bytes>>,
    download: Option<Download>,
    wakes_at_ns: u64,
    has_paused: bool,
}

/// A response that is being sent.
struct Download {
    stream: SendStream<Bytes>,
    rest: Bytes,
    /// The stream is reset instead of ended.
    is_half: bool,
}

impl Connection {
    /// `first` was received already.
    pub(super) fn new(
        socket: Socket,
        actor: Actor,
        first: Vec<u8>,
        random: &mut fastrand::Rng,
    ) -> Connection {
        let wire = Wire::new(socket, first, random);
        let window = *random.choice(&[100, 3_000, 20_000, 65_535, 1 << 20]).expect("some");
        let mut builder = server::Builder::new();
        builder.initial_window_size(window).initial_connection_window_size(window.max(65_535));
        builder.max_concurrent_streams(random.u32(1..=8));
        let handshake = builder.handshake(Carrier(wire.clone()));
        Connection {
            wire,
            actor,
            state: State::Handshake(Box::pin(handshake)),
            window,
            streams: Vec::new(),
            is_leaving: false,
            has_served: false,
            is_broken: false,
        }
    }

    /// When one of its streams goes on by itself.
    pub(super) fn wakes_at_ns(&self) -> Option<u64> {
        self.streams.iter().map(|stream| stream.wakes_at_ns).filter(|at| *at > 0).min()
    }

    /// When everybody has done everything, its window is back.
    pub(super) fn check_at_rest(&self) -> Result<(), String> {
        match self.state {
            State::Open(..) if self.streams.is_empty() => self.wire.borrow().window.check(),
            _ => Ok(()),
        }
    }

    pub(super) fn step(
        &mut self,
        role: Role,
        random: &mut fastrand::Rng,
        shared: &mut Shared<'_>,
    ) -> Result<Did, String> {
        self.wire.borrow_mut().draw_moves(random);
        let mut did = self.drive(role, random, shared)?;
        did |= self.go_on(role, random, shared)?;
        did |= self.drive(role, random, shared)?;
        if self.is_broken {
            shared.event(self.actor, Event::Close);
            return Ok(Did::Ended);
        }
        if matches!(self.state, State::Ended) {
            return Ok(Did::Ended);
        }
        let is_at_rest = self.streams.is_empty() && self.has_served && !self.is_leaving;
        if !did && is_at_rest && draw_leave(random, shared) {
            self.leave();
            return Ok(Did::Something);
        }
        Ok(if did { Did::Something } else { Did::Nothing })
    }

    /// Says that it accepts no further requests; the connection ends when those that it has are served.
    fn leave(&mut self) {
        self.is_leaving = true;
        if let State::Open(driver) = &mut self.state {
            driver.graceful_shutdown();
        }
    }

    /// Lets the connection receive and send, and accepts requests. Returns whether something happened.
    fn drive(
        &mut self,
        role: Role,
        random: &mut fastrand::Rng,
        shared: &mut Shared<'_>,
    ) -> Result<bool, String> {
        let mut context = Context::from_waker(Waker::noop());
        let mut did = false;
        let mut accepted = Vec::new();
        match &mut self.state {
            State::Handshake(handshake) => match handshake.as_mut().poll(&mut context) {
                Poll::Ready(Ok(driver)) => (self.state, did) = (State::Open(Box::new(driver)), true),
                Poll::Ready(Err(_)) => (self.state, did) = (State::Ended, true),
                Poll::Pending => {}
            },
            State::Open(driver) => loop {
                if self.window < WINDOW_LATER
                    && self.wire.borrow().socket.is_long()
                    && driver.set_initial_window_size(WINDOW_LATER).is_ok()
                {
                    self.window = WINDOW_LATER;
                }
                match driver.poll_accept(&mut context) {
                    Poll::Ready(Some(Ok(request))) => accepted.push(request),
                    Poll::Ready(Some(Err(_)) | None) => {
                        (self.state, did) = (State::Ended, true);
                        break;
                    }
                    Poll::Pending => break,
                }
            },
            State::Ended => {}
        }
        did |= self.wire.borrow_mut().report(shared, self.actor);
        for (request, responder) in accepted {
            did = true;
            self.accept(role, request, responder, random, shared)?;
        }
        Ok(did)
    }

    fn accept(
        &mut self,
        role: Role,
        request: http::Request<RecvStream>,
        responder: SendResponse<Bytes>,
        random: &mut fastrand::Rng,
        shared: &mut Shared<'_>,
    ) -> Result<(), String> {
        let (head, body) = request.into_parts();
        let target = head.uri.path_and_query().map_or("", |target| target.as_str());
        let field = |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok());
        let arrived = Arrived::new(role, head.method.as_str(), target, field, shared, self.actor)?;
        let behaviour = Behaviour::draw(random, shared.scene, self.actor);
        // Also if it never gets to respond.
        shared.upstreams_failed |= behaviour.fault.is_some();
        self.streams.push(Stream {
            arrived,
            behaviour,
            body: Some(body),
            received: Vec::new(),
            unreleased: 0,
            responder: Some(responder),
            download: None,
            wakes_at_ns: 0,
            has_paused: false,
        });
        Ok(())
    }

    /// Does something for one of the streams.
    fn go_on(
        &mut self,
        role: Role,
        random: &mut fastrand::Rng,
        shared: &mut Shared<'_>,
    ) -> Result<bool, String> {
        let is_long = self.wire.borrow().socket.is_long();
        let count = self.streams.len();
        let first = random.usize(..count.max(1));
        for at in (0..count).map(|at| (first + at) % count) {
            let stream = &mut self.streams[at];
            if is_pausing(&mut stream.wakes_at_ns, shared) {
                continue;
            }
            match stream.go_on(role, is_long, random, shared, self.actor)? {
                Did::Nothing => {}
                Did::Something => return Ok(true),
                Did::Ended => {
                    let stream = self.streams.remove(at);
                    self.has_served = true;
                    match stream.behaviour.fault {
                        Some(Fault::Garbage) => self.is_broken = true,
                        _ if stream.behaviour.closes && !self.is_leaving => self.leave(),
                        _ => {}
                    }
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}

impl Stream {
    /// Does one thing. `is_long`: much has come already, and what remains goes at once.
    fn go_on(
        &mut self,
        role: Role,
        is_long: bool,
        random: &mut fastrand::Rng,
        shared: &mut Shared<'_>,
        actor: Actor,
    ) -> Result<Did, String> {
        if self.behaviour.fault != Some(Fault::Deaf) && self.receive(is_long, random, shared, actor)? {
            return Ok(Did::Something);
        }
        if self.download.is_some() {
            return Ok(self.send(is_long, random, shared, actor));
        }
        let is_complete = self.body.is_none();
        match (&self.responder, self.behaviour.start) {
            (Some(_), Begin::AfterHead) => {}
            (Some(_), Begin::AfterBody) if is_complete || self.behaviour.fault == Some(Fault::Deaf) => {}
            (Some(_), Begin::AfterBody) => return Ok(Did::Nothing),
            // One that keeps the rules reads the whole request.
            (None, _) if is_complete || self.behaviour.fault.is_some() => return Ok(Did::Ended),
            (None, _) => return Ok(Did::Nothing),
        }
        if std::mem::take(&mut self.behaviour.pauses) {
            self.pause(role.draw_pause_ms(random), shared, actor);
            return Ok(Did::Something);
        }
        Ok(self.respond(role, random, shared, actor))
    }

    fn pause(&mut self, pause_ms: u64, shared: &mut Shared<'_>, actor: Actor) {
        self.has_paused = true;
        self.wakes_at_ns = shared.pause(actor, pause_ms);
    }

    /// Reads a piece of the request's body. Returns whether there was one.
    fn receive(
        &mut self,
        is_long: bool,
        random: &mut fastrand::Rng,
        shared: &mut Shared<'_>,
        actor: Actor,
    ) -> Result<bool, String> {
        let Some(body) = &mut self.body else { return Ok(false) };
        if self.unreleased > 0 && random.bool() {
            let released = if is_long { self.unreleased } else { draw_piece(random, self.unreleased) };
            self.unreleased -= released;
            // The stream may have ended.
            let _ = body.flow_control().release_capacity(released);
            return Ok(true);
        }
        let mut context = Context::from_waker(Waker::noop());
        match body.poll_data(&mut context) {
            Poll::Pending if self.unreleased > 0 => {
                let _ = body.flow_control().release_capacity(std::mem::take(&mut self.unreleased));
                Ok(true)
            }
            Poll::Pending => Ok(false),
            Poll::Ready(Some(Ok(bytes))) => {
                self.received.extend_from_slice(&bytes);
                self.unreleased += bytes.len();
                self.arrived.check_body(&self.received, false, shared, actor)?;
                Ok(true)
            }
            // The proxy has reset it: nobody wants a response.
            Poll::Ready(Some(Err(_))) => {
                (self.body, self.responder, self.download) = (None, None, None);
                Ok(true)
            }
            Poll::Ready(None) => {
                // Otherwise the window of the connection never gets it back.
                let _ = body.flow_control().release_capacity(std::mem::take(&mut self.unreleased));
                self.body = None;
                self.arrived.check_body(&self.received, true, shared, actor)?;
                Ok(true)
            }
        }
    }

    /// Makes the response, and sends its head.
    fn respond(
        &mut self,
        role: Role,
        random: &mut fastrand::Rng,
        shared: &mut Shared<'_>,
        actor: Actor,
    ) -> Did {
        let Some(mut responder) = self.responder.take() else { return Did::Nothing };
        match self.behaviour.fault {
            Some(Fault::NoResponse) => {
                responder.send_reset(Reason::INTERNAL_ERROR);
                return Did::Ended;
            }
            Some(Fault::Garbage) => return Did::Ended,
            Some(Fault::Silence) => {
                self.responder = Some(responder);
                self.behaviour.fault = Some(Fault::NoResponse);
                self.wakes_at_ns = shared.now_ns + 3 * TIME_MAX.as_nanos() as u64;
                return Did::Something;
            }
            Some(Fault::HalfResponse | Fault::Deaf) | None => {}
        }
        let made = match role {
            Role::Application => application(&self.arrived, self.behaviour, false, random, shared, actor),
            Role::Authorization | Role::Passed => authorization(&self.arrived, self.behaviour),
        };
        self.behaviour.trickles &= made.is_long();
        if made.is_after_interim {
            let hints = http::Response::builder().status(103).header("link", "</a>; rel=preload").body(());
            // The stream may have ended.
            let _ = responder.send_informational(hints.expect("a valid head"));
        }
        let is_half = self.behaviour.fault == Some(Fault::HalfResponse);
        let body = Bytes::from_static(made.body.unwrap_or_default());
        if is_half && body.is_empty() {
            // With a length of 0, the head would be all of it.
            responder.send_reset(Reason::INTERNAL_ERROR);
            return Did::Ended;
        }
        let ends = !is_half && (made.body.is_none() || body.is_empty() && random.bool());
        let Ok(stream) = responder.send_response(head_of(&made), ends) else { return Did::Ended };
        let rest = if is_half { body.slice(..random.usize(..body.len())) } else { body };
        self.download = (!ends).then_some(Download { stream, rest, is_half });
        Did::Something
    }

    /// Sends a piece of the response.
    fn send(
        &mut self,
        is_long: bool,
        random: &mut fastrand::Rng,
        shared: &mut Shared<'_>,
        actor: Actor,
    ) -> Did {
        if !self.has_paused && self.behaviour.draw_pause(random) {
            self.pause(random.u64(1..=PAUSE_MS_MAX), shared, actor);
            return Did::Something;
        }
        let Some(download) = &mut self.download else { return Did::Nothing };
        let mut context = Context::from_waker(Waker::noop());
        if download.stream.poll_reset(&mut context).is_ready() {
            (self.download, self.body) = (None, None);
            return Did::Something;
        }
        if download.rest.is_empty() {
            match download.is_half {
                true => download.stream.send_reset(Reason::INTERNAL_ERROR),
                // The stream may have ended.
                false => drop(download.stream.send_data(Bytes::new(), true)),
            }
            self.download = None;
            return Did::Something;
        }
        let piece = match self.behaviour.trickles {
            true => download.rest.len().min(TRICKLE_BYTES_MIN / TRICKLE_PIECES),
            false if is_long => download.rest.len(),
            false => draw_piece(random, download.rest.len()),
        };
        download.stream.reserve_capacity(piece);
        match download.stream.poll_capacity(&mut context) {
            Poll::Ready(Some(Ok(0))) | Poll::Pending => Did::Nothing,
            Poll::Ready(Some(Ok(capacity))) => {
                self.has_paused = false;
                let piece = download.rest.split_to(capacity.min(download.rest.len()));
                let ends = download.rest.is_empty() && !download.is_half && random.bool();
                if download.stream.send_data(piece, ends).is_err() || ends {
                    self.download = None;
                }
                Did::Something
            }
            Poll::Ready(Some(Err(_)) | None) => {
                self.download = None;
                Did::Something
            }
        }
    }
}

fn head_of(made: &Made) -> http::Response<()> {
    let mut response = http::Response::builder().status(made.status);
    for line in made.lines.lines() {
        if let Some((name, value)) = line.split_once(": ") {
            response = response.header(name, value);
        }
    }
    if let Framing::Length(length) = made.framing
        && !matches!(made.status, 204 | 304)
    {
        response = response.header("content-length", length);
    }
    response.body(()).expect("a response that was drawn is valid")
}
