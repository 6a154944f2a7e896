//! A climb for a terminal: the waterfall, its meaning, and the commands.

use std::fmt::Write;

use flatout_climb::{
    Ahead, Disturbance, End, Estimate, Figures, Finished, How, Noise, Objective, Outcome, Profiles, TriedRung,
};
use flatout_profile::compare;
use flatout_trial::compare::Word;

use super::Climb;
use super::course::INTERVAL_COLUMNS;
use super::fall::Fall;
use crate::flame::comparison_table;
use crate::text::bar;
use crate::unit::{count, time};

/// Columns of the longest bar.
const BAR_COLUMNS: f64 = 30.0;

/// Columns of a rung's command.
const COMMAND_COLUMNS: usize = 48;

/// A larger noise floor hides most gains of tunings.
const NOISE_FLOOR_MAX: f64 = 0.10;

/// The whole result.
pub fn text(climb: &Climb) -> String {
    let outcome = &climb.outcome;
    let mut out = String::new();
    let floor = floors(outcome);
    let rate = match outcome.load_rate_per_s {
        Some(per_s) => format!(" at {} requests/s", count(per_s.round() as u64)),
        None => String::new(),
    };
    let _ = writeln!(
        out,
        "Climb @ {} for {}{rate}, measuring noise (A/A) {floor}",
        climb.url,
        climb.objective.name()
    );
    if let Some(load) = &outcome.load {
        let _ = writeln!(out, "  load: {load}");
    }
    if let Some(cpu) = cpu_of(outcome) {
        let _ = writeln!(out, "  CPU time: of {cpu}");
    }
    waterfall(&mut out, climb);
    sides(&mut out, climb);
    if let Ok(Profiles { before, after: Some(after) }) = &outcome.profiles
        && let Ok(comparison) = compare(before, after)
    {
        out.push_str(&comparison_table(&comparison));
    }
    if let Some(old) = &climb.old {
        for sentence in old.compared(climb) {
            let _ = writeln!(out, "  since the earlier climb: {sentence}");
        }
    }
    if let Some(apply) = &outcome.apply {
        let _ = writeln!(out, "  apply:        {apply}");
    }
    if let Some(diff) = outcome.diff.as_ref().filter(|diff| !diff.is_empty()) {
        let _ =
            writeln!(out, "  apply it to the server's configuration (patch -p1 -d /):\n{}", diff.trim_end());
    }
    if let Some(take_back) = &outcome.take_back {
        let _ = writeln!(out, "  undo:         {take_back}");
    }
    for (at, step) in outcome.next.iter().enumerate() {
        let name = if at == 0 { "next:" } else { "" };
        let _ = writeln!(out, "  {name:<13} {step}");
    }
    for warning in warnings(climb) {
        let _ = writeln!(out, "warning: {warning}");
    }
    // Text from a file or a command must not control the terminal.
    out.replace(|char: char| char.is_control() && char != '\n', "\u{fffd}")
}

/// What the CPU time is of, if there is one.
pub(super) fn cpu_of(outcome: &Outcome) -> Option<&str> {
    let has_cpu = outcome.before.as_ref().is_some_and(|before| before.cpu_us_per_request.is_some());
    outcome.cpu.as_deref().filter(|_| has_cpu)
}

/// The noise floor, or those of both kinds of changes.
pub(super) fn floors(outcome: &Outcome) -> String {
    let floor = |noise: &Option<Noise>| {
        let floor = noise.as_ref().and_then(|noise| noise.floor);
        floor.map_or("not known".to_owned(), |floor| format!("{:.1} %", floor * 100.0))
    };
    match &outcome.noise_of_servers {
        None => floor(&outcome.noise),
        servers => format!("{}, of changes of the server {}", floor(&outcome.noise), floor(servers)),
    }
}

