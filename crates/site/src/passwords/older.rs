//! Older kinds of password hashes, which nginx and Apache accept: so that a file of users can move as it is.
//!
//! They are fast to guess. `htpasswd -B` writes a better one.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use md5::{Digest, Md5};
use sha_crypt::{PasswordVerifier, ShaCrypt};

/// The most rounds of SHA-crypt, which take some seconds.
const SHA_CRYPT_ROUNDS_MAX: u32 = 2_000_000;

/// The longest salt of the MD5 kinds: more is ignored.
const MD5_SALT_BYTES_MAX: usize = 8;

/// Rounds of the MD5 kinds.
const MD5_ROUNDS: usize = 1000;

/// Digits of `crypt`.
const DIGITS: &[u8; 64] = b"./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// The length of a hash of the oldest `crypt`, which uses DES.
const DES_CHARS: usize = 13;

/// An older hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum OlderHash {
    /// `$apr1$…` and `$1$…`: the marker, the salt and the digest's text.
    Md5 { magic: &'static str, salt: String, digest: String },
    /// `$5$…` and `$6$…`.
    ShaCrypt(String),
    /// `{SHA}…` and `{SSHA}…`: the digest and the salt.
    Sha1 { digest: [u8; 20], salt: Vec<u8> },
    /// `{PLAIN}…`
    Plain(String),
}

impl OlderHash {
    /// `None`: it is of no such kind.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn new(text: &str) -> Option<Result<OlderHash, &'static str>> {
        for magic in ["$apr1$", "$1$"] {
            if let Some(rest) = text.strip_prefix(magic) {
                let parts =
                    rest.split_once('$').filter(|(salt, digest)| !salt.is_empty() && digest.len() == 22);
                return Some(parts.ok_or("its MD5 hash is malformed").map(|(salt, digest)| OlderHash::Md5 {
                    magic,
                    salt: salt.chars().take(MD5_SALT_BYTES_MAX).collect(),
                    digest: digest.to_owned(),
                }));
            }
        }
        if text.starts_with("$5$") || text.starts_with("$6$") {
            return Some(sha_crypt(text));
        }
        if let Some(text) = text.strip_prefix("{PLAIN}") {
            return Some(Ok(OlderHash::Plain(text.to_owned())));
        }
        if let Some(encoded) = text.strip_prefix("{SHA}").or_else(|| text.strip_prefix("{SSHA}")) {
            let decoded = STANDARD.decode(encoded).ok();
            let parts = decoded.as_deref().and_then(|bytes| bytes.split_first_chunk::<20>());
            let hash = parts.map(|(digest, salt)| OlderHash::Sha1 { digest: *digest, salt: salt.to_vec() });
            return Some(hash.ok_or("its SHA-1 hash is malformed"));
        }
        let is_des = text.len() == DES_CHARS && text.bytes().all(|byte| DIGITS.contains(&byte));
        // All passwords of eight characters can be tried.
        is_des
            .then_some(Err("its hash is made with DES, which is refused; write a new one with `htpasswd -B`"))
    }

    pub(super) fn is_of(&self, password: &[u8]) -> bool {
        match self {
            OlderHash::Md5 { magic, salt, digest } => {
                is_same(md5_crypt(password, magic, salt).as_bytes(), digest.as_bytes())
            }
            OlderHash::ShaCrypt(text) => {
                PasswordVerifier::<str>::verify_password(&ShaCrypt::default(), password, text.as_str())
                    .is_ok()
            }
            OlderHash::Sha1 { digest, salt } => {
                use sha1::Digest;
                let mut hash = sha1::Sha1::new();
                hash.update(password);
                hash.update(salt);
                is_same(&hash.finalize(), digest)
            }
            OlderHash::Plain(text) => is_same(text.as_bytes(), password),
        }
    }
}

fn sha_crypt(text: &str) -> Result<OlderHash, &'static str> {
    let rounds = text.split('$').nth(2).and_then(|part| part.strip_prefix("rounds="));
    if let Some(rounds) = rounds
        && !rounds.parse().is_ok_and(|rounds: u32| rounds <= SHA_CRYPT_ROUNDS_MAX)
    {
        return Err("its SHA-crypt hash has more than 2,000,000 rounds");
    }
    let is_whole = text.split('$').count() == if rounds.is_some() { 5 } else { 4 };
    if is_whole { Ok(OlderHash::ShaCrypt(text.to_owned())) } else { Err("its SHA-crypt hash is malformed") }
}

/// Compares in a time that does not depend on where they differ.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    let differences = one.iter().zip(other).fold(0, |all, (one, other)| all | (one ^ other));
    one.len() == other.len() && differences == 0
}

/// Poul-Henning Kamp's `crypt` of FreeBSD; Apache's has another marker. No maintained crate has both.
fn md5_crypt(password: &[u8], magic: &str, salt: &str) -> String {
    let inner = Md5::new().chain_update(password).chain_update(salt).chain_update(password).finalize();
    let mut hash = Md5::new().chain_update(password).chain_update(magic).chain_update(salt);
    for chunk in password.chunks(inner.len()) {
        hash.update(&inner[..chunk.len()]);
    }
    let mut bits = password.len();
    while bits > 0 {
        hash.update(if bits & 1 == 1 { &[0][..] } else { &password[..1] });
        bits >>= 1;
    }
    let mut digest = hash.finalize();
    for round in 0..MD5_ROUNDS {
        let mut hash = Md5::new();
        hash.update(if round % 2 == 1 { password } else { &digest[..] });
        if round % 3 != 0 {
            hash.update(salt);
        }
        if round % 7 != 0 {
            hash.update(password);
        }
        hash.update(if round % 2 == 1 { &digest[..] } else { password });
        digest = hash.finalize();
    }
    let byte = |at: usize| u32::from(digest[at]);
    let mut text = String::with_capacity(22);
    for [high, middle, low] in [[0, 6, 12], [1, 7, 13], [2, 8, 14], [3, 9, 15], [4, 10, 5]] {
        push_digits(&mut text, byte(high) << 16 | byte(middle) << 8 | byte(low), 4);
    }
    push_digits(&mut text, byte(11), 2);
    text
}

/// Writes a number in base 64, the last digit first.
fn push_digits(text: &mut String, mut number: u32, count: usize) {
    for _ in 0..count {
        text.push(char::from(DIGITS[(number & 63) as usize]));
        number >>= 6;
    }
}
