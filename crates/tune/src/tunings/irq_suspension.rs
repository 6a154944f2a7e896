//! Interrupts held back for as long as a server keeps polling.

use crate::change::Change;
use crate::counters::netstat;
use crate::error::Unknown;
use crate::host::Host;
use crate::netlink::napi::Napi;
use crate::served::Served;
use crate::settings::NapiSuspension;
use crate::tuning::{About, Advice, Counter, Needs, Proof, Risk, Scope, Tuning};

/// The time for which a polling server suspends interrupts.
pub(super) struct IrqSuspension;

const ABOUT: About = About {
    name: "irq-suspension",
    reason: "no interrupts under load, and none of busy polling's cost when idle",
    detail: "Linux 6.13. It takes three things: irq-suspend-timeout, gro-flush-timeout and defer-hard-irqs of each \
             NAPI instance, set by netlink; a server in which each epoll set holds sockets of one NAPI instance only \
             (SO_INCOMING_NAPI_ID shows which); and EPIOCSPARAMS on each set, with prefer_busy_poll, busy_poll_usecs \
             and busy_poll_budget: `flatout serve --busy-poll 50us --locality on`. Suggested where \
             BusyPollRxPackets shows that a program polls. Only irq-suspend-timeout is set here; `defer-interrupts` \
             sets the other two.",
    source: "kernel napi.rst",
    scope: Scope::Device,
    risk: Risk::Medium,
    lost: "a server that stops polling gets its packets late, by up to the time set",
    gain_percent: 7.0,
    needs: Needs::Card,
};

impl Tuning for IrqSuspension {
    fn about(&self) -> &About {
        &ABOUT
    }

    fn probe(&self, host: &Host, served: &Served) -> Result<String, Unknown> {
        let (_, napis) = napis(host, served)?;
        let times: Vec<String> = napis.iter().map(|napi| napi.suspend_ns.to_string()).collect();
        Ok(format!("{} ns", times.join(" ")))
    }

    fn advice(&self, host: &Host, served: &Served) -> Result<Advice, Unknown> {
        let (device, napis) = napis(host, served)?;
        if napis.iter().all(|napi| napi.suspend_ns > 0) {
            return Ok(Advice::Fine);
        }
        // A server that does not poll would gain nothing. That one does shows by what was received so.
        if !netstat(host, POLLED).is_ok_and(|counter| counter.value > 0) {
            let told = "only for a server that polls its epoll (EPIOCSPARAMS), and none was found here";
            return Ok(Advice::ByHand(told.to_owned()));
        }
        let suspend = |napi: &Napi| {
            let setting = NapiSuspension { device: device.to_owned(), id: napi.id };
            Change::text(setting, SUSPEND_NS)
        };
        Ok(Advice::Change {
            what: format!("no interrupts for up to {} ms of polling", SUSPEND_NS / 1_000_000),
            changes: napis.iter().filter(|napi| napi.suspend_ns == 0).map(suspend).collect(),
            then: "check that the server sets EPIOCSPARAMS with prefer_busy_poll, and apply defer-interrupts"
                .to_owned(),
        })
    }

    fn proof(&self) -> Proof {
        Proof::Measurement
    }

    fn effect(&self, host: &Host, _: &Served) -> Result<Counter, Unknown> {
        netstat(host, POLLED)
    }
}

/// The card and its instances, on a kernel that can set them.
fn napis<'s>(host: &Host, served: &'s Served) -> Result<(&'s str, Vec<Napi>), Unknown> {
    let device = served.card(host)?;
    let kernel = host.kernel()?;
    match kernel >= SINCE {
        true => Ok((device, NapiSuspension::all(host, device)?)),
        false => Err(Unknown(format!("needs Linux 6.13, this is {}.{}", kernel.0, kernel.1))),
    }
}

const SINCE: (u32, u32) = (6, 13);

/// Packets that somebody polled for, of all programs.
const POLLED: &str = "BusyPollRxPackets";

/// For how long interrupts are held back at most: longer than a server takes for what one poll finds.
const SUSPEND_NS: u64 = 20_000_000;
