//! Reads a climb from its JSON, so that it can be drawn again. The result is checked: numbers are finite, intervals
//! contain their gains, profiles are valid.

use flatout_climb::{
    Effect, End, Error, Estimate, Figures, Found, How, Mean, Means, Noise, Objective, Outcome, Profiles,
    Status, TriedRung,
};
use flatout_load::Latency;
use flatout_profile::Profile;
use flatout_trial::compare::Word;
use flatout_trial::{Disturbance, Levels};
use serde::Deserialize;
use serde_json::Value;

use super::{Climb, Today};
use crate::{Machine, flame};

/// Rungs that fit on a page.
const RUNGS_MAX: usize = 1000;

/// The largest plausible gain, of one rung and of all together: a million times as good.
const GAIN_MAX: f64 = 1e6;

/// The largest figure of any kind.
const FIGURE_MAX: f64 = 1e15;

/// The confidence of intervals that do not state it.
const CONFIDENCE: f64 = 0.95;

/// All statuses, to look up names.
const STATUSES: [Status; 5] =
    [Status::Kept, Status::None, Status::Worse, Status::NotMeasurable, Status::Skipped];

#[derive(Deserialize)]
struct ClimbFile {
    noise_floor: Option<f64>,
    noise: Option<Interval>,
    noise_floor_of_servers: Option<f64>,
    noise_of_servers: Option<Interval>,
    objective: String,
    rungs: Vec<Rung>,
    total: Option<Interval>,
    total_effects: Option<Effects>,
    before: Option<Side>,
    after: Option<Side>,
    load_rate_per_s: Option<f64>,
    #[serde(default)]
    load: Option<String>,
    cpu_of: Option<String>,
    diff: Option<String>,
    machine: MachineEntry,
    url: String,
    command: Option<String>,
    #[serde(default)]
    date: Option<String>,
    #[serde(default)]
    today: TodayEntry,
    profiles: Option<ProfilesEntry>,
    apply: Option<String>,
    take_back: Option<String>,
    left_behind: Option<String>,
    #[serde(default)]
    next: Vec<String>,
    end: String,
    error: Option<String>,
}

#[derive(Deserialize)]
struct Rung {
    name: String,
    status: String,
    how: Option<String>,
    gain: Option<f64>,
    low: Option<f64>,
    high: Option<f64>,
    leave_one_out: Option<f64>,
    leave_one_out_interval: Option<[f64; 2]>,
    shapley: Option<Interval>,
    effects: Option<Effects>,
    #[serde(default)]
    pairs: usize,
    /// Missing in files of the first version.
    #[serde(default)]
    starts: usize,
    #[serde(default)]
    reason: String,
    /// Missing in files of earlier versions.
    disturbance: Option<LostShares>,
    /// The same.
    elsewhere: Option<Interval>,
    /// Missing in files of the first version, whose intervals were of 95 %.
    confidence: Option<f64>,
    apply: Option<String>,
    take_back: Option<String>,
}

#[derive(Deserialize, Clone, Copy)]
struct LostShares {
    waited: f64,
    stolen: f64,
    throttled: f64,
}

#[derive(Deserialize, Clone, Copy)]
struct Interval {
    gain: f64,
    low: f64,
    high: f64,
}

#[derive(Deserialize, Clone, Copy, Default)]
struct Effects {
    throughput: Option<Interval>,
    p99: Option<Interval>,
    cpu: Option<Interval>,
}

#[derive(Deserialize)]
struct Side {
    requests_per_s: f64,
    p50_ns: Option<f64>,
    p99_ns: Option<f64>,
    cpu_us_per_request: Option<f64>,
    /// Missing in files of the first version.
    #[serde(default)]
    generator_share: Option<f64>,
    requests: u64,
    errors: u64,
    runs: usize,
    /// Missing in files of the first version.
    #[serde(default)]
    means: MeansEntry,
    latency: Option<Histogram>,
}

#[derive(Deserialize, Clone, Copy, Default)]
struct MeansEntry {
    throughput: Option<MeanEntry>,
    p99: Option<MeanEntry>,
    cpu: Option<MeanEntry>,
}

