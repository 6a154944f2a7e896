//! Runs a plan from start to end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use flatout_load::{KernelWork, Remote, Target};
use flatout_profile::Profile;
use flatout_trial::compare::is_first;
use flatout_trial::{self as trial, End, Found, How, Objective, Progress, STAYS, Status, Subject, climb};

use crate::generator::{Load, why_no_clock};
use crate::lab::{self, Lab};
use crate::machine::{Machine, PROFILE_PARTS};
use crate::outcome::{Figures, Outcome, Profiles, TriedRung, Waiting};
use crate::plan::{Attempt, Error, Plan, Rung, ServerPlan};
use crate::tuned::{Reading, Tuned};

/// The progress of a climb.
#[derive(Debug, Clone, Copy)]
pub struct ClimbProgress<'l> {
    /// The stage, its pairs, and the result so far.
    pub progress: Progress,
    /// The current rung, if any.
    pub rung: Option<&'l str>,
    /// The time left of the budget.
    pub left: Duration,
    /// The whole budget.
    pub budget: Duration,
    /// A rung with a new result.
    pub finished: Option<Finished<'l>>,
    /// What the climb will be able to see; once, after the A/A runs.
    pub ahead: Option<Ahead>,
}

/// What a climb will be able to see, by its A/A runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ahead {
    /// The time of a comparison.
    pub each: Duration,
    /// The smallest gain, as a share, that is found in four of five climbs in that time.
    pub smallest: f64,
    /// Gains, as shares, and the time that a comparison needs to find them in four of five climbs; `None` if no time is enough,
    /// because starts of the server differ by more.
    pub needed: [(f64, Option<Duration>); 2],
}

/// A rung with a result.
#[derive(Debug, Clone, Copy)]
pub struct Finished<'l> {
    /// Its name.
    pub name: &'l str,
    /// The result.
    pub found: &'l Found,
    /// The objective.
    pub objective: Objective,
}

