//! The qdisc of devices that are created from now on.

use crate::card;
use crate::change::Change;
use crate::error::Unknown;
use crate::host::Host;
use crate::served::Served;
use crate::settings::Setting;
use crate::tuning::{About, Advice, Counter, Needs, Proof, Risk, Scope, Tuning};

/// The kernel's default qdisc.
pub(super) struct DefaultQdisc;

const ABOUT: About = About {
    name: "default-qdisc",
    reason: "devices that appear later start with a qdisc that takes no lock",
    detail: "For each transmit queue of a device that comes up from now on. A device that is already up keeps its \
             qdisc: see `qdisc`. The published climb set noqueue, but since Linux 6.2 `tc` refuses that below \
             another qdisc. pfifo_fast, the kernel's own default, has taken no lock since 4.16.",
    source: "Richards 2021, step 8: +2 % with `qdisc`; admin-guide/sysctl/net",
    scope: Scope::Host,
    risk: Risk::Medium,
    lost: "no fairness between flows on such devices, and longer queues on slow links",
    gain_percent: 0.5,
    needs: Needs::Card,
};

impl Tuning for DefaultQdisc {
    fn about(&self) -> &About {
        &ABOUT
    }

    fn probe(&self, host: &Host, _: &Served) -> Result<String, Unknown> {
        host.text(NOW)
    }

    fn advice(&self, host: &Host, served: &Served) -> Result<Advice, Unknown> {
        served.card(host)?;
        let now = host.text(NOW)?;
        Ok(match now == CHEAPEST || now == "noqueue" {
            true => Advice::Fine,
            false => Advice::change(
                format!("{KEY} = {CHEAPEST}"),
                vec![Change::text(Setting::sysctl(KEY), CHEAPEST)],
            ),
        })
    }

    fn proof(&self) -> Proof {
        Proof::Measurement
    }

    fn effect(&self, host: &Host, served: &Served) -> Result<Counter, Unknown> {
        card::statistic(host, served.card(host)?, "tx_dropped")
    }
}

const KEY: &str = "net.core.default_qdisc";
const NOW: &str = "/proc/sys/net/core/default_qdisc";

/// The one with the least work per packet that still queues.
const CHEAPEST: &str = "pfifo_fast";
