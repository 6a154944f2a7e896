//! The bus between servers: messages published and purges made on one server reach all of them.
//!
//! ```text
//! Hub::publish, purge ──> Relay: numbers, parcels ──> Bus ──> Relay of each other server ──> Hub::arrive, Cache::purge
//!                                                      └─ Nats: one connection, on a thread of the control plane
//! ```
//!
//! A bus carries parcels and knows nothing about channels and caches. The [`Relay`] encodes and decodes them.
//! Each server numbers its parcels, so that the others ignore repeated ones and detect lost ones. No worker
//! waits for a bus.
#![forbid(unsafe_code)]
// The data path: data from a client, a file or a plan must not crash a worker.
#![warn(clippy::unwrap_used, clippy::expect_used)]
// A program without a carrier uses the types alone.
#![cfg_attr(not(feature = "nats"), allow(dead_code))]

#[cfg(feature = "nats")]
mod backlog;
mod carrier;
mod figures;
#[cfg(feature = "nats")]
mod history;
mod holdback;
#[cfg(test)]
mod local;
#[cfg(feature = "nats")]
mod nats;
#[cfg(feature = "nats")]
mod outbox;
mod parcel;
mod peers;
mod plan;
mod relay;
#[cfg(feature = "nats")]
mod server_info;
#[cfg(feature = "nats")]
mod session;
#[cfg(test)]
mod tests;

use std::time::Duration;

use bytes::Bytes;

pub use figures::{BusState, Counted};
#[cfg(feature = "nats")]
pub use nats::Nats;
#[cfg(feature = "nats")]
pub use outbox::Outcome;
pub use plan::{Credentials, Plan, Server};
pub use relay::Identity;
pub use relay::{Purging, Relay};

#[cfg(test)]
use local::Local;
pub use parcel::is_place;

/// Carries parcels between the members of a group of servers.
pub trait Bus: Send + Sync {
    /// Sends a parcel to all other members, without waiting. While the bus is disconnected, parcels are
    /// queued. If the queue is full, the oldest are dropped and counted.
    fn send(&self, parcel: Parcel);

    /// The state of the bus, and its counters.
    fn counted(&self) -> Counted;

    /// Waits until the member has received everything that others sent before this call, for at most this
    /// time.
    fn sync(&self, time_max: Duration) {
        let _ = time_max;
    }

    /// What the parcels travel on: the group and the servers, in one line. A process can take over the [outbox](Bus::outbox) of
    /// another one if [`is_same`] says that both have the same.
    fn name(&self) -> String {
        String::new()
    }

    /// All messages and purges that were not carried yet, each topic in order.
    fn outbox(&self) -> Vec<Parcel> {
        Vec::new()
    }

    /// Another process sends what is in the outbox.
    fn clear_outbox(&self) {}

    /// Whether it has a history, for members that were disconnected or are new.
    fn keeps_messages(&self) -> bool {
        false
    }
}

/// How a bus was joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Joined {
    /// At the first attempt.
    AtOnce,
    /// For the first time, after failed attempts.
    Late,
    /// Again, after the connection was lost.
    Again,
}

/// Whether two [names](Bus::name) are of one bus: the group is the same, and at least one server.
pub fn is_same(one: &str, other: &str) -> bool {
    let (mut one, mut other) = (one.split(' '), other.split(' '));
    one.next().filter(|group| !group.is_empty()) == other.next()
        && one.any(|server| other.clone().any(|known| known == server))
}

/// A message or purge, encoded for the bus.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parcel {
    /// Its topic.
    pub topic: Topic,
    /// The sender's sequence number in this topic, without gaps.
    pub number: u64,
    /// Its place within the topic, such as a channel: words of letters, digits and `-_=`, separated by dots.
    pub place: String,
    /// The encoded contents.
    pub bytes: Bytes,
}

/// The topic of a parcel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Topic {
    /// Messages of channels.
    Push,
    /// Purges of the response cache.
    Purge,
    /// Heartbeats of the members. They are not numbered, and are not queued while the bus is disconnected.
    Presence,
}

impl Topic {
    /// Its name on the bus.
    pub fn name(self) -> &'static str {
        match self {
            Topic::Push => "push",
            Topic::Purge => "purge",
            Topic::Presence => "presence",
        }
    }
}

/// Confirms that the bus has carried a parcel of this member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Receipt {
    /// Its topic.
    pub topic: Topic,
    /// Its sequence number.
    pub number: u64,
}
