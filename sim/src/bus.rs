//! A bus that connects the server to another one with the same channels. Messages of the other server arrive one by one. Some arrive twice, and
//! some are lost. What the server sends is recorded.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use flatout_push::{Arrival, Carry, ChannelName, History, Hub, Incoming, Plan, Publication};

/// The origins of the simulated server and of the other one.
const OWN_ORIGIN: u64 = 1;
const OTHER_ORIGIN: u64 = 2;

/// What a server has sent, as numbers and texts, in its order. Threads of an upgrade send too.
#[derive(Debug, Clone, Default)]
pub(crate) struct Carried(Arc<Mutex<Vec<(u64, String)>>>);

impl Carry for Carried {
    fn origin(&self) -> u64 {
        OWN_ORIGIN
    }

    fn carry(&self, number: u64, _: ChannelName<'_>, publication: &Publication, _: &History) {
        let text = String::from_utf8_lossy(&publication.data).into_owned();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((number, text));
    }

    fn sync(&self, _: Duration) {}

    fn has_unsent(&self) -> bool {
        false
    }

    fn misses_messages(&self) -> bool {
        false
    }
}

impl Carried {
    /// At the end: whether each message that was published at the server was sent once, in its order, with the next number.
    pub(crate) fn check(&self, own: &[String]) -> Result<(), String> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let first = all
            .iter()
            .zip(own)
            .zip(1..)
            .find(|(((number, text), own), expected)| number != expected || text != *own);
        match first {
            Some((((number, text), _), expected)) => Err(format!(
                "message {expected} of the server went over the bus with number {number} as {:.40}",
                text
            )),
            None if all.len() != own.len() => Err(format!(
                "{} messages went over the bus, {} were published at the server",
                all.len(),
                own.len()
            )),
            None => Ok(()),
        }
    }
}

/// Connects the channels of a server to the bus.
pub(crate) fn join(hub: &Hub) -> Carried {
    let carried = Carried::default();
    hub.carry_by(Box::new(carried.clone()));
    // There is no earlier server whose messages could be missing.
    hub.complete_sequences();
    carried
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

    /// The bus says how many messages the other server has sent. `has_lost`: some of them were lost.
    pub(crate) fn report_tip(&self, hub: &Hub, has_lost: bool) -> Result<(), String> {
        match hub.record_tip(OTHER_ORIGIN, self.number) {
            Some(noticed) if noticed == has_lost => Ok(()),
            noticed => {
                Err(format!("the number of messages of another server: {noticed:?}, expected {has_lost}"))
            }
        }
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
