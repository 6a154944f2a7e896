//! The search for the highest rate that still meets an objective, without running anything.
//!
//! Rates double until one misses; then the gap between the highest that met and the lowest that missed is halved,
//! geometrically, until it is small.

use std::time::Duration;

/// A service level objective: so many percent of the requests within this time, and no errors.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Objective {
    /// Percent of the requests, over 0 and at most 100.
    pub percent: f64,
    /// How long they may take.
    pub latency_max: Duration,
}

/// One rate that was tried.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// Requests a second that were asked for.
    pub rate_per_s: f64,
    /// The latency at the objective's percentile.
    pub latency_ns: u64,
    /// Whether the objective was met.
    pub is_met: bool,
}

/// How close the answer is: the rate that missed is at most so many times the one that met.
pub const PRECISION: f64 = 1.05;

/// Rates that are tried at most: enough for a start that is wrong by a factor of a million.
pub const STEPS_MAX: usize = 40;

impl Objective {
    /// Reads `p99=5ms`, given the reading of its time.
    ///
    /// # Errors
    /// What was got and what is needed.
    pub fn parse(text: &str, time: fn(&str) -> Result<Duration, String>) -> Result<Objective, String> {
        let wrong = || format!("got `{text}`, need an objective such as p99=5ms or p99.9=20ms");
        let (percent, latency) =
            text.strip_prefix('p').and_then(|rest| rest.split_once('=')).ok_or_else(wrong)?;
        let percent: f64 = percent.parse().map_err(|_| wrong())?;
        if !(percent > 0.0 && percent <= 100.0) {
            return Err(wrong());
        }
        Ok(Objective { percent, latency_max: time(latency)? })
    }
}

/// The rate to try next after these steps; none when the answer is close enough. `start_per_s` is tried first.
pub fn next_rate(steps: &[Step], start_per_s: f64) -> Option<f64> {
    if steps.len() >= STEPS_MAX {
        return None;
    }
    let best = best(steps).map(|step| step.rate_per_s);
    let missed = steps.iter().filter(|step| !step.is_met).map(|step| step.rate_per_s);
    let missed = missed.filter(|rate| best.is_none_or(|best| *rate > best)).min_by(f64::total_cmp);
    match (best, missed) {
        (None, None) => Some(start_per_s),
        (Some(best), None) => Some(best * 2.0),
        // Under one request a second there is nothing to search.
        (None, Some(missed)) => (missed > 1.0).then_some((missed / 4.0).max(1.0)),
        (Some(best), Some(missed)) => (missed / best > PRECISION).then(|| (best * missed).sqrt()),
    }
}

/// The step with the highest rate that met the objective.
pub fn best(steps: &[Step]) -> Option<&Step> {
    steps.iter().filter(|step| step.is_met).max_by(|one, other| one.rate_per_s.total_cmp(&other.rate_per_s))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches against a server that meets the objective up to `limit`.
    fn search(limit: f64, start: f64) -> Vec<Step> {
        let mut steps = Vec::new();
        while let Some(rate_per_s) = next_rate(&steps, start) {
            steps.push(Step { rate_per_s, latency_ns: 1, is_met: rate_per_s <= limit });
        }
        steps
    }

    #[test]
    fn the_limit_is_found_from_anywhere() {
        for limit in [1.5, 100.0, 54_321.0, 2e6] {
            for start in [1.0, 1_000.0, 1e6] {
                let steps = search(limit, start);
                let found = best(&steps).unwrap().rate_per_s;
                assert!(found <= limit && found * PRECISION >= limit, "{limit} from {start}: {found}");
                assert!(steps.len() < STEPS_MAX, "{limit} from {start}: {} steps", steps.len());
            }
        }
        assert!(best(&search(0.1, 1000.0)).is_none(), "and where there is none, the search ends");
    }

    #[test]
    fn objectives_are_read() {
        let time = |text: &str| text.parse().map(Duration::from_millis).map_err(|_| "time".to_owned());
        let objective = Objective { percent: 99.9, latency_max: Duration::from_millis(5) };
        assert_eq!(Objective::parse("p99.9=5", time), Ok(objective));
        for text in ["", "99=5", "p=5", "p0=5", "p101=5", "pNaN=5", "p99"] {
            assert!(
                Objective::parse(text, time).is_err_and(|error| error.contains("need an objective")),
                "{text}"
            );
        }
    }
}
