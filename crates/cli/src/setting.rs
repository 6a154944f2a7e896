//! Settings as a table: name, value, default, help, and where the value goes. Flags, help text, completions and man
//! pages are generated from it.

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, ArgMatches, ValueHint};

use crate::Failure;

/// One setting of a subcommand whose options are a `T`.
pub(crate) struct Setting<T> {
    /// The flag, without dashes.
    pub(crate) name: &'static str,
    /// The name of its value in the help text; empty for a flag without one, several words for several values.
    pub(crate) value: &'static str,
    /// Its default; empty if there is none.
    pub(crate) default: &'static str,
    /// Its description. The part before the first semicolon is the short help, and must make sense alone.
    pub(crate) help: &'static str,
    /// Parses a value into the options.
    pub(crate) set: fn(&mut T, &str) -> Result<(), String>,
}

/// Related settings, under one heading.
pub(crate) type Group<T> = (&'static str, &'static [Setting<T>]);

/// Familiar one-letter flags.
pub(crate) type Short = (char, &'static str);

/// Adds the flags of a table to a command.
pub(crate) fn flags<T>(mut command: clap::Command, groups: &[Group<T>], shorts: &[Short]) -> clap::Command {
    for (heading, settings) in groups {
        for setting in *settings {
            let short = shorts.iter().find(|(_, name)| *name == setting.name).map(|(letter, _)| *letter);
            let Setting { name, value, default, help, .. } = *setting;
            let arg = flag(&Shape { name, value, default, help }, short);
            command = command.arg(arg.help_heading(*heading));
        }
    }
    command
}

/// Reads the given flags into `options`, in the order of the command line.
pub(crate) fn fill<T>(matches: &ArgMatches, groups: &[Group<T>], options: &mut T) -> Result<(), Failure> {
    let mut given = Vec::new();
    for setting in groups.iter().flat_map(|(_, settings)| settings.iter()) {
        given.extend(values(matches, setting.name).map(|(index, value)| (index, setting, value)));
    }
    given.sort_by_key(|(index, _, _)| *index);
    for (_, setting, value) in given {
        (setting.set)(options, value)
            .map_err(|message| Failure::Usage(format!("--{}: {message}", setting.name)))?;
    }
    Ok(())
}

/// The names of the given flags.
pub(crate) fn names_given<T>(matches: &ArgMatches, groups: &[Group<T>]) -> Vec<&'static str> {
    let all = groups.iter().flat_map(|(_, settings)| settings.iter()).map(|setting| setting.name);
    all.filter(|name| matches.contains_id(name)).collect()
}

/// The values of a positional argument.
pub(crate) fn words(matches: &ArgMatches, name: &str) -> Vec<String> {
    matches.get_many(name).into_iter().flatten().cloned().collect()
}

/// The values given to a flag, with their positions on the command line.
pub(crate) fn values<'m>(matches: &'m ArgMatches, name: &str) -> impl Iterator<Item = (usize, &'m String)> {
    let indices = matches.indices_of(name).into_iter().flatten();
    indices.zip(matches.get_many::<String>(name).into_iter().flatten())
}

/// The properties of a flag.
pub(crate) struct Shape {
    pub(crate) name: &'static str,
    pub(crate) value: &'static str,
    pub(crate) default: &'static str,
    pub(crate) help: &'static str,
}

/// A flag. It may be repeated: its setting decides what that means.
pub(crate) fn flag(setting: &Shape, short: Option<char>) -> Arg {
    let default = match setting.default {
        "" => String::new(),
        default => format!(" [default: {default}]"),
    };
    let brief = setting.help.split_once("; ").map_or(setting.help, |(brief, _)| brief);
    let mut arg = Arg::new(setting.name)
        .long(setting.name)
        .action(ArgAction::Append)
        .help(sentence(&format!("{brief}{default}")))
        .long_help(sentence(&format!("{}{default}", setting.help)));
    if let Some(letter) = short {
        arg = arg.short(letter);
    }
    let names: Vec<&str> = setting.value.split_whitespace().collect();
    arg = match names.as_slice() {
        [] => arg.num_args(0).default_missing_value(""),
        [choice] if choice.contains('|') => arg
            .value_name(*choice)
            .hide_possible_values(true)
            .value_parser(PossibleValuesParser::new(choice.split('|').collect::<Vec<_>>())),
        names => arg.num_args(names.len()).value_names(names.iter().copied()).value_hint(hint(names[0])),
    };
    // Text may start with a dash; for a number, `-1` gets a better error than "unknown flag".
    match setting.value {
        "" => arg,
        "CMD" | "ARGS" | "TEXT" | "FIELD" => arg.allow_hyphen_values(true),
        _ => arg.allow_negative_numbers(true),
    }
}

/// The same with a capital at the start, like the parser's own texts.
fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// How a shell may complete a value.
fn hint(value: &str) -> ValueHint {
    match value {
        "FILE" | "BEFORE" | "AFTER" => ValueHint::FilePath,
        "DIR" => ValueHint::DirPath,
        "CMD" => ValueHint::CommandString,
        "URL" => ValueHint::Url,
        "USER" => ValueHint::Username,
        _ => ValueHint::Other,
    }
}
