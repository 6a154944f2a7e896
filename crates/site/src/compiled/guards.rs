//! The guards of a route, checked and prepared.

use std::collections::HashMap;
use std::sync::Arc;

use flatout_expression::Regex;
use flatout_wire::Status;

use super::super::access::AccessList;
use super::super::basic::Basic;
use super::super::client::Clients;
use super::super::concurrency::Gate;
use super::super::facts::Uses;
use super::super::fault::{Fault, Place};
use super::super::maps::TableCounts;
use super::super::pages::CompiledMaintenance;
use super::super::plan::{
    self, ConcurrencyUse, ForwardAuth, Limited, Plan, RateUse, Rules, Template, Variable, Verdict,
};
use super::super::rate::Buckets;
use super::super::render::Text;
use super::super::reroute::CompiledReroute;
use super::Parts;
use super::blocks::{Block, blocks};

/// What is checked before a request is answered.
#[derive(Debug, Clone, Default)]
pub(crate) struct Guards {
    /// Who the clients are, if that is not as for the site.
    pub(crate) clients: Option<Arc<Clients>>,
    pub(crate) maintenance: Option<Arc<CompiledMaintenance>>,
    pub(crate) access: Arc<AccessList>,
    /// One of address, password and auth service is enough; there is a password or an auth service.
    pub(crate) satisfies_any: bool,
    pub(crate) rates: Vec<CompiledRate>,
    pub(crate) basic: Option<Basic>,
    pub(crate) authority: Option<Arc<Authority>>,
    /// The route that decides in its place.
    pub(crate) auth_route: Option<CompiledReroute>,
    pub(crate) body_bytes_max: Option<u64>,
    pub(crate) gates: Vec<CompiledGate>,
    /// Rules under conditions.
    pub(crate) blocks: Vec<Block>,
    pub(crate) of_user: UserRules,
}

/// Which rules depend on the user. They are decided when that is known.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct UserRules {
    /// Access lists of blocks.
    pub(crate) access: bool,
    /// One of these allows: no other list may deny before.
    pub(crate) allow: bool,
    /// Rates of blocks, or rates by user.
    pub(crate) rates: bool,
}

impl UserRules {
    fn of(rules: &Rules, rates: &[CompiledRate], blocks: &[Block]) -> UserRules {
        let of_user = || rules.when.iter().zip(blocks).filter(|(_, block)| block.uses.has(Uses::USER));
        let lines = || of_user().flat_map(|(when, _)| &when.rules.access);
        let mut rates = rates.iter().chain(blocks.iter().flat_map(|block| &block.guards.rates));
        UserRules {
            access: lines().next().is_some(),
            allow: lines().any(|line| line.verdict == Verdict::Allow),
            rates: rates.any(|rate| rate.is_of_user),
        }
    }
}

/// A rate limit of a route.
#[derive(Debug, Clone)]
pub(crate) struct CompiledRate {
    pub(crate) key: Key,
    /// Its key, or the condition that it is under, depends on the user.
    pub(crate) is_of_user: bool,
    pub(crate) buckets: Arc<Buckets>,
    pub(crate) burst: u32,
    pub(crate) delay: Option<u32>,
    pub(crate) status: Status,
    /// `"name";q=…;w=…` and `"name"`, if responses carry these fields.
    pub(crate) field_values: Option<(String, String)>,
    pub(crate) is_dry_run: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct CompiledGate {
    pub(crate) key: Key,
    pub(crate) gate: Arc<Gate>,
    pub(crate) is_dry_run: bool,
}

/// Whose requests are counted together.
#[derive(Debug, Clone)]
pub(crate) enum Key {
    Everyone,
    Client { ipv6_bits: u8 },
    Text(Text),
}

#[derive(Debug)]
pub(crate) struct Authority {
    pub(crate) plan: ForwardAuth,
    pub(crate) target: Text,
    pub(crate) sign_in: Option<Text>,
    /// The request's own fields of these names are removed.
    pub(crate) dropped: Vec<String>,
    /// The fields of its response that are used.
    pub(crate) asked: Vec<String>,
}

impl Authority {
    /// Whether a field of its response is added to the request.
    pub(crate) fn adds(&self, name: &str) -> bool {
        self.plan.response_fields.iter().any(|added| added.eq_ignore_ascii_case(name))
    }

