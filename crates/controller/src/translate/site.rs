//! Sites: one for each address and host name.
//!
//! A listener with a more specific host name has its names for itself: routes of another listener do not serve them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;

use flatout_engine::{Address, Listen};
use flatout_proxy::Upstream;
use flatout_server::SiteListen;
use flatout_site::plan::{
    self as site_plan, Action, Host, PassthroughShare, PathMatch, Rate, Route, Rules, SharedSite, Site,
    SiteListener, Template, TlsPassthrough,
};
use flatout_site::{Place, ROUTES_MAX, RightPlan, check_after};
use flatout_tls::Profile;

use super::Translation;
use super::conflict::{Shadowed, object_of};
use super::gateway::GatewayState;
use super::hostname::HostName;
use super::listener::TlsEnding;
use super::precedence::literal_start;
use super::rule::{RankedRoute, closed, refusal};

/// The sites of a plan, while it is made.
#[derive(Default)]
pub(super) struct Sites {
    /// The listeners' own host names at each address.
    listeners: BTreeMap<SocketAddr, Vec<ListenerSite>>,
    sites: BTreeMap<(SocketAddr, HostName), SiteDraft>,
    health: Option<SocketAddr>,
}

/// The sites of a plan.
pub(super) struct FinishedSites {
    pub(super) plan: site_plan::Plan,
    /// The addresses of each.
    pub(super) listens: Vec<Vec<SiteListen>>,
    /// The certificates of each.
    pub(super) secure: Vec<Option<Profile>>,
    /// Routes that the site layer refuses, and why.
    pub(super) removed: Vec<(String, String)>,
    pub(super) shadowed: Shadowed,
    /// The plan as it was checked; none if it is wrong as a whole.
    pub(super) right: Option<RightPlan>,
}

struct ListenerSite {
    hostname: HostName,
    profile: Profile,
    ending: TlsEnding,
}

#[derive(Default)]
struct SiteDraft {
    /// Those of one object, with its place among all routes and Ingresses: the oldest first.
    routes: Vec<(usize, Arc<[RankedRoute]>)>,
    /// Where its connections with TLS go, if they do not end here.
    passthrough: Option<TlsPassthrough>,
}

