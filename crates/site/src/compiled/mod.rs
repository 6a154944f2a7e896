//! A plan, checked and prepared: the part shared by all workers, and the part that each worker has a copy of.

mod blocks;
mod guards;
mod list;
mod route;
mod surroundings;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use flatout_engine::bug;
use flatout_expression::Regex;
use flatout_observe::observed::RequestLogs;

use super::client::Clients;
use super::facts::Uses;
use super::fault::{Fault, Place};
use super::hosts::Hosts;
use super::maps::Tables;
use super::plan::{self, Plan, RouteEntry, SharedSite, TlsPassthrough};
use super::render::{Paths, View};
use super::rewrite::Rewrites;
use super::table::Table;
use super::tls_route;
use guards::SharedLimits;
use surroundings::Surroundings;

pub(crate) use blocks::{Block, ResponseBlock, all_hold, resolved_for_requests};
pub(crate) use guards::{Authority, CompiledGate, CompiledRate, Guards, Key};
pub(crate) use list::{SiteList, free};
pub(crate) use route::{CompiledAction, CompiledCached, CompiledRoute, ResponseRules};

/// Sites of one plan.
const SITES_MAX: usize = 65_536;

/// A checked plan.
#[derive(Debug)]
pub(crate) struct Compiled {
    pub(crate) hosts: Hosts,
    pub(crate) sites: SiteList,
    /// For requests that belong to no site.
    pub(crate) clients: Arc<Clients>,
    /// A client may be another one than the peer of its connection, because of fields.
    pub(crate) names_clients: bool,
    /// Not all sites trust the same peers.
    pub(crate) trusts_differ: bool,
    pub(crate) tables: Arc<Tables>,
    /// The names of upstreams, in their order.
    pub(crate) upstreams: Arc<[String]>,
    /// The addresses of listeners, by their numbers.
    pub(crate) addresses: Arc<[(u16, SocketAddr)]>,
    pub(crate) keys: RandomState,
    /// The counters of limits.
    counted: Arc<SharedLimits>,
    /// What the sites were made from, if the next plan may keep them.
    sources: Option<Arc<Sources>>,
}

/// What the sites of a plan were made from.
#[derive(Debug)]
struct Sources {
    /// In the order of the sites.
    sites: Vec<SharedSite>,
    surroundings: Surroundings,
}

/// What parts of a plan are made from.
#[derive(Clone, Copy)]
pub(super) struct Parts<'p> {
    pub(super) plan: &'p Plan,
    pub(super) shared: &'p SharedLimits,
    pub(super) tables: &'p Tables,
    /// Fields of auth services' responses that some text shows.
    pub(super) auth_names: &'p [String],
}

#[derive(Debug, Clone)]
pub(crate) struct CompiledSite {
    pub(crate) name: String,
    pub(crate) clients: Arc<Clients>,
    /// The numbers of its listeners; empty: all.
    listeners: Vec<u16>,
    pub(crate) tls_rules: Option<u16>,
    /// Where its connections with TLS go, if they do not end here.
    pub(crate) passthrough: Option<TlsPassthrough>,
    /// Its number, and the logs of its connections that are passed on.
    pub(crate) number: u16,
    pub(crate) logs: RequestLogs,
    /// The listener of the renderer's requests.
    pub(crate) renderer: Option<u16>,
    pub(crate) table: Table,
    pub(crate) rewrites: Rewrites,
    pub(crate) routes: Vec<CompiledRoute>,
    /// Routes that are chosen before paths are compared.
    pub(crate) before_paths: Vec<usize>,
    /// Routes have conditions, or are internal.
    pub(crate) is_conditional: bool,
    /// What the choice of a route depends on, apart from path and method.
    pub(crate) choice_uses: Uses,
    /// The guards used when no route matches.
    pub(crate) rest: Guards,
    pub(crate) rest_response: ResponseRules,
    /// Each worker has a copy of its own: threads would contend for the memory of its expressions.
    pub(crate) has_expressions: bool,
}

impl Compiled {
    /// # Errors
    /// The first error in the plan.
    pub(crate) fn new(plan: &Plan) -> Result<Compiled, Fault> {
        Compiled::after(plan, None)
    }