/// Runs `plan`, and blocks until it is done. Setting `stop` ends it quickly: all changes are undone and the results
/// so far are returned. `watch` is called before and after each run.
///
/// # Errors
/// An invalid plan, a lab that cannot be created, or a server that does not respond at all: nothing was changed then.
/// Later failures are part of the outcome.
pub fn run(
    plan: &Plan,
    tunings: &mut Tuned<'_>,
    stop: &AtomicBool,
    watch: &mut dyn FnMut(&ClimbProgress<'_>),
) -> Result<Outcome, Error> {
    let mut machine = machine(plan, tunings, stop, watch)?;
    let load_rate_per_s = machine.settle_rate(None)?;
    let climbed = climb(&mut machine, &trial_plan(plan));
    let load = Some(machine.load_pattern());
    let cpu = Some(machine.cpu_meaning());
    let mut outcome = Outcome { load_rate_per_s, load, cpu, ..outcome(&mut machine, climbed) };
    outcome.profiles = profiles(&mut machine, &mut outcome);
    relieve(&mut machine, &mut outcome);
    Ok(outcome)
}

/// Continues after the reboot that a rung of `before` waits for: repeats the last measurement, and completes the
/// outcome. If it does not finish, the rung continues to wait.
///
/// # Errors
/// As [`run`], and a plan that has changed since, or a change that is not in effect in this boot.
pub fn resume(
    plan: &Plan,
    tunings: &mut Tuned<'_>,
    before: Outcome,
    stop: &AtomicBool,
    watch: &mut dyn FnMut(&ClimbProgress<'_>),
) -> Result<Outcome, Error> {
    let Some(Waiting { rung, block, reading }) = &before.waiting else {
        return Err(Error::Plan("no rung waits for a reboot".to_owned()));
    };
    let names = plan.rungs.iter().map(|rung| &rung.name);
    let rung = match plan.rungs.iter().position(|one| one.name == *rung) {
        Some(at) if names.eq(before.rungs.iter().map(|rung| &rung.name)) => at,
        _ => {
            return Err(Error::Plan(
                "its rungs are not those from before the reboot; start a new climb".to_owned(),
            ));
        }
    };
    if let Some(reading) = reading {
        tunings.has_taken(&plan.rungs[rung].name, reading).map_err(Error::Change)?;
    }
    let kept: Vec<bool> = before.rungs.iter().map(|rung| rung.found.status == Status::Kept).collect();
    let mut machine = machine(plan, tunings, stop, watch)?;
    machine.settle_rate(before.load_rate_per_s)?;
    let resumed = trial::resume(&mut machine, &trial_plan(plan), block, &kept, rung);
    Ok(completed(&mut machine, before, rung, resumed))
}

/// The outcome, completed with the results of the runs after the reboot.
fn completed(
    machine: &mut Machine<'_, '_>,
    before: Outcome,
    rung: usize,
    resumed: trial::Resumed<Error>,
) -> Outcome {
    let left_behind = resumed.left_behind.map(|error| error.to_string());
    let Some(found) = resumed.found else {
        let end = match resumed.refused {
            Some(why) => {
                End::Failed(Error::Change(format!("what was kept cannot be applied in this boot: {why}")))
            }
            None => resumed.end,
        };
        return Outcome { end, left_behind, ..before };
    };
    let is_kept = found.status == Status::Kept;
    let name = &machine.plan.rungs[rung].name;
    let next = match (&machine.plan.rungs[rung].change, is_kept) {
        (_, true) => Vec::new(),
        (Attempt::Variant(variant), false) => {
            variant.unset.iter().cloned().chain([REBOOT.to_owned()]).collect()
        }
        _ => machine.changes.tunings.back_at_reboot(name),
    };
    let mut outcome = Outcome { next, waiting: None, left_behind, end: resumed.end, ..before };
    if is_kept {
        outcome.total = match (outcome.total, &found.forward) {
            (Some(total), Some(effect)) => Some(total.and(effect)),
            (total, effect) => total.or_else(|| effect.clone()),
        };
    }
    outcome.rungs[rung].found = found;
    let kept: Vec<bool> = outcome.rungs.iter().map(|rung| rung.found.status == Status::Kept).collect();
    if is_kept {
        // Another boot may be faster or slower, so the result is relative to the figures before.
        let after = machine.total.figures(&kept);
        outcome.after = match (&outcome.before, after, &outcome.total) {
            (Some(before), Some(after), Some(total)) => Some(before.raised(after, total)),
            (_, after, _) => after,
        };
    }
    (outcome.apply, outcome.take_back) = commands(machine, &kept);
    outcome
}

/// The step that is shown if nothing more is known.
const REBOOT: &str = "reboot";

/// The machine, with its server running and responding.
fn machine<'p, 'h>(
    plan: &'p Plan,
    tunings: &'p mut Tuned<'h>,
    stop: &'p AtomicBool,
    watch: &'p mut dyn FnMut(&ClimbProgress<'_>),
) -> Result<Machine<'p, 'h>, Error> {
    plan.check().map_err(|fault| Error::Plan(fault.message))?;
    for rung in plan.rungs.iter().filter(|rung| rung.change == Attempt::Tuning) {
        tunings.needs(&rung.name).map_err(Error::Plan)?;
    }
    let target = Target::parse_plain(&plan.url).map_err(Error::Plan)?;
    let (load, target) = load(plan, target, stop)?;
    let mut machine = Machine::new(plan, target, load, tunings, watch);
    machine.begin()?;
    Ok(machine)
}

/// Reports whose burdens remain; those that cost something are removed for good if that was requested.
fn relieve(machine: &mut Machine<'_, '_>, outcome: &mut Outcome) {
    let is_at_its_end = matches!(outcome.end, End::Done | End::Over) && outcome.waiting.is_none();
    let mut left: Vec<String> = outcome.left_behind.take().into_iter().collect();
    for (rung, TriedRung { name, found, .. }) in machine.plan.rungs.iter().zip(&mut outcome.rungs) {
        // Its status is skipped: the climb itself cannot keep it.
        let costs = found.how == How::FromTheOtherSide && found.status == Status::Skipped;
        if rung.change != Attempt::Tuning || !costs {
            continue;
        }
        let tunings = &mut *machine.changes.tunings;
        let done = if is_at_its_end { tunings.relieve(name) } else { Vec::new() };
        match done.iter().any(Result::is_ok) {
            true => found.reason = found.reason.replace(STAYS, "it was removed at the end"),
            false => found.reason = format!("{}, {}", found.reason, tunings.holders(name)),
        }
        for one in done {
            match one {
                Ok(told) => outcome.next.push(told),
                Err(why) => left.push(why),
            }
        }
    }
    if !left.is_empty() {
        outcome.left_behind = Some(left.join("; "));
    }
}

/// Samples stacks of the unchanged server and with everything kept, and leaves the machine as the climb left it.
fn profiles(machine: &mut Machine<'_, '_>, outcome: &mut Outcome) -> Result<Profiles, String> {
    if !matches!(outcome.end, End::Done | End::Over) || outcome.left_behind.is_some() {
        return Err("the climb did not finish".to_owned());
    }
    if machine.plan.profile_time.is_zero() {
        return Err("they were not requested".to_owned());
    }
    if machine.plan.profiles_time().is_zero() {
        return Err("the budget is too short for them".to_owned());
    }
    let kept: Vec<bool> = outcome.rungs.iter().map(|rung| rung.found.status == Status::Kept).collect();
    let nothing = vec![false; kept.len()];
    let mut taken: [Option<Result<Profile, String>>; 2] = [None, None];
    for turn in 0..2 * PROFILE_PARTS as usize {
        let (on, place) = if is_first(turn) { (&nothing, 0) } else { (&kept, 1) };
        if place == 0 || kept.contains(&true) {
            let part = machine.profile(on);
            let so_far = taken[place].take();
            taken[place] = Some(merged(so_far, part));
        }
    }
    let [before, after] = taken;
    let before = before.unwrap_or_else(|| Err("nothing was sampled".to_owned()));
    let after = after.transpose();
    let stays = if machine.plan.keep && outcome.waiting.is_none() { &kept } else { &nothing };
    outcome.left_behind = machine.leave(stays).err().map(|error| error.to_string());
    Ok(Profiles { before: before?, after: after? })
}

/// A profile, with another part added.
fn merged(so_far: Option<Result<Profile, String>>, part: Result<Profile, String>) -> Result<Profile, String> {
    let Some(so_far) = so_far else { return part };
    let mut all = so_far?;
    all.merge(&part?);
    Ok(all)
}

fn trial_plan(plan: &Plan) -> trial::Plan {
    trial::Plan {
        rungs: plan.rungs.len(),
        objective: plan.objective,
        width_max: plan.width_max,
        pairs_min: plan.pairs_min,
        pairs_max: plan.pairs_max,
        orders: plan.orders,
        seed: plan.seed,
        keep: plan.keep,
    }
}

/// The load generator, and the target as it is reached: in the lab, by the server's end of the pair.
fn load<'p>(plan: &'p Plan, target: Target, stop: &'p AtomicBool) -> Result<(Load<'p>, Target), Error> {
    let (generator, url, remote) = (plan.generator.clone(), plan.url.clone(), target.remote.clone());
    let is_server_alone = plan.rungs.iter().all(Rung::is_in_the_server);
    // Without root or BPF, the figure is of processes or of the machine.
    let kernel_work = KernelWork::start().map(Arc::new).map_err(|error| why_no_clock(&error));
    if !plan.is_lab {
        let runs_count = AtomicU64::new(0);
        let load = Load { generator, remote, url, lab: None, stop, is_server_alone, runs_count, kernel_work };
        return Ok((load, target));
    }
    let Remote::Tcp(address) = target.remote else {
        return Err(Error::Plan(
            "a Unix socket does not connect the lab's two networks; give an http URL".to_owned(),
        ));
    };
    let lab = Some(Lab::new(plan.lab_setup.as_deref())?);
    let remote = Remote::Tcp(SocketAddr::new(lab::SERVER, address.port()));
    let url = format!("http://{remote}{}", target.path);
    let target = Target { remote: remote.clone(), ..target };
    let runs_count = AtomicU64::new(0);
    Ok((Load { generator, remote, url, lab, stop, is_server_alone, runs_count, kernel_work }, target))
}

