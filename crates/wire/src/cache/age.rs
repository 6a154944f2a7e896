//! The age of a response (RFC 9111 section 4.2.3).

use super::SECONDS_MAX;
use super::control::seconds;
use crate::date;
use crate::field::trim_ows;

/// Parses a date for a cache, which ignores case (RFC 9111 section 4.2).
pub(super) fn parse_date(text: &[u8]) -> Option<u64> {
    date::parse(text).or_else(|| {
        let is_zone = |word: &[u8]| word.eq_ignore_ascii_case(b"gmt");
        let mut usual = Vec::with_capacity(text.len());
        for word in text.split_inclusive(|&byte| !byte.is_ascii_alphabetic()) {
            let letters = word.iter().take_while(|byte| byte.is_ascii_alphabetic()).count();
            let is_zone = word.get(..letters).is_some_and(is_zone);
            usual.extend(word.iter().enumerate().map(|(at, byte)| match at == 0 || is_zone {
                true => byte.to_ascii_uppercase(),
                false => byte.to_ascii_lowercase(),
            }));
        }
        date::parse(&usual)
    })
}

/// The value of `Age`: of several, the first; anything but a number is ignored (RFC 9111 section 5.1).
pub(super) fn said_age<'a>(mut lines: impl Iterator<Item = &'a [u8]>) -> u32 {
    let first = lines.next().and_then(|line| line.split(|&byte| byte == b',').next());
    first.and_then(|value| seconds(trim_ows(value))).unwrap_or(0)
}

/// The age of a response, in seconds, when it arrived: by its own `Date` and `Age`, whichever gives more. `date` is
/// in seconds since 1970, the other times are in milliseconds.
pub fn initial_age(said: u32, date: Option<u64>, request_ms: u64, response_ms: u64) -> u32 {
    let response = response_ms / 1000;
    let apparent = response.saturating_sub(date.unwrap_or(response));
    let delay = response_ms.saturating_sub(request_ms) / 1000;
    let corrected = u64::from(said).saturating_add(delay);
    apparent.max(corrected).min(u64::from(SECONDS_MAX)) as u32
}

/// Its current age. A clock that was set back adds nothing.
#[inline]
pub fn current_age(initial: u32, stored_ms: u64, now_ms: u64) -> u32 {
    let resident = now_ms.saturating_sub(stored_ms) / 1000;
    u64::from(initial).saturating_add(resident).min(u64::from(SECONDS_MAX)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_age_field_is_read_as_a_number_or_not_at_all() {
        for (lines, expected) in [
            (&["7"][..], 7),
            (&["7, 9"], 7),
            (&["7", "9"], 7),
            (&[" 7 "], 7),
            (&["abc", "9"], 0),
            (&["-7"], 0),
            (&["7.5"], 0),
            (&["99999999999"], SECONDS_MAX),
            (&[], 0),
        ] {
            assert_eq!(said_age(lines.iter().map(|line| line.as_bytes())), expected, "{lines:?}");
        }
    }

    #[test]
    fn dates_are_read_in_any_case() {
        for text in [
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "SUN, 06 nov 1994 08:49:37 gmt",
            "sunday, 06-NOV-94 08:49:37 Gmt",
            "sun nov  6 08:49:37 1994",
        ] {
            assert_eq!(parse_date(text.as_bytes()), Some(784_111_777), "{text}");
        }
        for text in ["", "0", "Sun, 06 Nov 1994 08:49:37 CET", "Sun 06 Nov 1994 08:49:37 GMT"] {
            assert_eq!(parse_date(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn the_larger_of_two_ages_counts() {
        assert_eq!(initial_age(0, Some(90), 99_000, 100_000), 10);
        assert_eq!(initial_age(30, Some(90), 98_000, 100_000), 32);
        assert_eq!(initial_age(0, Some(200), 100_000, 100_000), 0);
        assert_eq!(initial_age(0, None, 100_000, 100_000), 0);
        assert_eq!(initial_age(u32::MAX, None, 0, u64::MAX), SECONDS_MAX);
        assert_eq!(current_age(5, 100_000, 102_999), 7);
        assert_eq!(current_age(5, 100_000, 0), 5);
    }
}
