//! Values and conditions that depend on the response: what they need of the request is copied when it begins.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use flatout_engine::Response;
use flatout_expression::Facts;

use super::compiled::ResponseBlock;
use super::maps::MapTable;
use super::plan::{Condition, OfUpstream, Piece, Variable};
use super::render::{Paths, Text, View};
use flatout_gateway::ResponseOrigin;
use flatout_observe::observed::{Attempt, Notes};

/// The value of a field rule.
#[derive(Debug)]
pub(crate) enum FieldValue {
    /// It depends on the request alone.
    Made(Vec<u8>),
    /// The parts that depend on the request are made.
    Late(Vec<LatePiece>),
}

/// A part of such a value.
#[derive(Debug)]
pub(crate) enum LatePiece {
    Bytes(Vec<u8>),
    OfResponse(Variable),
    Mapped(Arc<MapTable>),
}

/// What a block of rules needs from a request.
#[derive(Debug)]
pub(crate) struct BlockNeeds {
    /// Its position among the blocks of the route.
    pub(crate) at: usize,
    /// The facts of the request, if its conditions depend on the response too.
    facts: Vec<(Variable, KnownFact)>,
    /// The values of its field rules, and after them that of `expires`.
    pub(crate) values: Vec<FieldValue>,
}

/// A fact of a request, in every type that it may be used as.
#[derive(Debug)]
struct KnownFact {
    text: Vec<u8>,
    number: f64,
    address: Option<IpAddr>,
    has: bool,
}

/// Who has made a response, and what the worker has noted of the attempts at its upstream.
#[derive(Clone, Copy)]
pub(crate) struct Making<'n> {
    pub(crate) by: ResponseOrigin,
    /// Only for rules that show attempts.
    pub(crate) notes: Option<&'n Notes>,
}

/// The facts of a request and its response.
struct LateFacts<'l> {
    known: &'l [(Variable, KnownFact)],
    maps: &'l [(usize, Arc<MapTable>)],
    response: &'l Response,
    making: Making<'l>,
}

impl FieldValue {
    pub(crate) fn of(text: &Text, view: &View<'_>) -> FieldValue {
        if !text.variables().any(Variable::is_of_response) {
            let mut value = Vec::new();
            text.render(view, Paths::Decoded, &mut value);
            return FieldValue::Made(value);
        }
        let pieces = text.pieces().iter().map(|piece| match piece {
            Piece::Text(text) => LatePiece::Bytes(text.clone().into_bytes()),
            // They are known with the request, but only rules of responses wait for them.
            Piece::Variable(Variable::Body) => LatePiece::Bytes(view.body.to_vec()),
            Piece::Variable(variable @ Variable::Limit(_)) => {
                LatePiece::Bytes(view.text(variable).into_owned())
            }
            Piece::Variable(Variable::ResponseMap(at)) => {
                view.tables.map(*at).map_or(LatePiece::Bytes(Vec::new()), LatePiece::Mapped)
            }
            Piece::Variable(variable) if variable.is_of_response() => LatePiece::OfResponse(variable.clone()),
            Piece::Variable(variable) => LatePiece::Bytes(view.text(variable).into_owned()),
        });
        FieldValue::Late(pieces.collect())
    }

    /// The value for a response.
    pub(crate) fn complete(&self, making: Making<'_>, response: &Response) -> Cow<'_, [u8]> {
        match self {
            FieldValue::Made(value) => Cow::Borrowed(value),
            FieldValue::Late(pieces) => {
                let mut value = Vec::new();
                for piece in pieces {
                    match piece {
                        LatePiece::Bytes(bytes) => value.extend_from_slice(bytes),
                        LatePiece::OfResponse(variable) => {
                            value.extend_from_slice(&of_response(variable, making, response));
                        }
                        LatePiece::Mapped(map) => value.extend_from_slice(&mapped(map, making, response)),
                    }
                }
                Cow::Owned(value)
            }
        }
    }
}

impl BlockNeeds {
    /// Those of the blocks that are in force, and of those that depend on the response.
    pub(crate) fn of(blocks: &[ResponseBlock], in_force: u64, view: &View<'_>) -> Vec<BlockNeeds> {
        let needed = |at: usize, block: &ResponseBlock| block.is_late || in_force >> at & 1 == 1;
        let needed = blocks.iter().enumerate().filter(|(at, block)| needed(*at, block) && block.has_rules());
        let needs = needed.map(|(at, block)| {
            let facts = block.conditions.iter().filter(|_| block.is_late).flat_map(Condition::facts);
            let facts = facts.filter(|fact| !fact.is_of_response() || matches!(fact, Variable::Limit(_)));
            BlockNeeds {
                at,
                facts: facts.map(|fact| (fact.clone(), KnownFact::of(fact, view))).collect(),
                values: block.rendered(view),
            }
        });
        needs.collect()
    }

