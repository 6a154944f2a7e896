//! A connection of HTTP/2: some requests at once, by the crate `h2`, which shares no line with the server. It is polled by hand: whatever
//! it does, it does in a step of its client.

use std::cell::RefCell;
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use h2::client::{self, ResponseFuture, SendRequest};
use h2::{Reason, RecvStream, SendStream};

use super::request::{draw_request, draw_unwanted};
use super::{
    PAUSE_MS_MAX, REQUESTS_MAX, SLOW_CONNECTIONS, SLOW_PAUSES_MAX, SLOW_STEPS, UNWANTED_MAX, UNWANTED_MIN,
    draw_count,
};
use crate::carrier::{Carrier, Wire};
use crate::message::{body, decoded};
use crate::model::servers::key_of;
use crate::model::{Excuse, Got, Planned, ResponseFields};
use crate::scene::TIME_MAX;
use crate::socket::{Did, Socket, draw_piece};
use crate::trace::{Actor, Event};
use crate::world::Shared;

/// Of a client whose windows stay as they are, a response has at most so many.
const WINDOWS_PER_RESPONSE: usize = 20;

/// The windows of a connection on which much has come already.
const WINDOW_LATER: u32 = 1 << 20;

pub(super) struct Connection {
    wire: Rc<RefCell<Wire>>,
    state: State,
    /// The windows of the client, in bytes.
    window: u32,
    /// Requests that were not sent yet; the last is the next.
    planned: Vec<Planned>,
    streams: Vec<Stream>,
    /// Unfinished bodies of requests that already have their responses.
    leftovers: Vec<Upload>,
    /// Such bodies are sent to their end. Otherwise their streams are reset.
    sends_on: bool,
    /// How many may be open at once.
    streams_max: usize,
    /// What goes wrong, and how many steps before that.
    fault: Option<(u32, Fault)>,
    /// After its last response it stays until the server closes.
    rests: bool,
    /// It reads only when it can send nothing more: as much as possible is on its way to streams that the server has ended.
    reads_late: bool,
    /// The client does not read: until then.
    deaf_until_ns: Option<u64>,
    has_failed: bool,
    /// How often the server had been killed when the connection was opened, and the time of that.
    crashes: u32,
    opened_ns: u64,
    /// It never pauses in the middle of something.
    is_steady: bool,
    /// How often it may pause again and again.
    slow_pauses_left: u8,
    /// It has.
    is_slow: bool,
    gives_up_at_ns: Option<u64>,
}

type Handshake = Pin<Box<dyn Future<Output = Result<(SendRequest<Bytes>, Driver), h2::Error>>>>;
type Driver = client::Connection<Carrier, Bytes>;

enum State {
    Handshake(Handshake),
    Open(SendRequest<Bytes>, Box<Driver>),
    /// With the reason that the server gave, if it did.
    Ended(Option<Reason>),
}

/// A request that was sent, until its response has come.
struct Stream {
    planned: Planned,
    upload: Option<Upload>,
    response: Option<ResponseFuture>,
    head: Option<http::response::Parts>,
    body: Option<RecvStream>,
    received: Vec<u8>,
    /// Received bytes for which the server got no credit yet.
    unreleased: usize,
}

struct Upload {
    stream: SendStream<Bytes>,
    rest: Bytes,
}

#[derive(Debug, Clone, Copy)]
enum Fault {
    /// The connection is closed.
    Close,
    /// A stream is reset.
    Cancel,
    /// Nothing is read for longer than any limit.
    Deafness,
    /// Nothing is sent any more.
    Silence,
}

/// How a stream goes on.
enum Progress {
    None,
    Some,
    Complete,
    Failed(h2::Error),
}

