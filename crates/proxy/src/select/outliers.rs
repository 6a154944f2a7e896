//! Servers that stand out from their siblings, by their errors or by their times. Plain functions: samples in, a decision out.
//!
//! A difference counts if it is certain: intervals with a confidence of 99.9 % do not meet, so that one in some thousand comparisons of equal
//! servers ends wrongly. A difference also has to matter: five points of errors, or a multiple of the time.

use std::fmt;
use std::time::Duration;

use crate::plan::Outliers;
use crate::select::tally::Sample;

/// The quantile of the normal distribution for a confidence of 99.9 %, both sides.
const Z: f64 = 3.29;

/// How much larger the share of errors has to be, at least.
const ERRORS_APART: f64 = 0.05;

/// How a server stands out.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum OutlierReason {
    /// By its share of errors, and that of its siblings.
    Errors {
        /// Of its own requests.
        share: f64,
        /// Of those of its siblings.
        others: f64,
    },
    /// By its time to a response, as a multiple of that of its siblings.
    Time {
        /// The multiple, by geometric means.
        times: f64,
    },
}

impl OutlierReason {
    /// Its name as a label.
    pub fn label(&self) -> &'static str {
        match self {
            OutlierReason::Errors { .. } => "errors",
            OutlierReason::Time { .. } => "time",
        }
    }
}

impl fmt::Display for OutlierReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OutlierReason::Errors { share, others } => {
                write!(f, "{:.0} % errors, others {:.1} %", share * 100.0, others * 100.0)
            }
            OutlierReason::Time { times } => write!(f, "{times:.1} times as slow as others"),
        }
    }
}

/// The server that stands out most, if any does. One at a time: without it, the others are compared anew.
pub(crate) fn outlier(samples: &[Sample], plan: &Outliers) -> Option<(usize, OutlierReason)> {
    let whole = samples.iter().copied().fold(Sample::default(), Sample::plus);
    let found = samples.iter().enumerate().filter_map(|(at, sample)| {
        let others = whole.since(*sample);
        if sample.requests < plan.requests_min || others.requests < plan.requests_min {
            return None;
        }
        by_errors(sample, &others)
            .map(|(margin, reason)| (1.0 + margin, at, reason))
            .or_else(|| by_time(sample, &others, plan).map(|(margin, reason)| (margin, at, reason)))
    });
    // Errors come before times: their margins are above one.
    let worst = found.max_by(|one, other| one.0.total_cmp(&other.0));
    worst.map(|(_, at, reason)| (at, reason))
}

/// Whether its share of errors stands out, and by how much.
fn by_errors(sample: &Sample, others: &Sample) -> Option<(f64, OutlierReason)> {
    let (low, _) = wilson(sample.errors, sample.requests);
    let (_, high) = wilson(others.errors, others.requests);
    let share = sample.errors as f64 / sample.requests as f64;
    let siblings = others.errors as f64 / others.requests as f64;
    let is_apart = low > high && share - siblings >= ERRORS_APART;
    is_apart.then_some((low - high, OutlierReason::Errors { share, others: siblings }))
}

/// Whether its times stand out. The margin is below one.
fn by_time(sample: &Sample, others: &Sample, plan: &Outliers) -> Option<(f64, OutlierReason)> {
    let slow = plan.slow_times?;
    if sample.timed < plan.requests_min || others.timed < plan.requests_min {
        return None;
    }
    let ((mean, variance), (siblings, siblings_variance)) = (sample.log_time()?, others.log_time()?);
    let certain = mean - siblings - Z * (variance + siblings_variance).sqrt();
    let beyond = certain - slow.log2();
    (beyond > 0.0)
        .then_some((1.0 - 1.0 / (1.0 + beyond), OutlierReason::Time { times: (mean - siblings).exp2() }))
}

/// The interval of a share (Wilson 1927).
fn wilson(hits: u64, of: u64) -> (f64, f64) {
    let (count, share) = (of as f64, hits as f64 / of as f64);
    let spread = Z * (share * (1.0 - share) / count + Z * Z / (4.0 * count * count)).sqrt();
    let (middle, whole) = (share + Z * Z / (2.0 * count), 1.0 + Z * Z / count);
    ((middle - spread) / whole, (middle + spread) / whole)
}

/// How many servers of a group may be ejected in addition, if so many of its `servers` get no requests already: never more than half of
/// them are out.
pub(crate) fn may_eject(servers: usize, out: usize) -> bool {
    out < servers / 2
}

