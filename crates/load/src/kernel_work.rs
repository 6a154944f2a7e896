//! What the kernel does for a server outside of its processes: network softirqs, which run in whatever was interrupted or sends,
//! and threads of the kernel, such as those of threaded NAPI.
//!
//! ```text
//! the server's own system calls        its CPU time already
//! softirqs on top of the generator,
//! other programs and idle CPUs         added (SoftirqClock)
//! softirqs on top of the server        in its CPU time; added where the kernel keeps them apart
//! threads of the kernel                added where a change may move work to them; not ksoftirqd, whose time is in softirqs
//! softirqs within those threads        added; their threads' CPU time without them, unless the kernel keeps them apart
//! ```

use std::fs;
use std::io;
use std::sync::OnceLock;
use std::time::Duration;

use flatout_lane::clock;
use flatout_lane::softirq::{ByGroup, SoftirqClock};

/// The groups of the clock; all other processes, idle CPUs and ksoftirqd are group 0.
const SERVER: usize = 1;
const GENERATOR: usize = 2;
/// Threads of the kernel whose CPU time is read: of threaded NAPI, workqueues and threaded interrupts.
const THREADS: usize = 3;

/// A clock of the kernel's work. It is shared by all measurements of a climb.
#[derive(Debug)]
pub struct KernelWork {
    clock: SoftirqClock,
    /// Whether the kernel keeps softirqs apart from the time of processes (`CONFIG_IRQ_TIME_ACCOUNTING`).
    is_apart: bool,
    ksoftirqds: Vec<u32>,
    /// Why it no longer runs.
    failure: OnceLock<String>,
}

/// Times so far.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct WorkTimes {
    softirqs: ByGroup,
    /// The kernel's threads; empty if they were not read.
    threads: Vec<(u32, Duration)>,
}

/// The work in a time.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Work {
    /// Network softirqs that are not in the CPU time of the server's processes.
    pub(crate) softirqs: Duration,
    /// Those of them that are in the load generator's.
    pub(crate) in_generator: Duration,
    /// Threads of the kernel, without the softirqs within them.
    pub(crate) threads: Duration,
}

/// The parent of the kernel's threads.
const KTHREADD: u32 = 2;

impl KernelWork {
    /// Starts the clock; this process is the load generator.
    ///
    /// # Errors
    /// As [`SoftirqClock::start`].
    pub fn start() -> io::Result<KernelWork> {
        let clock = SoftirqClock::start()?;
        clock.assign(std::process::id(), GENERATOR)?;
        let is_ksoftirqd = |pid: &u32| {
            fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.starts_with("ksoftirqd/"))
        };
        let (ksoftirqds, threads): (Vec<u32>, Vec<u32>) =
            kernel_threads().into_iter().partition(is_ksoftirqd);
        for pid in threads {
            clock.assign(pid, THREADS)?;
        }
        let is_apart = fs::read_to_string("/proc/stat").is_ok_and(|stat| is_interrupt_time_apart(&stat));
        Ok(KernelWork { clock, is_apart, ksoftirqds, failure: OnceLock::new() })
    }

    /// Why the clock has failed since it was started, if it has. All later figures are without it.
    pub fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    /// Softirqs in the time of these processes are in the server's.
    pub(crate) fn assign(&self, pids: &[u32]) {
        self.put_into(SERVER, pids);
    }

    fn put_into(&self, group: usize, pids: &[u32]) {
        for &pid in pids {
            // Without a group, its softirqs would count twice.
            if let Err(error) = self.clock.assign(pid, group) {
                self.failure
                    .get_or_init(|| format!("the clock of softirqs failed during the climb: {error}"));
            }
        }
    }

    /// The times so far; `None` if the clock has failed.
    pub(crate) fn now(&self, with_threads: bool) -> Option<WorkTimes> {
        let threads = if with_threads { kernel_threads() } else { Vec::new() };
        let timed: Vec<u32> = threads.into_iter().filter(|pid| !self.ksoftirqds.contains(pid)).collect();
        // A change may have started some of them.
        self.put_into(THREADS, &timed);
        if self.failure.get().is_some() {
            return None;
        }
        let time = |pid: u32| Some((pid, clock::process_cpu(pid).ok()?));
        Some(WorkTimes {
            softirqs: self.clock.now().ok()?,
            threads: timed.into_iter().filter_map(time).collect(),
        })
    }

    pub(crate) fn between(&self, before: &WorkTimes, now: &WorkTimes) -> Work {
        let group = |group: usize| now.softirqs[group].saturating_sub(before.softirqs[group]);
        let own = if self.is_apart { group(SERVER) } else { Duration::ZERO };
        let in_threads = if self.is_apart { Duration::ZERO } else { group(THREADS) };
        let of_thread = |(pid, time): &(u32, Duration)| {
            let earlier = before.threads.iter().find(|(known, _)| known == pid);
            time.saturating_sub(earlier.map_or(Duration::ZERO, |(_, time)| *time))
        };
        Work {
            softirqs: group(0) + group(GENERATOR) + group(THREADS) + own,
            in_generator: if self.is_apart { Duration::ZERO } else { group(GENERATOR) },
            threads: now.threads.iter().map(of_thread).sum::<Duration>().saturating_sub(in_threads),
        }
    }
}

