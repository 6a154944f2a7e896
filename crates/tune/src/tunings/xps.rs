//! Transmit packet steering: each CPU has its own transmit queue.

use crate::card;
use crate::change::Change;
use crate::cpus;
use crate::error::Unknown;
use crate::host::Host;
use crate::served::Served;
use crate::settings::Setting;
use crate::tuning::{About, Advice, Counter, Needs, Risk, Scope, Tuning};

/// The CPUs that use each transmit queue.
pub(super) struct Xps;

const ABOUT: About = About {
    name: "xps",
    reason: "a response leaves through the queue of its own CPU, without a lock between CPUs",
    detail: "With one queue there is nothing to choose.",
    source: "Richards 2021, step 5: +38 % with IRQ affinity and locality",
    scope: Scope::Device,
    risk: Risk::Low,
    lost: "",
    gain_percent: 12.0,
    needs: Needs::Card,
};

impl Tuning for Xps {
    fn about(&self) -> &About {
        &ABOUT
    }

    fn probe(&self, host: &Host, served: &Served) -> Result<String, Unknown> {
        let queues = card::queues(host, served.card(host)?, "tx")?;
        if queues.len() == 1 {
            return Ok("one transmit queue".to_owned());
        }
        let masks = queues.iter().map(|queue| host.text(&format!("{queue}/xps_cpus")));
        Ok(masks.collect::<Result<Vec<_>, _>>()?.join(" "))
    }

    fn advice(&self, host: &Host, served: &Served) -> Result<Advice, Unknown> {
        let (queues, online) = (card::queues(host, served.card(host)?, "tx")?, card::cpus(host)?);
        if queues.len() == 1 {
            return Ok(Advice::Fine);
        }
        let mut changes = Vec::new();
        for (number, queue) in queues.iter().enumerate() {
            let own = online.iter().enumerate().filter(|(at, _)| at % queues.len() == number);
            let wanted = cpus::mask(own.map(|(_, cpu)| *cpu));
            let path = format!("{queue}/xps_cpus");
            if !cpus::same_mask(&host.text(&path)?, &wanted) {
                changes.push(Change::text(Setting::file(path), wanted));
            }
        }
        Ok(Advice::change("give each CPU a transmit queue of its own", changes))
    }

    fn effect(&self, host: &Host, served: &Served) -> Result<Counter, Unknown> {
        card::statistic(host, served.card(host)?, "tx_packets")
    }
}
