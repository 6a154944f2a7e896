//! Checks passwords on separate threads: a good hash takes tens of milliseconds, in which a worker could serve
//! thousands of requests.
//!
//! ```text
//! request ── recall ──> remembered: a table lookup
//!    └────── check ───> the check of the same password from the same address, if there is one
//!                       else a new one: two for each address, and a limit for all; beyond that 503
//!                            └──> a thread, one check of an address at a time, later after a failure
//! ```
//!
//! A correct password is remembered for a minute, and longer for its connection, as a keyed hash, so that the next
//! requests of the same browser cost only a table lookup. Wrong passwords are not remembered: a client that guesses waits
//! for its own checks and delays nobody at another address.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use argon2::password_hash::phc::PasswordHash;
use argon2::{Algorithm, Argon2, Params, PasswordVerifier, Version};
use flatout_engine::bug;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use tokio::sync::oneshot;

use super::fault::{Fault, Place};
use super::plan::User;

/// Threads that check passwords.
const THREADS: usize = 2;

/// Checks that wait or run; beyond that the response is 503.
const PENDING_MAX: usize = 256;

/// The same from one address.
const PENDING_PER_ADDRESS_MAX: usize = 2;

/// Requests that wait for the same check: a browser sends several at once.
const WAITING_PER_CHECK_MAX: usize = 256;

/// Correct passwords and connections that are remembered, 64 bytes each.
const REMEMBERED_MAX: usize = 65_536;

/// How long a correct password is remembered.
const REMEMBERED_TIME: Duration = Duration::from_secs(60);

/// How long it is remembered for the connection on which it was sent.
const CONNECTION_TIME: Duration = Duration::from_secs(3600);

/// How long the next check from an address waits after a wrong password; it doubles with each further one.
const FAILURE_DELAY: Duration = Duration::from_millis(100);

/// The longest such delay.
const FAILURE_DELAY_MAX: Duration = Duration::from_secs(1);

/// How long failures are counted after the last one.
const FAILURES_TIME: Duration = Duration::from_secs(60);

/// Addresses whose failures are counted.
const ADDRESSES_MAX: usize = 4096;

const _: () = assert!(PENDING_MAX < ADDRESSES_MAX, "addresses with pending checks are always counted");

/// The memory limit for one check.
const ARGON2_KIB_MAX: u32 = 256 << 10;

/// The highest bcrypt cost, which takes some seconds.
const BCRYPT_COST_MAX: u32 = 16;

/// The hash of a password.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Hash {
    Argon2(String),
    Bcrypt(String),
}

/// A list of users.
#[derive(Debug)]
pub(crate) struct Users {
    hashes: HashMap<Vec<u8>, Hash>,
    /// Checked for unknown names, so that the time does not reveal which names exist.
    decoy: Option<Hash>,
    /// The hash of the list. What was correct in one list says nothing about another: after a reload with other users or
    /// passwords, nothing is remembered.
    id: [u8; 32],
}

/// Credentials to check, and where they come from.
#[derive(Clone, Copy)]
pub(crate) struct Login<'a> {
    pub(crate) users: &'a Arc<Users>,
    pub(crate) name: &'a [u8],
    pub(crate) password: &'a [u8],
    /// Stands for the client's address; of IPv6, for its network.
    pub(crate) address: u64,
    /// The peer of the connection, which identifies it.
    pub(crate) peer: Option<SocketAddr>,
}

/// The threads, and the passwords they found correct.
#[derive(Debug)]
pub(crate) struct Passwords(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    pending: Mutex<Pending>,
    /// A check can be run, or the threads end.
    changed: Condvar,
    remembered: LoginCache,
}

/// Checks to run, and what delays them.
#[derive(Debug, Default)]
struct Pending {
    /// Those that wait and those that run, the oldest first.
    checks: Vec<Check>,
    failures: HashMap<u64, Failures>,
    next_id: u64,
    is_closing: bool,
}

#[derive(Debug)]
struct Check {
    id: u64,
    users: Arc<Users>,
    name: Vec<u8>,
    password: Vec<u8>,
    address: u64,
    is_running: bool,
    waiting: Vec<(Option<SocketAddr>, oneshot::Sender<bool>)>,
}

/// What a thread needs of a check.
struct Job {
    id: u64,
    users: Arc<Users>,
    name: Vec<u8>,
    password: Vec<u8>,
}

