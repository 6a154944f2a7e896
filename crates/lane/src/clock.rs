//! The worker's clock: read once a turn, from the kernel's coarse clocks (a few nanoseconds, 1 to 4 ms exact).

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// A point in time or a length of time, in steps of [`TICK`].
pub type Ticks = u32;

/// What a deadline is exact to.
pub const TICK: Duration = Duration::from_millis(125);

/// A moment, by both clocks that a server needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// Monotonic time since boot.
    pub ticks: Ticks,
    /// Seconds since 1970, for the `Date` field.
    pub unix_seconds: u64,
}

/// Reads both clocks. Two calls into the vDSO, no system call.
#[inline]
pub fn now() -> Moment {
    let monotonic = clock_gettime(ClockId::MonotonicCoarse);
    let milliseconds = monotonic.tv_sec as u64 * 1000 + monotonic.tv_nsec as u64 / 1_000_000;
    Moment {
        ticks: (milliseconds / TICK.as_millis() as u64) as Ticks,
        unix_seconds: clock_gettime(ClockId::RealtimeCoarse).tv_sec as u64,
    }
}

/// The length of `time`, rounded up, at least one tick.
pub fn ticks(time: Duration) -> Ticks {
    let ticks = time.as_nanos().div_ceil(TICK.as_nanos());
    // A quarter of the range is 4 years: far enough for a deadline, and sums cannot wrap.
    ticks.clamp(1, (Ticks::MAX / 4) as u128) as Ticks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_round_up() {
        assert_eq!(ticks(Duration::ZERO), 1);
        assert_eq!(ticks(Duration::from_millis(125)), 1);
        assert_eq!(ticks(Duration::from_millis(126)), 2);
        assert_eq!(ticks(Duration::MAX), Ticks::MAX / 4);
    }

    #[test]
    fn it_is_now() {
        let by_std = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        assert!(now().unix_seconds.abs_diff(by_std) <= 1);
    }
}