impl Sites {
    /// Adds the sites of all listeners: requests for a host name without routes get 404.
    pub(super) fn add_listeners(&mut self, gateways: &[GatewayState<'_>]) {
        for listener in gateways.iter().flat_map(|gateway| &gateway.listeners) {
            let Some(bind) = listener.bind else { continue };
            // Listeners with another protocol than an older one are not bound.
            let _ = self.add_listener(bind, listener.hostname.clone(), listener.profile(), listener.ending());
        }
    }

    /// Adds the site of a listener. Returns whether the address has its protocol.
    pub(super) fn add_listener(
        &mut self,
        bind: SocketAddr,
        hostname: HostName,
        profile: Profile,
        ending: TlsEnding,
    ) -> bool {
        let here = self.listeners.entry(bind).or_default();
        let is_plain = |ending: TlsEnding| ending == TlsEnding::None;
        let excludes = |it: &&ListenerSite| {
            is_plain(it.ending) != is_plain(ending) || (it.hostname == hostname && it.ending != ending)
        };
        if here.iter().find(excludes).is_some() {
            return false;
        }
        let site = self.sites.entry((bind, hostname.clone())).or_default();
        if ending.passes_on() {
            // Without a route, its connections are refused.
            site.passthrough.get_or_insert_default();
        }
        match here.iter_mut().find(|it| it.hostname == hostname) {
            // Listeners of several gateways share an address.
            Some(known) => {
                let mut new = profile.identities;
                new.retain(|it| !known.profile.identities.contains(it));
                known.profile.identities.extend(new);
            }
            None => here.push(ListenerSite { hostname, profile, ending }),
        }
        true
    }

    /// Adds routes of a listener for a host name, unless a more specific listener has the name.
    pub(super) fn add_routes(
        &mut self,
        (bind, of_listener): (SocketAddr, &HostName),
        hostname: &HostName,
        (age, routes): (usize, &Arc<[RankedRoute]>),
    ) {
        if let Some(site) = self.site_of(bind, of_listener, hostname) {
            site.routes.push((age, routes.clone()));
        }
    }

    /// Passes connections of a listener for a host name on, unless a more specific listener or an older route has the name.
    pub(super) fn add_passthrough(
        &mut self,
        (bind, of_listener): (SocketAddr, &HostName),
        hostname: &HostName,
        shares: &[PassthroughShare],
    ) {
        let Some(site) = self.site_of(bind, of_listener, hostname) else { return };
        let passthrough = site.passthrough.get_or_insert_default();
        if passthrough.shares.is_empty() {
            passthrough.shares.extend_from_slice(shares);
        }
    }

    /// Serves the state of the process at an address of its own.
    pub(super) fn add_health(&mut self, at: Option<SocketAddr>) {
        self.health = at;
    }

    /// The site of a host name, if this is the most specific listener for it.
    fn site_of(
        &mut self,
        bind: SocketAddr,
        of_listener: &HostName,
        hostname: &HostName,
    ) -> Option<&mut SiteDraft> {
        self.listener_of(bind, hostname).filter(|listener| listener.hostname == *of_listener)?;
        Some(self.sites.entry((bind, hostname.clone())).or_default())
    }

    /// The most specific listener for a host name.
    fn listener_of(&self, bind: SocketAddr, hostname: &HostName) -> Option<&ListenerSite> {
        let here = self.listeners.get(&bind).map(Vec::as_slice).unwrap_or_default();
        let fits = here.iter().filter(|it| it.hostname.contains(hostname));
        fits.max_by_key(|it| match &it.hostname {
            HostName::Any => (0, 0),
            HostName::Below(name) => (1, name.len()),
            HostName::Exact(name) => (2, name.len()),
        })
    }

    /// The sites of a plan with these upstreams, their addresses and certificates. Those that `former` has too are shared with it.
    pub(super) fn finish(
        mut self,
        (upstreams, rates): (Vec<Upstream>, Vec<Rate>),
        former: Option<&FormerSites>,
    ) -> FinishedSites {
        let (mut sites, mut listens, mut secure) = (Vec::new(), Vec::new(), Vec::new());
        let (mut shadowed, mut removed) = (Shadowed::default(), Vec::new());
        for ((bind, hostname), draft) in std::mem::take(&mut self.sites) {
            let listener = self.listener_of(bind, &hostname);
            let ending = listener.map_or(TlsEnding::None, |it| it.ending);
            let profile = listener.filter(|_| ending.is_here()).map(|listener| listener.profile.clone());
            let routes = match ending.passes_on() {
                true => Vec::new(),
                false => ordered(&draft.routes, &mut removed),
            };
            shadowed.add(&routes);
            let mut made = site(&format!("{hostname}:{}", bind.port()), hostname.host(), routes);
            let passthrough = draft.passthrough.filter(|_| ending.passes_on());
            made.tls_passthrough =
                passthrough.map(|it| TlsPassthrough { ends_tls: ending == TlsEnding::Inside, ..it });
            sites.push(SharedSite::from(made));
            listens.push(vec![at(bind, ending == TlsEnding::None)]);
            secure.push(profile);
        }
        // Requests for other host names get 404, as the standard demands, and not 421.
        for (bind, here) in &self.listeners {
            let has_requests = here.iter().any(|it| !it.ending.passes_on());
            let is_https = here.iter().any(|it| it.ending == TlsEnding::Here);
            if has_requests && !here.iter().any(|it| it.hostname == HostName::Any) {
                sites.push(site(&format!("other:{}", bind.port()), Host::Any, Vec::new()).into());
                listens.push(vec![at(*bind, !is_https)]);
                secure.push(None);
            }
        }
        if let Some(bind) = self.health {
            let (site, listen) = health_site(bind, "ok\n");
            sites.push(site.into());
            listens.push(vec![listen]);
            secure.push(None);
        }
        number(&mut sites, &listens);
        if let Some(former) = former {
            former.share(&mut sites, &listens);
        }
        let mut plan =
            site_plan::Plan { upstreams, rates, sites, keeps_unchanged: true, ..site_plan::Plan::default() };
        let (faulty, right) = remove_faulty(&mut plan, former.map(|it| &it.right));
        removed.extend(faulty);
        FinishedSites { plan, listens, secure, removed, right, shadowed }
    }
}

/// The sites of the last translation.
pub(super) struct FormerSites {
    sites: HashMap<FormerSiteKey, SharedSite>,
    right: RightPlan,
}

/// What no other site has.
type FormerSiteKey = (String, Option<SocketAddr>);

impl FormerSites {
    pub(super) fn of(sites: &[SharedSite], listens: &[Vec<SiteListen>], right: RightPlan) -> FormerSites {
        let keyed = sites.iter().zip(listens).map(|(site, listens)| (key(site, listens), site.clone()));
        FormerSites { sites: keyed.collect(), right }
    }

