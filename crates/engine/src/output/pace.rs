//! The pace of a response that is limited: how much of it may be sent now.

use std::time::Duration;

use flatout_lane::clock::{TICK, Ticks};

use crate::service::SendRate;

/// Room is counted in parts of a byte: so many make one, so that each tick adds a whole number of them.
const PARTS: u64 = Duration::from_secs(1).as_nanos().div_ceil(TICK.as_nanos()) as u64;

/// How much of a response may be sent: what a bucket holds, to which each tick adds its share of a second. It holds the bytes of one second at
/// most, so that a response that has paused does not make up for the time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    bytes_per_s: u64,
    /// Parts of a byte; [`PARTS`] of them are one.
    room: u64,
    filled_at: Ticks,
}

impl Pace {
    /// The pace of a response that begins now: with what is not limited, and the share of one tick.
    pub(crate) fn new(limit: SendRate, now: Ticks) -> Pace {
        let bytes_per_s = limit.bytes_per_s.get();
        let room = limit.after_bytes.saturating_mul(PARTS).saturating_add(bytes_per_s);
        Pace { bytes_per_s, room, filled_at: now }
    }

    /// The bytes that may be sent now. Not fewer than the last time, apart from those that were [sent](Pace::spend).
    pub(crate) fn bytes(&mut self, now: Ticks) -> u64 {
        let ticks = now.saturating_sub(self.filled_at);
        if ticks > 0 {
            self.filled_at = now;
            let filled = self.room.saturating_add(self.bytes_per_s.saturating_mul(u64::from(ticks)));
            self.room = filled.min(self.bytes_per_s.saturating_mul(PARTS).max(self.room));
        }
        self.room / PARTS
    }

    /// The rate.
    pub(crate) fn bytes_per_s(&self) -> u64 {
        self.bytes_per_s
    }

    /// Bytes were sent.
    pub(crate) fn spend(&mut self, bytes: u64) {
        self.room = self.room.saturating_sub(bytes.saturating_mul(PARTS));
    }

    /// The rate below which a client is slow, if that is not what `rate_min` says: half of what it can get.
    pub(crate) fn rate_min(&self, rate_min: f64) -> f64 {
        rate_min.min(self.bytes_per_s as f64 / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(bytes_per_s: u64, after_bytes: u64) -> Pace {
        Pace::new(SendRate::new(bytes_per_s, after_bytes).unwrap(), 100)
    }

    #[test]
    fn each_tick_adds_its_share() {
        let mut pace = pace(8000, 500);
        assert_eq!(pace.bytes(100), 1500);
        pace.spend(1500);
        assert_eq!((pace.bytes(100), pace.bytes(101), pace.bytes(103)), (0, 1000, 3000));
    }

    #[test]
    fn a_pause_is_not_made_up_for() {
        let mut limited = pace(8000, 0);
        limited.spend(1000);
        assert_eq!((limited.bytes(104), limited.bytes(100_000)), (4000, 8000));
        // What was not limited is left.
        let mut large = pace(8, 1 << 20);
        assert_eq!(large.bytes(100_000), (1 << 20) + 1);
        large.spend(1 << 20);
        assert_eq!(large.bytes(200_000), 8);
    }

    #[test]
    fn a_byte_per_second_comes_each_second() {
        let mut pace = pace(1, 0);
        let mut sent = 0;
        for tick in 100..=100 + 80 {
            let bytes = pace.bytes(tick);
            pace.spend(bytes);
            sent += bytes;
        }
        assert_eq!(sent, 10);
    }

    #[test]
    fn extremes_do_not_overflow() {
        let mut pace = pace(u64::MAX, u64::MAX);
        assert_eq!(pace.bytes(u32::MAX), u64::MAX / PARTS);
        pace.spend(u64::MAX);
        assert_eq!(pace.bytes(u32::MAX), 0);
        assert_eq!(pace.bytes(0), 0);
    }
}
