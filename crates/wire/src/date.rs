//! HTTP dates (RFC 9110 section 5.6.7), as seconds since 1970.

use std::time::{Duration, UNIX_EPOCH};

/// Bytes of an IMF-fixdate: `Sun, 06 Nov 1994 08:49:37 GMT`.
pub const DATE_BYTES: usize = 29;

/// The last second of a four-digit year, 9999-12-31T23:59:59Z.
const LAST_SECOND: u64 = 253_402_300_799;

/// Writes an IMF-fixdate. Times after the year 9999 are written as its end.
pub fn format(unix_seconds: u64) -> [u8; DATE_BYTES] {
    let time = UNIX_EPOCH + Duration::from_secs(unix_seconds.min(LAST_SECOND));
    let mut out = [b' '; DATE_BYTES];
    for (place, byte) in out.iter_mut().zip(httpdate::fmt_http_date(time).bytes()) {
        *place = byte;
    }
    out
}

/// The time as RFC 3339 writes it: `1994-11-06T08:49:37Z`. Times after the year 9999 are written as its end.
pub fn rfc_3339(unix_seconds: u64) -> String {
    let (days, second) = (unix_seconds.min(LAST_SECOND) / 86_400, unix_seconds.min(LAST_SECOND) % 86_400);
    // Years that begin in March have their leap day at the end, and 400 of them always have as many days.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Parses an HTTP date in any of its three forms; `None` for anything else, and for times before 1970.
pub fn parse(text: &[u8]) -> Option<u64> {
    let time = httpdate::parse_http_date(std::str::from_utf8(text).ok()?).ok()?;
    Some(time.duration_since(UNIX_EPOCH).ok()?.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc_3339_agrees_with_http_dates() {
        assert_eq!(rfc_3339(784_111_777), "1994-11-06T08:49:37Z");
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (u64::MAX, "9999-12-31T23:59:59Z"),
        ] {
            assert_eq!(rfc_3339(seconds), expected);
        }
        let months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
        for day in (0..150_000).step_by(11) {
            let (own, http) = (rfc_3339(day * 86_400), format(day * 86_400));
            let http = std::str::from_utf8(&http).unwrap();
            let month = months[own[5..7].parse::<usize>().unwrap() - 1];
            assert_eq!(format!("{} {month} {}", &own[8..10], &own[..4]), http[5..16]);
        }
    }

    #[test]
    fn the_three_forms() {
        for text in
            ["Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"]
        {
            assert_eq!(parse(text.as_bytes()), Some(784_111_777), "{text}");
        }
        assert_eq!(&format(784_111_777), b"Sun, 06 Nov 1994 08:49:37 GMT");
        for text in ["", "now", "Sun, 06 Nov 1994 08:49:37 CET", "Sun, 32 Nov 1994 08:49:37 GMT"] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
        assert_eq!(&format(u64::MAX)[12..16], b"9999");
    }
}
