//! Converts effects into a rung's status, with a reason if the figures do not show it.

use crate::compare::Word;
use crate::effect::Effect;
use crate::found::{Found, Status};
use crate::sample::Objective;

/// The status of an effect on top of those kept: what its interval says, unless errors rose.
pub(crate) fn judged(effect: &Effect, objective: Objective) -> (Status, String) {
    if let Some((with, without)) = effect.errors_rose {
        let reason =
            format!("errors rose from {:.3} % to {:.3} % of the requests", without * 1e2, with * 1e2);
        return (Status::Worse, reason);
    }
    match (effect.on(objective), effect.word) {
        (None, _) => (Status::None, format!("too few runs reported {}", objective.name())),
        (_, Word::NoDifference) => (Status::None, "no significant difference".to_owned()),
        (_, Word::Faster) => (Status::Kept, String::new()),
        (_, Word::Slower) => (Status::Worse, String::new()),
    }
}

/// The addition to the cost of a burden.
pub const STAYS: &str = "it stays, because another program owns it";

/// The result for a burden whose absence was judged.
pub(crate) fn as_burden(judged: &Found, effect: &Effect, objective: Objective) -> (Status, String) {
    let (status, reason) = (judged.status, judged.reason.clone());
    match (status, effect.on(objective)) {
        (Status::Kept, Some(estimate)) => {
            let cost = estimate.as_cost(objective);
            let what = match objective {
                Objective::Throughput => "of the requests per second",
                Objective::P99 => "more latency (p99)",
                Objective::Cpu => "more CPU per request",
            };
            let figures = format!(
                "{:.1} % ({:.1} to {:.1}) {what}",
                cost.gain * 100.0,
                cost.low * 100.0,
                cost.high * 100.0
            );
            (Status::Skipped, format!("an equal one costs {figures}; {STAYS}"))
        }
        (Status::None, Some(_)) => (Status::None, format!("what an equal one costs: {reason}")),
        (Status::Worse, Some(_)) if reason.is_empty() => {
            (Status::None, "an equal one costs nothing here".to_owned())
        }
        _ => (status, reason),
    }
}

/// The result of leaving a kept rung out: it stays only if it is worth something among the others.
pub(crate) fn second_thought(
    found: &Found,
    among: &Effect,
    objective: Objective,
) -> Option<(Status, String)> {
    let (alone, among_all) = (found.forward.as_ref()?.on(objective)?, among.on(objective)?);
    let percent = |share: f64| share * 100.0;
    let told = format!(
        "{:+.1} % when it was tried; with everything kept {:+.1} % ({:+.1} to {:+.1})",
        percent(alone.gain),
        percent(among_all.gain),
        percent(among_all.low),
        percent(among_all.high)
    );
    match among.word {
        Word::Slower => Some((Status::Worse, told)),
        Word::NoDifference => Some((Status::None, format!("{told}: no significant difference"))),
        Word::Faster => None,
    }
}