/// The pause of a server that is ejected for the `count`-th time in a row.
pub(crate) fn pause(plan: &Outliers, count: u32) -> Duration {
    let growth = 1u32.checked_shl(count.saturating_sub(1)).unwrap_or(u32::MAX);
    plan.pause.checked_mul(growth).unwrap_or(plan.pause_max).min(plan.pause_max.max(plan.pause))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::select::tally::Tally;

    fn plan() -> Outliers {
        Outliers::default()
    }

    fn errors(requests: u64, errors: u64) -> Sample {
        Sample { requests, errors, ..Sample::default() }
    }

    /// Responses with times around this one, which spread by a factor of two.
    fn times(count: u64, time_us: u64) -> Sample {
        let tally = Tally::default();
        for at in 0..count {
            tally.responded(false, time_us * 1000 * (4 + at % 5) / 6);
        }
        tally.sample()
    }

    fn found(samples: &[Sample]) -> Option<(usize, &'static str)> {
        outlier(samples, &plan()).map(|(at, reason)| (at, reason.label()))
    }

    #[test]
    fn errors_stand_out_from_those_of_siblings() {
        for (samples, expected) in [
            // A clear case, and one that is too small to tell.
            (vec![errors(1000, 2), errors(1000, 300), errors(1000, 0)], Some((1, "errors"))),
            (vec![errors(60, 0), errors(60, 4), errors(60, 0)], None),
            // All fail: it is not the server.
            (vec![errors(1000, 900), errors(1000, 950), errors(1000, 910)], None),
            // Certain, but nothing that matters.
            (vec![errors(1_000_000, 0), errors(1_000_000, 10_000)], None),
            // The worst of two.
            (
                vec![errors(1000, 400), errors(1000, 900), errors(1000, 0), errors(1000, 0)],
                Some((1, "errors")),
            ),
            // Without siblings, or with siblings without requests, there is nothing to compare.
            (vec![errors(1000, 1000)], None),
            (vec![errors(1000, 1000), errors(3, 0)], None),
            (vec![errors(0, 0), errors(0, 0)], None),
            (vec![], None),
        ] {
            assert_eq!(found(&samples), expected, "{samples:?}");
        }
    }

    #[test]
    fn times_stand_out_from_those_of_siblings() {
        for (samples, expected) in [
            (vec![times(500, 10_000), times(500, 50_000), times(500, 10_000)], Some((1, "time"))),
            (vec![times(500, 10_000), times(500, 15_000)], None),
            // Three times as slow, and not enough requests to tell.
            (vec![times(500, 10_000), times(20, 60_000)], None),
            (vec![times(500, 10_000), times(500, 10_000)], None),
        ] {
            assert_eq!(found(&samples), expected, "{samples:?}");
        }
        let never = Outliers { slow_times: None, ..plan() };
        assert_eq!(outlier(&[times(500, 10_000), times(500, 900_000)], &never), None);
        let (_, reason) = outlier(&[times(500, 10_000), times(500, 40_000)], &plan()).unwrap();
        assert_eq!(reason.to_string(), "4.0 times as slow as others");
    }

    #[test]
    fn errors_come_before_times() {
        let slow = times(500, 90_000);
        let failing = times(500, 10_000).plus(errors(200, 200));
        let usual = times(2000, 10_000);
        assert_eq!(found(&[usual, slow, failing]), Some((2, "errors")));
    }

    #[test]
    fn equal_servers_are_hardly_ever_ejected() {
        // A generator with a fixed seed: 3000 comparisons of servers with the same 5 % of errors.
        let mut random = 7u64;
        let mut draw = |of: u64| {
            let hits = (0..of).filter(|_| {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                random.is_multiple_of(20)
            });
            hits.count() as u64
        };
        let wrong = (0..1000).filter(|_| {
            let samples = [errors(200, draw(200)), errors(200, draw(200)), errors(200, draw(200))];
            found(&samples).is_some()
        });
        let wrong = wrong.count();
        assert!(wrong <= 3, "{wrong} of 1000");
    }

    #[test]
    fn never_more_than_half_is_out() {
        for (servers, out, expected) in [
            (0, 0, false),
            (1, 0, false),
            (2, 0, true),
            (2, 1, false),
            (3, 1, false),
            (4, 1, true),
            (4, 2, false),
            (5, 9, false),
        ] {
            assert_eq!(may_eject(servers, out), expected, "{servers} {out}");
        }
    }

    #[test]
    fn pauses_grow_to_a_limit() {
        let plan = Outliers { pause: Duration::from_secs(30), pause_max: Duration::from_secs(300), ..plan() };
        let seconds: Vec<u64> = (1..=6).map(|count| pause(&plan, count).as_secs()).collect();
        assert_eq!(seconds, [30, 60, 120, 240, 300, 300]);
        assert_eq!(pause(&plan, u32::MAX).as_secs(), 300);
        let short = Outliers { pause_max: Duration::from_secs(1), ..plan };
        assert_eq!(pause(&short, 3).as_secs(), 30, "never shorter than the first one");
    }
}