/// Wrong passwords from one address.
#[derive(Debug, Clone, Copy)]
struct Failures {
    count: u32,
    last: Instant,
}

/// Too many checks are pending, of this address or of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Busy;

#[derive(Debug)]
struct LoginCache {
    /// By the first bytes of the tag.
    entries: Mutex<HashMap<u64, Entry>>,
    /// A random key of the process: the table reveals no passwords.
    key: [u8; 64],
}

#[derive(Debug)]
struct Entry {
    tag: [u8; 32],
    until: Instant,
}

impl Users {
    /// # Errors
    /// A duplicate name, a name with a colon, or an unsupported hash.
    pub(crate) fn new(users: &[User], place: Place) -> Result<Users, Fault> {
        let mut hashes = HashMap::new();
        let mut sorted: Vec<&User> = users.iter().collect();
        sorted.sort_by(|one, other| one.name.cmp(&other.name));
        let mut id = Sha256::new();
        for user in sorted {
            for part in [&user.name, &user.hash] {
                id.update((part.len() as u64).to_le_bytes());
                id.update(part);
            }
            let fault = |what: &str| Err(place.fault(format!("the user `{}`: {what}", user.name)));
            if user.name.contains(':') {
                return fault("the name must not contain a colon");
            }
            let hash = match Hash::new(&user.hash) {
                Ok(hash) => hash,
                Err(what) => return fault(what),
            };
            if hashes.insert(user.name.clone().into_bytes(), hash).is_some() {
                return fault("occurs twice");
            }
        }
        let decoy = hashes.values().next().cloned();
        Ok(Users { hashes, decoy, id: id.finalize().into() })
    }

    fn is_right(&self, name: &[u8], password: &[u8]) -> bool {
        match self.hashes.get(name) {
            Some(hash) => hash.is_of(password),
            None => {
                let _ = self.decoy.as_ref().map(|decoy| decoy.is_of(password));
                false
            }
        }
    }
}

impl Hash {
    fn new(text: &str) -> Result<Hash, &'static str> {
        if text.starts_with("$argon2") {
            let parsed = PasswordHash::new(text).map_err(|_| "its argon2 hash is malformed")?;
            let params = Params::try_from(&parsed).map_err(|_| "its argon2 hash has invalid parameters")?;
            if params.m_cost() > ARGON2_KIB_MAX {
                return Err("its argon2 hash needs more than 256 MiB of memory");
            }
            return Ok(Hash::Argon2(text.to_owned()));
        }
        let parts: bcrypt::HashParts = text
            .parse()
            .map_err(|_| "expected an argon2 hash ($argon2id$…) or a bcrypt hash ($2b$…, $2y$…; written by `htpasswd -B`)")?;
        if parts.get_cost() > BCRYPT_COST_MAX {
            return Err("its bcrypt hash has a cost above 16");
        }
        Ok(Hash::Bcrypt(text.to_owned()))
    }

    fn is_of(&self, password: &[u8]) -> bool {
        match self {
            Hash::Argon2(text) => PasswordHash::new(text).is_ok_and(|hash| {
                let argon2 = Argon2::new(Algorithm::default(), Version::default(), Params::default());
                argon2.verify_password(password, &hash).is_ok()
            }),
            Hash::Bcrypt(text) => bcrypt::verify(password, text).unwrap_or(false),
        }
    }
}