impl Connection {
    pub(super) fn new(
        socket: Socket,
        requests_max: usize,
        random: &mut fastrand::Rng,
        shared: &mut Shared<'_>,
    ) -> Connection {
        // More of them than fit into the window of the connection.
        let is_unwanted = random.u8(..8) == 0;
        let count = if is_unwanted { random.usize(UNWANTED_MIN..=UNWANTED_MAX) } else { draw_count(random) };
        let count = count.min(requests_max);
        let draw = if is_unwanted { draw_unwanted } else { draw_request };
        let mut planned: Vec<Planned> = (0..count).map(|_| draw(random, shared)).collect();
        let window = *random.choice(&[100, 3_000, 20_000, 65_535, 1 << 20]).expect("some");
        let has_uploads = planned.iter().any(|request| request.body_length > 0);
        for request in &mut planned {
            request.address = socket.announced();
            if has_uploads {
                request.response_bytes_max = WINDOWS_PER_RESPONSE * window as usize;
            }
            shared.model.plan(request.clone());
        }
        let wire = Wire::new(socket, Vec::new(), random);
        let mut builder = client::Builder::new();
        builder.initial_window_size(window).initial_connection_window_size(window.max(65_535));
        let handshake = Box::pin(builder.handshake(Carrier(wire.clone())));
        let fault = (shared.scene.clients_fail && random.u8(..3) == 0).then(|| {
            let all = [Fault::Close, Fault::Cancel, Fault::Deafness, Fault::Silence];
            (random.u32(..300), *random.choice(&all).expect("some"))
        });
        Connection {
            wire,
            state: State::Handshake(handshake),
            window,
            planned,
            streams: Vec::new(),
            leftovers: Vec::new(),
            sends_on: is_unwanted && random.bool(),
            rests: false,
            streams_max: random.usize(1..=REQUESTS_MAX),
            reads_late: is_unwanted && random.u8(..3) > 0,
            fault,
            deaf_until_ns: None,
            has_failed: false,
            crashes: shared.crashes(),
            opened_ns: shared.now_ns,
            is_steady: random.bool(),
            slow_pauses_left: if random.u8(..SLOW_CONNECTIONS) == 0 { SLOW_PAUSES_MAX } else { 0 },
            is_slow: false,
            gives_up_at_ns: None,
        }
    }

    /// When its client gives up, or reads again, if it does.
    pub(super) fn gives_up_at_ns(&self) -> Option<u64> {
        self.deaf_until_ns.or(self.gives_up_at_ns)
    }

    /// What its client waits for, for a message.
    pub(super) fn waits_for(&self) -> Option<String> {
        let waiting = self.streams.iter().map(|stream| {
            let Planned { id, method, .. } = &stream.planned;
            let unsent = stream.upload.as_ref().map_or(0, |upload| upload.rest.len());
            format!("{id} ({method}, {unsent} bytes unsent, {} received)", stream.received.len())
        });
        let waiting: Vec<String> = waiting.collect();
        Some(format!(
            "the responses of HTTP/2 to requests {}; {} are not sent; windows of {} bytes",
            waiting.join(", "),
            self.planned.len(),
            self.window
        ))
    }

    /// Does some of what it can.
    pub(super) fn step(
        &mut self,
        random: &mut fastrand::Rng,
        shared: &mut Shared<'_>,
        actor: Actor,
        wakes_at_ns: &mut u64,
    ) -> Result<Did, String> {
        self.has_failed |= shared.may_be_killed(self.crashes, self.opened_ns);
        if self.gives_up_at_ns.is_some_and(|at| shared.now_ns >= at) {
            return Ok(self.abandon(shared, actor));
        }
        if self.deaf_until_ns.is_some_and(|at| shared.now_ns >= at) {
            self.deaf_until_ns = None;
            self.wire.borrow_mut().is_deaf = false;
        }
        if let Some(did) = self.fail(random, shared, actor) {
            return Ok(did);
        }
        self.wire.borrow_mut().draw_moves(random);
        if self.reads_late && self.deaf_until_ns.is_none() {
            // The settings of the server have to be known.
            self.wire.borrow_mut().is_deaf = matches!(self.state, State::Open(..));
        }
        let mut did = self.drive(shared, actor);
        did |= self.request(random, shared, actor);
        let is_late = self.reads_late && self.deaf_until_ns.is_none();
        let is_prompt = self.is_steady && self.slow_pauses_left == 0 && !self.reads_late;
        if !did && is_prompt && self.wire.borrow().is_through() {
            let unanswered = self.streams.iter().filter(|stream| stream.response.is_some());
            unanswered.for_each(|stream| shared.model.heads.was_sent(stream.planned.id));
        }
        if is_late && !did {
            self.wire.borrow_mut().is_deaf = false;
        }
        let had_ended = matches!(self.state, State::Ended(_));
        let went_on = self.go_on(random, shared, actor)?;
        did |= went_on | self.drive(shared, actor);
        if self.is_resting() {
            return Ok(match self.state {
                State::Ended(_) => Did::Ended,
                _ if did => Did::Something,
                _ => Did::Nothing,
            });
        }
        if self.planned.is_empty() && self.streams.is_empty() && self.leftovers.is_empty() {
            shared.event(actor, Event::Close);
            return Ok(Did::Ended);
        }
        // What had come before the end, or together with it, is read first.
        if let State::Ended(reason) = self.state
            && had_ended
            && !went_on
        {
            return self.end(reason, shared);
        }
        let pauses = match self.slow_pauses_left {
            0 => !self.is_steady && random.u8(..64) == 0,
            _ => random.u8(..SLOW_STEPS) == 0,
        };
        if did && pauses && !self.wire.borrow().socket.is_announcing() {
            let pause_ms = random.u64(1..=PAUSE_MS_MAX);
            self.slow_pauses_left = self.slow_pauses_left.saturating_sub(1);
            self.is_slow = true;
            *wakes_at_ns = shared.pause(actor, pause_ms);
        }
        Ok(if did { Did::Something } else { Did::Nothing })
    }

