//! Sends this process's messages to the bus.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::parcel::{About, Head, ParcelKind, channel_place, place};
use super::{Bus, BusState, Parcel, Topic};
use flatout_push::{Carry, ChannelName, History, Kind, Publication};

/// Sends published messages.
pub(super) struct Carrier {
    /// The number of this process, which may become that of the process that it replaces.
    origin: Arc<AtomicU64>,
    bus: Arc<dyn Bus>,
}

impl Carrier {
    pub(super) fn new(origin: Arc<AtomicU64>, bus: Arc<dyn Bus>) -> Carrier {
        Carrier { origin, bus }
    }
}

impl Carry for Carrier {
    fn origin(&self) -> u64 {
        self.origin.load(Ordering::Relaxed)
    }

    fn carry(&self, number: u64, channel: ChannelName<'_>, publication: &Publication, history: &History) {
        let what = ParcelKind::Published(About::of(channel, publication, history));
        let bytes = Head { origin: self.origin(), number, what }.encode(&publication.data);
        let place = match (history.kind, &publication.key) {
            // A bus with a history keeps a number of messages per place.
            (Kind::Latest, Some(key)) => format!("{}.{}", channel_place(channel), place(key)),
            _ => channel_place(channel),
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
        !self.bus.keeps_messages() && self.bus.counted().state != BusState::Joined
    }
}
