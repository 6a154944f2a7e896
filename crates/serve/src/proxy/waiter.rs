//! Who waits for a response: a client, or a rule that asks an authority.

use std::rc::Rc;

use bytes::Bytes;
use flatout_engine::{Body, ExchangeKey, Lane, PooledPipe, Push, Response};

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
    /// A rule; taken when it is told.
    Rule(Option<Rule>),
}

/// A rule that asks an authority about a request.
pub(super) struct Rule {
    then: Then,
    /// The fields of a good response that it wants.
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
            Waiter::Rule(_) => None,
        }
    }

    /// Whether anybody waits still.
    pub(super) fn is_open(&self, lane: &Lane) -> bool {
        match self {
            Waiter::Client { exchange, .. } => lane.is_open(*exchange),
            Waiter::Rule(rule) => rule.is_some(),
        }
    }

    /// Whether more of the body can be taken now.
    pub(super) fn has_room(&self, lane: &Lane) -> bool {
        self.exchange().is_none_or(|exchange| lane.has_room(exchange))
    }

    /// Takes the head of the response, and the body if that has arrived too. Returns whether the rest of the body is wanted.
    pub(super) fn answer(&mut self, lane: &Lane, mut response: Box<Response>, by: MadeBy) -> bool {
        match self {
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
        }
    }

    /// The response cannot be finished.
    pub(super) fn cut(&mut self, lane: &Lane, told: &mut Told) {
        match self {
            Waiter::Client { exchange, .. } => drop(lane.cut(*exchange)),
            Waiter::Rule(rule) => told.extend(rule.take().map(|rule| (rule.then, None))),
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
