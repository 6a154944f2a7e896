//! Subscriber tokens signed by another party (RFC 7519 with HS256), in `Authorization: Bearer`, or in the URL,
//! because a page cannot set fields for its streams.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use flatout_lane::clock::TICK;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Bytes of a token.
const TOKEN_BYTES_MAX: usize = 4 << 10;

#[derive(serde::Deserialize)]
struct Header<'h> {
    alg: &'h str,
}

/// The claims of a token.
#[derive(serde::Deserialize)]
struct Claims {
    /// The expiry, in seconds since 1970.
    exp: Option<f64>,
    /// The start of its validity.
    nbf: Option<f64>,
    /// The channels: names, or prefixes with a star.
    channels: Vec<String>,
}

/// When a subscription ends with its token, in seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Expiry(u32);

impl Expiry {
    /// Not before 2106.
    pub(super) const NEVER: Expiry = Expiry(u32::MAX);

    /// Of the claim `exp`, which may be a fraction.
    fn of(exp: Option<f64>) -> Expiry {
        // Values outside the range become its ends.
        exp.map_or(Expiry::NEVER, |exp| Expiry(exp.ceil() as u32))
    }

    /// Whether it has passed.
    pub(super) fn is_over(self, unix_seconds: u64) -> bool {
        self != Expiry::NEVER && u64::from(self.0) <= unix_seconds
    }

    /// The time until then, but at most this.
    pub(super) fn within(self, time_max: Duration, unix_seconds: u64) -> Duration {
        match self == Expiry::NEVER {
            true => time_max,
            // Seconds are rounded down, so this is not too early; but deadlines may come a tick early.
            false => {
                let seconds = u64::from(self.0).saturating_sub(unix_seconds);
                time_max.min(Duration::from_secs(seconds) + TICK)
            }
        }
    }
}

/// Whether this token allows subscribing to all of these channels now. Returns until when.
pub(super) fn allows(token: &str, secret: &str, channels: &[String], unix_seconds: u64) -> Option<Expiry> {
    let claims = claims(token, secret)?;
    let now = unix_seconds as f64;
    let is_timely = claims.exp.is_none_or(|ends| now < ends) && claims.nbf.is_none_or(|begins| now >= begins);
    let is_named = |channel: &String| {
        claims.channels.iter().any(|pattern| match pattern.strip_suffix('*') {
            Some(start) => channel.starts_with(start),
            None => pattern == channel,
        })
    };
    (is_timely && channels.iter().all(is_named)).then(|| Expiry::of(claims.exp))
}

/// The claims of a token signed with this secret.
fn claims(token: &str, secret: &str) -> Option<Claims> {
    if token.len() > TOKEN_BYTES_MAX {
        return None;
    }
    let (signed, signature) = token.rsplit_once('.')?;
    let (header, claims) = signed.split_once('.')?;
    let header = URL_SAFE_NO_PAD.decode(header).ok()?;
    // Accept only this algorithm: a token with another one, or none, is not valid.
    let header: Header<'_> = serde_json::from_slice(&header).ok()?;
    if header.alg != "HS256" {
        return None;
    }
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).ok()?;
    mac.update(signed.as_bytes());
    mac.verify_slice(&URL_SAFE_NO_PAD.decode(signature).ok()?).ok()?;
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).ok()?).ok()
}

/// Compares in constant time.
pub(super) fn is_same(one: &[u8], other: &[u8]) -> bool {
    let difference = one.iter().zip(other).fold(0, |sum, (one, other)| sum | (one ^ other));
    one.len() == other.len() && std::hint::black_box(difference) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signed(header: &str, claims: &str, secret: &str) -> String {
        let signed = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims));
        let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).unwrap();
        mac.update(signed.as_bytes());
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes()))
    }

    #[test]
    fn a_token_opens_its_channels_until_it_expires() {
        const HEADER: &str = r#"{"alg":"HS256","typ":"JWT"}"#;
        let token = signed(HEADER, r#"{"exp":100,"nbf":50,"channels":["a","NBA.*"]}"#, "secret");
        let allows = |token: &str, secret: &str, channels: &[&str], now| {
            let channels: Vec<String> = channels.iter().map(|name| (*name).to_owned()).collect();
            super::allows(token, secret, &channels, now).is_some()
        };
        assert!(allows(&token, "secret", &["a", "NBA.1"], 99));
        assert!(!allows(&token, "secret", &["a", "b"], 99));
        assert!(!allows(&token, "secret", &["a"], 100));
        assert!(!allows(&token, "secret", &["a"], 49));
        assert!(!allows(&token, "other", &["a"], 99));
        assert!(!allows("", "secret", &["a"], 99));
        assert!(!allows("a.b.c", "secret", &["a"], 99));
        for header in [r#"{"alg":"none"}"#, r#"{"alg":"HS512"}"#, "{}"] {
            assert!(
                !allows(&signed(header, r#"{"channels":["*"]}"#, "secret"), "secret", &["a"], 99),
                "{header}"
            );
        }
        assert!(!allows(&signed(HEADER, "{}", "secret"), "secret", &["a"], 99));
    }

    #[test]
    fn a_subscription_ends_with_its_token() {
        for (exp, over, not_over) in [
            (Some(100.0), Some(100), Some(99)),
            (Some(100.5), Some(101), Some(100)),
            (Some(-1.0), Some(0), None),
            (Some(1e30), None, Some(u64::MAX)),
            (Some(f64::NAN), Some(0), None),
            (None, None, Some(u64::MAX)),
        ] {
            let expiry = Expiry::of(exp);
            assert!(over.is_none_or(|at| expiry.is_over(at)), "{exp:?}");
            assert!(not_over.is_none_or(|at| !expiry.is_over(at)), "{exp:?}");
        }
        let (expiry, minute) = (Expiry::of(Some(100.0)), Duration::from_secs(60));
        assert_eq!(expiry.within(minute, 90), Duration::from_secs(10) + TICK);
        assert_eq!((expiry.within(minute, 10), expiry.within(minute, 101)), (minute, TICK));
        assert_eq!(Expiry::NEVER.within(minute, u64::MAX), minute);
    }

    #[test]
    fn texts_are_compared_whole() {
        assert!(is_same(b"abc", b"abc") && is_same(b"", b""));
        assert!(!is_same(b"abc", b"abd") && !is_same(b"abc", b"ab") && !is_same(b"", b"a"));
    }
}
