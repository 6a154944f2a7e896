//! Parcels to send, and parcels that were sent but have not come back yet. When the connection is lost, these
//! are sent again.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::{Parcel, Receipt, Topic};

/// Limits of each of the two queues. Above them, the oldest parcel is dropped; receivers detect the loss by the
/// number of the next one.
const PARCELS_MAX: usize = 64 << 10;
const BYTES_MAX: usize = 32 << 20;

/// Memory of a parcel besides its contents.
const PARCEL_BYTES: usize = size_of::<Parcel>() + 64;

/// Maximum number of messages in flight, and of purges.
pub(super) const WINDOW: usize = 1024;

/// How long the bus may return none of the sent parcels of a topic.
pub(super) const ACKNOWLEDGED_TIME_MAX: Duration = Duration::from_secs(10);

/// The queues of one member. Purges do not wait for messages.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    messages: TopicQueue,
    purges: TopicQueue,
    /// The bus has a history. Otherwise heartbeats are sent after the messages that they count.
    keeps_messages: bool,
    /// The last purge that was dropped.
    dropped_purge: u64,
}

/// The queue of one topic, in the order of the numbers.
#[derive(Debug, Default)]
struct TopicQueue {
    queue: VecDeque<Parcel>,
    /// The first `sent` parcels of the queue are in flight.
    sent: usize,
    bytes: usize,
    /// When the first of the sent parcels was sent, or the last one was acknowledged.
    moved_at: Option<Instant>,
}

/// What became of a parcel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The bus has carried it.
    Carried,
    /// It is queued or in flight.
    Waits,
    /// It was not sent: the queue was full, or it is too large for the bus.
    Dropped,
}

impl Outbox {
    pub(super) fn new(keeps_messages: bool) -> Outbox {
        Outbox { keeps_messages, ..Outbox::default() }
    }

    /// Adds a parcel. Returns the number of dropped parcels.
    pub(super) fn push(&mut self, parcel: Parcel) -> u64 {
        let topic = parcel.topic;
        let lane = self.lane(topic);
        lane.bytes += weight(&parcel);
        lane.queue.push_back(parcel);
        let mut dropped = 0;
        while let Some(parcel) = self.lane(topic).remove_excess() {
            self.note_dropped(&parcel);
            dropped += 1;
        }
        dropped
    }

    /// The next parcel to send; `None` if the windows are full. Purges come first.
    pub(super) fn next(&mut self, now: Instant) -> Option<Parcel> {
        if let Some(purge) = self.purges.next(now) {
            return Some(purge);
        }
        // A heartbeat counts all purges: receivers would ignore those sent after it as repeated.
        let is_heartbeat = self.messages.waiting().is_some_and(|parcel| parcel.topic == Topic::Presence);
        match is_heartbeat && self.purges.waiting().is_some() {
            true => None,
            false => self.messages.next(now),
        }
    }

    /// Removes a parcel that has come back, and those before it in its topic. Returns their number.
    pub(super) fn acknowledge(&mut self, receipt: Receipt, now: Instant) -> u64 {
        match receipt.topic {
            Topic::Presence => 0,
            topic => self.lane(topic).acknowledge(receipt.number, now),
        }
    }

    /// The topic with sent parcels of which none was acknowledged for [`ACKNOWLEDGED_TIME_MAX`].
    pub(super) fn stuck(&self, now: Instant) -> Option<Topic> {
        match (self.purges.is_stuck(now), self.messages.is_stuck(now)) {
            (true, _) => Some(Topic::Purge),
            (false, true) => Some(Topic::Push),
            (false, false) => None,
        }
    }

    /// Nothing could be received until now: [`Outbox::stuck`] counts from here.
    pub(super) fn restart_clock(&mut self, now: Instant) {
        for lane in [&mut self.messages, &mut self.purges] {
            lane.moved_at = lane.moved_at.map(|_| now);
        }
    }

