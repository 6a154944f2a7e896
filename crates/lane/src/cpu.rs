//! Which CPUs we may use, and pinning threads to them.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::OnceLock;
use std::thread::available_parallelism;

use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The CPUs that the process may run on, in ascending order; CPU 0 if the kernel does not report them.
pub fn allowed() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else { return vec![0] };
    (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect()
}

/// The online CPUs, in ascending order, whether the process may use them or not; the allowed ones if the kernel does
/// not report them.
pub fn online() -> Vec<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let cpus = ranges(text.trim());
    if cpus.is_empty() { allowed() } else { cpus }
}

/// One worker per CPU that the process may use: affinity and the CPU quota of its cgroup (v1 and v2) both count.
pub fn worker_count_default() -> usize {
    available_parallelism().map_or(1, Into::into)
}

/// The CPU of each worker, in CPU order. More workers than CPUs are not pinned: the scheduler knows better.
pub fn worker_cpus(workers: usize) -> Vec<Option<usize>> {
    let cpus = allowed();
    let pinned = workers <= cpus.len();
    (0..workers).map(|worker| cpus.get(worker).copied().filter(|_| pinned)).collect()
}

/// The CPUs that the process had before [`restrict`].
static STARTED_WITH: OnceLock<CpuSet> = OnceLock::new();

/// Lets all threads of the process run on these CPUs only.
///
/// # Errors
/// `InvalidInput` for a CPU that the process cannot use, and for none.
pub fn restrict(cpus: &[usize]) -> io::Result<()> {
    let before = sched_getaffinity(None)?;
    STARTED_WITH.get_or_init(|| before);
    let mut set = CpuSet::new();
    cpus.iter().filter(|&&cpu| cpu < CpuSet::MAX_CPU).for_each(|&cpu| set.set(cpu));
    let apply = |set: &CpuSet| -> io::Result<()> {
        for task in std::fs::read_dir("/proc/self/task")? {
            let id = task?.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw);
            match sched_setaffinity(id, set) {
                // The thread has ended.
                Err(Errno::SRCH) => {}
                result => result?,
            }
        }
        Ok(())
    };
    let applied = apply(&set);
    // The kernel leaves out CPUs that the process cannot use.
    let now = allowed();
    if applied.is_ok() && cpus.iter().all(|cpu| now.contains(cpu)) {
        return Ok(());
    }
    let _ = apply(&before);
    if let Some(error) = applied.err().filter(|error| error.kind() != io::ErrorKind::InvalidInput) {
        return Err(error);
    }
    let usable = allowed();
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("got {cpus:?}, this process may use {usable:?}")))
}

/// Starts a process with the CPUs that this one had before [`restrict`].
pub fn with_own_cpus(command: &mut Command) -> &mut Command {
    let Some(set) = STARTED_WITH.get().copied() else { return command };
    let widen = move || Ok(sched_setaffinity(None, &set)?);
    // SAFETY: between fork and exec one system call is made, and nothing is allocated.
    unsafe { command.pre_exec(widen) }
}

/// Pins this thread to one CPU.
pub fn pin(cpu: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

/// Lets this thread run wherever the process's first thread may: threads inherit the pinning of the thread that
/// starts them.
pub fn unpin() {
    if let Ok(cpus) = sched_getaffinity(Some(rustix::process::getpid())) {
        // If this is refused, the thread stays where it is.
        let _ = sched_setaffinity(None, &cpus);
    }
}

/// `0-3,6`, as the kernel writes sets of CPUs; malformed parts are skipped.
fn ranges(text: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse::<usize>().ok()?.min(CpuSet::MAX_CPU))
    };
    text.split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_read_as_the_kernel_writes_them() {
        assert_eq!(ranges("0-2,5"), [0, 1, 2, 5]);
        assert_eq!(ranges("0"), [0]);
        for text in ["", "x", "3-1", "-", "1-"] {
            assert!(ranges(text).is_empty(), "{text}");
        }
        assert!(!online().is_empty());
    }

    #[test]
    fn workers_have_cpus_as_long_as_there_are_enough() {
        let cpus = allowed();
        assert_eq!(worker_cpus(1), [Some(cpus[0])]);
        assert!(worker_cpus(cpus.len()).iter().copied().eq(cpus.iter().copied().map(Some)));
        assert!(worker_cpus(cpus.len() + 1).iter().all(Option::is_none));
        assert!(worker_count_default() >= 1);
    }

    #[test]
    fn a_thread_stays_where_it_is_pinned() {
        let last = *allowed().last().unwrap();
        let seen = std::thread::spawn(move || {
            pin(last).unwrap();
            allowed()
        });
        assert_eq!(seen.join().unwrap(), [last]);
    }
}
