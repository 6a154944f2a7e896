//! When to renew certificates, and how long to wait after a failure. Time and randomness are arguments.

use std::time::{Duration, SystemTime};

/// The longest pause after failures.
const PAUSE_MAX: Duration = Duration::from_secs(6 * 3600);

/// The shortest and the longest time between two successful orders for one domain. A wrong clock, or a CA whose
/// certificates are due for renewal at once, would otherwise exhaust the rate limits.
const BETWEEN_MIN: Duration = Duration::from_secs(5);
const BETWEEN_MAX: Duration = Duration::from_secs(3600);

/// When to renew a certificate unless its CA says otherwise: when a third of its lifetime is left.
pub fn usual(not_before: SystemTime, not_after: SystemTime) -> SystemTime {
    not_after - not_after.duration_since(not_before).unwrap_or_default() / 3
}

/// A time within the window that a CA has suggested (RFC 9773, section 4.2); `random` is from 0 to 1. `None` for an
/// invalid window: it is empty, or ends when the certificate has expired.
pub(super) fn suggested(
    start: SystemTime,
    end: SystemTime,
    not_after: SystemTime,
    random: f64,
) -> Option<SystemTime> {
    let length = end.duration_since(start).ok()?;
    if end > not_after {
        return None;
    }
    start.checked_add(length.mul_f64(random.clamp(0.0, 1.0)))
}

/// How long to wait after this many consecutive failures: twice as long each time, varied by up to a quarter, so that
/// servers that failed together do not retry together.
pub(super) fn pause(first: Duration, failures: u32, random: f64) -> Duration {
    let doubled = first.saturating_mul(1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX));
    doubled.min(PAUSE_MAX).mul_f64(0.75 + random.clamp(0.0, 1.0) / 2.0)
}

/// How long to wait after a successful order before the next one.
pub(super) fn between(not_before: SystemTime, not_after: SystemTime) -> Duration {
    let lifetime = not_after.duration_since(not_before).unwrap_or_default();
    (lifetime / 50).clamp(BETWEEN_MIN, BETWEEN_MAX)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::time::UNIX_EPOCH;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn day(count: u32) -> SystemTime {
        UNIX_EPOCH + DAY * (20_000 + count)
    }

    #[test]
    fn a_third_of_the_lifetime_is_left() {
        assert_eq!(usual(day(0), day(90)), day(60));
        assert_eq!(usual(day(0), day(6)), day(4));
        assert_eq!(usual(day(6), day(0)), day(0), "a certificate that makes no sense is due at its end");
    }

    #[test]
    fn windows_are_followed_if_they_make_sense() {
        assert_eq!(suggested(day(10), day(20), day(90), 0.5), Some(day(15)));
        assert_eq!(suggested(day(10), day(20), day(90), 7.0), Some(day(20)));
        assert_eq!(suggested(day(20), day(10), day(90), 0.5), None);
        assert_eq!(suggested(day(80), day(91), day(90), 0.0), None);
    }

    #[test]
    fn pauses_grow_to_a_limit_and_differ() {
        let minute = Duration::from_secs(60);
        assert_eq!(pause(minute, 1, 0.5), minute);
        assert_eq!(pause(minute, 4, 0.5), minute * 8);
        assert_eq!(pause(minute, 4, 0.0), minute * 6);
        assert_eq!(pause(minute, 4, 1.0), minute * 10);
        for failures in [9, 31, 32, 33, u32::MAX] {
            assert_eq!(pause(minute, failures, 0.5), if failures == 9 { minute * 256 } else { PAUSE_MAX });
        }
        assert_eq!(between(day(0), day(90)), BETWEEN_MAX);
        assert_eq!(between(day(0), day(0)), BETWEEN_MIN);
    }
}
