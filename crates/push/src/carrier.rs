//! Messages to and from other servers. Each server assigns its own ids, in the order in which messages arrive
//! there.

use std::time::Duration;

use flatout_lane::clock;

use super::history::IN_FLIGHT_TIME;
use super::hub::{Hub, Refused, checked};
use super::hub_state::{HubState, New};
use super::message::{Mark, Publication};
use super::plan::{ChannelName, History, Kind, Plan};
use crate::sequence::Step;

/// Maximum size of a message of another server, which has already applied its configured limit.
const MESSAGE_BYTES_MAX: usize = 8 << 20;

/// The low bits of the epoch of message ids, taken from the server's number. The other bits are milliseconds.
const EPOCH_BITS: u32 = 20;

/// Sends this process's messages to other servers.
pub trait Carry: Send + Sync {
    /// The number by which other servers know this process.
    fn origin(&self) -> u64;

    /// Called for each message in order, under the lock of the channels: it must not wait or use the hub. The
    /// messages of a process are numbered consecutively.
    fn carry(&self, number: u64, channel: ChannelName<'_>, publication: &Publication, history: &History);

    /// Waits until everything that others sent before this call has arrived, for at most this time.
    fn sync(&self, time_max: Duration);

    /// Whether messages of this process are not carried yet.
    fn has_unsent(&self) -> bool;

    /// Whether messages that others send now are lost for this process.
    fn misses_messages(&self) -> bool;
}

/// A message of another server.
pub struct Incoming<'i> {
    /// The server that published it.
    pub origin: u64,
    /// Its number there.
    pub number: u64,
    /// The channel.
    pub channel: ChannelName<'i>,
    /// What was published.
    pub publication: Publication,
    /// What the channel retains.
    pub history: History,
    /// The time since it was published.
    pub age: Duration,
    /// It was delayed on its way to this server.
    pub is_late: bool,
}

/// The result for a message of another server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// Accepted.
    Accepted,
    /// Accepted, but earlier messages of that server were lost: subscribers get a gap.
    AcceptedAfterLoss,
    /// Received before.
    Repeated,
    /// The number is not one that its server can have reached.
    Impossible,
    /// Refused by this server.
    Refused(Refused),
}

impl Hub {
    /// Sends messages published from now on to other servers. Later calls have no effect.
    pub fn carry_by(&self, carry: Box<dyn Carry>) {
        // Two servers that started in the same millisecond must not mistake each other's ids for their own.
        self.set_epoch((self.epoch() << EPOCH_BITS) | (carry.origin() & ((1 << EPOCH_BITS) - 1)));
        // A process has only one bus.
        let _ = self.0.carry.set(carry);
    }

    /// Waits until everything that other servers sent before this call has arrived, for at most this time.
    pub fn sync(&self, time_max: Duration) {
        if let Some(carry) = self.0.carry.get() {
            carry.sync(time_max);
        }
    }

    /// Workers with channels will start: messages that arrive earlier are kept.
    pub fn expect_workers(&self) {
        self.lock().expects_workers = true;
    }

    /// Sets the limit for messages of other servers: the largest of all plans in use.
    pub fn limit_messages(&self, bytes_max: usize) {
        self.lock().message_bytes_max = Some(bytes_max);
    }