    /// What became of the purge with this number.
    pub(super) fn outcome(&self, purge: u64) -> Outcome {
        match self.purges.queue.iter().any(|parcel| is(parcel, Topic::Purge, purge)) {
            true => Outcome::Waits,
            false if purge <= self.dropped_purge => Outcome::Dropped,
            false => Outcome::Carried,
        }
    }

    /// Removes a parcel that cannot be sent.
    pub(super) fn discard(&mut self, topic: Topic, number: u64) {
        let lane = self.lane(topic);
        let at = lane.queue.iter().position(|parcel| is(parcel, topic, number));
        if let Some(parcel) = at.and_then(|at| lane.remove(at)) {
            self.note_dropped(&parcel);
        }
    }

    /// All messages and purges, each topic in order.
    pub(super) fn all(&self) -> Vec<Parcel> {
        let lanes = self.purges.queue.iter().chain(&self.messages.queue);
        lanes.filter(|parcel| parcel.topic != Topic::Presence).cloned().collect()
    }

    /// Removes all parcels: another process sends them.
    pub(super) fn clear(&mut self) {
        (self.messages, self.purges) = (TopicQueue::default(), TopicQueue::default());
    }

    /// The connection was lost: sends the whole queue again, without outdated presence.
    pub(super) fn rewind(&mut self) {
        self.messages.rewind();
        self.purges.rewind();
    }

    /// Sends all messages again.
    pub(super) fn rewind_messages(&mut self) {
        self.messages.rewind();
    }

    pub(super) fn len(&self) -> usize {
        self.messages.queue.len() + self.purges.queue.len()
    }

    fn lane(&mut self, topic: Topic) -> &mut TopicQueue {
        match topic {
            Topic::Push => &mut self.messages,
            Topic::Purge => &mut self.purges,
            Topic::Presence if self.keeps_messages => &mut self.purges,
            Topic::Presence => &mut self.messages,
        }
    }

    fn note_dropped(&mut self, parcel: &Parcel) {
        if parcel.topic == Topic::Purge {
            self.dropped_purge = self.dropped_purge.max(parcel.number);
        }
    }
}

impl TopicQueue {
    /// The first parcel that is not in flight.
    fn waiting(&self) -> Option<&Parcel> {
        self.queue.get(self.sent)
    }

    fn next(&mut self, now: Instant) -> Option<Parcel> {
        if self.sent >= WINDOW {
            return None;
        }
        let parcel = self.waiting()?.clone();
        match parcel.topic {
            // Presence needs no receipt.
            Topic::Presence => drop(self.remove(self.sent)),
            Topic::Push | Topic::Purge => {
                if self.sent == 0 {
                    self.moved_at = Some(now);
                }
                self.sent += 1;
            }
        }
        Some(parcel)
    }

    fn acknowledge(&mut self, number: u64, now: Instant) -> u64 {
        let last = self.sent.checked_sub(1).and_then(|at| self.queue.get(at));
        // A receipt for a parcel that was not sent is wrong.
        if last.is_none_or(|last| last.number < number) {
            return 0;
        }
        let mut count = 0;
        while self.sent > 0 && self.queue.front().is_some_and(|parcel| parcel.number <= number) {
            self.remove(0);
            count += 1;
        }
        if count > 0 {
            self.moved_at = Some(now);
        }
        count
    }

    fn is_stuck(&self, now: Instant) -> bool {
        let waited = self.moved_at.map(|at| now.saturating_duration_since(at));
        self.sent > 0 && waited.is_some_and(|waited| waited >= ACKNOWLEDGED_TIME_MAX)
    }

    fn rewind(&mut self) {
        self.sent = 0;
        self.queue.retain(|parcel| parcel.topic != Topic::Presence);
        self.bytes = self.queue.iter().map(weight).sum();
    }

