//! The daemon that moves interrupts about.

use crate::card;
use crate::change::Change;
use crate::error::Unknown;
use crate::host::Host;
use crate::served::Served;
use crate::settings::{Kind, Service};
use crate::tuning::{About, Advice, Counter, Needs, Risk, Scope, Tuning};

/// Whether irqbalance runs.
pub(super) struct Irqbalance;

const ABOUT: About = About {
    name: "irqbalance",
    reason: "irqbalance moves interrupts away from the workers that wait for them",
    detail: "Stop it before `irq-affinity`, or ban the card's interrupts in its configuration.",
    source: "Richards 2021, step 5",
    scope: Scope::Host,
    risk: Risk::Medium,
    lost: "interrupts of other devices are no longer spread over the CPUs",
    gain_percent: 3.0,
    needs: Needs::Card,
};

impl Tuning for Irqbalance {
    fn about(&self) -> &About {
        &ABOUT
    }

    fn probe(&self, host: &Host, _: &Served) -> Result<String, Unknown> {
        Ok(unit().read(host)?.line())
    }

    fn advice(&self, host: &Host, served: &Served) -> Result<Advice, Unknown> {
        let device = served.card(host)?;
        let is_active = unit().read(host)?.line() == "active";
        Ok(match is_active && card::queues(host, device, "rx")?.len() > 1 {
            true => Advice::change("stop irqbalance", vec![Change::text(unit(), "inactive")]),
            false => Advice::Fine,
        })
    }

    fn effect(&self, host: &Host, served: &Served) -> Result<Counter, Unknown> {
        card::interrupt_count(host, served.card(host)?)
    }
}

fn unit() -> Service {
    Service { unit: "irqbalance.service".to_owned() }
}
