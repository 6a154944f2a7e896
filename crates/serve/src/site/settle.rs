//! Determines a request's site, route and path before any rule is checked. The result depends only on the request and
//! the plan, so it can be computed again.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};

use flatout_wire::target::{encode_path, normal_path};
use flatout_wire::{Head, Method, Status};

use super::answer::Identity;
use super::compiled::{Act, Compiled, Route, Site};
use super::cors::preflight_method;
use super::forward::Client;
use super::plan::PathPolicy;
use super::readings;
use super::render::{Captured, View, write_target};
use super::rewrite::{Goal, Rewritten};
use super::table::{Asked, Found};

/// How often one request may be rewritten to another route, as in nginx.
const ROUTES_CHOSEN_MAX: usize = 10;

/// Where a request goes.
pub(crate) struct Settled<'a> {
    pub(crate) site: Option<usize>,
    pub(crate) route: Result<usize, Nowhere>,
    pub(crate) goal: Goal<'a>,
    pub(crate) client: Client,
    pub(crate) peer: Option<IpAddr>,
    pub(crate) captured: Captured,
    /// The upstream gets the goal, not what the client sent.
    pub(crate) sends_goal: bool,
}

/// Why no route matches a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Nowhere {
    /// 421
    NoSite,
    /// 404
    NoRoute,
    /// 405, with the allowed methods.
    WrongMethod(String),
    /// 400
    Path(&'static str),
    /// 500: rewrites in a cycle.
    Circle,
    /// `OPTIONS *`: a request about the server itself.
    Server,
}

impl Nowhere {
    pub(crate) fn status(&self) -> Status {
        match self {
            Nowhere::NoSite => Status::MISDIRECTED_REQUEST,
            Nowhere::NoRoute => Status::NOT_FOUND,
            Nowhere::WrongMethod(_) => Status::METHOD_NOT_ALLOWED,
            Nowhere::Path(_) => Status::BAD_REQUEST,
            Nowhere::Circle => Status::INTERNAL_SERVER_ERROR,
            Nowhere::Server => Status::NO_CONTENT,
        }
    }
}

