//! The search for the highest rate that meets an objective, without running anything.
//!
//! The rate doubles until one misses. A rate that misses is run again at once, until it has met or missed twice: a pause of
//! the machine must not end the search far below what the server can do. Then the gap between the highest rate that met and
//! the lowest that missed is halved, geometrically, until it is small. The result is the best of many noisy runs, so it is
//! too optimistic: the rate is run again until it has met [`CONFIRMATIONS`] times in all. If it misses twice before, a lower
//! one is tried.

use std::time::Duration;

use crate::outcome::Outcome;

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
    /// Why the objective was missed; `None` if it was met.
    pub miss: Option<Miss>,
}

/// Why a run missed the objective.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Miss {
    /// No response arrived.
    NoResponse,
    /// This many requests had an error.
    Errors(u64),
    /// No connection was free for some requests: only this many per second were sent.
    Unsent {
        /// Requests per second.
        sent_per_s: f64,
    },
    /// The responses fell behind: only this many per second came in the run's time.
    Backlog {
        /// Responses per second.
        answered_per_s: f64,
    },
    /// The latency at the objective's percentile was above its limit.
    Latency,
}

impl RateStep {
    /// Whether the objective was met.
    pub fn is_met(&self) -> bool {
        self.miss.is_none()
    }
}

/// Precision: the rate that missed is at most this many times the one that met.
pub const PRECISION: f64 = 1.02;

/// The share of the offered requests that a rate may fall short of and still count as sustained.
const SHORTFALL_MAX: f64 = 0.01;

/// A run has at least this many requests: with fewer, a shortfall of a few per cent is less than a request.
const STEP_REQUESTS_MIN: f64 = 200.0;

/// A run lasts at least this many service times: a backlog needs time to grow.
const STEP_SERVICE_TIMES_MIN: u32 = 20;

/// The longest run: ten minutes.
const STEP_TIME_MAX: Duration = Duration::from_secs(600);

/// How often the reported rate has to meet the objective.
pub const CONFIRMATIONS: usize = 3;

/// A rate that has missed this often is too high.
const MISSES_MAX: usize = 2;

/// Most runs for the confirmation.
const CONFIRMING_STEPS_MAX: usize = 30;

/// Most runs of the search: enough for a start that is wrong by a factor of a million.
pub const STEPS_MAX: usize = 60;

/// The counts of a run at a rate, to decide whether the server can sustain it.
#[derive(Debug, Clone, Copy)]
pub struct OfferedLoad {
    /// Requests that became due in the run.
    pub offered: u64,
    /// Of those, the ones with a response before the run's planned end.
    pub answered: u64,
    /// Responses in the run's time to requests that became due before it, in the warm-up.
    pub carried: u64,
    /// The requested rate, in requests per second.
    pub rate_per_s: f64,
    /// The shortest time from sending to the response: that of a request that does not queue.
    pub service: Duration,
}

impl OfferedLoad {
    /// That of a run at this rate.
    pub(crate) fn of(outcome: &Outcome, rate_per_s: f64) -> OfferedLoad {
        // Since requests were sent: a backlog of the warm-up is no part of the time that one needs.
        let latency = outcome.latency_raw.as_ref().unwrap_or(&outcome.latency);
        OfferedLoad {
            offered: outcome.requests + outcome.unanswered + outcome.unsent,
            answered: outcome.answered_in_time,
            carried: outcome.carried,
            rate_per_s,
            service: Duration::from_nanos(latency.histogram().min()),
        }
    }

    /// All responses in the run's time.
    pub fn served(&self) -> u64 {
        self.answered + self.carried
    }

    /// Whether all but one per cent were served in the run's time. Requests that are in service at its end are not a
    /// shortfall (Little: the rate times the service time), unless as many were in service when it began; a backlog is.
    pub fn is_sustained(&self) -> bool {
        let in_service = (self.rate_per_s * self.service.as_secs_f64()).ceil();
        let more_in_service = (in_service - self.carried as f64).max(0.0);
        let missing = self.offered.saturating_sub(self.served()) as f64;
        missing <= SHORTFALL_MAX * self.offered as f64 + more_in_service
    }
}