    /// Like `new`, replacing `former`: limits that did not change keep their counters. If the plan keeps what is unchanged, so do sites.
    ///
    /// # Errors
    /// See [`Compiled::new`].
    pub(crate) fn after(plan: &Plan, former: Option<&Compiled>) -> Result<Compiled, Fault> {
        if plan.sites.len() > SITES_MAX {
            return Err(Place::Plan.fault(format!("got {} sites, allowed {SITES_MAX}", plan.sites.len())));
        }
        let shared = SharedLimits::after(plan, former.map(|former| &*former.counted))?;
        let tables = Arc::new(Tables::new(&plan.maps, &plan.sets, &plan.crawler_addresses)?);
        let auth_names = guards::auth_names(plan);
        let parts = Parts { plan, shared: &shared, tables: &tables, auth_names: &auth_names };
        let surroundings = plan.keeps_unchanged.then(|| Surroundings::of(plan, &auth_names));
        let known = surroundings.as_ref().zip(former).and_then(|(it, former)| former.sites_within(it));
        let compile = |(at, site): (usize, &SharedSite)| {
            let known = known.as_ref().and_then(|known| known.get(&site.address()));
            known.map_or_else(
                || CompiledSite::new(parts, at, site).map(Arc::new),
                |known| Ok(Arc::clone(known)),
            )
        };
        let sites = plan.sites.iter().enumerate().map(compile).collect::<Result<SiteList, Fault>>()?;
        let clients = Arc::new(Clients::new(&plan.trust));
        let sources = |surroundings| Arc::new(Sources { sites: plan.sites.clone(), surroundings });
        Ok(Compiled {
            hosts: Hosts::new(&plan.sites)?,
            names_clients: clients.are_named() || sites.iter().any(|site| site.clients.are_named()),
            trusts_differ: differ(plan.sites.iter().map(|site| &site.trust.proxies)),
            sites,
            clients,
            tables,
            upstreams: plan.upstreams.iter().map(|upstream| upstream.name.clone()).collect(),
            addresses: plan.addresses.as_slice().into(),
            // Keys are counted by their hashes, so the hasher has to stay.
            keys: former.map_or_else(RandomState::new, |former| former.keys.clone()),
            counted: Arc::new(shared),
            sources: surroundings.map(sources),
        })
    }

    /// The same with a worker's own sites.
    pub(crate) fn with_sites(&self, sites: SiteList) -> Compiled {
        Compiled {
            sites,
            hosts: self.hosts.clone(),
            clients: self.clients.clone(),
            names_clients: self.names_clients,
            trusts_differ: self.trusts_differ,
            tables: self.tables.clone(),
            upstreams: self.upstreams.clone(),
            addresses: self.addresses.clone(),
            keys: self.keys.clone(),
            counted: self.counted.clone(),
            sources: self.sources.clone(),
        }
    }

    /// How many requests have a permit of a limit for requests at once.
    pub(crate) fn permits(&self) -> u64 {
        self.counted.permits()
    }

    /// The sites, by what they were made from ([`SharedSite::address`]), if they are the same within other surroundings.
    fn sites_within(&self, later: &Surroundings) -> Option<HashMap<usize, &Arc<CompiledSite>>> {
        let sources = self.sources.as_ref().filter(|it| it.surroundings.are_kept_by(later))?;
        Some(sources.sites.iter().map(SharedSite::address).zip(&*self.sites).collect())
    }

    /// The upstream of this name, perhaps behind `http://`, if it is among these names.
    pub(crate) fn upstream(&self, name: &[u8], among: Option<&[String]>) -> Option<usize> {
        let bare = name.strip_prefix(b"http://").or_else(|| name.strip_prefix(b"grpc://")).unwrap_or(name);
        let may_be = |known: &String| among.is_none_or(|among| among.contains(known));
        let find =
            |name: &[u8]| self.upstreams.iter().position(|known| known.as_bytes() == name && may_be(known));
        find(name).or_else(|| find(bare))
    }

    /// Whether a peer may announce the client of a connection to this listener.
    pub(crate) fn believes_proxy(&self, peer: Option<SocketAddr>, listener: u16) -> bool {
        let is_here = |site: &&Arc<CompiledSite>| site.is_at(listener);
        self.sites.iter().filter(is_here).any(|site| site.clients.believes(peer))
    }

    /// Whether passwords are checked anywhere.
    pub(crate) fn has_passwords(&self) -> bool {
        let of_routes =
            |site: &Arc<CompiledSite>| site.routes.iter().any(|route| route.guards.basic.is_some());
        self.sites.iter().any(|site| site.rest.basic.is_some() || of_routes(site))
    }

