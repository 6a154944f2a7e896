//! `volume-transformer --volume DIR [--name NAME] [--once]`: makes JSON of the tables in a volume's inbox.

use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use flatout::engine::say;
use lexopt::{Arg, Parser, ValueExt};
use volume::name::Name;
use volume::queue::{ALIVE_PERIOD, Queue};
use volume::store::Volume;
use volume::transformer::{Transformed, Transformer, remove_old};

const HELP: &str = "\
usage: volume-transformer --volume DIR [--name NAME] [--once]

  --volume DIR       the volume; its folders are made
  --name NAME        its name, which no other transformer has; HOSTNAME, which is the pod's, unless given
  --once             end when there is nothing to do
";

/// How often an empty inbox is looked at. NFS does not tell its clients of changes.
const POLL_PERIOD: Duration = Duration::from_secs(1);

/// How long a volume that failed is left alone.
const FAILURE_PAUSE: Duration = Duration::from_secs(5);

/// How long sources and reasons are kept.
const DONE_TIME: Duration = Duration::from_secs(7 * 24 * 3600);

/// How often old ones are removed.
const CLEANING_PERIOD: Duration = Duration::from_secs(3600);

struct Options {
    volume: String,
    name: Name,
    once: bool,
}

fn main() -> ExitCode {
    match read(Parser::from_env()) {
        Ok(Some(options)) => run(&options),
        Ok(None) => print(HELP),
        Err(why) => {
            say(format_args!("{why}\n{HELP}"));
            ExitCode::from(2)
        }
    }
}

fn run(options: &Options) -> ExitCode {
    let joined = Volume::open(&options.volume)
        .and_then(|volume| Ok((volume.clone(), Queue::join(volume, options.name.clone())?)));
    let (volume, queue) = match joined {
        Ok(joined) => joined,
        Err(error) => {
            say(format_args!("the volume `{}`: {error}", options.volume));
            return ExitCode::from(2);
        }
    };
    let heart = queue.clone();
    // A large table takes longer than a lease.
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(ALIVE_PERIOD);
            if let Err(error) = heart.show_alive() {
                say(format_args!("the volume: {error}; other transformers may take over"));
            }
        }
    });
    let transformer = Transformer::new(volume.clone(), queue);
    say(format_args!("{} transforms the tables of `{}`", options.name, options.volume));
    let mut cleaned: Option<Instant> = None;
    loop {
        match transformer.turn(&|_| Ok(())) {
            Ok(done) if done.is_empty() && options.once => return ExitCode::SUCCESS,
            Ok(done) if done.is_empty() => std::thread::sleep(POLL_PERIOD),
            Ok(done) => done.iter().for_each(|(name, outcome)| report(name, outcome)),
            Err(error) => {
                say(format_args!("the volume: {error}; trying again in {} s", FAILURE_PAUSE.as_secs()));
                std::thread::sleep(FAILURE_PAUSE);
            }
        }
        if cleaned.is_none_or(|at| at.elapsed() > CLEANING_PERIOD) {
            cleaned = Some(Instant::now());
            if let Err(error) = remove_old(&volume, DONE_TIME) {
                say(format_args!("the volume: old files could not be removed: {error}"));
            }
        }
    }
}

fn report(name: &Name, outcome: &Transformed) {
    match outcome {
        Transformed::Published(rows) => say(format_args!("{name}: {rows} rows")),
        Transformed::Refused(why) => say(format_args!("{name}: {why}")),
        Transformed::Lost => say(format_args!("{name}: another transformer has taken it over")),
    }
}

fn read(mut parser: Parser) -> Result<Option<Options>, String> {
    let (mut volume, mut name, mut once) = (None, std::env::var("HOSTNAME").ok(), false);
    let message = |error: lexopt::Error| error.to_string();
    while let Some(argument) = parser.next().map_err(message)? {
        match argument {
            Arg::Long("volume") => volume = Some(parser.value().and_then(ValueExt::string).map_err(message)?),
            Arg::Long("name") => name = Some(parser.value().and_then(ValueExt::string).map_err(message)?),
            Arg::Long("once") => once = true,
            Arg::Long("help") | Arg::Short('h') => return Ok(None),
            _ => return Err(argument.unexpected().to_string()),
        }
    }
    let volume = volume.ok_or("--volume is missing")?;
    let name = name.ok_or("--name is missing, and HOSTNAME is not set")?;
    Ok(Some(Options { volume, name: Name::parse(&name)?, once }))
}

fn print(text: &str) -> ExitCode {
    let _ = std::io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
}
