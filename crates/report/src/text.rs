//! The result for a terminal, in the order that users of wrk expect.

use std::fmt::Write;
use std::time::Duration;

use flatout_load::{Agreed, Arrival, Latency, Outcome, Pacing, Plan, Sequence, StageOutcome};

use crate::require::kinds;
use crate::unit::{bytes, count, round_time, time};
use crate::{Measured, comparison, histogram, limit, search, stages};

/// Columns of the widest bar of a plot.
const BAR_COLUMNS: f64 = 40.0;

/// Rows of the histogram, so that the result fits on one screen.
const HISTOGRAM_ROWS_MAX: usize = 12;

/// Percentiles of the short and of the long table.
const SHORT: &[f64] = &[50.0, 90.0, 99.0, 99.9];
const LONG: &[f64] = &[10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.99, 99.999];

/// The whole result; `detailed` adds less common percentiles.
pub fn text(measured: &Measured, detailed: bool) -> String {
    let (plan, outcome) = (&measured.plan, &measured.outcome);
    let mut out = String::new();
    if let Some(compared) = &measured.comparison {
        comparison::text(&mut out, measured, compared);
    }
    verdict(&mut out, measured);
    headline(&mut out, measured);
    latencies(&mut out, outcome, if detailed { LONG } else { SHORT });
    if outcome.latency.count() > 0 {
        let _ = writeln!(out, "  Latency histogram");
        distribution(&mut out, &outcome.latency);
    }
    totals(&mut out, plan, outcome);
    trials(&mut out, &measured.trials);
    costs(&mut out, outcome);
    if plan.pacing != Pacing::Closed || plan.connections > 1000 {
        let _ = writeln!(out, "  {} connections were open at the end", count(outcome.connections_held));
    }
    stages(&mut out, &outcome.stages);
    search::table(&mut out, measured);
    for warning in measured.warnings() {
        let _ = writeln!(out, "warning: {warning}");
    }
    out
}

/// A sparkline of `values`, the highest as the full block.
pub fn sparkline(values: &[f64]) -> String {
    const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let max = values.iter().copied().fold(0.0, f64::max).max(f64::MIN_POSITIVE);
    values.iter().map(|value| BLOCKS[((value / max * 7.0).round() as usize).min(7)]).collect()
}

/// What most readers want to know: how many, how fast, how many errors, and who was the limit.
fn verdict(out: &mut String, measured: &Measured) {
    let outcome = &measured.outcome;
    let what = if measured.plan.subscribe.is_some() { "messages/s" } else { "requests/s" };
    let [p50, p99] = [50.0, 99.0].map(|percent| percentile(&outcome.latency, percent));
    let errors = match outcome.errors.sum() {
        0 => "no errors".to_owned(),
        1 => "1 error".to_owned(),
        sum => format!("{} errors", count(sum)),
    };
    let rate = count(outcome.requests_per_s().round() as u64);
    if let Some(sentence) = search::sentence(measured) {
        let _ = writeln!(out, "{sentence}");
    }
    let _ = writeln!(out, "{rate} {what}   p50 {p50}   p99 {p99}   {errors}");
    let _ = writeln!(out, "limit: {}\n", limit(measured).reason);
}

/// A percentile; a dash without latencies.
pub(crate) fn percentile(latency: &Latency, percent: f64) -> String {
    known(latency, latency.percentile(percent) as f64)
}

fn known(latency: &Latency, nanoseconds: f64) -> String {
    if latency.count() == 0 { "–".to_owned() } else { time(nanoseconds) }
}

/// Shorter waits for open requests are not mentioned.
const OPEN_WAIT_MIN: Duration = Duration::from_millis(100);

fn headline(out: &mut String, measured: &Measured) {
    let plan = &measured.plan;
    let (elapsed, wait) = (measured.outcome.elapsed, measured.outcome.open_wait);
    let more = match wait >= OPEN_WAIT_MIN {
        true => format!(", then {wait:.1?} for open requests"),
        false => String::new(),
    };
    let _ = writeln!(out, "Running {elapsed:.1?} test{more} @ {}", measured.url);
    let _ = writeln!(
        out,
        "  {} and {}, {}",
        several(plan.threads, "thread"),
        several(plan.connections, "connection"),
        how(plan)
    );
}

