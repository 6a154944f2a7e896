//! Each queue's interrupt on its own CPU.

use super::facts::near_cpus;
use super::irqbalance;
use crate::card;
use crate::change::Change;
use crate::error::Unknown;
use crate::host::Host;
use crate::served::Served;
use crate::settings::{Interrupt, affinity};
use crate::tuning::{About, Advice, Counter, Needs, Risk, Scope, Tuning};

/// The CPUs that handle the card's interrupts.
pub(super) struct IrqAffinity;

const ABOUT: About = About {
    name: "irq-affinity",
    reason: "a CPU that handles the interrupts of all queues becomes the bottleneck",
    detail: "Queue n goes to the nth CPU near the card, physical cores before their hyper-threads; workers should be \
             placed alike. irqbalance would move the interrupts again, so nothing is suggested while it runs: see \
             `irqbalance`.",
    source: "Richards 2021, step 5: +38 % with XPS and locality; Yang Jian 2008: from 200 k to 400 k req/s",
    scope: Scope::Host,
    risk: Risk::Low,
    lost: "",
    gain_percent: 30.0,
    needs: Needs::Card,
};

impl Tuning for IrqAffinity {
    fn about(&self) -> &About {
        &ABOUT
    }

    fn probe(&self, host: &Host, served: &Served) -> Result<String, Unknown> {
        let interrupts = card::interrupts(host, served.card(host)?)?;
        let cpus =
            interrupts.iter().map(|(number, _)| Ok(format!("{number}:{}", host.text(&affinity(*number))?)));
        Ok(cpus.collect::<Result<Vec<_>, Unknown>>()?.join(" "))
    }

    fn advice(&self, host: &Host, served: &Served) -> Result<Advice, Unknown> {
        let device = served.card(host)?;
        let (interrupts, cpus) = (card::interrupts(host, device)?, near_cpus(host, device)?);
        if card::queues(host, device, "rx")?.len() < 2 {
            return Ok(Advice::Fine);
        }
        if irqbalance::is_running(host)? {
            return Ok(Advice::ByHand(
                "irqbalance manages these interrupts: stop it first (irqbalance), or ban them in its configuration"
                    .to_owned(),
            ));
        }
        let mut changes = Vec::new();
        for (number, name) in interrupts {
            let wanted = cpus[queue_number(&name) % cpus.len()].to_string();
            if host.text(&affinity(number))? != wanted {
                changes.push(Change::text(Interrupt { name, number }, wanted));
            }
        }
        Ok(Advice::change("the interrupt of queue n on the nth CPU near the card", changes))
    }

    fn effect(&self, host: &Host, served: &Served) -> Result<Counter, Unknown> {
        card::interrupt_count(host, served.card(host)?)
    }
}

/// The number in an interrupt's name: 3 of `eth0-TxRx-3`, 0 of `virtio2-input.0`, 1 of `mlx5_comp1@pci:0000:08:00.0`.
fn queue_number(name: &str) -> usize {
    let own = name.split('@').next().unwrap_or(name);
    let stem = own.trim_end_matches(|letter: char| letter.is_ascii_digit());
    own.strip_prefix(stem).and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_has_the_number_at_the_end_of_its_name() {
        let names = [
            ("eth0-TxRx-3", 3),
            ("virtio2-input.0", 0),
            ("mlx5_comp12@pci:0000:08:00.0", 12),
            ("7", 7),
            ("eth0-1\u{fffd}", 0),
            ("99999999999999999999", 0),
        ];
        for (name, number) in names {
            assert_eq!(queue_number(name), number, "{name}");
        }
    }
}
