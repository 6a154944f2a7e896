//! The congestion control of new connections.

use crate::change::Change;
use crate::counters::netstat;
use crate::error::Unknown;
use crate::host::Host;
use crate::served::Served;
use crate::settings::Setting;
use crate::tuning::{About, Advice, Counter, Needs, Proof, Risk, Scope, Tuning};

/// The namespace's congestion control.
pub(super) struct Congestion;

const ABOUT: About = About {
    name: "congestion",
    reason: "bbr paces and measures each connection; reno only counts",
    detail: "The server itself is the best place: `flatout serve --congestion reno` sets it on the listener and \
             leaves the host alone. It is for clients nearby; over long or lossy paths bbr and cubic are faster.",
    source: "Richards 2021, step 9: part of +4 %; bbr costs 7 to 10 % on loopback",
    scope: Scope::Namespace,
    risk: Risk::Medium,
    lost: "over long or lossy paths each connection is slower",
    gain_percent: 7.5,
    needs: Needs::AnyPath,
};

impl Tuning for Congestion {
    fn about(&self) -> &About {
        &ABOUT
    }

    fn probe(&self, host: &Host, _: &Served) -> Result<String, Unknown> {
        host.text(NOW)
    }

    fn advice(&self, host: &Host, _: &Served) -> Result<Advice, Unknown> {
        let (now, available) = (host.text(NOW)?, host.text(AVAILABLE)?);
        if now == CHEAPEST {
            return Ok(Advice::Fine);
        }
        Ok(match available.split_whitespace().any(|name| name == CHEAPEST) {
            true => Advice::change(
                format!("{KEY} = {CHEAPEST}"),
                vec![Change::text(Setting::sysctl(KEY), CHEAPEST)],
            ),
            false => Advice::Fine,
        })
    }

    fn proof(&self) -> Proof {
        Proof::Measurement
    }

    fn effect(&self, host: &Host, _: &Served) -> Result<Counter, Unknown> {
        netstat(host, "RetransSegs")
    }
}

const KEY: &str = "net.ipv4.tcp_congestion_control";
const NOW: &str = "/proc/sys/net/ipv4/tcp_congestion_control";
const AVAILABLE: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";

/// The one with the least work per packet.
const CHEAPEST: &str = "reno";
