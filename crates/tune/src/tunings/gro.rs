//! Generic receive offload, if it was switched off.

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
    reason: "without it, packets of large requests and of responses from upstreams pass through the network stack \
             one by one",
    detail: "On by default. If it is off, somebody turned it off, mostly for a benchmark of requests that fit in one \
             packet, where that saves up to 2.5 %. If all your requests are that small, measure it: flatout climb \
             --variant no-gro --set 'ethtool -K eth0 gro off' --unset 'ethtool -K eth0 gro on' --needs device.",
    source: "networking/segmentation-offloads; Richards 2021, step 9, which is for one packet a request",
    scope: Scope::Device,
    risk: Risk::Low,
    lost: "",
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
            "off" => Advice::change("receive offload", vec![Change::text(gro, "on")]),
            _ => Advice::Fine,
        })
    }

    fn effect(&self, host: &Host, served: &Served) -> Result<Counter, Unknown> {
        card::statistic(host, served.card(host)?, "rx_packets")
    }
}
