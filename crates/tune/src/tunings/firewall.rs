//! Packets of the served port bypass every packet filter.

use crate::counters::netstat;
use crate::error::Unknown;
use crate::host::Host;
use crate::netfilter::{Filters, missing};
use crate::served::Served;
use crate::tuning::{About, Advice, Counter, Needs, Risk, Scope, Tuning};

/// Rules that every packet passes.
pub(super) struct Firewall;

const ABOUT: About = About {
    name: "firewall",
    reason: "each packet passes through every chain of rules",
    detail: "For the served port only: the first rule of every filter chain accepts its packets, and they are not \
             tracked unless addresses are translated. All other rules stay as they are.",
    source: "Richards 2021, step 4: +22 %; nftables with conntrack costs 8 to 11 % on loopback",
    scope: Scope::Namespace,
    risk: Risk::Grave,
    lost: "rules that limit, log or block access to the served port no longer see its packets",
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
            return Ok(Advice::ByHand("use --port: only the served port can bypass the rules".to_owned()));
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