/// The ids of the kernel's threads.
fn kernel_threads() -> Vec<u32> {
    // In a container, any process has this id.
    if !fs::read_to_string(format!("/proc/{KTHREADD}/comm")).is_ok_and(|name| name == "kthreadd\n") {
        return Vec::new();
    }
    let children = format!("/proc/{KTHREADD}/task/{KTHREADD}/children");
    match fs::read_to_string(children) {
        Ok(list) => list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect(),
        // Without CONFIG_PROC_CHILDREN.
        Err(_) => Vec::new(),
    }
}

/// Whether the kernel charges interrupts to no process. Only then can there be time in the column `irq`: a timer, which samples
/// the time otherwise, does not interrupt an interrupt.
///
/// # Source
/// `account_system_time` and `irqtime_account_irq` in the kernel's `sched/cputime.c`.
fn is_interrupt_time_apart(stat: &str) -> bool {
    let irq = stat.lines().next().and_then(|all| all.split_ascii_whitespace().nth(6));
    irq.and_then(|ticks| ticks.parse::<u64>().ok()).is_some_and(|ticks| ticks > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(softirqs_ms: [u64; 4], threads_ms: &[(u32, u64)]) -> WorkTimes {
        WorkTimes {
            softirqs: softirqs_ms.map(Duration::from_millis),
            threads: threads_ms.iter().map(|(pid, ms)| (*pid, Duration::from_millis(*ms))).collect(),
        }
    }

    /// Needs CAP_BPF, and is skipped without.
    #[test]
    fn work_outside_of_the_server_is_added_once() {
        let Ok(mut work) = KernelWork::start() else { return };
        let before = times([1, 10, 100, 0], &[(8, 50)]);
        let now = times([3, 14, 108, 4], &[(8, 51), (9, 5)]);
        let ms = Duration::from_millis;
        work.is_apart = false;
        assert_eq!(
            work.between(&before, &now),
            Work { softirqs: ms(14), in_generator: ms(8), threads: ms(2) },
            "those on top of the server and of the kernel's threads are in their own time"
        );
        work.is_apart = true;
        assert_eq!(
            work.between(&before, &now),
            Work { softirqs: ms(18), in_generator: ms(0), threads: ms(6) }
        );
        work.is_apart = false;
        let without_threads = work.between(&times([0; 4], &[]), &times([0, 0, 0, 4], &[]));
        assert_eq!(without_threads, Work { softirqs: ms(4), ..Work::default() });
        assert!(
            work.now(true)
                .is_some_and(|now| now.threads.iter().all(|(pid, _)| !work.ksoftirqds.contains(pid)))
        );
    }

    /// Needs CAP_BPF, and is skipped without.
    #[test]
    fn a_clock_that_failed_has_no_times() {
        let Ok(work) = KernelWork::start() else { return };
        work.assign(&[std::process::id()]);
        assert!(work.failure().is_none() && work.now(false).is_some());
        work.failure.set("full".to_owned()).unwrap();
        assert!(work.failure() == Some("full") && work.now(false).is_none());
    }

    #[test]
    fn interrupt_time_of_its_own_is_recognized() {
        assert!(!is_interrupt_time_apart("cpu  1 2 3 400 50 0 7 8 0 0\ncpu0 0\n"));
        assert!(is_interrupt_time_apart("cpu  1 2 3 400 50 6 7 8 0 0\ncpu0 0\n"));
        assert!(!is_interrupt_time_apart("") && !is_interrupt_time_apart("cpu x"));
    }
}
