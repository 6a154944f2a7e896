//! Explains where a request would go, and why, with the code that a server uses to decide it.

use std::borrow::Cow;
use std::net::SocketAddr;

use flatout_wire::Head;
use flatout_wire::head::{HeadLimits, parse};
use flatout_wire::target::forward_path;

use super::compiled::{Compiled, CompiledRoute};
use super::cost::steps;
use super::facts::Uses;
use super::fault::Fault;
use super::plan::{PathMatch, Plan, Route};
use super::render::{Captures, View};
use super::resolve::{Arrival, NoRoute, Origin, Resolution};
use super::steps::Identity;
use super::table::{Found, RouteQuery, Table};

/// A hypothetical request.
#[derive(Debug, Clone)]
pub struct Question {
    /// The method.
    pub method: String,
    /// The host, with a port if needed.
    pub host: String,
    /// Path and query, as a client would send them.
    pub target: String,
    /// Fields besides `Host`.
    pub fields: Vec<(String, String)>,
    /// The peer of the connection.
    pub peer: Option<SocketAddr>,
    /// The number of the listener.
    pub listener: u16,
    /// It comes over TLS.
    pub is_tls: bool,
}

/// Where the request would go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explained {
    /// The index of the site.
    pub site: Option<usize>,
    /// The index of the route in the site, or why there is none.
    pub route: Result<usize, Refused>,
    /// The path in its normal form, after all rewrites.
    pub path: String,
    /// The target that an upstream would get.
    pub target: String,
    /// The client's address, according to trusted proxies.
    pub client: Option<std::net::IpAddr>,
    /// The conditions that were decided, in their order.
    pub conditions: Vec<ExplainedCondition>,
    /// The most steps that conditions take for a request of this path.
    pub steps: usize,
}

/// A condition, and whether it is true for the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExplainedCondition {
    /// Its text.
    pub source: String,
    /// `None`: it depends on the response.
    pub holds: Option<bool>,
    /// The route that is chosen only if it is true; `None` for rules.
    pub route: Option<usize>,
}

/// Why no route matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The status of the response.
    pub status: u16,
    /// The reason, in a few words.
    pub reason: String,
    /// The route whose rules apply first, if the path has one.
    pub route: Option<usize>,
}

impl Refused {
    fn of(status: u16, reason: impl Into<String>) -> Refused {
        Refused { status, reason: reason.into(), route: None }
    }
}

/// What a valid plan does and its author may not expect, in the site with this index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Advice {
    /// The index of the site.
    pub site: usize,
    /// The index of the route.
    pub route: usize,
    /// The index of the other route.
    pub other: usize,
    /// What is unexpected.
    pub kind: AdviceKind,
}

/// What a plan does unexpectedly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdviceKind {
    /// Requests with methods that the route does not list get 405. They do not go to the other, less specific route.
    Methods,
    /// Some paths below the route match the other route's pattern, which is used first and does not ask for the same
    /// password or address.
    Pattern,
}

/// Finds what a reader of a plan might not expect.
///
/// # Errors
/// The first error in the plan.
pub fn advice(plan: &Plan) -> Result<Vec<Advice>, Fault> {
    let compiled = Compiled::new(plan)?;
    let mut found = Vec::new();
    for (site, (planned, opened)) in plan.sites.iter().zip(&*compiled.sites).enumerate() {
        for (at, route) in planned.routes.iter().enumerate() {
            if let Some(other) = behind(&planned.routes, at, &opened.table) {
                found.push(Advice { site, route: at, other, kind: AdviceKind::Methods });
            }
            let patterns = planned.routes.iter().position(|pattern| is_unprotected(route, pattern));
            if let Some(other) = patterns {
                found.push(Advice { site, route: at, other, kind: AdviceKind::Pattern });
            }
        }
    }
    Ok(found)
}

/// The less specific route that a reader might expect to get the methods that a route, and those with the same paths, do
/// not list.
fn behind(routes: &[Route], at: usize, table: &Table) -> Option<usize> {
    let route = routes.get(at)?;
    let is_first = routes.iter().take(at).all(|other| !other.path.is_same(&route.path));
    let takes_all = routes.iter().any(|other| other.path.is_same(&route.path) && other.methods.is_empty());
    if !is_first || takes_all {
        return None;
    }
    // A path of this route that no exact path and hardly any pattern matches: a space is never sent plainly.
    let path = match &route.path {
        PathMatch::Exact(path) => path.clone(),
        PathMatch::Prefix { path, .. } => format!("{}/ ", path.trim_end_matches('/')),
        PathMatch::Glob(_) | PathMatch::Regex { .. } => "/ ".to_owned(),
    };
    table.behind(path.as_bytes(), at)
}

/// Whether a route checks who its clients are, and paths below it may match a pattern whose route does not check it.
fn is_unprotected(route: &Route, other: &Route) -> bool {
    let PathMatch::Prefix { path, before_patterns: false, .. } = &route.path else { return false };
    let begins = match &other.path {
        PathMatch::Glob(glob) => glob.split(['*', '?']).next(),
        PathMatch::Regex { pattern, .. } => {
            let anchored = pattern.strip_prefix('^').unwrap_or_default();
            anchored.split(|byte: char| !byte.is_ascii_alphanumeric() && !"/-_".contains(byte)).next()
        }
        _ => return false,
    };
    let begins = begins.unwrap_or_default();
    let (rules, others) = (&route.rules, &other.rules);
    let is_open = (rules.basic_auth.is_some() && rules.basic_auth != others.basic_auth)
        || (rules.forward_auth.is_some() && rules.forward_auth != others.forward_auth)
        || (rules.auth_route.is_some() && rules.auth_route != others.auth_route)
        || (!rules.access.is_empty() && rules.access != others.access);
    is_open && (path.starts_with(begins) || begins.starts_with(path.as_str()))
}

