//! A connection is served on the CPU on which it arrives.

use crate::card;
use crate::counters::softnet;
use crate::error::Unknown;
use crate::host::Host;
use crate::served::Served;
use crate::tuning::{About, Advice, Counter, Needs, Risk, Scope, Tuning};

/// Whether the kernel gives connections to the nearest worker.
pub(super) struct Locality;

const ABOUT: About = About {
    name: "locality",
    reason: "a request is read on the CPU that received it from the card",
    detail: "SO_REUSEPORT with listeners opened in CPU order and a BPF program that returns the CPU, or \
             SO_INCOMING_CPU from Linux 6.2 on. It hurts where the card spreads flows unevenly, or has fewer queues \
             than there are workers. Only the server can do it: `flatout serve --locality on`; `auto` does it where \
             the card has enough queues.",
    source: "Richards 2021, step 5: +38 % with IRQ affinity and XPS; libreactor#9",
    scope: Scope::Process,
    risk: Risk::Low,
    lost: "",
    gain_percent: 38.0,
    needs: Needs::Card,
};

impl Tuning for Locality {
    fn about(&self) -> &About {
        &ABOUT
    }

    fn probe(&self, host: &Host, served: &Served) -> Result<String, Unknown> {
        served.pids()?;
        let queues = card::queues(host, served.card(host)?, "rx")?.len();
        Ok(format!("listeners: {}, receive queues: {queues}", served.listeners_count()))
    }

    fn advice(&self, host: &Host, served: &Served) -> Result<Advice, Unknown> {
        let device = served.card(host)?;
        let (queues, listeners) = (card::queues(host, device, "rx")?.len(), served.listeners_count());
        served.pids()?;
        Ok(match (listeners, queues) {
            (0 | 1, 2..) => {
                Advice::ByHand("one listener for each worker (flatout serve --locality on)".to_owned())
            }
            _ => Advice::Fine,
        })
    }

    fn effect(&self, host: &Host, _: &Served) -> Result<Counter, Unknown> {
        softnet(host, 9, "received_rps")
    }
}
