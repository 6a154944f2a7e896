//! Messages to and from other servers. Each server gives them ids of its own, in the order in which they arrive there.

use std::time::Duration;

use flatout_lane::clock;

use super::history::IN_FLIGHT_TIME;
use super::hub::{Hub, New, Refused, State, checked};
use super::message::{Mark, Publication};
use super::plan::{History, Kind, Plan};
use crate::bus::Step;

/// Bytes of a message of another server. Its own limit has been applied there.
const MESSAGE_BYTES_MAX: usize = 8 << 20;

/// Bits of the ids' epoch that tell servers apart. The others are milliseconds.
const EPOCH_BITS: u32 = 20;

/// Takes what is published in this process to other servers.
pub(crate) trait Carry: Send + Sync {
    /// Called for each message, in their order, under the lock of the channels: it must not wait, nor use the hub. The messages of a
    /// process are numbered without holes.
    fn carry(&self, number: u64, channel: &str, publication: &Publication, history: &History);

    /// Waits until all that others had sent before has arrived, for no longer than this.
    fn sync(&self, time_max: Duration);
}

/// A message of another server.
pub(crate) struct Incoming<'i> {
    /// Which server, and the message's number there.
    pub(crate) origin: u64,
    pub(crate) number: u64,
    pub(crate) channel: &'i str,
    pub(crate) publication: Publication,
    pub(crate) history: History,
    /// How long ago it was published.
    pub(crate) age: Duration,
    /// It took its time to come here.
    pub(crate) is_late: bool,
}

/// What became of a message of another server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrived {
    /// It is delivered here.
    Taken,
    /// The same after others of that server have been lost: subscribers are told.
    TakenAfterLoss,
    /// It was there before.
    Repeated,
    /// Its number cannot be one of its server.
    Impossible,
    /// It cannot be delivered here.
    Refused(Refused),
}

impl Hub {
    /// Has this take what is published from now on to other servers, which know this process by that number. Only the first counts.
    pub(crate) fn carry_by(&self, origin: u64, carry: Box<dyn Carry>) {
        // Of two servers that have started at the same moment, neither takes the other's ids for its own.
        self.set_epoch((self.epoch() << EPOCH_BITS) | (origin & ((1 << EPOCH_BITS) - 1)));
        // There is one bus in a process.
        let _ = self.0.carry.set((origin, carry));
    }

    /// Waits until all that other servers had sent before has arrived, for no longer than this.
    pub(crate) fn sync(&self, time_max: Duration) {
        if let Some((_, carry)) = self.0.carry.get() {
            carry.sync(time_max);
        }
    }

    /// Workers with channels will come: what arrives before them is kept.
    pub fn expect_workers(&self) {
        self.lock().expects_workers = true;
    }

    /// Publishes a message of another server. With [`Refused::Moving`] it is to be tried again.
    pub(crate) fn arrive(&self, incoming: Incoming<'_>) -> Arrived {
        let Incoming { origin, number, channel, publication, history, age, is_late } = incoming;
        let plan = Plan { message_bytes_max: MESSAGE_BYTES_MAX, ..Plan::default() };
        let publication = match checked(channel, publication, &plan) {
            Ok(publication) => publication,
            Err(refused) => return Arrived::Refused(refused),
        };
        let mut state = self.lock();
        if state.is_frozen {
            return Arrived::Refused(Refused::Moving);
        }
        let now = clock::now().ticks;
        let step = state.heard.step(origin, number, now);
        match step {
            Step::Repeated => {
                // It was in time here and is late for others.
                if is_late {
                    state.unordered_id = state.last_id;
                }
                return Arrived::Repeated;
            }
            Step::Impossible => return Arrived::Impossible,
            Step::Missed => state.report_gap(),
            Step::Next => {}
        }
        // A server without channels has no use for messages.
        if state.workers.is_empty() && !state.expects_workers {
            return Arrived::Taken;
        }
        // What this server is set to counts for channels that it has.
        let known = state.find_at(channel).and_then(|at| state.channels.get(at as usize)?.as_ref());
        let history = known.map_or(history, |known| known.history);
        // What is older than the history keeps is there long enough for those who are subscribed now.
        let age = age.min(history.age.saturating_sub(IN_FLIGHT_TIME));
        let age = if age.is_zero() { 0 } else { clock::ticks(age) };
        let mark = Some(Mark { origin, number, is_late });
        let new = New { publication, history, published_at: now.saturating_sub(age), mark };
        match state.add(channel, new, &self.0.limits) {
            Err(refused) => {
                state.lose(channel);
                Arrived::Refused(refused)
            }
            Ok(_) if step == Step::Missed => Arrived::TakenAfterLoss,
            Ok(_) => Arrived::Taken,
        }
    }

