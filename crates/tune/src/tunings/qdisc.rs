//! No queue between TCP and the card.

use crate::card;
use crate::change::{Change, Content};
use crate::error::Unknown;
use crate::host::Host;
use crate::served::Served;
use crate::settings::{Kind, Qdisc, Root};
use crate::tuning::{About, Advice, Counter, Needs, Proof, Risk, Scope, Tuning};

/// The card's root qdisc.
pub(super) struct QdiscTuning;

const ABOUT: About = About {
    name: "qdisc",
    reason: "for each packet a qdisc takes a lock that all CPUs share",
    detail: "A qdisc that somebody built from classes and filters is never replaced, because it could not be \
             restored. A simple one is restored with its parameters as the kernel reported them. A qdisc that the \
             kernel attached is replaced only while net.core.default_qdisc would make the kernel attach the same one \
             again.",
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
        Ok(match qdisc(host, served)?.read(host)? {
            Content::Text(text) => Root::parse(&text).map_or(text.clone(), |root| root.kind.to_owned()),
            none => none.line(),
        })
    }

    fn advice(&self, host: &Host, served: &Served) -> Result<Advice, Unknown> {
        let qdisc = qdisc(host, served)?;
        let now = qdisc.read(host)?;
        let Content::Text(text) = &now else { return Ok(Advice::Fine) };
        if Root::parse(text).is_some_and(|root| root.kind == NONE) {
            return Ok(Advice::Fine);
        }
        Ok(match qdisc.can_return(host, &now) {
            Ok(()) => Advice::change("no qdisc", vec![Change::text(qdisc, NONE)]),
            Err(reason) => Advice::ByHand(reason),
        })
    }

    fn proof(&self) -> Proof {
        Proof::Measurement
    }

    fn effect(&self, host: &Host, served: &Served) -> Result<Counter, Unknown> {
        card::statistic(host, served.card(host)?, "tx_dropped")
    }
}

/// The kernel's name for no queue.
const NONE: &str = "noqueue";

fn qdisc(host: &Host, served: &Served) -> Result<Qdisc, Unknown> {
    Ok(Qdisc { device: served.card(host)?.to_owned() })
}
