//! Connections with TLS that are passed on, as they are or what is inside, by the name in their ClientHello.

use std::net::SocketAddr;
use std::sync::Arc;

use flatout_observe::observed::{NO_SITE, RequestLogs};
use flatout_proxy::Protocol;

use crate::Sites;
use crate::compiled::CompiledSite;
use crate::fault::{Fault, Place};
use crate::plan::{Plan, Site, TlsPassthrough, Verdict};

/// What becomes of a connection with TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsDecision {
    /// TLS ends here.
    Terminate,
    /// No site at the listener has the name, or the site does not allow the client.
    Refuse {
        /// The number of the site in logs and metrics; [`NO_SITE`] without one.
        site: u16,
        /// The logs of the connection.
        logs: RequestLogs,
    },
    /// It is passed on.
    Pass {
        /// The number of the site in logs and metrics.
        site: u16,
        /// The logs of the connection.
        logs: RequestLogs,
        /// The upstream; `None`: it is closed.
        upstream: Option<usize>,
        /// TLS ends here: what is inside is passed on.
        ends_tls: bool,
    },
}

impl Sites {
    /// Decides about a connection to a listener, by the name in its ClientHello. `random` chooses among several upstreams.
    pub fn route_tls(
        &self,
        listener: u16,
        name: Option<&str>,
        peer: Option<SocketAddr>,
        random: u64,
    ) -> TlsDecision {
        let compiled = &self.compiled;
        let Some(at) = compiled.hosts.find_name(listener, name.map(str::as_bytes)) else {
            let is_here = |site: &&Arc<CompiledSite>| site.is_at(listener);
            let mut here = compiled.sites.iter().filter(is_here);
            let has_others = here.any(|site| site.passthrough.is_none());
            return if has_others { TlsDecision::Terminate } else { TlsDecision::REFUSE };
        };
        let Some(site) = compiled.site(at) else { return TlsDecision::REFUSE };
        let Some(passthrough) = &site.passthrough else { return TlsDecision::Terminate };
        if site.rest.access.verdict(peer.map(|peer| peer.ip())) == Some(Verdict::Deny) {
            return TlsDecision::Refuse { site: site.number, logs: site.logs };
        }
        let ends_tls = passthrough.ends_tls;
        match passthrough.choose(random) {
            Some(upstream) => TlsDecision::Pass { site: site.number, logs: site.logs, upstream, ends_tls },
            None => TlsDecision::Refuse { site: site.number, logs: site.logs },
        }
    }
}

impl TlsDecision {
    /// For a name that no site has.
    const REFUSE: TlsDecision = TlsDecision::Refuse { site: NO_SITE, logs: RequestLogs::Usual };
}

impl TlsPassthrough {
    /// The upstream of a share, chosen by a random number; `None` without shares.
    fn choose(&self, random: u64) -> Option<Option<usize>> {
        let total: u64 = self.shares.iter().map(|share| u64::from(share.weight)).sum();
        let mut left = random.checked_rem(total)?;
        for share in &self.shares {
            match left.checked_sub(u64::from(share.weight)) {
                Some(rest) => left = rest,
                None => return Some(share.upstream),
            }
        }
        None
    }
}

