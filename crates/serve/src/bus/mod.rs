//! The bus between servers: what is published or purged at one of them reaches all.
//!
//! ```text
//! Hub::publish, purge ──> Relay: numbers, parcels ──> Bus ──> Relay of each other server ──> Hub::arrive, Cache::purge
//!                                                      └─ Nats: one connection, on a thread of the control plane
//! ```
//!
//! A bus carries parcels and knows nothing of channels and caches. The [`Relay`] knows what is in them: each server numbers its
//! parcels, so that no server takes one twice, and what did not arrive is noticed. No worker waits for a bus.

#[cfg(feature = "nats")]
mod backlog;
mod carrier;
mod figures;
#[cfg(feature = "nats")]
mod greeting;
mod heard;
mod held;
#[cfg(feature = "nats")]
mod kept;
#[cfg(test)]
mod local;
#[cfg(feature = "nats")]
mod nats;
#[cfg(feature = "nats")]
mod outbox;
mod parcel;
mod plan;
mod present;
mod relay;
#[cfg(feature = "nats")]
mod session;
#[cfg(test)]
mod tests;

use std::time::Duration;

use bytes::Bytes;

pub use figures::{Counted, State};
#[cfg(feature = "nats")]
pub use nats::Nats;
#[cfg(feature = "nats")]
pub use outbox::Outcome;
pub use plan::{Credentials, Plan, Server};
pub use relay::{Purging, Relay};

pub(crate) use heard::{Heard, Step};
#[cfg(test)]
use local::Local;

/// Carries parcels between the members of a group of servers.
pub trait Bus: Send + Sync {
    /// Sends a parcel to all other members. It does not wait: while the bus is away the parcel waits, and what there is no room for is
    /// dropped and counted.
    fn send(&self, parcel: Parcel);

    /// How the bus is, and what it has counted.
    fn counted(&self) -> Counted;

    /// Waits until the member has received all that others had sent before, as far as that is there, for no longer than this.
    fn sync(&self, time_max: Duration) {
        let _ = time_max;
    }

    /// Whether it keeps messages for members that were away or come later.
    fn keeps_messages(&self) -> bool {
        false
    }
}

/// Somebody on a bus. Called on a thread of the bus, one call at a time.
pub trait Member: Send + Sync {
    /// A parcel has arrived, which was sent so long ago. Parcels of one member arrive in the order in which it has sent them. Returns what is
    /// its own and has come back, as far as the bus returns parcels to their sender.
    fn receive(&self, bytes: &Bytes, age: Duration) -> Option<Receipt>;

    /// The bus has kept fewer messages than were sent while it was away.
    fn missed(&self);

    /// The bus was joined. What others have sent before may not have arrived.
    fn joined(&self, how: Joined);

    /// Some time has passed, a quarter of a second or less.
    fn beat(&self);
}

/// How a bus was joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Joined {
    /// At the first attempt.
    AtOnce,
    /// For the first time, after attempts that have failed.
    Late,
    /// Again, after it was lost.
    Again,
}

/// What a member sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parcel {
    /// What it is about.
    pub topic: Topic,
    /// The sender's numbering of this topic, without holes.
    pub number: u64,
    /// What it belongs to within its topic, such as a channel: words of letters, digits and `-_=`, with dots between them.
    pub place: String,
    /// What members receive.
    pub bytes: Bytes,
}

/// What parcels are about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Topic {
    /// Messages of channels.
    Push,
    /// Purges of the response cache.
    Purge,
    /// Who is there. It is not numbered, and is not kept while the bus is away.
    Presence,
}

impl Topic {
    /// What it is called on the bus.
    pub fn name(self) -> &'static str {
        match self {
            Topic::Push => "push",
            Topic::Purge => "purge",
            Topic::Presence => "presence",
        }
    }
}

/// A parcel of one's own that the bus has carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Receipt {
    /// Its topic.
    pub topic: Topic,
    /// Its number.
    pub number: u64,
}