    /// After its last response it stays until the server closes.
    pub(super) fn rest(&mut self) {
        self.rests = true;
    }

    /// Whether it has all its responses, and stays. One that has broken a rule does not: the server may still wait for it.
    pub(super) fn is_resting(&self) -> bool {
        self.rests
            && !self.has_failed
            && self.planned.is_empty()
            && self.streams.is_empty()
            && self.leftovers.is_empty()
    }

    /// When everybody has done everything, its window is back.
    pub(super) fn check_at_rest(&self) -> Result<(), String> {
        match self.state {
            State::Open(..) if self.is_resting() => self.wire.borrow().window.check(),
            _ => Ok(()),
        }
    }

    /// Breaks a rule, if that is due.
    fn fail(&mut self, random: &mut fastrand::Rng, shared: &mut Shared<'_>, actor: Actor) -> Option<Did> {
        let (steps, fault) = self.fault?;
        if steps > 0 {
            self.fault = Some((steps - 1, fault));
            return None;
        }
        self.fault = None;
        let patience_ns = 2 * TIME_MAX.as_nanos() as u64;
        match fault {
            Fault::Close => return Some(self.abandon(shared, actor)),
            Fault::Cancel => {
                let upload = self.streams.iter().position(|stream| stream.upload.is_some());
                // Dropping the parts of a stream resets it.
                let at = upload.filter(|_| random.bool()).unwrap_or(0);
                if at < self.streams.len() {
                    let stream = self.streams.remove(at);
                    shared.event(actor, Event::Cancel(stream.planned.id));
                    shared.client_leaves();
                    shared.model.ended += 1;
                }
            }
            Fault::Deafness => {
                self.has_failed = true;
                self.deaf_until_ns = Some(shared.now_ns + patience_ns);
                self.gives_up_at_ns = Some(shared.now_ns + 2 * patience_ns);
                self.wire.borrow_mut().is_deaf = true;
                let waiting = self.streams.iter().filter(|stream| stream.response.is_some());
                waiting.for_each(|stream| shared.model.heads.is_held(stream.planned.id));
            }
            Fault::Silence => {
                self.has_failed = true;
                self.gives_up_at_ns = Some(shared.now_ns + patience_ns);
                self.wire.borrow_mut().is_silent = true;
            }
        }
        Some(Did::Something)
    }

    /// Whether some bodies are not sent. Meanwhile its windows stay as they are: `h2` does not read while a change of them waits behind a body,
    /// and the server may read on only when its client reads.
    fn has_uploads(&self) -> bool {
        !self.leftovers.is_empty()
            || self.planned.iter().any(|request| request.body_length > 0)
            || self.streams.iter().any(|stream| stream.upload.is_some())
    }

