//! `expires`: times, variables, and tables of content types.

use crate::nginx::Directive;

use super::chain::{Chain, has_below};
use super::out::{Lines, text, value};
use super::{Import, values};

/// The source of a table of content types.
const TYPE: &str = "$sent_http_content_type";

/// The longest time of `expires`, in milliseconds: 68 years.
const TIME_MS_MAX: u64 = 1000 << 31;

const DAY_MS: u64 = 86_400_000;

/// A directive without variables.
pub(super) fn setting(directive: &Directive) -> Result<String, &'static str> {
    let words = directive.texts();
    let (from, word) = match words[..] {
        ["modified", word] => (" from=modified", word),
        [word] => ("", word),
        _ => return Err("only a time is supported"),
    };
    let is_period = !["epoch", "max"].contains(&word) && !word.starts_with('@');
    let time = time(word).filter(|_| from.is_empty() || is_period);
    Ok(format!("expires {}{from}", value(time.ok_or("its value is not understood")?)))
}

/// A time: the site file has nginx's words for it.
fn time(word: &str) -> Option<&str> {
    let is_less = |text: &str, ms_max: u64| {
        // It counts seconds.
        !text.contains("ms") && values::milliseconds(text).is_some_and(|ms| ms < ms_max)
    };
    match word {
        "off" | "max" => Some(word),
        "epoch" => Some("never"),
        _ => match (word.strip_prefix('@'), word.strip_prefix('-')) {
            (Some(time), _) => is_less(time, DAY_MS).then_some(word),
            (None, Some(time)) => is_less(time, TIME_MS_MAX).then_some(word),
            (None, None) => {
                Some(word.strip_prefix('+').unwrap_or(word)).filter(|time| is_less(time, TIME_MS_MAX))
            }
        },
    }
}

impl<'d> Import<'d> {
    /// `expires` with a variable: its text, or what a table of content types says.
    pub(super) fn expires_of_variable(
        &mut self,
        directive: &'d Directive,
        chain: &Chain<'d>,
        lines: &mut Lines,
    ) {
        let (from, word) = match directive.texts()[..] {
            ["modified", word] => (" from=modified", word),
            [word] => ("", word),
            _ => return self.leave(directive, "its value is not understood", lines),
        };
        let mut tables = chain.levels().iter().flat_map(|level| level.iter());
        if let Some(table) = tables.find(|it| is_type_table(it) && it.word(1) == word && from.is_empty()) {
            if !chain.is_location() && has_below(chain.own(), &["expires"]) {
                // It would also hold there.
                return self.leave(
                    directive,
                    "a location has its own `expires`; write it in each location",
                    lines,
                );
            }
            match by_type(table) {
                None => self.leave(directive, "its map has values that are not times", lines),
                Some((usual, cases)) => {
                    self.fates.carried(directive);
                    if usual != "off" {
                        lines.setting(format!("expires {}", value(&usual)));
                    }
                    for (condition, time) in cases {
                        let mut inner = Lines::default();
                        inner.setting(format!("expires {}", value(&time)));
                        lines.block(&[], format!("when {}", text(&condition)), inner);
                    }
                }
            }
            return;
        }
        if let Some(unknown) = values::unknown_in_response(word, &self.maps) {
            let why = format!("the variable ${unknown} is not supported");
            return self.leave(directive, &why, lines);
        }
        self.fates.carried(directive);
        lines.setting(format!("expires {}{from}", text(word)));
    }
}

/// Whether this is a table of content types whose values are constants.
fn is_type_table(directive: &Directive) -> bool {
    directive.name == "map"
        && directive.word(0) == TYPE
        && directive.inner().iter().all(|case| !case.word(0).contains('$'))
}

/// Whether an `expires` of these blocks uses this table of content types.
pub(super) fn uses_type_table(block: &[Directive], table: &Directive) -> bool {
    let uses = |it: &Directive| it.name == "expires" && it.texts() == [table.word(1)];
    is_type_table(table) && block.iter().any(|it| uses(it) || uses_type_table(it.inner(), table))
}

/// The usual time, and the conditions of others. Of several conditions that are true the last one counts, in nginx an exact text
/// and then the first expression.
fn by_type(table: &Directive) -> Option<(String, Vec<(String, String)>)> {
    let (mut usual, mut exact, mut patterns) = ("off", Vec::new(), Vec::new());
    for case in table.inner() {
        let key = case.name.as_str();
        if ["volatile", "hostnames"].contains(&key) {
            continue;
        }
        let time = time(case.word(0))?;
        let pattern = match (key.strip_prefix("~*"), key.strip_prefix('~')) {
            (Some(pattern), _) => Some(format!("(?i){pattern}")),
            (None, pattern) => pattern.map(str::to_owned),
        };
        let field = "response_header['content-type']";
        match (key, pattern) {
            ("default", _) => usual = time,
            _ if key.contains('\'') => return None,
            (_, Some(pattern)) => {
                regex::Regex::new(&pattern).ok()?;
                patterns.push((format!("{field}.matches(r'{pattern}')"), time));
            }
            ("", None) => exact.push((String::new(), format!("{field} == ''"), time)),
            // Texts have a charset here.
            (_, None) => {
                let key = key.trim_start_matches('\\').to_ascii_lowercase();
                let condition = format!("{field}.lowerAscii().startsWith('{key}')");
                exact.push((key, condition, time));
            }
        }
    }
    patterns.reverse();
    // Types that begin alike are the only texts of which several can be true.
    let begins_alike = |key: &str| {
        let others = exact.iter().filter(|(other, _, time)| other != key && *time != "off");
        others.into_iter().any(|(other, _, _)| other.starts_with(key) || key.starts_with(other.as_str()))
    };
    let (off, on): (Vec<_>, Vec<_>) =
        exact.iter().cloned().partition(|(key, _, time)| *time == "off" && !begins_alike(key));
    patterns.extend(off.into_iter().chain(on).map(|(_, condition, time)| (condition, time)));
    if usual == "off" {
        // The first ones are off anyway; one that switches off another before it is not possible.
        let first = patterns.iter().position(|(_, time)| *time != "off").unwrap_or(patterns.len());
        patterns.drain(..first);
    }
    let is_possible = patterns.iter().all(|(_, time)| *time != "off");
    let cases = patterns.into_iter().map(|(condition, time)| (condition, time.to_owned()));
    is_possible.then(|| (usual.to_owned(), cases.collect()))
}
