//! `expires`: times, variables, and tables of content types.

use crate::nginx::Directive;

use super::chain::Chain;
use super::out::{Lines, text, value};
use super::{Import, values};

/// The source of a table of content types.
const TYPE: &str = "$sent_http_content_type";

/// A directive without variables.
pub(super) fn setting(directive: &Directive) -> Result<String, &'static str> {
    let words = directive.texts();
    let (from, word) = match words[..] {
        ["modified", word] => (" from=modified", word),
        [word] => ("", word),
        _ => return Err("only a time is supported"),
    };
    Ok(format!("expires {}{from}", value(&time(word).ok_or("its value is not understood")?)))
}

/// A time in the site file's form.
fn time(word: &str) -> Option<String> {
    Some(match word {
        "off" | "max" => word.to_owned(),
        "epoch" => "never".to_owned(),
        _ if word.starts_with('-') => "never".to_owned(),
        _ => match word.strip_prefix('@') {
            Some(day) if values::milliseconds(day)? < 86_400_000 => word.to_owned(),
            Some(_) => return None,
            None => values::time(word.trim_start_matches('+'))?,
        },
    })
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
    let (mut usual, mut exact, mut patterns) = ("off".to_owned(), Vec::new(), Vec::new());
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
            ("", None) => exact.push((format!("{field} == ''"), time)),
            // Texts have a charset here.
            (_, None) => {
                exact.push((format!("{field}.startsWith('{}')", key.trim_start_matches('\\')), time))
            }
        }
    }
    patterns.reverse();
    patterns.extend(exact);
    match usual.as_str() {
        // These are off anyway, unless another condition is true too.
        "off" => patterns.retain(|(_, time)| time != "off"),
        _ if patterns.iter().any(|(_, time)| time == "off") => return None,
        _ => {}
    }
    Some((usual, patterns))
}