/// A number of things, with a plural.
pub fn several(number: usize, what: &str) -> String {
    format!("{} {what}{}", count(number as u64), if number == 1 { "" } else { "s" })
}

/// Describes how the load is generated.
pub fn how(plan: &Plan) -> String {
    let pacing = match (plan.subscribe, plan.pacing) {
        (Some(transport), _) => format!("subscribed by {}", transport.name()),
        (None, Pacing::Closed) => "closed loop".to_owned(),
        (None, Pacing::Open { per_s, arrival }) => {
            format!("open loop at {per_s:.0} requests/s, {}", spread(arrival))
        }
        (None, Pacing::Staged { arrival }) => {
            format!("open loop in {}, {}", several(plan.stages.len(), "stage"), spread(arrival))
        }
    };
    let pipeline = if plan.pipeline > 1 { format!(", {} pipelined", plan.pipeline) } else { String::new() };
    let close = if plan.close { ", a new connection for each request" } else { "" };
    let streams = match plan.streams {
        Some(streams) => format!(", HTTP/2 with {} per connection", several(streams, "stream")),
        None => String::new(),
    };
    format!("{pacing}{pipeline}{streams}{close}")
}

fn spread(arrival: Arrival) -> &'static str {
    match arrival {
        Arrival::Constant => "constant",
        Arrival::Poisson => "poisson",
    }
}

fn latencies(out: &mut String, outcome: &Outcome, percentiles: &[f64]) {
    let _ = write!(out, "  {:<22}", "Latency");
    for percent in percentiles {
        let _ = write!(out, "{:>10}", format!("p{percent}"));
    }
    let _ = writeln!(out, "{:>10}{:>10}", "max", "mean");
    let name = if outcome.latency_raw.is_some() { "since it was due" } else { "since it was sent" };
    line(out, name, &outcome.latency, percentiles);
    if let Some(raw) = &outcome.latency_raw {
        line(out, "raw: since it was sent", raw, percentiles);
    }
}

fn line(out: &mut String, name: &str, latency: &Latency, percentiles: &[f64]) {
    let _ = write!(out, "  {name:<22}");
    for percent in percentiles {
        let _ = write!(out, "{:>10}", percentile(latency, *percent));
    }
    let _ =
        writeln!(out, "{:>10}{:>10}", known(latency, latency.max() as f64), known(latency, latency.mean()));
}

/// The histogram as bars; rows that are too small for an eighth of a column have at least a mark.
fn distribution(out: &mut String, latency: &Latency) {
    let rows = histogram::rows(latency, HISTOGRAM_ROWS_MAX);
    let most = rows.iter().map(|row| row.count).max().unwrap_or(0).max(1);
    let sum = latency.count().max(1) as f64;
    for row in &rows {
        let to = round_time(row.to_ns as f64);
        let share = 100.0 * row.count as f64 / sum;
        let bar = bar(row.count as f64 / most as f64 * BAR_COLUMNS);
        let counted = count(row.count);
        let _ = writeln!(out, "  ≤ {to:>7}{counted:>13}{share:>7.2} %  {bar}");
    }
}

/// A bar of this many columns, to an eighth of one.
pub fn bar(columns: f64) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = (columns * 8.0).round() as usize;
    let eighths = if columns > 0.0 { eighths.max(1) } else { 0 };
    "█".repeat(eighths / 8) + EIGHTHS[eighths % 8]
}

/// Statuses with their counts.
fn statuses(out: &mut String, outcome: &Outcome) {
    let all: Vec<String> =
        outcome.statuses.iter().map(|(status, times)| format!("{status} × {}", count(times))).collect();
    if !all.is_empty() {
        let _ = writeln!(out, "  Status codes: {}", all.join(", "));
    }
}

