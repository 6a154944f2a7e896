//! The memory limit of all TCP sockets together.

use crate::change::Change;
use crate::counters::netstat;
use crate::error::Unknown;
use crate::host::Host;
use crate::served::Served;
use crate::settings::Setting;
use crate::tuning::{About, Advice, Counter, Needs, Proof, Risk, Scope, Tuning};

/// The memory of all TCP sockets.
pub(super) struct TcpMem;

const ABOUT: About = About {
    name: "tcp-mem",
    reason: "when TCP runs short of memory, it shrinks the buffers of all connections, then drops packets",
    detail: "Three numbers of pages: below the first nothing is limited, above the second buffers shrink, above the \
             third no memory is added. The kernel derives them from its memory at boot. Suggested where the \
             second was reached (TCPMemoryPressures), up to a quarter of the memory, and where the numbers are \
             absurd: they do not ascend, or leave TCP more than half of the memory, or less than a 256th.",
    source: "tcp(7); ip-sysctl",
    scope: Scope::Host,
    risk: Risk::Medium,
    lost: "sockets may hold up to a quarter of the memory, and that part cannot be swapped",
    gain_percent: 0.35,
    needs: Needs::AnyPath,
};

impl Tuning for TcpMem {
    fn about(&self) -> &About {
        &ABOUT
    }

    fn parameter(&self) -> Option<&'static str> {
        Some(KEY)
    }

    fn probe(&self, host: &Host, _: &Served) -> Result<String, Unknown> {
        let [low, pressure, high] = pages(host)?;
        Ok(format!("{low} {pressure} {high} pages"))
    }

    fn advice(&self, host: &Host, served: &Served) -> Result<Advice, Unknown> {
        let (now, memory) = (pages(host)?, memory_pages(host));
        let why_absurd = memory.as_ref().ok().and_then(|memory| absurd(now, *memory));
        let wanted = match &why_absurd {
            Some(_) => memory.map(|memory| [memory / 64 * 3, memory / 16, memory / 32 * 3])?,
            None if self.effect(host, served)?.value == 0 => return Ok(Advice::Fine),
            None => {
                // The kernel's own proportions.
                let share = memory.map(|memory| [memory / 8, memory / 16 * 3, memory / 4])?;
                [0, 1, 2].map(|at| now[at].max(share[at]))
            }
        };
        if wanted == now {
            return Ok(Advice::Fine);
        }
        let text = wanted.map(|pages| pages.to_string()).join(" ");
        let why = why_absurd.map(|why| format!(", as the kernel would choose it: {why}")).unwrap_or_default();
        Ok(Advice::change(format!("{KEY} = {text}{why}"), vec![Change::text(Setting::sysctl(KEY), text)]))
    }

    /// Absurd numbers need no other evidence.
    fn proof(&self) -> Proof {
        Proof::Setting
    }

    fn effect(&self, host: &Host, _: &Served) -> Result<Counter, Unknown> {
        netstat(host, "TCPMemoryPressures")
    }
}

const KEY: &str = "net.ipv4.tcp_mem";
const NOW: &str = "/proc/sys/net/ipv4/tcp_mem";

/// The least share of the memory that TCP needs, and the largest that it may have: one part of so many. The kernel's own third number is
/// three of 32 parts.
const SHARE_MIN: u64 = 256;
const SHARE_MAX: u64 = 2;

/// What is wrong with these numbers, whatever the load.
fn absurd([low, pressure, high]: [u64; 3], memory: u64) -> Option<String> {
    if memory == 0 {
        return None;
    }
    if low > pressure || pressure > high {
        return Some(format!("{low} {pressure} {high} do not ascend"));
    }
    if high > memory / SHARE_MAX {
        let percent = high as f64 / memory as f64 * 100.0;
        return Some(format!(
            "TCP may use {percent:.0} % of the memory before it is limited, and that part cannot be swapped"
        ));
    }
    (high < memory / SHARE_MIN)
        .then(|| format!("TCP may use only {high} pages of {memory}, then it drops packets"))
}

fn pages(host: &Host) -> Result<[u64; 3], Unknown> {
    let text = host.text(NOW)?;
    let numbers: Option<Vec<u64>> = text.split_whitespace().map(|word| word.parse().ok()).collect();
    let pages = numbers.and_then(|numbers| <[u64; 3]>::try_from(numbers).ok());
    pages.ok_or_else(|| Unknown(format!("{NOW} holds `{text}`, not three numbers")))
}

/// All memory available to the kernel, in its page size.
fn memory_pages(host: &Host) -> Result<u64, Unknown> {
    let zones = host.text("/proc/zoneinfo")?;
    let managed =
        zones.lines().filter_map(|line| line.trim().strip_prefix("managed")?.trim().parse::<u64>().ok());
    Ok(managed.fold(0, u64::saturating_add))
}
