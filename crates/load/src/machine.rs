//! The CPU time of the whole machine, less the load generator's.
//!
//! The time that CPUs were idle is exact: the kernel stops a clock when a CPU leaves its idle loop, also for an interrupt
//! (`tick_nohz_irq_enter`). The times of user, system and softirq in `/proc/stat` are sampled by the timer on many kernels,
//! so what was busy is taken as what was not idle, not stolen by the hypervisor, and not waiting for a disk. The kernel
//! tells it in steps of 10 ms over all CPUs: half a second on two CPUs is exact to 1 or 2 %.
//!
//! What else runs: the time of other programs' processes is left out, so that a machine with neighbours can be measured; that
//! of the kernel's own threads (ksoftirqd, those of threaded NAPI) and of interrupts stays in, whoever they work for. A process
//! that the server hands work to and that is none of its own is left out too; one that begins and ends meanwhile, and whose
//! parent does not outlive it, is not seen. A generator on this machine does a part of the server's work on loopback: the packets
//! that it sends are received by the same call, and count as its own.

use std::fs;
use std::process;
use std::time::Duration;

use flatout_lane::clock;

use crate::server_cpu::ticks;

/// Times so far.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Machine {
    now_ns: u64,
    cpus: u32,
    /// Over all CPUs: idle, waiting for a disk, stolen.
    unused: Duration,
    /// Of this process and of its children that have ended.
    ours: Duration,
    /// Of other programs' processes, and of their children that have ended.
    others: Duration,
}

/// A clock tick as the kernel tells it to programs, on all architectures that we run on.
const TICK: Duration = Duration::from_millis(10);

impl Machine {
    /// Reads the times, where these processes are the server's; none where the kernel does not tell them.
    pub(crate) fn now(server: &[u32]) -> Option<Machine> {
        let (cpus, unused) = unused(&fs::read_to_string("/proc/stat").ok()?)?;
        let own = clock::process_cpu(process::id()).ok()?;
        let children = children(&fs::read_to_string("/proc/self/stat").ok()?)?;
        let now_ns = clock::nanoseconds();
        Some(Machine { now_ns, cpus, unused, ours: own + children, others: others(server) })
    }

    /// What others than we used since `before`; none if CPUs came or went meanwhile.
    pub(crate) fn since(&self, before: &Machine) -> Option<Duration> {
        let wall = Duration::from_nanos(self.now_ns.saturating_sub(before.now_ns)) * self.cpus;
        let used = wall.saturating_sub(self.unused.saturating_sub(before.unused));
        let elsewhere = self.ours.saturating_sub(before.ours) + self.others.saturating_sub(before.others);
        (self.cpus == before.cpus).then(|| used.saturating_sub(elsewhere))
    }
}

/// Processes that are looked at; with more of them looking would be a load of its own, and none is left out.
const PROCESSES_MAX: usize = 4096;

/// The flag of a thread of the kernel's own (PF_KTHREAD).
const KERNEL_THREAD: u64 = 0x0020_0000;

/// What all processes have used that are neither the server's, nor ours, nor the kernel's.
fn others(server: &[u32]) -> Duration {
    let names = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids: Vec<u32> = names.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    if pids.len() > PROCESSES_MAX {
        return Duration::ZERO;
    }
    let used = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let flags: u64 = stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(6)?.parse().ok()?;
        (flags & KERNEL_THREAD == 0).then_some(clock::process_cpu(pid).ok()? + children(&stat)?)
    };
    let is_other = |pid: &u32| *pid != process::id() && !server.contains(pid);
    pids.into_iter().filter(is_other).filter_map(used).sum()
}

/// The number of CPUs that are online, and how long all of them together were idle, waited or were stolen.
fn unused(stat: &str) -> Option<(u32, Duration)> {
    let mut lines = stat.lines();
    let all = lines.next()?.strip_prefix("cpu ")?;
    let fields: Vec<u32> = all.split_ascii_whitespace().map_while(|field| field.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal …
    let [_, _, _, idle, iowait, _, _, steal, ..] = fields.as_slice() else { return None };
    let cpus = lines.take_while(|line| line.starts_with("cpu")).count() as u32;
    let unused = [idle, iowait, steal].into_iter().map(|field| TICK * *field).sum();
    (cpus > 0).then_some((cpus, unused))
}

/// What the children of a process have used that have ended and were waited for.
fn children(stat: &str) -> Option<Duration> {
    // They stand two fields behind the process's own.
    let (user, kernel) = ticks(stat, 2)?;
    Some(TICK * u32::try_from(user + kernel).ok()?)
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
        assert_eq!(children("7 (a) b) S 1 7 7 0 -1 0 1 0 0 0 31 42 5 6 20"), Some(TICK * 11));
        for broken in ["", "cpu 1 2 3\n", "cpu  a b c\n", "intr 1\n"] {
            assert_eq!(unused(broken), None, "{broken}");
        }
    }

    /// On two CPUs a second has two seconds; half of them idle, and a quarter of one ours.
    #[test]
    fn what_is_left_is_neither_idle_nor_ours() {
        let at = |now_ns: u64, unused_ms: u64, ours_ms: u64| Machine {
            now_ns,
            cpus: 2,
            unused: Duration::from_millis(unused_ms),
            ours: Duration::from_millis(ours_ms),
            others: Duration::ZERO,
        };
        let used = at(1_000_000_000, 1100, 250).since(&at(0, 100, 0));
        assert_eq!(used, Some(Duration::from_millis(750)));
        let neighbour = Machine { others: Duration::from_millis(500), ..at(1_000_000_000, 1100, 250) };
        assert_eq!(neighbour.since(&at(0, 100, 0)), Some(Duration::from_millis(250)));
        assert_eq!(Machine { cpus: 4, ..at(1, 0, 0) }.since(&at(0, 0, 0)), None, "CPUs came meanwhile");
    }

    /// What the server's processes do is counted, what others do is not; nor what we do ourselves, and our children that have
    /// ended.
    #[test]
    fn the_servers_work_counts_and_that_of_others_does_not() {
        let burn = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done";
        let mut other = Command::new("/bin/sh").args(["-c", burn]).spawn().unwrap();
        let id = other.id();
        let before = Machine::now(&[id]).unwrap();
        let before_as_stranger = others(&[]);
        let begun = Instant::now();
        let mut burnt = Duration::ZERO;
        while burnt < Duration::from_millis(60) && begun.elapsed() < Duration::from_secs(20) {
            burnt = clock::process_cpu(id).unwrap_or(burnt);
        }
        let used = Machine::now(&[id]).unwrap().since(&before).unwrap();
        // Other tests begin and end processes meanwhile, and the kernel tells it in steps.
        assert!(used + 4 * TICK >= burnt / 2, "{used:?} of {burnt:?}");
        let as_stranger = others(&[]) - before_as_stranger;
        assert!(as_stranger + 2 * TICK >= burnt / 2, "{as_stranger:?}");
        other.wait().unwrap();
        let ours = Machine::now(&[]).unwrap().ours - before.ours;
        assert!(ours >= burnt, "it has ended: {ours:?}");
    }
}
