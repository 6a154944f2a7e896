//! The search for the highest rate that meets an objective: its answer in a sentence, a row for each run, a chart.

use std::fmt::Write;

use flatout_load::find_max::{CONFIRMATIONS, Miss, RateStep, Slo, best, confirmed};

use crate::Measured;
use crate::plot::{Kind, Label, Line, Plot, Scale, Tick};
use crate::text::bar;
use crate::unit::{count, round_time, time};

/// Columns of a bar up to the objective; a longer bar is cut at twice as many.
const OBJECTIVE_COLUMNS: usize = 16;

/// `p99 ≤ 60ms`.
fn objective_text(objective: &Slo) -> String {
    let limit = round_time(objective.latency_max.as_nanos() as f64);
    format!("p{} ≤ {limit}", objective.percent)
}

fn rate(per_s: f64) -> String {
    count(per_s.round() as u64)
}

/// Why a run missed, with its figure.
fn why(step: &RateStep, objective: &Slo, miss: Miss) -> String {
    match miss {
        Miss::NoResponse => "no response".to_owned(),
        Miss::Errors(1) => "1 error".to_owned(),
        Miss::Errors(errors) => format!("{} errors", count(errors)),
        Miss::Unsent { sent_per_s } => format!("only {}/s were sent", rate(sent_per_s)),
        Miss::Backlog { answered_per_s } => format!("only {}/s were served", rate(answered_per_s)),
        Miss::Latency => format!("p{} {}", objective.percent, time(step.latency_ns as f64)),
    }
}

/// The objective of a measurement that was a search.
fn objective(measured: &Measured) -> Option<&Slo> {
    measured.objective.as_ref().filter(|_| !measured.steps.is_empty())
}

/// The answer in a sentence; `None` if nothing was searched.
pub(crate) fn sentence(measured: &Measured) -> Option<String> {
    let (objective, steps) = (objective(measured)?, &measured.steps);
    let met = objective_text(objective);
    let found = confirmed(steps).or(best(steps).map(|step| step.rate_per_s));
    let above = steps.iter().filter(|step| found.is_none_or(|found| step.rate_per_s > found));
    let missed = above.filter_map(|step| Some((step, step.miss?)));
    let missed = missed.min_by(|(one, _), (other, _)| one.rate_per_s.total_cmp(&other.rate_per_s));
    let missed = missed
        .map(|(step, miss)| format!("{} missed it: {}", rate(step.rate_per_s), why(step, objective, miss)));
    let more = missed.map_or(String::new(), |missed| format!("; {missed}"));
    Some(match (found, confirmed(steps).is_some()) {
        (Some(per_s), true) => {
            format!("{} requests/s is the highest rate with {met}{more}", rate(per_s))
        }
        (Some(per_s), false) => format!(
            "No rate has met {met} {CONFIRMATIONS} times; {} requests/s is the highest that met it once{more}",
            rate(per_s)
        ),
        (None, _) => format!("No rate has met {met}{more}"),
    })
}

/// Why the rate is not higher; `None` if nothing was searched.
pub(crate) fn limit_reason(measured: &Measured) -> Option<String> {
    let found = confirmed(&measured.steps)?;
    let objective = objective_text(objective(measured)?);
    Some(format!("the objective: rates above {} requests/s did not meet {objective}", rate(found)))
}

/// What a run showed, in words: `met`, `met, confirmation 2 of 3`, `missed: p99 76.00ms`.
fn result(steps: &[&RateStep], at: usize, objective: &Slo) -> String {
    let step = steps[at];
    let before = steps[..at].iter().filter(|other| other.rate_per_s == step.rate_per_s).count();
    match step.miss {
        None if before == 0 => "met".to_owned(),
        None if before < CONFIRMATIONS => format!("met, confirmation {} of {CONFIRMATIONS}", before + 1),
        None => format!("met, run {}", before + 1),
        Some(miss) => format!("missed: {}", why(step, objective, miss)),
    }
}

/// The steps by rate; those of the same rate in the order in which they ran.
fn by_rate(steps: &[RateStep]) -> Vec<&RateStep> {
    let mut sorted: Vec<&RateStep> = steps.iter().collect();
    sorted.sort_by(|one, other| one.rate_per_s.total_cmp(&other.rate_per_s));
    sorted
}

/// A row for each run, with a bar up to the objective and beyond.
pub(crate) fn table(out: &mut String, measured: &Measured) {
    let Some(objective) = objective(measured) else { return };
    let steps = by_rate(&measured.steps);
    let results: Vec<String> = (0..steps.len()).map(|at| result(&steps, at, objective)).collect();
    let width = results.iter().map(|text| text.chars().count()).max().unwrap_or(0);
    let percentile = format!("p{}", objective.percent);
    let mark = round_time(objective.latency_max.as_nanos() as f64);
    let _ = writeln!(
        out,
        "  {:>12} {percentile:>10}  {:<width$}  {:<OBJECTIVE_COLUMNS$}│ {mark}",
        "requests/s", "objective", ""
    );
    for (step, result) in steps.iter().zip(results) {
        let latency = time(step.latency_ns as f64);
        let bar = row_bar(step.latency_ns as f64 / objective.latency_max.as_nanos().max(1) as f64);
        let _ = writeln!(out, "  {:>12} {latency:>10}  {result:<width$}  {bar}", rate(step.rate_per_s));
    }
}

