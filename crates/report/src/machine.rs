//! The machine of a measurement, as the kernel reports it.

use std::fs;

/// The machine, by the three properties that explain most differences.
#[derive(Debug, Clone, Default)]
pub struct Machine {
    /// The processor's name.
    pub processor: String,
    /// Number of CPUs.
    pub cpus: usize,
    /// The kernel's version.
    pub kernel: String,
}

impl Machine {
    /// This machine. Values that cannot be read are the architecture or empty.
    pub fn here() -> Machine {
        let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let value = |line: &str| line.split_once(':').map(|(_, value)| value.trim().to_owned());
        let processor = info.lines().find(|line| line.starts_with("model name")).and_then(value);
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Machine {
            processor: processor.unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            cpus: std::thread::available_parallelism().map_or(1, Into::into),
            kernel: kernel.split('-').next().unwrap_or_default().trim().to_owned(),
        }
    }
}
