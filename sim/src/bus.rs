//! Other servers with the same channels, and the bus between: their messages arrive one by one, now and then twice, and some never.

use std::time::Duration;

use flatout_push::{Arrival, Carry, ChannelName, History, Hub, Incoming, Plan, Publication};

/// The number of the server in the simulation, and of the other one.
const OWN_ORIGIN: u64 = 1;
const OTHER_ORIGIN: u64 = 2;

/// What the server sends is for others, who are not there.
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
    // No other server was there before.
    hub.complete_sequences();
}

/// The other server, as far as this one knows it.
#[derive(Debug, Default)]
pub(crate) struct Bus {
    /// Of its last message.
    number: u64,
    /// The channels of messages that were lost since.
    lost: Vec<usize>,
}

impl Bus {
    /// The other server publishes a message to this channel, which is lost.
    pub(crate) fn lose(&mut self, channel: usize) {
        self.number += 1;
        self.lost.push(channel);
    }

    /// The channels of messages that are lost before the next one.
    pub(crate) fn take_lost(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.lost)
    }

    /// The other server publishes a message, which arrives; `again`: twice. `has_lost`: some before it were lost.
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
            Some(other) => Err(format!("a message of another server that comes again: {other:?}")),
        }
    }
}