fn outcome(machine: &mut Machine<'_, '_>, climbed: trial::Climbed<Error>) -> Outcome {
    let kept = climbed.kept();
    let (apply, take_back) = commands(machine, &kept);
    let nothing = vec![false; kept.len()];
    let (before, after) = match &climbed.total {
        Some(total) => {
            let (before, after) = (machine.total.figures(&nothing), machine.total.figures(&kept));
            let at = |figures: Option<Figures>, is_first| {
                figures.map(|figures| figures.at_levels(total, is_first))
            };
            (at(before, false), at(after, true))
        }
        None => (machine.noise.figures(&nothing), None),
    };
    let rungs = climbed.rungs.into_iter().enumerate().map(|(at, found)| {
        let alone: Vec<bool> = (0..kept.len()).map(|other| other == at).collect();
        let (apply, take_back) = commands(machine, &alone);
        let mut found = found;
        if let Some(seen) = machine.evidence_for(at) {
            found.reason = match found.reason.as_str() {
                "" => seen,
                why => format!("{why}; {seen}"),
            };
        }
        if let Attempt::Edit(edit) = &machine.plan.rungs[at].change {
            let what = edit.what.trim_end_matches(';');
            found.reason = match found.reason.as_str() {
                "" => edit.what.to_owned(),
                why => format!("{what}; {why}"),
            };
        }
        TriedRung { name: machine.plan.rungs[at].name.clone(), found, apply, take_back }
    });
    let rungs = rungs.collect();
    let (waiting, next) = match climbed.waiting {
        Some((rung, block)) => {
            let rung = &machine.plan.rungs[rung];
            let (reading, next) = before_reboot(machine, rung);
            (Some(Waiting { rung: rung.name.clone(), block, reading }), next)
        }
        None => (None, Vec::new()),
    };
    Outcome {
        noise: climbed.noise,
        noise_of_servers: climbed.noise_of_servers,
        rungs,
        total: climbed.total,
        before,
        after,
        load_rate_per_s: None,
        load: None,
        cpu: None,
        diff: machine.plan.config.as_ref().map(|config| config.diff(&machine.edits(&kept))),
        apply,
        take_back,
        end: climbed.end,
        profiles: Err(String::new()),
        left_behind: climbed.left_behind.map(|error| error.to_string()),
        next,
        waiting,
    }
}

