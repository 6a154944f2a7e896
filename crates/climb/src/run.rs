//! Carries out a plan from its beginning to its end.

use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use flatout_load::{Remote, Target};
use flatout_trial::{self as trial, Progress, Status, Subject, climb};

use crate::generator::Load;
use crate::ground::Ground;
use crate::lab::{self, Lab};
use crate::outcome::{Climbed, End, Outcome, Profiles};
use crate::plan::{Change, Error, Plan, Server};
use crate::tunings::Tunings;

/// How a climb stands.
#[derive(Debug, Clone, Copy)]
pub struct Live<'l> {
    /// The stage, its pairs, and what they say so far.
    pub progress: Progress,
    /// The rung in hand, where there is one.
    pub rung: Option<&'l str>,
    /// What is left of the budget.
    pub left: Duration,
}

/// Carries out `plan` and blocks until it is done. Setting `stop` ends it within a moment: what is in place is taken back
/// and what is known is told. `watch` is told before and after each run.
///
/// # Errors
/// A plan that cannot be, a lab that cannot be made, or a server that does not answer at all: nothing was changed then.
/// What fails later is part of the outcome.
pub fn run(
    plan: &Plan,
    tunings: &mut dyn Tunings,
    stop: &AtomicBool,
    watch: &mut dyn FnMut(&Live<'_>),
) -> Result<Outcome, Error> {
    plan.check().map_err(Error::Plan)?;
    for rung in plan.rungs.iter().filter(|rung| rung.change == Change::Tuning) {
        tunings.needs(&rung.name).map_err(Error::Plan)?;
    }
    let target = Target::parse(&plan.url).map_err(Error::Plan)?;
    let (load, target) = load(plan, target, stop)?;
    let mut ground = Ground::new(plan, target, load, tunings, watch);
    ground.begin()?;
    let climbed = climb(&mut ground, &trial_plan(plan));
    let mut outcome = outcome(&mut ground, climbed);
    outcome.profiles = profiles(&mut ground, &mut outcome);
    Ok(outcome)
}

/// Samples stacks with nothing in place and with all that was kept, and leaves the machine as the climb left it.
fn profiles(ground: &mut Ground<'_>, outcome: &mut Outcome) -> Result<Profiles, String> {
    if !matches!(outcome.end, End::Done | End::Over) || outcome.left_behind.is_some() {
        return Err("the climb did not come to its end".to_owned());
    }
    if ground.plan.profile_time.is_zero() {
        return Err("nobody asked for them".to_owned());
    }
    if ground.plan.profiles_time().is_zero() {
        return Err("the budget is too short for them".to_owned());
    }
    let kept: Vec<bool> = outcome.rungs.iter().map(|rung| rung.found.status == Status::Kept).collect();
    let nothing = vec![false; kept.len()];
    let before = ground.profile(&nothing);
    let after = kept.contains(&true).then(|| ground.profile(&kept)).transpose();
    let stays = if ground.plan.keep { &kept } else { &nothing };
    outcome.left_behind = ground.leave(stays).err().map(|error| error.to_string());
    Ok(Profiles { before: before?, after: after? })
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

/// What loads the server, and the target as it is reached: in the lab, by the server's end of the pair.
fn load<'p>(plan: &'p Plan, target: Target, stop: &'p AtomicBool) -> Result<(Load<'p>, Target), Error> {
    let (generator, url, remote) = (&plan.generator, plan.url.clone(), target.remote.clone());
    if !plan.is_lab {
        return Ok((Load { generator, remote, url, lab: None, stop }, target));
    }
    let Remote::Tcp(address) = target.remote else {
        return Err(Error::Plan(
            "the lab has two networks, and a Unix socket is in none; give an http URL".to_owned(),
        ));
    };
    let lab = Some(Lab::new()?);
    let remote = Remote::Tcp(SocketAddr::new(lab::SERVER, address.port()));
    let url = format!("http://{remote}{}", target.path);
    let target = Target { remote: remote.clone(), ..target };
    Ok((Load { generator, remote, url, lab, stop }, target))
}

fn outcome(ground: &mut Ground<'_>, climbed: trial::Climbed<Error>) -> Outcome {
    let kept = climbed.kept();
    let (apply, take_back) = commands(ground, &kept);
    let before = ground.gathered.figures(&vec![false; kept.len()]);
    let after = if kept.contains(&true) { ground.gathered.figures(&kept) } else { None };
    let rungs = climbed.rungs.into_iter().enumerate().map(|(at, found)| {
        let alone: Vec<bool> = (0..kept.len()).map(|other| other == at).collect();
        let (apply, take_back) = commands(ground, &alone);
        Climbed { name: ground.plan.rungs[at].name.clone(), found, apply, take_back }
    });
    let rungs = rungs.collect();
    Outcome {
        noise: climbed.noise,
        noise_floor: climbed.noise_floor,
        rungs,
        total: climbed.total,
        before,
        after,
        apply,
        take_back,
        end: match climbed.end {
            trial::End::Done => End::Done,
            trial::End::Over => End::Over,
            trial::End::Interrupted => End::Interrupted,
            trial::End::Failed(error) => End::Failed(error),
        },
        profiles: Err(String::new()),
        left_behind: climbed.left_behind.map(|error| error.to_string()),
    }
}

/// The shell command that applies what was kept and ends with the server's, if that is another one now; and the one that
/// takes it back.
fn commands(ground: &Ground<'_>, kept: &[bool]) -> (Option<String>, Option<String>) {
    let plan = ground.plan;
    let on = || plan.rungs.iter().zip(kept).filter(|(_, is_kept)| **is_kept).map(|(rung, _)| rung);
    let variants = || {
        on().filter_map(|rung| match &rung.change {
            Change::Variant(variant) => Some(variant),
            Change::Tuning | Change::Skip(_) => None,
        })
    };
    let mut apply: Vec<String> = variants().filter_map(|variant| variant.set.clone()).collect();
    let mut take_back: Vec<String> = variants().filter_map(|variant| variant.unset.clone()).collect();
    take_back.reverse();
    let names: Vec<&str> =
        on().filter(|rung| rung.change == Change::Tuning).map(|rung| rung.name.as_str()).collect();
    if !names.is_empty() {
        let (set, unset) = ground.changes.tunings.commands(&names);
        apply.push(set);
        take_back.insert(0, unset);
    }
    if let (Server::Command(before), Some(after)) = (&plan.server, ground.server_command(kept))
        && *before != after
    {
        apply.push(after);
        take_back.push(before.clone());
    }
    let joined = |commands: Vec<String>| (!commands.is_empty()).then(|| commands.join(" && "));
    (joined(apply), joined(take_back))
}
