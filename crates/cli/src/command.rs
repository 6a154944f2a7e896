//! Subcommands, and the command line built from their tables.

use std::ffi::OsString;

use clap::builder::Styles;
use clap::builder::styling::AnsiColor;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgMatches};

use crate::setting::{Group, Short, flags};
use crate::{COMMANDS, Failure};

/// A subcommand.
pub(crate) struct Command {
    pub(crate) name: &'static str,
    /// A one-line description; empty for internal commands, which are not listed.
    pub(crate) about: &'static str,
    /// More for the long help: behaviour, exit status.
    pub(crate) more: &'static str,
    /// Commands, and what they are for.
    pub(crate) examples: &'static [(&'static str, &'static str)],
    /// Adds its arguments.
    pub(crate) arguments: fn(clap::Command) -> clap::Command,
    pub(crate) run: fn(&ArgMatches) -> Result<(), Failure>,
}

/// The widest help text: longer lines are hard to read.
const HELP_COLUMNS_MAX: usize = 100;

/// The version, and the commit where it is known.
pub(crate) const VERSION: &str = match option_env!("FLATOUT_COMMIT") {
    Some(commit) => commit,
    None => env!("CARGO_PKG_VERSION"),
};

/// Former names of flags.
const FORMER: &[(&str, &str)] = &[
    ("--seconds", "--duration"),
    ("--run-time", "--duration"),
    ("--out", "--report"),
    ("--server-pid", "--pid"),
    ("--rate-window", "--min-rate-window"),
];

/// Flags that usually take two values, and the value that may stand alone.
const ALONE: &[(&str, &str)] = &[("--tls", "local")];

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

const ABOUT: &str =
    "Serve HTTP fast, load it, profile it, tune the machine, and measure what each change is worth";

const EXAMPLES: &[(&str, &str)] = &[
    ("flatout serve ./public", "serve a folder"),
    ("flatout bench http://127.0.0.1:8080/", "load a server and measure it"),
    ("flatout tune --port 8080", "list the settings that slow this server down"),
    ("flatout climb --port 8080 --low-risk", "measure what changing them would gain"),
    ("flatout help climb", "show all flags of a command"),
];

/// The whole command line.
pub(crate) fn program() -> clap::Command {
    clap::Command::new("flatout")
        .about(ABOUT)
        .version(VERSION)
        .styles(STYLES)
        .max_term_width(HELP_COLUMNS_MAX)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .after_help(examples(EXAMPLES))
        .subcommands(COMMANDS.iter().map(Command::clap))
}

/// Parses a command line; requested help is also a failure, with exit status 0.
pub(crate) fn parse(
    command: clap::Command,
    words: impl IntoIterator<Item = impl Into<OsString> + Clone>,
) -> Result<ArgMatches, Failure> {
    command.try_get_matches_from(with_both(words)).map_err(|error| match renamed(&error) {
        Some(message) => Failure::Usage(message),
        None => Failure::Parser(Box::new(error)),
    })
}

impl Command {
    /// As a `clap` command.
    pub(crate) fn clap(&self) -> clap::Command {
        let command = clap::Command::new(self.name)
            .about(self.about)
            .hide(self.about.is_empty())
            .after_long_help(join(&examples(self.examples), self.more));
        (self.arguments)(command)
    }

    /// Parses `words`, which follow its name.
    pub(crate) fn parse(&self, words: impl IntoIterator<Item = String>) -> Result<ArgMatches, Failure> {
        let words = std::iter::once(format!("flatout {}", self.name)).chain(words);
        parse(self.clap().styles(STYLES), words)
    }
}

/// Adds an empty second value to a value that may stand alone, since the parser wants a fixed number of values.
fn with_both(words: impl IntoIterator<Item = impl Into<OsString>>) -> Vec<OsString> {
    let mut both: Vec<OsString> = Vec::new();
    for word in words {
        let word = word.into();
        let is_joined = |(flag, value): &&(&str, &str)| word == *format!("{flag}={value}");
        if let Some((flag, value)) = ALONE.iter().find(is_joined) {
            both.extend([*flag, *value, ""].map(OsString::from));
            continue;
        }
        let is_alone = ALONE
            .iter()
            .any(|(flag, value)| word == *value && both.last().is_some_and(|before| before == *flag));
        both.push(word);
        if is_alone {
            both.push(OsString::new());
        }
    }
    both
}

/// A table of flags and one argument without a name.
pub(crate) fn with<T>(
    command: clap::Command,
    free: Arg,
    groups: &[Group<T>],
    shorts: &[Short],
) -> clap::Command {
    flags(command.arg(free), groups, shorts)
}

fn examples(examples: &[(&str, &str)]) -> String {
    if examples.is_empty() {
        return String::new();
    }
    let lines = examples.iter().map(|(typed, what)| format!("  # {what}\n  {typed}\n"));
    let heading = STYLES.get_header();
    format!("{heading}Examples:{heading:#}\n{}", lines.collect::<Vec<_>>().join("\n"))
}

/// Two texts with an empty line in between, if both exist.
fn join(one: &str, other: &str) -> String {
    let gap = if one.is_empty() || other.is_empty() { "" } else { "\n" };
    format!("{one}{gap}{other}")
}

/// The current name of a flag that had another name.
fn renamed(error: &clap::Error) -> Option<String> {
    let found = error.get(ContextKind::InvalidArg).filter(|_| error.kind() == ErrorKind::UnknownArgument);
    let Some(ContextValue::String(typed)) = found else { return None };
    let (former, present) = FORMER.iter().find(|(former, _)| former == typed)?;
    Some(format!("{former} is now {present}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switches_do_not_consume_the_next_word() {
        let both = |text: &str| with_both(text.split(' ')).join(OsString::from("|").as_os_str());
        assert_eq!(both("x --tls local ./public"), "x|--tls|local||./public");
        assert_eq!(both("--tls=local --tls a b local"), "--tls|local||--tls|a|b|local");
    }

    #[test]
    fn the_command_line_is_consistent() {
        program().debug_assert();
    }

    /// One word, one meaning: a flag of several commands takes the same kind of value in each.
    #[test]
    fn a_flag_means_the_same_in_every_command() {
        let mut known: Vec<(String, &str, Vec<String>)> = Vec::new();
        let program = program();
        for command in program.get_subcommands() {
            let listed = COMMANDS.iter().find(|one| one.name == command.get_name()).unwrap();
            for arg in command.get_arguments().filter(|arg| arg.get_long().is_some()) {
                let name = arg.get_long().unwrap().to_owned();
                let values = arg.get_value_names().unwrap_or_default();
                let values: Vec<String> = values.iter().map(ToString::to_string).collect();
                // On stdout, or in a file of its own beside the text: both write the result as JSON. A client
                // switches HTTP/2 on, a server may switch it off.
                let has_two_forms = ["json", "http2"].contains(&name.as_str());
                let other =
                    known.iter().find(|(one, _, other)| *one == name && *other != values && !has_two_forms);
                if let Some((_, elsewhere, other)) = other {
                    panic!("--{name}: {values:?} in {}, {other:?} in {elsewhere}", listed.name);
                }
                known.push((name, listed.name, values));
            }
        }
        for (former, _) in FORMER {
            assert!(known.iter().all(|(name, _, _)| format!("--{name}") != *former), "{former}");
        }
    }
}