    /// Removes the oldest if there are too many.
    fn remove_excess(&mut self) -> Option<Parcel> {
        let is_full = self.queue.len() > PARCELS_MAX || self.bytes > BYTES_MAX;
        is_full.then(|| self.remove(0)).flatten()
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

fn is(parcel: &Parcel, topic: Topic, number: u64) -> bool {
    parcel.topic == topic && parcel.number == number
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

    fn sent(outbox: &mut Outbox) -> Vec<(Topic, u64)> {
        let now = Instant::now();
        std::iter::from_fn(|| outbox.next(now)).map(|parcel| (parcel.topic, parcel.number)).collect()
    }

    fn acknowledge(outbox: &mut Outbox, topic: Topic, number: u64) -> u64 {
        outbox.acknowledge(Receipt { topic, number }, Instant::now())
    }

    #[test]
    fn unconfirmed_parcels_are_sent_again() {
        let mut outbox = Outbox::default();
        for number in 1..=4 {
            outbox.push(parcel(Topic::Push, number, 10));
            outbox.push(parcel(Topic::Purge, number, 10));
        }
        outbox.push(parcel(Topic::Presence, 0, 10));
        let of = |topic, numbers: std::ops::RangeInclusive<u64>| numbers.map(move |number| (topic, number));
        let last = (Topic::Presence, 0);
        let all: Vec<_> = of(Topic::Purge, 1..=4).chain(of(Topic::Push, 1..=4)).chain([last]).collect();
        assert_eq!(sent(&mut outbox), all, "presence is behind the messages that it counts");
        acknowledge(&mut outbox, Topic::Push, 3);
        acknowledge(&mut outbox, Topic::Purge, 1);
        acknowledge(&mut outbox, Topic::Purge, 1);
        assert_eq!(outbox.len(), 4);
        outbox.push(parcel(Topic::Presence, 0, 10));
        outbox.rewind();
        let rest: Vec<_> = of(Topic::Purge, 2..=4).chain(of(Topic::Push, 4..=4)).collect();
        assert_eq!(sent(&mut outbox), rest);
        acknowledge(&mut outbox, Topic::Purge, 4);
        acknowledge(&mut outbox, Topic::Push, 4);
        assert_eq!((outbox.len(), outbox.messages.bytes, outbox.purges.bytes), (0, 0, 0));
    }

    #[test]
    fn a_receipt_confirms_only_sent_parcels() {
        let mut outbox = Outbox::default();
        for number in 1..=2 * WINDOW as u64 {
            outbox.push(parcel(Topic::Push, number, 0));
        }
        let window = WINDOW as u64;
        assert_eq!(sent(&mut outbox).len(), WINDOW);
        for never_sent in [window + 1, u64::MAX] {
            assert_eq!(acknowledge(&mut outbox, Topic::Push, never_sent), 0, "{never_sent}");
        }
        assert_eq!(acknowledge(&mut outbox, Topic::Push, window), window);
        assert_eq!(sent(&mut outbox).first(), Some(&(Topic::Push, window + 1)));
        outbox.discard(Topic::Push, window + 1);
        assert_eq!((outbox.len(), outbox.messages.sent), (WINDOW - 1, WINDOW - 1));
    }

    #[test]
    fn a_full_queue_drops_the_oldest_parcels() {
        let mut outbox = Outbox::default();
        let dropped: u64 = (1..=40).map(|number| outbox.push(parcel(Topic::Push, number, 1 << 20))).sum();
        assert!(dropped >= 8 && outbox.messages.bytes <= BYTES_MAX, "{dropped}");
        assert_eq!(outbox.next(Instant::now()).map(|parcel| parcel.number), Some(dropped + 1));
        assert_eq!(outbox.push(parcel(Topic::Push, 41, BYTES_MAX)), outbox.len() as u64 + 41 - dropped);
        let mut outbox = Outbox::default();
        let dropped: u64 =
            (1..=PARCELS_MAX as u64 + 5).map(|number| outbox.push(parcel(Topic::Push, number, 0))).sum();
        assert_eq!((dropped, outbox.len()), (5, PARCELS_MAX));
    }

    #[test]
    fn unacknowledged_parcels_are_detected() {
        let mut outbox = Outbox::new(true);
        let began = Instant::now();
        let late = began + ACKNOWLEDGED_TIME_MAX;
        for number in 1..=3 {
            outbox.push(parcel(Topic::Push, number, 0));
        }
        assert_eq!(outbox.stuck(late), None, "nothing was sent yet");
        while outbox.next(began).is_some() {}
        assert_eq!((outbox.stuck(began), outbox.stuck(late)), (None, Some(Topic::Push)));
        outbox.acknowledge(Receipt { topic: Topic::Push, number: 1 }, late);
        assert_eq!(outbox.stuck(late), None, "one was acknowledged");
        assert_eq!(outbox.stuck(late + ACKNOWLEDGED_TIME_MAX), Some(Topic::Push));
        outbox.rewind_messages();
        assert_eq!(sent(&mut outbox), [(Topic::Push, 2), (Topic::Push, 3)]);
        assert_eq!(outbox.stuck(late), None, "they were sent just now");
        outbox.acknowledge(Receipt { topic: Topic::Push, number: 3 }, late);
        assert_eq!(outbox.stuck(late + ACKNOWLEDGED_TIME_MAX), None, "all was acknowledged");
        outbox.push(parcel(Topic::Purge, 1, 0));
        while outbox.next(began).is_some() {}
        assert_eq!(outbox.stuck(late), Some(Topic::Purge));
        outbox.restart_clock(late);
        assert_eq!(outbox.stuck(late), None, "the process was suspended");
        assert_eq!(outbox.stuck(late + ACKNOWLEDGED_TIME_MAX), Some(Topic::Purge));
    }

    #[test]
    fn purges_and_heartbeats_do_not_wait_for_unstored_messages() {
        let mut outbox = Outbox::new(true);
        for number in 1..=2 * WINDOW as u64 {
            outbox.push(parcel(Topic::Push, number, 0));
        }
        assert_eq!(sent(&mut outbox).len(), WINDOW);
        outbox.push(parcel(Topic::Purge, 1, 0));
        outbox.push(parcel(Topic::Presence, 0, 0));
        assert_eq!(sent(&mut outbox), [(Topic::Purge, 1), (Topic::Presence, 0)]);
    }

    #[test]
    fn heartbeats_do_not_overtake_the_purges_that_they_count() {
        let (mut outbox, window) = (Outbox::default(), WINDOW as u64);
        outbox.push(parcel(Topic::Push, 1, 0));
        for number in 1..=window + 1 {
            outbox.push(parcel(Topic::Purge, number, 0));
        }
        outbox.push(parcel(Topic::Presence, 0, 0));
        outbox.push(parcel(Topic::Push, 2, 0));
        let first = sent(&mut outbox);
        assert_eq!((first.len(), first.last()), (WINDOW + 1, Some(&(Topic::Push, 1))));
        acknowledge(&mut outbox, Topic::Purge, window);
        let rest = [(Topic::Purge, window + 1), (Topic::Presence, 0), (Topic::Push, 2)];
        assert_eq!(sent(&mut outbox), rest);
    }

    #[test]
    fn the_outcome_of_a_purge_is_known() {
        let mut outbox = Outbox::default();
        for number in 1..=3 {
            outbox.push(parcel(Topic::Purge, number, BYTES_MAX / 3));
        }
        assert_eq!(outbox.outcome(1), Outcome::Dropped, "the oldest made room");
        assert_eq!(outbox.outcome(2), Outcome::Waits);
        sent(&mut outbox);
        acknowledge(&mut outbox, Topic::Purge, 2);
        assert_eq!((outbox.outcome(2), outbox.outcome(3)), (Outcome::Carried, Outcome::Waits));
        outbox.discard(Topic::Purge, 3);
        assert_eq!(outbox.outcome(3), Outcome::Dropped, "too large for the bus");
    }
}