    fn uses_captures(&self) -> bool {
        self.target.uses_captures() || self.sign_in.as_ref().is_some_and(Text::uses_captures)
    }
}

/// The fields of auth services' responses that the plan uses as variables. A text of one route may show what the auth service of another
/// has said, from which the request was rerouted.
pub(super) fn auth_names(plan: &Plan) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    plan.variables(&mut |variable| {
        if let Variable::AuthField(name) = variable
            && !names.contains(name)
        {
            names.push(name.clone());
        }
    });
    names
}

/// What routes name by index, created once, with the settings of each.
#[derive(Debug)]
pub(crate) struct SharedLimits {
    buckets: Vec<(plan::Rate, Arc<Buckets>)>,
    gates: Vec<(plan::Concurrency, Arc<Gate>)>,
}

impl SharedLimits {
    /// How many requests have a permit.
    pub(super) fn permits(&self) -> u64 {
        self.gates.iter().map(|(_, gate)| gate.in_progress()).sum()
    }

    /// Limits that `former` has with the same settings are kept.
    pub(super) fn after(plan: &Plan, former: Option<&SharedLimits>) -> Result<SharedLimits, Fault> {
        let mut former_rates: HashMap<&str, Vec<&(plan::Rate, Arc<Buckets>)>> = HashMap::new();
        for known in former.into_iter().flat_map(|former| &former.buckets) {
            former_rates.entry(&known.0.name).or_default().push(known);
        }
        let buckets = plan.rates.iter().enumerate().map(|(at, rate)| {
            let place = Place::Rate(at);
            if rate.requests == 0 || rate.window.is_zero() || rate.keys_max == 0 {
                return Err(place.fault(format!(
                    "the rate `{}`: requests, window and keys must be at least 1",
                    rate.name
                )));
            }
            if !rate.name.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"\\".contains(&byte))
                || rate.name.is_empty()
            {
                return Err(place.fault(format!(
                    "the rate {:?}: its name must be visible ASCII without quotes",
                    rate.name
                )));
            }
            let named = former_rates.get(rate.name.as_str()).into_iter().flatten();
            let known = named.copied().find(|(known, _)| known == rate);
            let made = || Arc::new(Buckets::new(rate.requests, rate.window, rate.keys_max));
            Ok((rate.clone(), known.map_or_else(made, |(_, buckets)| buckets.clone())))
        });
        let gates = plan.concurrency.iter().enumerate().map(|(at, limit)| {
            if limit.requests_max == 0 || limit.keys_max == 0 {
                let reason = format!("the limit `{}`: requests and keys must be at least 1", limit.name);
                return Err(Place::Concurrency(at).fault(reason));
            }
            let known = former.and_then(|former| former.gates.iter().find(|(known, _)| known == limit));
            Ok((limit.clone(), known.map_or_else(|| Gate::new(limit), |(_, gate)| gate.clone())))
        });
        Ok(SharedLimits {
            buckets: buckets.collect::<Result<_, Fault>>()?,
            gates: gates.collect::<Result<_, Fault>>()?,
        })
    }
}

impl Guards {
    /// Whether the client, or which blocks are in force, is decided before the first step.
    #[inline]
    pub(crate) fn decide_first(&self) -> bool {
        self.clients.is_some() || !self.blocks.is_empty()
    }

    /// Whether they allow every request.
    pub(crate) fn is_open(&self) -> bool {
        self.clients.is_none()
            && self.maintenance.is_none()
            && self.access.is_empty()
            && self.rates.is_empty()
            && self.basic.is_none()
            && self.authority.is_none()
            && self.auth_route.is_none()
            && self.gates.is_empty()
            && self.blocks.is_empty()
    }

    /// Whether a user may be known after them.
    #[inline]
    pub(crate) fn identifies(&self) -> bool {
        self.basic.is_some() || self.authority.is_some()
    }

    /// Whether an auth service or a route decides about requests.
    pub(crate) fn has_authority(&self) -> bool {
        self.authority.is_some() || self.auth_route.is_some()
    }

    /// Removes the guards at which a request may wait.
    pub(super) fn remove_waits(&mut self) {
        (self.basic, self.authority, self.auth_route) = (None, None, None);
        self.rates.clear();
        self.gates.clear();
        for block in &mut self.blocks {
            block.guards.rates.clear();
            block.guards.gates.clear();
        }
        self.of_user.rates = false;
    }

