//! Checks passwords on separate threads: a good hash takes tens of milliseconds, in which a worker could serve
//! thousands of requests.
//!
//! A correct password is remembered for a while, as a keyed hash of name and password, so that the next requests of
//! the same browser cost only a table lookup. Wrong passwords are not remembered, so an attacker who guesses waits
//! for the threads. The queue of the threads is bounded; if it is full, the response is 503.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use argon2::password_hash::phc::PasswordHash;
use argon2::{Algorithm, Argon2, Params, PasswordVerifier, Version};
use tokio::sync::oneshot;

use super::fault::{Fault, Place};
use super::plan::User;

/// Threads that check passwords.
const THREADS: usize = 2;

/// Passwords queued for the threads.
const QUEUE_MAX: usize = 256;

/// Correct passwords that are remembered.
const REMEMBERED_MAX: usize = 4096;

/// How long they are remembered.
const REMEMBERED_TIME: Duration = Duration::from_secs(300);

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

/// The users of one route.
#[derive(Debug)]
pub(crate) struct Users {
    hashes: HashMap<Vec<u8>, Hash>,
    /// Checked for unknown names, so that the time does not reveal which names exist.
    decoy: Option<Hash>,
    /// Distinguishes lists of users in the remembered hashes.
    id: u64,
}

/// The threads, and the passwords they found correct.
#[derive(Debug)]
pub(crate) struct Passwords {
    queue: SyncSender<Job>,
    remembered: Arc<Remembered>,
}

struct Job {
    users: Arc<Users>,
    name: Vec<u8>,
    password: Vec<u8>,
    answer: oneshot::Sender<bool>,
}

/// The queue is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Busy;

#[derive(Debug, Default)]
struct Remembered {
    until: Mutex<HashMap<Tag, Instant>>,
    /// Random keys: the table reveals no passwords.
    keys: [RandomState; 2],
}

type Tag = [u64; 2];

impl Users {
    /// # Errors
    /// A duplicate name, a name with a colon, or an unsupported hash.
    pub(crate) fn new(users: &[User], id: u64, place: Place) -> Result<Users, Fault> {
        let mut hashes = HashMap::new();
        for user in users {
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
        Ok(Users { hashes, decoy, id })
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
        let (queue, jobs) = sync_channel(QUEUE_MAX);
        let jobs = Arc::new(Mutex::new(jobs));
        let remembered = Arc::<Remembered>::default();
        for at in 0..THREADS {
            let (jobs, remembered) = (jobs.clone(), remembered.clone());
            std::thread::Builder::new()
                .name(format!("passwords-{at}"))
                .spawn(move || run(&jobs, &remembered))?;
        }
        Ok(Passwords { queue, remembered })
    }

    /// Whether this password was recently found correct.
    pub(crate) fn remembers(&self, users: &Users, name: &[u8], password: &[u8]) -> bool {
        self.remembered.has(self.remembered.tag(users, name, password))
    }

    /// Queues a password for checking.
    ///
    /// # Errors
    /// The queue is full.
    pub(crate) fn check(
        &self,
        users: &Arc<Users>,
        name: &[u8],
        password: &[u8],
    ) -> Result<oneshot::Receiver<bool>, Busy> {
        let (answer, answered) = oneshot::channel();
        let job = Job { users: users.clone(), name: name.to_vec(), password: password.to_vec(), answer };
        match self.queue.try_send(job) {
            Ok(()) => Ok(answered),
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => Err(Busy),
        }
    }
}

fn run(jobs: &Mutex<Receiver<Job>>, remembered: &Remembered) {
    loop {
        // One thread waits for a job while it holds the lock; the others wait for the lock.
        let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Job { users, name, password, answer }) = job else { return };
        if answer.is_closed() {
            continue;
        }
        // A browser sends several requests at once; the first check is enough for all.
        let tag = remembered.tag(&users, &name, &password);
        let is_right = remembered.has(tag) || users.is_right(&name, &password);
        if is_right {
            remembered.add(tag);
        }
        let _ = answer.send(is_right);
    }
}

impl Remembered {
    fn tag(&self, users: &Users, name: &[u8], password: &[u8]) -> Tag {
        self.keys.each_ref().map(|key| key.hash_one((users.id, name, password)))
    }

    fn has(&self, tag: Tag) -> bool {
        self.lock().get(&tag).is_some_and(|&until| Instant::now() < until)
    }

    fn add(&self, tag: Tag) {
        let now = Instant::now();
        let mut until = self.lock();
        if until.len() >= REMEMBERED_MAX {
            until.retain(|_, until| now < *until);
        }
        if until.len() < REMEMBERED_MAX {
            until.entry(tag).or_insert(now + REMEMBERED_TIME);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Tag, Instant>> {
        // Each change under the lock is a single step, so a panic leaves the data consistent.
        self.until.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
        let users = Users::new(&users, 1, Place::Plan).unwrap();
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
            let fault = Users::new(&[user("ann", hash)], 1, Place::Plan).unwrap_err();
            assert!(fault.reason.contains(expected), "{hash}: {fault}");
        }
        let twice = [user("ann", BCRYPT), user("ann", BCRYPT)];
        assert!(Users::new(&twice, 1, Place::Plan).unwrap_err().reason.contains("twice"));
        assert!(Users::new(&[user("a:b", BCRYPT)], 1, Place::Plan).is_err());
    }

    #[test]
    fn what_is_right_is_remembered_for_its_list_only() {
        let list = |id| Arc::new(Users::new(&[user("ann", &bcrypt_of("secret"))], id, Place::Plan).unwrap());
        let (users, others) = (list(1), list(2));
        let passwords = Passwords::start().unwrap();
        assert!(!passwords.remembers(&users, b"ann", b"secret"));
        assert!(!passwords.check(&users, b"ann", b"wrong").unwrap().blocking_recv().unwrap());
        assert!(passwords.check(&users, b"ann", b"secret").unwrap().blocking_recv().unwrap());
        assert!(passwords.remembers(&users, b"ann", b"secret"));
        assert!(!passwords.remembers(&users, b"ann", b"wrong"));
        assert!(!passwords.remembers(&others, b"ann", b"secret"));
        // The border between name and password matters.
        assert!(!passwords.remembers(&users, b"an", b"nsecret"));
    }

    #[test]
    fn a_full_queue_is_reported_at_once() {
        // Slow enough that the threads cannot keep up with a loop.
        let users =
            Arc::new(Users::new(&[user("ann", &bcrypt::hash("a", 8).unwrap())], 1, Place::Plan).unwrap());
        let passwords = Passwords::start().unwrap();
        let mut waiting = Vec::new();
        let full = (0..10 * QUEUE_MAX).any(|_| match passwords.check(&users, b"ann", b"b") {
            Ok(answered) => {
                waiting.push(answered);
                false
            }
            Err(Busy) => true,
        });
        assert!(full && waiting.len() >= QUEUE_MAX);
        // Requests whose clients have disconnected are not checked.
        drop(waiting.split_off(1));
        assert!(!waiting.remove(0).blocking_recv().unwrap());
    }
}
