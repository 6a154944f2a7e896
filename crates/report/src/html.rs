//! One HTML page without network and scripts: figures, plots as inline SVG, the setup. Light or dark follows the
//! reader's system.

use flatout_load::{ErrorKind, Latency, Outcome};

use crate::page::{self, document, escape, section};
use crate::plot::{Kind, Line, Plot, Scale, Tick};
use crate::text::percentile;
use crate::unit::{count, round_time, time};
use crate::{Measured, comparison, json, limit, search, stages, text};

/// The tables.
const STYLE: &str = ".side { margin: .2rem 0; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; }
.stages { border-collapse: collapse; font-variant-numeric: tabular-nums; }
.stages th, .stages td { text-align: right; padding: .3em 1em .3em 0; white-space: nowrap; }
.stages td:first-child, .stages th:first-child { text-align: left; }
";

/// A standalone page.
pub fn html(measured: &Measured) -> String {
    let outcome = &measured.outcome;
    let url = escape(&measured.url);
    let origin = &measured.origin;
    let made = format!("<code>{}</code><br>{}", escape(&origin.command), escape(&origin.date));
    let heading = match measured.comparison.is_some() {
        true => "A comparison".to_owned(),
        false => url,
    };
    let mut body = format!("<h1>{heading}</h1>\n<p class=sub>{made} · {}</p>\n", machine(measured));
    for warning in measured.warnings() {
        body.push_str(&format!("<p class=warning>{}</p>\n", escape(&warning)));
    }
    if let Some(compared) = &measured.comparison {
        body.push_str(&section("Comparison", &comparison::html(measured, compared)));
        body.push_str(&format!("<h2>The median run of {}</h2>\n", comparison::SIDES[0]));
    }
    if let Some(sentence) = search::sentence(measured) {
        body.push_str(&format!("<p><b>{}</b></p>\n", escape(&sentence)));
    }
    body.push_str(&cards(outcome));
    body.push_str(&format!("<p>Limit: {}</p>\n", escape(&limit(measured).reason)));
    if outcome.elapsed.as_secs() > 1 {
        body.push_str(&section("Throughput over time", &throughput(outcome)));
    }
    if outcome.latency.count() > 0 {
        body.push_str(&section("Latency by percentile", &percentiles(outcome)));
    }
    if !outcome.stages.is_empty() {
        body.push_str(&section("Stages", &stages(outcome)));
    }
    if let Some(chart) = search::chart(measured) {
        body.push_str(&section("Latency against rate", &chart));
    }
    body.push_str(&section("As text", &format!("<pre>{}</pre>", escape(&text::text(measured, true)))));
    let setup =
        format!("<details><summary>as JSON</summary><pre>{}</pre></details>", escape(&json::json(measured)));
    body.push_str(&section("Setup and all figures", &setup));
    document(&format!("flatout bench {}", measured.url), STYLE, &body)
}

fn machine(measured: &Measured) -> String {
    let machine = &measured.machine;
    escape(&format!("{}, {} CPUs, Linux {}", machine.processor, machine.cpus, machine.kernel))
}

fn cards(outcome: &Outcome) -> String {
    let errors =
        ErrorKind::ALL.into_iter().filter(|kind| outcome.errors.of(*kind) > 0).map(|kind| kind.name());
    let errors: Vec<&str> = errors.collect();
    let mut cards = vec![
        (count(outcome.requests_per_s().round() as u64), "requests/s".to_owned()),
        (percentile(&outcome.latency, 50.0), "p50".to_owned()),
        (percentile(&outcome.latency, 99.0), "p99".to_owned()),
        (percentile(&outcome.latency, 99.9), "p99.9".to_owned()),
        (count(outcome.errors.sum()), format!("errors {}", errors.join(", "))),
    ];
    if let Some((user, kernel)) = outcome.server_cpu_us_per_request() {
        cards.push((time((user + kernel) * 1e3), "server CPU per request".to_owned()));
    }
    page::cards(&cards)
}

fn throughput(outcome: &Outcome) -> String {
    // The last second is rarely complete.
    let whole = (outcome.elapsed.as_secs() as usize).clamp(1, outcome.series.len());
    let points: Vec<(f64, f64)> =
        outcome.series[..whole].iter().enumerate().map(|(at, value)| (at as f64, *value as f64)).collect();
    let step = (whole / 10).max(1);
    let marks = (0..whole).step_by(step).map(|at| Tick { at: at as f64, text: format!("{at} s") }).collect();
    let lines = vec![Line { name: "requests/s".into(), class: "one", kind: Kind::Line, points }];
    Plot {
        lines,
        labels: Vec::new(),
        x_ticks: marks,
        y_scale: Scale::Even,
        y_text: |value| count(value as u64),
    }
    .svg()
}

/// A table of stages.
fn stages(outcome: &Outcome) -> String {
    let heads = stages::HEADS.map(|head| format!("<th>{head}</th>")).concat();
    let row = |cells: [String; stages::HEADS.len()]| {
        format!("<tr>{}</tr>\n", cells.map(|cell| format!("<td>{cell}</td>")).concat())
    };
    let rows: String = stages::rows(&outcome.stages).map(row).collect();
    format!("<div class=scroll><table class=stages><tr>{heads}</tr>\n{rows}</table></div>")
}

/// The axis of an HDR plot: each additional nine takes the same width.
fn nines(percent: f64) -> f64 {
    -(1.0 - percent / 100.0).max(1e-6).log10()
}

fn percentiles(outcome: &Outcome) -> String {
    let name = if outcome.latency_raw.is_some() { "since it was due" } else { "latency" };
    let mut lines = vec![Line {
        name: name.into(),
        class: "one",
        kind: Kind::Line,
        points: distribution(&outcome.latency),
    }];
    if let Some(raw) = &outcome.latency_raw {
        lines.push(Line {
            name: "raw: since it was sent".into(),
            class: "two",
            kind: Kind::Line,
            points: distribution(raw),
        });
    }
    percentile_plot(lines)
}

/// Distributions over an axis of nines, with a logarithmic axis of times.
pub(crate) fn percentile_plot(lines: Vec<Line>) -> String {
    let marks = [0.0, 90.0, 99.0, 99.9, 99.99, 99.999];
    let x_ticks =
        marks.into_iter().map(|percent| Tick { at: nines(percent), text: format!("{percent} %") }).collect();
    Plot { lines, labels: Vec::new(), x_ticks, y_scale: Scale::Log, y_text: round_time }.svg()
}

/// Points of a [`percentile_plot`].
pub(crate) fn distribution(latency: &Latency) -> Vec<(f64, f64)> {
    // As many nines as there are requests to support them.
    let last = (latency.count().max(10) as f64).log10().min(5.0);
    (0..=200)
        .map(|at| last * f64::from(at) / 200.0)
        .map(|nines| (nines, latency.percentile(100.0 * (1.0 - 10f64.powf(-nines))) as f64))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nines_are_evenly_apart() {
        let at = [0.0, 90.0, 99.0, 99.9].map(nines);
        assert!(at.windows(2).all(|pair| (pair[1] - pair[0] - 1.0).abs() < 1e-9), "{at:?}");
    }
}