#[derive(Deserialize, Clone, Copy)]
struct MeanEntry {
    mean: f64,
    low: f64,
    high: f64,
}

#[derive(Deserialize)]
struct Histogram {
    ns: Vec<u64>,
    counts: Vec<u64>,
}

#[derive(Deserialize)]
struct MachineEntry {
    processor: String,
    cpus: usize,
    kernel: String,
}

#[derive(Deserialize, Default)]
struct TodayEntry {
    rate_per_s: Option<f64>,
    price_per_hour: Option<f64>,
}

#[derive(Deserialize)]
struct ProfilesEntry {
    before: Option<Value>,
    after: Option<Value>,
    missing: Option<String>,
}

/// Parses the output of [`json`](super::json::json), without the climb it was compared with.
///
/// # Errors
/// What is wrong with the text and where, as a message.
pub fn from_json(text: &str) -> Result<Climb, String> {
    let no_climb = |error: String| format!("not a climb: {error}; need what `flatout climb --json` wrote");
    let file: ClimbFile = serde_json::from_str(text).map_err(|error| no_climb(error.to_string()))?;
    climb(file).map(Climb::without_secrets).map_err(no_climb)
}

fn climb(file: ClimbFile) -> Result<Climb, String> {
    let objective = Objective::ALL.into_iter().find(|objective| objective.name() == file.objective);
    let objective = objective.ok_or_else(|| {
        format!("its objective is `{}`, not one of throughput, p99 and cpu", file.objective)
    })?;
    if file.rungs.len() > RUNGS_MAX {
        return Err(format!("it has {} rungs, more than {RUNGS_MAX}", file.rungs.len()));
    }
    let share = figure;
    let outcome = Outcome {
        noise: noise("noise", (file.noise, file.noise_floor), objective)?,
        noise_of_servers: noise(
            "noise_of_servers",
            (file.noise_of_servers, file.noise_floor_of_servers),
            objective,
        )?,
        rungs: file.rungs.into_iter().map(|entry| rung(entry, objective)).collect::<Result<_, _>>()?,
        total: total(file.total, file.total_effects, objective)?,
        before: file.before.map(|entry| figures("before", entry)).transpose()?,
        after: file.after.map(|entry| figures("after", entry)).transpose()?,
        diff: file.diff,
        load_rate_per_s: share("load_rate_per_s", file.load_rate_per_s)?,
        load: file.load,
        cpu: file.cpu_of,
        apply: file.apply,
        take_back: file.take_back,
        profiles: profiles(file.profiles)?,
        end: end(&file.end, file.error)?,
        left_behind: file.left_behind,
        next: file.next,
        waiting: None,
    };
    let kept = outcome.rungs.iter().filter(|rung| rung.found.status == Status::Kept);
    let gains = kept.filter_map(|rung| rung.found.forward.as_ref()?.on(objective));
    if gains.fold(1.0, |level, gain| level * (1.0 + gain.gain)) > GAIN_MAX {
        return Err(format!("its rungs gain more than {GAIN_MAX} times together"));
    }
    let machine = file.machine;
    Ok(Climb {
        command: file.command,
        date: file.date,
        url: file.url,
        objective,
        outcome,
        machine: Machine { processor: machine.processor, cpus: machine.cpus, kernel: machine.kernel },
        today: Today {
            rate_per_s: share("today.rate_per_s", file.today.rate_per_s)?,
            price_per_hour: share("today.price_per_hour", file.today.price_per_hour)?,
        },
        old: None,
    })
}

