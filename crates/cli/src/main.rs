//! The one binary: parses, calls, prints. It has no logic of its own.
#![forbid(unsafe_code)]

mod bench;
mod climb;
mod json_api;
mod profile;
mod report;
mod serve;
mod setting;
mod signals;
mod tune;
mod value;

use std::ffi::OsString;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use flatout_engine::say;

/// Why a subcommand failed; decides the exit status.
enum Failure {
    /// Wrong usage or configuration: 2.
    Usage(String),
    /// A failure at run time: 1.
    Run(String),
}

/// A subcommand: its name, what it does in a line, and the function that does it. One that does not say what it does is
/// for our own use, and not told of.
struct Command {
    name: &'static str,
    about: &'static str,
    run: fn(lexopt::Parser) -> Result<(), Failure>,
}

const COMMANDS: &[Command] = &[
    serve::COMMAND,
    bench::COMMAND,
    profile::COMMAND,
    tune::COMMAND,
    climb::COMMAND,
    report::COMMAND,
    json_api::COMMAND,
];

fn main() -> ExitCode {
    match run(std::env::args_os()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Run(message)) => {
            say(format_args!("{message}"));
            ExitCode::from(1)
        }
        Err(Failure::Usage(message)) => {
            say(format_args!("{message}"));
            ExitCode::from(2)
        }
    }
}

fn run(arguments: impl IntoIterator<Item = OsString>) -> Result<(), Failure> {
    let mut arguments = arguments.into_iter();
    let program = arguments.next().unwrap_or_default();
    let Some(name) = arguments.next() else {
        return Err(Failure::Usage(format!("no command given\n\n{}", help())));
    };
    let name = name.to_string_lossy();
    match name.as_ref() {
        "-h" | "--help" | "help" => return print(&help()),
        "-V" | "--version" => return print(concat!("flatout ", env!("CARGO_PKG_VERSION"), "\n")),
        _ => {}
    }
    match COMMANDS.iter().find(|command| command.name == name) {
        Some(command) => (command.run)(lexopt::Parser::from_iter(std::iter::once(program).chain(arguments))),
        None => {
            let names =
                COMMANDS.iter().filter(|command| !command.about.is_empty()).map(|command| command.name);
            let guess = setting::guess(&name, names).map(|guess| format!("; did you mean `{guess}`?"));
            Err(Failure::Usage(format!(
                "no command `{name}`{}",
                guess.unwrap_or("; see flatout --help".into())
            )))
        }
    }
}

fn help() -> String {
    let mut text =
        String::from("flatout serves HTTP as fast as one Linux machine can\n\nusage: flatout COMMAND …\n\n");
    for command in COMMANDS.iter().filter(|command| !command.about.is_empty()) {
        text.push_str(&format!("  {:<10}{}\n", command.name, command.about));
    }
    text.push_str("\n  --help      this text; after a command, its flags\n  --version   the version\n");
    text
}

/// Writes a result to stdout. A reader that has seen enough and closed the pipe is a success.
fn print(text: &str) -> Result<(), Failure> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(Failure::Run(format!("stdout: {error}"))),
        _ => Ok(()),
    }
}
