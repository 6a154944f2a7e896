//! `flatout climb`.

mod live;
mod options;
mod plan_file;
mod preview;
mod resume;
mod settings;

use std::fs;
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::{Arg, ArgMatches};
use flatout_climb::{ClimbProgress, End, Error, Outcome, run as climb};
use flatout_engine::say;
use flatout_report::climb::{Climb, Old, html, json, text};
use flatout_report::{Machine, ResultOrigin, secret};
use flatout_tune::{Host, Session, quote};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::command::{Command, with};
use crate::setting::{fill, names_given, words};
use crate::{Failure, print, value};
use live::ClimbScreen;
use options::ClimbOptions;
use settings::{GROUPS, SHORTS};

pub(crate) const COMMAND: Command = Command {
    name: "climb",
    about: "Try changes one at a time under load, measure what each is worth, and undo them",
    more: "A change is a rung: a tuning (`flatout tune --all` lists them) or a variant of your own. Each is measured by \
           short runs with and without it in turn, on top of those that helped before. Everything is undone at the end, \
           unless --keep is given. Without a server, the bundled JSON API is measured.\nExit status: 0 done, 1 \
           interrupted, or a server, a load generator or a change failed, 2 wrong usage.",
    examples: &[
        (
            "flatout climb --port 8080 --low-risk",
            "a running server, and every low-risk tuning that could help it",
        ),
        (
            "flatout climb --port 8080 congestion conntrack --bench 'wrk -d2s $FLATOUT_URL'",
            "two tunings, under wrk's load",
        ),
        (
            "flatout climb --server-cmd ./server --url http://127.0.0.1:8080/ \\\n      --variant 'two workers' --with-args '--workers 2'",
            "a change of your own",
        ),
        (
            "flatout climb --plan mine.kdl --report climb.html",
            "rungs and settings from a file, the result as a page",
        ),
    ],
    arguments: |command| {
        let names = Arg::new(NAMES.1).value_name("TUNING").num_args(0..);
        with(command, names.help("Tunings to try, in this order"), GROUPS, SHORTS)
    },
    run,
};

/// The argument that names tunings, and its command.
pub(crate) const NAMES: (&str, &str) = ("climb", "tunings");

fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let (options, names) = options(matches)?;
    if options.is_resumed {
        return resume::run(&options, matches);
    }
    let host = options.host();
    let mut plan = options.plan(names, &host).map_err(Failure::Usage)?;
    let mut tunings = options.tunings(&host, &plan.url).map_err(Failure::Usage)?;
    resume::make_way(&mut plan, &tunings, &host, &options);
    let old = options.showing.compare.as_deref().map(read_old).transpose()?;
    tell_left_over(&host, &options)?;
    say(format_args!("{}", preview::of(&plan, &tunings)));
    let outcome = watched(|stop, watch| climb(&plan, &mut tunings, stop, watch))?;
    let mut climbed = Climb {
        command: Some(command_line()),
        date: Some(ResultOrigin::now(std::iter::empty()).date),
        url: plan.url.clone(),
        objective: plan.objective,
        outcome,
        machine: Machine::here(),
        today: options.today,
        old,
    };
    let waits = resume::wait(&mut climbed, &plan, &host, &options);
    let climbed = climbed.without_secrets();
    show(&climbed, &options)?;
    waits?;
    judge(climbed)
}

/// Reports changes that earlier runs have left in effect, before anything is measured on top of them.
fn tell_left_over(host: &Host, options: &ClimbOptions) -> Result<(), Failure> {
    let state = options.state_folder(host);
    if host.holds(&state) {
        return Err(Failure::Usage(crate::tune::within(&state)));
    }
    let names: Vec<String> = Session::left_over(host, &state).into_iter().collect();
    if !names.is_empty() {
        let flag = options
            .state
            .as_ref()
            .map_or(String::new(), |state| format!(" --state {}", quote(&state.display().to_string())));
        say(format_args!(
            "still in place from earlier runs, and so part of what is measured as \"before\": {}; to undo it first: \
             flatout tune undo{flag}",
            names.join(", ")
        ));
    }
    Ok(())
}

/// Runs a climb with a screen and signal handling.
fn watched(
    climb: impl FnOnce(&AtomicBool, &mut dyn FnMut(&ClimbProgress<'_>)) -> Result<Outcome, Error>,
) -> Result<Outcome, Failure> {
    flatout_load::raise_descriptor_limit();
    let stop = stop_at_signals()?;
    let mut screen = ClimbScreen::new(std::io::stderr().is_terminal());
    let outcome = climb(&stop, &mut |live| screen.show(live)).map_err(failure);
    screen.end();
    outcome
}

/// Writes the result to all requested places.
fn show(climbed: &Climb, options: &ClimbOptions) -> Result<(), Failure> {
    write(options.json.as_deref(), || json::json(climbed))?;
    write(options.showing.report.as_deref(), || html::html(climbed))?;
    print(&text::text(climbed))
}

/// The options of the flags, which override those of the plan file; and the tunings that were named.
fn options(matches: &ArgMatches) -> Result<(ClimbOptions, Vec<String>), Failure> {
    let mut flags = ClimbOptions::default();
    fill(matches, GROUPS, &mut flags)?;
    let names = words(matches, NAMES.1);
    let Some(path) = &flags.plan_file else { return Ok((flags, names)) };
    let given = names_given(matches, GROUPS);
    let mut options = plan_file::read(path).map_err(Failure::Usage)?.under(&flags, &names, &given);
    fill(matches, GROUPS, &mut options)?;
    Ok((options, names))
}

/// The command line, quoted for a shell.
fn command_line() -> String {
    let typed = std::env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned());
    let told = secret::arguments(typed).into_iter().map(|argument| quote(&argument));
    std::iter::once("flatout".to_owned()).chain(told).collect::<Vec<_>>().join(" ")
}

/// The earlier climb that `--compare` names.
pub(crate) fn read_old(path: &str) -> Result<Old, Failure> {
    read(path, Old::parse).map_err(|message| Failure::Usage(format!("--compare: {message}")))
}

/// Reads and parses a file; errors include its name.
pub(crate) fn read<T>(path: &str, parse: fn(&str) -> Result<T, String>) -> Result<T, String> {
    parse(&value::file(path)?).map_err(|error| format!("`{path}`: {error}"))
}

/// Writes a result, if a file is named for it.
pub(crate) fn write(path: Option<&str>, content: impl FnOnce() -> String) -> Result<(), Failure> {
    let Some(path) = path else { return Ok(()) };
    fs::write(path, content()).map_err(|error| Failure::Run(format!("cannot write `{path}`: {error}")))
}

/// A flag that is set by all signals with which people end programs. None of them ends it at once: first everything
/// is undone.
fn stop_at_signals() -> Result<Arc<AtomicBool>, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, stop.clone())
            .map_err(|error| Failure::Run(format!("cannot catch signals: {error}")))?;
    }
    Ok(stop)
}

fn judge(climbed: Climb) -> Result<(), Failure> {
    if let Some(why) = climbed.outcome.left_behind {
        return Err(Failure::Run(why));
    }
    match climbed.outcome.end {
        End::Done | End::Over => Ok(()),
        End::Interrupted => Err(Failure::Run("interrupted; everything was undone".to_owned())),
        End::Failed(error) => {
            Err(Failure::Run(format!("{error}; the climb ended there, and everything was undone")))
        }
    }
}

fn failure(error: Error) -> Failure {
    match error {
        Error::Plan(message) => Failure::Usage(secret::masked(&message)),
        error => Failure::Run(secret::masked(&error.to_string())),
    }
}
