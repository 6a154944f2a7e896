//! A plan, checked and prepared: the part shared by all workers, and the part that each worker has a copy of.

mod guards;
mod route;

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;

use super::client::Clients;
use super::fault::{Fault, Place};
use super::hosts::Hosts;
use super::plan::{self, Plan};
use super::render::{Maps, Paths, View};
use super::rewrite::Rewrites;
use super::table::Table;
use guards::Shared;

pub(crate) use guards::{Guards, Key};
pub(crate) use route::{Act, Cached, ResponseRules, Route};

/// The limit for sites, rates and limits of one plan; each has a 16-bit index in notes.
const SITES_MAX: usize = 4096;

/// A checked plan. A clone has its own memory for expressions, which threads would otherwise contend for, and shares
/// the counters.
#[derive(Debug, Clone)]
pub(crate) struct Compiled {
    pub(crate) hosts: Hosts,
    pub(crate) sites: Vec<Site>,
    pub(crate) clients: Arc<Clients>,
    pub(crate) maps: Arc<Maps>,
    pub(crate) keys: RandomState,
    /// The counters of limits.
    counted: Arc<Shared>,
}

#[derive(Debug, Clone)]
pub(crate) struct Site {
    pub(crate) table: Table,
    pub(crate) rewrites: Rewrites,
    pub(crate) routes: Vec<Route>,
    /// The guards used when no route matches.
    pub(crate) rest: Guards,
    pub(crate) rest_response: ResponseRules,
}

impl Compiled {
    /// # Errors
    /// The first error in the plan.
    pub(crate) fn new(plan: &Plan) -> Result<Compiled, Fault> {
        Compiled::after(plan, None)
    }

    /// Like `new`, replacing `former`: limits that did not change keep their counters.
    ///
    /// # Errors
    /// See [`Compiled::new`].
    pub(crate) fn after(plan: &Plan, former: Option<&Compiled>) -> Result<Compiled, Fault> {
        if plan.sites.len() > SITES_MAX {
            return Err(Place::Plan.fault(format!("got {} sites, allowed {SITES_MAX}", plan.sites.len())));
        }
        let shared = Shared::after(plan, former.map(|former| &*former.counted))?;
        let mut lists = 0;
        let sites =
            plan.sites.iter().enumerate().map(|(at, site)| Site::new(plan, &shared, at, site, &mut lists));
        Ok(Compiled {
            hosts: Hosts::new(&plan.sites)?,
            sites: sites.collect::<Result<_, Fault>>()?,
            clients: Arc::new(Clients::new(&plan.trust)),
            maps: Arc::new(Maps::new(&plan.maps)?),
            // Keys are counted by their hashes, so the hasher has to stay.
            keys: former.map_or_else(RandomState::new, |former| former.keys.clone()),
            counted: Arc::new(shared),
        })
    }

    /// Whether passwords are checked anywhere.
    pub(crate) fn has_passwords(&self) -> bool {
        let of_routes = |site: &Site| site.routes.iter().any(|route| route.guards.basic.is_some());
        self.sites.iter().any(|site| site.rest.basic.is_some() || of_routes(site))
    }

    /// The number of a key in the tables of limits; `None` if it is not limited.
    pub(crate) fn number_of(&self, key: &Key, view: &View<'_>) -> Option<u64> {
        match key {
            Key::Everyone => Some(1),
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
                Some(self.keys.hash_one(address))
            }
            Key::Text(text) => {
                let mut value = Vec::new();
                text.render(view, Paths::Decoded, &mut value);
                (!value.is_empty()).then(|| self.keys.hash_one(value))
            }
        }
    }
}

impl Site {
    /// Whether identical requests may get the same response.
    pub(crate) fn repeats(&self) -> bool {
        self.routes.iter().any(|route| route.cache.as_ref().is_some_and(|cache| cache.repeats))
    }

    fn new(
        plan: &Plan,
        shared: &Shared,
        at: usize,
        site: &plan::Site,
        lists: &mut u64,
    ) -> Result<Site, Fault> {
        let table = Table::new(&site.routes, at)?;
        let place = Place::Site(at);
        let rest_rules = &site.rules;
        let mut routes: Vec<Route> = Vec::with_capacity(site.routes.len());
        for (route_at, route) in site.routes.iter().enumerate() {
            let former = site.routes.get(..route_at).unwrap_or_default();
            let alike = former.iter().position(|former| route::is_alike(former, route));
            let class = alike.and_then(|at| routes.get(at)).map_or(route_at, |former| former.class);
            let expression = table.expression(route_at).cloned();
            let place = Place::Route(at, route_at);
            let mut route = Route::new(plan, shared, (place, class), route, expression, lists)?;
            if let Some(cache) = &mut route.cache {
                // A rewrite may depend on anything.
                cache.repeats &= site.rewrites.is_empty();
            }
            routes.push(route);
        }
        Ok(Site {
            table,
            rewrites: Rewrites::new(&site.rewrites, None, plan.maps.len(), place)?,
            routes,
            rest: Guards::new(plan, shared, rest_rules, None, place, lists)?,
            rest_response: ResponseRules::new(plan, rest_rules, None, place)?,
        })
    }
}