    /// Publishes a message of another server. If it returns [`Refused::Moving`], the caller tries again
    /// later.
    pub fn arrive(&self, incoming: Incoming<'_>) -> Arrival {
        let Incoming { origin, number, channel, publication, history, age, is_late } = incoming;
        let plan = Plan { message_bytes_max: MESSAGE_BYTES_MAX, ..Plan::default() };
        let publication = match checked(channel.name, publication, &plan) {
            Ok(publication) => publication,
            Err(refused) => return Arrival::Refused(refused),
        };
        let mut state = self.lock();
        if state.is_frozen {
            return Arrival::Refused(Refused::Moving);
        }
        let now = clock::now().ticks;
        let step = state.sequences.step(origin, number, now);
        match step {
            Step::Repeated => {
                // Other servers may receive this copy first.
                if is_late {
                    state.unordered_id = state.last_id;
                }
                return Arrival::Repeated;
            }
            Step::Impossible => return Arrival::Impossible,
            Step::Missed => state.report_gap(),
            Step::Next => {}
        }
        // Without workers that have channels, messages are dropped.
        if state.workers.is_empty() && !state.expects_workers {
            return Arrival::Accepted;
        }
        // For existing channels, this server's own settings apply.
        let known = state.find(channel);
        let has_subscribers = state.awaits_subscribers || known.is_some_and(|known| known.subscribers > 0);
        let Some(history) =
            known.map_or_else(|| state.groups.history(channel.group, history), |known| Some(known.history))
        else {
            // No route of this server has it.
            return if step == Step::Missed { Arrival::AcceptedAfterLoss } else { Arrival::Accepted };
        };
        if state.message_bytes_max.is_some_and(|max| publication.data.len() > max) {
            state.lose(channel);
            return Arrival::Refused(Refused::TooLarge);
        }
        // With subscribers, messages older than the history are kept until the workers have fetched them.
        let age = match has_subscribers {
            true => age.min(history.age.saturating_sub(IN_FLIGHT_TIME)),
            false => age,
        };
        let age = if age.is_zero() { 0 } else { clock::ticks(age) };
        let mark = Some(Mark { origin, number, is_late });
        let new = New { publication, history, published_at: now.saturating_sub(age), mark };
        match state.add(channel, new, &self.0.limits) {
            Err(refused) => {
                state.lose(channel);
                Arrival::Refused(refused)
            }
            Ok(_) if step == Step::Missed => Arrival::AcceptedAfterLoss,
            Ok(_) => Arrival::Accepted,
        }
    }

    /// Records that a message of this process has come back from the bus long after it was published: other servers
    /// have it behind messages that this server has before it.
    pub fn note_late(&self) {
        let mut state = self.lock();
        state.unordered_id = state.last_id;
    }

    /// Another server has sent a message that this one cannot read: subscribers get a gap.
    pub fn lose_from(&self, origin: u64, number: u64) -> Arrival {
        let mut state = self.lock();
        if state.is_frozen {
            return Arrival::Refused(Refused::Moving);
        }
        match state.sequences.step(origin, number, clock::now().ticks) {
            Step::Repeated => return Arrival::Repeated,
            Step::Impossible => return Arrival::Impossible,
            Step::Next | Step::Missed => state.report_gap(),
        }
        Arrival::AcceptedAfterLoss
    }

    /// Records how many messages another server has sent. If some were lost, subscribers get a gap and it
    /// returns `true`. `None` while publishing is suspended.
    pub fn record_tip(&self, origin: u64, number: u64) -> Option<bool> {
        let mut state = self.lock();
        if state.is_frozen {
            return None;
        }
        let has_missed = state.sequences.tip(origin, number, clock::now().ticks);
        if has_missed {
            state.report_gap();
        }
        Some(has_missed)
    }

    /// Messages come from a history: the first ones may have gaps.
    pub fn expect_holes(&self) {
        self.lock().sequences.expect_holes();
    }

    /// All other running servers have been heard.
    pub fn complete_sequences(&self) {
        self.lock().sequences.complete();
    }

    /// Messages may have been lost: reports a gap to all subscribers, after publishing has resumed.
    pub fn report_loss(&self) {
        let mut state = self.lock();
        match state.is_frozen {
            true => state.owes_gap = true,
            false => state.report_gap(),
        }
    }

    /// The number of messages of this process sent to other servers.
    pub fn carried(&self) -> u64 {
        self.lock().carried
    }

    /// Goes on with the numbers of the process whose messages to other servers this one has taken over.
    pub fn restore_carried(&self, number: u64) {
        self.lock().carried = number;
    }

