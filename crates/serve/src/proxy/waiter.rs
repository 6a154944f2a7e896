//! Who waits for a response: a client, a rule that asks an authority, or a cache.

use std::rc::Rc;

use bytes::Bytes;
use flatout_engine::{Body, ExchangeKey, GuestKey, Lane, PooledPipe, Push, Response};
use flatout_wire::Status;

use crate::site::{Finish, MadeBy, Opinion};

/// Bytes of an authority's response body that are kept; over it the question has failed.
const OPINION_BYTES_MAX: usize = 256 << 10;

/// What is called with an opinion.
pub(super) type Then = Box<dyn FnOnce(Opinion)>;

/// Who waits.
pub(super) enum Waiter {
    /// A client.
    Client {
        exchange: ExchangeKey,
        /// What its route does to the response.
        finish: Rc<dyn Finish>,
    },
    /// A rule; taken when it is notified.
    Rule(Option<Rule>),
    /// A cache, which may serve many clients with the response.
    Taker(Rc<dyn Taker>),
}

/// Takes a response in place of a client. All of it runs on the worker that asks, in its turn.
pub(crate) trait Taker {
    /// An interim response.
    fn inform(&self, lane: &Lane, status: Status, lines: &[u8]);

    /// The head of the response, and the body if that has arrived too; otherwise the response has a body that is pushed. `guest` is
    /// to be [called again](Lane::call_again) when there is room, where there was none; there is none behind a refusal of ours.
    fn head(&self, lane: &Lane, guest: Option<GuestKey>, response: Box<Response>, by: MadeBy) -> Taken;

    /// Whether more of the body can be taken now.
    fn has_room(&self) -> bool;

    /// A piece of the body. Returns whether more is wanted.
    fn push(&self, data: Bytes) -> bool;

    /// The body is whole.
    fn end(&self);

    /// The response cannot be finished.
    fn cut(&self);
}

/// What a taker makes of a response.
pub(crate) enum Taken {
    /// It is the taker's; whether the rest of the body is wanted.
    Kept(bool),
    /// It is this client's, as if there were no taker.
    Passed(Box<Response>, Asker),
}

/// A client that waits for a response.
#[derive(Clone)]
pub(crate) struct Asker {
    pub(crate) exchange: ExchangeKey,
    /// What its route does to the response.
    pub(crate) finish: Rc<dyn Finish>,
}

/// A rule that asks an authority about a request.
pub(super) struct Rule {
    then: Then,
    /// The fields of a successful response to keep.
    wanted: Vec<String>,
    response: Option<Box<Response>>,
    body: Vec<u8>,
}

/// Rules, and the opinions that they are handed once the connections are not borrowed any more; `None`: the authority could not
/// be asked.
pub(super) type Told = Vec<(Then, Option<Opinion>)>;

impl Waiter {
    pub(super) fn rule(then: Then, wanted: Vec<String>) -> Waiter {
        Waiter::Rule(Some(Rule { then, wanted, response: None, body: Vec::new() }))
    }

    /// In the place of one that was told, or is gone.
    pub(super) fn nobody() -> Waiter {
        Waiter::Rule(None)
    }

    /// The exchange of a client.
    pub(super) fn exchange(&self) -> Option<ExchangeKey> {
        match self {
            Waiter::Client { exchange, .. } => Some(*exchange),
            Waiter::Rule(_) | Waiter::Taker(_) => None,
        }
    }

    /// Whether it is a rule that waits.
    pub(super) fn is_rule(&self) -> bool {
        matches!(self, Waiter::Rule(_))
    }

    /// Passes an interim response on, to those who can use it.
    pub(super) fn inform(&self, lane: &Lane, status: Status, lines: &[u8]) {
        match self {
            Waiter::Client { exchange, .. } => drop(lane.inform(*exchange, status, lines)),
            Waiter::Rule(_) => {}
            Waiter::Taker(taker) => taker.inform(lane, status, lines),
        }
    }

