//! The card is polled by kernel threads, which the scheduler sees.

use crate::card;
use crate::change::Change;
use crate::counters::softnet;
use crate::error::Unknown;
use crate::host::Host;
use crate::served::Served;
use crate::settings::Setting;
use crate::tuning::{About, Advice, Counter, Needs, Proof, Risk, Scope, Tuning};

/// Whether a kernel thread polls each queue.
pub(super) struct ThreadedNapi;

const ABOUT: About = About {
    name: "threaded-napi",
    reason: "softirq work moves to CPUs that have nothing else to do",
    detail: "Only with fewer workers than CPUs; on a busy machine it adds switches between threads.",
    source: "napi.rst",
    scope: Scope::Device,
    risk: Risk::Medium,
    lost: "more switches between threads where no CPU is free",
    gain_percent: 1.0,
    needs: Needs::Card,
};

impl Tuning for ThreadedNapi {
    fn about(&self) -> &About {
        &ABOUT
    }

    fn probe(&self, host: &Host, served: &Served) -> Result<String, Unknown> {
        host.text(&path(served.card(host)?))
    }

    fn advice(&self, host: &Host, served: &Served) -> Result<Advice, Unknown> {
        let path = path(served.card(host)?);
        let is_off = host.number::<u8>(&path)? == 0;
        let workers = served.pids()?.len().max(served.listeners_count());
        Ok(
            match is_off
                && workers < card::cpus(host)?.len()
                && served.threads(host)?.len() < card::cpus(host)?.len()
            {
                true => Advice::change("a thread for each queue", vec![Change::text(Setting::file(path), 1)]),
                false => Advice::Fine,
            },
        )
    }

    fn proof(&self) -> Proof {
        Proof::Measurement
    }

    fn effect(&self, host: &Host, _: &Served) -> Result<Counter, Unknown> {
        softnet(host, 2, "time_squeeze")
    }
}

fn path(device: &str) -> String {
    format!("/sys/class/net/{device}/threaded")
}
