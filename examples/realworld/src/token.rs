//! JSON Web Tokens (RFC 7519) of one kind: HS256, with a user's number and an end.
//!
//! The header of a token is compared, not parsed: a token with another algorithm, such as `none`, is refused.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use hmac::{Hmac, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

/// How long a token is good for.
pub const LIFETIME: Duration = Duration::from_secs(60 * 60 * 24 * 30);

/// A longer token was not made here.
const TOKEN_BYTES_MAX: usize = 512;

const HEADER: &str = r#"{"alg":"HS256","typ":"JWT"}"#;

/// The key that signs tokens.
#[derive(Clone)]
pub struct Key(Hmac<Sha256>);

#[derive(Serialize, Deserialize)]
struct Claims {
    /// The user's number.
    sub: i64,
    /// Seconds since 1970.
    exp: u64,
}

impl Key {
    /// A key of these bytes.
    pub fn new(secret: &[u8]) -> Key {
        // HMAC takes keys of any length.
        Key(Hmac::new_from_slice(secret).unwrap_or_else(|_| unreachable!("a key of any length")))
    }

    /// A token for a user, from now on.
    pub fn sign(&self, user: i64) -> String {
        self.sign_until(user, now_s() + LIFETIME.as_secs())
    }

    /// A token for a user until then, in seconds since 1970.
    pub fn sign_until(&self, user: i64, exp: u64) -> String {
        let claims = format!(r#"{{"sub":{user},"exp":{exp}}}"#);
        let signed = format!("{}.{}", BASE64.encode(HEADER), BASE64.encode(claims));
        let signature = self.0.clone().chain_update(&signed).finalize().into_bytes();
        format!("{signed}.{}", BASE64.encode(signature))
    }

    /// The user of a token that is signed by this key and has not ended.
    pub fn verify(&self, token: &str) -> Option<i64> {
        if token.len() > TOKEN_BYTES_MAX {
            return None;
        }
        let (signed, signature) = token.rsplit_once('.')?;
        let (header, claims) = signed.split_once('.')?;
        if header != BASE64.encode(HEADER) {
            return None;
        }
        // Compared in constant time.
        let mac = self.0.clone().chain_update(signed);
        mac.verify_slice(&BASE64.decode(signature).ok()?).ok()?;
        let claims: Claims = serde_json::from_slice(&BASE64.decode(claims).ok()?).ok()?;
        (claims.exp > now_s()).then_some(claims.sub)
    }
}

/// Seconds since 1970.
pub fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_those_of_the_key_until_they_end() {
        let key = Key::new(b"one");
        let token = key.sign(7);
        assert_eq!(key.verify(&token), Some(7));
        assert_eq!(Key::new(b"two").verify(&token), None);
        assert_eq!(key.verify(&key.sign_until(7, now_s())), None);
        assert_eq!(key.verify(&key.sign_until(7, now_s() + 5)), Some(7));
    }

    #[test]
    fn forged_tokens_are_refused() {
        let key = Key::new(b"one");
        let token = key.sign(7);
        let parts: Vec<&str> = token.split('.').collect();
        let of = |header: &str, claims: &str, signature: &str| format!("{header}.{claims}.{signature}");
        let none = BASE64.encode(r#"{"alg":"none","typ":"JWT"}"#);
        let other = BASE64.encode(r#"{"sub":1,"exp":99999999999}"#);
        let signed_none = {
            let signed = format!("{none}.{}", parts[1]);
            let signature = key.0.clone().chain_update(&signed).finalize().into_bytes();
            format!("{signed}.{}", BASE64.encode(signature))
        };
        for forged in [
            of(&none, parts[1], ""),
            of(&none, parts[1], parts[2]),
            of(parts[0], &other, parts[2]),
            of(parts[0], parts[1], ""),
            of(parts[0], parts[1], &parts[2][1..]),
            signed_none,
            token.replace('.', ""),
            format!("{token}="),
            format!("{token}.{token}"),
            format!("{}{token}", "x".repeat(1000)),
            String::new(),
            "..".to_owned(),
        ] {
            assert_eq!(key.verify(&forged), None, "{forged}");
        }
    }
}