/// The bar of a latency that is this many times the objective, with the objective as a mark.
fn row_bar(share: f64) -> String {
    let columns = OBJECTIVE_COLUMNS as f64;
    let within = bar(share.min(1.0) * columns);
    let beyond = bar((share - 1.0).clamp(0.0, 1.0) * columns);
    let cut = if share > 2.0 { "…" } else { "" };
    format!("{within:<OBJECTIVE_COLUMNS$}│{beyond}{cut}")
}

/// The chart: the latency at the objective's percentile against the rate.
pub(crate) fn chart(measured: &Measured) -> Option<String> {
    let objective = objective(measured)?;
    let x = |step: &RateStep| step.rate_per_s.max(1.0).log10();
    let point = |step: &RateStep| (x(step), step.latency_ns as f64);
    let steps = by_rate(&measured.steps);
    let points: Vec<(f64, f64)> = steps.iter().map(|step| point(step)).collect();
    let part = |is_met: bool| -> Vec<(f64, f64)> {
        steps.iter().filter(|step| step.is_met() == is_met).map(|step| point(step)).collect()
    };
    let limit = objective.latency_max.as_nanos() as f64;
    let ends = [points.first()?.0, points.last()?.0].map(|at| (at, limit)).to_vec();
    let x_ticks = points.iter().step_by((points.len() / 5).max(1));
    let x_ticks =
        x_ticks.map(|(at, _)| Tick { at: *at, text: format!("{}/s", rate(10f64.powf(*at))) }).collect();
    let percent = objective.percent;
    let line = |name: String, class, kind, points| Line { name: name.into(), class, kind, points };
    let lines = vec![
        line(String::new(), "one", Kind::Line, points.clone()),
        line(format!("p{percent}, met"), "one", Kind::Dots, part(true)),
        line(format!("p{percent}, missed"), "two", Kind::Crosses, part(false)),
        line(format!("objective: {}", round_time(limit)), "two", Kind::Dashes, ends),
    ];
    let found = confirmed(&measured.steps);
    let answer = steps.iter().rfind(|step| Some(step.rate_per_s) == found);
    let labels = answer.map(|step| {
        let (x, y) = point(step);
        Label { x, y, text: format!("highest: {}/s", rate(step.rate_per_s)) }
    });
    let plot = Plot {
        lines,
        labels: labels.into_iter().collect(),
        x_ticks,
        y_scale: Scale::Log,
        y_text: round_time,
    };
    Some(plot.svg())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::require::tests::measured;

    fn searched(steps: &[(f64, u64, Option<Miss>)]) -> Measured {
        let mut measured = measured();
        measured.objective = Some(Slo { percent: 99.0, latency_max: Duration::from_millis(60) });
        let step = |&(rate_per_s, ms, miss): &(f64, u64, _)| RateStep {
            rate_per_s,
            latency_ns: ms * 1_000_000,
            miss,
        };
        measured.steps = steps.iter().map(step).collect();
        measured
    }

    const MISS: Option<Miss> = Some(Miss::Latency);

    #[test]
    fn the_answer_is_a_sentence() {
        let found = searched(&[
            (100.0, 54, None),
            (200.0, 126, MISS),
            (147.0, 76, MISS),
            (145.0, 55, None),
            (145.0, 56, None),
            (145.0, 57, None),
        ]);
        let answer =
            "145 requests/s is the highest rate with p99 ≤ 60ms; 147 missed it: p99 76.00ms".to_owned();
        assert_eq!(sentence(&found), Some(answer));
        assert!(limit_reason(&found).is_some_and(|reason| reason.starts_with("the objective: ")));
        let once = sentence(&searched(&[(100.0, 54, None)])).unwrap();
        assert!(once.contains("No rate has met p99 ≤ 60ms 3 times; 100 requests/s is the highest"), "{once}");
        let none = searched(&[(4.0, 1, Some(Miss::NoResponse)), (1.0, 1, Some(Miss::Errors(2)))]);
        assert_eq!(sentence(&none).unwrap(), "No rate has met p99 ≤ 60ms; 1 missed it: 2 errors");
        assert_eq!((sentence(&measured()), chart(&measured())), (None, None));
    }

    #[test]
    fn each_row_says_why() {
        let found = searched(&[
            (100.0, 7, Some(Miss::Unsent { sent_per_s: 28_900.0 })),
            (90.0, 8, Some(Miss::Backlog { answered_per_s: 28_800.0 })),
            (80.0, 30, None),
            (80.0, 30, None),
            (80.0, 90, MISS),
            (70.0, 600, MISS),
        ]);
        let mut text = String::new();
        table(&mut text, &found);
        for expected in [
            "missed: only 28,900/s were sent",
            "missed: only 28,800/s were served",
            "met, confirmation 2 of 3",
            "missed: p99 90.00ms",
            "│ 60ms",
            "████████        │\n",
            "│████████\n",
            "│████████████████…\n",
        ] {
            assert!(text.contains(expected), "{expected} in\n{text}");
        }
    }

    #[test]
    fn the_chart_has_the_objective_and_the_answer() {
        let found = searched(&[(100.0, 54, None), (100.0, 54, None), (100.0, 54, None), (200.0, 126, MISS)]);
        let chart = chart(&found).unwrap();
        for expected in ["p99, met", "p99, missed", "objective: 60ms", "highest: 100/s"] {
            assert!(chart.contains(expected), "{expected} in {chart}");
        }
    }
}
