//! CPUs that wake up quickly.

use crate::card;
use crate::change::Change;
use crate::counters::file;
use crate::error::Unknown;
use crate::host::Host;
use crate::served::Served;
use crate::settings::Setting;
use crate::tuning::{About, Advice, Counter, Needs, Risk, Scope, Tuning};

/// The deep idle states of each CPU.
pub(super) struct CStates;

const ABOUT: About = About {
    name: "c-states",
    reason: "a CPU in a deep idle state takes up to 100 us to wake",
    detail: "Idle states that take longer than 20 us to leave are disabled. A program that holds \
             `/dev/cpu_dma_latency` open has the same effect. An idle machine uses more power.",
    source: "admin-guide/pm/cpuidle",
    scope: Scope::Host,
    risk: Risk::Low,
    lost: "power: idle CPUs do not sleep deeply, so the others may have less headroom for turbo",
    gain_percent: 3.5,
    needs: Needs::AnyPath,
};

impl Tuning for CStates {
    fn about(&self) -> &About {
        &ABOUT
    }

    fn probe(&self, host: &Host, _: &Served) -> Result<String, Unknown> {
        let (deep, on) =
            (deep_states(host)?, deep_states(host)?.into_iter().filter(|(_, is_on)| *is_on).count());
        Ok(format!("{on} of {} deep states in use", deep.len()))
    }

    fn advice(&self, host: &Host, _: &Served) -> Result<Advice, Unknown> {
        let on = deep_states(host)?.into_iter().filter(|(_, is_on)| *is_on);
        let changes: Vec<Change> = on.map(|(path, _)| Change::text(Setting::file(path), 1)).collect();
        Ok(Advice::change(format!("no idle state that takes over {WAKE_US_MAX} us to leave"), changes))
    }

    fn effect(&self, host: &Host, _: &Served) -> Result<Counter, Unknown> {
        file(host, "/sys/devices/system/cpu/cpu0/cpuidle/state1/usage")
    }
}

/// Longest acceptable wake-up time in microseconds.
const WAKE_US_MAX: u64 = 20;

/// The switches of all idle states with a slow wake-up, and whether each is in use.
fn deep_states(host: &Host) -> Result<Vec<(String, bool)>, Unknown> {
    let mut states = Vec::new();
    for cpu in card::cpus(host)? {
        let folder = format!("/sys/devices/system/cpu/cpu{cpu}/cpuidle");
        for state in host.list(&folder)?.iter().filter(|name| name.starts_with("state")) {
            if host.number::<u64>(&format!("{folder}/{state}/latency"))? > WAKE_US_MAX {
                let switch = format!("{folder}/{state}/disable");
                let is_on = host.number::<u8>(&switch)? == 0;
                states.push((switch, is_on));
            }
        }
    }
    Ok(states)
}
