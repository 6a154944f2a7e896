//! The receiver of a response: a client, a rule that uses an auth service, or a cache.

use std::rc::Rc;

use bytes::Bytes;
use flatout_engine::{Body, ExchangeKey, GuestKey, Lane, PooledPipe, Push, Response, bug};
use flatout_wire::Status;
use tokio::sync::oneshot;

use flatout_gateway::{AuthDecision, Finish, Redirection, ResponseOrigin};

use crate::spool::{SpoolSetup, SpoolWriter};
use crate::worker::passthrough::Passthrough;

/// Bytes kept of an auth service's response body; a longer one fails the query.
const OPINION_BYTES_MAX: usize = 256 << 10;

/// Gets the decision.
pub(crate) type DecisionSender = oneshot::Sender<AuthDecision>;

/// The receiver of a response.
pub(crate) enum Receiver {
    /// A client.
    Client(WaitingClient),
    /// A rule; `None` after it was notified. If it is dropped before, the rule finds that its sender is gone.
    Rule(Option<Rule>),
    /// A cache, which may serve many clients with the response. It ends their requests when it is dropped.
    Sink(Rc<dyn ResponseSink>),
    /// A client that is slower than its upstream.
    Spool(SpoolWriter),
    /// A client whose connection is passed on as it is; `None` once it is joined to the server's. It never gets a response.
    Passthrough(Option<Box<Passthrough>>),
}

/// A client in the proxy's hands. If it is dropped before its response is complete, it gets 502, or its response is cut:
/// no mistake leaves a client without an end.
pub(crate) struct WaitingClient {
    lane: Lane,
    exchange: ExchangeKey,
    /// Applies the route's rules to the response.
    finish: Rc<dyn Finish>,
    phase: Phase,
}

/// How far the response to a client is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Waiting,
    /// The head was sent, and parts of the body follow.
    Begun,
    Over,
}

impl WaitingClient {
    /// Passes on the head. Returns whether the rest of the body is wanted.
    fn answer(&mut self, mut response: Box<Response>, by: ResponseOrigin) -> bool {
        let was_pushed = matches!(response.body(), Body::Pushed);
        let by = match by {
            ResponseOrigin::Upstream => {
                match self.finish.redirect(self.finish.clone(), self.exchange, &mut response) {
                    Redirection::Nowhere => by,
                    Redirection::Refused => ResponseOrigin::Here,
                    Redirection::Taken => {
                        self.phase = Phase::Over;
                        return false;
                    }
                }
            }
            ResponseOrigin::Here => by,
        };
        self.finish.finish(&mut response, by);
        let is_wanted = was_pushed && matches!(response.body(), Body::Pushed);
        self.phase = if is_wanted { Phase::Begun } else { Phase::Over };
        self.lane.answer(self.exchange, response);
        is_wanted
    }

    #[cold]
    fn abandon(&mut self) {
        match self.phase {
            Phase::Waiting if self.lane.is_open(self.exchange) => {
                let mut response = self.lane.response();
                response.set_status(Status::BAD_GATEWAY);
                self.answer(response, ResponseOrigin::Here);
            }
            Phase::Begun => drop(self.lane.cut(self.exchange)),
            Phase::Waiting | Phase::Over => {}
        }
    }
}

impl Drop for WaitingClient {
    fn drop(&mut self) {
        if self.phase != Phase::Over {
            self.abandon();
        }
    }
}

/// Receives a response in place of a client. All of it runs on the requesting worker.
pub trait ResponseSink {
    /// An interim response.
    fn inform(&self, lane: &Lane, status: Status, lines: &[u8]);

    /// The head of the response, with the body if that has arrived; otherwise the body is pushed later. `guest` is to
    /// be [called again](Lane::call_again) when there is room after there was none; it is `None` for our own error
    /// response.
    fn head(
        &self,
        lane: &Lane,
        guest: Option<GuestKey>,
        response: Box<Response>,
        by: ResponseOrigin,
    ) -> Disposition;

    /// Whether more of the body can be taken now.
    fn has_room(&self) -> bool;

    /// A piece of the body. Returns whether more is wanted.
    fn push(&self, data: Bytes) -> bool;

