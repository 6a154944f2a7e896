//! Dates in cookies.

/// Seconds of the last date that is written: the end of the year 9999.
const SECONDS_MAX: f64 = 253_402_300_799.0;

const DAY_SECONDS: u64 = 86_400;

/// The last year of which nginx writes two digits.
const SHORT_YEAR_MAX: u64 = 2037;

const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// A time in seconds since 1970 as `expires` of a cookie, in the form that nginx writes and every client reads
/// (RFC 6265, section 5.1.1): `Thu, 31-Dec-37 23:55:55 GMT`.
pub(crate) fn cookie_date(unix_seconds: f64) -> String {
    let seconds = unix_seconds.clamp(0.0, SECONDS_MAX) as u64;
    let (days, rest) = (seconds / DAY_SECONDS, seconds % DAY_SECONDS);
    let (year, month, day) = civil(days);
    let weekday = DAYS[(days % 7) as usize];
    let month = MONTHS[(month - 1) as usize];
    let year = if year > SHORT_YEAR_MAX { year.to_string() } else { format!("{:02}", year % 100) };
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{weekday}, {day:02}-{month}-{year} {hour:02}:{minute:02}:{second:02} GMT")
}

/// Year, month from 1, and day from 1 of a day after 1970. Source: H. Hinnant, "chrono-compatible low-level date algorithms": years
/// begin in March, so that a leap day is the last day of one.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (year + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (f64::NAN, "Thu, 01-Jan-70 00:00:00 GMT"),
            (-1.0, "Thu, 01-Jan-70 00:00:00 GMT"),
            (951_782_399.9, "Mon, 28-Feb-00 23:59:59 GMT"),
            (951_782_400.0, "Tue, 29-Feb-00 00:00:00 GMT"),
            (784_111_777.0, "Sun, 06-Nov-94 08:49:37 GMT"),
            (2_145_916_555.0, "Thu, 31-Dec-37 23:55:55 GMT"),
            (4_107_542_400.0, "Mon, 01-Mar-2100 00:00:00 GMT"),
            (1e300, "Fri, 31-Dec-9999 23:59:59 GMT"),
        ] {
            assert_eq!(cookie_date(seconds), expected, "{seconds}");
        }
    }
}
