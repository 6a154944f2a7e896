//! Interrupt moderation that follows the load.

use crate::card;
use crate::change::Change;
use crate::error::Unknown;
use crate::host::Host;
use crate::served::Served;
use crate::settings::{Ethtool, Group};
use crate::tuning::{About, Advice, Counter, Needs, Risk, Scope, Tuning};

/// Adaptive interrupt moderation.
pub(super) struct Coalescing;

const ABOUT: About = About {
    name: "coalescing",
    reason: "many packets per interrupt under load, no delay when idle",
    detail: "Some drivers accept it and ignore it (ENA until 2022, amzn-drivers#159): judge by interrupts per second.",
    source: "Richards 2021, step 6: +28 % with busy polling",
    scope: Scope::Device,
    risk: Risk::Low,
    lost: "",
    gain_percent: 20.0,
    needs: Needs::Card,
};

impl Tuning for Coalescing {
    fn about(&self) -> &About {
        &ABOUT
    }

    fn probe(&self, host: &Host, served: &Served) -> Result<String, Unknown> {
        Ok(format!(
            "adaptive {}",
            Ethtool::new(served.card(host)?, Group::Coalesce, "adaptive-rx").now(host)?
        ))
    }

    fn advice(&self, host: &Host, served: &Served) -> Result<Advice, Unknown> {
        let device = served.card(host)?;
        let adaptive = Ethtool::new(device, Group::Coalesce, "adaptive-rx");
        let is_static =
            Ethtool::new(device, Group::Coalesce, "rx-usecs").now(host).is_ok_and(|usecs| usecs != "0");
        Ok(match adaptive.now(host)?.as_str() {
            "off" if !is_static => Advice::change("adaptive moderation", vec![Change::text(adaptive, "on")]),
            _ => Advice::Fine,
        })
    }

    fn effect(&self, host: &Host, served: &Served) -> Result<Counter, Unknown> {
        card::interrupt_count(host, served.card(host)?)
    }
}
