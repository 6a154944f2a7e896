//! Determines a request's site, route and path before any rule is checked. The result depends only on the request and
//! the plan, so it can be computed again.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use flatout_engine::Request;
use flatout_wire::target::{encode_path, normal_path};
use flatout_wire::{Head, Method, Status};

use super::choice::RouteChoice;
use super::compiled::{Compiled, CompiledAction, CompiledRoute, CompiledSite};
use super::facts::{Noted, Uses};
use super::limit_status::LimitStatuses;
use super::plan::PathPolicy;
use super::readings;
use super::render::{Captures, View};
use super::reroute::Rerouted;
use super::rewrite::Goal;
use super::steps::Identity;
use flatout_gateway::Client;

/// How a request has arrived.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Arrival {
    /// The number of its listener.
    pub(crate) listener: u16,
    /// The peer of its connection; `None` also if it is not known yet.
    pub(crate) peer: Option<SocketAddr>,
    /// The peer that has announced this one in a PROXY protocol header, if not all sites trust the same peers; `None` in it is a Unix socket.
    pub(crate) announcer: Option<Option<SocketAddr>>,
    pub(crate) is_tls: bool,
}

/// Where a request goes.
pub(crate) struct Resolution<'a> {
    pub(crate) site: Option<usize>,
    pub(crate) route: Result<usize, NoRoute>,
    pub(crate) goal: Goal<'a>,
    pub(crate) client: Client,
    pub(crate) peer: Option<IpAddr>,
    /// The number of its listener.
    pub(crate) listener: u16,
    pub(crate) captured: Captures,
    /// The upstream gets the goal, not what the client sent.
    pub(crate) sends_goal: bool,
    /// A renderer requests it for a page.
    pub(crate) is_for_render: bool,
}

/// Where a request goes, as it was decided before its body came, or before it was suspended. It is not decided again: conditions may
/// depend on time, and rules on what was decided.
#[derive(Debug)]
pub(crate) struct Decision {
    site: Option<usize>,
    route: Result<usize, NoRoute>,
    /// `None`: as the client sent it.
    rewritten: Option<Goal<'static>>,
    captured: Captures,
    sends_goal: bool,
}

/// What is known of a request apart from its head.
pub(crate) struct Origin<'o> {
    pub(crate) arrival: Arrival,
    /// `None`: nothing is known of its connection yet.
    pub(crate) request: Option<&'o Request<'o>>,
    pub(crate) identity: &'o Identity,
    /// The request continues at another route.
    pub(crate) rerouted: Option<&'o Rerouted>,
}

/// Why no route matches a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NoRoute {
    /// 421
    NoSite,
    /// 404
    NotFound,
    /// 405, with the allowed methods. The rules of the route that has the path apply first.
    WrongMethod { route: Option<usize>, allowed: String },
    /// 400
    Path(&'static str),
    /// 500: rewrites in a cycle.
    Circle,
    /// 500: it was reported with `bug!`.
    Bug,
    /// `OPTIONS *`: a request about the server itself.
    Server,
}

impl NoRoute {
    pub(crate) fn status(&self) -> Status {
        match self {
            NoRoute::NoSite => Status::MISDIRECTED_REQUEST,
            NoRoute::NotFound => Status::NOT_FOUND,
            NoRoute::WrongMethod { .. } => Status::METHOD_NOT_ALLOWED,
            NoRoute::Path(_) => Status::BAD_REQUEST,
            NoRoute::Circle | NoRoute::Bug => Status::INTERNAL_SERVER_ERROR,
            NoRoute::Server => Status::NO_CONTENT,
        }
    }

    /// The rules apply before the reason is sent: those of the route that has the path, or those of the site. Who is not let in
    /// does not learn which paths and methods exist.
    pub(crate) fn follows_rules(&self) -> bool {
        matches!(self, NoRoute::NotFound | NoRoute::WrongMethod { .. })
    }
}