/// Warnings for the reader.
pub(super) fn warnings(climb: &Climb) -> Vec<String> {
    let outcome = &climb.outcome;
    let mut told = Vec::new();
    for noise in [&outcome.noise, &outcome.noise_of_servers].into_iter().flatten() {
        if noise.effect.word != Word::NoDifference
            && let Some(estimate) = noise.effect.on(climb.objective)
        {
            told.push(format!(
                "two runs with nothing changed between them differ by {} %: something changes with every other run. All \
                 intervals of changes measured like them are wider by that",
                interval(&estimate)
            ));
        }
    }
    if let Some(total) = &outcome.total
        && total.word == Word::NoDifference
    {
        told.push("all that was kept together makes no significant difference".to_owned());
    }
    let noise = outcome.noise_of_servers.as_ref().or(outcome.noise.as_ref());
    if noise.and_then(|noise| noise.floor).is_some_and(|floor| floor > NOISE_FLOOR_MAX) {
        told.push(
            "this machine is noisy, so small effects cannot be seen; use a larger --budget, --for cpu, or stop other \
             programs"
                .to_owned(),
        );
    }
    let figures = outcome.before.iter().chain(&outcome.after);
    if climb.objective == Objective::Throughput && figures.clone().any(Figures::is_limited_by_generator) {
        let busiest = figures.filter_map(|figures| figures.generator_share).fold(0.0, f64::max);
        told.push(format!(
            "the load generator was the limit: its busiest thread was on its CPU {:.0} % of the time, so the server's real \
             gains are larger; use more --threads, or --for cpu",
            busiest * 100.0
        ));
    }
    let effects = outcome.rungs.iter().filter_map(|rung| rung.found.forward.as_ref());
    if let Some(lost) = Disturbance::mean(effects.map(|effect| effect.disturbance)) {
        told.extend(disturbances(&lost));
    }
    told.extend(outcome.rungs.iter().filter_map(elsewhere));
    match &outcome.end {
        End::Done => {}
        End::Over => {
            told.push("the budget ran out before everything was measured; use a larger --budget".to_owned())
        }
        End::Interrupted => told.push("interrupted: these are the results so far".to_owned()),
        End::Failed(error) => told.push(format!("stopped early: {error}")),
    }
    told.extend(outcome.left_behind.clone());
    told
}

/// Less CPU time elsewhere on the machine is not reported, as a share of the server's.
const ELSEWHERE_MIN: f64 = 0.02;

/// The machine's CPU time as a check of the server's: a change that moves work to other programs makes only the server cheaper.
fn elsewhere(rung: &TriedRung) -> Option<String> {
    let found = rung.found.forward.as_ref()?.elsewhere?;
    let verb = match () {
        () if found.low > 0.0 && found.gain >= ELSEWHERE_MIN => "more",
        () if found.high < 0.0 && found.gain <= -ELSEWHERE_MIN => "less",
        () => return None,
    };
    let percent = |share: f64| (share * 100.0).abs();
    let (least, most) = (found.low.abs().min(found.high.abs()), found.low.abs().max(found.high.abs()));
    Some(format!(
        "{}: the machine and the server disagree. With the change, the rest of the machine used {verb} CPU time, by {:.1} % of the \
         server's ({:.1} to {:.1}): the change moves work to or from other programs, or these were busy by themselves",
        rung.name,
        percent(found.gain),
        percent(least),
        percent(most)
    ))
}

/// A larger share of a CPU that the hypervisor took is reported.
const STOLEN_MAX: f64 = 0.05;

/// A larger share of the time in which a quota stopped the server is reported.
const THROTTLED_MAX: f64 = 0.01;

/// What took CPU time from the server, if it was much.
fn disturbances(lost: &Disturbance) -> Vec<String> {
    let stolen = (lost.stolen > STOLEN_MAX).then(|| {
        format!("the hypervisor took {:.0} % of a CPU meanwhile: intervals are wider than on a machine of its own", lost.stolen * 100.0)
    });
    let throttled = (lost.throttled > THROTTLED_MAX).then(|| {
        format!(
            "the server's CPU quota stopped it {:.0} % of the time: throughput and latency are those of the quota (see flatout tune explain \
             cpu-quota)",
            lost.throttled * 100.0
        )
    });
    stolen.into_iter().chain(throttled).collect()
}

