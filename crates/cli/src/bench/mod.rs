//! `flatout bench URL`.

mod live;
mod options;
mod progress;
mod secure;
mod settings;
mod view;

use std::fs;

use clap::{Arg, ArgMatches, ValueHint};
use flatout_load::{Candidate, Control, Error, duel, search, trials};
use flatout_report::require::{Check, junit, markdown};
use flatout_report::secret::masked;
use flatout_report::{Machine, Measured, Opponent, ResultOrigin, csv, hdr, html, json, text};

use crate::command::{Command, with};
use crate::setting::fill;
use crate::{Failure, print, signals, terminal};
use live::BenchScreen;
use options::BenchOptions;
use settings::{GROUPS, SHORTS};

pub(crate) const COMMAND: Command = Command {
    name: "bench",
    about: "Load a server and measure it",
    more: "On a terminal the run is shown live; q or Ctrl-C ends it early and prints the result so far. HTTP/1.1, \
           or HTTP/2 with --http2.\nExit status: 0 measured, 1 more errors than --max-errors, no response or a --require not met, 2 wrong usage.",
    examples: &[
        ("flatout bench http://127.0.0.1:8080/ -c 64", "as fast as 64 connections are served, for 10 s"),
        ("flatout bench URL -c 64 -R 50000 --report out.html", "50,000 requests/s, whatever the server does"),
        (
            "flatout bench URL -c 64 --stage 30s:100..5000 --stage 1m:5000 --stage 30s:0",
            "a ramp, a steady minute, and the end of it: figures for each stage",
        ),
        ("flatout bench URL --find-max --slo p99=5ms", "the highest rate at which p99 stays below 5 ms"),
        (
            "flatout bench URL --require 'p99<20ms' --require 'errors<0.1%' --junit out.xml",
            "fail a CI job that is too slow",
        ),
        ("flatout bench URL --vs OTHER-URL", "is one faster than the other?"),
        ("flatout bench https://HOST/ --close", "how many handshakes a second, resuming sessions"),
        (
            "flatout bench https://HOST/ --http2 -c 4 -m 100",
            "HTTP/2: 100 requests at a time on each connection",
        ),
        (
            "flatout bench ws://HOST/live/CHANNEL --events -c 1000",
            "1,000 WebSockets: messages and how late they come",
        ),
    ],
    arguments: |command| {
        let url = Arg::new(URL).value_name("URL").required(true).value_hint(ValueHint::Url);
        with(command, url.help("What to request, such as http://127.0.0.1:8080/"), GROUPS, SHORTS)
    },
    run,
};

const URL: &str = "url";

fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let mut options = BenchOptions::default();
    fill(matches, GROUPS, &mut options)?;
    options.check_requirements()?;
    let url = matches.get_one::<String>(URL).map_or("", String::as_str);
    flatout_load::raise_descriptor_limit();
    let measured = measure(url, &options)?.without_secrets();
    let checks = options.checks(&measured.outcome);
    write_files(&measured, &checks, &options)?;
    print(&match options.json {
        true => json::json(&measured),
        false if options.csv => csv::csv(&measured),
        false => text::text(&measured, options.latency),
    })?;
    judge(&checks)
}

/// Runs the requested measurement.
fn measure(url: &str, options: &BenchOptions) -> Result<Measured, Failure> {
    let is_screen = !options.json && !options.csv && terminal::is_interactive();
    let mut plan = options.plan(url).map_err(Failure::Usage)?;
    plan.live = is_screen;
    let stop = signals::stop_or_end()?;
    let mut screen = BenchScreen::new(is_screen, &masked(url), &plan, stop.clone());
    let mut control = Control { stop: &stop, watch: &mut |live| screen.show(live) };
    let (mut steps, mut comparison, mut figures) = (Vec::new(), None, Vec::new());
    let objective = options.find_max()?;
    let outcome = if let Some(objective) = &objective {
        let found = search(&plan, objective, &mut control).map_err(failure)?;
        (plan, steps) = (found.plan, found.steps);
        found.outcome
    } else if let Some((one, other, [one_name, other_name])) = candidates(url, &plan, options)? {
        let found = duel(&one, &other, options.pairs, &mut control).map_err(failure)?;
        comparison = Some(Opponent {
            one: one_name,
            other: other_name,
            outcome: found.other,
            pairs: found.pairs,
            verdict: found.verdict,
        });
        found.outcome
    } else {
        let (outcome, all) = trials(&plan, options.trials, &mut control).map_err(failure)?;
        figures = all;
        outcome
    };
    screen.end();
    let machine = Machine::here();
    let origin = ResultOrigin::now(std::env::args().skip(1));
    let url = url.to_owned();
    Ok(Measured { plan, url, outcome, trials: figures, steps, objective, comparison, machine, origin })
}

/// The two candidates of a comparison and their names, if requested.
fn candidates(
    url: &str,
    plan: &flatout_load::Plan,
    options: &BenchOptions,
) -> Result<Option<(Candidate, Candidate, [String; 2])>, Failure> {
    match (&options.vs, options.vs_commands.as_slice()) {
        (None, []) => Ok(None),
        (Some(other_url), []) => {
            let other =
                options.plan(other_url).map_err(|message| Failure::Usage(format!("--vs: {message}")))?;
            let candidate = |plan| Candidate { plan, command: None };
            Ok(Some((candidate(plan.clone()), candidate(other), [url.to_owned(), other_url.clone()])))
        }
        (None, [one, other]) => {
            let candidate =
                |command: &String| Candidate { plan: plan.clone(), command: Some(command.clone()) };
            Ok(Some((candidate(one), candidate(other), [one.clone(), other.clone()])))
        }
        (None, commands) => {
            let count = commands.len();
            Err(Failure::Usage(format!(
                "--vs-cmd: got it {count} times, need two: one command for each server"
            )))
        }
        (Some(_), _) => {
            Err(Failure::Usage("--vs and --vs-cmd exclude each other; give one of them".to_owned()))
        }
    }
}

fn write_files(measured: &Measured, checks: &[Check], options: &BenchOptions) -> Result<(), Failure> {
    let write = |path: &str, content: &str| {
        fs::write(path, content).map_err(|error| Failure::Run(format!("cannot write `{path}`: {error}")))
    };
    if let Some(path) = &options.hdr {
        write(path, &hdr::hdr(measured).map_err(Failure::Run)?)?;
    }
    if let Some(path) = &options.junit {
        write(path, &junit(measured, checks))?;
    }
    if let Some(path) = &options.markdown {
        write(path, &markdown(measured, checks))?;
    }
    if let Some(path) = &options.showing.report {
        write(path, &html::html(measured))?;
    }
    Ok(())
}

fn judge(checks: &[Check]) -> Result<(), Failure> {
    let broken = checks.iter().filter(|check| !check.is_met);
    let broken: Vec<String> =
        broken.map(|check| format!("{} (measured {})", check.requirement, check.measured)).collect();
    match broken.is_empty() {
        true => Ok(()),
        false => Err(Failure::Run(format!("requirement not met: {}", broken.join(", ")))),
    }
}

fn failure(error: Error) -> Failure {
    match error {
        Error::Plan(message) => Failure::Usage(message),
        error => Failure::Run(error.to_string()),
    }
}
