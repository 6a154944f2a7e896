//! Keys of session tickets: shared by all workers, replaced every six hours, and optionally kept across a restart.
//!
//! ```text
//! ticket:  key's name (16 bytes) | nonce (12) | session, AES-256-GCM | tag (16)
//! ```

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwap;
use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use aws_lc_rs::rand;
use rustls::server::ProducesTickets;

/// How long a key is used for new tickets.
const TURN: Duration = Duration::from_secs(6 * 3600);

/// How long a ticket is valid.
const LIFETIME: Duration = Duration::from_secs(6 * 3600);

/// How much longer a key may be used if [`Tickets::turn`] is not called in time: after that its next user
/// replaces it.
const TURN_SLACK: Duration = Duration::from_secs(3600);

/// How long a key has to be kept for opening tickets.
const KEPT: Duration = TURN.saturating_add(TURN_SLACK).saturating_add(LIFETIME);

/// The maximum clock difference between hosts that share keys.
const CLOCKS_APART_MAX: Duration = Duration::from_secs(3600);

/// Keys in use at once: hosts that share a folder may each have created one at the same time.
const KEYS_MAX: usize = 16;

const NAME_BYTES: usize = 16;
const SECRET_BYTES: usize = 32;

/// The first line of saved keys.
const TITLE: &str = "flatout session ticket keys 1";

/// Keys of tickets. Clones share them.
#[derive(Clone)]
pub struct Tickets(Arc<ArcSwap<Vec<Arc<Key>>>>);

struct Key {
    name: [u8; NAME_BYTES],
    secret: [u8; SECRET_BYTES],
    made: SystemTime,
    cipher: RandomizedNonceKey,
}

/// The tickets of a server with these trusted clients; they are invalid for others.
#[derive(Debug)]
pub(crate) struct Bound {
    pub(crate) tickets: Tickets,
    /// A hash of the requirements for client certificates: a resumed session is not verified again.
    pub(crate) trust: Vec<u8>,
}

impl Tickets {
    /// A new key.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn new() -> Result<Tickets, String> {
        let first = Key::random(SystemTime::now())?;
        Ok(Tickets(Arc::new(ArcSwap::from_pointee(vec![Arc::new(first)]))))
    }

    /// Creates a new key if the newest is six hours old, and drops those whose tickets have expired.
    pub fn turn(&self, now: SystemTime) {
        self.turn_after(now, TURN);
        self.0.rcu(|keys| merged(keys, &[], now));
    }

    /// Whether [`Tickets::turn`] has something to do.
    pub fn is_due(&self, now: SystemTime) -> bool {
        let keys = self.0.load();
        let is_old = keys.first().is_none_or(|first| age(first.made, now) >= TURN);
        is_old || keys.iter().any(|key| age(key.made, now) >= KEPT)
    }

    /// The keys as text, newest first. Anyone who has it can decrypt connections that used these tickets.
    pub fn text(&self) -> String {
        let keys = self.0.load();
        let line =
            |key: &Arc<Key>| format!("{} {} {}\n", seconds(key.made), hex(&key.name), hex(&key.secret));
        let lines: String = keys.iter().map(line).collect();
        format!("{TITLE}\n{lines}")
    }

    /// Adds saved keys that are still valid; the newest of all keys is used for new tickets.
    ///
    /// # Errors
    /// The text does not contain keys; then nothing has changed.
    pub fn add(&self, text: &str, now: SystemTime) -> Result<(), String> {
        let mut lines = text.lines();
        if lines.next() != Some(TITLE) {
            return Err("it is not a file of ticket keys".to_owned());
        }
        let mut added = Vec::new();
        for (at, line) in lines.enumerate() {
            let key = Key::parse(line).ok_or_else(|| format!("line {} is not a key", at + 2))?;
            added.push(Arc::new(key));
            if added.len() > KEYS_MAX {
                return Err(format!("it has more than {KEYS_MAX} keys"));
            }
        }
        self.0.rcu(|keys| merged(keys, &added, now));
        Ok(())
    }

    fn turn_after(&self, now: SystemTime, age_max: Duration) {
        let is_new = |keys: &[Arc<Key>]| keys.first().is_some_and(|first| age(first.made, now) < age_max);
        if is_new(&self.0.load()) {
            return;
        }
        // Without random numbers the old key stays in use.
        if let Ok(key) = Key::random(now) {
            let key = [Arc::new(key)];
            // Another thread may have been faster.
            self.0.rcu(|keys| if is_new(keys) { keys.to_vec() } else { merged(keys, &key, now) });
        }
    }

    fn seal(&self, session: &[u8], trust: &[u8], now: SystemTime) -> Option<Vec<u8>> {
        self.turn_after(now, TURN + TURN_SLACK);
        let keys = self.0.load();
        let key = keys.first()?;
        let mut sealed = session.to_vec();
        let nonce = key.cipher.seal_in_place_append_tag(Aad::from(trust), &mut sealed).ok()?;
        let mut ticket = Vec::with_capacity(NAME_BYTES + NONCE_LEN + sealed.len());
        ticket.extend_from_slice(&key.name);
        ticket.extend_from_slice(nonce.as_ref());
        ticket.extend_from_slice(&sealed);
        Some(ticket)
    }

    fn open(&self, ticket: &[u8], trust: &[u8], now: SystemTime) -> Option<Vec<u8>> {
        let (name, rest) = ticket.split_at_checked(NAME_BYTES)?;
        let (nonce, sealed) = rest.split_at_checked(NONCE_LEN)?;
        let keys = self.0.load();
        // A name is not secret.
        let key = keys.iter().find(|key| key.name == name && age(key.made, now) < KEPT)?;
        let mut session = sealed.to_vec();
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let bytes_count = key.cipher.open_in_place(nonce, Aad::from(trust), &mut session).ok()?.len();
        session.truncate(bytes_count);
        Some(session)
    }
}

