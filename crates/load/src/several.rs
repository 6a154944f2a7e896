//! Measurements with several runs: trials, the search for the highest rate, two candidates in turn.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use flatout_trial::Random;
use flatout_trial::compare::{Level, Verdict, judge, judge_planned};

use crate::candidate::Candidate;
use crate::find_max::{
    Miss, OfferedLoad, RateStep, Slo, best, confirmed, next_rate, rate_to_confirm, step_time,
};
use crate::outcome::Outcome;
use crate::pace::{Arrival, Pacing};
use crate::plan::{Error, Plan};
use crate::run::{Live, run};
use crate::tally::ErrorKind;

/// Passed to every run: when to stop, and where to report progress.
pub struct Control<'c> {
    /// Stops everything early when set.
    pub stop: &'c AtomicBool,
    /// Called ten times per second.
    pub watch: &'c mut dyn FnMut(&Live<'_>),
}

/// The result of comparing two candidates. Not a climb of one rung, because nothing is changed and undone: these are two
/// servers, each started for its turn. The order of turns and the statistics are those of a climb (`flatout_trial::compare`).
#[derive(Debug, Clone)]
pub struct Duel {
    /// The first candidate's run with the median requests per second.
    pub outcome: Outcome,
    /// The same of the second candidate.
    pub other: Outcome,
    /// Correct responses per second in each pair: the first's, the second's.
    pub pairs: Vec<(f64, f64)>,
    /// The verdict on them.
    pub verdict: Verdict,
}

/// The share of a closed loop's throughput at which a search starts: below where queueing starts.
const SEARCH_START_SHARE: f64 = 0.5;