fn rung(entry: Rung, objective: Objective) -> Result<TriedRung, String> {
    let name = entry.name;
    let status = STATUSES.into_iter().find(|status| status.name() == entry.status);
    let status = status.ok_or_else(|| {
        let names = STATUSES.map(Status::name).join(", ");
        format!("the status of rung `{name}` is `{}`, not one of {names}", entry.status)
    })?;
    // An older file without this field used only one method.
    let how = entry.how.unwrap_or_else(|| How::InTurn.name().to_owned());
    let how = How::ALL.into_iter().find(|known| known.name() == how).ok_or_else(|| {
        let names = How::ALL.map(How::name).join(", ");
        format!("rung `{name}` was found out `{how}`, not one of {names}")
    })?;
    let forward = match (entry.gain, entry.low, entry.high) {
        (Some(gain), Some(low), Some(high)) => Some(Interval { gain, low, high }),
        (None, None, None) => None,
        _ => return Err(format!("rung `{name}` has not all of gain, low and high")),
    };
    let among = match (entry.leave_one_out, entry.leave_one_out_interval) {
        (Some(gain), Some([low, high])) => Some(Interval { gain, low, high }),
        (None, None) => None,
        _ => return Err(format!("rung `{name}` has not both of leave_one_out and its interval")),
    };
    let effects = merged(entry.effects, forward, objective);
    let confidence = entry.confidence.unwrap_or(CONFIDENCE);
    if !(0.0..1.0).contains(&confidence) {
        return Err(format!("rung `{name}` has a confidence of {confidence}, not of 0 to less than 1"));
    }
    let disturbance = entry.disturbance.map(|lost| disturbance(&name, lost)).transpose()?;
    // Other programs may use many times as much as the server.
    let elsewhere = entry.elsewhere.map(|Interval { gain, low, high }| Estimate { gain, low, high });
    if elsewhere.is_some_and(|share| !(share.low <= share.gain && share.gain <= share.high)) {
        return Err(format!("rung `{name}` has no interval of the CPU time elsewhere"));
    }
    let completed =
        |effect: Effect| Effect { confidence, starts: entry.starts, disturbance, elsewhere, ..effect };
    let found = Found {
        status,
        how,
        forward: effects
            .map(|effects| effect(&name, effects, objective, entry.pairs))
            .transpose()?
            .map(completed),
        leave_one_out: among.map(|among| estimate(&name, among)).transpose()?,
        shapley: entry.shapley.map(|share| estimate(&name, share)).transpose()?,
        reason: entry.reason,
    };
    Ok(TriedRung { name, found, apply: entry.apply, take_back: entry.take_back })
}

/// Seconds in each second: not negative, and of no more threads than a machine can have.
fn disturbance(name: &str, lost: LostShares) -> Result<Disturbance, String> {
    let LostShares { waited, stolen, throttled } = lost;
    match [waited, stolen, throttled].iter().all(|share| (0.0..=SHARE_MAX).contains(share)) {
        true => Ok(Disturbance { waited, stolen, throttled }),
        false => Err(format!(
            "rung `{name}` has a disturbance of {waited}, {stolen}, {throttled}, not of 0 to {SHARE_MAX}"
        )),
    }
}

/// Threads that can wait at once: the largest number of processes.
const SHARE_MAX: f64 = (1 << 22) as f64;

/// The effect on every figure; the main figure's effect also has the pairs and errors.
fn merged(effects: Option<Effects>, main: Option<Interval>, objective: Objective) -> Option<Effects> {
    match (effects, main) {
        (None, main) => main.map(|main| on(objective, main)),
        (effects, None) => effects,
        (Some(effects), Some(main)) => {
            let main = on(objective, main);
            Some(Effects {
                throughput: main.throughput.or(effects.throughput),
                p99: main.p99.or(effects.p99),
                cpu: main.cpu.or(effects.cpu),
            })
        }
    }
}

fn noise(
    name: &str,
    (interval, floor): (Option<Interval>, Option<f64>),
    objective: Objective,
) -> Result<Option<Noise>, String> {
    let floor = figure(&name.replacen("noise", "noise_floor", 1), floor)?;
    let effect = interval.map(|interval| effect(name, on(objective, interval), objective, 0)).transpose()?;
    Ok(effect.map(|effect| Noise { effect, floor }))
}

fn on(objective: Objective, interval: Interval) -> Effects {
    let none = Effects::default();
    match objective {
        Objective::Throughput => Effects { throughput: Some(interval), ..none },
        Objective::P99 => Effects { p99: Some(interval), ..none },
        Objective::Cpu => Effects { cpu: Some(interval), ..none },
    }
}

