//! Times as the database keeps them and as clients read them.

use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970 as RFC 3339.
pub fn timestamp(ms: i64) -> String {
    let time = time::OffsetDateTime::from_unix_timestamp_nanos(i128::from(ms) * 1_000_000);
    let time = time.unwrap_or(time::OffsetDateTime::UNIX_EPOCH);
    let (date, month) = (time.date(), u8::from(time.month()));
    let (hour, minute, second, millisecond) = time.time().as_hms_milli();
    format!(
        "{:04}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}.{millisecond:03}Z",
        date.year(),
        date.day()
    )
}

/// Milliseconds since 1970.
pub fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_rfc_3339() {
        assert_eq!(timestamp(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(timestamp(1_455_765_776_637), "2016-02-18T03:22:56.637Z");
    }
}