    /// A message of this process has come back from the bus much later than it was published: on other servers it stands behind what they have
    /// received meanwhile.
    pub(crate) fn note_late(&self) {
        let mut state = self.lock();
        state.unordered_id = state.last_id;
    }

    /// Another server says how many messages it has sent. Returns whether some were lost, of which subscribers are told; `None` while
    /// nothing can be published here.
    pub(crate) fn hear_tip(&self, origin: u64, number: u64) -> Option<bool> {
        let mut state = self.lock();
        if state.is_frozen {
            return None;
        }
        let has_missed = state.heard.tip(origin, number, clock::now().ticks);
        if has_missed {
            state.report_gap();
        }
        Some(has_missed)
    }

    /// What arrives first was kept for a time, and may have holes.
    pub(crate) fn expect_holes(&self) {
        self.lock().heard.expect_holes();
    }

    /// All other servers that are there have been heard.
    pub(crate) fn complete_heard(&self) {
        self.lock().heard.complete();
    }

    /// Messages may have been lost: subscribers are told, once messages can be published here.
    pub(crate) fn report_loss(&self) {
        let mut state = self.lock();
        match state.is_frozen {
            true => state.owes_gap = true,
            false => state.report_gap(),
        }
    }

    /// How many messages of this process other servers were sent.
    pub(crate) fn carried(&self) -> u64 {
        self.lock().carried
    }

    /// What other servers and this one have sent so far, for the process that takes these channels over.
    pub(crate) fn heard(&self) -> Vec<(u64, u64)> {
        let state = self.lock();
        let own = self.0.carry.get().map(|(origin, _)| (*origin, state.carried));
        state.heard.all().into_iter().chain(own).collect()
    }

    /// What the process heard whose channels this one takes over, and what that has sent itself.
    pub(crate) fn restore_heard(&self, heard: Vec<(u64, u64)>) {
        self.lock().heard.restore(heard, clock::now().ticks);
    }
}

impl State {
    /// All channels lack messages that nobody here has: whoever is behind this moment is told so. Of latest values the next ones count.
    pub(super) fn report_gap(&mut self) {
        self.last_id += 1;
        self.forgotten_id = self.last_id;
        for at in 0..self.channels.len() {
            self.lose_at(at as u32);
        }
    }

    /// The same for one channel, also if it is made later.
    fn lose(&mut self, name: &str) {
        self.last_id += 1;
        match self.find_at(name) {
            Some(at) => self.lose_at(at),
            None => self.forgotten_id = self.last_id,
        }
    }