    /// Another process has used the next numbers of this one, and ended: leaves them out, so that other servers notice the loss.
    pub fn skip_carried(&self) {
        /// More than any process publishes during a hand-over.
        const SKIPPED: u64 = 1 << 20;
        self.lock().carried += SKIPPED;
    }

    /// The last numbers of the other servers and of this one, for the process that takes over these channels.
    pub fn sequences(&self) -> Vec<(u64, u64)> {
        let state = self.lock();
        let own = self.0.carry.get().map(|carry| (carry.origin(), state.carried));
        state.sequences.all().into_iter().chain(own).collect()
    }

    /// Restores these numbers from the process whose channels this one takes over.
    pub fn restore_sequences(&self, heard: Vec<(u64, u64)>) {
        self.lock().sequences.restore(heard, clock::now().ticks);
    }
}

impl HubState {
    /// Messages were lost in unknown channels: marks a gap in all logs. Latest values need none, as the next
    /// value replaces the last.
    pub(super) fn report_gap(&mut self) {
        self.last_id += 1;
        self.forgotten_id = self.last_id;
        for at in 0..self.channels.numbers_end() {
            self.lose_at(at as u32);
        }
    }

    /// The same for one channel, even if it does not exist yet.
    fn lose(&mut self, name: ChannelName<'_>) {
        self.last_id += 1;
        match self.find_at(name) {
            Some(at) => self.lose_at(at),
            None => self.forgotten_id = self.last_id,
        }
    }