    /// The body is complete.
    fn end(&self);

    /// The response cannot be finished.
    fn cut(&self);
}

/// What a sink does with a response.
pub enum Disposition {
    /// The sink keeps it. Whether it wants the rest of the body.
    Consumed(bool),
    /// It goes to this client, as if there were no sink.
    Passed(Box<Response>, ParkedClient),
}

/// A client that waits for a response.
#[derive(Clone)]
pub struct ParkedClient {
    /// Its request.
    pub exchange: ExchangeKey,
    /// Applies the route's rules to the response.
    pub finish: Rc<dyn Finish>,
}

/// A rule that asks an auth service about a request.
pub(crate) struct Rule {
    then: DecisionSender,
    /// The fields of a successful response to keep.
    wanted: Vec<String>,
    response: Option<Box<Response>>,
    body: Vec<u8>,
}

/// Rules, and the decisions to deliver once the connections are no longer borrowed; `None`: the auth service
/// could not be reached.
pub(crate) type PendingDecisions = Vec<(DecisionSender, Option<AuthDecision>)>;

impl Receiver {
    pub(crate) fn client(lane: &Lane, ParkedClient { exchange, finish }: ParkedClient) -> Receiver {
        Receiver::Client(WaitingClient { lane: lane.clone(), exchange, finish, phase: Phase::Waiting })
    }

    pub(crate) fn rule(then: DecisionSender, wanted: Vec<String>) -> Receiver {
        Receiver::Rule(Some(Rule { then, wanted, response: None, body: Vec::new() }))
    }

    /// A placeholder after the receiver was notified or taken.
    pub(crate) fn nobody() -> Receiver {
        Receiver::Rule(None)
    }

    /// The exchange of a client.
    pub(crate) fn exchange(&self) -> Option<ExchangeKey> {
        match self {
            Receiver::Client(client) => Some(client.exchange),
            Receiver::Rule(_) | Receiver::Sink(_) | Receiver::Spool(_) | Receiver::Passthrough(_) => None,
        }
    }

    /// Whether a rule waits.
    pub(crate) fn is_rule(&self) -> bool {
        matches!(self, Receiver::Rule(_))
    }

    /// Whether it is a connection that is passed on as it is.
    pub(crate) fn is_passthrough(&self) -> bool {
        matches!(self, Receiver::Passthrough(_))
    }

    /// Passes on an interim response, if the receiver uses it.
    pub(crate) fn inform(&self, lane: &Lane, status: Status, lines: &[u8]) {
        match self {
            Receiver::Client(client) => drop(lane.inform(client.exchange, status, lines)),
            Receiver::Rule(_) | Receiver::Spool(_) | Receiver::Passthrough(_) => {}
            Receiver::Sink(sink) => sink.inform(lane, status, lines),
        }
    }

    /// Whether anybody still waits.
    pub(crate) fn is_open(&self, lane: &Lane) -> bool {
        match self {
            Receiver::Client(client) => lane.is_open(client.exchange),
            // Its client may be gone.
            Receiver::Rule(rule) => rule.as_ref().is_some_and(|rule| !rule.then.is_closed()),
            Receiver::Sink(_) => true,
            Receiver::Spool(spool) => spool.is_open(),
            Receiver::Passthrough(passthrough) => passthrough.is_some(),
        }
    }

    /// Whether a client that got a part of its response is gone, which is only known here.
    pub(crate) fn is_abandoned(&self) -> bool {
        matches!(self, Receiver::Spool(spool) if !spool.is_open())
    }

    /// Whether the response goes to a client directly.
    pub(crate) fn is_direct(&self) -> bool {
        matches!(self, Receiver::Client(_))
    }

    /// Puts a spool between the upstream and a client whose response has begun. Its exchange is the spool's from now on.
    pub(crate) fn spool(&mut self, setup: &SpoolSetup<'_>) {
        if let Some(exchange) = self.exchange() {
            let client = std::mem::replace(self, Receiver::nobody());
            *self = Receiver::Spool(SpoolWriter::begin(setup, client, exchange));
        }
    }

