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

/// Parses an HTTP date in any of its three forms; `None` for anything else, and for times before 1970.
pub fn parse(text: &[u8]) -> Option<u64> {
    let time = httpdate::parse_http_date(std::str::from_utf8(text).ok()?).ok()?;
    Some(time.duration_since(UNIX_EPOCH).ok()?.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

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
