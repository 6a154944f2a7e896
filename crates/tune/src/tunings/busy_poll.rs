//! Polling the card instead of waiting for its interrupt.

use crate::change::Change;
use crate::counters::netstat;
use crate::error::Unknown;
use crate::host::Host;
use crate::served::Served;
use crate::settings::Setting;
use crate::tuning::{About, Advice, Counter, Needs, Proof, Risk, Scope, Tuning};

/// How long a wait first polls the card.
pub(super) struct BusyPoll;

const ABOUT: About = About {
    name: "busy-poll",
    reason: "a worker polls the card before it sleeps",
    detail: "For every program on the host that uses epoll. A server that sets EPIOCSPARAMS (Linux 6.9) on its own \
             epoll needs no setting of the host: prefer that (`flatout serve --busy-poll 50us`). A server that calls epoll_wait with timeout 0 never \
             polls in the kernel, and neither does an epoll inside another one.",
    source: "Richards 2021, step 6: +28 % with adaptive moderation; EPIOCSPARAMS in napi.rst",
    scope: Scope::Host,
    risk: Risk::Medium,
    lost: "programs use CPU while they wait",
    gain_percent: 8.0,
    needs: Needs::Card,
};

impl Tuning for BusyPoll {
    fn about(&self) -> &About {
        &ABOUT
    }

    fn probe(&self, host: &Host, _: &Served) -> Result<String, Unknown> {
        Ok(format!("{} us", host.number::<u64>("/proc/sys/net/core/busy_poll")?))
    }

    fn advice(&self, host: &Host, served: &Served) -> Result<Advice, Unknown> {
        served.card(host)?;
        let now: u64 = host.number("/proc/sys/net/core/busy_poll")?;
        let change = Change::text(Setting::sysctl(KEY), 1);
        Ok(if now == 0 { Advice::change(format!("{KEY} = 1"), vec![change]) } else { Advice::Fine })
    }

    fn proof(&self) -> Proof {
        Proof::Measurement
    }

    fn effect(&self, host: &Host, _: &Served) -> Result<Counter, Unknown> {
        netstat(host, "BusyPollRxPackets")
    }
}

const KEY: &str = "net.core.busy_poll";
