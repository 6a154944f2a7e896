//! Huge pages on request (madvise).

use crate::change::Change;
use crate::change::chosen;
use crate::error::Unknown;
use crate::host::Host;
use crate::served::Served;
use crate::settings::Setting;
use crate::tuning::{About, Advice, Counter, Needs, Proof, Risk, Scope, Tuning};

/// Transparent huge pages.
pub(super) struct HugePages;

const ABOUT: About = About {
    name: "huge-pages",
    reason: "fewer TLB misses",
    detail: "`madvise` gives them to programs that request them. `always` gives them to all programs, and khugepaged \
             may stall some.",
    source: "admin-guide/mm/transhuge",
    scope: Scope::Host,
    risk: Risk::Low,
    lost: "",
    gain_percent: 1.2,
    needs: Needs::AnyPath,
};

impl Tuning for HugePages {
    fn about(&self) -> &About {
        &ABOUT
    }

    fn probe(&self, host: &Host, _: &Served) -> Result<String, Unknown> {
        let text = host.text(ENABLED)?;
        Ok(chosen(&text).unwrap_or(&text).to_owned())
    }

    fn advice(&self, host: &Host, _: &Served) -> Result<Advice, Unknown> {
        Ok(match chosen(&host.text(ENABLED)?) {
            Some("never") => Advice::change(
                "huge pages on request (madvise)",
                vec![Change::text(Setting::file(ENABLED), "madvise")],
            ),
            _ => Advice::Fine,
        })
    }

    fn proof(&self) -> Proof {
        Proof::Measurement
    }

    fn effect(&self, host: &Host, _: &Served) -> Result<Counter, Unknown> {
        let table = host.text("/proc/vmstat")?;
        let value = table.lines().find_map(|line| line.strip_prefix("thp_fault_alloc ")?.parse().ok());
        let value = value.ok_or_else(|| Unknown("this kernel does not count thp_fault_alloc".to_owned()))?;
        Ok(Counter { name: "thp_fault_alloc".to_owned(), value })
    }
}

const ENABLED: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
