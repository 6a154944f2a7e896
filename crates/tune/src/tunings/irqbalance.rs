//! The daemon that moves interrupts between CPUs.

use crate::card;
use crate::change::{Change, Content};
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
        Ok(if is_running(host)? { "running" } else { "not running" }.to_owned())
    }

    fn advice(&self, host: &Host, served: &Served) -> Result<Advice, Unknown> {
        let device = served.card(host)?;
        if !is_running(host)? || card::queues(host, device, "rx")?.len() < 2 {
            return Ok(Advice::Fine);
        }
        let unit = Service { unit: "irqbalance.service".to_owned() };
        Ok(match unit.read(host) {
            Ok(Content::Text(state)) if state == "active" => {
                Advice::change("stop irqbalance", vec![Change::text(unit, "inactive")])
            }
            _ => Advice::ByHand("stop irqbalance, which no systemd unit runs here".to_owned()),
        })
    }

    fn effect(&self, host: &Host, served: &Served) -> Result<Counter, Unknown> {
        card::interrupt_count(host, served.card(host)?)
    }
}

/// Checks its processes, because not every machine has systemd.
pub(super) fn is_running(host: &Host) -> Result<bool, Unknown> {
    let processes = host.list("/proc")?;
    let is_it = |pid: &String| {
        let is_process = pid.bytes().all(|byte| byte.is_ascii_digit());
        is_process && host.text(&format!("/proc/{pid}/comm")).is_ok_and(|name| name == "irqbalance")
    };
    Ok(processes.iter().any(is_it))
}
