//! CPUs at full clock.

use crate::card;
use crate::change::Change;
use crate::counters::file;
use crate::error::Unknown;
use crate::host::Host;
use crate::served::Served;
use crate::settings::Setting;
use crate::tuning::{About, Advice, Counter, Needs, Risk, Scope, Tuning};

/// The frequency governor of each CPU.
pub(super) struct Governor;

const ABOUT: About = About {
    name: "governor",
    reason: "a CPU that lowers its clock between bursts is slow when the next one arrives",
    detail: "In most virtual machines the hypervisor decides, and nothing is visible here. An idle machine uses more \
             power.",
    source: "admin-guide/pm/cpufreq",
    scope: Scope::Host,
    risk: Risk::Low,
    lost: "power: idle and half-loaded CPUs run at their highest clock",
    gain_percent: 4.5,
    needs: Needs::AnyPath,
};

impl Tuning for Governor {
    fn about(&self) -> &About {
        &ABOUT
    }

    fn probe(&self, host: &Host, _: &Served) -> Result<String, Unknown> {
        let mut governors = Governor::all(host)?;
        governors.sort_by(|one, other| one.1.cmp(&other.1));
        governors.dedup_by(|one, other| one.1 == other.1);
        Ok(governors.into_iter().map(|(_, governor)| governor).collect::<Vec<_>>().join(" "))
    }

    fn advice(&self, host: &Host, _: &Served) -> Result<Advice, Unknown> {
        let slow = Governor::all(host)?.into_iter().filter(|(_, governor)| governor != FASTEST);
        let changes: Vec<Change> = slow.map(|(path, _)| Change::text(Setting::file(path), FASTEST)).collect();
        Ok(Advice::change(format!("governor {FASTEST}"), changes))
    }

    fn effect(&self, host: &Host, _: &Served) -> Result<Counter, Unknown> {
        file(host, "/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq")
    }
}

const FASTEST: &str = "performance";

impl Governor {
    fn all(host: &Host) -> Result<Vec<(String, String)>, Unknown> {
        let path = |cpu| format!("/sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor");
        let read = |cpu| Ok((path(cpu), host.text(&path(cpu))?));
        let all: Result<_, Unknown> = card::cpus(host)?.into_iter().map(read).collect();
        all.map_err(|_| {
            Unknown("there is no cpufreq here: the firmware or the hypervisor sets the clock".to_owned())
        })
    }
}
