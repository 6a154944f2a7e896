//! When to send requests: as soon as a connection is free, or according to a schedule.
//!
//! In the closed loop a slow response delays the next request, so a stall of the server shows up once per connection.
//! In the open loop requests become due whatever the server does. One that finds no free connection waits, and its
//! latency counts from when it was due. Ignoring this wait is called "coordinated omission".

use flatout_trial::Random;

use crate::stages::{RateCurve, Stage};

/// How requests follow each other.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pacing {
    /// The next request of a connection follows its response.
    Closed,
    /// This many requests per second over all connections.
    Open {
        /// Requests per second, above 0.
        per_s: f64,
        /// How they are spread.
        arrival: Arrival,
    },
    /// The rates of the plan's stages.
    Staged {
        /// How the requests are spread.
        arrival: Arrival,
    },
}

impl Pacing {
    /// How the requests of an open loop are spread.
    pub fn arrival(self) -> Option<Arrival> {
        match self {
            Pacing::Closed => None,
            Pacing::Open { arrival, .. } | Pacing::Staged { arrival } => Some(arrival),
        }
    }
}

/// How the requests of an open loop are spread over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// At equal intervals.
    Constant,
    /// Independently, with exponentially distributed intervals, like many users.
    Poisson,
}

/// The pacing of one thread's requests.
#[derive(Debug)]
pub(crate) enum Pace {
    Closed {
        /// Requests that may still be sent.
        left: u64,
    },
    Open(Schedule),
}

/// The due times of one thread, in order.
#[derive(Debug)]
pub(crate) struct Schedule {
    start_ns: u64,
    end_ns: u64,
    rate: ScheduledRate,
    /// From the start to the next request.
    next_ns: f64,
    /// Requests of all threads before the next one: a whole number, or with random arrivals a sum of random intervals.
    passed: f64,
    count: u64,
    left: u64,
    poisson: Option<Random>,
    index: usize,
    threads: usize,
}

/// How requests of all threads are spread over time.
#[derive(Debug)]
enum ScheduledRate {
    /// At this mean interval.
    Even { interval_ns: f64 },
    /// By stages.
    Staged(RateCurve),
}

impl ScheduledRate {
    /// From the start until this many requests became due.
    fn due_ns(&mut self, requests: f64) -> f64 {
        match self {
            ScheduledRate::Even { interval_ns } => requests * *interval_ns,
            ScheduledRate::Staged(curve) => curve.due_ns(requests),
        }
    }
}

impl Pace {
    /// The pace of thread `index` of `threads`, from `start_ns` until `end_ns`, for at most `requests_max`.
    pub(crate) fn new(
        pacing: Pacing,
        stages: &[Stage],
        (index, threads): (usize, usize),
        (start_ns, end_ns): (u64, u64),
        requests_max: u64,
        seed: u64,
    ) -> Pace {
        let (rate, arrival) = match pacing {
            Pacing::Closed => return Pace::Closed { left: requests_max },
            Pacing::Open { per_s, arrival } => (ScheduledRate::Even { interval_ns: 1e9 / per_s }, arrival),
            Pacing::Staged { arrival } => (ScheduledRate::Staged(RateCurve::new(stages)), arrival),
        };
        let mut schedule = Schedule {
            start_ns,
            end_ns,
            rate,
            next_ns: 0.0,
            passed: 0.0,
            count: 0,
            left: requests_max,
            poisson: (arrival == Arrival::Poisson).then(|| Random::new(seed + index as u64)),
            index,
            threads,
        };
        schedule.advance();
        Pace::Open(schedule)
    }

    /// Takes the next request if it is due at `now_ns`. Returns the start of its latency.
    #[inline]
    pub(crate) fn next(&mut self, now_ns: u64, is_counted: bool) -> Option<u64> {
        match self {
            Pace::Closed { left: 0 } => None,
            Pace::Closed { left } => {
                *left -= u64::from(is_counted);
                Some(now_ns)
            }
            Pace::Open(schedule) => schedule.next(now_ns),
        }
    }