impl Compiled {
    /// Determines where a request goes. `path` is in its normal form for requests that are forwarded.
    pub(crate) fn settle<'a>(
        &self,
        head: &Head<'a>,
        path: &'a [u8],
        peer: Option<SocketAddr>,
        is_tls: bool,
    ) -> Settled<'a> {
        let mut settled = Settled {
            site: self.hosts.find(head.authority()),
            route: Err(Nowhere::NoSite),
            goal: Goal {
                path: Cow::Borrowed(path),
                query: head.query().map(Cow::Borrowed),
                is_rewritten: false,
            },
            client: self.clients.client(head, peer, is_tls),
            peer: peer.map(|peer| peer.ip().to_canonical()),
            captured: Captured::default(),
            sends_goal: true,
        };
        let Some(site) = settled.site.and_then(|site| self.sites.get(site)) else { return settled };
        settled.route = match head.method {
            Method::Options if path == b"*" => Err(Nowhere::Server),
            // TRACE could reveal fields to another page (RFC 9110 section 9.3.8), and tunnels by CONNECT are not
            // supported.
            Method::Trace | Method::Connect => Err(Nowhere::WrongMethod("GET, HEAD".to_owned())),
            _ => self.route(site, head, path, &mut settled),
        };
        settled
    }

    fn route<'a>(
        &self,
        site: &Site,
        head: &Head<'_>,
        form: &'a [u8],
        settled: &mut Settled<'a>,
    ) -> Result<usize, Nowhere> {
        let (at, goal) = self.choose(site, head, settled, form)?;
        let Some(route) = site.routes.get(at) else { return Err(Nowhere::NoRoute) };
        if route.paths == PathPolicy::Strict && head.path_needs_care {
            normal_path(head.path(), &mut Vec::new()).map_err(|_| Nowhere::Path("the path is malformed"))?;
        }
        settled.sends_goal = goal.as_ref().is_some_and(|goal| goal.is_rewritten);
        if let Act::Proxy(forward) = &route.act {
            settled.sends_goal |= forward.normal_path;
            self.check_readings(site, head, settled, form, route)?;
        }
        if let Some(goal) = goal {
            settled.goal = goal;
        }
        if let Some(expression) = &route.captures {
            settled.captured = Captured::of(expression, &settled.goal.path)
                .or_else(|| Captured::of(expression, form))
                .unwrap_or_default();
        }
        Ok(at)
    }

    /// Rewrites and routes a path in turn, until a route is final. Also returns the rewritten goal, if there were
    /// rewrites.
    fn choose<'p>(
        &self,
        site: &Site,
        head: &Head<'_>,
        settled: &Settled<'p>,
        path: &'p [u8],
    ) -> Result<(usize, Option<Goal<'p>>), Nowhere> {
        const BAD: Nowhere = Nowhere::Path("the rewritten path is malformed");
        let asked = Asked { method: head.method_name(), preflight: preflight_method(head) };
        let begin =
            || Goal { path: Cow::Borrowed(path), query: settled.goal.query.clone(), is_rewritten: false };
        let mut goal = None;
        if !site.rewrites.is_empty() {
            let goal = goal.get_or_insert_with(begin);
            if site.rewrites.apply(goal, &self.view(head, settled)) == Rewritten::Bad {
                return Err(BAD);
            }
        }
        for _ in 0..ROUTES_CHOSEN_MAX {
            let path = goal.as_ref().map_or(path, |goal| &goal.path);
            let at = match site.table.find(path, asked) {
                Found::Route(at) => at,
                Found::WrongMethod => return Err(Nowhere::WrongMethod(site.table.methods_of(path))),
                Found::Nothing => return Err(Nowhere::NoRoute),
            };
            let Some(route) = site.routes.get(at) else { return Err(Nowhere::NoRoute) };
            if route.rewrites.is_empty() {
                return Ok((at, goal));
            }
            let captured = match &route.captures {
                Some(expression) => Captured::of(expression, path).unwrap_or_default(),
                None => Captured::default(),
            };
            let view = View { captured: &captured, ..self.view(head, settled) };
            match route.rewrites.apply(goal.get_or_insert_with(begin), &view) {
                Rewritten::Done => return Ok((at, goal)),
                Rewritten::Route => {}
                Rewritten::Bad => return Err(BAD),
            }
        }
        Err(Nowhere::Circle)
    }

    /// Makes sure that no other reading of the path evades the rules (see [`readings`]).
    fn check_readings(
        &self,
        site: &Site,
        head: &Head<'_>,
        settled: &mut Settled<'_>,
        form: &[u8],
        route: &Route,
    ) -> Result<(), Nowhere> {
        // Nearly all paths have only one reading.
        if !head.path_needs_care && form == head.path() && !form.contains(&b';') {
            return Ok(());
        }
        let leads_here = |path: &[u8]| {
            let chosen = self.choose(site, head, settled, path);
            let other: Option<&Route> = chosen.ok().and_then(|(at, _)| site.routes.get(at));
            other.is_some_and(|other| other.class == route.class)
        };
        if !readings::form_is_clear(form, leads_here) {
            return Err(Nowhere::Path("the path is ambiguous, and its readings have different rules"));
        }
        if !settled.sends_goal && !readings::sent_is_clear(head.path(), form, leads_here) {
            settled.sends_goal = true;
        }
        Ok(())
    }

    /// The view of a request that has begun, for templates.
    pub(crate) fn view_of<'v>(
        &'v self,
        head: &'v Head<'v>,
        settled: &'v Settled<'_>,
        identity: &'v Identity,
    ) -> View<'v> {
        let certificate = identity.certificate.as_deref();
        View { user: &identity.user, certificate, ..self.view(head, settled) }
    }

    /// The view of a request for templates.
    pub(crate) fn view<'v>(&'v self, head: &'v Head<'v>, settled: &'v Settled<'_>) -> View<'v> {
        View {
            head,
            path: &settled.goal.path,
            query: settled.goal.query.as_deref(),
            client: settled.client,
            peer: settled.peer,
            user: b"",
            certificate: None,
            captured: &settled.captured,
            maps: &self.maps,
        }
    }
}

impl Settled<'_> {
    /// The target for an upstream; the client's own target is borrowed.
    pub(crate) fn target<'t>(&self, head: &Head<'t>) -> Cow<'t, [u8]> {
        let target = head.target();
        if !self.sends_goal && target.first() == Some(&b'/') {
            return Cow::Borrowed(target);
        }
        let mut out = Vec::new();
        if self.sends_goal {
            encode_path(&self.goal.path, &mut out);
            if let Some(query) = &self.goal.query {
                out.push(b'?');
                out.extend_from_slice(query);
            }
        } else {
            write_target(head, &mut out);
        }
        Cow::Owned(out)
    }

    /// The decoded path for looking up files.
    pub(crate) fn file_path(&self) -> Option<Cow<'_, [u8]>> {
        let path = self.goal.path.as_ref();
        if !path.contains(&b'%') {
            return Some(Cow::Borrowed(path));
        }
        let mut out = Vec::new();
        // In the normal form a `%` always starts an escape. Encoded `/` and `\` occur in no file name, so they are
        // refused.
        normal_path(path, &mut out).ok()?;
        Some(Cow::Owned(out))
    }
}
