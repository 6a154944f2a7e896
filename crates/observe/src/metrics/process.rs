//! Kernel statistics of this process: CPU time of its threads, memory, descriptors.

use std::fs;

/// Statistics of the process.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Process {
    /// Its threads.
    pub threads: Vec<Thread>,
    /// Resident memory (`VmRSS`).
    pub resident_bytes: u64,
    /// Open descriptors.
    pub descriptors: u64,
    /// The limit of open descriptors.
    pub descriptors_max: u64,
}

/// Statistics of one thread.
#[derive(Debug, Clone, PartialEq)]
pub struct Thread {
    /// Its name.
    pub name: String,
    /// Its CPU time.
    pub cpu_ns: u64,
}

/// The most threads that are read; a server has one for each CPU and a few more.
const THREADS_MAX: usize = 4096;

impl Process {
    /// Reads them from `/proc`; unreadable values are 0.
    pub fn read() -> Process {
        let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten().take(THREADS_MAX);
        let threads = tasks.filter_map(|task| {
            let name = fs::read_to_string(task.path().join("comm")).ok()?;
            // If the kernel has no such statistics, use the coarser clock of `stat`.
            let cpu_ns = fs::read_to_string(task.path().join("schedstat"))
                .ok()
                .and_then(|text| text.split_ascii_whitespace().next()?.parse().ok())?;
            Some(Thread { name: name.trim_end().to_owned(), cpu_ns })
        });
        let mut threads: Vec<Thread> = threads.collect();
        threads.sort_by(|one, other| one.name.cmp(&other.name));
        Process {
            threads,
            resident_bytes: resident_bytes().unwrap_or(0),
            descriptors: descriptors(),
            descriptors_max: flatout_lane::process::descriptor_limit(),
        }
    }

    /// CPU time of all threads with this name plus a number.
    pub fn cpu_ns_of(&self, name: &str) -> u64 {
        self.workers(name).map(|(_, cpu_ns)| cpu_ns).sum()
    }

    /// The threads with this name plus a number: the number and the CPU time.
    pub fn workers<'a>(&'a self, name: &'a str) -> impl Iterator<Item = (usize, u64)> + 'a {
        self.threads.iter().filter_map(move |thread| {
            let number = thread.name.strip_prefix(name)?.strip_prefix('-')?.parse().ok()?;
            Some((number, thread.cpu_ns))
        })
    }
}

fn resident_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.split_ascii_whitespace().next()?.parse().ok()?;
    Some(kib << 10)
}

/// Since Linux 6.2 the size of the folder is their number; on older kernels they are counted.
fn descriptors() -> u64 {
    match fs::metadata("/proc/self/fd").map(|found| found.len()) {
        Ok(count @ 1..) => count,
        _ => fs::read_dir("/proc/self/fd").map_or(0, |all| all.count() as u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_read() {
        let before = Process::read().descriptors;
        let _file = fs::File::open("/proc/self/status").unwrap();
        let thread = std::thread::Builder::new().name("some-worker-3".to_owned());
        let thread = thread.spawn(|| {
            while flatout_lane::clock::thread_cpu().as_millis() < 20 {}
            Process::read()
        });
        let process = thread.unwrap().join().unwrap();
        assert!(process.descriptors > before.saturating_sub(20) && process.descriptors_max > 3);
        assert!(process.resident_bytes > 100_000, "{process:?}");
        let workers: Vec<_> = process.workers("some-worker").collect();
        assert!(matches!(workers.as_slice(), [(3, 1_000_000..)]), "{process:?}");
    }
}