    /// Whether the conditions of its block are true for a response.
    pub(crate) fn holds(&self, block: &ResponseBlock, making: Making<'_>, response: &Response) -> bool {
        let facts = LateFacts { known: &self.facts, maps: &block.maps, response, making };
        !block.is_late || block.conditions.iter().all(|condition| condition.holds(&facts))
    }
}

impl KnownFact {
    fn of(fact: &Variable, view: &View<'_>) -> KnownFact {
        KnownFact {
            text: view.text(fact).into_owned(),
            number: view.number(fact),
            address: view.address(fact),
            has: view.has(fact),
        }
    }
}

impl LateFacts<'_> {
    fn known(&self, fact: &Variable) -> Option<&KnownFact> {
        self.known.iter().find(|(known, _)| known == fact).map(|(_, value)| value)
    }
}

impl Facts<Variable> for LateFacts<'_> {
    fn text<'a>(&'a self, fact: &'a Variable) -> Cow<'a, [u8]> {
        if let Variable::ResponseMap(at) = fact {
            let map = self.maps.iter().find(|(known, _)| known == at);
            return Cow::Owned(map.map_or(Vec::new(), |(_, map)| mapped(map, self.making, self.response)));
        }
        match self.known(fact) {
            Some(known) => Cow::Borrowed(&known.text),
            None => of_response(fact, self.making, self.response),
        }
    }

    fn number(&self, fact: &Variable) -> f64 {
        match fact {
            Variable::Status => f64::from(self.response.status().code()),
            Variable::UpstreamStatus if self.making.by == ResponseOrigin::Upstream => {
                f64::from(self.response.status().code())
            }
            _ => self.known(fact).map_or(0.0, |known| known.number),
        }
    }

    fn address(&self, fact: &Variable) -> Option<IpAddr> {
        self.known(fact)?.address
    }

    fn is_true(&self, _: &Variable) -> bool {
        false
    }

    fn has(&self, fact: &Variable) -> bool {
        match fact {
            Variable::ResponseHeader(name) => self.response.field(name).is_some(),
            _ => self.known(fact).is_some_and(|known| known.has),
        }
    }
}

fn mapped(map: &MapTable, making: Making<'_>, response: &Response) -> Vec<u8> {
    map.value_of(|variable, out| out.extend_from_slice(&of_response(variable, making, response)))
}

fn of_response<'r>(variable: &'r Variable, making: Making<'_>, response: &'r Response) -> Cow<'r, [u8]> {
    let status = || Cow::Owned(response.status().code().to_string().into_bytes());
    match variable {
        Variable::Status => status(),
        Variable::UpstreamStatus if making.notes.is_some() => {
            let statuses = of_attempts(making, response, |attempt| match attempt.status {
                0 => "-".to_owned(),
                status => status.to_string(),
            });
            match statuses.is_empty() && making.by == ResponseOrigin::Upstream {
                true => status(),
                false => Cow::Owned(statuses.into_bytes()),
            }
        }
        Variable::UpstreamStatus if making.by == ResponseOrigin::Upstream => status(),
        Variable::Upstream(of) => {
            Cow::Owned(of_attempts(making, response, |attempt| attempt_text(*of, attempt)).into_bytes())
        }
        Variable::ResponseHeader(name) => joined(response, name),
        Variable::ResponseCookie(name) => Cow::Borrowed(set_cookie(response, name).unwrap_or_default()),
        // The cache writes it there.
        Variable::CacheOutcome => Cow::Borrowed(response.field("x-cache-status").unwrap_or_default()),
        _ => Cow::Borrowed(b""),
    }
}

/// A text of each attempt at a server, separated by commas; empty without any.
fn of_attempts(making: Making<'_>, response: &Response, text: impl Fn(&Attempt) -> String) -> String {
    let Some(notes) = making.notes else { return String::new() };
    notes.attempts(response.note(), |attempts| attempts.iter().map(text).collect::<Vec<_>>().join(", "))
}

fn attempt_text(of: OfUpstream, attempt: &Attempt) -> String {
    let ns = match of {
        OfUpstream::Address => return attempt.address.to_string(),
        OfUpstream::ConnectTime => attempt.connect_ns,
        OfUpstream::HeaderTime => attempt.head_ns,
        OfUpstream::ResponseTime => attempt.response_ns,
    };
    match ns {
        Some(ns) => format!("{}.{:03}", ns / 1_000_000_000, ns / 1_000_000 % 1000),
        None => "-".to_owned(),
    }
}

/// The fields of a name; the values of several are joined.
fn joined<'r>(response: &'r Response, name: &'r str) -> Cow<'r, [u8]> {
    let mut values = response.field_all(name);
    let first = values.next().unwrap_or_default();
    let rest: Vec<&[u8]> = values.collect();
    match rest.is_empty() {
        true => Cow::Borrowed(first),
        false => Cow::Owned([&[first], &rest[..]].concat().join(&b", "[..])),
    }
}

/// The value of a cookie that the response sets.
fn set_cookie<'r>(response: &'r Response, name: &str) -> Option<&'r [u8]> {
    response.field_all("set-cookie").find_map(|line| {
        let pair = line.split(|&byte| byte == b';').next()?;
        pair.strip_prefix(name.as_bytes())?.strip_prefix(b"=")
    })
}
