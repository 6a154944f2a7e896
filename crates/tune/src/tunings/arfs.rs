//! Accelerated receive flow steering: the card itself sends each connection's packets to the CPU that reads it.

use super::rfs::flow_tables;
use crate::card;
use crate::change::Change;
use crate::error::Unknown;
use crate::host::Host;
use crate::served::Served;
use crate::settings::{Ethtool, Group};
use crate::tuning::{About, Advice, Counter, Needs, Proof, Risk, Scope, Tuning};

/// Filters of the card that follow the connections.
pub(super) struct Arfs;

const ABOUT: About = About {
    name: "arfs",
    reason: "packets arrive on the queue of the CPU that reads the connection, without an interrupt between CPUs",
    detail: "The driver needs filters (ntuple) and an interrupt for each queue. It replaces `rps` and `rfs` where there is a queue \
             for each CPU. It gains nothing for a server that already gives each connection to the worker on the CPU where it \
             arrives, as `locality` has it.",
    source: "networking/scaling: Accelerated RFS",
    scope: Scope::Host,
    risk: Risk::Medium,
    lost: "connections use up the card's filters; each new one costs a message to the card",
    gain_percent: 2.0,
    needs: Needs::Card,
};

impl Tuning for Arfs {
    fn about(&self) -> &About {
        &ABOUT
    }

    fn probe(&self, host: &Host, served: &Served) -> Result<String, Unknown> {
        Ok(format!("filters {}", filters(served.card(host)?).now(host)?))
    }

    fn advice(&self, host: &Host, served: &Served) -> Result<Advice, Unknown> {
        let device = served.card(host)?;
        let queues = card::queues(host, device, "rx")?;
        let filters = filters(device);
        let is_off = filters.now(host)? == "off";
        if queues.len() < card::cpus(host)?.len().max(2) {
            // Fewer queues than CPUs: `rfs` spreads further than the card could.
            return Ok(Advice::Fine);
        }
        let mut changes = flow_tables(host, &queues)?;
        changes.extend(is_off.then(|| Change::text(filters, "on")));
        Ok(Advice::change("the card follows connections to their CPU", changes))
    }

    fn proof(&self) -> Proof {
        Proof::Measurement
    }

    fn effect(&self, host: &Host, served: &Served) -> Result<Counter, Unknown> {
        let device = served.card(host)?;
        let counters = card::driver_counters(host, device)?;
        let steered: Vec<u64> =
            counters.iter().filter(|(name, _)| name.contains("arfs")).map(|(_, value)| *value).collect();
        match steered.is_empty() {
            true => Err(Unknown(format!("the driver of {device} counts no filters of aRFS"))),
            false => Ok(Counter {
                name: "arfs of ethtool -S".to_owned(),
                value: steered.into_iter().fold(0, u64::saturating_add),
            }),
        }
    }
}

fn filters(device: &str) -> Ethtool {
    Ethtool::new(device, Group::Feature, "ntuple-filters")
}