impl Control<'_> {
    fn run(&mut self, plan: &Plan) -> Result<Outcome, Error> {
        run(plan, self.stop, self.watch)
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// Runs `plan` `count` times, at least once. Returns the outcome with the median requests per second, and that figure
/// of each run.
///
/// # Errors
/// As [`run`].
pub fn trials(plan: &Plan, count: usize, control: &mut Control<'_>) -> Result<(Outcome, Vec<f64>), Error> {
    let mut outcomes = vec![control.run(plan)?];
    while outcomes.len() < count && !control.is_stopped() {
        outcomes.push(control.run(plan)?);
    }
    let figures = outcomes.iter().map(Outcome::requests_per_s).collect();
    Ok((median(outcomes), figures))
}

/// The result of a search.
#[derive(Debug, Clone)]
pub struct FoundRate {
    /// The plan at the highest rate that has met the objective three times. If there is none, at the highest that met
    /// it once, or at the first that was tried.
    pub plan: Plan,
    /// The outcome of its median run, by the latency of the objective.
    pub outcome: Outcome,
    /// All steps in order, confirming ones last; [`confirmed`] says whether a rate is confirmed.
    pub steps: Vec<RateStep>,
}

/// Searches the highest rate that meets the objective, and confirms it.
///
/// # Errors
/// As [`run`].
pub fn search(plan: &Plan, objective: &Slo, control: &mut Control<'_>) -> Result<FoundRate, Error> {
    let arrival = plan.pacing.arrival().unwrap_or(Arrival::Constant);
    let closed = Plan { pacing: Pacing::Closed, ..plan.clone() };
    let outcome = control.run(&closed)?;
    let service = Duration::from_nanos(outcome.latency.histogram().min());
    let at = |per_s: f64| Plan {
        pacing: Pacing::Open { per_s, arrival },
        duration: step_time(plan.duration, per_s, service),
        ..plan.clone()
    };
    let start_per_s = (outcome.requests_per_s() * SEARCH_START_SHARE).max(1.0);
    let (mut steps, mut outcomes): (Vec<RateStep>, Vec<Outcome>) = Default::default();
    let mut searched_count = None;
    loop {
        let next = match searched_count {
            None => next_rate(&steps, start_per_s),
            Some(count) => rate_to_confirm(&steps[..count], &steps[count..]),
        };
        let Some(per_s) = next else {
            match searched_count.replace(steps.len()) {
                None => continue,
                Some(_) => break,
            }
        };
        let plan = at(per_s);
        let outcome = control.run(&plan)?;
        if control.is_stopped() {
            break;
        }
        steps.push(objective.step(per_s, plan.duration, &outcome));
        outcomes.push(outcome);
    }
    let told = confirmed(&steps)
        .or(best(&steps).map(|step| step.rate_per_s))
        .or(steps.first().map(|step| step.rate_per_s));
    let Some(per_s) = told else {
        return Ok(FoundRate { plan: closed, outcome, steps });
    };
    let runs = steps.iter().zip(outcomes).filter(|(step, _)| step.rate_per_s == per_s);
    let mut runs: Vec<(u64, Outcome)> = runs.map(|(step, outcome)| (step.latency_ns, outcome)).collect();
    runs.sort_by_key(|(latency_ns, _)| *latency_ns);
    let (_, outcome) = runs.swap_remove(runs.len() / 2);
    Ok(FoundRate { plan: at(per_s), outcome, steps })
}

impl Slo {
    /// The result of a run at a rate, for this time.
    fn step(&self, rate_per_s: f64, time: Duration, outcome: &Outcome) -> RateStep {
        let latency_ns = outcome.latency.percentile(self.percent);
        let load = OfferedLoad::of(outcome, rate_per_s);
        let per_s = |requests: u64| requests as f64 / time.as_secs_f64().max(1e-9);
        let miss = if outcome.errors.sum() > 0 {
            Some(Miss::Errors(outcome.errors.sum()))
        } else if outcome.requests == 0 && outcome.carried == 0 {
            Some(Miss::NoResponse)
        } else if u128::from(latency_ns) > self.latency_max.as_nanos() {
            Some(Miss::Latency)
        } else if outcome.unsent > 0 {
            Some(Miss::Unsent { sent_per_s: per_s(outcome.requests + outcome.unanswered) })
        } else if !load.is_sustained() {
            Some(Miss::Backlog { answered_per_s: per_s(load.served()) })
        } else {
            None
        };
        RateStep { rate_per_s, latency_ns, miss }
    }
}

/// Runs two candidates in turn, `pairs` times each. The order within each pair is random (by the seed of the plan): a
/// fixed pattern would meet a disturbance of the same period.
///
/// # Errors
/// As [`run`], and a command that does not start a server.
pub fn duel(
    one: &Candidate,
    other: &Candidate,
    pairs: usize,
    control: &mut Control<'_>,
) -> Result<Duel, Error> {
    let mut outcomes: [Vec<Outcome>; 2] = Default::default();
    let mut random = Random::new(one.plan.seed);
    let mut is_swapped = false;
    for turn in 0..2 * pairs {
        if control.is_stopped() && outcomes.iter().all(|of| !of.is_empty()) {
            break;
        }
        if turn % 2 == 0 {
            is_swapped = random.fraction() < 0.5;
        }
        let (candidate, place) = if (turn % 2 == 1) == is_swapped { (one, 0) } else { (other, 1) };
        let _server = candidate.start(control.stop)?;
        outcomes[place].push(control.run(&candidate.plan)?);
    }
    let [ones, others] = outcomes;
    let figures: Vec<(f64, f64)> =
        ones.iter().zip(&others).map(|(one, other)| (good_per_s(one), good_per_s(other))).collect();
    // Stopped by somebody who saw the progress: only the interval that is valid at any time still holds.
    let verdict = match figures.len() == pairs {
        true => judge_planned(&figures, Level::ONE),
        false => judge(&figures, Level::ONE),
    };
    Ok(Duel { outcome: median(ones), other: median(others), pairs: figures, verdict })
}

/// Correct responses per second: a candidate must not win with wrong responses.
fn good_per_s(outcome: &Outcome) -> f64 {
    let bad = outcome.errors.of(ErrorKind::BadStatus) + outcome.errors.of(ErrorKind::UnexpectedBody);
    let good_share = outcome.requests.saturating_sub(bad) as f64 / outcome.requests.max(1) as f64;
    outcome.requests_per_s() * good_share
}

/// The median outcome; of an even number, the lower one.
fn median(mut outcomes: Vec<Outcome>) -> Outcome {
    outcomes.sort_by(|one, other| one.requests_per_s().total_cmp(&other.requests_per_s()));
    outcomes.swap_remove((outcomes.len() - 1) / 2)
}