/// How long a run at a rate lasts if `planned` was requested: longer for rates and service times for which that would be a
/// few requests.
pub fn step_time(planned: Duration, rate_per_s: f64, service: Duration) -> Duration {
    let requests = Duration::from_secs_f64((STEP_REQUESTS_MIN / rate_per_s).min(STEP_TIME_MAX.as_secs_f64()));
    planned.max(requests.max(service.saturating_mul(STEP_SERVICE_TIMES_MIN)).min(STEP_TIME_MAX))
}

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
    if let Some(RateStep { rate_per_s, .. }) = steps.last() {
        let [met, missed] = [true, false].map(|is_met| times(steps, *rate_per_s, is_met));
        if missed > 0 && met.max(missed) < MISSES_MAX {
            return Some(*rate_per_s);
        }
    }
    let best = best(steps).map(|step| step.rate_per_s);
    let missed = steps.iter().map(|step| step.rate_per_s).filter(|rate| is_too_high(steps, *rate));
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
    let rates = steps.iter().filter(|step| step.is_met()).map(|step| step.rate_per_s);
    let is_confirmed = |rate: &f64| times(steps, *rate, true) >= CONFIRMATIONS && !is_too_high(steps, *rate);
    rates.filter(is_confirmed).max_by(f64::total_cmp)
}

fn times(steps: &[RateStep], rate_per_s: f64, is_met: bool) -> usize {
    steps.iter().filter(|step| step.rate_per_s == rate_per_s && step.is_met() == is_met).count()
}

fn is_too_high(steps: &[RateStep], rate_per_s: f64) -> bool {
    times(steps, rate_per_s, false) >= MISSES_MAX
}

