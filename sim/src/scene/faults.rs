//! What the threads for files may do wrong.

/// More jobs than wait at once.
pub(crate) const WAITING_MAX: usize = 1024;

/// What the threads for files may do wrong.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DiskFaults {
    /// How many of 256 jobs are late.
    pub(crate) slow_of_256: u8,
    /// How many jobs may wait.
    pub(crate) waiting_max: usize,
    /// The disk is full now and then.
    pub(crate) fills_up: bool,
    /// Writes end in the middle now and then.
    pub(crate) tears: bool,
    /// How many of 256 steps change whether what is read is in the page cache.
    pub(crate) cold_of_256: u8,
}

impl DiskFaults {
    /// Whether a file may not be written, or not be read in time.
    pub(crate) fn may_refuse(self) -> bool {
        self.fills_up || self.tears || self.waiting_max < WAITING_MAX || self.slow_of_256 > 0
    }

    pub(super) fn draw(random: &mut fastrand::Rng) -> DiskFaults {
        DiskFaults {
            slow_of_256: *random.choice(&[0, 16, 128]).expect("some"),
            waiting_max: *random.choice(&[1, 3, WAITING_MAX, WAITING_MAX]).expect("some"),
            fills_up: random.u8(..4) == 0,
            tears: false,
            cold_of_256: 0,
        }
    }
}
