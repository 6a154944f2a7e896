//! Latencies in buckets of growing width: eight for each power of two, which gives a precision of 12.5 %, from a
//! microsecond to more than a minute.
//!
//! ```text
//! µs (of 1024 ns):  0 1 2 … 15 | 16 18 20 … 30 | 32 36 … 60 | 64 72 …
//! bucket:           0 1 2 … 15 | 16 17 18 … 23 | 24 25 … 31 | 32 …
//! ```

use std::sync::atomic::{AtomicU64, Ordering};

/// Buckets of one power of two.
const PER_POWER: usize = 8;
const PER_POWER_BITS: u32 = PER_POWER.trailing_zeros();

/// The unit of latencies: 2^10 ns.
const UNIT_BITS: u32 = 10;

/// Powers of two of the unit that have buckets: up to 2^27 units, 137 s.
const POWERS: usize = 27;

/// The number of buckets. The last one also has all longer latencies.
pub(super) const BUCKETS: usize = (POWERS - PER_POWER_BITS as usize + 1) * PER_POWER;

/// The bucket of a latency. Some ten instructions.
#[inline]
pub(super) fn bucket(ns: u64) -> usize {
    let units = ns >> UNIT_BITS;
    // Below eight units each unit has its own bucket: treat them like the power of eight.
    let power = (units | PER_POWER as u64).ilog2();
    let shift = power - PER_POWER_BITS;
    let at = (shift as usize) * PER_POWER + (units >> shift) as usize;
    at.min(BUCKETS - 1)
}

/// The exclusive upper bound of a bucket, in nanoseconds.
fn ends_ns(bucket: usize) -> u64 {
    let next = bucket + 1;
    if next < 2 * PER_POWER {
        return (next as u64) << UNIT_BITS;
    }
    let shift = next / PER_POWER - 1;
    ((PER_POWER + next % PER_POWER) as u64) << (shift as u32 + UNIT_BITS)
}

/// Counts latencies: from one worker, with plain loads and stores, or from many threads.
pub struct Counted {
    counts: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
}

impl Default for Counted {
    fn default() -> Counted {
        Counted { counts: std::array::from_fn(|_| AtomicU64::new(0)), sum_ns: AtomicU64::new(0) }
    }
}

impl Counted {
    /// Counts a latency, from the one worker that writes.
    #[inline]
    pub fn record(&self, ns: u64) {
        count(&self.sum_ns, ns);
        if let Some(counter) = self.counts.get(bucket(ns)) {
            count(counter, 1);
        }
    }

    /// The same when other threads count too.
    pub(crate) fn record_shared(&self, ns: u64) {
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
        if let Some(counter) = self.counts.get(bucket(ns)) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The counts so far.
    pub fn read(&self) -> Latency {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Latency { counts: self.counts.each_ref().map(read), sum_ns: read(&self.sum_ns) }
    }
}

/// Adds to a counter that only this worker writes.
#[inline]
pub fn count(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

/// Counted latencies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Latency {
    counts: [u64; BUCKETS],
    sum_ns: u64,
}

impl Default for Latency {
    fn default() -> Latency {
        Latency { counts: [0; BUCKETS], sum_ns: 0 }
    }
}

impl Latency {
    /// Counts a latency.
    pub fn record(&mut self, ns: u64) {
        self.add(bucket(ns), 1, ns);
    }

    pub(super) fn add(&mut self, bucket: usize, count: u64, sum_ns: u64) {
        if let Some(place) = self.counts.get_mut(bucket) {
            *place += count;
            self.sum_ns += sum_ns;
        }
    }

    /// Adds the latencies of another.
    pub fn merge(&mut self, other: &Latency) {
        self.counts.iter_mut().zip(other.counts).for_each(|(count, more)| *count += more);
        self.sum_ns += other.sum_ns;
    }

    /// The latencies since an earlier snapshot.
    #[must_use]
    pub fn since(&self, before: &Latency) -> Latency {
        let counts = std::array::from_fn(|at| {
            let of = |latency: &Latency| latency.counts.get(at).copied().unwrap_or(0);
            of(self).saturating_sub(of(before))
        });
        Latency { counts, sum_ns: self.sum_ns.saturating_sub(before.sum_ns) }
    }

    /// Their number.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Their sum.
    pub fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// The latency that this percentage of requests does not exceed, within 12.5 %; 0 if there are none.
    pub fn percentile_ns(&self, percent: f64) -> u64 {
        let wanted = (self.count() as f64 * percent / 100.0).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                // The middle of the bucket is wrong by at most half its width.
                let starts_ns = if bucket == 0 { 0 } else { ends_ns(bucket - 1) };
                return starts_ns.midpoint(ends_ns(bucket));
            }
        }
        0
    }

    /// For OpenMetrics: buckets by powers of two, each with its upper bound in seconds and its own count.
    pub(super) fn by_power(&self) -> Vec<(f64, u64)> {
        let mut buckets = Vec::new();
        let mut count = 0;
        for (at, more) in self.counts.iter().enumerate() {
            count += more;
            if at == BUCKETS - 1 {
                buckets.push((f64::INFINITY, count));
            } else if (at + 1) % PER_POWER == 0 {
                buckets.push((ends_ns(at) as f64 / 1e9, count));
                count = 0;
            }
        }
        buckets
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_is_in_its_bucket() {
        let mut before = 0;
        for ns in (0..1u64 << 22).step_by(509).chain((22..37).map(|power| 1 << power)) {
            let at = bucket(ns);
            assert!(at >= before && at < BUCKETS, "{ns}");
            assert!(ns < ends_ns(at), "{ns} ends before {}", ends_ns(at));
            assert!(at == 0 || ns >= ends_ns(at - 1), "{ns}");
            before = at;
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
        assert!((100_000_000_000..u64::MAX).contains(&ends_ns(BUCKETS - 2)));
    }

    #[test]
    fn percentiles_are_near() {
        let mut latency = Latency::default();
        (1..=100_000u64).for_each(|us| latency.record(us * 1000));
        for (percent, expected) in [(50.0, 50e6), (99.0, 99e6), (99.9, 99.9e6)] {
            let found = latency.percentile_ns(percent) as f64;
            assert!((found / expected - 1.0).abs() < 0.07, "p{percent}: {found}");
        }
        assert_eq!(Latency::default().percentile_ns(99.0), 0);
        let mut more = latency.clone();
        more.record(5);
        assert_eq!((more.since(&latency).count(), more.since(&latency).sum_ns()), (1, 5));
    }

    #[test]
    fn powers_have_all() {
        let mut latency = Latency::default();
        [0, 5_000, 1_000_000, u64::MAX / 2].iter().for_each(|ns| latency.record(*ns));
        let powers = latency.by_power();
        assert_eq!(powers.iter().map(|(_, count)| count).sum::<u64>(), 4);
        assert_eq!(powers.last(), Some(&(f64::INFINITY, 1)));
        assert!(powers.is_sorted_by(|one, other| one.0 < other.0));
    }
}