    fn lose_at(&mut self, at: u32) {
        let last_id = self.last_id;
        if let Some(channel) = self.channels.get_mut(at as usize).and_then(Option::as_mut)
            && channel.history.kind == Kind::Log
        {
            channel.lost_id = last_id;
            self.announce(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use flatout_lane::poll::Wake;

    use super::*;
    use crate::push::Limits;

    /// Keeps what is carried.
    #[derive(Clone, Default)]
    struct Carried(Arc<Mutex<Vec<(u64, String, String)>>>);

    impl Carry for Carried {
        fn carry(&self, number: u64, channel: &str, publication: &Publication, _: &History) {
            let data = String::from_utf8_lossy(&publication.data).into_owned();
            self.0.lock().unwrap().push((number, channel.to_owned(), data));
        }

        fn sync(&self, _: Duration) {}
    }

    fn hub() -> (Hub, usize, Carried) {
        let (hub, carried) = (Hub::new(Limits::default()), Carried::default());
        hub.carry_by(9, Box::new(carried.clone()));
        let worker = hub.enroll(Arc::new(Wake::new().unwrap()));
        (hub, worker, carried)
    }

    fn incoming(from: (u64, u64), channel: &'static str, text: &'static str) -> Incoming<'static> {
        Incoming {
            origin: from.0,
            number: from.1,
            channel,
            publication: text.into(),
            history: History::default(),
            age: Duration::ZERO,
            is_late: false,
        }
    }

    fn arrive(hub: &Hub, number: u64, text: &'static str) -> Arrived {
        hub.arrive(incoming((1, number), "a", text))
    }

    #[test]
    fn what_is_published_here_is_carried_and_what_arrives_is_not() {
        let (hub, worker, carried) = hub();
        let plan = Plan::default();
        let (joined, _) = hub.join(worker, &["a".to_owned()], &plan, None).unwrap();
        hub.publish("a", "here", &plan).unwrap();
        assert_eq!(arrive(&hub, 5, "there"), Arrived::Taken);
        assert_eq!(arrive(&hub, 5, "there"), Arrived::Repeated);
        hub.publish("b", "here too", &plan).unwrap();
        assert_eq!(hub.publish("", "x", &plan), Err(Refused::Name));
        let expected = [(1, "a".to_owned(), "here".to_owned()), (2, "b".to_owned(), "here too".to_owned())];
        assert_eq!(*carried.0.lock().unwrap(), expected);
        assert_eq!(hub.listed(worker), joined);
        let fetched = hub.fetch(&joined, 0, u64::MAX, usize::MAX);
        let texts: Vec<&str> = fetched.messages.iter().map(|(_, message)| message.text()).collect();
        assert_eq!((texts, fetched.has_gap), (vec!["here", "there"], false));
        assert_eq!(
            hub.heard().into_iter().collect::<std::collections::BTreeMap<_, _>>(),
            [(1, 5), (9, 2)].into()
        );
        for bad in ["", "a b"] {
            assert_eq!(hub.arrive(incoming((1, 6), bad, "x")), Arrived::Refused(Refused::Name));
        }
    }

    #[test]
    fn subscribers_are_told_of_what_did_not_arrive() {
        let (hub, worker, _) = hub();
        let plan = Plan::default();
        let (joined, _) = hub.join(worker, &["a".to_owned()], &plan, None).unwrap();
        arrive(&hub, 1, "1");
        let seen = hub.fetch(&joined, 0, u64::MAX, usize::MAX).up_to;
        assert_eq!(arrive(&hub, 4, "4"), Arrived::TakenAfterLoss);
        let fetched = hub.fetch(&joined, seen, u64::MAX, usize::MAX);
        assert!(fetched.has_gap && fetched.messages.len() == 1);
        assert_eq!(hub.hear_tip(1, 4), Some(false));
        let seen = fetched.up_to;
        assert!(!hub.fetch(&joined, seen, u64::MAX, usize::MAX).has_gap);
        hub.listed(worker);
        assert_eq!(hub.hear_tip(1, 6), Some(true));
        assert_eq!(hub.listed(worker), joined, "also those who wait are told");
        let fetched = hub.fetch(&joined, seen, u64::MAX, usize::MAX);
        assert!(fetched.has_gap && fetched.messages.is_empty());
        assert!(!hub.fetch(&joined, fetched.up_to, u64::MAX, usize::MAX).has_gap);
        // Messages that are dropped later do not take that back.
        for number in 7..2000 {
            arrive(&hub, number, "x");
        }
        assert!(hub.fetch(&joined, seen, u64::MAX, usize::MAX).has_gap);
    }

    #[test]
    fn a_successor_takes_nothing_twice() {
        let (former, _, _) = hub();
        arrive(&former, 1, "1");
        former.publish("a", "own", &Plan::default()).unwrap();
        former.freeze();
        assert_eq!(arrive(&former, 2, "2"), Arrived::Refused(Refused::Moving));
        assert_eq!(former.hear_tip(1, 2), None);

        let (next, _, _) = hub();
        next.freeze();
        next.restore_heard(former.heard());
        assert_eq!(arrive(&next, 1, "1"), Arrived::Refused(Refused::Moving));
        next.thaw();
        assert_eq!(arrive(&next, 1, "1"), Arrived::Repeated);
        assert_eq!(next.arrive(incoming((9, 1), "a", "own")), Arrived::Repeated);
        assert_eq!(arrive(&next, 2, "2"), Arrived::Taken);
    }

    #[test]
    fn a_server_without_channels_keeps_nothing() {
        let hub = Hub::new(Limits::default());
        assert_eq!(arrive(&hub, 1, "x"), Arrived::Taken);
        assert_eq!(hub.counted().channels, 0);
        hub.expect_workers();
        assert_eq!(arrive(&hub, 2, "x"), Arrived::Taken);
        assert_eq!(hub.counted().channels, 1, "what is kept comes before the workers");
    }
}
