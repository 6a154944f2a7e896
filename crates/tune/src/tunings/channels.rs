//! As many queues as CPUs.

use crate::card;
use crate::change::Change;
use crate::error::Unknown;
use crate::host::Host;
use crate::served::Served;
use crate::settings::{Ethtool, Group};
use crate::tuning::{About, Advice, Counter, Needs, Risk, Scope, Tuning};

/// The card's combined queues.
pub(super) struct Channels;

const ABOUT: About = About {
    name: "channels",
    reason: "a card with fewer queues than CPUs interrupts only some of them",
    detail: "Changing the number of queues takes the link down for a moment. The driver may reset the receive table, the \
             masks of the queues and the CPUs of the interrupts: they are recorded first, and undoing restores them.",
    source: "Richards 2021, step 5; ethtool(8)",
    scope: Scope::Device,
    risk: Risk::Medium,
    lost: "the link is down for a moment: connections wait, monitoring may notice",
    gain_percent: 15.0,
    needs: Needs::Card,
};

impl Tuning for Channels {
    fn about(&self) -> &About {
        &ABOUT
    }

    fn probe(&self, host: &Host, served: &Served) -> Result<String, Unknown> {
        let channels = Ethtool::new(served.card(host)?, Group::Channel, "combined");
        Ok(format!("{} of {}", channels.now(host)?, channels.maximum(host)?))
    }

    fn advice(&self, host: &Host, served: &Served) -> Result<Advice, Unknown> {
        let channels = Ethtool::new(served.card(host)?, Group::Channel, "combined");
        let now: u32 = channels.now(host)?.parse().unwrap_or(u32::MAX);
        let wanted = channels.maximum(host)?.min(card::cpus(host)?.len() as u32);
        Ok(match now < wanted {
            true => Advice::change(format!("{wanted} queues"), vec![Change::text(channels, wanted)]),
            false => Advice::Fine,
        })
    }

    fn effect(&self, host: &Host, served: &Served) -> Result<Counter, Unknown> {
        card::statistic(host, served.card(host)?, "rx_packets")
    }
}
