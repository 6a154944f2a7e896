//! The search for the highest rate that meets an objective, without running anything.
//!
//! The rate doubles until one misses. Then the gap between the highest rate that met and the lowest that missed is
//! halved, geometrically, until it is small. The result is the best of many noisy runs, so it is too optimistic: the
//! rate is run again until it has met [`CONFIRMATIONS`] times in all. If it misses twice before, a lower one is
//! tried.

use std::time::Duration;

/// A service level objective: this percentage of requests within this time, and no errors.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Slo {
    /// Percent of the requests, over 0 and at most 100.
    pub percent: f64,
    /// Their longest latency.
    pub latency_max: Duration,
}

/// One rate that was tried.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RateStep {
    /// The requested rate, in requests per second.
    pub rate_per_s: f64,
    /// The latency at the objective's percentile.
    pub latency_ns: u64,
    /// Whether the objective was met.
    pub is_met: bool,
}

/// Precision: the rate that missed is at most this many times the one that met.
pub const PRECISION: f64 = 1.05;

/// How often the reported rate has to meet the objective.
pub const CONFIRMATIONS: usize = 3;

/// A rate that has missed this often is too high.
const MISSES_MAX: usize = 2;

/// Most runs for the confirmation.
const CONFIRMING_STEPS_MAX: usize = 30;

/// Most rates to try: enough for a start that is wrong by a factor of a million.
pub const STEPS_MAX: usize = 40;

impl Slo {
    /// Parses `p99=5ms`, given a parser for the time.
    ///
    /// # Errors
    /// The value, and the expected form.
    pub fn parse(text: &str, time: fn(&str) -> Result<Duration, String>) -> Result<Slo, String> {
        let wrong = || format!("got `{text}`, need an objective such as p99=5ms or p99.9=20ms");
        let (percent, latency) =
            text.strip_prefix('p').and_then(|rest| rest.split_once('=')).ok_or_else(wrong)?;
        let percent: f64 = percent.parse().map_err(|_| wrong())?;
        if !(percent > 0.0 && percent <= 100.0) {
            return Err(wrong());
        }
        Ok(Slo { percent, latency_max: time(latency)? })
    }
}

/// The rate to try next after these steps; `None` when the result is close enough. `start_per_s` is tried first.
pub fn next_rate(steps: &[RateStep], start_per_s: f64) -> Option<f64> {
    if steps.len() >= STEPS_MAX {
        return None;
    }
    let best = best(steps).map(|step| step.rate_per_s);
    let missed = steps.iter().filter(|step| !step.is_met).map(|step| step.rate_per_s);
    let missed = missed.filter(|rate| best.is_none_or(|best| *rate > best)).min_by(f64::total_cmp);
    match (best, missed) {
        (None, None) => Some(start_per_s),
        (Some(best), None) => Some(best * 2.0),
        // Below one request per second there is nothing to search.
        (None, Some(missed)) => (missed > 1.0).then_some((missed / 4.0).max(1.0)),
        (Some(best), Some(missed)) => (missed / best > PRECISION).then(|| (best * missed).sqrt()),
    }
}

/// The rate to run again after these search steps, with the confirming ones last; `None` if the highest is confirmed,
/// or none can be.
pub fn rate_to_confirm(searched: &[RateStep], confirming: &[RateStep]) -> Option<f64> {
    if confirming.len() >= CONFIRMING_STEPS_MAX {
        return None;
    }
    let mut rate = best(searched)?.rate_per_s;
    loop {
        let met = times(searched, rate, true) + times(confirming, rate, true);
        let missed = times(confirming, rate, false);
        match (met >= CONFIRMATIONS, missed >= MISSES_MAX) {
            (true, _) => return None,
            (false, false) => return Some(rate),
            // Below one request per second there is nothing to confirm.
            (false, true) if rate <= 1.0 => return None,
            (false, true) => rate = (rate / PRECISION).max(1.0),
        }
    }
}

