//! A moving average of times to a response.

use std::time::Duration;

/// The time in which what was measured loses two thirds of its weight.
const MEMORY: Duration = Duration::from_secs(10);

/// A moving average, weighted by the time since each measurement.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct MovingTime {
    average_ns: f64,
    measured_ns: u64,
}

impl MovingTime {
    /// With another measurement, now. A slower one counts at once, so that a server that stalls gets fewer requests before it has
    /// responded to many.
    pub(crate) fn with(self, time_ns: u64, now_ns: u64) -> MovingTime {
        let time_ns = time_ns as f64;
        let kept = self.kept(now_ns);
        let average_ns = match time_ns > self.average_ns {
            true => time_ns,
            false => self.average_ns * kept + time_ns * (1.0 - kept),
        };
        MovingTime { average_ns, measured_ns: now_ns }
    }

    /// What is expected now: what was measured long ago counts little, so that a server that was slow is tried again.
    pub(crate) fn expected_ns(self, now_ns: u64) -> f64 {
        self.average_ns * self.kept(now_ns)
    }

    fn kept(self, now_ns: u64) -> f64 {
        let since_ns = now_ns.saturating_sub(self.measured_ns) as f64;
        (-since_ns / MEMORY.as_nanos() as f64).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn slow_responses_count_at_once_and_are_forgotten_slowly() {
        let fast = MovingTime::default().with(1_000_000, SECOND);
        assert_eq!(fast.expected_ns(SECOND), 1_000_000.0);
        let slow = fast.with(50_000_000, 2 * SECOND);
        assert_eq!(slow.expected_ns(2 * SECOND), 50_000_000.0);
        let better = slow.with(1_000_000, 3 * SECOND);
        assert!((40_000_000.0..49_000_000.0).contains(&better.expected_ns(3 * SECOND)), "{better:?}");
        assert!(slow.expected_ns(60 * SECOND) < 1_000_000.0, "it is tried again");
        assert_eq!(MovingTime::default().expected_ns(SECOND), 0.0);
    }
}
