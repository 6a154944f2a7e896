//! A bus that connects the server to another one with the same channels. Messages of the other server arrive one by one. Some arrive twice, and
//! some are lost.

use std::time::Duration;

use flatout_push::{Arrival, Carry, ChannelName, History, Hub, Incoming, Plan, Publication};

/// The origins of the simulated server and of the other one.
const OWN_ORIGIN: u64 = 1;
const OTHER_ORIGIN: u64 = 2;

/// Discards what the server sends: nobody receives it.
struct Sent;

impl Carry for Sent {
    fn origin(&self) -> u64 {
        OWN_ORIGIN
    }

    fn carry(&self, _: u64, _: ChannelName<'_>, _: &Publication, _: &History) {}

    fn sync(&self, _: Duration) {}

    fn has_unsent(&self) -> bool {
        false
    }

    fn misses_messages(&self) -> bool {
        false
    }
}

/// Connects the channels of a server to the bus.
pub(crate) fn join(hub: &Hub) {
    hub.carry_by(Box::new(Sent));
    // There is no earlier server whose messages could be missing.
    hub.complete_sequences();
}

/// The messages of the other server.
#[derive(Debug, Default)]
pub(crate) struct Bus {
    /// The number of the last message.
    number: u64,
    /// The channels of the messages that were lost since the last delivery.
    lost: Vec<usize>,
}

impl Bus {
    /// The other server publishes a message to this channel, and the message is lost.
    pub(crate) fn lose(&mut self, channel: usize) {
        self.number += 1;
        self.lost.push(channel);
    }

    /// Takes the channels of the messages that were lost since the last delivery.
    pub(crate) fn take_lost(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.lost)
    }

    /// The other server publishes a message, and the message arrives, twice if `again`. `has_lost`: messages before it were lost.
    pub(crate) fn deliver(
        &mut self,
        hub: &Hub,
        name: &str,
        text: &str,
        plan: &Plan,
        (has_lost, again): (bool, bool),
    ) -> Result<(), String> {
        self.number += 1;
        let arrive = || {
            hub.arrive(Incoming {
                origin: OTHER_ORIGIN,
                number: self.number,
                channel: ChannelName { group: &plan.group, name },
                publication: Publication::from(text.to_owned()),
                history: plan.history,
                age: Duration::ZERO,
                is_late: false,
            })
        };
        let first = arrive();
        let expected = if has_lost { Arrival::AcceptedAfterLoss } else { Arrival::Accepted };
        if first != expected {
            return Err(format!("a message of another server: {first:?}, expected {expected:?}"));
        }
        match again.then(arrive) {
            None | Some(Arrival::Repeated) => Ok(()),
            Some(other) => Err(format!("a repeated message of another server: {other:?}, expected Repeated")),
        }
    }
}
