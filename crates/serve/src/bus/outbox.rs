//! Parcels to send, and parcels that were sent but have not come back yet. When the connection is lost, these
//! are sent again.

use std::collections::VecDeque;

use super::{Parcel, Receipt, Topic};

/// Limits of the queue. Above them, the oldest parcel is dropped; receivers detect the loss by the number of
/// the next one.
const PARCELS_MAX: usize = 64 << 10;
const BYTES_MAX: usize = 32 << 20;

/// Memory of a parcel besides its contents.
const PARCEL_BYTES: usize = size_of::<Parcel>() + 64;

/// Maximum number of parcels in flight.
pub(super) const WINDOW: usize = 1024;

/// The queue of one member.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    queue: VecDeque<Parcel>,
    /// The first `sent` parcels of the queue are in flight.
    sent: usize,
    bytes: usize,
}

impl Outbox {
    /// Adds a parcel. Returns the number of dropped parcels.
    pub(super) fn push(&mut self, parcel: Parcel) -> u64 {
        self.bytes += weight(&parcel);
        self.queue.push_back(parcel);
        let mut dropped = 0;
        while self.queue.len() > PARCELS_MAX || self.bytes > BYTES_MAX {
            if self.remove(0).is_none() {
                break;
            }
            dropped += 1;
        }
        dropped
    }

    /// The next parcel to send; `None` if the window is full.
    pub(super) fn next(&mut self) -> Option<Parcel> {
        if self.sent >= WINDOW {
            return None;
        }
        let parcel = self.queue.get(self.sent)?.clone();
        match parcel.topic {
            // Presence needs no receipt.
            Topic::Presence => drop(self.remove(self.sent)),
            Topic::Push | Topic::Purge => self.sent += 1,
        }
        Some(parcel)
    }

    /// Removes a parcel that has come back, and those before it in its topic. Returns their number.
    pub(super) fn settle(&mut self, receipt: Receipt) -> u64 {
        let (mut at, mut count) = (0, 0);
        while at < self.sent {
            match self.queue.get(at) {
                Some(parcel) if parcel.topic != receipt.topic => at += 1,
                Some(parcel) if parcel.number <= receipt.number => {
                    self.remove(at);
                    count += 1;
                }
                _ => break,
            }
        }
        count
    }

    /// Whether this parcel is still in the queue: neither carried nor dropped.
    pub(super) fn has(&self, receipt: Receipt) -> bool {
        self.queue.iter().any(|parcel| (parcel.topic, parcel.number) == (receipt.topic, receipt.number))
    }

    /// Removes a parcel that cannot be sent.
    pub(super) fn discard(&mut self, topic: Topic, number: u64) {
        let is_meant = |parcel: &Parcel| parcel.topic == topic && parcel.number == number;
        let at = self.queue.iter().position(is_meant);
        at.and_then(|at| self.remove(at));
    }

    /// The connection was lost: sends the whole queue again, without outdated presence.
    pub(super) fn rewind(&mut self) {
        self.sent = 0;
        self.queue.retain(|parcel| parcel.topic != Topic::Presence);
        self.bytes = self.queue.iter().map(weight).sum();
    }

    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    fn remove(&mut self, at: usize) -> Option<Parcel> {
        let parcel = self.queue.remove(at)?;
        self.bytes = self.bytes.saturating_sub(weight(&parcel));
        if at < self.sent {
            self.sent -= 1;
        }
        Some(parcel)
    }
}

fn weight(parcel: &Parcel) -> usize {
    PARCEL_BYTES + parcel.place.len() + parcel.bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parcel(topic: Topic, number: u64, bytes: usize) -> Parcel {
        Parcel { topic, number, place: String::new(), bytes: vec![0; bytes].into() }
    }

    fn sent(outbox: &mut Outbox) -> Vec<u64> {
        std::iter::from_fn(|| outbox.next()).map(|parcel| parcel.number).collect()
    }

    #[test]
    fn unconfirmed_parcels_are_sent_again() {
        let mut outbox = Outbox::default();
        for number in 1..=4 {
            outbox.push(parcel(Topic::Push, number, 10));
            outbox.push(parcel(Topic::Purge, number, 10));
        }
        outbox.push(parcel(Topic::Presence, 0, 10));
        assert_eq!(sent(&mut outbox), [1, 1, 2, 2, 3, 3, 4, 4, 0]);
        outbox.settle(Receipt { topic: Topic::Push, number: 3 });
        outbox.settle(Receipt { topic: Topic::Purge, number: 1 });
        outbox.settle(Receipt { topic: Topic::Purge, number: 1 });
        assert_eq!((outbox.len(), outbox.sent), (4, 4));
        outbox.push(parcel(Topic::Presence, 0, 10));
        outbox.rewind();
        assert_eq!(sent(&mut outbox), [2, 3, 4, 4]);
        outbox.settle(Receipt { topic: Topic::Purge, number: 9 });
        outbox.settle(Receipt { topic: Topic::Push, number: 9 });
        assert_eq!((outbox.len(), outbox.sent, outbox.bytes), (0, 0, 0));
    }

    #[test]
    fn a_receipt_confirms_only_sent_parcels() {
        let mut outbox = Outbox::default();
        for number in 1..=2 * WINDOW as u64 {
            outbox.push(parcel(Topic::Push, number, 0));
        }
        assert_eq!(sent(&mut outbox).len(), WINDOW);
        outbox.settle(Receipt { topic: Topic::Push, number: u64::MAX });
        assert_eq!(outbox.len(), WINDOW, "a receipt for what was not sent yet is none");
        assert_eq!(sent(&mut outbox).first(), Some(&(WINDOW as u64 + 1)));
        outbox.discard(Topic::Push, WINDOW as u64 + 1);
        assert_eq!((outbox.len(), outbox.sent), (WINDOW - 1, WINDOW - 1));
    }

    #[test]
    fn a_full_queue_drops_the_oldest_parcels() {
        let mut outbox = Outbox::default();
        let dropped: u64 = (1..=40).map(|number| outbox.push(parcel(Topic::Push, number, 1 << 20))).sum();
        assert!(dropped >= 8 && outbox.bytes <= BYTES_MAX, "{dropped}");
        assert_eq!(outbox.next().map(|parcel| parcel.number), Some(dropped + 1));
        assert_eq!(outbox.push(parcel(Topic::Push, 41, BYTES_MAX)), outbox.len() as u64 + 41 - dropped);
        let mut outbox = Outbox::default();
        let dropped: u64 =
            (1..=PARCELS_MAX as u64 + 5).map(|number| outbox.push(parcel(Topic::Push, number, 0))).sum();
        assert_eq!((dropped, outbox.len()), (5, PARCELS_MAX));
    }
}