    /// Replaces sites by those that are the same.
    fn share(&self, sites: &mut [SharedSite], listens: &[Vec<SiteListen>]) {
        for (site, listens) in sites.iter_mut().zip(listens) {
            if let Some(known) = self.sites.get(&key(site, listens)).filter(|known| *known == site) {
                site.clone_from(known);
            }
        }
    }
}

fn key(site: &Site, listens: &[SiteListen]) -> FormerSiteKey {
    let bind = listens.first().and_then(|it| match it.listen.address {
        Address::Tcp(bind) => Some(bind),
        Address::Unix(_) => None,
    });
    (site.name.clone(), bind)
}

/// The name of the site for the state of a process, and the page that says whether it serves what it should.
const HEALTH_SITE: &str = "health";
const READINESS_PAGE: &str = "/readyz";

impl Translation {
    /// The same with this text at `/readyz`; `None` if it has that.
    pub(crate) fn with_readiness(&self, text: &str) -> Option<Translation> {
        let site = self.sites.sites.iter().position(|site| site.name == HEALTH_SITE)?;
        let page = self.sites.sites[site].routes.iter().position(|route| route.name == READINESS_PAGE)?;
        let action = state_page(text);
        if self.sites.sites[site].routes[page].action == action {
            return None;
        }
        let mut changed = self.clone();
        changed.sites.sites[site].routes[page].action = action;
        Some(changed)
    }
}

fn state_page(text: &str) -> Action {
    Action::Respond { status: 200, content_type: "text/plain".to_owned(), body: Template::text(text) }
}

/// The site for the state of a process, with `readiness` as the text of `/readyz`.
pub(crate) fn health_site(bind: SocketAddr, readiness: &str) -> (Site, SiteListen) {
    let page = |path: &str, body: &str| Route {
        name: path.to_owned(),
        ..Route::new(PathMatch::Exact(path.to_owned()), state_page(body))
    };
    let pages = vec![page("/healthz", "ok\n"), page(READINESS_PAGE, readiness)];
    (site(HEALTH_SITE, Host::Any, pages), at(bind, true))
}

fn site(name: &str, host: Host, routes: Vec<Route>) -> Site {
    Site { name: name.to_owned(), hosts: vec![host], routes, ..Site::default() }
}

fn at(bind: SocketAddr, is_plain: bool) -> SiteListen {
    SiteListen { listen: Listen { is_plain, ..Listen::from(Address::Tcp(bind)) }, is_default: false }
}

/// Numbers the addresses, so that the sites can be checked. A server that takes the plan numbers them anew.
pub(crate) fn number(sites: &mut [SharedSite], listens: &[Vec<SiteListen>]) {
    let mut known: Vec<&Address> = Vec::new();
    for (site, own) in sites.iter_mut().zip(listens) {
        let mut listeners = Vec::new();
        for SiteListen { listen, is_default } in own {
            let at = known.iter().position(|it| **it == listen.address).unwrap_or(known.len());
            if at == known.len() {
                known.push(&listen.address);
            }
            let number = u16::try_from(at + 1).unwrap_or(u16::MAX);
            listeners.push(SiteListener { number, is_default: *is_default });
        }
        // One that has them stays shared with other plans.
        if site.listeners != listeners {
            site.listeners = listeners;
        }
    }
}

/// Routes in the order in which they are tried: of those for the same paths, the most specific first, then the oldest. If they are too many for
/// a site, those of the newest objects are removed.
fn ordered(routes: &[(usize, Arc<[RankedRoute]>)], removed: &mut Vec<(String, String)>) -> Vec<Route> {
    let mut all: Vec<(usize, &RankedRoute)> =
        routes.iter().flat_map(|(age, routes)| routes.iter().map(|it| (*age, it))).collect();
    let mut shut = HashSet::new();
    if all.len() > ROUTES_MAX {
        shut = remove_newest(&mut all, removed);
    }
    // Stable: matches of one rule, and shares of one match, keep their order.
    all.sort_by_key(|(age, it)| (Reverse(it.specificity), *age));
    let is_shut = |route: &Route| is_of_ingress(route) && shut.contains(namespace_of(&route.name));
    all.into_iter()
        .map(|(_, it)| if is_shut(&it.route) { closed(&it.route) } else { it.route.clone() })
        .collect()
}

/// Removes the routes of the newest objects. Those of Ingresses that refuse some requests stay instead of others of their namespace: a shorter
/// path, which may lead to the same application, must not get their requests. Returns the namespaces for which that is not enough: their other
/// Ingresses are closed.
fn remove_newest<'r>(
    all: &mut Vec<(usize, &'r RankedRoute)>,
    removed: &mut Vec<(String, String)>,
) -> HashSet<&'r str> {
    all.sort_by_key(|(age, _)| *age);
    let newest = all.split_off(ROUTES_MAX);
    // Those that may be removed, the newest last.
    let mut open: HashMap<&str, Vec<usize>> = HashMap::new();
    for (at, (_, it)) in all.iter().enumerate().filter(|(_, (_, it))| !is_protected(&it.route)) {
        open.entry(namespace_of(&it.route.name)).or_default().push(at);
    }
    let why = format!("its host name has more than {ROUTES_MAX} routes");
    let mut shut = HashSet::new();
    for added in newest {
        let namespace = namespace_of(&added.1.route.name);
        let mut gone = added;
        if is_of_ingress(&added.1.route) && is_protected(&added.1.route) {
            match open.get_mut(namespace).and_then(Vec::pop).and_then(|at| all.get_mut(at)) {
                Some(place) => gone = std::mem::replace(place, added),
                None => drop(shut.insert(namespace)),
            }
        }
        removed.push((gone.1.route.name.clone(), why.clone()));
    }
    shut
}

