//! A climb across a reboot: what is stored before it, and how it continues afterwards.

use std::path::Path;

use clap::ArgMatches;
use flatout_climb::{Attempt, Error, Needs, Outcome, Plan, State, Tuned, resume};
use flatout_report::climb::{Climb, from_json, json};
use flatout_tune::{Host, Session, quote};

use super::options::ClimbOptions;
use super::settings::GROUPS;
use super::{COMMAND, NAMES, failure, judge, read_old, show, watched};
use crate::Failure;
use crate::setting::{names_given, words};

/// Checks whether a rung that needs a reboot can wait for one; the reason why not is shown in its result.
pub(super) fn make_way(plan: &mut Plan, tunings: &Tuned<'_>, host: &Host, options: &ClimbOptions) {
    let takes_reboot = plan.rungs.iter().any(|rung| match rung.change {
        Attempt::Tuning => tunings.needs(&rung.name) == Ok(Needs::Reboot),
        Attempt::Variant(_) => rung.needs == Needs::Reboot,
        Attempt::Edit(_) | Attempt::Skip(_) => false,
    });
    if !takes_reboot {
        return;
    }
    if !options.stops.is_empty() {
        let why = "it needs a reboot between two runs, and --stop acts at the end of this boot: climb it separately";
        plan.why_no_reboot = Some(why.to_owned());
        return;
    }
    let folder = options.state_folder(host);
    let path = State::path(&folder);
    if path.exists() {
        let what =
            State::read(&folder).ok().flatten().map_or("a climb".to_owned(), |state| state.to_string());
        plan.why_no_reboot = Some(format!(
            "it needs a reboot between two runs, and {} holds {what} already: continue that with `{}`, or remove the file",
            path.display(),
            command(options)
        ));
        return;
    }
    // Opened as a check, so that nothing is measured that could not be stored.
    plan.why_no_reboot = Session::open(host, &folder).err().map(|error| {
        format!("it needs a reboot between two runs, and the results before it cannot be stored: {error}")
    });
}

/// Stores a climb with a rung that waits for a reboot.
pub(super) fn wait(
    climbed: &mut Climb,
    plan: &Plan,
    host: &Host,
    options: &ClimbOptions,
) -> Result<(), Failure> {
    let Some(waiting) = climbed.outcome.waiting.clone() else { return Ok(()) };
    let folder = std::env::current_dir()
        .map_err(|error| Failure::Run(format!("cannot find the current folder: {error}")))?;
    let arguments = std::env::args_os().skip(2).map(|word| word.to_string_lossy().into_owned()).collect();
    let found = serde_json::from_str(&json::json(climbed)).unwrap_or_default();
    let state = State::new(host, &waiting, arguments, folder, options.named(plan), found).map_err(failure)?;
    let place = options.state_folder(host);
    // Another one may have been stored there while this one was running.
    let path = State::path(&place);
    if path.exists() {
        return Err(Failure::Run(format!(
            "{} now holds another climb, so this one cannot wait for its reboot",
            path.display()
        )));
    }
    state.write(host, &place).map_err(failure)?;
    climbed.outcome.next.push(command(options));
    Ok(())
}

/// Continues after the reboot.
pub(super) fn run(typed: &ClimbOptions, matches: &ArgMatches) -> Result<(), Failure> {
    check_alone(matches)?;
    let folder = typed.state.clone().unwrap_or_else(|| Host::live().state_default());
    let folder = std::path::absolute(&folder)
        .map_err(|error| Failure::Usage(format!("--state: `{}`: {error}", folder.display())))?;
    let state = State::read(&folder).map_err(failure)?.ok_or_else(|| {
        Failure::Usage(format!(
            "no climb waits for a reboot in {}; --state names another folder",
            folder.display()
        ))
    })?;
    std::env::set_current_dir(&state.folder).map_err(|error| {
        Failure::Run(format!("cannot go to {}, where the climb began: {error}", state.folder.display()))
    })?;
    let options = as_typed(&state, &folder)?;
    let host = options.host();
    let waiting = state.waiting(&host).map_err(failure)?;
    let plan = options.plan(state.tunings.clone(), &host).map_err(Failure::Usage)?;
    let mut tunings = options.tunings(&host, &plan.url).map_err(Failure::Usage)?;
    let mut climbed = from_json(&state.found.to_string())
        .map_err(|why| Failure::Usage(format!("{}: {why}", State::path(&folder).display())))?;
    let before = Outcome { waiting: Some(waiting), next: Vec::new(), ..climbed.outcome };
    let resumed = watched(|stop, watch| {
        resume(&plan, &mut tunings, before, stop, watch).map_err(|error| match error {
            Error::Change(why) => Error::Change(format!(
                "{why}; {}; the climb still waits in {}",
                state.command_lines(&host),
                folder.display()
            )),
            error => error,
        })
    });
    climbed.outcome = resumed?;
    climbed.today = options.today;
    climbed.old = options.showing.compare.as_deref().map(read_old).transpose()?;
    if climbed.outcome.waiting.is_some() {
        climbed.outcome.next = vec![command(&options)];
    }
    let climbed = climbed.without_secrets();
    show(&climbed, &options)?;
    if climbed.outcome.waiting.is_none() {
        State::remove(&host, &folder).map_err(failure)?;
    }
    judge(climbed)
}

/// The options of the command line before the reboot. Low-risk tunings are now named; holders to stop have ended with
/// their boot, and process ids have changed.
fn as_typed(state: &State, folder: &Path) -> Result<ClimbOptions, Failure> {
    let matches = COMMAND.parse(state.arguments.iter().cloned())?;
    let (options, _) = super::options(&matches)?;
    Ok(ClimbOptions {
        low_risk: false,
        stops: Vec::new(),
        pid: None,
        state: Some(folder.to_owned()),
        ..options
    })
}

/// Checks that `--resume` is used alone, except for the flag that says where the climb is stored.
fn check_alone(matches: &ArgMatches) -> Result<(), Failure> {
    let flags = names_given(matches, GROUPS).into_iter().filter(|flag| !["resume", "state"].contains(flag));
    let got = flags.map(|flag| format!("--{flag}")).chain(words(matches, NAMES.1)).next();
    match got {
        Some(got) => Err(Failure::Usage(format!(
            "--resume takes everything else from the climb that it continues: got `{got}`, allowed is --state"
        ))),
        None => Ok(()),
    }
}

/// The command to use after the reboot.
fn command(options: &ClimbOptions) -> String {
    let state = options.state.as_ref().or(options.root.as_ref());
    let folder = state.map(|_| options.state_folder(&options.host()));
    let folder = folder.and_then(|folder| std::path::absolute(folder).ok());
    let flag = folder.map(|folder| format!(" --state {}", quote(&folder.display().to_string())));
    format!("flatout climb --resume{}", flag.unwrap_or_default())
}
