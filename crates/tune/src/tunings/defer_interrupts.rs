//! Polling the card by a timer before its interrupts are enabled again.

use crate::card;
use crate::change::Change;
use crate::error::Unknown;
use crate::host::Host;
use crate::served::Served;
use crate::settings::Setting;
use crate::tuning::{About, Advice, Counter, Needs, Proof, Risk, Scope, Tuning};

/// How long interrupts stay off after the card was found empty.
pub(super) struct DeferInterrupts;

const ABOUT: About = About {
    name: "defer-interrupts",
    reason: "under load a timer finds the packets, and interrupts stay off",
    detail: "Interrupts are turned on again after napi_defer_hard_irqs polls, gro_flush_timeout apart, that found no \
             packets.",
    source: "6f8b12d661d0; napi.rst",
    scope: Scope::Device,
    risk: Risk::Medium,
    lost: "a response may wait 20 us at low load",
    gain_percent: 6.0,
    needs: Needs::Card,
};

impl Tuning for DeferInterrupts {
    fn about(&self) -> &About {
        &ABOUT
    }

    fn probe(&self, host: &Host, served: &Served) -> Result<String, Unknown> {
        let device = served.card(host)?;
        let number = |name| host.number::<u64>(&path(device, name));
        Ok(format!("{} polls, {} ns", number(POLLS)?, number(FLUSH)?))
    }

    fn advice(&self, host: &Host, served: &Served) -> Result<Advice, Unknown> {
        let device = served.card(host)?;
        let mut changes = Vec::new();
        for (name, least) in [(POLLS, POLLS_MIN), (FLUSH, FLUSH_NS_MIN)] {
            if host.number::<u64>(&path(device, name))? < least {
                changes.push(Change::text(Setting::file(path(device, name)), least));
            }
        }
        Ok(Advice::change(format!("{POLLS_MIN} polls of {FLUSH_NS_MIN} ns"), changes))
    }

    fn proof(&self) -> Proof {
        Proof::Measurement
    }

    fn effect(&self, host: &Host, served: &Served) -> Result<Counter, Unknown> {
        card::interrupt_count(host, served.card(host)?)
    }
}

const POLLS: &str = "napi_defer_hard_irqs";
const FLUSH: &str = "gro_flush_timeout";

/// Empty polls before interrupts are enabled again.
const POLLS_MIN: u64 = 10;

/// Nanoseconds between polls.
const FLUSH_NS_MIN: u64 = 20_000;

fn path(device: &str, name: &str) -> String {
    format!("/sys/class/net/{device}/{name}")
}
