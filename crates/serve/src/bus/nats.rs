//! The bus over NATS: one connection to one of its servers, on a separate thread.
//!
//! ```text
//! send ──> Outbox ── pump ──> GROUP.push.CHANNEL, GROUP.purge, GROUP.presence ──> server ── GROUP.> ──> Member::receive
//!            ^ settle: an own parcel that has come back was carried, and is removed <─────────────────────────┘
//! ```
//!
//! With a history, messages are read from a JetStream stream (`kept.rs`) instead, in the same order on all
//! servers.
//!
//! A parcel stays in the outbox until it has come back, so that parcels in flight when the connection breaks
//! are sent again. `async-nats` could reconnect by itself; here each connection is a new session, because
//! every loss of the connection has to be handled (resend, validate the cache, report gaps).

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use std::{io, thread};

use flatout_engine::say;
use tokio::sync::Notify;
use tokio::time::sleep;

use super::kept::Seen;
use super::outbox::Outbox;
use super::session::Session;
use super::{Bus, Counted, Member, Parcel, Plan, Receipt, State, Topic};

/// The pause before all servers are tried again. It doubles each time, and half of it is random. Between two
/// servers it is `PAUSE_MIN`.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// A bus over NATS.
pub struct Nats(Arc<Shared>);

pub(super) struct Shared {
    pub(super) plan: Plan,
    standing: Mutex<Standing>,
    /// Signalled when the bus was joined or lost, or parcels were carried.
    pub(super) news: Condvar,
    /// Signalled when there is something to send.
    pub(super) work: Notify,
    pub(super) received: AtomicU64,
}

/// The state shared with the thread of the bus.
#[derive(Default)]
pub(super) struct Standing {
    pub(super) state: State,
    pub(super) outbox: Outbox,
    pub(super) sent: u64,
    pub(super) dropped: u64,
    pub(super) lost: u64,
    /// An oversized message has been reported.
    pub(super) has_said_large: bool,
    /// The last message received from the history.
    pub(super) seen: Seen,
    /// The number of [`Bus::sync`] calls, and the last one that is complete.
    pub(super) syncs: u64,
    pub(super) synced: u64,
}

impl Nats {
    /// A bus over these servers. It connects when it is [started](Nats::start); until then, parcels are
    /// queued.
    pub fn new(plan: Plan) -> Arc<Nats> {
        Arc::new(Nats(Arc::new(Shared {
            plan,
            standing: Mutex::default(),
            news: Condvar::new(),
            work: Notify::new(),
            received: AtomicU64::new(0),
        })))
    }

    /// Connects on a separate thread and reconnects as needed, for as long as the member exists.
    ///
    /// # Errors
    /// The thread or the runtime cannot be started.
    pub fn start(&self, member: Weak<dyn Member>) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let shared = self.0.clone();
        let thread = thread::Builder::new().name("flatout-bus".to_owned());
        thread.spawn(move || runtime.block_on(run(&shared, &member))).map(drop)
    }

    /// Waits until the bus is joined, for at most this time. Returns whether it is.
    pub fn wait_joined(&self, time_max: Duration) -> bool {
        self.wait(time_max, |standing| standing.state == State::Joined)
    }

    /// Waits until this parcel was carried, for at most this time; returns at once if the bus is
    /// disconnected. Returns whether it was carried.
    pub fn wait_carried(&self, receipt: Receipt, time_max: Duration) -> bool {
        self.wait(time_max, |standing| standing.state != State::Joined || !standing.outbox.has(receipt));
        !self.0.lock().outbox.has(receipt)
    }

    /// Waits until all parcels were carried, for at most this time; returns at once if the bus is
    /// disconnected.
    pub fn wait_all(&self, time_max: Duration) {
        self.wait(time_max, |standing| standing.state != State::Joined || standing.outbox.len() == 0);
    }

    fn wait(&self, time_max: Duration, is_so: impl Fn(&Standing) -> bool) -> bool {
        let standing = self.0.lock();
        let waited = self.0.news.wait_timeout_while(standing, time_max, |standing| !is_so(standing));
        let (standing, _) = waited.unwrap_or_else(PoisonError::into_inner);
        is_so(&standing)
    }
}

impl Bus for Nats {
    fn send(&self, parcel: Parcel) {
        let mut standing = self.0.lock();
        if parcel.topic == Topic::Presence && standing.state != State::Joined {
            return;
        }
        standing.dropped += standing.outbox.push(parcel);
        drop(standing);
        self.0.work.notify_one();
    }

    fn counted(&self) -> Counted {
        let standing = self.0.lock();
        Counted {
            state: standing.state,
            sent: standing.sent,
            received: self.0.received.load(Ordering::Relaxed),
            queued: standing.outbox.len() as u64,
            dropped: standing.dropped,
            lost: standing.lost,
            ..Counted::default()
        }
    }

    fn sync(&self, time_max: Duration) {
        let mut standing = self.0.lock();
        standing.syncs += 1;
        let number = standing.syncs;
        drop(standing);
        self.0.work.notify_one();
        self.wait(time_max, |standing| standing.state != State::Joined || standing.synced >= number);
    }

    fn keeps_messages(&self) -> bool {
        self.0.plan.history.is_some()
    }
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, Standing> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps a session with one of the servers until the member is dropped.
async fn run(shared: &Shared, member: &Weak<dyn Member>) {
    let random = RandomState::new();
    let mut pause = PAUSE_MIN;
    let mut away_since: Option<Instant> = None;
    let mut told_dropped = 0;
    for (attempt, server) in shared.plan.servers.iter().cycle().enumerate() {
        let began = Instant::now();
        let nonce = random.hash_one(attempt);
        let mut session = Session { shared, member, server, nonce, away_since, synced: 0 };
        let why = session.run().await;
        if member.upgrade().is_none() {
            return;
        }
        let was_joined = std::mem::replace(&mut shared.lock().state, State::Away) == State::Joined;
        shared.news.notify_all();
        if was_joined {
            shared.lock().lost += 1;
            say(format_args!("the bus at {server} was lost: {why}; trying again"));
            away_since = Some(Instant::now());
        } else if away_since.is_none() {
            say(format_args!("the bus at {server} cannot be joined: {why}; trying again"));
            away_since = Some(began);
        }
        let dropped = shared.lock().dropped;
        if was_joined {
            told_dropped = dropped;
        } else if dropped > told_dropped {
            // Reported once, until the bus is joined again.
            told_dropped = u64::MAX;
            say(format_args!("the queue of the bus is full: the oldest messages are dropped"));
        }
        // If the server accepts the connection but soon closes it, the pause still grows.
        if was_joined && began.elapsed() >= PAUSE_MAX {
            pause = PAUSE_MIN;
        }
        if (attempt + 1) % shared.plan.servers.len().max(1) != 0 && !was_joined {
            sleep(PAUSE_MIN).await;
            continue;
        }
        let jitter = random.hash_one((attempt, "pause")) % 1000;
        sleep(pause / 2 + pause.mul_f64(jitter as f64 / 2000.0)).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}
