//! `CachePolicy` and `LimitPolicy`: rules that routes get besides those of the Gateway API.
//!
//! A LimitPolicy that is invalid closes its routes, whose requests get 500: without it, they could be open to more than somebody wants. A CachePolicy that is
//! invalid is left out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use flatout_gateway as gateway;
use flatout_site::plan::{Action, Cached, Limited, Piece, Rate, RateUse, Route, Template, Variable};

use super::Settings;
use super::attach::RouteHead;
use super::policy::policy_status;
use super::rule::duration;
use crate::condition::{Condition, StatusUpdate};
use crate::kinds::own_policy::{CachePolicy, CacheSpec, LimitPolicy, LimitSpec};
use crate::kinds::policy::PolicyTarget;
use crate::kinds::{GATEWAY_GROUP, Metadata, ObjectKey, oldest_first};
use crate::objects::{Objects, find_kind};

/// Clients whose requests a rate counts, at most: 1.7 MB, of which only the parts with clients are allocated.
pub(super) const CLIENTS_MAX: usize = 100_000;

/// Rates of all objects. Routes of objects beyond it get 500.
pub(super) const RATES_MAX: usize = 4096;

/// IPv6 addresses are cut to this prefix: a client usually has a /64.
const CLIENT_IPV6_BITS: u8 = 64;

/// The policies of routes.
pub(super) struct RoutePolicies<'o> {
    caches: PolicyTable<'o, CacheSpec, gateway::Rules>,
    limits: PolicyTable<'o, LimitSpec, Limits>,
    /// The rates of limits, which come first in the plan.
    pub(super) rates: Vec<Rate>,
}

/// What a LimitPolicy demands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Limits {
    rate: Option<RateUse>,
    body_bytes_max: Option<u64>,
}

/// What routes see of all policies, in order of their age.
#[derive(PartialEq)]
pub(super) struct RoutePolicyShapes {
    caches: Vec<(ObjectKey, CacheSpec)>,
    limits: Vec<(ObjectKey, LimitSpec)>,
}

/// The policies of one kind, the oldest first.
struct PolicyTable<'o, S, R> {
    kind: &'static str,
    states: Vec<RoutePolicyState<'o, S, R>>,
    /// The policy of a route: by the kind and place of the route.
    targets: BTreeMap<(&'static str, ObjectKey), usize>,
}

struct RoutePolicyState<'o, S, R> {
    metadata: &'o Metadata,
    spec: &'o S,
    rules: Result<R, String>,
    /// The older policy with the same target, if there is one.
    older: Option<ObjectKey>,
    /// The gateways with routes that it is for.
    ancestors: BTreeSet<ObjectKey>,
}

