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

mod logins;
mod older;
#[cfg(test)]
pub(crate) mod tests;
mod users;

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use flatout_engine::bug;
use tokio::sync::oneshot;

use logins::LoginCache;
pub(crate) use users::{Users, check};

/// Threads that check passwords.
const THREADS: usize = 2;

/// Checks that wait or run; beyond that the response is 503.
const PENDING_MAX: usize = 256;

/// The same from one address.
const PENDING_PER_ADDRESS_MAX: usize = 2;

/// Requests that wait for the same check: a browser sends several at once.
const WAITING_PER_CHECK_MAX: usize = 256;

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
