//! What effects mean for a rung: a status, and a reason in words where the figures do not say it.

use crate::compare::Word;
use crate::effect::Effect;
use crate::found::{Found, Status};
use crate::sample::Objective;

/// What an effect on top of those kept means.
pub(crate) fn judged(effect: &Effect, objective: Objective, floor: f64) -> (Status, String) {
    if let Some((with, without)) = effect.errors_rose {
        let reason =
            format!("errors rose from {:.3} % to {:.3} % of the requests", without * 1e2, with * 1e2);
        return (Status::Worse, reason);
    }
    match (effect.on(objective), effect.word) {
        (None, _) => (Status::None, format!("the runs do not tell {}", objective.name())),
        (Some(estimate), Word::Faster | Word::Slower) if estimate.is_within(floor) => {
            (Status::None, format!("no more than the noise floor of {:.1} %", floor * 100.0))
        }
        (_, Word::NotToldApart) => (Status::None, "not told apart from no effect".to_owned()),
        (_, Word::Faster) => (Status::Kept, String::new()),
        (_, Word::Slower) => (Status::Worse, String::new()),
    }
}

/// What is said of a burden that costs something, behind what it costs.
pub const STAYS: &str = "it stays, it is somebody else's";

/// What is said of a burden whose absence was judged.
pub(crate) fn as_burden(judged: &Found, effect: &Effect, objective: Objective) -> (Status, String) {
    let (status, reason) = (judged.status, judged.reason.clone());
    match (status, effect.on(objective)) {
        (Status::Kept, Some(estimate)) => {
            let cost = estimate.as_cost(objective);
            let what = match objective {
                Objective::Throughput => "of the requests a second",
                Objective::P99 => "more latency (p99)",
                Objective::Cpu => "more CPU a request",
            };
            let figures = format!(
                "{:.1} % ({:.1} to {:.1}) {what}",
                cost.gain * 100.0,
                cost.low * 100.0,
                cost.high * 100.0
            );
            (Status::Skipped, format!("an equal one costs {figures}; {STAYS}"))
        }
        (Status::None, Some(_)) => (Status::None, format!("what an equal one costs is {reason}")),
        (Status::Worse, Some(_)) if reason.is_empty() => {
            (Status::None, "an equal one costs nothing here".to_owned())
        }
        _ => (status, reason),
    }
}

/// What leaving a kept rung out changes about it: nothing, unless it harms the others or has nothing left beside them.
pub(crate) fn second_thought(
    found: &Found,
    among: &Effect,
    objective: Objective,
) -> Option<(Status, String)> {
    let (alone, among_all) = (found.forward.as_ref()?.on(objective)?, among.on(objective)?);
    let told = format!(
        "{:+.1} % when it was tried, {:+.1} % among those kept after it",
        alone.gain * 100.0,
        among_all.gain * 100.0
    );
    match among.word {
        Word::Slower => Some((Status::Worse, told)),
        Word::NotToldApart if among_all.high < alone.low => Some((Status::None, told)),
        _ => None,
    }
}
