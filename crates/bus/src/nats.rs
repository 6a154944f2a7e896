//! The bus over NATS: one connection to one of its servers, on a separate thread.
//!
//! ```text
//! send ──> Outbox ── pump ──> GROUP.push.CHANNEL, GROUP.purge, GROUP.presence ──> server ── GROUP.> ──> Relay::receive
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
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use std::{io, thread};

use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tokio::time::sleep;

use super::history::StreamPosition;
use super::outbox::{Outbox, Outcome};
use super::session::Session;
use super::{Bus, BusState, Counted, Parcel, Plan, Receipt, Relay, Server, Topic};

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
    pub(super) state: BusState,
    pub(super) outbox: Outbox,
    pub(super) sent: u64,
    pub(super) dropped: u64,
    pub(super) lost: u64,
    /// An oversized message has been reported.
    pub(super) has_reported_large: bool,
    /// It was reported that the stream does not store messages, and it has stored none since.
    pub(super) has_reported_unstored: bool,
    /// The last message received from the history.
    pub(super) seen: StreamPosition,
    /// The number of [`Bus::sync`] calls, and the last one that is complete.
    pub(super) syncs: u64,
    pub(super) synced: u64,
}

impl Nats {
    /// A bus over these servers. It connects when it is [started](Nats::start); until then, parcels are
    /// queued.
    pub fn new(plan: Plan) -> Arc<Nats> {
        let outbox = Outbox::new(plan.history.is_some());
        Arc::new(Nats(Arc::new(Shared {
            plan,
            standing: Mutex::new(Standing { outbox, ..Standing::default() }),
            news: Condvar::new(),
            work: Notify::new(),
            received: AtomicU64::new(0),
        })))
    }

    /// Connects on a separate thread and reconnects as needed, for as long as the member exists.
    ///
    /// # Errors
    /// The thread or the runtime cannot be started.
    pub fn start(&self, member: Weak<Relay>) -> io::Result<()> {
        let mut first = Some(runtime()?);
        let shared = self.0.clone();
        let thread = thread::Builder::new().name("flatout-bus".to_owned());
        let serve = move || {
            shared.persist(PAUSE_MAX, || {
                let runtime = first.take().map_or_else(runtime, Ok)?;
                runtime.block_on(run(&shared, &member));
                Ok(())
            });
        };
        thread.spawn(serve).map(drop)
    }

    /// Waits until the bus is joined, for at most this time. Returns whether it is.
    pub fn wait_joined(&self, time_max: Duration) -> bool {
        self.wait(time_max, |standing| standing.state == BusState::Joined)
    }

    /// Waits until this purge was carried or dropped, for at most this time; returns at once if the bus is
    /// disconnected. Returns what became of it.
    pub fn wait_carried(&self, purge: Receipt, time_max: Duration) -> Outcome {
        let number = purge.number;
        let is_over = |standing: &Standing| {
            standing.state != BusState::Joined || standing.outbox.outcome(number) != Outcome::Waits
        };
        self.wait(time_max, is_over);
        self.0.lock().outbox.outcome(number)
    }

    /// Waits until all parcels were carried, for at most this time; returns at once if the bus is
    /// disconnected. Returns whether all were carried.
    pub fn wait_all(&self, time_max: Duration) -> bool {
        self.wait(time_max, |standing| standing.state != BusState::Joined || standing.outbox.len() == 0);
        self.0.lock().outbox.len() == 0
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
        if parcel.topic == Topic::Presence && standing.state != BusState::Joined {
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
        self.wait(time_max, |standing| standing.state != BusState::Joined || standing.synced >= number);
    }

    fn name(&self) -> String {
        let servers: Vec<String> = self.0.plan.servers.iter().map(Server::url).collect();
        format!("{} {}", self.0.plan.group, servers.join(" "))
    }

    fn outbox(&self) -> Vec<Parcel> {
        self.0.lock().outbox.all()
    }

    fn clear_outbox(&self) {
        self.0.lock().outbox.clear();
        self.0.news.notify_all();
    }

    fn keeps_messages(&self) -> bool {
        self.0.plan.history.is_some()
    }
}

impl Shared {
    /// Runs a function until it returns without an error. After an error or a panic, runs it again after a pause.
    fn persist(&self, pause: Duration, mut run: impl FnMut() -> io::Result<()>) {
        loop {
            let why = match catch_unwind(AssertUnwindSafe(&mut run)) {
                Ok(Ok(())) => return,
                Ok(Err(error)) => error.to_string(),
                Err(_) => "a bug in flatout, please report it".to_owned(),
            };
            let mut standing = self.lock();
            standing.lost += u64::from(standing.state == BusState::Joined);
            standing.state = BusState::Away;
            drop(standing);
            self.news.notify_all();
            flatout_engine::report(
                flatout_engine::Severity::Warning,
                format_args!("the thread of the bus has failed: {why}; trying again"),
            );
            thread::sleep(pause);
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Standing> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn runtime() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

/// Keeps a session with one of the servers until the member is dropped.
async fn run(shared: &Shared, member: &Weak<Relay>) {
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
        let was_joined = std::mem::replace(&mut shared.lock().state, BusState::Away) == BusState::Joined;
        shared.news.notify_all();
        if was_joined {
            shared.lock().lost += 1;
            flatout_engine::report(
                flatout_engine::Severity::Warning,
                format_args!("the bus at {server} was lost: {why}; trying again"),
            );
            away_since = Some(Instant::now());
        } else if away_since.is_none() {
            flatout_engine::report(
                flatout_engine::Severity::Warning,
                format_args!("the bus at {server} cannot be joined: {why}; trying again"),
            );
            away_since = Some(began);
        }
        let dropped = shared.lock().dropped;
        if was_joined {
            told_dropped = dropped;
        } else if dropped > told_dropped {
            // Reported once, until the bus is joined again.
            told_dropped = u64::MAX;
            flatout_engine::report(
                flatout_engine::Severity::Warning,
                format_args!("the queue of the bus is full: the oldest messages are dropped"),
            );
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bus_is_joined_again_after_a_panic() {
        let nats = Nats::new("nats://127.0.0.1:1".parse().unwrap());
        nats.0.lock().state = BusState::Joined;
        let mut runs = 0;
        nats.0.persist(Duration::ZERO, || {
            runs += 1;
            match runs {
                1 => panic!("a bug"),
                2 => Err(io::Error::other("no runtime")),
                _ => Ok(()),
            }
        });
        let standing = nats.0.lock();
        assert_eq!((runs, standing.state, standing.lost), (3, BusState::Away, 1));
    }
}
