//! Receive packet steering: more CPUs handle packets than the card has queues.

use crate::card;
use crate::change::Change;
use crate::counters::softnet;
use crate::cpus;
use crate::error::Unknown;
use crate::host::Host;
use crate::served::Served;
use crate::settings::Setting;
use crate::tuning::{About, Advice, Counter, Needs, Risk, Scope, Tuning};

/// The CPUs that each receive queue passes packets to.
pub(super) struct Rps;

const ABOUT: About = About {
    name: "rps",
    reason: "a card with one queue keeps one CPU busy while the others wait",
    detail: "With a queue for each CPU it only adds interrupts between CPUs, and should be off.",
    source: "networking/scaling",
    scope: Scope::Device,
    risk: Risk::Low,
    lost: "",
    gain_percent: 5.0,
    needs: Needs::Card,
};

impl Tuning for Rps {
    fn about(&self) -> &About {
        &ABOUT
    }

    fn probe(&self, host: &Host, served: &Served) -> Result<String, Unknown> {
        let queues = card::queues(host, served.card(host)?, "rx")?;
        let masks = queues.iter().map(|queue| host.text(&format!("{queue}/rps_cpus")));
        Ok(masks.collect::<Result<Vec<_>, _>>()?.join(" "))
    }

    fn advice(&self, host: &Host, served: &Served) -> Result<Advice, Unknown> {
        let (queues, online) = (card::queues(host, served.card(host)?, "rx")?, card::cpus(host)?);
        let (wanted, what) = match queues.len() < online.len() {
            true => (cpus::mask(online), "spread the packets of each receive queue over all CPUs"),
            false => (cpus::mask([]), "keep packets on the CPU of their queue"),
        };
        let mut changes = Vec::new();
        for queue in &queues {
            let path = format!("{queue}/rps_cpus");
            if !cpus::same_mask(&host.text(&path)?, &wanted) {
                changes.push(Change::text(Setting::file(path), &wanted));
            }
        }
        Ok(Advice::change(what, changes))
    }

    fn effect(&self, host: &Host, _: &Served) -> Result<Counter, Unknown> {
        softnet(host, 9, "received_rps")
    }
}
