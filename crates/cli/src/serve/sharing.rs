//! The bus to other servers, where a server has one.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use flatout_engine::say;
use flatout_serve::bus::{Bus, Member, Nats, Outcome, Plan, Relay, State};
use flatout_serve::cache::Purge;
use flatout_serve::live::Live;
use flatout_serve::push::Hub;

use crate::Failure;

/// How long a process that replaces another one waits for the bus: what is published in between must reach one of them.
const JOIN_TIME_MAX: Duration = Duration::from_secs(2);

/// How long a purge waits for the bus to carry it.
const PURGE_TIME_MAX: Duration = Duration::from_secs(1);

/// How long the end of the process waits for the bus to carry what was published.
const END_TIME_MAX: Duration = Duration::from_millis(500);

/// A server that shares messages and purges; clones are the same.
#[derive(Clone)]
pub(super) struct Sharing {
    pub(super) relay: Arc<Relay>,
    nats: Arc<Nats>,
}

impl Sharing {
    /// Joins the bus in the background: what cannot be reached is tried again.
    pub(super) fn begin(plan: Plan, hub: &Hub, live: &Live) -> Result<Sharing, Failure> {
        let live = live.clone();
        let purging = move |purge: &Purge| live.opened().cache.as_ref().map(|cache| cache.purge(purge));
        let relay = Relay::new(hub, Box::new(purging));
        let nats = Nats::new(plan);
        relay.connect(nats.clone());
        let member: Arc<dyn Member> = relay.clone();
        let started = nats.start(Arc::downgrade(&member));
        started.map_err(|error| Failure::Run(format!("a thread for the bus: {error}")))?;
        Ok(Sharing { relay, nats })
    }

    /// Waits until it has joined, for a time.
    pub(super) fn wait_joined(&self) {
        self.nats.wait_joined(JOIN_TIME_MAX);
    }

    /// Purges here and at all others: what was reached.
    pub(super) fn purge(&self, purge: &Purge) -> String {
        let (count, receipt) = self.relay.purge(purge);
        let here =
            count.map_or_else(|| "no responses are stored here".to_owned(), |count| said(purge, count));
        let outcome = self.nats.wait_carried(receipt, PURGE_TIME_MAX);
        let is_joined = self.nats.counted().state == State::Joined;
        let there = match outcome {
            Outcome::Carried => "sent to the other servers",
            Outcome::Dropped => {
                "not sent: the bus has no room for it; the other servers mark everything stale when they notice"
            }
            Outcome::Waits if is_joined => "the bus has not confirmed it yet; it is sent again until it does",
            Outcome::Waits => {
                "the bus is away; the other servers get it when it is back, unless this server ends before"
            }
        };
        format!("{here}; {there}")
    }

    /// The process ends.
    pub(super) fn close(&self) {
        if self.nats.wait_all(END_TIME_MAX) {
            self.relay.leave();
            self.nats.sync(END_TIME_MAX);
            return;
        }
        let queued = self.nats.counted().queued;
        say(format_args!(
            "the bus has not confirmed {queued} messages and purges; the other servers may not get them"
        ));
    }
}

/// What was purged here.
pub(super) fn said(purge: &Purge, count: usize) -> String {
    format!("{} {count} stored responses", if purge.is_soft { "marked stale" } else { "purged" })
}

/// Differs where two plans differ, and does not show their credentials.
pub(super) fn fingerprint(plan: Option<&Plan>) -> String {
    let mut hasher = DefaultHasher::new();
    plan.hash(&mut hasher);
    hasher.finish().to_string()
}
