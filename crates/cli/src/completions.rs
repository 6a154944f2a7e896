//! `flatout completions SHELL`.

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgMatches, value_parser};
use clap_complete::{Shell, generate};
use flatout_tune::TUNINGS;

use crate::command::{Command, program};
use crate::{Failure, print};

pub(crate) const COMMAND: Command = Command {
    name: "completions",
    about: "Print completions for a shell",
    more: "",
    examples: &[
        ("flatout completions bash > /etc/bash_completion.d/flatout", "for bash, every user"),
        ("flatout completions zsh > ~/.zfunc/_flatout", "for zsh, with ~/.zfunc in fpath"),
        ("flatout completions fish > ~/.config/fish/completions/flatout.fish", "for fish"),
    ],
    arguments: |command| {
        let shell = Arg::new(SHELL).value_name("SHELL").help("The shell").required(true);
        command.arg(shell.value_parser(value_parser!(Shell)))
    },
    run,
};

const SHELL: &str = "shell";

fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let Some(shell) = matches.get_one::<Shell>(SHELL) else { return Ok(()) };
    let mut text = Vec::new();
    generate(*shell, &mut completed(program()), "flatout", &mut text);
    print(&String::from_utf8_lossy(&text))
}

/// The command line with the tunings as possible values. Otherwise a tuning is looked up in code, with its own guess.
fn completed(program: clap::Command) -> clap::Command {
    let tunings = || PossibleValuesParser::new(TUNINGS.iter().map(|tuning| tuning.about().name));
    [crate::tune::NAMES, crate::climb::NAMES].into_iter().fold(program, |program, (command, names)| {
        program.mut_subcommand(command, |command| command.mut_arg(names, |arg| arg.value_parser(tunings())))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The generator for fish leaves out values of arguments that have no flag.
    const SHELLS: [(Shell, &[&str]); 3] =
        [(Shell::Bash, &["somaxconn"]), (Shell::Zsh, &["somaxconn"]), (Shell::Fish, &[])];

    #[test]
    fn every_shell_completes_commands_flags_and_tunings() {
        for (shell, words) in SHELLS {
            let mut text = Vec::new();
            generate(shell, &mut completed(program()), "flatout", &mut text);
            let text = String::from_utf8(text).unwrap();
            for word in ["climb", "connections-per-address"].iter().chain(words) {
                assert!(text.contains(*word), "{shell}: {word}");
            }
        }
    }
}
