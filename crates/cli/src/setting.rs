//! Settings as a table: name, value, default, help, and where it goes. The flags and the help text come from it.

use lexopt::{Arg, Parser, ValueExt};

use crate::Failure;

/// One setting of a subcommand whose options are a `T`.
pub(crate) struct Setting<T> {
    /// The flag, without dashes.
    pub(crate) name: &'static str,
    /// What its value is called in the help text; empty for a flag without one.
    pub(crate) value: &'static str,
    /// What it is without the flag; empty where nothing is.
    pub(crate) default: &'static str,
    /// What it does.
    pub(crate) help: &'static str,
    /// Reads the value into the options.
    pub(crate) set: fn(&mut T, &str) -> Result<(), String>,
}

/// Settings that belong together, under one heading.
pub(crate) type Group<T> = (&'static str, &'static [Setting<T>]);

/// Letters that stand for a flag, where people are used to them.
pub(crate) type Short = (char, &'static str);

/// What the arguments asked for.
pub(crate) enum Parsed {
    /// To go on, with these arguments that are no flags.
    Run(Vec<String>),
    /// To print the help text.
    Help,
}

/// Reads all arguments into `options`.
pub(crate) fn parse<T>(
    parser: Parser,
    groups: &[Group<T>],
    shorts: &[Short],
    options: &mut T,
) -> Result<Parsed, Failure> {
    walk(parser, groups, shorts, |setting, value| (setting.set)(options, value))
}

/// The names of the flags that are given.
pub(crate) fn given<T>(
    parser: Parser,
    groups: &[Group<T>],
    shorts: &[Short],
) -> Result<Vec<&'static str>, Failure> {
    let mut names = Vec::new();
    walk(parser, groups, shorts, |setting, _| {
        names.push(setting.name);
        Ok(())
    })?;
    Ok(names)
}

/// Goes through all arguments: hands each flag with its value to `each`, and returns the rest.
fn walk<T>(
    mut parser: Parser,
    groups: &[Group<T>],
    shorts: &[Short],
    mut each: impl FnMut(&Setting<T>, &str) -> Result<(), String>,
) -> Result<Parsed, Failure> {
    let mut free = Vec::new();
    let usage = |error: lexopt::Error| Failure::Usage(error.to_string());
    while let Some(argument) = parser.next().map_err(usage)? {
        let name = match argument {
            Arg::Value(value) => {
                free.push(value.string().map_err(usage)?);
                continue;
            }
            Arg::Short('h') | Arg::Long("help") => return Ok(Parsed::Help),
            Arg::Short(letter) => match shorts.iter().find(|(short, _)| *short == letter) {
                Some((_, name)) => (*name).to_owned(),
                None => return Err(Failure::Usage(format!("no flag -{letter}; see --help"))),
            },
            Arg::Long(name) => name.to_owned(),
        };
        let Some(setting) = all(groups).find(|setting| setting.name == name) else {
            let guess = guess(&name, all(groups).map(|setting| setting.name));
            let guess = guess.map_or("see --help".to_owned(), |guess| format!("did you mean --{guess}?"));
            return Err(Failure::Usage(format!("no flag --{name}; {guess}")));
        };
        let value = match setting.value {
            "" => String::new(),
            _ => parser.value().and_then(|value| value.string()).map_err(usage)?,
        };
        each(setting, &value).map_err(|message| Failure::Usage(format!("--{name}: {message}")))?;
    }
    Ok(Parsed::Run(free))
}

/// The help text of a subcommand.
pub(crate) fn help<T>(usage: &str, groups: &[Group<T>], shorts: &[Short]) -> String {
    let mut text = format!("usage: {usage}\n");
    for (heading, settings) in groups {
        text.push_str(&format!("\n{heading}\n"));
        for setting in *settings {
            let short = shorts.iter().find(|(_, name)| *name == setting.name);
            let short = short.map(|(letter, _)| format!("-{letter}, ")).unwrap_or_default();
            let flag = format!("{short}--{} {}", setting.name, setting.value);
            let default = match setting.default {
                "" => String::new(),
                default => format!(" [{default}]"),
            };
            let (first, rest) = wrap(&format!("{}{default}", setting.help));
            text.push_str(&format!("  {flag:<29} {first}\n"));
            for line in rest {
                text.push_str(&format!("  {:<29} {line}\n", ""));
            }
        }
    }
    text
}

/// The known name that is closest to what was typed, if one is close.
pub(crate) fn guess<'n>(typed: &str, names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let rated = names.map(|name| (strsim::jaro_winkler(typed, name), name));
    let (likeness, name) = rated.max_by(|(one, _), (other, _)| one.total_cmp(other))?;
    (likeness > 0.8).then_some(name)
}

fn all<T: 'static>(groups: &[Group<T>]) -> impl Iterator<Item = &'static Setting<T>> {
    groups.iter().flat_map(|(_, settings)| settings.iter())
}

/// Lines that leave the text within 100 columns.
fn wrap(text: &str) -> (String, Vec<String>) {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        if lines.last().is_some_and(|line| line.len() + word.len() + 1 > 68) {
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    let rest = lines.split_off(1);
    (lines.pop().unwrap_or_default(), rest)
}
