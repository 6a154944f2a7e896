//! The bus to other servers, where a server has one.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use flatout_serve::bus::{Bus, Member, Nats, Plan, Relay, State};
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
    live: Live,
}

impl Sharing {
    /// Joins the bus in the background: what cannot be reached is tried again.
    pub(super) fn begin(plan: Plan, hub: &Hub, live: &Live) -> Result<Sharing, Failure> {
        let purged = live.clone();
        // The thread of the bus calls this too: it must not wait for the disk.
        let purging =
            move |purge: &Purge| purged.opened().cache.as_ref().map(|cache| cache.purge_soon(purge));
        let relay = Relay::new(hub, Box::new(purging));
        let nats = Nats::new(plan);
        relay.connect(nats.clone());
        let member: Arc<dyn Member> = relay.clone();
        let started = nats.start(Arc::downgrade(&member));
        started.map_err(|error| Failure::Run(format!("a thread for the bus: {error}")))?;
        Ok(Sharing { relay, nats, live: live.clone() })
    }

    /// Waits until it has joined, for a time.
    pub(super) fn wait_joined(&self) {
        self.nats.wait_joined(JOIN_TIME_MAX);
    }

    /// Purges here and at all others: what was reached.
    pub(super) fn purge(&self, purge: &Purge) -> String {
        let (count, receipt) = self.relay.purge(purge);
        if let Some(cache) = &self.live.opened().cache {
            cache.wait_for_purges();
        }
        let here =
            count.map_or_else(|| "no responses are stored here".to_owned(), |count| said(purge, count));
        let there = match self.nats.wait_carried(receipt, PURGE_TIME_MAX) {
            true => "sent to the other servers",
            false if self.nats.counted().state == State::Joined => "on the way to the other servers",
            false => "the bus is away, and the other servers get it when it is back",
        };
        format!("{here}; {there}")
    }

    /// The process ends.
    pub(super) fn close(&self) {
        self.nats.wait_all(END_TIME_MAX);
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
