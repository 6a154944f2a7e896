//! The threads that read and write files: their jobs are done one at a time, in any order, sometimes late, and sometimes on a full disk.

use flatout_lane::jobs::{self, DiskFault};

use crate::scene::DiskFaults;
use crate::world::Shared;

/// The longest pause of a disk.
const PAUSE_NS_MAX: u64 = 2_000_000_000;

pub(crate) struct Disk {
    random: fastrand::Rng,
    faults: DiskFaults,
    wakes_at_ns: u64,
}

impl Disk {
    pub(crate) fn new(faults: DiskFaults, random: fastrand::Rng) -> Disk {
        jobs::limit(faults.waiting_max);
        Disk { random, faults, wakes_at_ns: 0 }
    }

    /// A server has been killed, and another one is about to start.
    pub(crate) fn start_again(&self) {
        jobs::limit(self.faults.waiting_max);
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
        if (self.faults.fills_up || self.faults.tears) && self.random.u8(..8) == 0 {
            let fault = if self.faults.tears { DiskFault::Torn } else { DiskFault::Full };
            jobs::set_disk_fault(jobs::disk_fault().is_none().then_some(fault));
        }
        if self.faults.cold_of_256 > 0 && self.random.u8(..) < self.faults.cold_of_256 {
            jobs::set_cold(!jobs::is_cold());
        }
        // Workers get the results of several jobs at once.
        let at_once = if count > 1 && self.random.u8(..4) == 0 { count } else { 1 };
        (0..at_once).all(|done| jobs::run(self.random.usize(..count - done)))
    }
}