    /// Whether anybody waits still.
    pub(super) fn is_open(&self, lane: &Lane) -> bool {
        match self {
            Waiter::Client { exchange, .. } => lane.is_open(*exchange),
            Waiter::Rule(rule) => rule.is_some(),
            Waiter::Taker(_) => true,
        }
    }

    /// Whether more of the body can be taken now.
    pub(super) fn has_room(&self, lane: &Lane) -> bool {
        match self {
            Waiter::Client { exchange, .. } => lane.has_room(*exchange),
            Waiter::Rule(_) => true,
            Waiter::Taker(taker) => taker.has_room(),
        }
    }

    /// Takes the head of the response, and the body if that has arrived too, which `guest` has received. Returns whether the rest of
    /// the body is wanted.
    pub(super) fn answer(
        &mut self,
        lane: &Lane,
        guest: Option<GuestKey>,
        mut response: Box<Response>,
        by: MadeBy,
    ) -> bool {
        match self {
            Waiter::Taker(taker) => match taker.head(lane, guest, response, by) {
                Taken::Kept(is_wanted) => is_wanted,
                Taken::Passed(response, Asker { exchange, finish }) => {
                    if let Some(guest) = guest {
                        lane.attach(exchange, guest);
                    }
                    *self = Waiter::Client { exchange, finish };
                    self.answer(lane, guest, response, by)
                }
            },
            Waiter::Client { exchange, finish } => {
                let was_pushed = matches!(response.body(), Body::Pushed);
                finish.finish(&mut response, by);
                let is_wanted = was_pushed && matches!(response.body(), Body::Pushed);
                lane.answer(*exchange, response);
                is_wanted
            }
            Waiter::Rule(Some(rule)) => {
                rule.body.extend_from_slice(response.body_bytes().unwrap_or_default());
                response.take_body();
                rule.response = Some(response);
                true
            }
            Waiter::Rule(None) => false,
        }
    }

    /// A piece of the body. Returns whether more is wanted.
    pub(super) fn push(&mut self, lane: &Lane, data: Bytes) -> bool {
        match self {
            // There was room a moment ago.
            Waiter::Client { exchange, .. } => lane.push(*exchange, data) != Push::Gone,
            Waiter::Rule(Some(rule)) => {
                rule.body.extend_from_slice(&data);
                rule.body.len() <= OPINION_BYTES_MAX
            }
            Waiter::Rule(None) => false,
            Waiter::Taker(taker) => taker.push(data),
        }
    }

    /// The same through a pipe, for a client.
    pub(super) fn push_pipe(&self, lane: &Lane, pipe: PooledPipe) {
        if let Waiter::Client { exchange, .. } = self {
            // There was room a moment ago.
            let _ = lane.push_pipe(*exchange, pipe);
        }
    }

    /// The response is whole.
    pub(super) fn end(&mut self, lane: &Lane, trailers: &[u8], told: &mut Told) {
        match self {
            Waiter::Client { exchange, .. } => drop(lane.end(*exchange, trailers)),
            Waiter::Rule(rule) => {
                if let Some(rule) = rule.take() {
                    let opinion = rule.response.map(|response| opinion(response, &rule.wanted, rule.body));
                    told.push((rule.then, opinion));
                }
            }
            Waiter::Taker(taker) => taker.end(),
        }
    }

    /// The response cannot be finished.
    pub(super) fn cut(&mut self, lane: &Lane, told: &mut Told) {
        match self {
            Waiter::Client { exchange, .. } => drop(lane.cut(*exchange)),
            Waiter::Rule(rule) => told.extend(rule.take().map(|rule| (rule.then, None))),
            Waiter::Taker(taker) => taker.cut(),
        }
    }
}

fn opinion(mut response: Box<Response>, wanted: &[String], body: Vec<u8>) -> Opinion {
    if (200..300).contains(&response.status().code()) {
        let fields = wanted.iter().filter_map(|name| Some((name.clone(), response.field(name)?.to_vec())));
        return Opinion::Allowed(fields.collect());
    }
    response.set_body(Body::Shared(body.into()));
    Opinion::Refused(response)
}