/// Whether a route refuses some requests, or all.
fn is_protected(route: &Route) -> bool {
    let rules = &route.rules;
    let has_users = rules.basic_auth.is_some() || rules.forward_auth.is_some();
    has_users || !rules.access.is_empty() || !rules.rates.is_empty() || route.action == refusal()
}

fn is_of_ingress(route: &Route) -> bool {
    route.name.starts_with("Ingress/")
}

/// The namespace of a route's object.
fn namespace_of(name: &str) -> &str {
    name.split('/').nth(1).unwrap_or_default()
}

/// Faults of one object, and of all objects, that close only the routes with the same rules. Each is a check of the plan; behind them, a fault
/// closes all routes of its object.
const OBJECT_FAULTS_MAX: usize = 8;
const PLAN_FAULTS_MAX: usize = 64;

/// Removes the routes that the site layer refuses although the translation accepted them: a route must not stop all others. Requests of
/// an Ingress get 500 instead: a shorter path must not get them. Routes of the same object with the same rules have the same fault.
/// Returns their names, and why, and the plan as it was checked.
fn remove_faulty(
    plan: &mut site_plan::Plan,
    former: Option<&RightPlan>,
) -> (Vec<(String, String)>, Option<RightPlan>) {
    let mut all = Vec::new();
    let mut faults: HashMap<String, usize> = HashMap::new();
    for round in 0.. {
        let fault = match check_after(plan, former) {
            Ok(right) => return (all, Some(right)),
            Err(fault) => fault,
        };
        let Place::Route(at, number) = fault.place else { break };
        // Who made the plan checks it again, and keeps the one before.
        let Some(faulty) = plan.sites.get(at).and_then(|site| site.routes.get(number)).cloned() else {
            break;
        };
        let object = object_of(&faulty.name).unwrap_or(&faulty.name).to_owned();
        let count = faults.entry(object.clone()).or_default();
        *count += 1;
        let is_all = *count > OBJECT_FAULTS_MAX || round >= PLAN_FAULTS_MAX;
        let is_alike = |it: &Route| {
            let is_of_object = object_of(&it.name).unwrap_or(&it.name) == object;
            is_of_object && it.action != refusal() && (is_all || it.rules == faulty.rules)
        };
        for (other, site) in plan.sites.iter_mut().enumerate() {
            // Sites without such routes stay shared with other plans.
            if other != at && !site.routes.iter().any(is_alike) {
                continue;
            }
            let routes = std::mem::take(&mut site.routes);
            site.routes = routes
                .into_iter()
                .enumerate()
                .filter_map(|(own, route)| {
                    if (other, own) != (at, number) && !is_alike(&route) {
                        return Some(route);
                    }
                    all.push((route.name.clone(), fault.reason.clone()));
                    instead_of(route)
                })
                .collect();
        }
    }
    (all, None)
}

/// What a route that the site layer refuses is replaced by: one of an Ingress refuses its requests, and if that cannot be, all that begin as
/// they do.
fn instead_of(route: Route) -> Option<Route> {
    if !is_of_ingress(&route) {
        return None;
    }
    if route.action != refusal() || route.rules != Rules::default() {
        return Some(closed(&route));
    }
    let PathMatch::Regex { pattern, .. } = &route.path else { return None };
    let start = PathMatch::Regex { pattern: format!("^{}", literal_start(pattern)), ignore_case: true };
    (start != route.path).then(|| Route { path: start, when: Vec::new(), ..route })
}