    /// The number of a key in the tables of limits. Requests whose key is empty are counted together: a client must not
    /// get rid of a limit by leaving out what it is counted by.
    pub(crate) fn number_of(&self, key: &Key, view: &View<'_>) -> u64 {
        match key {
            Key::Everyone => 1,
            Key::Client { ipv6_bits } => {
                let address = match view.client.address {
                    Some(IpAddr::V6(address)) => {
                        let free_bits = 128 - u32::from(*ipv6_bits).min(128);
                        let address = u128::from(address);
                        let network =
                            address.checked_shr(free_bits).and_then(|top| top.checked_shl(free_bits));
                        Some(IpAddr::V6(network.unwrap_or(0).into()))
                    }
                    address => address,
                };
                self.keys.hash_one(address)
            }
            Key::Text(text) => {
                let mut value = Vec::new();
                text.render(view, Paths::Decoded, &mut value);
                self.keys.hash_one(value)
            }
        }
    }
}

fn differ<T: PartialEq>(mut all: impl Iterator<Item = T>) -> bool {
    let first = all.next();
    all.any(|other| first.as_ref() != Some(&other))
}

impl Compiled {
    /// The site with this index, which is one of this plan: `None` is reported as a bug.
    #[inline]
    pub(crate) fn site(&self, at: usize) -> Option<&CompiledSite> {
        let site = self.sites.get(at).map(|site| &**site);
        if site.is_none() {
            bug!("no site has the index {at}");
        }
        site
    }
}

impl CompiledSite {
    /// The route with this index, which is one of this site: `None` is reported as a bug.
    #[inline]
    pub(crate) fn route(&self, at: usize) -> Option<&CompiledRoute> {
        let route = self.routes.get(at);
        if route.is_none() {
            bug!("no route of the site has the index {at}");
        }
        route
    }

    /// Whether identical requests may get the same response.
    pub(crate) fn repeats(&self) -> bool {
        self.routes.iter().any(|route| route.cache.as_ref().is_some_and(|cache| cache.repeats))
    }

    /// Whether rules for responses show the attempts at upstreams.
    pub(crate) fn uses_attempts(&self) -> bool {
        self.rest_response.uses_attempts() || self.routes.iter().any(|route| route.response.uses_attempts())
    }

    /// Whether it is served at this listener.
    pub(crate) fn is_at(&self, listener: u16) -> bool {
        self.listeners.is_empty() || self.listeners.contains(&listener)
    }

    fn new(parts: Parts<'_>, at: usize, site: &plan::Site) -> Result<CompiledSite, Fault> {
        tls_route::check(parts.plan, at, site)?;
        let made = Regex::count_made();
        let table = Table::new(&site.routes, at)?;
        let place = Place::Site(at);
        let mut routes: Vec<CompiledRoute> = Vec::with_capacity(site.routes.len());
        for (route_at, route) in site.routes.iter().enumerate() {
            let former = site.routes.get(..route_at).unwrap_or_default();
            let alike = former.iter().position(|former| route::is_alike(former, route));
            let class = alike.and_then(|at| routes.get(at)).map_or(route_at, |former| former.class);
            let expression = table.expression(route_at).cloned();
            let place = Place::Route(at, route_at);
            routes.push(CompiledRoute::new(parts, (place, class), (site, route), expression)?);
        }
        let rewrites = Rewrites::new(&site.rewrites, None, parts.tables, place)?;
        let of_routes = routes.iter().map(|route| {
            let conditions = Uses::of_all(&route.when, parts.tables);
            conditions.and(route.rewrites.uses(parts.tables))
        });
        let choice_uses = of_routes.fold(rewrites.uses(parts.tables), Uses::and);
        for cache in routes.iter_mut().filter_map(|route| route.cache.as_mut()) {
            // A rewrite may depend on anything.
            cache.repeats &= rewrites.is_empty() && !choice_uses.has(Uses::CONNECTION);
        }
        let before_paths =
            site.routes.iter().enumerate().filter(|(_, route)| route.entry == RouteEntry::BeforePaths);
        Ok(CompiledSite {
            name: site.name.clone(),
            before_paths: before_paths.map(|(at, _)| at).collect(),
            is_conditional: site
                .routes
                .iter()
                .any(|route| !route.when.is_empty() || route.entry != RouteEntry::Paths),
            choice_uses,
            clients: Arc::new(Clients::new(&site.trust)),
            listeners: site.listeners.iter().map(|at| at.number).collect(),
            tls_rules: site.tls_rules,
            passthrough: site.tls_passthrough.clone(),
            number: site.number,
            logs: site.rules.logs,
            renderer: site.renderer,
            table,
            rewrites,
            routes,
            rest: Guards::new(parts, &site.rules, None, place)?,
            rest_response: ResponseRules::new(parts, &site.rules, None, place)?,
            has_expressions: Regex::count_made() != made,
        })
    }
}
