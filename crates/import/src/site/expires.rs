//! `expires`: times and variables.

use crate::nginx::Directive;

use super::out::{Lines, text, value};
use super::{Import, values};

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
    /// `expires` with a variable: its text.
    pub(super) fn expires_of_variable(&mut self, directive: &'d Directive, lines: &mut Lines) {
        let (from, word) = match directive.texts()[..] {
            ["modified", word] => (" from=modified", word),
            [word] => ("", word),
            _ => return self.leave(directive, "its value is not understood", lines),
        };
        if let Some(unknown) = self.unknown_in_response(word) {
            return self.leave(directive, &values::unsupported(unknown), lines);
        }
        self.fates.carried(directive);
        lines.setting(format!("expires {}{from}", text(word)));
    }
}