fn total(
    total: Option<Interval>,
    effects: Option<Effects>,
    objective: Objective,
) -> Result<Option<Effect>, String> {
    merged(effects, total, objective).map(|effects| effect("total", effects, objective, 0)).transpose()
}

fn effect(name: &str, effects: Effects, objective: Objective, pairs: usize) -> Result<Effect, String> {
    let read = |interval: Option<Interval>| interval.map(|interval| estimate(name, interval)).transpose();
    let mut effect = Effect {
        throughput: read(effects.throughput)?,
        p99: read(effects.p99)?,
        cpu: read(effects.cpu)?,
        word: Word::NoDifference,
        pairs,
        starts: 0,
        errors_rose: None,
        confidence: CONFIDENCE,
        levels: Levels::default(),
        disturbance: None,
        elsewhere: None,
    };
    effect.word = match effect.on(objective) {
        Some(estimate) if estimate.low > 0.0 => Word::Faster,
        Some(estimate) if estimate.high < 0.0 => Word::Slower,
        _ => Word::NoDifference,
    };
    Ok(effect)
}

/// Gains come from ratios of two positive numbers, so none is −100 %.
fn estimate(name: &str, interval: Interval) -> Result<Estimate, String> {
    let Interval { gain, low, high } = interval;
    match -1.0 <= low && low <= gain && gain <= high && gain > -1.0 && gain <= GAIN_MAX {
        true => Ok(Estimate { gain, low, high }),
        false => Err(format!("`{name}` has a gain of {gain} between {low} and {high}")),
    }
}

fn figures(name: &str, side: Side) -> Result<Figures, String> {
    let checked = |field: &str, value| figure(&format!("{name}.{field}"), value);
    checked("requests_per_s", Some(side.requests_per_s))?;
    Ok(Figures {
        requests_per_s: side.requests_per_s,
        p50_ns: checked("p50_ns", side.p50_ns)?,
        p99_ns: checked("p99_ns", side.p99_ns)?,
        cpu_us_per_request: checked("cpu_us_per_request", side.cpu_us_per_request)?,
        generator_share: checked("generator_share", side.generator_share)?,
        requests: side.requests,
        errors: side.errors,
        runs: side.runs,
        means: Means {
            throughput: mean(name, side.means.throughput)?,
            p99: mean(name, side.means.p99)?,
            cpu: mean(name, side.means.cpu)?,
        },
        latency: side.latency.map(|histogram| latency(name, &histogram)).transpose()?,
    })
}

fn mean(name: &str, entry: Option<MeanEntry>) -> Result<Option<Mean>, String> {
    let Some(MeanEntry { mean, low, high }) = entry else { return Ok(None) };
    match 0.0 < low && low <= mean && mean <= high {
        true => Ok(Some(Mean { mean, low, high })),
        false => Err(format!("{name}.means has a mean of {mean} between {low} and {high}")),
    }
}

fn latency(name: &str, histogram: &Histogram) -> Result<Latency, String> {
    let (ns, counts) = (&histogram.ns, &histogram.counts);
    if ns.len() != counts.len() {
        return Err(format!("{name}.latency has {} values and {} counts", ns.len(), counts.len()));
    }
    if counts.iter().try_fold(0u64, |sum, count| sum.checked_add(*count)).is_none() {
        return Err(format!("{name}.latency counts more requests than there can be"));
    }
    let mut latency = Latency::new();
    ns.iter().zip(counts).for_each(|(ns, count)| latency.record_several(*ns, *count));
    Ok(latency)
}

fn profiles(entry: Option<ProfilesEntry>) -> Result<Result<Profiles, String>, String> {
    let Some(entry) = entry else { return Ok(Err("the file has none".to_owned())) };
    let read = |side: &str, value: Option<Value>| -> Result<Option<Profile>, String> {
        let text = value.filter(|value| !value.is_null()).map(|value| value.to_string());
        let profile = text.map(|text| flame::from_json(&text)).transpose();
        profile.map_err(|error| format!("profiles.{side}: {error}"))
    };
    let after = read("after", entry.after)?;
    Ok(match read("before", entry.before)? {
        Some(before) => Ok(Profiles { before, after }),
        None => Err(entry.missing.unwrap_or_default()),
    })
}