impl fmt::Debug for Tickets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tickets").field(&self.0.load().len()).finish()
    }
}

impl ProducesTickets for Bound {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        LIFETIME.as_secs() as u32
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        self.tickets.seal(plain, &self.trust, SystemTime::now())
    }

    fn decrypt(&self, cipher: &[u8]) -> Option<Vec<u8>> {
        self.tickets.open(cipher, &self.trust, SystemTime::now())
    }
}

impl Key {
    fn random(made: SystemTime) -> Result<Key, String> {
        let (mut name, mut secret) = ([0; NAME_BYTES], [0; SECRET_BYTES]);
        let filled = rand::fill(&mut name).and_then(|()| rand::fill(&mut secret));
        filled.map_err(|_| "the system provides no random numbers".to_owned())?;
        // Whole seconds, like the text form.
        let made = UNIX_EPOCH + Duration::from_secs(seconds(made));
        Key::new(name, secret, made).ok_or_else(|| "a ticket key cannot be used".to_owned())
    }

    fn new(name: [u8; NAME_BYTES], secret: [u8; SECRET_BYTES], made: SystemTime) -> Option<Key> {
        let cipher = RandomizedNonceKey::new(&AES_256_GCM, &secret).ok()?;
        Some(Key { name, secret, made, cipher })
    }

    fn parse(line: &str) -> Option<Key> {
        let mut words = line.split(' ');
        let made = Duration::from_secs(words.next()?.parse().ok()?);
        let made = UNIX_EPOCH.checked_add(made)?;
        let key = Key::new(bytes(words.next()?)?, bytes(words.next()?)?, made)?;
        words.next().is_none().then_some(key)
    }
}

/// Keys of both lists that are still valid, newest first.
fn merged(keys: &[Arc<Key>], added: &[Arc<Key>], now: SystemTime) -> Vec<Arc<Key>> {
    let is_good = |key: &&Arc<Key>| {
        age(key.made, now) < KEPT && key.made.duration_since(now).unwrap_or_default() < CLOCKS_APART_MAX
    };
    let mut all: Vec<Arc<Key>> = keys.iter().chain(added).filter(is_good).cloned().collect();
    // Keys made in the same second have the same order on all hosts.
    all.sort_by(|one, other| other.made.cmp(&one.made).then(one.name.cmp(&other.name)));
    all.dedup_by(|one, other| one.name == other.name);
    all.truncate(KEYS_MAX);
    all
}

