//! No connection tracking for the served port.

use crate::counters::file;
use crate::error::Unknown;
use crate::host::Host;
use crate::netfilter::{Filters, missing};
use crate::served::Served;
use crate::tuning::{About, Advice, Counter, Needs, Risk, Scope, Tuning};

/// The connection tracking table.
pub(super) struct Conntrack;

const ABOUT: About = About {
    name: "conntrack",
    reason: "each connection is added to a table, and each packet is looked up in it",
    detail: "Not possible where addresses are translated, because NAT needs tracking, or where rules match the state \
             of a connection: they would no longer recognise the port's packets. `firewall` accepts those packets \
             first.",
    source: "nftables with conntrack costs 8 to 11 % on loopback",
    scope: Scope::Namespace,
    risk: Risk::Medium,
    lost: "conntrack -L and its statistics no longer show the served port",
    gain_percent: 9.0,
    needs: Needs::AnyPath,
};

impl Tuning for Conntrack {
    fn about(&self) -> &About {
        &ABOUT
    }

    fn probe(&self, host: &Host, _: &Served) -> Result<String, Unknown> {
        Ok(match host.has(COUNT) {
            true => format!("{} of {} tracked", host.number::<u64>(COUNT)?, host.number::<u64>(MAX)?),
            false => "not loaded".to_owned(),
        })
    }

    fn advice(&self, host: &Host, served: &Served) -> Result<Advice, Unknown> {
        if !host.has(COUNT) || host.number::<u64>(COUNT)? == 0 {
            return Ok(Advice::Fine);
        }
        let filters = Filters::read(host)?;
        let Ok(port) = served.port() else {
            return Ok(Advice::ByHand("use --port: only the served port can be left untracked".to_owned()));
        };
        if filters.translates() {
            return Ok(Advice::ByHand(
                "addresses are translated, which needs tracking: serve without NAT".to_owned(),
            ));
        }
        if filters.asks_state || !filters.old_tables.is_empty() {
            return Ok(Advice::ByHand(
                "rules match the state of connections: see `flatout tune explain firewall`".to_owned(),
            ));
        }
        if let Some(reason) = filters.cannot_write(host) {
            return Ok(Advice::ByHand(reason));
        }
        Ok(Advice::change(format!("port {port} not tracked"), missing(host, filters.untrack(port))?))
    }

    fn effect(&self, host: &Host, _: &Served) -> Result<Counter, Unknown> {
        file(host, COUNT)
    }
}

const COUNT: &str = "/proc/sys/net/netfilter/nf_conntrack_count";
const MAX: &str = "/proc/sys/net/netfilter/nf_conntrack_max";