    fn lose_at(&mut self, at: u32) {
        // Not each number has a channel.
        let channel = self.channels.find_mut(at).filter(|channel| channel.history.kind == Kind::Log);
        if let Some(channel) = channel {
            channel.add_hole(self.last_id);
            self.announce(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use flatout_lane::poll::Wake;

    use super::*;
    use crate::Limits;

    /// Records what is sent to other servers.
    #[derive(Clone, Default)]
    struct RecordingCarrier(Arc<Mutex<Vec<(u64, String, String)>>>);

    impl Carry for RecordingCarrier {
        fn origin(&self) -> u64 {
            9
        }

        fn carry(&self, number: u64, channel: ChannelName<'_>, publication: &Publication, _: &History) {
            let data = String::from_utf8_lossy(&publication.data).into_owned();
            self.0.lock().unwrap().push((number, channel.name.to_owned(), data));
        }

        fn sync(&self, _: Duration) {}

        fn misses_messages(&self) -> bool {
            false
        }

        fn has_unsent(&self) -> bool {
            false
        }
    }

    fn hub() -> (Hub, usize, RecordingCarrier) {
        let (hub, carried) = (Hub::new(Limits::default()), RecordingCarrier::default());
        hub.carry_by(Box::new(carried.clone()));
        let worker = hub.enroll(Arc::new(Wake::new().unwrap()));
        (hub, worker, carried)
    }

    fn incoming(from: (u64, u64), channel: &'static str, text: &'static str) -> Incoming<'static> {
        Incoming {
            origin: from.0,
            number: from.1,
            channel: ChannelName { group: "", name: channel },
            publication: text.into(),
            history: History::default(),
            age: Duration::ZERO,
            is_late: false,
        }
    }

    fn arrive(hub: &Hub, number: u64, text: &'static str) -> Arrival {
        hub.arrive(incoming((1, number), "a", text))
    }

    #[test]
    fn only_local_messages_are_sent_to_other_servers() {
        let (hub, worker, carried) = hub();
        let plan = Plan::default();
        let (joined, _) = hub.join(worker, &["a".to_owned()], &plan, None).unwrap();
        hub.publish("a", "here", &plan).unwrap();
        assert_eq!(arrive(&hub, 5, "there"), Arrival::Accepted);
        assert_eq!(arrive(&hub, 5, "there"), Arrival::Repeated);
        hub.publish("b", "here too", &plan).unwrap();
        assert_eq!(hub.publish("", "x", &plan), Err(Refused::Name));
        let expected = [(1, "a".to_owned(), "here".to_owned()), (2, "b".to_owned(), "here too".to_owned())];
        assert_eq!(*carried.0.lock().unwrap(), expected);
        assert_eq!(hub.listed(worker), joined);
        let fetched = hub.fetch(&joined, 0, u64::MAX, usize::MAX);
        let texts: Vec<&str> = fetched.messages.iter().map(|(_, message)| message.text()).collect();
        assert_eq!((texts, fetched.has_gap), (vec!["here", "there"], false));
        assert_eq!(
            hub.sequences().into_iter().collect::<std::collections::BTreeMap<_, _>>(),
            [(1, 5), (9, 2)].into()
        );
        for bad in ["", "a b"] {
            assert_eq!(hub.arrive(incoming((1, 6), bad, "x")), Arrival::Refused(Refused::Name));
        }
    }

    #[test]
    fn subscribers_get_a_gap_for_lost_messages() {
        let (hub, worker, _) = hub();
        let plan = Plan::default();
        let (joined, _) = hub.join(worker, &["a".to_owned()], &plan, None).unwrap();
        arrive(&hub, 1, "1");
        let seen = hub.fetch(&joined, 0, u64::MAX, usize::MAX).up_to;
        assert_eq!(arrive(&hub, 4, "4"), Arrival::AcceptedAfterLoss);
        let fetched = hub.fetch(&joined, seen, u64::MAX, usize::MAX);
        assert!(fetched.has_gap && fetched.messages.len() == 1);
        assert_eq!(hub.record_tip(1, 4), Some(false));
        let seen = fetched.up_to;
        assert!(!hub.fetch(&joined, seen, u64::MAX, usize::MAX).has_gap);
        hub.listed(worker);
        assert_eq!(hub.record_tip(1, 6), Some(true));
        assert_eq!(hub.listed(worker), joined, "also those who wait are told");
        let fetched = hub.fetch(&joined, seen, u64::MAX, usize::MAX);
        assert!(fetched.has_gap && fetched.messages.is_empty());
        assert!(!hub.fetch(&joined, fetched.up_to, u64::MAX, usize::MAX).has_gap);
        // Messages dropped later do not hide the gap.
        for number in 7..2000 {
            arrive(&hub, number, "x");
        }
        assert!(hub.fetch(&joined, seen, u64::MAX, usize::MAX).has_gap);
    }

    #[test]
    fn a_successor_ignores_messages_of_its_predecessor() {
        let (former, _, _) = hub();
        arrive(&former, 1, "1");
        former.publish("a", "own", &Plan::default()).unwrap();
        former.freeze();
        assert_eq!(arrive(&former, 2, "2"), Arrival::Refused(Refused::Moving));
        assert_eq!(former.record_tip(1, 2), None);

        let (next, _, _) = hub();
        next.freeze();
        next.restore_sequences(former.sequences());
        assert_eq!(arrive(&next, 1, "1"), Arrival::Refused(Refused::Moving));
        next.thaw();
        assert_eq!(arrive(&next, 1, "1"), Arrival::Repeated);
        assert_eq!(next.arrive(incoming((9, 1), "a", "own")), Arrival::Repeated);
        assert_eq!(arrive(&next, 2, "2"), Arrival::Accepted);
    }

    #[test]
    fn a_server_without_channels_stores_no_messages() {
        let hub = Hub::new(Limits::default());
        assert_eq!(arrive(&hub, 1, "x"), Arrival::Accepted);
        assert_eq!(hub.counted().channels, 0);
        hub.expect_workers();
        assert_eq!(arrive(&hub, 2, "x"), Arrival::Accepted);
        assert_eq!(hub.counted().channels, 1, "what is kept comes before the workers");
    }
}