/// Checks a site whose connections are passed on.
///
/// # Errors
/// It has routes, or an upstream of it is for requests only.
pub(crate) fn check(plan: &Plan, at: usize, site: &Site) -> Result<(), Fault> {
    let Some(passthrough) = &site.tls_passthrough else { return Ok(()) };
    let place = Place::Site(at);
    if !site.routes.is_empty() {
        return Err(place.fault(
            "connections of this site are passed on as they are (tls-passthrough), so it cannot have routes or actions",
        ));
    }
    for upstream in passthrough.shares.iter().filter_map(|share| share.upstream) {
        let Some(upstream) = plan.upstreams.get(upstream) else {
            return Err(place.fault(format!("there is no upstream with the index {upstream}")));
        };
        let name = &upstream.name;
        if upstream.protocol != Protocol::Http1 {
            let protocol = upstream.protocol.name();
            return Err(place.fault(format!(
                "the upstream `{name}` has protocol {protocol}; connections are passed on as they are, so leave it out"
            )));
        }
        if upstream.servers.iter().any(|server| server.tls.is_some()) {
            return Err(place.fault(format!(
                "the upstream `{name}` has servers with https://; the client's own TLS reaches them, so name them without"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use flatout_proxy::{Address, Server, Upstream};

    use super::*;
    use crate::plan::{Access, Host, PassthroughShare, Peers, SiteListener};

    fn passed(host: Host, shares: &[(u32, Option<usize>)]) -> Site {
        let shares = shares.iter().map(|&(weight, upstream)| PassthroughShare { weight, upstream }).collect();
        let passthrough = TlsPassthrough { shares, ..TlsPassthrough::default() };
        Site { hosts: vec![host], tls_passthrough: Some(passthrough), ..Site::default() }
    }

    fn plan(sites: Vec<Site>) -> Plan {
        let server = Server::new(Address::Socket(([127, 0, 0, 1], 9).into()));
        let upstream = |name| Upstream::new(name, vec![server.clone()]);
        let sites = sites.into_iter().map(Into::into).collect();
        Plan { sites, upstreams: vec![upstream("one"), upstream("other")], ..Plan::default() }
    }

    fn to(upstream: usize) -> TlsDecision {
        TlsDecision::Pass { site: 0, logs: RequestLogs::Usual, upstream: Some(upstream), ends_tls: false }
    }

    #[test]
    fn names_decide_where_a_connection_goes() {
        let exact = |name: &str| Host::Exact(name.to_owned());
        let http = Site { hosts: vec![exact("www.test")], ..Site::default() };
        let sites = vec![
            passed(exact("db.test"), &[(1, Some(0))]),
            passed(Host::Below("db.test".to_owned()), &[(1, Some(1))]),
            http,
        ];
        let sites = crate::open(&plan(sites)).unwrap();
        for (name, expected) in [
            (Some("db.test"), to(0)),
            (Some("a.db.test"), to(1)),
            (Some("www.test"), TlsDecision::Terminate),
            (Some("other.test"), TlsDecision::Terminate),
            (None, TlsDecision::Terminate),
        ] {
            assert_eq!(sites.route_tls(0, name, None, 0), expected, "{name:?}");
        }
        // Where nothing ends TLS, unknown names are refused, and the first site is not for clients without a name.
        let only = crate::open(&plan(vec![passed(exact("db.test"), &[(1, Some(0))])])).unwrap();
        assert_eq!(only.route_tls(0, Some("x.test"), None, 0), TlsDecision::REFUSE);
        assert_eq!(only.route_tls(0, None, None, 0), TlsDecision::REFUSE);
        let any = crate::open(&plan(vec![passed(Host::Any, &[(1, Some(0))])])).unwrap();
        assert_eq!(any.route_tls(0, None, None, 0), to(0));
    }

    #[test]
    fn shares_and_access_lists_apply() {
        let three = passed(Host::Any, &[(1, Some(0)), (0, Some(1)), (2, None)]);
        let sites = crate::open(&plan(vec![three])).unwrap();
        let nobody = TlsDecision::Pass { site: 0, logs: RequestLogs::Usual, upstream: None, ends_tls: false };
        for (random, expected) in [(0, to(0)), (1, nobody), (2, nobody), (3, to(0))] {
            assert_eq!(sites.route_tls(0, None, None, random), expected, "{random}");
        }
        let none = crate::open(&plan(vec![passed(Host::Any, &[])])).unwrap();
        assert_eq!(none.route_tls(0, None, None, 7), TlsDecision::REFUSE);
        let mut guarded = passed(Host::Any, &[(1, Some(0))]);
        let peers: Peers = "10.0.0.0/8".parse::<crate::plan::Net>().map(Peers::Net).unwrap();
        guarded.rules.access = vec![
            Access { verdict: Verdict::Allow, peers },
            Access { verdict: Verdict::Deny, peers: Peers::All },
        ];
        let sites = crate::open(&plan(vec![guarded])).unwrap();
        let from = |text: &str| sites.route_tls(0, None, Some(text.parse().unwrap()), 0);
        assert_eq!((from("10.1.2.3:4"), from("11.1.2.3:4")), (to(0), TlsDecision::REFUSE));
    }

    #[test]
    fn sites_are_found_at_their_listeners() {
        let at = |number| vec![SiteListener { number, is_default: false }];
        let db = Site { listeners: at(1), ..passed(Host::Any, &[(1, Some(0))]) };
        let www = Site { hosts: vec![Host::Exact("a.test".to_owned())], listeners: at(2), ..Site::default() };
        let sites = crate::open(&plan(vec![db, www])).unwrap();
        assert_eq!(sites.route_tls(1, Some("a.test"), None, 0), to(0));
        assert_eq!(sites.route_tls(2, Some("a.test"), None, 0), TlsDecision::Terminate);
        assert_eq!(sites.route_tls(2, Some("b.test"), None, 0), TlsDecision::Terminate);
    }

    #[test]
    fn sites_that_cannot_be_passed_on_are_refused() {
        let site = || passed(Host::Any, &[(1, Some(0))]);
        let refused = |plan: Plan| crate::check(&plan).unwrap_err().reason;
        assert!(refused(plan(vec![passed(Host::Any, &[(1, Some(2))])])).contains("no upstream"));
        let mut h2 = plan(vec![site()]);
        h2.upstreams[0].protocol = Protocol::H2c { streams_max: 1 };
        assert!(refused(h2).contains("protocol h2c"));
        let mut tls = plan(vec![site()]);
        let secure = flatout_proxy::Tls { verify: false, ..flatout_proxy::Tls::default() };
        tls.upstreams[0].servers[0].tls = Some(secure);
        assert!(refused(tls).contains("https://"));
        let mut routed = plan(vec![site()]);
        let route = crate::plan::Route::new(crate::plan::PathMatch::prefix("/"), crate::plan::Action::Close);
        routed.sites[0].routes.push(route);
        assert!(refused(routed).contains("routes"));
    }
}
