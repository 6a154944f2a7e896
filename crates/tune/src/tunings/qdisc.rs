//! No queue between TCP and the card.

use crate::card;
use crate::change::Change;
use crate::error::Unknown;
use crate::host::Host;
use crate::served::Served;
use crate::settings::{Kind, Qdisc};
use crate::tuning::{About, Advice, Counter, Needs, Risk, Scope, Tuning};

/// The card's root qdisc.
pub(super) struct QdiscTuning;

const ABOUT: About = About {
    name: "qdisc",
    reason: "a qdisc takes a lock for each packet that all CPUs share",
    detail: "A qdisc that somebody configured is never replaced: its parameters, classes and filters could \
             not be brought back.",
    source: "Richards 2021, step 8: +2 %",
    scope: Scope::Device,
    risk: Risk::Medium,
    lost: "no pacing and no fairness between flows; a burst longer than the card's ring is dropped",
    gain_percent: 2.2,
    needs: Needs::Card,
};

impl Tuning for QdiscTuning {
    fn about(&self) -> &About {
        &ABOUT
    }

    fn probe(&self, host: &Host, served: &Served) -> Result<String, Unknown> {
        let text = qdisc(host, served)?.read(host)?.line();
        Ok(Qdisc::root(&text).map_or(text.clone(), |(kind, _)| kind.to_owned()))
    }

    fn advice(&self, host: &Host, served: &Served) -> Result<Advice, Unknown> {
        let qdisc = qdisc(host, served)?;
        let text = host.run("tc", &["qdisc", "show", "dev", &qdisc.device])?;
        Ok(match Qdisc::root(&text) {
            Some((NONE, _)) => Advice::Fine,
            Some((kind, false)) => {
                Advice::ByHand(format!("{kind} was configured by somebody: change it where that is done"))
            }
            _ => Advice::change("no qdisc", vec![Change::text(qdisc, NONE)]),
        })
    }

    fn effect(&self, host: &Host, served: &Served) -> Result<Counter, Unknown> {
        card::statistic(host, served.card(host)?, "tx_dropped")
    }
}

/// What the kernel calls none.
const NONE: &str = "noqueue";

fn qdisc(host: &Host, served: &Served) -> Result<Qdisc, Unknown> {
    Ok(Qdisc { device: served.card(host)?.to_owned() })
}
