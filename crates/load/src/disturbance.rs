//! What kept a server from its CPUs, by the kernel's counters.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use flatout_lane::clock;
use flatout_trial::Disturbance;

use crate::machine::{TICK, unused_ticks};

/// Times so far.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Lost {
    now_ns: u64,
    /// Of all threads: ready to run, without a CPU.
    waited: Duration,
    /// Of all CPUs: taken by the hypervisor.
    stolen: Duration,
    /// Of the cgroup: stopped by its quota.
    throttled: Duration,
}

/// Threads that are read at most: a reading takes some microseconds for each.
const THREADS_MAX: usize = 256;

impl Lost {
    /// Reads the times of these processes. What the kernel does not report is 0.
    pub(crate) fn now(pids: &[u32]) -> Lost {
        Lost {
            now_ns: clock::nanoseconds(),
            waited: waited(pids),
            stolen: stolen(&fs::read_to_string("/proc/stat").unwrap_or_default()),
            throttled: pids.first().and_then(|pid| throttled(*pid)).unwrap_or_default(),
        }
    }

    /// The shares of the time since `before`.
    pub(crate) fn since(&self, before: &Lost) -> Disturbance {
        let elapsed = Duration::from_nanos(self.now_ns.saturating_sub(before.now_ns)).as_secs_f64();
        let share = |now: Duration, before: Duration| match elapsed > 0.0 {
            true => now.saturating_sub(before).as_secs_f64() / elapsed,
            false => 0.0,
        };
        Disturbance {
            waited: share(self.waited, before.waited),
            stolen: share(self.stolen, before.stolen),
            throttled: share(self.throttled, before.throttled),
        }
    }
}

/// The second field of `/proc/PID/task/TID/schedstat`, in nanoseconds.
fn waited(pids: &[u32]) -> Duration {
    let threads =
        pids.iter().filter_map(|pid| fs::read_dir(format!("/proc/{pid}/task")).ok()).flatten().flatten();
    let waits = threads.take(THREADS_MAX).filter_map(|thread| {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_ascii_whitespace().nth(1)?.parse().ok()
    });
    Duration::from_nanos(waits.fold(0, u64::saturating_add))
}

/// From `/proc/stat`.
fn stolen(stat: &str) -> Duration {
    unused_ticks(stat).map_or(Duration::ZERO, |[_, _, steal]| TICK * steal)
}

/// `throttled_usec` of the process's cgroup, of version 2.
fn throttled(pid: u32) -> Option<Duration> {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let stat = fs::read_to_string(PathBuf::from("/sys/fs/cgroup").join(own).join("cpu.stat")).ok()?;
    let microseconds = stat.lines().find_map(|line| line.strip_prefix("throttled_usec ")?.parse().ok())?;
    Some(Duration::from_micros(microseconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_become_shares() {
        let at = |now_ms: u64, waited_ms, stolen_ms, throttled_ms| Lost {
            now_ns: now_ms * 1_000_000,
            waited: Duration::from_millis(waited_ms),
            stolen: Duration::from_millis(stolen_ms),
            throttled: Duration::from_millis(throttled_ms),
        };
        let shares = at(3000, 400, 150, 20).since(&at(1000, 200, 50, 20));
        assert_eq!(shares, Disturbance { waited: 0.1, stolen: 0.05, throttled: 0.0 });
        assert_eq!(at(1, 9, 9, 9).since(&at(1, 0, 0, 0)), Disturbance::default(), "no time has passed");
        assert_eq!(at(2, 0, 0, 0).since(&at(1, 9, 9, 9)), Disturbance::default(), "a thread has ended");
    }

    #[test]
    fn stolen_time_is_the_eighth_number() {
        assert_eq!(stolen("cpu  1 2 3 4 5 6 7 80 9 10\ncpu0 1 2 3\n"), TICK * 80);
        for hostile in ["", "cpu", "cpu 1 2", "cpu 1 2 3 4 5 6 7 x", "cpu 1 2 3 4 5 6 7 99999999999"] {
            assert_eq!(stolen(hostile), Duration::ZERO, "{hostile}");
        }
    }

    #[test]
    fn a_process_without_files_lost_nothing() {
        assert_eq!(waited(&[u32::MAX]), Duration::ZERO);
        assert_eq!(throttled(u32::MAX), None);
        assert!(Lost::now(&[std::process::id()]).now_ns > 0);
    }
}
