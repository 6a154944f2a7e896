//! A clock that can be read without a system call.

use crate::change::Change;
use crate::error::Unknown;
use crate::host::Host;
use crate::served::Served;
use crate::settings::Setting;
use crate::tuning::{About, Advice, Counter, Needs, Risk, Scope, Tuning};

/// The kernel's clock source.
pub(super) struct Clocksource;

const ABOUT: About = About {
    name: "clocksource",
    reason: "reading hpet or acpi_pm is a slow access to a device, reading tsc is one instruction",
    detail: "The kernel stops using tsc if it finds it unstable, and dmesg says so. In that case leave it as it is.",
    source: "admin-guide/kernel-parameters: clocksource=",
    scope: Scope::Host,
    risk: Risk::Medium,
    lost: "if the kernel found tsc unstable, clocks of two CPUs may disagree",
    gain_percent: 5.0,
    needs: Needs::AnyPath,
};

impl Tuning for Clocksource {
    fn about(&self) -> &About {
        &ABOUT
    }

    fn probe(&self, host: &Host, _: &Served) -> Result<String, Unknown> {
        host.text(NOW)
    }

    fn advice(&self, host: &Host, _: &Served) -> Result<Advice, Unknown> {
        let (now, available) = (host.text(NOW)?, host.text(AVAILABLE)?);
        let is_slow =
            SLOW.contains(&now.as_str()) && available.split_whitespace().any(|name| name == FASTEST);
        Ok(match is_slow {
            true => Advice::change(
                format!("clock source {FASTEST}"),
                vec![Change::text(Setting::file(NOW), FASTEST)],
            ),
            false => Advice::Fine,
        })
    }

    fn effect(&self, _: &Host, _: &Served) -> Result<Counter, Unknown> {
        Err(Unknown("no counter shows it; the share of clock_gettime in a profile does".to_owned()))
    }
}

const NOW: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
const AVAILABLE: &str = "/sys/devices/system/clocksource/clocksource0/available_clocksource";

const FASTEST: &str = "tsc";

/// Sources that need a system call or a device access; kvm-clock and hyperv_clocksource_tsc_page need neither.
const SLOW: &[&str] = &["hpet", "acpi_pm", "jiffies", "refined-jiffies", "xen"];
