//! Dates in cookies.

use flatout_wire::date;

/// The last year of which nginx writes two digits.
const SHORT_YEAR_MAX: &str = "2037";

/// A time in seconds since 1970 as `expires` of a cookie, in the form that nginx writes and every client reads
/// (RFC 6265, section 5.1.1): `Thu, 31-Dec-37 23:55:55 GMT`.
pub(crate) fn cookie_date(unix_seconds: f64) -> String {
    // `Thu, 31 Dec 2037 23:55:55 GMT`; what is no time from 1970 on is its start.
    let date = date::format(unix_seconds as u64);
    let date = String::from_utf8_lossy(&date);
    let mut words = date.split(' ');
    let [weekday, day, month, year, time] = std::array::from_fn(|_| words.next().unwrap_or_default());
    let year = if year > SHORT_YEAR_MAX { year } else { year.get(2..).unwrap_or_default() };
    format!("{weekday} {day}-{month}-{year} {time} GMT")
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
