//! Measurements that take several runs: trials, the search for a highest rate, two candidates in turn.

use std::sync::atomic::{AtomicBool, Ordering};

use flatout_trial::compare::{Verdict, is_first, judge};

use crate::candidate::Candidate;
use crate::find_max::{Objective, Step, best, next_rate};
use crate::outcome::Outcome;
use crate::pace::{Arrival, Pacing};
use crate::plan::{Error, Plan};
use crate::run::{Live, run};
use crate::tally::ErrorKind;

/// What a caller hands to every run: when to stop, and whom to tell how it goes.
pub struct Control<'c> {
    /// Ends everything early once it is set.
    pub stop: &'c AtomicBool,
    /// Is told ten times a second.
    pub watch: &'c mut dyn FnMut(&Live<'_>),
}

/// What two candidates came to.
#[derive(Debug, Clone)]
pub struct Duel {
    /// The first candidate's run with the median of requests a second.
    pub outcome: Outcome,
    /// Good answers a second in each pair: of the first, of the second.
    pub pairs: Vec<(f64, f64)>,
    /// What they say.
    pub verdict: Verdict,
}

/// The share of a closed loop's throughput with which a search begins: below what is lost to queueing.
const SEARCH_START_SHARE: f64 = 0.5;

impl Control<'_> {
    fn run(&mut self, plan: &Plan) -> Result<Outcome, Error> {
        run(plan, self.stop, self.watch)
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// Runs `plan` `count` times, at least once: the outcome with the median of requests a second, and that figure of each.
///
/// # Errors
/// Those of [`run`].
pub fn trials(plan: &Plan, count: usize, control: &mut Control<'_>) -> Result<(Outcome, Vec<f64>), Error> {
    let mut outcomes = vec![control.run(plan)?];
    while outcomes.len() < count && !control.is_stopped() {
        outcomes.push(control.run(plan)?);
    }
    let figures = outcomes.iter().map(Outcome::requests_per_s).collect();
    Ok((median(outcomes), figures))
}

/// What a search came to.
#[derive(Debug, Clone)]
pub struct Found {
    /// The plan at the highest rate that meets the objective, or where none does at the first that was tried.
    pub plan: Plan,
    /// Its outcome.
    pub outcome: Outcome,
    /// All steps in order.
    pub steps: Vec<Step>,
}

/// Searches the highest rate that meets the objective.
///
/// # Errors
/// Those of [`run`].
pub fn search(plan: &Plan, objective: &Objective, control: &mut Control<'_>) -> Result<Found, Error> {
    let arrival = match plan.pacing {
        Pacing::Open { arrival, .. } => arrival,
        Pacing::Closed => Arrival::Constant,
    };
    let closed = Plan { pacing: Pacing::Closed, ..plan.clone() };
    let outcome = control.run(&closed)?;
    let start_per_s = (outcome.requests_per_s() * SEARCH_START_SHARE).max(1.0);
    let mut found = (closed, outcome);
    let mut steps: Vec<Step> = Vec::new();
    while let Some(per_s) = next_rate(&steps, start_per_s) {
        let plan = Plan { pacing: Pacing::Open { per_s, arrival }, ..plan.clone() };
        let outcome = control.run(&plan)?;
        if control.is_stopped() {
            break;
        }
        let latency_ns = outcome.latency.percentile(objective.percent);
        let is_met = u128::from(latency_ns) <= objective.latency_max.as_nanos()
            && outcome.requests > 0
            && outcome.errors.sum() + outcome.unsent == 0;
        let was_best = best(&steps).map(|step| step.rate_per_s);
        steps.push(Step { rate_per_s: per_s, latency_ns, is_met });
        if was_best.is_none() || is_met && was_best.is_some_and(|rate| per_s > rate) {
            found = (plan, outcome);
        }
    }
    let (plan, outcome) = found;
    Ok(Found { plan, outcome, steps })
}

/// Runs two candidates in turn, `pairs` times each.
///
/// # Errors
/// Those of [`run`], and a command that does not start a server.
pub fn duel(
    one: &Candidate,
    other: &Candidate,
    pairs: usize,
    control: &mut Control<'_>,
) -> Result<Duel, Error> {
    let mut outcomes: [Vec<Outcome>; 2] = Default::default();
    for turn in 0..2 * pairs {
        if control.is_stopped() && !outcomes[0].is_empty() {
            break;
        }
        let (candidate, place) = if is_first(turn) { (one, 0) } else { (other, 1) };
        let _server = candidate.start(control.stop)?;
        outcomes[place].push(control.run(&candidate.plan)?);
    }
    let [ones, others] = outcomes;
    let figures: Vec<(f64, f64)> =
        ones.iter().zip(&others).map(|(one, other)| (good_per_s(one), good_per_s(other))).collect();
    let verdict = judge(&figures);
    Ok(Duel { outcome: median(ones), pairs: figures, verdict })
}

/// Good answers a second: a candidate does not win by answering wrongly.
fn good_per_s(outcome: &Outcome) -> f64 {
    let bad = outcome.errors.of(ErrorKind::BadStatus) + outcome.errors.of(ErrorKind::UnexpectedBody);
    outcome.requests.saturating_sub(bad) as f64 / outcome.elapsed.as_secs_f64().max(1e-9)
}

/// The outcome in the middle; of an even number the lower one.
fn median(mut outcomes: Vec<Outcome>) -> Outcome {
    outcomes.sort_by(|one, other| one.requests_per_s().total_cmp(&other.requests_per_s()));
    outcomes.swap_remove((outcomes.len() - 1) / 2)
}
