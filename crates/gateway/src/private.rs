//! Fields by which an upstream gives instructions to this server: `X-Accel-*` as nginx defines them, and `X-Sendfile`. They never reach a
//! client, and are followed only where a route trusts its upstream.

use flatout_engine::Response;

/// The path, or the name of a route, whose response replaces that of the upstream.
pub const REDIRECT: &str = "x-accel-redirect";

/// The file that replaces the response.
pub const SENDFILE: &str = "x-sendfile";

/// How long the response is fresh: seconds, or `@` and the seconds since 1970 at which it gets stale; `0` is not to store it.
pub const EXPIRES: &str = "x-accel-expires";

/// Bytes per second at which the response is sent; `0` is without a limit.
pub const LIMIT_RATE: &str = "x-accel-limit-rate";

/// All of them.
const PRIVATE: [&str; 6] = ["x-accel-buffering", "x-accel-charset", EXPIRES, LIMIT_RATE, REDIRECT, SENDFILE];

/// Whether a field is for this server only.
#[inline]
pub fn is_private(name: &[u8]) -> bool {
    // Most fields begin with another letter.
    matches!(name, [b'x' | b'X', b'-', ..])
        && PRIVATE.iter().any(|this| name.eq_ignore_ascii_case(this.as_bytes()))
}

/// How long a cache may use a response, according to its upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrivateLifetime {
    /// It is not stored.
    Nothing,
    /// For so many seconds.
    Seconds(u32),
}

/// What `X-Accel-Expires` says at the time `now`, in seconds since 1970. `None` without it, and for values that mean nothing.
pub fn private_lifetime(response: &Response, now: u64) -> Option<PrivateLifetime> {
    lifetime(response.field(EXPIRES)?, now)
}

fn lifetime(value: &[u8], now: u64) -> Option<PrivateLifetime> {
    let text = std::str::from_utf8(value).ok()?.trim();
    let seconds = match text.strip_prefix('@') {
        Some(end) => end.parse::<u64>().ok()?.saturating_sub(now),
        None => text.parse().ok()?,
    };
    Some(match u32::try_from(seconds).unwrap_or(u32::MAX) {
        0 => PrivateLifetime::Nothing,
        seconds => PrivateLifetime::Seconds(seconds),
    })
}

/// What `X-Accel-Limit-Rate` says, in bytes per second. `None` for values that mean nothing.
pub fn private_rate(value: &[u8]) -> Option<u64> {
    std::str::from_utf8(value).ok()?.trim().parse().ok()
}

/// Whether the response comes from elsewhere: it says nothing about the resource itself.
pub fn is_redirected(response: &Response) -> bool {
    response.field(REDIRECT).is_some() || response.field(SENDFILE).is_some()
}

/// Removes all of them.
pub fn remove_private(response: &mut Response) {
    for name in PRIVATE {
        if response.field(name).is_some() {
            response.remove_header(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_fields_are_found_in_any_case() {
        for name in
            ["X-Accel-Redirect", "x-accel-expires", "X-ACCEL-LIMIT-RATE", "X-Sendfile", "X-Accel-Charset"]
        {
            assert!(is_private(name.as_bytes()), "{name}");
        }
        for name in ["X-Accel", "X-Accel-Redirects", "x", "X-", "Accel-Redirect", "X-Send-File", ""] {
            assert!(!is_private(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn lifetimes_are_read_as_nginx_reads_them() {
        use PrivateLifetime::{Nothing, Seconds};
        for (value, expected) in [
            ("60", Some(Seconds(60))),
            (" 5 ", Some(Seconds(5))),
            ("0", Some(Nothing)),
            ("@1060", Some(Seconds(60))),
            ("@999", Some(Nothing)),
            ("99999999999", Some(Seconds(u32::MAX))),
            ("-1", None),
            ("@", None),
            ("", None),
            ("1h", None),
            ("18446744073709551616", None),
        ] {
            assert_eq!(lifetime(value.as_bytes(), 1000), expected, "{value}");
        }
    }

    #[test]
    fn rates_are_numbers_of_bytes() {
        for (value, expected) in [
            ("4096", Some(4096)),
            (" 0 ", Some(0)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("10k", None),
            ("-1", None),
            ("", None),
            ("1\u{a0}", Some(1)),
            ("1, 2", None),
        ] {
            assert_eq!(private_rate(value.as_bytes()), expected, "{value}");
        }
        assert_eq!(private_rate(b"\xff"), None);
    }

    #[test]
    fn nothing_private_is_left() {
        let mut response = Response::new();
        response.header("X-Accel-Redirect", "/a").header("X-Sendfile", "/b").header("X-Other", "c");
        assert!(is_redirected(&response));
        remove_private(&mut response);
        assert!(!is_redirected(&response));
        assert_eq!(response.fields().count(), 1);
    }
}