/// The state of a rung before the reboot that it needs, and what to do for it.
fn before_reboot(machine: &Machine<'_, '_>, rung: &Rung) -> (Option<Reading>, Vec<String>) {
    match &rung.change {
        Attempt::Variant(variant) => {
            let set = variant.set.clone().unwrap_or_else(|| format!("make the change `{}`", rung.name));
            (None, vec![set, REBOOT.to_owned()])
        }
        // It was known before the climb. If it is not known now, it is requested again after the reboot.
        _ => match machine.changes.tunings.before_reboot(&rung.name) {
            Ok((reading, steps)) => (Some(reading), steps),
            Err(why) => (None, vec![format!("make the change `{}` ({why})", rung.name), REBOOT.to_owned()]),
        },
    }
}

/// The shell command that applies what was kept and ends with the server's command, if that has changed; and the
/// command that undoes it.
fn commands(machine: &Machine<'_, '_>, kept: &[bool]) -> (Option<String>, Option<String>) {
    let plan = machine.plan;
    let on = || plan.rungs.iter().zip(kept).filter(|(_, is_kept)| **is_kept).map(|(rung, _)| rung);
    let variants = || {
        on().filter_map(|rung| match &rung.change {
            Attempt::Variant(variant) => Some(variant),
            Attempt::Tuning | Attempt::Edit(_) | Attempt::Skip(_) => None,
        })
    };
    let mut apply: Vec<String> = variants().filter_map(|variant| variant.set.clone()).collect();
    let mut take_back: Vec<String> = variants().filter_map(|variant| variant.unset.clone()).collect();
    take_back.reverse();
    let names: Vec<&str> =
        on().filter(|rung| rung.change == Attempt::Tuning).map(|rung| rung.name.as_str()).collect();
    if !names.is_empty() {
        let (set, unset) = machine.changes.tunings.commands(&names);
        apply.push(set);
        take_back.insert(0, unset);
    }
    if let (ServerPlan::Command(before), Some(after)) = (&plan.server, machine.server_command(kept))
        && *before != after
    {
        apply.push(after);
        take_back.push(before.clone());
    }
    (joined(apply), joined(take_back))
}

/// Joins shell commands into one that stops at the first failure. Anything but a simple command gets its own
/// subshell, on separate lines if it may end in a comment or contain a here-document.
fn joined(commands: Vec<String>) -> Option<String> {
    let is_one = commands.len() <= 1;
    let grouped = commands.into_iter().map(|command| {
        // `exec` would end the shell in which it is typed.
        let is_exec = command.starts_with("exec ");
        match &command {
            command if !is_one && command.contains(['\n', '#']) => format!("(\n{command}\n)"),
            command if is_exec || !is_one && command.contains([';', '&', '|']) => format!("({command})"),
            command => command.clone(),
        }
    });
    grouped.reduce(|all, command| format!("{all} && {command}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_joined_as_they_were_meant() {
        let joined = |commands: &[&str]| joined(commands.iter().map(|&command| command.to_owned()).collect());
        assert_eq!(joined(&[]), None);
        assert_eq!(joined(&["a; b &"]).unwrap(), "a; b &");
        assert_eq!(joined(&["a; b &", "c d"]).unwrap(), "(a; b &) && c d");
        assert_eq!(joined(&["a # b", "c"]).unwrap(), "(\na # b\n) && c");
        assert_eq!(joined(&["exec server"]).unwrap(), "(exec server)");
    }
}