    /// When the next request is due, if that is known.
    pub(crate) fn next_due_ns(&self) -> Option<u64> {
        match self {
            Pace::Closed { .. } => None,
            Pace::Open(schedule) => schedule.due_ns(),
        }
    }

    /// Whether there is nothing left to send.
    pub(crate) fn is_exhausted(&self) -> bool {
        match self {
            Pace::Closed { left } => *left == 0,
            Pace::Open(schedule) => schedule.due_ns().is_none(),
        }
    }

    /// Whether requests follow a schedule.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self, Pace::Open(_))
    }
}

impl Schedule {
    /// Takes the next due time if it has come.
    pub(crate) fn next(&mut self, now_ns: u64) -> Option<u64> {
        let due_ns = self.due_ns().filter(|&due_ns| due_ns <= now_ns)?;
        self.count += 1;
        self.left -= 1;
        self.advance();
        Some(due_ns)
    }

    /// Computes when the request of this count is due.
    fn advance(&mut self) {
        self.passed = match &mut self.poisson {
            Some(random) => self.passed + exponential(random, self.threads as f64),
            // Threads take turns, so that together they are evenly spaced too. By multiplication, because adding up rounded
            // intervals would drift.
            None => (self.count * self.threads as u64 + self.index as u64) as f64,
        };
        self.next_ns = self.rate.due_ns(self.passed);
    }

    fn due_ns(&self) -> Option<u64> {
        let due_ns = self.start_ns.saturating_add(self.next_ns as u64);
        (self.left > 0 && due_ns < self.end_ns).then_some(due_ns)
    }
}

fn exponential(random: &mut Random, mean: f64) -> f64 {
    -random.fraction().ln() * mean
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn all(pacing: Pacing, threads: usize, seed: u64) -> Vec<u64> {
        let mut due = Vec::new();
        for index in 0..threads {
            let mut pace = Pace::new(pacing, &[], (index, threads), (0, SECOND), u64::MAX, seed);
            while let Some(at) = pace.next(u64::MAX, true) {
                due.push(at);
            }
            assert!(pace.is_exhausted() && pace.is_open());
        }
        due.sort_unstable();
        due
    }

    #[test]
    fn constant_is_even_over_all_threads() {
        let due = all(Pacing::Open { per_s: 1000.0, arrival: Arrival::Constant }, 4, 0);
        assert_eq!(due.len(), 1000);
        assert!(due.windows(2).all(|pair| (999_999..=1_000_001).contains(&(pair[1] - pair[0]))));
    }

    #[test]
    fn poisson_has_its_mean_and_its_spread() {
        let seed = 7;
        let due = all(Pacing::Open { per_s: 100_000.0, arrival: Arrival::Poisson }, 2, seed);
        assert!(due.len().abs_diff(100_000) < 1_500, "seed {seed}: {}", due.len());
        // An interval longer than the mean has probability 1/e.
        let long = due.windows(2).filter(|pair| pair[1] - pair[0] > 10_000).count() as f64 / due.len() as f64;
        assert!((0.36..0.376).contains(&long), "seed {seed}: {long}");
    }

    #[test]
    fn nothing_is_due_early_or_over_the_count() {
        let pacing = Pacing::Open { per_s: 10.0, arrival: Arrival::Constant };
        let mut pace = Pace::new(pacing, &[], (0, 1), (SECOND, 5 * SECOND), 3, 0);
        assert_eq!(pace.next(SECOND - 1, true), None);
        assert_eq!(pace.next(SECOND, true), Some(SECOND));
        assert_eq!(pace.next(SECOND + 99_999_999, true), None);
        assert_eq!(pace.next(9 * SECOND, true), Some(SECOND + 100_000_000));
        assert_eq!(pace.next(9 * SECOND, true), Some(SECOND + 200_000_000));
        assert_eq!(pace.next(9 * SECOND, true), None);
        let mut closed = Pace::new(Pacing::Closed, &[], (0, 1), (0, SECOND), 1, 0);
        assert_eq!(closed.next(5, false), Some(5), "what is not counted is not taken off");
        assert_eq!(closed.next(6, true), Some(6));
        assert_eq!(closed.next(7, true), None);
    }
}