    /// Lets the connection receive and send. Returns whether it did.
    fn drive(&mut self, shared: &mut Shared<'_>, actor: Actor) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        let has_uploads = self.has_uploads();
        let next = match &mut self.state {
            State::Handshake(handshake) => match handshake.as_mut().poll(&mut context) {
                Poll::Ready(Ok((sender, driver))) => Some(State::Open(sender, Box::new(driver))),
                Poll::Ready(Err(error)) => Some(State::Ended(error.reason())),
                Poll::Pending => None,
            },
            State::Open(_, driver) => {
                if self.window < WINDOW_LATER && self.wire.borrow().socket.is_long() && !has_uploads {
                    // While the server has not confirmed an earlier change, there is no other one.
                    if driver.set_initial_window_size(WINDOW_LATER).is_ok() {
                        self.window = WINDOW_LATER;
                    }
                }
                match pin!(driver).poll(&mut context) {
                    Poll::Ready(Ok(())) => Some(State::Ended(None)),
                    Poll::Ready(Err(error)) => Some(State::Ended(error.reason())),
                    Poll::Pending => None,
                }
            }
            State::Ended(_) => None,
        };
        let did = next.is_some();
        if let Some(next) = next {
            self.state = next;
        }
        self.wire.borrow_mut().report(shared, actor) || did
    }

    /// Sends the next request, if there is one.
    fn request(&mut self, random: &mut fastrand::Rng, shared: &mut Shared<'_>, actor: Actor) -> bool {
        let State::Open(sender, _) = &mut self.state else { return false };
        if self.streams.len() >= self.streams_max || self.planned.is_empty() {
            return false;
        }
        let mut context = Context::from_waker(Waker::noop());
        if !matches!(sender.poll_ready(&mut context), Poll::Ready(Ok(()))) {
            return false;
        }
        if random.u8(..3) == 0 {
            // In another step.
            return true;
        }
        let Some(planned) = self.planned.pop() else { return false };
        let has_body = matches!(planned.method, "POST" | "PUT");
        let ends = !has_body || planned.body_length == 0 && random.bool();
        let head = head_of(&planned, has_body && random.bool());
        let Ok((response, stream)) = sender.send_request(head, ends) else {
            self.planned.push(planned);
            return false;
        };
        shared.event(actor, Event::Request(planned.id, planned.summary()));
        shared.begin(planned.id, self.opened_ns);
        let rest = Bytes::from_static(body(planned.id, planned.body_length));
        self.streams.push(Stream {
            planned,
            upload: (!ends).then_some(Upload { stream, rest }),
            response: Some(response),
            head: None,
            body: None,
            received: Vec::new(),
            unreleased: 0,
        });
        true
    }

