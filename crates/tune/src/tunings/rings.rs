//! Room for bursts in the card's own queue.

use crate::card;
use crate::change::Change;
use crate::error::Unknown;
use crate::host::Host;
use crate::served::Served;
use crate::settings::{Ethtool, Group};
use crate::tuning::{About, Advice, Counter, Needs, Risk, Scope, Tuning};

/// The length of the receive ring.
pub(super) struct Rings;

const ABOUT: About = About {
    name: "rings",
    reason: "the card drops a burst that is longer than its ring",
    detail: "Longer rings use more cache; they are worth it only where rx_missed_errors grows, or the driver's own counters of drops (`card-drops`).",
    source: "ethtool(8)",
    scope: Scope::Device,
    risk: Risk::Medium,
    lost: "the link is down for a moment; each packet touches more memory",
    gain_percent: 1.5,
    needs: Needs::Card,
};

impl Tuning for Rings {
    fn about(&self) -> &About {
        &ABOUT
    }

    fn probe(&self, host: &Host, served: &Served) -> Result<String, Unknown> {
        let ring = Ethtool::new(served.card(host)?, Group::Ring, "rx");
        Ok(format!("{} of {}", ring.now(host)?, ring.maximum(host)?))
    }

    fn advice(&self, host: &Host, served: &Served) -> Result<Advice, Unknown> {
        let device = served.card(host)?;
        let ring = Ethtool::new(device, Group::Ring, "rx");
        let (now, maximum) = (ring.now(host)?.parse().unwrap_or(u32::MAX), ring.maximum(host)?);
        let is_short = self.effect(host, served)?.value > 0 && now < maximum;
        Ok(match is_short {
            true => Advice::change(format!("a receive ring of {maximum}"), vec![Change::text(ring, maximum)]),
            false => Advice::Fine,
        })
    }

    fn effect(&self, host: &Host, served: &Served) -> Result<Counter, Unknown> {
        let device = served.card(host)?;
        let missed = card::statistic(host, device, "rx_missed_errors")?;
        // The same packets, if the driver also counts them under its own name.
        let by_driver = super::drops::counted(host, device).unwrap_or(0);
        Ok(match by_driver > missed.value {
            true => Counter { name: "ethtool -S drops".to_owned(), value: by_driver },
            false => missed,
        })
    }
}