impl Passwords {
    /// Starts the threads; they end when it is dropped.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub(crate) fn start() -> io::Result<Passwords> {
        let shared = Arc::new(Shared {
            pending: Mutex::default(),
            changed: Condvar::new(),
            remembered: LoginCache::new(),
        });
        let passwords = Passwords(shared);
        for at in 0..THREADS {
            let shared = passwords.0.clone();
            std::thread::Builder::new().name(format!("passwords-{at}")).spawn(move || run(&shared))?;
        }
        Ok(passwords)
    }

    /// Whether this password was found correct a short time ago, or before on this connection.
    pub(crate) fn recalls(&self, login: &Login<'_>) -> bool {
        let remembered = &self.0.remembered;
        let now = Instant::now();
        if login.peer.is_some() && remembered.has(login, login.peer, now) {
            return true;
        }
        let is_known = remembered.has(login, None, now);
        if is_known && login.peer.is_some() {
            remembered.add(login, login.peer, now + CONNECTION_TIME, now);
        }
        is_known
    }

    /// Has a password checked.
    ///
    /// # Errors
    /// Too many checks are pending.
    pub(crate) fn check(&self, login: &Login<'_>) -> Result<oneshot::Receiver<bool>, Busy> {
        let (answer, answered) = oneshot::channel();
        let mut pending = self.0.lock();
        pending.forget_abandoned();
        let of_address = || pending.checks.iter().filter(|check| check.address == login.address);
        if let Some(at) = pending.checks.iter().position(|check| check.is_of(login)) {
            let same = &mut pending.checks[at];
            if same.waiting.len() >= WAITING_PER_CHECK_MAX {
                return Err(Busy);
            }
            same.waiting.push((login.peer, answer));
            return Ok(answered);
        }
        if pending.checks.len() >= PENDING_MAX || of_address().count() >= PENDING_PER_ADDRESS_MAX {
            return Err(Busy);
        }
        let id = pending.next_id;
        pending.next_id += 1;
        pending.checks.push(Check {
            id,
            users: login.users.clone(),
            name: login.name.to_vec(),
            password: login.password.to_vec(),
            address: login.address,
            is_running: false,
            waiting: vec![(login.peer, answer)],
        });
        drop(pending);
        self.0.changed.notify_one();
        Ok(answered)
    }
}