    pub(super) fn new(
        parts: Parts<'_>,
        rules: &Rules,
        expression: Option<&Regex>,
        place: Place,
    ) -> Result<Guards, Fault> {
        let Parts { plan, shared, .. } = parts;
        let text = |template: &Template| Text::new(template, expression, TableCounts::of(plan), place);
        let key = |limited: &Limited| {
            Ok(match limited {
                Limited::Everyone => Key::Everyone,
                Limited::Client { ipv6_bits: bits @ 1..=128 } => Key::Client { ipv6_bits: *bits },
                Limited::Client { ipv6_bits } => {
                    return Err(
                        place.fault(format!("got {ipv6_bits} bits of an IPv6 address, need 1 to 128"))
                    );
                }
                Limited::Text(template) => Key::Text(text(template)?),
            })
        };
        let rate = |used: &RateUse| {
            let at = within(used.rate, plan.rates.len(), "rate", place)?;
            let Some((rate, buckets)) = shared.buckets.get(at) else {
                return Err(place.fault("no such rate"));
            };
            let all: Vec<u16> = (400..600).collect();
            let key = key(&rate.key)?;
            Ok(CompiledRate {
                is_of_user: matches!(&key, Key::Text(text) if text.uses(parts.tables).has(Uses::USER)),
                key,
                buckets: buckets.clone(),
                burst: used.burst,
                delay: used.delay,
                status: status_of(used.status, &all, place)?,
                is_dry_run: used.is_dry_run,
                field_values: used.fields.then(|| {
                    let (name, seconds) = (&rate.name, rate.window.as_secs().max(1));
                    (format!("\"{name}\";q={};w={seconds}", rate.requests), format!("\"{name}\""))
                }),
            })
        };
        let gate = |used: &ConcurrencyUse| {
            let at = within(used.limit, plan.concurrency.len(), "concurrency limit", place)?;
            let Some((limit, gate)) = shared.gates.get(at) else {
                return Err(place.fault("no such limit"));
            };
            Ok(CompiledGate { key: key(&limit.key)?, gate: gate.clone(), is_dry_run: used.is_dry_run })
        };
        let basic = |basic| Basic::new(basic, place);
        let authority = |authority: &ForwardAuth| {
            within(authority.upstream, plan.upstreams.len(), "upstream", place)?;
            let dropped = authority.response_fields.iter().map(|name| name.to_ascii_lowercase()).collect();
            let mut asked = authority.response_fields.clone();
            asked.extend(parts.auth_names.iter().cloned());
            Ok(Arc::new(Authority {
                target: text(&authority.target)?,
                sign_in: authority.sign_in.as_ref().map(text).transpose()?,
                plan: authority.clone(),
                dropped,
                asked,
            }))
        };
        let auth_route = |to: &plan::Reroute| CompiledReroute::new(to, plan, expression, place);
        let maintenance =
            rules.maintenance.as_ref().map(|closed| CompiledMaintenance::new(closed, place)).transpose()?;
        let clients = rules.trust.as_ref().map(|trust| Arc::new(Clients::new(trust)));
        let rates = rules.rates.iter().map(rate).collect::<Result<Vec<_>, Fault>>()?;
        let blocks = blocks(parts, rules, expression, place)?;
        Ok(Guards {
            of_user: UserRules::of(rules, &rates, &blocks),
            clients,
            maintenance: maintenance.map(Arc::new),
            access: Arc::new(AccessList::new(&rules.access)),
            satisfies_any: rules.satisfies_any && rules.has_authentication(),
            rates,
            basic: rules.basic_auth.as_ref().map(basic).transpose()?,
            authority: rules.forward_auth.as_ref().map(authority).transpose()?,
            auth_route: rules.auth_route.as_ref().map(auth_route).transpose()?,
            body_bytes_max: rules.body.bytes_max,
            gates: rules.concurrency.iter().map(gate).collect::<Result<_, Fault>>()?,
            blocks,
        })
    }

    pub(super) fn uses_captures(&self) -> bool {
        let key = |key: &Key| matches!(key, Key::Text(text) if text.uses_captures());
        self.rates.iter().any(|rate| key(&rate.key))
            || self.gates.iter().any(|gate| key(&gate.key))
            || self.authority.as_ref().is_some_and(|authority| authority.uses_captures())
            || self.auth_route.as_ref().is_some_and(CompiledReroute::uses_captures)
            || self.blocks.iter().any(Block::uses_captures)
    }
}

pub(super) fn within(index: usize, count: usize, what: &str, place: Place) -> Result<usize, Fault> {
    if index < count { Ok(index) } else { Err(place.fault(format!("no {what} {index}: there are {count}"))) }
}

pub(super) fn status_of(code: u16, allowed: &[u16], place: Place) -> Result<Status, Fault> {
    Status::from_code(code)
        .filter(|_| allowed.contains(&code))
        .ok_or_else(|| place.fault(format!("the status {code} cannot be used here")))
}