fn totals(out: &mut String, plan: &Plan, outcome: &Outcome) {
    let (what, title) = match plan.subscribe {
        Some(_) => ("messages", "Messages"),
        None => ("requests", "Requests"),
    };
    let read = bytes(outcome.bytes_read as f64);
    let meanwhile = match outcome.rate_requests < outcome.requests {
        true => format!(", {} responses in the measured", count(outcome.rate_requests)),
        false => " in".to_owned(),
    };
    let _ =
        writeln!(out, "  {} {what}{meanwhile} {:.2?}, {read} read", count(outcome.requests), outcome.elapsed);
    statuses(out, outcome);
    if outcome.errors.sum() > 0 {
        let _ = writeln!(out, "  Errors: {}", kinds(&outcome.errors));
    }
    handshakes(out, outcome);
    if let Some(Sequence { missed, repeated, gaps }) = outcome.sequence {
        let all = [missed, repeated, gaps].map(count);
        let _ = writeln!(
            out,
            "  Missing {}, repeated {}, gaps reported by the server {}",
            all[0], all[1], all[2]
        );
    }
    let _ = writeln!(out, "{title}/sec: {:>12.2}", outcome.requests_per_s());
    let bytes_each = outcome.bytes_read as f64 / outcome.requests.max(1) as f64;
    let per_s = match outcome.requests {
        0 => outcome.bytes_read as f64 / outcome.elapsed.as_secs_f64().max(1e-9),
        _ => bytes_each * outcome.requests_per_s(),
    };
    let _ = writeln!(out, "Transfer/sec: {:>12}", bytes(per_s));
    if outcome.series.len() > 1 {
        let values: Vec<f64> =
            outcome.series.iter().rev().take(60).rev().map(|value| *value as f64).collect();
        let _ = writeln!(out, "  each second  {}", sparkline(&values));
    }
}

/// The TLS handshakes.
fn handshakes(out: &mut String, outcome: &Outcome) {
    let Some(found) = &outcome.handshakes else { return };
    if let Some(Agreed { version, cipher, key_exchange, protocol }) = &found.agreed {
        let protocol = protocol.as_ref().map(|name| format!("ALPN {name}"));
        let more: Vec<String> =
            key_exchange.iter().cloned().chain(protocol).map(|it| format!(", {it}")).collect();
        let _ = writeln!(out, "  {version}, {cipher}{}", more.concat());
    }
    let _ = writeln!(
        out,
        "  Handshakes: {} full, {} resumed; {:.2} per second",
        count(found.full),
        count(found.resumed),
        outcome.handshakes_per_s().unwrap_or_default()
    );
}

fn trials(out: &mut String, trials: &[f64]) {
    if trials.len() > 1 {
        let low = trials.iter().copied().fold(f64::INFINITY, f64::min);
        let high = trials.iter().copied().fold(0.0, f64::max);
        let _ =
            writeln!(out, "  the median of {} trials from {low:.0} to {high:.0} requests/s", trials.len());
    }
}

fn costs(out: &mut String, outcome: &Outcome) {
    if let (Some((user, kernel)), Some(used)) = (outcome.server_cpu_us_per_request(), &outcome.server_cpu) {
        let pids: Vec<String> = used.pids.iter().map(u32::to_string).collect();
        let _ = writeln!(
            out,
            "  CPU of the server: {:.2} µs per request (user {user:.2}, kernel {kernel:.2}), process {}",
            user + kernel,
            pids.join(", ")
        );
    }
    if let Some(cost) = outcome.machine_cpu_us_per_request() {
        let _ = writeln!(
            out,
            "  CPU of the machine without this client: {cost:.2} µs per request (other programs included)"
        );
    }
    let shares: Vec<String> =
        outcome.threads.iter().map(|thread| format!("{:.0} %", thread.share() * 100.0)).collect();
    let each = match outcome.requests {
        0 => String::new(),
        _ => format!("{:.2} µs per request, ", outcome.client_cpu_us_per_request()),
    };
    let _ = writeln!(out, "  CPU of the client: {each}threads at {}", shares.join(", "));
}

/// A table of stages.
fn stages(out: &mut String, found: &[StageOutcome]) {
    let heads = stages::HEADS.map(str::to_owned);
    for row in Some(heads).filter(|_| !found.is_empty()).into_iter().chain(stages::rows(found)) {
        let [length, offered, responses, times @ .., errors] = row;
        let times = times.map(|time| format!("{time:>10}")).concat();
        let _ = writeln!(out, "  {length:>8} {offered:>17} {responses:>13}{times}{errors:>10}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sparklines_follow_their_values() {
        assert_eq!(sparkline(&[0.0, 7.0, 14.0]), "▁▅█");
        assert_eq!(sparkline(&[]), "");
    }
}
