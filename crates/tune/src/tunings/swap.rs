//! The server's memory stays in RAM.

use crate::change::Change;
use crate::error::Unknown;
use crate::host::Host;
use crate::served::Served;
use crate::settings::Setting;
use crate::tuning::{About, Advice, Counter, Needs, Risk, Scope, Tuning};

/// The kernel's swappiness.
pub(super) struct Swap;

const ABOUT: About = About {
    name: "swap",
    reason: "a request that needs swapped-out memory waits for a disk",
    detail: "With vm.swappiness 10 the kernel drops file caches first.",
    source: "admin-guide/sysctl/vm",
    scope: Scope::Host,
    risk: Risk::Medium,
    lost: "file caches shrink earlier when memory is short",
    gain_percent: 0.9,
    needs: Needs::AnyPath,
};

impl Tuning for Swap {
    fn about(&self) -> &About {
        &ABOUT
    }

    fn probe(&self, host: &Host, _: &Served) -> Result<String, Unknown> {
        let swappiness: u64 = host.number(SWAPPINESS)?;
        Ok(match has_swap(host)? {
            true => format!("swappiness {swappiness}"),
            false => "no swap".to_owned(),
        })
    }

    fn advice(&self, host: &Host, _: &Served) -> Result<Advice, Unknown> {
        let swappiness: u64 = host.number(SWAPPINESS)?;
        Ok(match has_swap(host)? && swappiness > SWAPPINESS_MAX {
            true => Advice::change(
                format!("vm.swappiness = {SWAPPINESS_MAX}"),
                vec![Change::text(Setting::sysctl("vm.swappiness"), SWAPPINESS_MAX)],
            ),
            false => Advice::Fine,
        })
    }

    fn effect(&self, host: &Host, _: &Served) -> Result<Counter, Unknown> {
        let table = host.text("/proc/vmstat")?;
        let value = table.lines().find_map(|line| line.strip_prefix("pswpin ")?.parse().ok());
        let value = value.ok_or_else(|| Unknown("this kernel does not count pswpin".to_owned()))?;
        Ok(Counter { name: "pswpin".to_owned(), value })
    }
}

const SWAPPINESS: &str = "/proc/sys/vm/swappiness";

/// Low, but not 0, with which the kernel would rather kill a program than swap.
const SWAPPINESS_MAX: u64 = 10;

/// Whether any swap device or file is in use; the first line is a heading.
fn has_swap(host: &Host) -> Result<bool, Unknown> {
    Ok(host.text("/proc/swaps")?.lines().count() > 1)
}
