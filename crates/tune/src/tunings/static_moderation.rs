//! Interrupt moderation by a fixed time.

use crate::card;
use crate::change::Change;
use crate::error::Unknown;
use crate::host::Host;
use crate::served::Served;
use crate::settings::{Ethtool, Group};
use crate::tuning::{About, Advice, Counter, Needs, Proof, Risk, Scope, Tuning};

/// Static interrupt moderation.
pub(super) struct StaticModeration;

const ABOUT: About = About {
    name: "static-moderation",
    reason: "fewer interrupts than adaptive moderation under a steady load",
    detail: "The step after `coalescing`, for machines that are never idle. The published climb used 256 us.",
    source: "Richards 2021, step 9: part of +4 %",
    scope: Scope::Device,
    risk: Risk::Medium,
    lost: "at low load each response waits up to 256 us for its interrupt",
    gain_percent: 2.0,
    needs: Needs::Card,
};

impl Tuning for StaticModeration {
    fn about(&self) -> &About {
        &ABOUT
    }

    fn probe(&self, host: &Host, served: &Served) -> Result<String, Unknown> {
        Ok(format!("{} us", Ethtool::new(served.card(host)?, Group::Coalesce, "rx-usecs").now(host)?))
    }

    fn advice(&self, host: &Host, served: &Served) -> Result<Advice, Unknown> {
        let device = served.card(host)?;
        let usecs = Ethtool::new(device, Group::Coalesce, "rx-usecs");
        let adaptive = Ethtool::new(device, Group::Coalesce, "adaptive-rx");
        let now: u32 = usecs.now(host)?.parse().unwrap_or(MODERATION_US);
        let is_adaptive = adaptive.now(host).is_ok_and(|adaptive| adaptive == "on");
        // If it can be adaptive and is not, that is the first step.
        let is_next = is_adaptive || adaptive.now(host).is_err();
        if now >= MODERATION_US || !is_next {
            return Ok(Advice::Fine);
        }
        let off = is_adaptive.then(|| Change::text(adaptive, "off"));
        let sent = Ethtool::new(device, Group::Coalesce, "tx-usecs");
        let sent_now = sent.now(host).ok().and_then(|usecs| usecs.parse::<u32>().ok());
        let sent = sent_now.filter(|now| *now < MODERATION_US).map(|_| Change::text(sent, MODERATION_US));
        let changes = off.into_iter().chain([Change::text(usecs, MODERATION_US)]).chain(sent).collect();
        Ok(Advice::change(format!("at most one interrupt in {MODERATION_US} us"), changes))
    }

    fn proof(&self) -> Proof {
        Proof::Measurement
    }

    fn effect(&self, host: &Host, served: &Served) -> Result<Counter, Unknown> {
        card::interrupt_count(host, served.card(host)?)
    }
}

/// Microseconds between interrupts in the published climb.
const MODERATION_US: u32 = 256;
