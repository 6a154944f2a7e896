//! `sim [--seconds N] [--seed N] [--runs N] [--trace] [--pairs]`: see `./x sim`. A failing run is reduced to what its failure needs, and the flags
//! that repeat the smaller run are printed.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command")]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use lexopt::prelude::{Long, ValueExt};
use sim::Reduction;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

struct Options {
    seconds: u64,
    seed: Option<u64>,
    runs: Option<u64>,
    prints_trace: bool,
    /// All events are printed.
    prints_events: bool,
    /// The pairs of properties that were reached are printed.
    prints_pairs: bool,
    /// A failing run is printed as it is.
    is_not_reduced: bool,
    /// Of the runs, from a reduced one.
    reduction: Reduction,
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(options) => options,
        Err(error) => {
            eprintln!(
                "sim: {error}; usage: sim [--seconds N] [--seed N [--runs N]] [--trace] [--events] [--pairs]"
            );
            return ExitCode::from(2);
        }
    };
    let first = options.seed.unwrap_or_else(|| fastrand::u64(..));
    let runs_max = options.runs.unwrap_or(if options.seed.is_some() { 1 } else { u64::MAX });
    // Also known if the simulator itself is ended.
    println!("from seed {first}");
    // A panic of a run is in its report.
    sim::keep_panics();
    let (began, limit) = (Instant::now(), Duration::from_secs(options.seconds));
    let (mut runs, mut requests, mut whole, mut survivors, mut events, mut hash) = (0u64, 0, 0, 0, 0, 0u64);
    let mut pairs = sim::Pairs::default();
    while runs < runs_max && began.elapsed() < limit {
        let seed = first.wrapping_add(runs);
        let report = sim::run_reduced(seed, &options.reduction);
        runs += 1;
        requests += report.requests;
        whole += report.whole;
        survivors += report.survivors;
        events += report.events;
        hash = hash.rotate_left(1) ^ report.hash;
        if options.prints_pairs {
            pairs.add(&report.properties);
        }
        if report.failure.is_some() {
            let seconds = began.elapsed().as_secs_f64();
            println!("failed after {seconds:.1} s, {runs} runs, {requests} requests");
            print_failure(seed, &options, report);
            return ExitCode::FAILURE;
        }
        if options.prints_events {
            println!("{}", report.trace);
        }
        if options.prints_trace {
            println!(
                "seed {seed}: {} requests, {} events, {} responses from before a crash, {} subscribers moved, hash {:016x}",
                report.requests, report.events, report.survivors, report.moved, report.hash
            );
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    println!(
        "{runs} runs from seed {first}, {requests} requests ({whole} whole responses, {survivors} from before a crash), {events} events in {seconds:.1} s: \
         {:.0} requests/s, no failure, hash {hash:016x}",
        requests as f64 / seconds
    );
    if options.prints_pairs {
        println!("{pairs}");
    }
    ExitCode::SUCCESS
}

/// Prints the smallest run that was found to fail.
fn print_failure(seed: u64, options: &Options, report: sim::Report) {
    let reduction = &options.reduction;
    let first = report.failure.as_ref().map(|failure| failure.message.clone()).unwrap_or_default();
    let events = report.events;
    let (smallest, report) = match options.is_not_reduced {
        true => (reduction.clone(), report),
        false => sim::reduce(seed, reduction.clone(), report),
    };
    let Some(failure) = &report.failure else { return };
    println!("{}\n{}", failure.scene, report.trace);
    println!("seed {seed}, {events} events: {first}\nagain: ./x sim --seed {seed}{reduction}");
    if smallest != *reduction {
        println!(
            "reduced to {} events: {}\nagain: ./x sim --seed {seed}{smallest}",
            report.events, failure.message
        );
    }
}

fn options() -> Result<Options, lexopt::Error> {
    let mut options = Options {
        seconds: 60,
        seed: None,
        runs: None,
        prints_trace: false,
        prints_events: false,
        prints_pairs: false,
        is_not_reduced: false,
        reduction: Reduction::default(),
    };
    let mut parser = lexopt::Parser::from_env();
    while let Some(argument) = parser.next()? {
        match argument {
            Long("seconds") => options.seconds = parser.value()?.parse()?,
            Long("seed") => options.seed = Some(parser.value()?.parse()?),
            Long("runs") => options.runs = Some(parser.value()?.parse()?),
            Long("events") => options.prints_events = true,
            Long("pairs") => options.prints_pairs = true,
            Long("trace") => options.prints_trace = true,
            Long("clients") => {
                let list = parser.value()?.string()?;
                let numbers: Result<_, _> = list.split(',').map(str::parse).collect();
                let numbers =
                    numbers.map_err(|_| format!("--clients: got `{list}`, need numbers such as 0,3"))?;
                options.reduction.clients = Some(numbers);
            }
            Long("connections") => options.reduction.connections = Some(parser.value()?.parse()?),
            Long("requests") => options.reduction.requests = Some(parser.value()?.parse()?),
            Long("workers") => options.reduction.workers = Some(parser.value()?.parse()?),
            Long("configurations") => options.reduction.configurations = Some(parser.value()?.parse()?),
            Long("no-reduce") => options.is_not_reduced = true,
            Long("no-subscribers") => options.reduction.has_no_subscribers = true,
            Long("no-upgrades") => options.reduction.has_no_upgrades = true,
            Long("no-slices") => options.reduction.has_no_slices = true,
            Long("no-purges") => options.reduction.has_no_purges = true,
            other => return Err(other.unexpected()),
        }
    }
    Ok(options)
}
