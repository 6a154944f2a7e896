//! Huge pages: who gets them (madvise), and what they cost those who wait for one.

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
        vmstat(host, "thp_fault_alloc")
    }
}

/// What a program waits for when there is no huge page.
pub(super) struct Defrag;

const DEFRAG_ABOUT: About = About {
    name: "huge-page-defrag",
    reason: "a program is stopped while the kernel makes room for a huge page",
    detail: "With `always`, each page fault may move memory first (direct compaction), which takes milliseconds. `defer+madvise` leaves \
             that to a kernel thread, except for programs that ask.",
    source: "admin-guide/mm/transhuge: defrag",
    scope: Scope::Host,
    risk: Risk::Low,
    lost: "",
    gain_percent: 1.1,
    needs: Needs::AnyPath,
};

impl Tuning for Defrag {
    fn about(&self) -> &About {
        &DEFRAG_ABOUT
    }

    fn probe(&self, host: &Host, _: &Served) -> Result<String, Unknown> {
        let text = host.text(DEFRAG)?;
        Ok(chosen(&text).unwrap_or(&text).to_owned())
    }

    fn advice(&self, host: &Host, _: &Served) -> Result<Advice, Unknown> {
        let wanted = "defer+madvise";
        let change = Change::text(Setting::file(DEFRAG), wanted);
        Ok(match chosen(&host.text(DEFRAG)?) {
            Some("always") => {
                Advice::change(format!("huge pages made by a kernel thread ({wanted})"), vec![change])
            }
            _ => Advice::Fine,
        })
    }

    fn proof(&self) -> Proof {
        Proof::Counter
    }

    fn effect(&self, host: &Host, _: &Served) -> Result<Counter, Unknown> {
        vmstat(host, "compact_stall")
    }
}

/// A counter of `/proc/vmstat`.
fn vmstat(host: &Host, name: &str) -> Result<Counter, Unknown> {
    let table = host.text("/proc/vmstat")?;
    let value = table.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
    let value = value.ok_or_else(|| Unknown(format!("this kernel does not count {name}")))?;
    Ok(Counter { name: name.to_owned(), value })
}

const DEFRAG: &str = "/sys/kernel/mm/transparent_hugepage/defrag";
const ENABLED: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
