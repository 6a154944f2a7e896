//! How and when a result was made.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::secret;

/// How and when a result was made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResultOrigin {
    /// The command without secrets.
    pub command: String,
    /// When it ended, in UTC: `2026-11-23 17:34:07 UTC`.
    pub date: String,
}

impl ResultOrigin {
    /// This process, now. `arguments` are those after its name.
    pub fn now(arguments: impl Iterator<Item = String>) -> ResultOrigin {
        let words: Vec<String> = secret::arguments(arguments).iter().map(|word| shell(word)).collect();
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        ResultOrigin { command: format!("flatout {}", words.join(" ")), date: date(seconds) }
    }
}

/// A word as a shell needs it.
fn shell(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:=,+@%".contains(&byte);
    match !word.is_empty() && word.bytes().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

/// A time in UTC. The date is computed as in Hinnant's `civil_from_days`: eras of 400 years that begin in March.
fn date(unix_seconds: u64) -> String {
    let (days, seconds) = (unix_seconds / 86_400 + 719_468, unix_seconds % 86_400);
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let from_march = (5 * of_year + 2) / 153;
    let of_month = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    format!("{year}-{month:02}-{of_month:02} {hours:02}:{minutes:02}:{:02} UTC", seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (784_111_777, "1994-11-06 08:49:37 UTC"),
            (951_782_399, "2000-02-28 23:59:59 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
        ] {
            assert_eq!(date(seconds), expected);
        }
    }

    #[test]
    fn commands_are_without_secrets() {
        let words = ["bench", "http://a/", "-H", "Authorization: Bearer s3cret", "--require", "p99<5ms"];
        let origin = ResultOrigin::now(words.iter().map(ToString::to_string));
        assert!(
            origin.command.starts_with("flatout bench http://a/ -H 'Authorization: "),
            "{}",
            origin.command
        );
        assert!(
            origin.command.ends_with(" --require 'p99<5ms'") && !origin.command.contains("s3cret"),
            "{}",
            origin.command
        );
    }
}
