//! Interrupts held back for as long as a server keeps polling.

use crate::counters::netstat;
use crate::error::Unknown;
use crate::host::Host;
use crate::served::Served;
use crate::tuning::{About, Advice, Counter, Needs, Risk, Scope, Tuning};

/// The time for which a polling server suspends interrupts.
pub(super) struct IrqSuspension;

const ABOUT: About = About {
    name: "irq-suspension",
    reason: "no interrupts under load, and none of busy polling's cost when idle",
    detail: "Linux 6.13. Three things together: irq-suspend-timeout, gro-flush-timeout and defer-hard-irqs of each NAPI \
             instance, by netlink alone; a server whose every epoll set holds sockets of one NAPI instance only \
             (SO_INCOMING_NAPI_ID tells which); and EPIOCSPARAMS on each set with prefer_busy_poll, busy_poll_usecs and \
             busy_poll_budget. `flatout serve` does not set EPIOCSPARAMS, so it gains nothing from it.",
    source: "kernel napi.rst",
    scope: Scope::Device,
    risk: Risk::Medium,
    lost: "a server that stops polling is answered late, up to the time set",
    gain_percent: 7.0,
    needs: Needs::Card,
};

impl Tuning for IrqSuspension {
    fn about(&self) -> &About {
        &ABOUT
    }

    fn probe(&self, host: &Host, served: &Served) -> Result<String, Unknown> {
        let device = served.card(host)?;
        let index = index(host, device)?;
        let answer = host.run("ynl", &["--family", "netdev", "--dump", "napi-get", "--output-json"])?;
        let napis: Vec<serde_json::Value> = serde_json::from_str(&answer)
            .map_err(|error| Unknown(format!("`ynl` answers what is no JSON: {error}")))?;
        let ours = napis.iter().filter(|napi| napi["ifindex"].as_u64() == Some(index));
        let times: Vec<String> =
            ours.map(|napi| napi["irq-suspend-timeout"].as_u64().unwrap_or(0).to_string()).collect();
        match times.is_empty() {
            true => Err(Unknown(format!("{device} has no NAPI instance that netlink names"))),
            false => Ok(format!("{} ns", times.join(" "))),
        }
    }

    fn advice(&self, host: &Host, served: &Served) -> Result<Advice, Unknown> {
        let value = self.probe(host, served)?;
        Ok(match value.split_whitespace().any(|word| word == "0") {
            true => Advice::ByHand(
                "only for a server that sets EPIOCSPARAMS: irq-suspend-timeout of each NAPI".to_owned(),
            ),
            false => Advice::Fine,
        })
    }

    fn effect(&self, host: &Host, _: &Served) -> Result<Counter, Unknown> {
        netstat(host, "BusyPollRxPackets")
    }
}

/// The device's number, on a kernel that knows the setting.
fn index(host: &Host, device: &str) -> Result<u64, Unknown> {
    let kernel = host.kernel()?;
    match kernel >= SINCE {
        true => host.number(&format!("/sys/class/net/{device}/ifindex")),
        false => Err(Unknown(format!("needs Linux 6.13, this is {}.{}", kernel.0, kernel.1))),
    }
}

const SINCE: (u32, u32) = (6, 13);