fn end(name: &str, error: Option<String>) -> Result<End<Error>, String> {
    match name {
        "done" => Ok(End::Done),
        "over" => Ok(End::Over),
        "interrupted" => Ok(End::Interrupted),
        "failed" => Ok(End::Failed(Error::System(error.unwrap_or_default()))),
        _ => Err(format!("its end is `{name}`, not one of done, over, interrupted and failed")),
    }
}

fn figure(name: &str, value: Option<f64>) -> Result<Option<f64>, String> {
    match value {
        Some(value) if value < 0.0 => Err(format!("{name} is {value}, less than 0")),
        Some(value) if value > FIGURE_MAX => Err(format!("{name} is {value}, more than {FIGURE_MAX}")),
        value => Ok(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::climb::json::json;
    use crate::climb::scripted;

    #[test]
    fn written_files_can_be_read_again() {
        for climb in [scripted::climb(), scripted::bare()] {
            let text = json(&climb);
            let again = json(&from_json(&text).unwrap());
            let lines = again.lines().zip(text.lines());
            // A differing line says more than two files.
            lines.for_each(|(again, was)| assert_eq!(again, was));
            assert_eq!(again.len(), text.len());
        }
    }

    #[test]
    fn malformed_files_are_reported() {
        let good: Value = serde_json::from_str(&json(&scripted::climb())).unwrap();
        for (at, value, expected) in [
            ("/objective", Value::from("fun"), "its objective is `fun`, not one of throughput, p99 and cpu"),
            ("/end", "never".into(), "its end is `never`"),
            ("/noise_floor", (-0.1).into(), "noise_floor is -0.1, less than 0"),
            ("/rungs", Value::Null, "invalid type: null, expected a sequence"),
            ("/rungs/0/status", "good".into(), "is `good`, not one of kept, none, worse"),
            ("/rungs/0/how", "by luck".into(), "was found out `by luck`, not one of in-turn"),
            ("/rungs/0/low", Value::Null, "has not all of gain, low and high"),
            ("/rungs/0/leave_one_out", Value::Null, "has not both of leave_one_out"),
            ("/rungs/0/low", 7.0.into(), "between 7 and"),
            ("/rungs/1/shapley", serde_json::json!({"gain": -2, "low": -3, "high": 1}), "a gain of -2"),
            ("/before/requests_per_s", (-1).into(), "before.requests_per_s is -1"),
            ("/before/latency/ns", Value::Array(vec![]), "before.latency has 0 values and"),
            ("/before/means/throughput/low", 0.into(), "before.means has a mean of"),
            ("/after/latency/counts/0", u64::MAX.into(), "after.latency counts more"),
            ("/profiles/before/format", "x".into(), "profiles.before: not a profile: its format is `x`"),
            ("/machine/cpus", "two".into(), "invalid type: string"),
            ("/machine/cpus", (-1).into(), "invalid value: integer `-1`"),
            ("/before/requests", (-5).into(), "invalid value: integer `-5`"),
            ("/today/price_per_hour", 1e300.into(), "today.price_per_hour is 1"),
            ("/rungs", vec![good["rungs"][0].clone(); 1001].into(), "it has 1001 rungs, more than 1000"),
            ("/rungs", vec![good["rungs"][0].clone(); 100].into(), "gain more than 1000000 times together"),
        ] {
            let mut broken = good.clone();
            *broken.pointer_mut(at).unwrap() = value;
            let message = from_json(&broken.to_string()).unwrap_err();
            assert!(message.starts_with("not a climb: ") && message.contains(expected), "{message}");
        }
        for text in ["", "[]", "{}", "7", "{\"rungs\":[]}", "<html>"] {
            let message = from_json(text).unwrap_err();
            assert!(message.contains("need what `flatout climb --json` wrote"), "{message}");
        }
    }
}