    /// Whether more of the body can be taken now.
    pub(crate) fn has_room(&self, lane: &Lane) -> bool {
        match self {
            Receiver::Client(client) => lane.has_room(client.exchange),
            Receiver::Rule(_) | Receiver::Passthrough(_) => true,
            Receiver::Sink(sink) => sink.has_room(),
            Receiver::Spool(spool) => spool.has_room(),
        }
    }

    /// Passes on the head of the response, with the body if that has arrived too, received by `guest`. Returns
    /// whether the rest of the body is wanted.
    pub(crate) fn answer(
        &mut self,
        lane: &Lane,
        guest: Option<GuestKey>,
        mut response: Box<Response>,
        by: ResponseOrigin,
    ) -> bool {
        match self {
            Receiver::Sink(sink) => match sink.head(lane, guest, response, by) {
                Disposition::Consumed(is_wanted) => is_wanted,
                Disposition::Passed(response, client) => {
                    if let Some(guest) = guest {
                        lane.attach(client.exchange, guest);
                    }
                    *self = Receiver::client(lane, client);
                    self.answer(lane, guest, response, by)
                }
            },
            Receiver::Client(client) => client.answer(response, by),
            Receiver::Rule(Some(rule)) => {
                rule.body.extend_from_slice(response.body_bytes().unwrap_or_default());
                response.take_body();
                rule.response = Some(response);
                true
            }
            Receiver::Rule(None) => false,
            Receiver::Spool(_) | Receiver::Passthrough(_) => {
                bug!("a response begins a second time");
                false
            }
        }
    }

    /// Passes on a piece of the body. Returns whether more is wanted.
    pub(crate) fn push(&mut self, lane: &Lane, data: Bytes) -> bool {
        match self {
            // The caller has checked that there is room.
            Receiver::Client(client) => lane.push(client.exchange, data) != Push::Gone,
            Receiver::Rule(Some(rule)) => {
                rule.body.extend_from_slice(&data);
                rule.body.len() <= OPINION_BYTES_MAX
            }
            Receiver::Rule(None) | Receiver::Passthrough(_) => false,
            Receiver::Sink(sink) => sink.push(data),
            Receiver::Spool(spool) => spool.push(data),
        }
    }

    /// The same through a pipe, for a client.
    pub(crate) fn push_pipe(&self, lane: &Lane, pipe: PooledPipe) {
        if let Receiver::Client(client) = self {
            // The caller has checked that there is room.
            let _ = lane.push_pipe(client.exchange, pipe);
        }
    }

    /// The response is complete.
    pub(crate) fn end(&mut self, lane: &Lane, trailers: &[u8], decisions: &mut PendingDecisions) {
        match self {
            Receiver::Client(client) => {
                client.phase = Phase::Over;
                lane.end(client.exchange, trailers);
            }
            Receiver::Rule(rule) => {
                if let Some(rule) = rule.take() {
                    let decision = rule.response.map(|response| decision(response, &rule.wanted, rule.body));
                    decisions.push((rule.then, decision));
                }
            }
            Receiver::Sink(sink) => sink.end(),
            Receiver::Spool(spool) => spool.end(trailers),
            Receiver::Passthrough(_) => {}
        }
    }

    /// The response cannot be completed.
    pub(crate) fn cut(&mut self, lane: &Lane, decisions: &mut PendingDecisions) {
        match self {
            Receiver::Client(client) => {
                client.phase = Phase::Over;
                lane.cut(client.exchange);
            }
            Receiver::Rule(rule) => decisions.extend(rule.take().map(|rule| (rule.then, None))),
            Receiver::Sink(sink) => sink.cut(),
            Receiver::Spool(spool) => spool.cut(),
            // Dropped, it closes.
            Receiver::Passthrough(passthrough) => drop(passthrough.take()),
        }
    }
}

fn decision(mut response: Box<Response>, wanted: &[String], body: Vec<u8>) -> AuthDecision {
    if (200..300).contains(&response.status().code()) {
        let fields = wanted.iter().filter_map(|name| Some((name.clone(), response.field(name)?.to_vec())));
        return AuthDecision::Allowed(fields.collect());
    }
    response.set_body(Body::Shared(body.into()));
    AuthDecision::Refused(response)
}

#[cfg(test)]
mod tests;