/// The result of a rung that was just measured, in one line without a line end.
pub fn finished_line(finished: &Finished<'_>) -> String {
    let Finished { name, found, objective } = finished;
    let forward = found.forward.as_ref().and_then(|effect| effect.on(*objective));
    let gain = forward.map_or(String::new(), |forward| match found.how {
        How::FromTheOtherSide => cost(&forward.as_cost(*objective)),
        How::InTurn | How::Switched | How::SideBySide | How::AcrossReboot => interval(&forward),
    });
    let why = if found.reason.is_empty() { String::new() } else { format!("  ({})", found.reason) };
    let pairs = found.forward.as_ref().filter(|_| !gain.is_empty()).map_or(0, |effect| effect.pairs);
    let counted = match pairs {
        0 => String::new(),
        1 => format!("{:>4} pair", 1),
        pairs => format!("{pairs:>4} pairs"),
    };
    let line = format!("{name:<24} {:<15} {gain:<INTERVAL_COLUMNS$} {counted}{why}", found.status.name());
    line.trim_end().replace(|char: char| char.is_control(), "\u{fffd}")
}

/// What the climb will be able to see, in one line without a line end.
pub fn ahead_line(ahead: &Ahead) -> String {
    let seconds = |time: std::time::Duration| match time.as_secs_f64() {
        long if long >= 600.0 => format!("{:.0} min", long / 60.0),
        short => format!("{short:.0} s"),
    };
    let needed = ahead.needed.iter().map(|(gain, time)| match time {
        Some(time) => format!("{:.0} % needs {}", gain * 100.0, seconds(*time)),
        None => format!("{:.0} % cannot, because starts of the server differ by more", gain * 100.0),
    });
    format!(
        "changes of {:.1} % or more can be seen in {} each (in 4 of 5 climbs): {}",
        ahead.smallest * 100.0,
        seconds(ahead.each),
        needed.collect::<Vec<_>>().join(", ")
    )
}

/// One line per rung; for kept ones, a bar with their combined level.
fn waterfall(out: &mut String, climb: &Climb) {
    let fall = Fall::of(climb);
    let rungs = &climb.outcome.rungs;
    let name_columns = rungs.iter().map(|rung| rung.name.chars().count()).max().unwrap_or(0).max(6);
    let longest = fall.total.map_or(0.0, |total| 1.0 + total.gain).max(fall.top()).max(1.0);
    let bar = |at: f64| bar(at / longest * BAR_COLUMNS);
    let _ = writeln!(
        out,
        "  {:<name_columns$}  {:<14}  {:<26}  {:>9}",
        "rung", "status", "gain (interval)", "left out"
    );
    let _ =
        writeln!(out, "  {:<name_columns$}  {:<52} {:>14} {}", "before", "", fall.figure_at(1.0), bar(1.0));
    for step in &fall.steps {
        let (rung, found) = (step.rung, &step.rung.found);
        let gain = step.gain.map_or(String::new(), |gain| match found.how {
            How::InTurn | How::Switched | How::SideBySide | How::AcrossReboot => interval(&gain),
            How::FromTheOtherSide => cost(&gain.as_cost(climb.objective)),
        });
        let among =
            found.leave_one_out.map_or(String::new(), |among| format!("{:+.1} %", among.gain * 100.0));
        let status = found.status.name();
        let _ = write!(out, "  {:<name_columns$}  {status:<14}  {gain:<26}  {among:>8}", rung.name);
        if step.is_kept() && step.gain.is_some() {
            let _ = write!(out, " {:>14} {}", fall.figure_at(step.ended), bar(step.ended));
        }
        let trimmed = out.trim_end().len();
        out.truncate(trimmed);
        out.push('\n');
        if !found.reason.is_empty() {
            let _ = writeln!(out, "  {:<name_columns$}  ({})", "", found.reason);
        }
        let commands = [("set by", &rung.apply), ("unset by", &rung.take_back)].map(command);
        let commands: Vec<String> = commands.into_iter().flatten().collect();
        // The reasons of unmeasured rungs are listed elsewhere.
        if found.forward.is_some() && !commands.is_empty() {
            let _ = writeln!(out, "  {:<name_columns$}  {}", "", commands.join(", "));
        }
    }
    // Measured in one comparison, so it need not equal the product of the rungs' gains.
    if let Some(total) = fall.total.filter(|_| !fall.figure_after().is_empty()) {
        let (figure, bar) = (fall.figure_after(), bar(1.0 + total.gain));
        let _ = writeln!(out, "  {:<name_columns$}  {:<52} {figure:>14} {bar}", "after", "");
    }
    for rung in rungs {
        if let Some(share) = rung.found.shapley {
            let _ = writeln!(out, "  {:<name_columns$}  average over orders {}", rung.name, interval(&share));
        }
    }
    if let Some(total) = fall.total {
        let word = climb.outcome.total.as_ref().map(|total| total.word);
        let none = if word == Some(Word::NoDifference) { ": no significant difference" } else { "" };
        let _ = writeln!(
            out,
            "  everything kept, together: {} {}{none}",
            interval(&total),
            gained(climb.objective)
        );
    }
    let tried = rungs.iter().filter(|rung| rung.found.forward.is_some()).count();
    if tried > 0 {
        let _ = writeln!(out, "  {}", intervals(tried));
    }
}

