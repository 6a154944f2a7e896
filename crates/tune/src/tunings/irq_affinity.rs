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
             placed alike. The queues of bonded cards follow each other. irqbalance would move the interrupts again, so nothing is suggested while it runs: see \
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
        let members = card::members(host, device);
        let cards = if members.is_empty() { vec![device.to_owned()] } else { members };
        if cards.len() == 1 && card::queues(host, device, "rx")?.len() < 2 {
            return Ok(Advice::Fine);
        }
        if irqbalance::is_running(host)? {
            return Ok(Advice::ByHand(
                "irqbalance manages these interrupts: stop it first (irqbalance), or ban them in its configuration"
                    .to_owned(),
            ));
        }
        let mut changes = Vec::new();
        // The queues of a second card go on where those of the first one end.
        let mut first = 0;
        for card in cards {
            let (interrupts, cpus) = (card::interrupts(host, &card)?, near_cpus(host, &card)?);
            let queues = interrupts.iter().map(|(_, name)| queue_number(name) + 1).max().unwrap_or(0);
            for (number, name) in interrupts {
                let wanted = cpus[(first + queue_number(&name)) % cpus.len()].to_string();
                if host.text(&affinity(number))? != wanted {
                    changes.push(Change::text(Interrupt { name, number }, wanted));
                }
            }
            first += queues;
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
    use crate::fake::Fake;
    use crate::served::ServerSelector;

    /// Two cards with an interrupt each on four CPUs: the second one does not share the CPU of the first.
    #[test]
    fn bonded_cards_do_not_share_a_cpu() {
        let table = " CPU0\n 30: 1 PCI-MSI eth0-0\n 31: 1 PCI-MSI eth1-0\n";
        let fake = Fake::with(&[
            ("/proc/net/dev", "a\nb\nbond0: 0\n"),
            ("/proc/interrupts", table),
            ("/proc/irq/30/smp_affinity_list", "0-3\n"),
            ("/proc/irq/31/smp_affinity_list", "0-3\n"),
            ("/sys/devices/system/cpu/online", "0-3\n"),
            ("/sys/class/net/bond0/bonding/slaves", "eth0 eth1\n"),
            ("/proc/1/comm", "init\n"),
        ]);
        let host = fake.host();
        let asked = ServerSelector { device: Some("bond0".to_owned()), ..ServerSelector::default() };
        let served = Served::find(&host, &asked).unwrap();
        let interrupt = |number| Interrupt { name: format!("eth{}-0", number - 30), number };
        let expected = vec![Change::text(interrupt(30), "0"), Change::text(interrupt(31), "1")];
        let advice = IrqAffinity.advice(&host, &served);
        assert_eq!(
            advice,
            Ok(Advice::change("the interrupt of queue n on the nth CPU near the card", expected))
        );
    }

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
