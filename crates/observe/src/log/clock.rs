//! The time as text.

use super::text::Text;

/// The time as text, formatted once a second. UTC.
pub(super) struct Clock {
    unix_seconds: u64,
    /// `21/Nov/2026:17:34:07 +0000`
    pub(super) local: Text,
    /// `2026-11-21T17:34:07+00:00`
    pub(super) iso: Text,
}

impl Clock {
    pub(super) fn new() -> Clock {
        let mut clock = Clock { unix_seconds: 0, local: Text::new(b""), iso: Text::new(b"") };
        clock.set(0);
        clock
    }

    #[inline]
    pub(super) fn follow(&mut self, unix_seconds: u64) {
        if unix_seconds != self.unix_seconds {
            self.set(unix_seconds);
        }
    }

    #[cold]
    fn set(&mut self, unix_seconds: u64) {
        self.unix_seconds = unix_seconds;
        let (local, iso) = texts(unix_seconds);
        (self.local, self.iso) = (Text::new(local.as_bytes()), Text::new(iso.as_bytes()));
    }
}

/// A time as in `2026-11-21T17:34:07+00:00`.
pub fn iso_time(unix_seconds: u64) -> String {
    texts(unix_seconds).1
}

/// A time as in `Nov  6 08:49:37` (RFC 3164, 4.1.2).
pub(super) fn syslog_time(unix_seconds: u64) -> String {
    let date = flatout_wire::date::format(unix_seconds);
    let text = String::from_utf8_lossy(&date);
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    match words[..] {
        [_, day, month, _, time, ..] => {
            format!("{month} {:>2} {time}", day.trim_start_matches('0'))
        }
        _ => String::new(),
    }
}

/// Both forms.
fn texts(unix_seconds: u64) -> (String, String) {
    // `Sun, 06 Nov 1994 08:49:37 GMT` has all parts of both formats.
    let date = flatout_wire::date::format(unix_seconds);
    let text = String::from_utf8_lossy(&date);
    let mut words = text.split_ascii_whitespace().skip(1);
    let mut word = || words.next().unwrap_or_default();
    let (day, month, year, time) = (word(), word(), word(), word());
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let number = 1 + MONTHS.iter().position(|name| *name == month).unwrap_or_default();
    (format!("{day}/{month}/{year}:{time} +0000"), format!("{year}-{number:02}-{day}T{time}+00:00"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_nginx_writes_them() {
        assert_eq!(syslog_time(784_111_777), "Nov  6 08:49:37");
        let mut clock = Clock::new();
        clock.follow(784_111_777);
        assert_eq!(clock.local, Text::new(b"06/Nov/1994:08:49:37 +0000"));
        assert_eq!(clock.iso, Text::new(b"1994-11-06T08:49:37+00:00"));
    }
}
