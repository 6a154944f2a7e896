//! The CPU time of the whole machine, minus the load generator's.
//!
//! The idle time of CPUs is exact: the kernel stops a clock when a CPU leaves its idle loop, also for an interrupt
//! (`tick_nohz_irq_enter`). The user, system and softirq times in `/proc/stat` are sampled by the timer on many
//! kernels. So busy time is computed as the time that was not idle, not stolen by the hypervisor, and not waiting for
//! a disk. The kernel reports it in steps of 10 ms over all CPUs: half a second on two CPUs is exact to 1 or 2 %.
//!
//! It includes everything else that runs. That runs with and without a change alike, so it makes differences smaller,
//! not larger. A generator on this machine does part of the server's work on loopback: the packets that it sends are
//! received within the same call, and count as its own.

use std::fs;
use std::process;
use std::time::Duration;

use flatout_lane::clock;
use flatout_owner::{Here, Stat, TICKS_PER_S};

/// Times so far.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct MachineCpu {
    now_ns: u64,
    cpus: u32,
    /// Over all CPUs: idle, waiting for a disk, stolen.
    unused: Duration,
    /// Of this process and of its children that have exited.
    ours: Duration,
}

/// A clock tick.
pub(crate) const TICK: Duration = Duration::from_millis(1000 / TICKS_PER_S);

impl MachineCpu {
    /// Reads the times; `None` if the kernel does not report them.
    pub(crate) fn now() -> Option<MachineCpu> {
        let (cpus, unused) = unused(&fs::read_to_string("/proc/stat").ok()?)?;
        let own = clock::process_cpu(process::id()).ok()?;
        let children = TICK * u32::try_from(Stat::read(&Here, process::id()).ok()?.children_ticks).ok()?;
        Some(MachineCpu { now_ns: clock::nanoseconds(), cpus, unused, ours: own + children })
    }

    /// CPU time that others used since `before`; `None` if CPUs came or went.
    pub(crate) fn since(&self, before: &MachineCpu) -> Option<Duration> {
        let wall = Duration::from_nanos(self.now_ns.saturating_sub(before.now_ns)) * self.cpus;
        let used = wall.saturating_sub(self.unused.saturating_sub(before.unused));
        (self.cpus == before.cpus).then(|| used.saturating_sub(self.ours.saturating_sub(before.ours)))
    }
}

/// The number of online CPUs, and their total idle, wait and steal time.
fn unused(stat: &str) -> Option<(u32, Duration)> {
    let [idle, iowait, steal] = unused_ticks(stat)?;
    let cpus = stat.lines().skip(1).take_while(|line| line.starts_with("cpu")).count() as u32;
    let unused = [idle, iowait, steal].into_iter().map(|field| TICK * field).sum();
    (cpus > 0).then_some((cpus, unused))
}

/// The ticks in which CPUs were idle, waited for a disk, and were stolen, over all of them.
pub(crate) fn unused_ticks(stat: &str) -> Option<[u32; 3]> {
    let all = stat.lines().next()?.strip_prefix("cpu ")?;
    let fields: Vec<u32> = all.split_ascii_whitespace().map_while(|field| field.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal …
    let [_, _, _, idle, iowait, _, _, steal, ..] = fields[..] else { return None };
    Some([idle, iowait, steal])
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Instant;

    use super::*;

    #[test]
    fn idle_time_is_read() {
        let stat = "cpu  1 2 3 400 50 6 7 8 0 0\ncpu0 0 0 0 0\ncpu1 0 0 0 0\nintr 1\n";
        assert_eq!(unused(stat), Some((2, TICK * 458)));
        for broken in ["", "cpu 1 2 3\n", "cpu  a b c\n", "intr 1\n"] {
            assert_eq!(unused(broken), None, "{broken}");
        }
    }

    /// On two CPUs a second has two CPU seconds; half of them is idle, and a quarter of one is ours.
    #[test]
    fn the_rest_is_neither_idle_nor_ours() {
        let at = |now_ns: u64, unused_ms: u64, ours_ms: u64| MachineCpu {
            now_ns,
            cpus: 2,
            unused: Duration::from_millis(unused_ms),
            ours: Duration::from_millis(ours_ms),
        };
        let used = at(1_000_000_000, 1100, 250).since(&at(0, 100, 0));
        assert_eq!(used, Some(Duration::from_millis(750)));
        assert_eq!(MachineCpu { cpus: 4, ..at(1, 0, 0) }.since(&at(0, 0, 0)), None, "CPUs came meanwhile");
    }

    /// Work that is moved to another process, as RPS moves it to another CPU, still counts. Our own work, and that of
    /// our exited children, does not.
    #[test]
    fn work_in_other_processes_counts() {
        let burn = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done";
        let before = MachineCpu::now().unwrap();
        let mut other = Command::new("/bin/sh").args(["-c", burn]).spawn().unwrap();
        let id = other.id();
        let begun = Instant::now();
        let mut burnt = Duration::ZERO;
        while burnt < Duration::from_millis(60) && begun.elapsed() < Duration::from_secs(20) {
            burnt = clock::process_cpu(id).unwrap_or(burnt);
        }
        let used = MachineCpu::now().unwrap().since(&before).unwrap();
        assert!(used + 2 * TICK >= burnt, "{used:?} of {burnt:?}");
        other.wait().unwrap();
        let ours = MachineCpu::now().unwrap().ours - before.ours;
        assert!(ours >= burnt, "it has ended: {ours:?}");
    }
}
