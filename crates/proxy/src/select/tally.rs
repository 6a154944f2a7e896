//! What each worker has seen of a server: for the comparison with its siblings (`outliers`), and for the choice by time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flatout_observe::metrics::count;

/// Parts of a power of two in which times are added up.
const PARTS: u64 = 256;

/// What one worker has seen of a server. Only that worker writes.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Tally {
    requests: AtomicU64,
    errors: AtomicU64,
    /// Responses whose time is in the sums.
    timed: AtomicU64,
    /// Logarithms of their times, and the squares of these.
    log_sum: AtomicU64,
    log_squares: AtomicU64,
}

/// What all workers have seen of a server in some time.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Sample {
    pub(crate) requests: u64,
    pub(crate) errors: u64,
    pub(crate) timed: u64,
    pub(crate) log_sum: u64,
    pub(crate) log_squares: u64,
}

impl Tally {
    /// Counts a response that came after this time.
    pub(crate) fn responded(&self, is_error: bool, time_ns: u64) {
        count(&self.requests, 1);
        if is_error {
            // Errors are often faster than what they replace: their time says nothing.
            return count(&self.errors, 1);
        }
        let log = log2_parts(time_ns);
        count(&self.timed, 1);
        count(&self.log_sum, log);
        count(&self.log_squares, log * log);
    }

    /// Counts a request without a response.
    pub(crate) fn failed(&self) {
        count(&self.requests, 1);
        count(&self.errors, 1);
    }

    /// What it has counted so far.
    pub(crate) fn sample(&self) -> Sample {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Sample {
            requests: read(&self.requests),
            errors: read(&self.errors),
            timed: read(&self.timed),
            log_sum: read(&self.log_sum),
            log_squares: read(&self.log_squares),
        }
    }
}

impl Sample {
    fn with(self, other: Sample, add: impl Fn(u64, u64) -> u64) -> Sample {
        Sample {
            requests: add(self.requests, other.requests),
            errors: add(self.errors, other.errors),
            timed: add(self.timed, other.timed),
            log_sum: add(self.log_sum, other.log_sum),
            log_squares: add(self.log_squares, other.log_squares),
        }
    }

    pub(crate) fn plus(self, other: Sample) -> Sample {
        self.with(other, u64::wrapping_add)
    }

    /// What was seen since an earlier sample; nothing, if a worker that was in that one has ended.
    pub(crate) fn since(self, earlier: Sample) -> Sample {
        match self.requests < earlier.requests || self.timed < earlier.timed || self.log_sum < earlier.log_sum
        {
            true => Sample::default(),
            false => self.with(earlier, u64::saturating_sub),
        }
    }

    /// The mean of the logarithms (base 2) of times, and the variance of that mean.
    pub(crate) fn log_time(&self) -> Option<(f64, f64)> {
        if self.timed < 2 {
            return None;
        }
        let count = self.timed as f64;
        let mean = self.log_sum as f64 / count;
        let variance = ((self.log_squares as f64 - count * mean * mean) / (count - 1.0)).max(0.0);
        let parts = PARTS as f64;
        Some((mean / parts, variance / count / (parts * parts)))
    }
}

/// The sum over all workers.
pub(crate) fn sum(tallies: &[Arc<Tally>]) -> Sample {
    tallies.iter().map(|tally| tally.sample()).fold(Sample::default(), Sample::plus)
}

/// The logarithm of a time to base 2, in [`PARTS`] of one; linear within a power of two, which is exact to 9 %.
fn log2_parts(time_ns: u64) -> u64 {
    let time_ns = time_ns.max(1);
    let whole = u64::from(time_ns.ilog2());
    let rest = ((u128::from(time_ns) * u128::from(PARTS)) >> whole) as u64 - PARTS;
    whole * PARTS + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithms_are_close() {
        for time_ns in [1, 2, 3, 1000, 1_000_000, 1_500_000, u64::MAX / 2, u64::MAX] {
            let exact = (time_ns as f64).log2();
            let got = log2_parts(time_ns) as f64 / PARTS as f64;
            assert!((exact - got).abs() < 0.1, "{time_ns}: {got}, not {exact}");
        }
        assert_eq!(log2_parts(0), 0);
    }

    #[test]
    fn times_are_added_up_by_their_logarithms() {
        let tally = Tally::default();
        for time_ns in [1 << 20, 1 << 22] {
            tally.responded(false, time_ns);
        }
        tally.responded(true, 1 << 40);
        tally.failed();
        let sample = tally.sample();
        assert_eq!((sample.requests, sample.errors, sample.timed), (4, 2, 2));
        let (mean, variance) = sample.log_time().unwrap();
        assert!((mean - 21.0).abs() < 0.01 && (variance - 1.0).abs() < 0.01, "{mean} {variance}");
        assert_eq!(sample.since(sample), Sample::default());
        assert_eq!(Sample::default().since(sample), Sample::default(), "a worker has ended");
        assert_eq!(Sample::default().log_time(), None);
    }
}