impl Compiled {
    /// Determines where a request goes. `path` is in its normal form for requests that are forwarded.
    pub(crate) fn resolve<'a>(&self, head: &Head<'a>, path: &'a [u8], origin: &Origin<'_>) -> Resolution<'a> {
        let at = self.hosts.find(origin.arrival.listener, head.authority());
        let mut resolution = self.arrived(at, head, path, origin.arrival);
        let Some(site) = at.and_then(|at| self.site(at)) else { return resolution };
        resolution.route = match head.method {
            Method::Options if path == b"*" => Err(NoRoute::Server),
            // Tunnels by CONNECT are not supported. It has no path.
            Method::Connect => Err(NoRoute::WrongMethod { route: None, allowed: "GET, HEAD".to_owned() }),
            // TRACE could reveal fields to another page (RFC 9110 section 9.3.8).
            Method::Trace => self.route(site, head, path, &mut resolution, origin).and_then(|route| {
                let allowed = site.table.methods_of(route);
                let allowed = if allowed.is_empty() { "GET, HEAD".to_owned() } else { allowed };
                Err(NoRoute::WrongMethod { route: Some(route), allowed })
            }),
            _ => self.route(site, head, path, &mut resolution, origin),
        };
        resolution
    }

    /// The same, if it was decided before.
    pub(crate) fn follow<'a>(
        &self,
        decision: Decision,
        head: &Head<'a>,
        path: &'a [u8],
        arrival: Arrival,
    ) -> Resolution<'a> {
        let Decision { site, route, rewritten, captured, sends_goal } = decision;
        let arrived = self.arrived(site, head, path, arrival);
        Resolution { route, goal: rewritten.unwrap_or(arrived.goal), captured, sends_goal, ..arrived }
    }

    /// A request that has come to a site, and has no route so far.
    fn arrived<'a>(
        &self,
        site: Option<usize>,
        head: &Head<'a>,
        path: &'a [u8],
        arrival: Arrival,
    ) -> Resolution<'a> {
        let (client, is_for_render) = self.client(site, head, arrival);
        let Arrival { listener, peer, .. } = arrival;
        Resolution {
            site,
            route: Err(NoRoute::NoSite),
            goal: Goal {
                path: Cow::Borrowed(path),
                query: head.query().map(Cow::Borrowed),
                is_rewritten: false,
            },
            client,
            peer: peer.map(|peer| peer.ip().to_canonical()),
            listener,
            captured: Captures::default(),
            sends_goal: true,
            is_for_render,
        }
    }

    /// The client of a request that has come to a site, and whether it is a renderer.
    fn client(&self, site: Option<usize>, head: &Head<'_>, arrival: Arrival) -> (Client, bool) {
        let Arrival { listener, peer, announcer, is_tls } = arrival;
        let found = site.and_then(|at| self.site(at));
        // The renderer's socket is a Unix socket.
        if peer.is_none() && found.is_some_and(|site| site.renderer == Some(listener)) {
            return (of_renderer(head), true);
        }
        let clients = found.map_or(&self.clients, |site| &site.clients);
        // Only another site at this listener trusts it.
        let peer = announcer.filter(|announcer| !clients.believes(*announcer)).unwrap_or(peer);
        (clients.client(head, peer, is_tls), false)
    }

    /// The client of a request that a proxy names; `None` without one. It is that of the site: a route may know its clients in another
    /// way, but is not known yet.
    pub(crate) fn named_client(&self, head: &Head<'_>, arrival: Arrival) -> Option<SocketAddr> {
        let site = self.hosts.find(arrival.listener, head.authority());
        let (client, is_for_render) = self.client(site, head, arrival);
        let port = arrival.peer.map_or(0, |peer| peer.port());
        let is_named = client.is_from_proxy && !is_for_render;
        client.address.filter(|_| is_named).map(|address| SocketAddr::new(address, port))
    }

    fn route<'a>(
        &self,
        site: &CompiledSite,
        head: &Head<'_>,
        form: &'a [u8],
        resolution: &mut Resolution<'a>,
        origin: &Origin<'_>,
    ) -> Result<usize, NoRoute> {
        let noted = &origin.identity.noted;
        let choice = match origin.rerouted {
            None => self.choose(site, head, resolution, (origin, noted), form)?,
            Some(Rerouted { named, goal, .. }) => {
                self.choose_again(site, head, resolution, (origin, noted), (*named, goal))?
            }
        };
        let RouteChoice { route: at, goal, has_method } = choice;
        let route = site.route(at).ok_or(NoRoute::Bug)?;
        if route.paths == PathPolicy::Strict && head.path_needs_care {
            normal_path(head.path(), &mut Vec::new()).map_err(|_| NoRoute::Path("the path is malformed"))?;
        }
        resolution.sends_goal = goal.as_ref().is_some_and(|goal| goal.is_rewritten);
        if let CompiledAction::Proxy(forward) = &route.action {
            resolution.sends_goal |= forward.normal_path;
        }
        let is_forwarded = matches!(route.action, CompiledAction::Proxy(_) | CompiledAction::Reroute(_));
        match origin.rerouted {
            None if is_forwarded && has_method => {
                self.check_readings(site, head, resolution, origin, form, route)?;
            }
            Some(rerouted) if is_forwarded || route.may_reroute => {
                self.check_goal(site, head, resolution, origin, rerouted, at)?;
            }
            _ => {}
        }
        if let Some(goal) = goal {
            resolution.goal = goal;
        }
        if let Some(expression) = &route.captures {
            resolution.captured = Captures::of(expression, &resolution.goal.path)
                .or_else(|| Captures::of(expression, form))
                .unwrap_or_default();
        }
        match has_method {
            true => Ok(at),
            false => Err(NoRoute::WrongMethod { route: Some(at), allowed: site.table.methods_of(at) }),
        }
    }

    /// Makes sure that no other reading of the path evades the rules (see [`readings`]).
    fn check_readings(
        &self,
        site: &CompiledSite,
        head: &Head<'_>,
        resolution: &mut Resolution<'_>,
        origin: &Origin<'_>,
        form: &[u8],
        route: &CompiledRoute,
    ) -> Result<(), NoRoute> {
        // Nearly all paths have only one reading.
        if !head.path_needs_care && form == head.path() && !form.contains(&b';') {
            return Ok(());
        }
        let leads_here = |path: &[u8]| {
            // Rules may depend on the path, and another reading of it get other ones.
            if route.blocks_use.has(Uses::PATH) && path != form {
                return false;
            }
            let noted = origin.identity.noted.of_reading();
            let chosen = self.choose(site, head, resolution, (origin, &noted), path);
            let chosen = chosen.ok().filter(|chosen| chosen.has_method);
            let other: Option<&CompiledRoute> = chosen.and_then(|chosen| site.route(chosen.route));
            other.is_some_and(|other| other.class == route.class)
        };
        if !readings::form_is_clear(form, leads_here) {
            return Err(AMBIGUOUS);
        }
        if !resolution.sends_goal && !readings::sent_is_clear(head.path(), form, leads_here) {
            resolution.sends_goal = true;
        }
        Ok(())
    }

    /// The same for a request that continues at another route, whose upstream gets the path where it continues. A named route has no path:
    /// there all readings have to lead where the path itself leads.
    fn check_goal(
        &self,
        site: &CompiledSite,
        head: &Head<'_>,
        resolution: &Resolution<'_>,
        origin: &Origin<'_>,
        rerouted: &Rerouted,
        at: usize,
    ) -> Result<(), NoRoute> {
        let Rerouted { goal, named, .. } = rerouted;
        let choose = |path: &[u8]| {
            let noted = origin.identity.noted.of_reading();
            let to = Goal { path: Cow::Borrowed(path), ..goal.clone() };
            let chosen = match *named == Some(at) {
                true => self.choose(site, head, resolution, (origin, &noted), path),
                false => self.choose_again(site, head, resolution, (origin, &noted), (*named, &to)),
            };
            let RouteChoice { route, has_method, .. } = chosen.ok()?;
            Some((site.route(route)?, has_method))
        };
        let class = |(route, has_method): (&CompiledRoute, bool)| (route.class, has_method);
        let mut here = None;
        let leads_here = |path: &[u8]| {
            let here = here.get_or_insert_with(|| choose(&goal.path));
            let mut rules = here.iter().map(|(route, _)| *route).chain(site.route(at));
            path == &*goal.path
                || !rules.any(|route| route.blocks_use.has(Uses::PATH))
                    && choose(path).map(class) == here.map(class)
        };
        if readings::form_is_clear(&goal.path, leads_here) { Ok(()) } else { Err(AMBIGUOUS) }
    }

    /// The view of a request that has begun, for templates.
    pub(crate) fn view_of<'v>(
        &'v self,
        head: &'v Head<'v>,
        request: Option<&'v Request<'v>>,
        resolution: &'v Resolution<'_>,
        identity: &'v Identity,
    ) -> View<'v> {
        let origin = Origin { arrival: Arrival::default(), request, identity, rerouted: None };
        View {
            user: &identity.user,
            auth_fields: &identity.auth_fields,
            limits: identity.limits,
            ..self.choice_view(head, resolution, &origin, &identity.noted)
        }
    }

    /// The view of a request whose route is being chosen: no user is known.
    pub(super) fn choice_view<'v>(
        &'v self,
        head: &'v Head<'v>,
        resolution: &'v Resolution<'_>,
        origin: &Origin<'v>,
        noted: &'v Noted,
    ) -> View<'v> {
        View {
            head,
            path: &resolution.goal.path,
            query: resolution.goal.query.as_deref(),
            client: resolution.client,
            peer: resolution.peer,
            listener: (resolution.listener, &self.addresses),
            user: b"",
            auth_fields: &[],
            limits: LimitStatuses::default(),
            body: b"",
            certificate: origin.identity.certificate.as_ref(),
            captured: &resolution.captured,
            tables: &self.tables,
            noted,
            request: origin.request,
            site_name: resolution.site.and_then(|at| self.sites.get(at)).map_or("", |site| &site.name),
        }
    }
}