/// What the intervals of this many rungs mean.
pub(super) fn intervals(tried: usize) -> String {
    let together = match tried {
        1 => "",
        _ => ", corrected for the number of rungs (Holm)",
    };
    format!("intervals: 95 % or more, valid whenever a comparison ends{together}")
}

/// A rung's command, shortened; JSON and the page have the full one.
fn command((name, command): (&str, &Option<String>)) -> Option<String> {
    Some(format!("{name} `{}`", shortened(&command.as_ref()?.replace('\n', " "), COMMAND_COLUMNS)))
}

/// The start and the end of a text: commands of servers differ in their last arguments.
pub(super) fn shortened(text: &str, columns: usize) -> String {
    let chars: Vec<char> = text.chars().collect();
    if chars.len() <= columns {
        return text.to_owned();
    }
    let (first, rest) = chars.split_at(columns / 3);
    let last = &rest[rest.len() - (columns - first.len() - 1)..];
    format!("{}…{}", String::from_iter(first), String::from_iter(last))
}

/// The name of an objective in words.
pub(super) fn name(objective: Objective) -> &'static str {
    match objective {
        Objective::Throughput => "requests/s",
        Objective::P99 => "p99",
        Objective::Cpu => "CPU per request",
    }
}

/// How the gain of an objective is defined: for latency and CPU it is before ÷ after − 1.
pub(super) fn gained(objective: Objective) -> &'static str {
    match objective {
        Objective::Throughput => "more requests/s",
        Objective::P99 => "a faster p99",
        Objective::Cpu => "more requests for the same CPU",
    }
}

/// The figure of an objective in its usual unit.
pub(super) fn figure(figures: &Figures, objective: Objective) -> Option<f64> {
    match objective {
        Objective::Throughput => Some(figures.requests_per_s),
        Objective::P99 => figures.p99_ns,
        Objective::Cpu => figures.cpu_us_per_request,
    }
}

/// The figure of an objective at this multiple of what it was before.
pub(super) fn level(before: f64, times: f64, objective: Objective) -> String {
    match objective {
        Objective::Throughput => format!("{}/s", count((before * times) as u64)),
        Objective::P99 => time(before / times),
        Objective::Cpu => time(before / times * 1e3),
    }
}

/// The cost of something that stays.
fn cost(estimate: &Estimate) -> String {
    let percent = |share: f64| format!("{:.1}", share * 100.0);
    format!("costs {} % ({} to {})", percent(estimate.gain), percent(estimate.low), percent(estimate.high))
}

pub(super) fn interval(estimate: &Estimate) -> String {
    let percent = |share: f64| format!("{:+.1}", share * 100.0);
    format!("{} % ({} to {})", percent(estimate.gain), percent(estimate.low), percent(estimate.high))
}

