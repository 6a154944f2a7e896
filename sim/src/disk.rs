//! The threads that read and write files: their jobs are done one at a time, in any order, sometimes late, and sometimes on a full disk.

use flatout_lane::jobs;

use crate::scene::DiskFaults;
use crate::world::Shared;

/// The longest pause of a disk.
const PAUSE_NS_MAX: u64 = 2_000_000_000;

pub(crate) struct Disk {
    random: fastrand::Rng,
    faults: DiskFaults,
    is_full: bool,
    wakes_at_ns: u64,
}

impl Disk {
    pub(crate) fn new(faults: DiskFaults, random: fastrand::Rng) -> Disk {
        jobs::limit(faults.waiting_max);
        Disk { random, faults, is_full: false, wakes_at_ns: 0 }
    }

    pub(crate) fn wakes_at_ns(&self) -> Option<u64> {
        (jobs::count() > 0).then_some(self.wakes_at_ns)
    }

    /// Does one job. Returns whether there was one.
    pub(crate) fn step(&mut self, shared: &Shared<'_>) -> bool {
        let count = jobs::count();
        if count == 0 || shared.now_ns < self.wakes_at_ns {
            return false;
        }
        if self.random.u8(..) < self.faults.slow_of_256 {
            self.wakes_at_ns = shared.now_ns + self.random.u64(1..=PAUSE_NS_MAX);
            return true;
        }
        if self.faults.fills_up && self.random.u8(..8) == 0 {
            self.is_full = !self.is_full;
            jobs::fill_disk(self.is_full);
        }
        jobs::run(self.random.usize(..count))
    }
}
