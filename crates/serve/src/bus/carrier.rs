//! Sends this process's messages to the bus.

use std::sync::Arc;
use std::time::Duration;

use super::parcel::{About, Head, What, place};
use super::{Bus, Parcel, State, Topic};
use crate::push::{Carry, History, Kind, Publication};

/// Sends published messages.
pub(super) struct Carrier {
    origin: u64,
    bus: Arc<dyn Bus>,
}

impl Carrier {
    pub(super) fn new(origin: u64, bus: Arc<dyn Bus>) -> Carrier {
        Carrier { origin, bus }
    }
}

impl Carry for Carrier {
    fn carry(&self, number: u64, channel: &str, publication: &Publication, history: &History) {
        let what = What::Message(About::of(channel, publication, history));
        let bytes = Head { origin: self.origin, number, what }.encode(&publication.data);
        let place = match (history.kind, &publication.key) {
            // A bus with a history keeps a number of messages per place.
            (Kind::Latest, Some(key)) => format!("{}.{}", place(channel), place(key)),
            _ => place(channel),
        };
        self.bus.send(Parcel { topic: Topic::Push, number, place, bytes });
    }

    fn sync(&self, time_max: Duration) {
        self.bus.sync(time_max);
    }

    fn has_unsent(&self) -> bool {
        self.bus.counted().queued > 0
    }

    fn misses_messages(&self) -> bool {
        !self.bus.keeps_messages() && self.bus.counted().state != State::Joined
    }
}