/// The age; zero for a time in the future.
fn age(made: SystemTime, now: SystemTime) -> Duration {
    now.duration_since(made).unwrap_or_default()
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    if text.len() != 2 * N || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn tickets_survive_later_keys_for_their_lifetime() {
        let tickets = Tickets::new().unwrap();
        let start = SystemTime::now();
        let ticket = tickets.seal(b"session", b"", start).unwrap();
        for hours in 0..6 {
            tickets.turn(start + HOUR * hours);
        }
        assert_eq!(tickets.text().lines().count(), 2, "one key for six hours");
        let last = tickets.seal(b"last", b"", start + HOUR * 6 - HOUR / 60).unwrap();
        tickets.turn(start + HOUR * 6 + HOUR / 60);
        assert_eq!(tickets.text().lines().count(), 3);
        let late = start + HOUR * 12 - HOUR / 60;
        assert_eq!(tickets.open(&last, b"", late).unwrap(), b"last");
        assert_eq!(tickets.open(&ticket, b"", late).unwrap(), b"session");
        assert_eq!(tickets.open(&ticket, b"", start + HOUR * 14), None, "its key is too old");
        tickets.turn(start + HOUR * 14);
        assert_eq!(tickets.text().lines().count(), 3, "and was forgotten");
    }

    #[test]
    fn sealing_with_an_overdue_key_makes_a_new_one() {
        let tickets = Tickets::new().unwrap();
        tickets.seal(b"a", b"", SystemTime::now() + HOUR * 8).unwrap();
        assert_eq!(tickets.text().lines().count(), 3);
    }

    #[test]
    fn keys_are_shared_as_text() {
        let (one, other) = (Tickets::new().unwrap(), Tickets::new().unwrap());
        let now = SystemTime::now();
        let ticket = one.seal(b"session", b"", now).unwrap();
        assert_eq!(other.open(&ticket, b"", now), None);
        other.add(&one.text(), now).unwrap();
        assert_eq!(other.open(&ticket, b"", now).unwrap(), b"session");
        one.add(&other.text(), now).unwrap();
        assert_eq!(one.text(), other.text(), "both agree on the newest");
        let late = Tickets::new().unwrap();
        late.add(&one.text(), now + HOUR * 24).unwrap();
        assert_eq!(late.text().lines().count(), 1, "keys that have ended are not taken on");
    }

    #[test]
    fn foreign_tickets_are_refused() {
        let tickets = Tickets::new().unwrap();
        let now = SystemTime::now();
        let ticket = tickets.seal(b"session", b"these clients", now).unwrap();
        assert_eq!(tickets.open(&ticket, b"other clients", now), None);
        for length in 0..ticket.len() {
            assert_eq!(tickets.open(&ticket[..length], b"these clients", now), None);
        }
        for at in 0..ticket.len() {
            let mut changed = ticket.clone();
            changed[at] ^= 1;
            assert_eq!(tickets.open(&changed, b"these clients", now), None, "byte {at}");
        }
    }

    #[test]
    fn invalid_key_files_change_nothing() {
        let tickets = Tickets::new().unwrap();
        let (before, now) = (tickets.text(), SystemTime::now());
        let line = before.lines().nth(1).unwrap().to_owned();
        let many: String = std::iter::repeat_n(format!("{line}\n"), KEYS_MAX + 1).collect();
        for text in [
            String::new(),
            line.clone(),
            format!("{TITLE}\n\n"),
            format!("{TITLE}\n{line} x\n"),
            format!("{TITLE}\n{}\n", &line[..line.len() - 1]),
            format!("{TITLE}\n{}ü\n", &line[..line.len() - 2]),
            format!("{TITLE}\n{}{}\n", u64::MAX, &line[10..]),
            format!("{TITLE}\n{many}"),
        ] {
            assert!(tickets.add(&text, now).is_err(), "{text}");
        }
        assert_eq!(tickets.text(), before);
    }
}