    /// Sends and receives for one of the streams, then for the next, until one of them has something to do.
    fn go_on(
        &mut self,
        random: &mut fastrand::Rng,
        shared: &mut Shared<'_>,
        actor: Actor,
    ) -> Result<bool, String> {
        let is_long = self.wire.borrow().socket.is_long();
        if !self.leftovers.is_empty() && random.bool() {
            let at = random.usize(..self.leftovers.len());
            let progress = send_piece(&mut self.leftovers[at], is_long, random);
            if progress == Sending::Over {
                self.leftovers.swap_remove(at);
            }
            if progress != Sending::Waits {
                return Ok(true);
            }
        }
        let count = self.streams.len();
        let first = random.usize(..count.max(1));
        for at in (0..count).map(|at| (first + at) % count) {
            match self.streams[at].go_on(is_long, random) {
                Progress::None => {}
                Progress::Some => return Ok(true),
                Progress::Complete => {
                    let mut stream = self.streams.remove(at);
                    self.leftovers.extend(stream.upload.take().filter(|_| self.sends_on));
                    self.finish(stream, true, shared, actor)?;
                    return Ok(true);
                }
                Progress::Failed(error) => {
                    let stream = self.streams.remove(at);
                    self.failed(stream, &error, shared, actor)?;
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Checks a response.
    fn finish(
        &self,
        stream: Stream,
        is_complete: bool,
        shared: &mut Shared<'_>,
        actor: Actor,
    ) -> Result<(), String> {
        let Some(head) = stream.head else {
            return shared.model.no_response(stream.planned.id, self.excuse(shared), shared.scene);
        };
        let status = head.status.as_u16();
        shared.event(actor, Event::Response(stream.planned.id, status));
        let field = |name| head.headers.get(name).and_then(|value| value.to_str().ok());
        let coding = field("content-encoding")
            .filter(|_| stream.planned.method != "HEAD" && !matches!(status, 204 | 304));
        if coding.is_some() && !stream.planned.accepts_gzip() {
            return Err(format!("request {}: a coding that it does not accept", stream.planned.id));
        }
        let body = decoded(coding, &stream.received, is_complete)
            .map_err(|message| format!("request {}: {message}", stream.planned.id))?;
        let got = Got {
            status,
            sent: field("x-sent"),
            confirmed: field("x-confirmed"),
            age: field("age").and_then(|age| age.parse().ok()),
            etag: field("etag"),
            content_range: field("content-range"),
            location: field("location"),
            fields: ResponseFields::of(field),
            all: if stream.planned.has_inputs() { pairs(&head).collect() } else { Vec::new() },
            body: &body,
            sent_bytes: stream.received.len(),
            is_complete,
        };
        let (excuse, now) = (self.excuse(shared), shared.moment());
        shared.model.response(stream.planned.id, &got, excuse, now, shared.scene)
    }

    /// A stream has failed: the server has reset it, or the connection is gone.
    fn failed(
        &self,
        stream: Stream,
        error: &h2::Error,
        shared: &mut Shared<'_>,
        actor: Actor,
    ) -> Result<(), String> {
        let was_refused = error.is_remote() && error.reason() == Some(Reason::REFUSED_STREAM);
        let is_behind_last =
            error.is_go_away() && error.is_remote() && error.reason() == Some(Reason::NO_ERROR);
        if stream.head.is_none() && (was_refused || is_behind_last) {
            return shared.model.not_processed(stream.planned.id);
        }
        if !self.has_failed && error.is_library() {
            return Err(format!("request {}: {error}", stream.planned.id));
        }
        self.finish(stream, false, shared, actor).map_err(|message| format!("{message}: {error}"))
    }

    fn excuse(&self, shared: &Shared<'_>) -> Excuse {
        Excuse {
            client: self.may_be_cut(shared),
            is_slow: self.is_slow,
            upstream: shared.upstreams_failed,
            drains: shared.may_be_of_former(self.opened_ns),
        }
    }

    /// The client has broken a rule, or may be slower than the server wants.
    fn may_be_cut(&self, shared: &Shared<'_>) -> bool {
        self.has_failed || self.is_slow && shared.scene.rate_min > 0
    }

    /// The connection has ended, and all that it had received was handled.
    fn end(&mut self, reason: Option<Reason>, shared: &mut Shared<'_>) -> Result<Did, String> {
        let excuse = self.excuse(shared);
        // The last request that a connection may have, and all before it, are served.
        let has_left = matches!(reason, None | Some(Reason::NO_ERROR));
        let has_last = shared.scene.requests_per_connection_max.is_some() || excuse.drains;
        let may_leave = has_last || self.planned.is_empty();
        if !(excuse.client || has_left && may_leave) {
            return Err(format!("the server has ended a connection of HTTP/2: {reason:?}"));
        }
        for stream in self.streams.drain(..) {
            shared.model.no_response(stream.planned.id, excuse, shared.scene)?;
        }
        Ok(Did::Ended)
    }

    /// The client closes the connection.
    fn abandon(&mut self, shared: &mut Shared<'_>, actor: Actor) -> Did {
        shared.client_leaves();
        shared.event(actor, Event::Close);
        shared.model.ended += self.streams.len() as u64;
        Did::Ended
    }
}

impl Stream {
    /// Does one thing. `is_long`: much has come already, and what remains goes at once.
    fn go_on(&mut self, is_long: bool, random: &mut fastrand::Rng) -> Progress {
        let order = if random.bool() { [true, false] } else { [false, true] };
        for sends in order {
            let progress = if sends { self.send(is_long, random) } else { self.receive(is_long, random) };
            if !matches!(progress, Progress::None) {
                return progress;
            }
        }
        Progress::None
    }

    /// Sends a piece of the body.
    fn send(&mut self, is_long: bool, random: &mut fastrand::Rng) -> Progress {
        let Some(upload) = &mut self.upload else { return Progress::None };
        match send_piece(upload, is_long, random) {
            Sending::Waits => Progress::None,
            Sending::Goes => Progress::Some,
            Sending::Over => {
                self.upload = None;
                Progress::Some
            }
        }
    }

    /// Receives a piece of the response.
    fn receive(&mut self, is_long: bool, random: &mut fastrand::Rng) -> Progress {
        let mut context = Context::from_waker(Waker::noop());
        if let Some(response) = &mut self.response {
            return match pin!(response).poll(&mut context) {
                Poll::Pending => Progress::None,
                Poll::Ready(Err(error)) => Progress::Failed(error),
                Poll::Ready(Ok(response)) => {
                    let (head, body) = response.into_parts();
                    (self.head, self.body, self.response) = (Some(head), Some(body), None);
                    Progress::Some
                }
            };
        }
        let Some(body) = &mut self.body else { return Progress::None };
        if self.unreleased > 0 && random.bool() {
            let released = if is_long { self.unreleased } else { draw_piece(random, self.unreleased) };
            self.unreleased -= released;
            // The stream may have ended.
            let _ = body.flow_control().release_capacity(released);
            return Progress::Some;
        }
        match body.poll_data(&mut context) {
            Poll::Pending if self.unreleased > 0 => {
                let released = std::mem::take(&mut self.unreleased);
                let _ = body.flow_control().release_capacity(released);
                Progress::Some
            }
            Poll::Pending => Progress::None,
            Poll::Ready(Some(Ok(bytes))) => {
                self.received.extend_from_slice(&bytes);
                self.unreleased += bytes.len();
                Progress::Some
            }
            Poll::Ready(Some(Err(error))) => Progress::Failed(error),
            Poll::Ready(None) => {
                // Otherwise the window of the connection never gets it back.
                let _ = body.flow_control().release_capacity(std::mem::take(&mut self.unreleased));
                Progress::Complete
            }
        }
    }
}

/// The result of sending a piece of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sending {
    Waits,
    Goes,
    /// The whole body is sent, or the server does not want the rest.
    Over,
}

/// Sends a piece of a body.
fn send_piece(upload: &mut Upload, is_long: bool, random: &mut fastrand::Rng) -> Sending {
    if upload.rest.is_empty() {
        // The end of the body has its own frame. The stream may be closed already, if the response was complete before.
        let _ = upload.stream.send_data(Bytes::new(), true);
        return Sending::Over;
    }
    let length = upload.rest.len();
    upload.stream.reserve_capacity(if is_long { length } else { draw_piece(random, length) });
    let mut context = Context::from_waker(Waker::noop());
    match upload.stream.poll_capacity(&mut context) {
        Poll::Ready(Some(Ok(0))) | Poll::Pending => Sending::Waits,
        Poll::Ready(Some(Ok(capacity))) => {
            let piece = upload.rest.split_to(capacity.min(upload.rest.len()));
            let ends = upload.rest.is_empty() && random.bool();
            let sent = upload.stream.send_data(piece, ends);
            if ends || sent.is_err() { Sending::Over } else { Sending::Goes }
        }
        Poll::Ready(Some(Err(_)) | None) => Sending::Over,
    }
}

/// The fields of a response, with their values.
fn pairs(head: &http::response::Parts) -> impl Iterator<Item = (&str, &str)> {
    head.headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap_or_default()))
}

fn head_of(planned: &Planned, has_length: bool) -> http::Request<()> {
    let uri = format!("http://{}{}", planned.host, planned.target());
    let mut request = http::Request::builder().method(planned.method).uri(uri);
    if planned.has_inputs() {
        request = request.header("x-request", planned.id);
        for (name, value) in planned.inputs().fields(planned.is_preflight()) {
            request = request.header(name, value);
        }
    }
    if let Some(key) = key_of(planned) {
        request = request.header("x-key", format!("key-{key}"));
    }
    if planned.resource.is_some() {
        request = request.header("x-request", planned.id);
        for line in planned.asks.lines().lines() {
            if let Some((name, value)) = line.split_once(": ") {
                request = request.header(name, value);
            }
        }
    }
    if planned.accepts_gzip() {
        request = request.header("accept-encoding", "gzip");
    }
    if let Some(own) = planned.own_id() {
        request = request.header("x-request-id", own);
    }
    if has_length {
        request = request.header("content-length", planned.body_length);
    }
    request.body(()).expect("a request that was drawn is valid")
}