impl Drop for Passwords {
    fn drop(&mut self) {
        self.0.lock().is_closing = true;
        self.0.changed.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Pending> {
        // Each change under the lock is a single step, so a panic leaves the data consistent.
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next check to run, as soon as there is one. `None`: the thread ends.
    fn next(&self) -> Option<Job> {
        let mut pending = self.lock();
        loop {
            if pending.is_closing {
                return None;
            }
            let now = Instant::now();
            pending.forget_abandoned();
            let ready = pending.ready_at(now);
            pending = match ready {
                Some((id, at)) if at <= now => {
                    let check = pending.checks.iter_mut().find(|check| check.id == id)?;
                    check.is_running = true;
                    let Check { users, name, password, .. } = &*check;
                    let (users, name, password) = (users.clone(), name.clone(), password.clone());
                    return Some(Job { id, users, name, password });
                }
                Some((_, at)) => {
                    let waited = self.changed.wait_timeout(pending, at.saturating_duration_since(now));
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(pending).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Ends a check, and tells all that wait for it.
    fn finish(&self, id: u64, is_right: bool) {
        let now = Instant::now();
        let mut pending = self.lock();
        let Some(at) = pending.checks.iter().position(|check| check.id == id) else {
            return bug!("the check of a password was forgotten while it ran");
        };
        let check = pending.checks.remove(at);
        if !is_right {
            pending.failed(check.address, now);
        }
        drop(pending);
        // Another check of this address can run.
        self.changed.notify_all();
        let Check { users, name, password, address, waiting, .. } = check;
        let login = Login { users: &users, name: &name, password: &password, address, peer: None };
        if is_right {
            self.remembered.add(&login, None, now + REMEMBERED_TIME, now);
        }
        for (peer, answer) in waiting {
            if is_right && peer.is_some() {
                self.remembered.add(&login, peer, now + CONNECTION_TIME, now);
            }
            let _ = answer.send(is_right);
        }
    }
}

impl Pending {
    /// Removes checks whose clients have all disconnected.
    fn forget_abandoned(&mut self) {
        self.checks
            .retain(|check| check.is_running || check.waiting.iter().any(|(_, answer)| !answer.is_closed()));
    }

    /// The check that can run first, and when. An address has one thread at most: the others are left to others.
    fn ready_at(&self, now: Instant) -> Option<(u64, Instant)> {
        let is_busy = |address: u64| self.checks.iter().any(|it| it.is_running && it.address == address);
        let waiting = self.checks.iter().filter(|check| !check.is_running && !is_busy(check.address));
        let ready = waiting.map(|check| {
            let failures = self.failures.get(&check.address);
            (check.id, failures.map_or(now, |failures| failures.over_at().max(now)))
        });
        // The first of those that are ready at the same time.
        ready.min_by_key(|(_, at)| *at)
    }

    fn failed(&mut self, address: u64, now: Instant) {
        if self.failures.len() >= ADDRESSES_MAX {
            self.failures.retain(|_, failures| failures.is_counted(now));
        }
        if self.failures.len() >= ADDRESSES_MAX
            && !self.failures.contains_key(&address)
            && let Some(oldest) = self.failures.iter().min_by_key(|(_, failures)| failures.last)
        {
            let oldest = *oldest.0;
            self.failures.remove(&oldest);
        }
        let failures = self.failures.entry(address).or_insert(Failures { count: 0, last: now });
        if !failures.is_counted(now) {
            failures.count = 0;
        }
        *failures = Failures { count: failures.count.saturating_add(1), last: now };
    }
}

impl Failures {
    fn is_counted(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.last) < FAILURES_TIME
    }

    /// When the next check may begin.
    fn over_at(&self) -> Instant {
        let doubled = 1u32.checked_shl(self.count.saturating_sub(1)).unwrap_or(u32::MAX);
        self.last + FAILURE_DELAY.saturating_mul(doubled).min(FAILURE_DELAY_MAX)
    }
}

impl Check {
    fn is_of(&self, login: &Login<'_>) -> bool {
        self.address == login.address
            && self.name == login.name
            && self.password == login.password
            && self.users.id == login.users.id
    }
}

fn run(shared: &Shared) {
    while let Some(Job { id, users, name, password }) = shared.next() {
        match catch_unwind(AssertUnwindSafe(|| users.is_right(&name, &password))) {
            Ok(is_right) => shared.finish(id, is_right),
            // A hash on which its library panics: those that wait get 503, and the thread stays.
            Err(_) => shared.lock().checks.retain(|check| check.id != id),
        }
    }
}

impl LoginCache {
    fn new() -> LoginCache {
        let random = RandomState::new();
        let mut key = [0; 64];
        for (part, at) in key.chunks_exact_mut(8).zip(0u64..) {
            part.copy_from_slice(&random.hash_one(at).to_le_bytes());
        }
        LoginCache { entries: Mutex::default(), key }
    }

    /// The keyed hash of a login, or of a login on a connection.
    fn mac(&self, login: &Login<'_>, peer: Option<SocketAddr>) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new(&self.key.into());
        mac.update(&login.users.id);
        mac.update(&(login.name.len() as u64).to_le_bytes());
        mac.update(login.name);
        // Of the same length for all peers, so that the password begins at a known place.
        let (address, port) = match peer {
            Some(peer) => (Some(peer.ip()), peer.port()),
            None => (None, 0),
        };
        mac.update(&[u8::from(address.is_some())]);
        let address = address.map_or([0; 16], |address| match address {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => address.octets(),
        });
        mac.update(&address);
        mac.update(&port.to_le_bytes());
        mac.update(login.password);
        mac
    }

    fn has(&self, login: &Login<'_>, peer: Option<SocketAddr>, now: Instant) -> bool {
        let mac = self.mac(login, peer);
        let tag: [u8; 32] = mac.clone().finalize().into_bytes().into();
        let entries = self.lock();
        let found = entries.get(&start_of(&tag)).filter(|entry| now < entry.until);
        // In constant time.
        found.is_some_and(|entry| mac.verify_slice(&entry.tag).is_ok())
    }

    /// Remembers a login, unless it is remembered already or the table is full.
    fn add(&self, login: &Login<'_>, peer: Option<SocketAddr>, until: Instant, now: Instant) {
        let tag: [u8; 32] = self.mac(login, peer).finalize().into_bytes().into();
        let mut entries = self.lock();
        if entries.len() >= REMEMBERED_MAX {
            entries.retain(|_, entry| now < entry.until);
        }
        if entries.len() >= REMEMBERED_MAX && !entries.contains_key(&start_of(&tag)) {
            return;
        }
        let entry = entries.entry(start_of(&tag)).or_insert(Entry { tag, until });
        if entry.until <= now {
            *entry = Entry { tag, until };
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Entry>> {
        // Each change under the lock is a single step, so a panic leaves the data consistent.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn start_of(tag: &[u8; 32]) -> u64 {
    tag.first_chunk().map_or(0, |start| u64::from_le_bytes(*start))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The password `secret`, hashed by `htpasswd -nbBC 4` and by the argon2 tool with little memory.
    const BCRYPT: &str = "$2y$04$xH3fHShvmKmYO.6kPyBjeOZ5qAKMTU0pQdFFUQCJHWZjFKPnFPr0W";

    fn user(name: &str, hash: &str) -> User {
        User { name: name.to_owned(), hash: hash.to_owned() }
    }

    pub(crate) fn bcrypt_of(password: &str) -> String {
        bcrypt::hash(password, 4).unwrap()
    }

    pub(crate) fn argon2_of(password: &str) -> String {
        use argon2::PasswordHasher;
        let argon2 =
            Argon2::new(Algorithm::Argon2id, Version::default(), Params::new(64, 1, 1, None).unwrap());
        argon2.hash_password_with_salt(password.as_bytes(), b"saltsalt").unwrap().to_string()
    }

    #[test]
    fn both_kinds_of_hashes_are_checked() {
        let users = [user("ann", &bcrypt_of("secret")), user("bob", &argon2_of("secret"))];
        let users = Users::new(&users, Place::Plan).unwrap();
        for name in ["ann", "bob"] {
            assert!(users.is_right(name.as_bytes(), b"secret"), "{name}");
            assert!(!users.is_right(name.as_bytes(), b"Secret") && !users.is_right(name.as_bytes(), b""));
        }
        assert!(!users.is_right(b"eve", b"secret") && !users.is_right(b"", b""));
    }

    #[test]
    fn other_hashes_are_refused_with_a_reason() {
        let costly = BCRYPT.replace("$04$", "$17$");
        let greedy = argon2_of("a").replace("m=64", "m=999999");
        for (hash, expected) in [
            ("$apr1$abc$def", "expected an argon2 hash"),
            ("{SHA}abc", "expected an argon2 hash"),
            ("secret", "expected an argon2 hash"),
            ("$argon2id$x", "malformed"),
            (&greedy, "more than 256 MiB"),
            (&costly, "cost above 16"),
        ] {
            let fault = Users::new(&[user("ann", hash)], Place::Plan).unwrap_err();
            assert!(fault.reason.contains(expected), "{hash}: {fault}");
        }
        let twice = [user("ann", BCRYPT), user("ann", BCRYPT)];
        assert!(Users::new(&twice, Place::Plan).unwrap_err().reason.contains("twice"));
        assert!(Users::new(&[user("a:b", BCRYPT)], Place::Plan).is_err());
    }

    fn list(hash: &str) -> Arc<Users> {
        Arc::new(Users::new(&[user("ann", hash)], Place::Plan).unwrap())
    }

    fn login<'a>(users: &'a Arc<Users>, password: &'a str, address: u64) -> Login<'a> {
        let peer = Some(SocketAddr::from(([127, 0, 0, 1], 1000 + address as u16)));
        Login { users, name: b"ann", password: password.as_bytes(), address, peer }
    }

    #[test]
    fn a_correct_password_is_remembered_for_its_list_only() {
        let (users, others) = (list(&bcrypt_of("secret")), list(&bcrypt_of("other")));
        let passwords = Passwords::start().unwrap();
        let right = login(&users, "secret", 1);
        assert!(!passwords.recalls(&right));
        assert!(!passwords.check(&login(&users, "wrong", 1)).unwrap().blocking_recv().unwrap());
        assert!(passwords.check(&right).unwrap().blocking_recv().unwrap());
        assert!(passwords.recalls(&right));
        assert!(passwords.recalls(&login(&users, "secret", 2)), "another connection and address");
        assert!(!passwords.recalls(&login(&users, "wrong", 1)));
        assert!(!passwords.recalls(&login(&others, "secret", 1)));
        // The border between name and password matters.
        assert!(!passwords.recalls(&Login { name: b"an", password: b"nsecret", ..right }));
    }

    #[test]
    fn a_connection_is_remembered_longer_than_its_password() {
        let users = list(BCRYPT);
        let remembered = LoginCache::new();
        let now = Instant::now();
        let one = login(&users, "secret", 1);
        remembered.add(&one, None, now + REMEMBERED_TIME, now);
        remembered.add(&one, one.peer, now + CONNECTION_TIME, now);
        let later = now + REMEMBERED_TIME;
        assert!(remembered.has(&one, None, now) && !remembered.has(&one, None, later));
        assert!(remembered.has(&one, one.peer, later));
        assert!(!remembered.has(&one, login(&users, "secret", 2).peer, later), "another connection");
        assert!(!remembered.has(&one, one.peer, now + CONNECTION_TIME));
    }

    #[test]
    fn the_table_of_remembered_logins_is_bounded() {
        let users = list(BCRYPT);
        let remembered = LoginCache::new();
        let now = Instant::now();
        let names: Vec<String> = (0..REMEMBERED_MAX + 10).map(|at| at.to_string()).collect();
        for name in &names {
            let login = Login { name: name.as_bytes(), ..login(&users, "secret", 1) };
            remembered.add(&login, None, now + REMEMBERED_TIME, now);
        }
        assert_eq!(remembered.lock().len(), REMEMBERED_MAX);
        let later = now + REMEMBERED_TIME;
        remembered.add(&login(&users, "secret", 1), None, later + REMEMBERED_TIME, later);
        assert_eq!(remembered.lock().len(), 1, "expired entries make room");
    }

    /// A state whose checks no thread runs.
    fn unserved() -> Passwords {
        let remembered = LoginCache::new();
        Passwords(Arc::new(Shared { pending: Mutex::default(), changed: Condvar::new(), remembered }))
    }

    #[test]
    fn two_checks_of_an_address_are_pending_at_most() {
        let users = list(BCRYPT);
        let passwords = unserved();
        let mut waiting: Vec<_> =
            ["a", "b"].iter().map(|password| passwords.check(&login(&users, password, 1)).unwrap()).collect();
        assert_eq!(passwords.check(&login(&users, "c", 1)).unwrap_err(), Busy);
        // The same password waits with the first.
        waiting.push(passwords.check(&login(&users, "a", 1)).unwrap());
        assert_eq!(passwords.0.lock().checks.len(), 2);
        for address in 2..=(PENDING_MAX - 1) as u64 {
            waiting.push(passwords.check(&login(&users, "a", address)).unwrap());
        }
        assert_eq!(passwords.check(&login(&users, "a", 1000)).unwrap_err(), Busy, "the limit for all");
        // Whose client has disconnected is not checked.
        waiting.clear();
        assert!(passwords.check(&login(&users, "c", 1)).is_ok());
        assert_eq!(passwords.0.lock().checks.len(), 1);
    }

    #[test]
    fn requests_that_wait_for_the_same_check_are_bounded() {
        let users = list(BCRYPT);
        let passwords = unserved();
        let check = || passwords.check(&login(&users, "a", 1));
        let waiting: Vec<_> = (0..WAITING_PER_CHECK_MAX).map(|_| check().unwrap()).collect();
        assert_eq!(check().unwrap_err(), Busy);
        drop(waiting);
    }

    #[test]
    fn an_address_has_one_thread_and_waits_after_failures() {
        let users = list(BCRYPT);
        let passwords = unserved();
        let _waiting: Vec<_> = [("a", 1), ("b", 1), ("a", 2)]
            .iter()
            .map(|&(password, address)| passwords.check(&login(&users, password, address)).unwrap())
            .collect();
        let next = || passwords.0.next().unwrap().id;
        assert_eq!((next(), next()), (0, 2), "the second check of the first address waits");
        assert!(passwords.0.lock().ready_at(Instant::now()).is_none());
        passwords.0.finish(0, false);
        let now = Instant::now();
        let (id, at) = passwords.0.lock().ready_at(now).unwrap();
        assert!(id == 1 && at > now.checked_sub(FAILURE_DELAY).unwrap() && at <= now + FAILURE_DELAY);
        assert_eq!(next(), 1, "it waits for its time");
        let mut pending = passwords.0.lock();
        for (count, delay_ms) in [(2, 200), (3, 400), (4, 800), (5, 1000), (6, 1000)] {
            pending.failed(1, now);
            let failures = pending.failures[&1];
            assert_eq!((failures.count, failures.over_at() - now), (count, Duration::from_millis(delay_ms)));
        }
        pending.failed(1, now + FAILURES_TIME);
        assert_eq!(pending.failures[&1].count, 1, "old failures are forgotten");
        for address in 0..2 * ADDRESSES_MAX as u64 {
            pending.failed(address, now);
        }
        assert_eq!(pending.failures.len(), ADDRESSES_MAX);
    }
}
