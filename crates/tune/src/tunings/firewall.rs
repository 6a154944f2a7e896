//! The served port past every packet filter.

use crate::counters::netstat;
use crate::error::Unknown;
use crate::host::Host;
use crate::netfilter::{Filters, missing};
use crate::served::Served;
use crate::tuning::{About, Advice, Counter, Needs, Risk, Scope, Tuning};

/// Rules that every packet meets.
pub(super) struct Firewall;

const ABOUT: About = About {
    name: "firewall",
    reason: "each packet walks every chain of rules",
    detail: "For the served port alone: accepted by the first rule of every filter chain, and not tracked, \
             unless addresses are translated. Everybody else's rules stay as they are.",
    source: "Richards 2021, step 4: +22 %; nftables with conntrack costs 8 to 11 % on loopback",
    scope: Scope::Namespace,
    risk: Risk::Grave,
    lost: "rules that would limit, log or block who may reach the served port no longer see it",
    gain_percent: 22.0,
    needs: Needs::AnyPath,
};

impl Tuning for Firewall {
    fn about(&self) -> &About {
        &ABOUT
    }

    fn probe(&self, host: &Host, _: &Served) -> Result<String, Unknown> {
        Ok(Filters::read(host)?.line())
    }

    fn advice(&self, host: &Host, served: &Served) -> Result<Advice, Unknown> {
        let filters = Filters::read(host)?;
        if !filters.is_any() {
            return Ok(Advice::Fine);
        }
        let Ok(port) = served.port() else {
            return Ok(Advice::ByHand("say --port: only the served port is let past the rules".to_owned()));
        };
        if let Some(reason) = filters.cannot_write(host) {
            return Ok(Advice::ByHand(reason));
        }
        let mut changes = filters.accept(port);
        if !filters.translates() {
            changes.extend(filters.untrack(port));
        }
        Ok(Advice::change(format!("accept port {port} first"), missing(host, changes)?))
    }

    fn effect(&self, host: &Host, _: &Served) -> Result<Counter, Unknown> {
        netstat(host, "InSegs")
    }
}
