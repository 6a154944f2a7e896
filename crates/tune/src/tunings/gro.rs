//! Receive offload, which small requests do not need.

use crate::card;
use crate::change::Change;
use crate::error::Unknown;
use crate::host::Host;
use crate::served::Served;
use crate::settings::{Ethtool, Group};
use crate::tuning::{About, Advice, Counter, Needs, Risk, Scope, Tuning};

/// Generic receive offload.
pub(super) struct Gro;

const ABOUT: About = About {
    name: "gro",
    reason: "requests that fit one packet have nothing to be merged with",
    detail: "Only where every request is one packet: uploads and proxied answers need it.",
    source: "Richards 2021, step 9: part of +4 %",
    scope: Scope::Device,
    risk: Risk::Medium,
    lost: "uploads and answers from upstreams cost much more CPU",
    gain_percent: 2.5,
    needs: Needs::Card,
};

impl Tuning for Gro {
    fn about(&self) -> &About {
        &ABOUT
    }

    fn probe(&self, host: &Host, served: &Served) -> Result<String, Unknown> {
        Ethtool::new(served.card(host)?, Group::Feature, "gro").now(host)
    }

    fn advice(&self, host: &Host, served: &Served) -> Result<Advice, Unknown> {
        let gro = Ethtool::new(served.card(host)?, Group::Feature, "gro");
        Ok(match gro.now(host)?.as_str() {
            "on" => Advice::change("no receive offload", vec![Change::text(gro, "off")]),
            _ => Advice::Fine,
        })
    }

    fn effect(&self, host: &Host, served: &Served) -> Result<Counter, Unknown> {
        card::statistic(host, served.card(host)?, "rx_packets")
    }
}