/// Decides where a request would go.
///
/// # Errors
/// The first error in the plan.
pub fn explain(plan: &Plan, question: &Question) -> Result<Explained, Fault> {
    let compiled = Compiled::new(plan)?;
    Ok(compiled.explain(question))
}

impl Compiled {
    fn explain(&self, question: &Question) -> Explained {
        let Question { method, host, target, fields, peer, listener, is_tls } = question;
        let fields = fields.iter().map(|(name, value)| format!("{name}: {value}\r\n"));
        let bytes =
            format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\n{}\r\n", fields.collect::<String>());
        let mut spans = Vec::new();
        let no_route = |refused| Explained {
            site: None,
            route: Err(refused),
            path: String::new(),
            target: target.clone(),
            client: None,
            conditions: Vec::new(),
            steps: 0,
        };
        let head = match parse(bytes.as_bytes(), &mut spans, &HeadLimits::default()) {
            Ok(Some(head)) => head,
            Ok(None) => return no_route(Refused::of(400, "it is not a complete request")),
            Err(fault) => return no_route(Refused::of(fault.status().code(), fault.reason())),
        };
        let mut scratch = Vec::new();
        let path = match head.path() {
            b"*" => head.path(),
            path => match forward_path(path, &mut scratch) {
                Ok(path) => path,
                Err(_) => return no_route(Refused::of(400, "the path is malformed")),
            },
        };
        let identity = Identity::default();
        let arrival = Arrival { listener: *listener, peer: *peer, announcer: None, is_tls: *is_tls };
        let origin = Origin { arrival, request: None, identity: &identity, rerouted: None };
        let mut resolution = self.resolve(&head, path, &origin);
        let ruling = resolution.site.zip(resolution.ruling_route());
        let ruling = ruling.and_then(|(site, route)| self.sites.get(site)?.routes.get(route));
        if let Some(clients) = ruling.and_then(|route| route.guards.clients.as_ref()) {
            resolution.client = clients.client(&head, *peer, *is_tls);
        }
        let (conditions, steps) = self.explain_conditions(&head, path, &resolution, &identity);
        let text = |bytes: Cow<'_, [u8]>| String::from_utf8_lossy(&bytes).into_owned();
        Explained {
            site: resolution.site,
            route: match &resolution.route {
                Ok(route) => Ok(*route),
                Err(no_route) => Err(Refused {
                    route: resolution.ruling_route(),
                    ..Refused::of(no_route.status().code(), no_route.words())
                }),
            },
            path: text(resolution.goal.path.clone()),
            target: text(resolution.target(&head)),
            client: resolution.client.address,
            conditions,
            steps,
        }
    }

    /// The conditions of all routes that have the path, and of the rules of the chosen one, and the most steps that they take.
    fn explain_conditions(
        &self,
        head: &Head<'_>,
        path: &[u8],
        resolution: &Resolution<'_>,
        identity: &Identity,
    ) -> (Vec<ExplainedCondition>, usize) {
        let Some(site) = resolution.site.and_then(|site| self.sites.get(site)).map(|site| &**site) else {
            return (Vec::new(), 0);
        };
        let view = self.view_of(head, None, resolution, identity);
        let query = RouteQuery { method: head.method_name(), preflight: None };
        let has_path = |at: usize| {
            site.before_paths.contains(&at)
                || site.table.find_where(path, query, |other| other == at) != Found::Nothing
        };
        let candidates: Vec<(usize, &CompiledRoute)> = site
            .routes
            .iter()
            .enumerate()
            .filter(|(at, route)| !route.when.is_empty() && has_path(*at))
            .collect();
        let mut found = Vec::new();
        for (at, route) in &candidates {
            let captured = route.captures.as_ref().and_then(|expression| Captures::of(expression, path));
            let view = View { path, captured: captured.as_ref().unwrap_or(view.captured), ..view };
            found.extend(route.when.iter().map(|condition| ExplainedCondition {
                source: condition.source().to_owned(),
                holds: Some(condition.holds(&view)),
                route: Some(*at),
            }));
        }
        let chosen = resolution.ruling_route().and_then(|at| site.routes.get(at));
        let blocks = chosen.map_or(&site.rest.blocks, |route| &route.guards.blocks);
        found.extend(blocks.iter().map(|block| {
            let sources: Vec<&str> = block.conditions.iter().map(|condition| condition.source()).collect();
            let is_late = block.uses.has(Uses::RESPONSE);
            let holds = (!is_late).then(|| block.holds(&view));
            ExplainedCondition { source: sources.join(", and "), holds, route: None }
        }));
        let candidates: Vec<&CompiledRoute> = candidates.into_iter().map(|(_, route)| route).collect();
        (found, steps(&self.tables, site, &candidates, chosen))
    }
}

impl NoRoute {
    fn words(&self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            NoRoute::NoSite => "there is no site for this host",
            NoRoute::NotFound => "no route matches this path",
            NoRoute::WrongMethod { allowed, .. } => {
                return Cow::Owned(format!(
                    "the route of this path allows only {allowed}; other methods do not go to a less specific route"
                ));
            }
            NoRoute::Path(reason) => reason,
            NoRoute::Circle => "the rewrites form a loop",
            NoRoute::Bug => "a mistake in flatout, see its log",
            NoRoute::Server => "it applies to the whole server",
        })
    }
}
