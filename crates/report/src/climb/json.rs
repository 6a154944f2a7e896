//! A climb for programs: one JSON object, whose fields never change meaning. Gains are shares: 0.05 is 5 % better;
//! for latency and CPU they are before ÷ after − 1. `low` and `high` contain the true gain with a probability of at
//! least `confidence`, or 0.95 if it is missing. `before`, `after` and `total` come from the same alternating runs.
//! Unknown values are null.

use flatout_climb::{Disturbance, Effect, End, Estimate, Figures, Mean, Profiles, TriedRung};
use flatout_load::Latency;
use serde_json::{Value, json};

use super::Climb;
use crate::flame::to_json;

/// One object over several lines.
pub fn json(climb: &Climb) -> String {
    let outcome = &climb.outcome;
    let (end, error) = match &outcome.end {
        End::Done => ("done", None),
        End::Over => ("over", None),
        End::Interrupted => ("interrupted", None),
        End::Failed(error) => ("failed", Some(error.to_string())),
    };
    let object = json!({
        "noise_floor": outcome.noise.as_ref().and_then(|noise| noise.floor),
        "noise": outcome.noise.as_ref().and_then(|noise| noise.effect.on(climb.objective)).map(estimate),
        "noise_floor_of_servers": outcome.noise_of_servers.as_ref().and_then(|noise| noise.floor),
        "noise_of_servers":
            outcome.noise_of_servers.as_ref().and_then(|noise| noise.effect.on(climb.objective)).map(estimate),
        "objective": climb.objective.name(),
        "rungs": outcome.rungs.iter().map(|rung| rung_object(climb, rung)).collect::<Vec<_>>(),
        "total": outcome.total.as_ref().and_then(|total| total.on(climb.objective)).map(estimate),
        "total_effects": outcome.total.as_ref().map(effects),
        "before": outcome.before.as_ref().map(|figures| side(climb, figures)),
        "after": outcome.after.as_ref().map(|figures| side(climb, figures)),
        "load_rate_per_s": outcome.load_rate_per_s,
        "load": outcome.load,
        "cpu_of": outcome.cpu,
        "diff": outcome.diff,
        "date": climb.date,
        "machine": {
            "processor": climb.machine.processor,
            "cpus": climb.machine.cpus,
            "kernel": climb.machine.kernel,
        },
        "url": climb.url,
        "command": climb.command,
        "today": { "rate_per_s": climb.today.rate_per_s, "price_per_hour": climb.today.price_per_hour },
        "profiles": profiles(climb),
        "apply": outcome.apply,
        "take_back": outcome.take_back,
        "left_behind": outcome.left_behind,
        "next": outcome.next,
        "end": end,
        "error": error,
    });
    let mut text = serde_json::to_string_pretty(&object).unwrap_or_default();
    text.push('\n');
    text
}

fn rung_object(climb: &Climb, rung: &TriedRung) -> Value {
    let found = &rung.found;
    let forward = found.forward.as_ref().and_then(|effect| effect.on(climb.objective));
    json!({
        "name": rung.name,
        "status": found.status.name(),
        "how": found.how.name(),
        "gain": forward.map(|forward| forward.gain),
        "low": forward.map(|forward| forward.low),
        "high": forward.map(|forward| forward.high),
        "leave_one_out": found.leave_one_out.map(|among| among.gain),
        "leave_one_out_interval": found.leave_one_out.map(|among| [among.low, among.high]),
        "shapley": found.shapley.map(estimate),
        "effects": found.forward.as_ref().map(effects),
        "confidence": found.forward.as_ref().map(|effect| effect.confidence),
        "pairs": found.forward.as_ref().map_or(0, |effect| effect.pairs),
        "starts": found.forward.as_ref().map_or(0, |effect| effect.starts),
        "disturbance": found.forward.as_ref().and_then(|effect| effect.disturbance).map(disturbance),
        "elsewhere": found.forward.as_ref().and_then(|effect| effect.elsewhere).map(estimate),
        "reason": found.reason,
        "apply": rung.apply,
        "take_back": rung.take_back,
    })
}

/// In seconds of each second.
fn disturbance(lost: Disturbance) -> Value {
    json!({ "waited": lost.waited, "stolen": lost.stolen, "throttled": lost.throttled })
}

fn effects(effect: &Effect) -> Value {
    json!({
        "throughput": effect.throughput.map(estimate),
        "p99": effect.p99.map(estimate),
        "cpu": effect.cpu.map(estimate),
    })
}

fn estimate(estimate: Estimate) -> Value {
    json!({ "gain": estimate.gain, "low": estimate.low, "high": estimate.high })
}

/// In the figure's unit: requests per second, nanoseconds, microseconds.
fn mean(mean: Mean) -> Value {
    json!({ "mean": mean.mean, "low": mean.low, "high": mean.high })
}

/// In the format of `flatout profile --json`, for its `--diff`.
fn profiles(climb: &Climb) -> Value {
    match &climb.outcome.profiles {
        Ok(Profiles { before, after }) => {
            let value = |profile| serde_json::from_str::<Value>(&to_json(profile)).unwrap_or_default();
            json!({ "before": value(before), "after": after.as_ref().map(value), "missing": null })
        }
        Err(why) => json!({ "before": null, "after": null, "missing": why }),
    }
}

fn side(climb: &Climb, figures: &Figures) -> Value {
    let meaning = climb.meaning(figures);
    let percentile = |percent: f64| figures.latency.as_ref().map(|latency| latency.percentile(percent));
    json!({
        "requests_per_s": figures.requests_per_s,
        "p50_ns": figures.p50_ns,
        "p99_ns": figures.p99_ns,
        "p99_9_ns": percentile(99.9),
        "cpu_us_per_request": figures.cpu_us_per_request,
        "generator_share": figures.generator_share,
        "requests": figures.requests,
        "errors": figures.errors,
        "runs": figures.runs,
        "means": {
            "throughput": figures.means.throughput.map(mean),
            "p99": figures.means.p99.map(mean),
            "cpu": figures.means.cpu.map(mean),
        },
        "latency": figures.latency.as_ref().map(histogram),
        "requests_per_cpu_s": meaning.requests_per_cpu_s,
        "headroom": meaning.headroom,
        "machines": meaning.machines,
        "price_per_1e9_requests": meaning.price_per_1e9_requests,
    })
}

/// Requests by their latency, in steps of 0.1 %.
fn histogram(latency: &Latency) -> Value {
    let steps = || latency.histogram().iter_recorded();
    let ns: Vec<u64> = steps().map(|step| step.value_iterated_to()).collect();
    let counts: Vec<u64> = steps().map(|step| step.count_at_value()).collect();
    json!({ "ns": ns, "counts": counts })
}