const AMBIGUOUS: NoRoute = NoRoute::Path("the path is ambiguous, and its readings have different rules");

/// The address of a page's requests, of the prefix that no packet comes from (RFC 6666): no rule for addresses, and none for Unix
/// sockets, lets a page see more than any client does.
const RENDERER_ADDRESS: IpAddr = IpAddr::V6(Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 0));

/// The client of a page's request.
fn of_renderer(head: &Head<'_>) -> Client {
    let is_https = head.field("x-forwarded-proto") == Some(b"https");
    Client { address: Some(RENDERER_ADDRESS), is_https, is_early: false, is_from_proxy: false }
}

impl Resolution<'_> {
    /// What was decided, for later.
    pub(crate) fn decision(self) -> Decision {
        let Resolution { site, route, goal, captured, sends_goal, .. } = self;
        Decision {
            site,
            route,
            rewritten: goal.is_rewritten.then(|| goal.into_owned()),
            captured,
            sends_goal,
        }
    }

    /// The route whose rules apply; `None`: those of the site.
    #[inline]
    pub(crate) fn ruling_route(&self) -> Option<usize> {
        match &self.route {
            Ok(route) => Some(*route),
            Err(NoRoute::WrongMethod { route, .. }) => *route,
            Err(_) => None,
        }
    }

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
            head.write_origin_form(&mut out);
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