/// Before and after, and their meaning.
fn sides(out: &mut String, climb: &Climb) {
    let Some(before) = &climb.outcome.before else { return };
    let sides = [Some(("before", before)), climb.outcome.after.as_ref().map(|after| ("after", after))];
    for (name, figures) in sides.into_iter().flatten() {
        let meaning = climb.meaning(figures);
        let mut words = vec![format!("{} requests/s", count(figures.requests_per_s as u64))];
        words.extend(figures.p50_ns.map(|p50| format!("p50 {}", time(p50))));
        words.extend(figures.p99_ns.map(|p99| format!("p99 {}", time(p99))));
        words.extend(figures.cpu_us_per_request.map(|cost| format!("{cost:.2} µs CPU per request")));
        words.extend(
            meaning.requests_per_cpu_s.map(|rate| format!("{} requests/s per core", count(rate as u64))),
        );
        words.extend(meaning.headroom.map(|times| format!("{times:.1} × the peak rate")));
        words.extend(meaning.machines.map(|machines| format!("{} machines", count(machines))));
        words.extend(meaning.price_per_1e9_requests.map(|price| format!("{price:.2} per billion requests")));
        if figures.errors > 0 {
            words.push(format!("{} errors", count(figures.errors)));
        }
        let _ = writeln!(out, "  {name:<7} {}", words.join(", "));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generator_at_its_limit_is_reported() {
        let limited = |share: f64, objective: Objective| {
            let mut climb = super::super::scripted::climb();
            climb.objective = objective;
            climb.outcome.after.as_mut().unwrap().generator_share = Some(share);
            text(&climb).contains(
                "the load generator was the limit: its busiest thread was on its CPU 97 % of the time",
            )
        };
        assert!(limited(0.97, Objective::Throughput));
        assert!(!limited(0.8, Objective::Throughput) && !limited(0.97, Objective::Cpu));
    }

    #[test]
    fn a_machine_that_disagrees_with_the_server_is_reported() {
        let with = |low: f64, high: f64| {
            let mut climb = super::super::scripted::climb();
            let effect = climb.outcome.rungs.iter_mut().find_map(|rung| rung.found.forward.as_mut()).unwrap();
            effect.elsewhere = Some(Estimate { gain: f64::midpoint(low, high), low, high });
            text(&climb)
        };
        assert!(with(0.05, 0.15).contains("used more CPU time, by 10.0 % of the server's (5.0 to 15.0)"));
        assert!(with(-0.15, -0.05).contains("used less CPU time, by 10.0 % of the server's (5.0 to 15.0)"));
        for (low, high) in [(-0.01, 0.4), (0.001, 0.02), (-0.02, -0.001)] {
            assert!(!with(low, high).contains("disagree"), "{low} to {high}");
        }
    }

    #[test]
    fn time_that_others_took_is_reported() {
        let with = |stolen: f64, throttled: f64| {
            let mut climb = super::super::scripted::climb();
            for rung in &mut climb.outcome.rungs {
                let effect = rung.found.forward.as_mut();
                effect.into_iter().for_each(|effect| {
                    effect.disturbance = Some(Disturbance { waited: 0.0, stolen, throttled });
                });
            }
            text(&climb)
        };
        assert!(with(0.12, 0.0).contains("the hypervisor took 12 % of a CPU"));
        assert!(with(0.0, 0.3).contains("CPU quota stopped it 30 % of the time"));
        let quiet = with(0.01, 0.0);
        assert!(!quiet.contains("the hypervisor took") && !quiet.contains("quota stopped"), "{quiet}");
    }

    #[test]
    fn the_waterfall_ends_at_the_last_measurement() {
        let text = text(&super::super::scripted::climb());
        let after = text.lines().find(|line| line.starts_with("  after ")).unwrap();
        assert!(after.contains(" 204,567/s █"), "{text}");
    }

    #[test]
    fn a_long_command_keeps_its_end() {
        assert_eq!(shortened("rm fast", COMMAND_COLUMNS), "rm fast");
        let long = format!("exec /ü/{} --workers 1 --workers 2", "long/".repeat(20));
        let short = shortened(&long, COMMAND_COLUMNS);
        assert!(
            short.starts_with("exec /ü/long") && short.ends_with("g/ --workers 1 --workers 2"),
            "{short}"
        );
        assert_eq!(short.chars().count(), COMMAND_COLUMNS);
    }
}