/// The highest rate that has met the objective [`CONFIRMATIONS`] times, and missed it less than twice.
pub fn confirmed(steps: &[RateStep]) -> Option<f64> {
    let rates = steps.iter().filter(|step| step.is_met).map(|step| step.rate_per_s);
    let is_confirmed =
        |rate: &f64| times(steps, *rate, true) >= CONFIRMATIONS && times(steps, *rate, false) < MISSES_MAX;
    rates.filter(is_confirmed).max_by(f64::total_cmp)
}

fn times(steps: &[RateStep], rate_per_s: f64, is_met: bool) -> usize {
    steps.iter().filter(|step| step.rate_per_s == rate_per_s && step.is_met == is_met).count()
}

/// The step with the highest rate that met the objective.
pub fn best(steps: &[RateStep]) -> Option<&RateStep> {
    steps.iter().filter(|step| step.is_met).max_by(|one, other| one.rate_per_s.total_cmp(&other.rate_per_s))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches against a server that meets the objective up to `limit`.
    fn search(limit: f64, start: f64) -> Vec<RateStep> {
        let mut steps = Vec::new();
        while let Some(rate_per_s) = next_rate(&steps, start) {
            steps.push(RateStep { rate_per_s, latency_ns: 1, is_met: rate_per_s <= limit });
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

    /// Searches and confirms against a server whose limit differs in each run.
    fn confirm(limits: &mut dyn FnMut() -> f64, start: f64) -> Vec<RateStep> {
        let mut steps = Vec::new();
        let mut step = |steps: &mut Vec<RateStep>, rate_per_s: f64| {
            steps.push(RateStep { rate_per_s, latency_ns: 1, is_met: rate_per_s <= limits() });
        };
        while let Some(rate) = next_rate(&steps, start) {
            step(&mut steps, rate);
        }
        let searched = steps.clone();
        while let Some(rate) = rate_to_confirm(&searched, &steps[searched.len()..]) {
            step(&mut steps, rate);
        }
        steps
    }

    #[test]
    fn the_result_has_met_the_objective_three_times() {
        let steps = confirm(&mut || 54_321.0, 1000.0);
        let searched = search(54_321.0, 1000.0);
        let best = best(&searched).unwrap().rate_per_s;
        assert_eq!((confirmed(&steps), steps.len()), (Some(best), searched.len() + CONFIRMATIONS - 1));
        assert_eq!(confirmed(&confirm(&mut || 0.1, 1000.0)), None, "where none meets, none is confirmed");
    }

    /// A server that can serve 10 000 per second, and by chance half as many more in one run of ten. The best single
    /// run of a search is often such a run.
    #[test]
    fn a_lucky_run_is_not_the_result() {
        let mut random = flatout_trial::Random::new(5);
        let (mut lucky, mut told) = (0, 0);
        for _ in 0..500 {
            let mut limit = || if random.fraction() < 0.1 { 15_000.0 } else { 10_000.0 };
            let steps = confirm(&mut limit, 1000.0);
            lucky += usize::from(best(&steps).unwrap().rate_per_s > 10_500.0);
            told += usize::from(confirmed(&steps).is_some_and(|rate| rate > 10_500.0));
        }
        assert!(lucky > 30 && told <= 3, "of 500: {lucky} best runs were lucky, {told} were told");
    }

    #[test]
    fn objectives_are_read() {
        let time = |text: &str| text.parse().map(Duration::from_millis).map_err(|_| "time".to_owned());
        let objective = Slo { percent: 99.9, latency_max: Duration::from_millis(5) };
        assert_eq!(Slo::parse("p99.9=5", time), Ok(objective));
        for text in ["", "99=5", "p=5", "p0=5", "p101=5", "pNaN=5", "p99"] {
            assert!(Slo::parse(text, time).is_err_and(|error| error.contains("need an objective")), "{text}");
        }
    }
}