impl<'o> RoutePolicies<'o> {
    /// All policies; of several for one route, the oldest counts.
    pub(super) fn new(objects: &'o Objects) -> RoutePolicies<'o> {
        let mut rates = Vec::new();
        let mut caches = PolicyTable::new("CachePolicy");
        let sorted = oldest_first(objects.cache_policies.values(), |it| &it.metadata);
        for CachePolicy { metadata, spec } in sorted {
            let rules = check_targets(&spec.target_refs, &["HTTPRoute"]).and_then(|()| cache_rules(spec));
            caches.add((metadata, spec), &spec.target_refs, rules);
        }
        let mut limits = PolicyTable::new("LimitPolicy");
        let sorted = oldest_first(objects.limit_policies.values(), |it| &it.metadata);
        for LimitPolicy { metadata, spec } in sorted {
            let rules = check_targets(&spec.target_refs, &["HTTPRoute", "GRPCRoute"])
                .and_then(|()| limits_of(&metadata.key(), spec, &mut rates));
            limits.add((metadata, spec), &spec.target_refs, rules);
        }
        RoutePolicies { caches, limits, rates }
    }

    pub(super) fn shapes(&self) -> RoutePolicyShapes {
        RoutePolicyShapes { caches: self.caches.shapes(), limits: self.limits.shapes() }
    }

    /// Adds what policies demand to a route of a site, which was made for this route object. `share` tells apart the routes of a rule.
    ///
    /// # Errors
    /// Its LimitPolicy is invalid.
    pub(super) fn apply(&self, of: RouteHead<'_>, share: usize, route: &mut Route) -> Result<(), String> {
        if let Some(policy) = self.limits.of(of) {
            let invalid =
                |why: &String| format!("the LimitPolicy {} is invalid: {why}", policy.metadata.key());
            let limits = policy.rules.as_ref().map_err(invalid)?;
            route.rules.rates.extend(limits.rate.clone());
            route.rules.body.bytes_max = limits.body_bytes_max;
        }
        let cached = self.caches.of(of).and_then(|it| it.rules.as_ref().ok());
        if let Some(rules) = cached.filter(|_| matches!(route.action, Action::Proxy(_))) {
            route.rules.cache = Some(Cached {
                rules: rules.clone(),
                // Other conditions and other backends have other responses for the same URL.
                key: Some(cache_key(&route.name, share)),
                ..Cached::default()
            });
        }
        Ok(())
    }

    /// Notes that a gateway serves a route.
    pub(super) fn add_ancestor(&mut self, route: &(&'static str, ObjectKey), gateway: &ObjectKey) {
        self.caches.add_ancestor(route, gateway);
        self.limits.add_ancestor(route, gateway);
    }

    /// The statuses of those that concern a gateway of this controller.
    pub(super) fn statuses(&self, settings: &Settings) -> Vec<Arc<StatusUpdate>> {
        let mut all = self.caches.statuses(settings);
        all.extend(self.limits.statuses(settings));
        all
    }
}

impl<'o, S: Clone, R> PolicyTable<'o, S, R> {
    fn new(kind: &'static str) -> PolicyTable<'o, S, R> {
        PolicyTable { kind, states: Vec::new(), targets: BTreeMap::new() }
    }

    fn add(
        &mut self,
        (metadata, spec): (&'o Metadata, &'o S),
        targets: &[PolicyTarget],
        rules: Result<R, String>,
    ) {
        let at = self.states.len();
        let mut older = None;
        for target in targets.iter().filter(|it| it.group == GATEWAY_GROUP) {
            let Some(kind) = find_kind(&format!("{GATEWAY_GROUP}/v1"), &target.kind) else { continue };
            let place = (kind.name, ObjectKey::new(&metadata.namespace, &target.name));
            let first = *self.targets.entry(place).or_insert(at);
            if first != at {
                older = self.states.get(first).map(|it| it.metadata.key());
            }
        }
        self.states.push(RoutePolicyState { metadata, spec, rules, older, ancestors: BTreeSet::new() });
    }

    fn of(&self, route: RouteHead<'_>) -> Option<&RoutePolicyState<'o, S, R>> {
        let at = self.targets.get(&(route.kind, route.metadata.key()))?;
        self.states.get(*at)
    }

    fn shapes(&self) -> Vec<(ObjectKey, S)> {
        self.states.iter().map(|it| (it.metadata.key(), it.spec.clone())).collect()
    }

    fn add_ancestor(&mut self, route: &(&'static str, ObjectKey), gateway: &ObjectKey) {
        let at = self.targets.get(route);
        if let Some(state) = at.and_then(|at| self.states.get_mut(*at)) {
            state.ancestors.insert(gateway.clone());
        }
    }

    fn statuses(&self, settings: &Settings) -> Vec<Arc<StatusUpdate>> {
        let used = self.states.iter().filter(|it| !it.ancestors.is_empty());
        let status = |state: &RoutePolicyState<'_, S, R>| {
            let accepted = match (&state.rules, &state.older) {
                (Err(why), _) => Condition::bad("Accepted", "Invalid", why.clone()),
                (Ok(_), Some(older)) => {
                    let message = format!("the older policy {older} has the same target");
                    Condition::bad("Accepted", "Conflicted", message)
                }
                (Ok(_), None) => Condition::good("Accepted"),
            };
            policy_status(self.kind, state.metadata, &[accepted], &state.ancestors, settings)
        };
        used.filter_map(status).collect()
    }
}

fn check_targets(targets: &[PolicyTarget], kinds: &[&str]) -> Result<(), String> {
    for target in targets {
        if target.group != GATEWAY_GROUP || !kinds.contains(&target.kind.as_str()) {
            return Err(format!("a target of the kind {}, need one of {}", target.kind, kinds.join(", ")));
        }
        if target.section_name.is_some() {
            return Err("sectionName is not supported; the policy is for all rules of a route".to_owned());
        }
    }
    Ok(())
}

fn cache_rules(spec: &CacheSpec) -> Result<gateway::Rules, String> {
    let time = |text: &Option<String>| text.as_deref().map_or(Ok(None), duration);
    let mut rules = gateway::Rules::default();
    if let Some(valid) = time(&spec.valid_for)? {
        rules.valid = gateway::Rules::fresh(valid).valid;
    }
    if spec.stale_for.is_some() {
        rules.stale_time = time(&spec.stale_for)?.unwrap_or_default();
        rules.stale_statuses = vec![500..=599];
    }
    rules.updating_time = time(&spec.updating_for)?.unwrap_or_default();
    Ok(rules)
}

fn limits_of(policy: &ObjectKey, spec: &LimitSpec, rates: &mut Vec<Rate>) -> Result<Limits, String> {
    if spec.requests.is_none() && spec.body_bytes.is_none() {
        return Err("it limits nothing; need `requests` or `bodyBytes`".to_owned());
    }
    let mut limits = Limits { rate: None, body_bytes_max: spec.body_bytes };
    if let Some(requests) = &spec.requests {
        let window = requests.window.as_deref().map_or(Ok(None), duration)?;
        if requests.count == 0 {
            return Err("got 0 requests, need at least 1".to_owned());
        }
        let rate = Rate {
            name: format!("LimitPolicy/{policy}"),
            key: Limited::Client { ipv6_bits: CLIENT_IPV6_BITS },
            requests: requests.count,
            window: window.unwrap_or(Duration::from_secs(1)),
            keys_max: CLIENTS_MAX,
        };
        let rate = add_rate(rates, rate)?;
        limits.rate = Some(RateUse {
            rate,
            burst: requests.burst,
            delay: None,
            status: 429,
            fields: true,
            is_dry_run: false,
        });
    }
    Ok(limits)
}

/// Adds a rate to those of a plan. Returns its index.
///
/// # Errors
/// There are too many.
pub(super) fn add_rate(rates: &mut Vec<Rate>, rate: Rate) -> Result<usize, String> {
    if rates.len() >= RATES_MAX {
        return Err(format!("older objects have {RATES_MAX} rates already, the largest number"));
    }
    rates.push(rate);
    Ok(rates.len() - 1)
}

/// What distinguishes the responses of a route of a site.
fn cache_key(route: &str, share: usize) -> Template {
    Template(vec![
        Piece::Text(format!("{route}.{share} ")),
        Piece::Variable(Variable::Scheme),
        Piece::Text("://".to_owned()),
        Piece::Variable(Variable::Host),
        Piece::Variable(Variable::Target),
    ])
}
