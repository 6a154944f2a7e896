//! The one binary: parses, calls, prints. It has no logic of its own.
#![forbid(unsafe_code)]

mod bench;
mod climb;
mod command;
mod completions;
#[cfg(feature = "controller")]
mod controller;
#[cfg(feature = "controller")]
mod data_plane;
mod hash_password;
mod health;
mod import;
#[cfg(test)]
mod import_tests;
mod json_api;
mod man;
mod new;
mod profile;
mod publish;
mod report;
mod serve;
mod setting;
mod shared;
mod signals;
mod terminal;
mod top;
mod tune;
mod value;

use std::ffi::OsString;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use command::{Command, program};

/// Why a subcommand failed; decides the exit status.
enum Failure {
    /// Wrong usage or configuration: 2.
    Usage(String),
    /// A failure at run time: 1.
    Run(String),
    /// The command line parser's message: 2, or 0 if help was requested.
    Parser(Box<clap::Error>),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Usage(message) | Failure::Run(message) => f.write_str(message),
            Failure::Parser(error) => error.fmt(f),
        }
    }
}

impl From<flatout_server::Failure> for Failure {
    fn from(failure: flatout_server::Failure) -> Failure {
        match failure {
            flatout_server::Failure::Usage(message) => Failure::Usage(message),
            flatout_server::Failure::Run(message) => Failure::Run(message),
            flatout_server::Failure::Listen(message, address, kind) => {
                Failure::Run(serve::refused::explained(&message, &address, kind))
            }
        }
    }
}

/// Every subcommand, in the order of the help text.
const COMMANDS: &[Command] = &[
    serve::COMMAND,
    serve::check::CHECK,
    serve::check::FMT,
    serve::explain::COMMAND,
    serve::reload::COMMAND,
    serve::upgrade::COMMAND,
    serve::upstream::COMMAND,
    health::COMMAND,
    publish::COMMAND,
    serve::purge::COMMAND,
    serve::render::COMMAND,
    hash_password::COMMAND,
    import::COMMAND,
    #[cfg(feature = "controller")]
    controller::COMMAND,
    #[cfg(feature = "controller")]
    data_plane::COMMAND,
    top::COMMAND,
    bench::COMMAND,
    profile::COMMAND,
    tune::COMMAND,
    climb::COMMAND,
    report::COMMAND,
    new::COMMAND,
    completions::COMMAND,
    man::COMMAND,
    json_api::COMMAND,
];

fn main() -> ExitCode {
    flatout_lane::names::use_files_and_dns();
    match run(std::env::args_os()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Run(message)) => {
            terminal::complain(&message);
            ExitCode::from(1)
        }
        Err(Failure::Usage(message)) => {
            terminal::complain(&message);
            ExitCode::from(2)
        }
        Err(Failure::Parser(error)) => {
            let status = error.exit_code().clamp(0, 2) as u8;
            terminal::explain(*error);
            ExitCode::from(status)
        }
    }
}

fn run(arguments: impl IntoIterator<Item = OsString>) -> Result<(), Failure> {
    let matches = command::parse(program(), arguments)?;
    let Some((name, matches)) = matches.subcommand() else { return Ok(()) };
    match COMMANDS.iter().find(|command| command.name == name) {
        Some(command) => (command.run)(matches),
        None => Ok(()),
    }
}

/// Writes a result to stdout. A reader that closes the pipe early is a success.
fn print(text: &str) -> Result<(), Failure> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(Failure::Run(format!("stdout: {error}"))),
        _ => Ok(()),
    }
}
