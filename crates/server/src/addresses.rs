//! Which sites are served at which addresses.
//!
//! A site without addresses of its own is served at those of the server ([`Plan::server`]). A site with its own is served there
//! and nowhere else. Each address has a number, which connections carry: it belongs to the address for as long as the process
//! runs, so that a connection that was accepted before a reload gets to the sites of its address afterwards.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use flatout_engine::{Address, Listen, ProxyHeader};
use flatout_observe::observed::{self, RequestLogs};
use flatout_site::plan::{Route, SiteListener};

use crate::plan::{Invalid, Plan};
use crate::prerender;

/// An address of a site.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SiteListen {
    /// The listener. Its number is not used.
    pub listen: Listen,
    /// The site also gets requests for host names that no site has there.
    pub is_default: bool,
}

/// The number of sites without addresses of their own at sockets whose address is unknown: those passed by systemd.
const SHARED: u16 = 0;

/// Addresses of one process so far; different reloads may have different ones.
const ADDRESSES_MAX: usize = u16::MAX as usize - 1;

/// The numbers that a process gives to addresses and names for as long as it runs. Clones share them.
#[derive(Clone, Default)]
pub struct Numbers {
    pub(crate) addresses: Addresses,
    pub(crate) sites: observed::Sites,
    pub(crate) route_logs: RouteLogs,
}

/// The names of the routes that have logs of their own. Logs are opened when the process starts: a route that gets its own by a
/// reload is in the usual ones until a restart.
#[derive(Clone, Default)]
pub(crate) struct RouteLogs(Arc<OnceLock<Vec<String>>>);

impl RouteLogs {
    /// Sets the logs of each route to those that the process has opened for the route of that name.
    pub(crate) fn set(&self, plan: &mut Plan) {
        let opened = self.0.get_or_init(|| plan.route_logs.clone());
        let number = |of_plan: u16| {
            let name = plan.route_logs.get(usize::from(of_plan))?;
            u16::try_from(opened.iter().position(|known| known == name)?).ok()
        };
        let has_own = |route: &Route| matches!(route.rules.logs, RequestLogs::Route(_));
        for site in plan.sites.sites.iter_mut().filter(|site| site.routes.iter().any(has_own)) {
            for route in &mut site.routes {
                if let RequestLogs::Route(of_plan) = route.rules.logs {
                    route.rules.logs = number(of_plan).map_or(RequestLogs::Usual, RequestLogs::Route);
                }
            }
        }
    }
}

impl Numbers {
    /// With these numbers of sites.
    pub(crate) fn of(sites: observed::Sites) -> Numbers {
        Numbers { sites, ..Numbers::default() }
    }
}

/// The numbers of all addresses of a process so far. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Addresses(Arc<Mutex<Vec<Address>>>);

impl Addresses {
    /// The number of an address; `None` if there are too many.
    fn number(&self, address: &Address) -> Option<u16> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = known.iter().position(|other| other == address).unwrap_or(known.len());
        if at == ADDRESSES_MAX {
            return None;
        }
        if at == known.len() {
            known.push(address.clone());
        }
        u16::try_from(at + 1).ok()
    }
}

/// All listeners of a plan, those of its sites included, and the listeners of each site.
///
/// # Errors
/// Two uses of one address that exclude each other, or too many addresses.
pub(crate) fn place(plan: &mut Plan, numbers: &Addresses) -> Result<Vec<Listen>, Invalid> {
    let mut listens = plan.server.listen.clone();
    for (site, own) in plan.site_listen.iter().enumerate() {
        for SiteListen { listen, .. } in own {
            match listens.iter().find(|known| known.address == listen.address) {
                None => listens.push(listen.clone()),
                Some(known) => agree(known, listen).map_err(|reason| Invalid::Address(site, reason))?,
            }
        }
    }
    let (of_sites, renderers) = (listens.len(), prerender::listens(plan));
    listens.extend(renderers.iter().map(|(_, listen)| listen.clone()));
    for listen in &mut listens {
        listen.number = numbers.number(&listen.address).ok_or_else(|| {
            Invalid::Value(format!(
                "listen: more than {ADDRESSES_MAX} addresses since the server was started; restart it"
            ))
        })?;
    }
    let shared: Vec<SiteListener> = std::iter::once(SHARED)
        .chain(listens.iter().take(plan.server.listen.len()).map(|listen| listen.number))
        .map(|number| SiteListener { number, is_default: false })
        .collect();
    plan.sites.addresses = listens.iter().filter_map(address_of).collect();
    for (at, site) in plan.sites.sites.iter_mut().enumerate() {
        let own = plan.site_listen.get(at).map(Vec::as_slice).unwrap_or_default();
        let placed = own.iter().filter_map(|own| {
            let listen = listens.iter().find(|listen| listen.address == own.listen.address)?;
            Some(SiteListener { number: listen.number, is_default: own.is_default })
        });
        let listeners = if own.is_empty() { shared.clone() } else { placed.collect() };
        // One that stays as it is stays shared with other plans.
        if site.listeners != listeners || site.renderer.is_some() {
            site.listeners = listeners;
            site.renderer = None;
        }
    }
    for ((at, _), listen) in renderers.iter().zip(listens.iter().skip(of_sites)) {
        if let Some(site) = plan.sites.sites.get_mut(*at) {
            site.renderer = Some(listen.number);
            site.listeners.push(SiteListener { number: listen.number, is_default: false });
        }
    }
    pass_tls(plan, &mut listens);
    Ok(listens)
}

/// The number and the address of a listener, if it has a port that is known.
fn address_of(listen: &Listen) -> Option<(u16, SocketAddr)> {
    match &listen.address {
        Address::Tcp(address) if address.port() != 0 => Some((listen.number, *address)),
        _ => None,
    }
}

/// Has the ClientHello read at the addresses of sites whose connections are passed on.
fn pass_tls(plan: &Plan, listens: &mut [Listen]) {
    for site in plan.sites.sites.iter().filter(|site| site.tls_passthrough.is_some()) {
        for listen in listens.iter_mut().filter(|listen| !listen.is_plain) {
            listen.passes_tls |= site.listeners.iter().any(|at| at.number == listen.number);
        }
    }
}

/// Whether an address can be used in both ways.
fn agree(one: &Listen, other: &Listen) -> Result<(), String> {
    let address = match &one.address {
        Address::Tcp(address) => address.to_string(),
        Address::Unix(path) => format!("unix:{}", path.display()),
    };
    if one.is_plain != other.is_plain {
        let (plain, secure) = ("without TLS", "with TLS");
        let (here, before) = if other.is_plain { (plain, secure) } else { (secure, plain) };
        return Err(format!(
            "the address {address} is used {here} here, and {before} before; all sites at an address use the same: \
             `listen` is with TLS if the site has a certificate, `listen-plain` is without"
        ));
    }
    if one.proxy_header != other.proxy_header {
        let words = |header| match header {
            ProxyHeader::None => "without the PROXY protocol",
            ProxyHeader::Trusted => "with the PROXY protocol",
            ProxyHeader::Untrusted => "with the PROXY protocol of untrusted peers",
        };
        let (here, before) = (words(other.proxy_header), words(one.proxy_header));
        return Err(format!("the address {address} is used {here} here, and {before} before"));
    }
    Ok(())
}