/// The step with the highest rate that met the objective, and was not too high after all.
pub fn best(steps: &[RateStep]) -> Option<&RateStep> {
    let met = steps.iter().filter(|step| step.is_met() && !is_too_high(steps, step.rate_per_s));
    met.max_by(|one, other| one.rate_per_s.total_cmp(&other.rate_per_s))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn miss(is_met: bool) -> Option<Miss> {
        (!is_met).then_some(Miss::Latency)
    }

    /// Searches against a server that meets the objective up to `limit`.
    fn search(limit: f64, start: f64) -> Vec<RateStep> {
        let mut steps = Vec::new();
        while let Some(rate_per_s) = next_rate(&steps, start) {
            steps.push(RateStep { rate_per_s, latency_ns: 1, miss: miss(rate_per_s <= limit) });
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

    /// A pause of the machine makes any run miss. Up to every third one does: the search still ends where the server's limit is.
    #[test]
    fn a_pause_of_the_machine_does_not_end_the_search() {
        for (every, first) in [(7, 0), (5, 1), (4, 2), (3, 0), (3, 1)] {
            let mut steps = Vec::new();
            while let Some(rate_per_s) = next_rate(&steps, 1000.0) {
                let is_met = rate_per_s <= 54_321.0 && steps.len() % every != first;
                steps.push(RateStep { rate_per_s, latency_ns: 1, miss: miss(is_met) });
            }
            let found = best(&steps).unwrap().rate_per_s;
            assert!(
                found <= 54_321.0 && found * PRECISION >= 54_321.0,
                "every {every} from {first}: {found}"
            );
            assert!(steps.len() < STEPS_MAX, "{} steps", steps.len());
        }
    }

    /// A scripted server on a simulated clock: `parallel` requests at a time, each in `parallel / capacity` seconds;
    /// it refuses what finds `queue_max` requests waiting. The generator holds back what finds no free connection.
    struct ScriptedServer {
        capacity_per_s: f64,
        parallel: usize,
        queue_max: Option<usize>,
        connections: usize,
    }

    impl ScriptedServer {
        fn service(&self) -> Duration {
            Duration::from_secs_f64(self.parallel as f64 / self.capacity_per_s)
        }

        /// Whether a run at a constant rate is sustained without errors.
        fn run(&self, rate_per_s: f64, duration: Duration) -> bool {
            let (service_s, end_s) = (self.service().as_secs_f64(), duration.as_secs_f64());
            // When each of the server's places, and each connection, is free again; the earliest first.
            let mut places = std::collections::VecDeque::from(vec![0.0_f64; self.parallel]);
            let mut responses: Vec<f64> = Vec::new();
            let offered = (rate_per_s * end_s) as usize;
            for index in 0..offered {
                let due_s = index as f64 / rate_per_s;
                // All service times are equal, so responses come in order: a connection is free after the response
                // to the request that many earlier.
                let is_held = index >= self.connections;
                let sent_s = if is_held { responses[index - self.connections].max(due_s) } else { due_s };
                let waiting = responses.iter().rev().take_while(|at| **at - service_s > sent_s).count();
                if self.queue_max.is_some_and(|max| waiting > max) {
                    return false;
                }
                let free_s: f64 = places.pop_front().unwrap_or_default();
                let response_s = free_s.max(sent_s) + service_s;
                places.push_back(response_s);
                responses.push(response_s);
            }
            let answered = responses.iter().filter(|at| **at < end_s).count() as u64;
            let service = self.service();
            OfferedLoad { offered: offered as u64, answered, carried: 0, rate_per_s, service }.is_sustained()
        }
    }

    #[test]
    fn a_scripted_servers_capacity_is_found_within_three_percent() {
        for capacity_per_s in [1.0, 10.0, 200.0, 2000.0] {
            for parallel in [1, 4, 64] {
                for connections in [parallel, 2 * parallel, 128] {
                    for queue_max in [None, Some(2 * parallel)] {
                        let server = ScriptedServer { capacity_per_s, parallel, queue_max, connections };
                        let mut steps: Vec<RateStep> = Vec::new();
                        while let Some(rate_per_s) = next_rate(&steps, (capacity_per_s / 2.0).max(1.0)) {
                            let time = step_time(Duration::from_secs(1), rate_per_s, server.service());
                            let is_met = server.run(rate_per_s, time);
                            steps.push(RateStep { rate_per_s, latency_ns: 1, miss: miss(is_met) });
                        }
                        let found = best(&steps).map_or(0.0, |step| step.rate_per_s);
                        let error = found / capacity_per_s - 1.0;
                        let case = (capacity_per_s, parallel, connections, queue_max);
                        assert!(error.abs() <= 0.03, "{case:?}: found {found}, {error:+.3}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_growing_backlog_is_not_sustained() {
        let load = |answered| OfferedLoad {
            offered: 296,
            answered,
            carried: 0,
            rate_per_s: 296.0,
            service: Duration::from_millis(5),
        };
        assert!(!load(200).is_sustained() && !load(290).is_sustained());
        assert!(load(294).is_sustained() && load(296).is_sustained());
        // A server of 200/s after 3 s of warm-up at 260/s: 180 requests wait, then 360, and the shortest wait is 0.9 s.
        let service = Duration::from_millis(900);
        let overloaded =
            OfferedLoad { offered: 780, answered: 420, carried: 180, rate_per_s: 260.0, service };
        assert!(!overloaded.is_sustained());
        assert_eq!(overloaded.served(), 600);
        // 26 are in service at all times.
        let service = Duration::from_millis(100);
        let steady = OfferedLoad { offered: 780, answered: 754, carried: 26, rate_per_s: 260.0, service };
        assert!(steady.is_sustained());
        assert_eq!(step_time(Duration::from_secs(1), 2000.0, Duration::ZERO), Duration::from_secs(1));
        assert_eq!(step_time(Duration::from_secs(1), 2.0, Duration::ZERO), Duration::from_secs(100));
        assert_eq!(step_time(Duration::from_secs(1), 1e-9, Duration::MAX), STEP_TIME_MAX);
    }

    /// Searches and confirms against a server whose limit differs in each run.
    fn confirm(limits: &mut dyn FnMut() -> f64, start: f64) -> Vec<RateStep> {
        let mut steps = Vec::new();
        let mut step = |steps: &mut Vec<RateStep>, rate_per_s: f64| {
            steps.push(RateStep { rate_per_s, latency_ns: 1, miss: miss(rate_per_s <= limits()) });
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
            lucky += usize::from(steps.iter().any(|step| step.is_met() && step.rate_per_s > 10_500.0));
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
