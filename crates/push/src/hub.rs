//! All channels of a process: publishers publish here, and workers fetch messages for their subscribers from here.
//!
//! ```text
//! publish ──> id, history ──> the channel is listed for each worker that has subscribers of it ── wake ──> WorkerChannels
//! WorkerChannels ── fetch: messages newer than the last one sent ──> its subscribers
//! ```
//!
//! There is no queue between them. A channel is listed once, however many messages are published meanwhile,
//! and a late worker fetches all of them at once from the history. Ids count all messages of the process, so
//! a single id is the position of a connection with several channels.

use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use flatout_engine::bug;
use flatout_lane::clock;
use flatout_lane::poll::Wake;

use super::carrier::Carry;
pub use super::fetched::Fetched;
use super::figures::Figures;
use super::handover::Task;
use super::hub_state::{HubState, New, Side};
use super::message::{Mark, Message, Publication};
use super::plan::{self, ChannelName, Limits, NAME_BYTES_MAX, is_name};

/// Maximum number of messages fetched from one channel at a time.
const FETCHED_MAX: usize = 256;

/// The position before the first message. Position 0 means none: such a subscriber gets all stored messages, and no gap.
const FIRST_POSITION: u64 = 1;

/// The channels of a process. Clones share them.
#[derive(Clone)]
pub struct Hub(pub(super) Arc<Shared>);

pub(super) struct Shared {
    /// Changes only before the first client is served.
    epoch: AtomicU64,
    pub(super) limits: Limits,
    state: Mutex<HubState>,
    /// A publish started waiting, or a worker was added.
    pub(super) news: Condvar,
    pub(super) figures: Figures,
    /// A reload has removed channels.
    pub(super) has_removed: AtomicBool,
    /// Sends messages to other servers, if there is a bus.
    pub(super) carry: OnceLock<Box<dyn Carry>>,
    /// How often the workers of a simulation have had nothing to do.
    #[cfg(feature = "simulation")]
    pub(super) rests: AtomicU64,
}

/// Why a message was not published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// Invalid channel name.
    Name,
    /// The data, the event or the key is not UTF-8, or a name contains a line end.
    Text,
    /// The message exceeds the limit.
    TooLarge,
    /// The limit of channels, keys or bytes of messages is reached.
    Full,
    /// The channel of this name is of another kind than the route.
    Kind,
    /// The route was removed.
    Removed,
    /// Another process is taking the place of this one.
    Moving,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refused::Name => "a channel's name has 1 to 128 letters, digits or any of -._~@!$+=/|",
            Refused::Text => "a message is UTF-8, and its event and key are one line each",
            Refused::TooLarge => "the message is larger than the limit",
            Refused::Full => "the limit of channels, keys or messages is reached",
            Refused::Kind => {
                "the channel is of another kind: one route has push-kind log, the other push-kind latest"
            }
            Refused::Removed => "the route of these channels was removed",
            Refused::Moving => "the server is being replaced by a new process; try again",
        })
    }
}

impl std::error::Error for Refused {}

/// Why a subscription was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotJoined {
    /// The limit of channels, or of subscribers of this one, is reached.
    Full,
    /// The limit of subscribers from this address is reached.
    Address,
    /// The channel is of another kind than the route.
    Kind,
    /// The route was removed.
    Removed,
}

impl Hub {
    /// Creates a hub with these limits.
    pub fn new(limits: Limits) -> Hub {
        Hub(Arc::new(Shared {
            epoch: AtomicU64::new(clock::unix_nanoseconds() / 1_000_000),
            limits,
            state: Mutex::new(HubState { last_id: FIRST_POSITION, ..HubState::default() }),
            news: Condvar::new(),
            figures: Figures::default(),
            has_removed: AtomicBool::default(),
            carry: OnceLock::new(),
            #[cfg(feature = "simulation")]
            rests: AtomicU64::new(0),
        }))
    }

    /// The prefix of message ids.
    #[inline]
    pub(super) fn epoch(&self) -> u64 {
        self.0.epoch.load(Ordering::Relaxed)
    }

    pub(super) fn set_epoch(&self, epoch: u64) {
        self.0.epoch.store(epoch, Ordering::Relaxed);
    }

    /// Publishes a message to a channel, which is created with this history if needed. Returns the message's id.
    ///
    /// # Errors
    /// See [`Refused`]. Nothing was published.
    pub fn publish(
        &self,
        channel: &str,
        publication: impl Into<Publication>,
        plan: &plan::Plan,
    ) -> Result<String, Refused> {
        let publication = checked(channel, publication.into(), plan)?;
        let mut state = self.lock();
        if state.is_frozen {
            return Err(Refused::Moving);
        }
        // Other servers may publish with the same plan.
        state.message_bytes_max = state.message_bytes_max.map(|max| max.max(plan.message_bytes_max));
        if !state.groups.has(&plan.group, plan.history.kind) {
            return Err(Refused::Removed);
        }
        let channel = ChannelName { group: &plan.group, name: channel };
        let carry = self.0.carry.get();
        let number = state.carried + 1;
        let mark = carry.map(|carry| Mark { origin: carry.origin(), number, is_late: false });
        let new = New { publication, history: plan.history, published_at: clock::now().ticks, mark };
        let message = state.add(channel, new, &self.0.limits)?;
        // Under the lock, in the order of the channels: other servers deliver in this order too.
        if let Some(carry) = carry {
            state.carried = number;
            carry.carry(number, channel, &message.publication, &plan.history);
        }
        drop(state);
        self.0.figures.published.add(1);
        Ok(message.name(self.epoch()).to_string())
    }

    /// The number of subscribers of a channel of this group.
    pub fn subscribers(&self, group: &str, name: &str) -> u32 {
        self.lock().find(ChannelName { group, name }).map_or(0, |channel| channel.subscribers)
    }

    /// Registers a worker, which is woken by `wake`. Returns its number.
    pub fn enroll(&self, wake: Arc<Wake>) -> usize {
        let mut state = self.lock();
        state.workers.push(Side { wake: Some(wake), listed: Vec::new(), tasks: Vec::new() });
        self.0.news.notify_all();
        state.workers.len() - 1
    }

    /// Gives a worker a task. A worker that has ended drops it.
    pub(super) fn post(&self, worker: usize, task: Task) {
        self.lock().post(worker, task);
    }

    /// The tasks of a worker.
    pub(super) fn tasks(&self, worker: usize) -> Vec<Task> {
        let mut state = self.lock();
        state.side(worker).map(|side| std::mem::take(&mut side.tasks)).unwrap_or_default()
    }

    /// Names of channels of a subscriber.
    pub(super) fn names(&self, channels: impl Iterator<Item = u32>) -> Vec<Arc<str>> {
        let state = self.lock();
        let name = |at: u32| Some(state.channels.existing(at)?.name.clone());
        channels.filter_map(name).collect()
    }

    /// A worker has ended, and its subscribers have left.
    pub(super) fn remove_worker(&self, worker: usize) {
        // One that could not be enrolled has no number.
        if let Some(worker) = self.lock().workers.get_mut(worker) {
            worker.wake = None;
            worker.listed = Vec::new();
            worker.tasks = Vec::new();
        }
    }

    /// Adds a subscriber of these channels on this worker. Returns the channels, and the id of the last message so
    /// far.
    pub(super) fn join(
        &self,
        worker: usize,
        names: &[String],
        plan: &plan::Plan,
        address: Option<IpAddr>,
    ) -> Result<(Vec<u32>, u64), NotJoined> {
        let mut state = self.lock();
        let state = &mut *state;
        state.forget_some();
        if !state.groups.has(&plan.group, plan.history.kind) {
            return Err(NotJoined::Removed);
        }
        if let (Some(address), Some(max)) = (address, plan.per_address_max)
            && state.addresses.get(&address).is_some_and(|count| *count >= max)
        {
            return Err(NotJoined::Address);
        }
        let mut joined = Vec::with_capacity(names.len());
        for name in names {
            let found = state.channel(ChannelName { group: &plan.group, name }, plan.history, &self.0.limits);
            let channel = found.and_then(|at| Some((at, state.channels.existing_mut(at)?)));
            match channel {
                Some((_, channel)) if channel.history.kind != plan.history.kind => {
                    joined.iter().for_each(|at| state.leave(worker, *at));
                    return Err(NotJoined::Kind);
                }
                Some((at, channel)) if plan.subscribers_max.is_none_or(|max| channel.subscribers < max) => {
                    channel.join(worker);
                    joined.push(at);
                }
                _ => {
                    joined.iter().for_each(|at| state.leave(worker, *at));
                    return Err(NotJoined::Full);
                }
            }
        }
        if let (Some(address), Some(_)) = (address, plan.per_address_max) {
            *state.addresses.entry(address).or_default() += 1;
        }
        Ok((joined, state.last_id))
    }

    /// Removes a subscriber.
    pub(super) fn leave(
        &self,
        worker: usize,
        channels: impl IntoIterator<Item = u32>,
        address: Option<IpAddr>,
    ) {
        let mut state = self.lock();
        channels.into_iter().for_each(|at| state.leave(worker, at));
        let Some(address) = address else { return };
        match state.addresses.get_mut(&address) {
            Some(count) if *count > 1 => *count -= 1,
            Some(_) => drop(state.addresses.remove(&address)),
            None => bug!("a subscriber from {address} leaves that was not counted"),
        }
    }

    /// Channels with messages published since this worker last asked.
    pub(super) fn listed(&self, worker: usize) -> Vec<u32> {
        let mut state = self.lock();
        let state = &mut *state;
        let listed = state.side(worker).map(|side| std::mem::take(&mut side.listed)).unwrap_or_default();
        for at in &listed {
            // Since it was listed, the channel may have been dropped.
            let channel = state.channels.find_mut(*at);
            if let Some(place) = channel.and_then(|channel| channel.worker_entries.get_mut(worker)) {
                place.is_listed = false;
            }
        }
        listed
    }

    /// The messages of these channels after this id, up to `bytes_max` bytes or a single message.
    pub fn fetch(&self, channels: &[u32], after: u64, up_to: u64, bytes_max: usize) -> Fetched {
        let state = self.lock();
        let mut fetched = Fetched { up_to: up_to.min(state.last_id), ..Fetched::default() };
        let mut holes: Vec<u64> = Vec::new();
        for at in channels {
            // A worker looks once more at a channel whose last subscriber has left.
            let Some(channel) = state.channels.find(*at) else { continue };
            fetched.has_gap |= channel.lost_id > after;
            if channel.last_id <= after {
                continue;
            }
            holes.extend(channel.holes.iter().filter(|hole| (after + 1..=fetched.up_to).contains(*hole)));
            let (found, has_more) = channel.stored.after(after, FETCHED_MAX);
            // Later messages of this channel may precede those of others.
            if let (true, Some(last)) = (has_more, found.last()) {
                fetched.up_to = fetched.up_to.min(last.id);
                fetched.has_more = true;
            }
            fetched.messages.extend(found.into_iter().map(|message| (channel.name.clone(), message)));
        }
        drop(state);
        fetched.end_at_hole(holes);
        fetched.bound(bytes_max);
        fetched
    }

    /// The latest values of these keys, in this order.
    pub(super) fn latest(&self, channel: ChannelName<'_>, keys: &[String]) -> Vec<Option<Arc<Message>>> {
        let state = self.lock();
        let channel = state.find(channel);
        keys.iter().map(|key| channel.and_then(|channel| channel.stored.latest(key).cloned())).collect()
    }

    /// Sums over all channels.
    pub(super) fn totals(&self) -> Totals {
        let state = self.lock();
        Totals { channels: state.channels.count() as u64, history_bytes: state.history_bytes as u64 }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, HubState> {
        // A panic while it is locked would be a bug; at worst, counts are off by one.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What [`Hub::totals`] returns.
pub(super) struct Totals {
    pub(super) channels: u64,
    pub(super) history_bytes: u64,
}

/// # Errors
/// Why this cannot be a message.
pub(super) fn checked(
    channel: &str,
    publication: Publication,
    plan: &plan::Plan,
) -> Result<Publication, Refused> {
    if !is_name(channel) {
        return Err(Refused::Name);
    }
    if publication.data.len() > plan.message_bytes_max {
        return Err(Refused::TooLarge);
    }
    let is_line = |text: &Option<Box<str>>| {
        text.as_ref().is_none_or(|text| text.len() <= NAME_BYTES_MAX && !text.contains(['\n', '\r', '\0']))
    };
    let is_text = std::str::from_utf8(&publication.data).is_ok();
    match is_text && is_line(&publication.event) && is_line(&publication.key) {
        true => Ok(publication),
        false => Err(Refused::Text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channels::HOLES_MAX;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn hub(limits: Limits) -> (Hub, usize, plan::Plan) {
        let hub = Hub::new(limits);
        let worker = hub.enroll(Arc::new(Wake::new().unwrap()));
        (hub, worker, plan::Plan::default())
    }

    fn ids(fetched: &Fetched) -> Vec<u64> {
        fetched.messages.iter().map(|(_, message)| message.id).collect()
    }

    #[test]
    fn several_channels_are_one_order() {
        let (hub, worker, plan) = hub(Limits::default());
        let (joined, at) = hub.join(worker, &names(&["a", "b"]), &plan, None).unwrap();
        assert_eq!(at, FIRST_POSITION);
        for channel in ["a", "b", "c", "a", "b"] {
            hub.publish(channel, "x", &plan).unwrap();
        }
        assert_eq!(hub.listed(worker), joined);
        assert!(hub.listed(worker).is_empty());
        let fetched = hub.fetch(&joined, 0, u64::MAX, 1000);
        assert_eq!((ids(&fetched), fetched.up_to, fetched.has_more), (vec![2, 3, 5, 6], 6, false));
        let fetched = hub.fetch(&joined, 2, u64::MAX, 2);
        assert_eq!((ids(&fetched), fetched.up_to, fetched.has_more), (vec![3, 5], 5, true));
        let fetched = hub.fetch(&joined, 0, 3, 1000);
        assert_eq!((ids(&fetched), fetched.up_to), (vec![2, 3], 3));
    }

    #[test]
    fn a_long_channel_does_not_overtake_another() {
        let (hub, worker, plan) = hub(Limits::default());
        let (joined, _) = hub.join(worker, &names(&["a", "b"]), &plan, None).unwrap();
        for _ in 0..FETCHED_MAX + 10 {
            hub.publish("a", "x", &plan).unwrap();
        }
        hub.publish("b", "x", &plan).unwrap();
        let fetched = hub.fetch(&joined, 0, u64::MAX, usize::MAX);
        assert_eq!(
            (fetched.messages.len(), fetched.up_to),
            (FETCHED_MAX, FIRST_POSITION + FETCHED_MAX as u64)
        );
        let fetched = hub.fetch(&joined, fetched.up_to, u64::MAX, usize::MAX);
        assert_eq!((fetched.messages.len(), fetched.has_more), (11, false));
    }

    #[test]
    fn unused_channels_are_dropped() {
        let (hub, worker, plan) = hub(Limits { channels_max: 10, ..Limits::default() });
        for n in 0..1000 {
            let (joined, _) = hub.join(worker, &[format!("made-up-{n}")], &plan, None).unwrap();
            hub.leave(worker, joined, None);
        }
        let all: Vec<_> =
            (0..10).map(|n| hub.join(worker, &[format!("c{n}")], &plan, None).unwrap()).collect();
        assert_eq!(hub.join(worker, &names(&["one-more"]), &plan, None), Err(NotJoined::Full));
        assert_eq!(hub.publish("one-more", "x", &plan), Err(Refused::Full));
        all.into_iter().for_each(|(joined, _)| hub.leave(worker, joined, None));
        assert_eq!(hub.totals().channels, 0);
    }

    #[test]
    fn a_million_made_up_channels_stay_within_the_limit() {
        const CHANNELS_MAX: usize = 1000;
        let (hub, worker, plan) = hub(Limits { channels_max: CHANNELS_MAX, ..Limits::default() });
        let mut refused = 0;
        for n in 0..1_000_000 {
            match hub.join(worker, &[format!("made-up-{n}")], &plan, None) {
                // Some leave, others stay.
                Ok((joined, _)) if n % 2 == 0 => hub.leave(worker, joined, None),
                Ok(_) => {}
                Err(why) => {
                    assert_eq!(why, NotJoined::Full);
                    refused += 1;
                }
            }
        }
        let state = hub.lock();
        assert!(refused > 900_000, "{refused}");
        assert_eq!((state.channels.count(), state.channels.numbers_end()), (CHANNELS_MAX, CHANNELS_MAX));
        let names = &state.names[""];
        assert!(names.capacity() <= 4 * CHANNELS_MAX && state.channels.vacant_count() <= CHANNELS_MAX);
    }

    #[test]
    fn lost_messages_are_a_gap() {
        let limits = Limits { history_bytes_max: 8000, ..Limits::default() };
        let (hub, worker, plan) = hub(limits);
        let (joined, _) = hub.join(worker, &names(&["a"]), &plan, None).unwrap();
        for _ in 0..20 {
            hub.publish("a", "x", &plan).unwrap();
        }
        assert!(hub.totals().history_bytes <= 8000);
        let fetched = hub.fetch(&joined, 0, u64::MAX, usize::MAX);
        assert!(fetched.has_gap && fetched.messages.len() < 20);
        assert!(!hub.fetch(&joined, ids(&fetched)[0] - 1, u64::MAX, usize::MAX).has_gap);
        // Messages of another channel cannot be dropped for this one.
        assert_eq!(hub.publish("b", vec![b'x'; 4000], &plan), Err(Refused::Full));
    }

    #[test]
    fn a_gap_is_where_messages_are_missing() {
        let (hub, worker, plan) = hub(Limits::default());
        let (joined, from) = hub.join(worker, &names(&["a", "b"]), &plan, None).unwrap();
        for _ in 0..3 {
            hub.publish("a", "x", &plan).unwrap();
            hub.publish("b", "x", &plan).unwrap();
            hub.report_loss();
            hub.report_loss();
        }
        let read = |channels: &[u32]| {
            let (mut seen, mut found) = (from, Vec::new());
            loop {
                let fetched = hub.fetch(channels, seen, u64::MAX, usize::MAX);
                if fetched.messages.is_empty() && !fetched.has_gap {
                    return found;
                }
                found.push((fetched.has_gap, fetched.messages.len()));
                seen = fetched.up_to;
            }
        };
        assert_eq!(read(&joined), [(false, 2), (true, 2), (true, 2), (true, 0)]);
        assert_eq!(read(&joined[..1]), [(false, 1), (true, 1), (true, 1), (true, 0)]);
        for _ in 0..2 * HOLES_MAX {
            hub.publish("a", "x", &plan).unwrap();
            hub.report_loss();
        }
        let found = read(&joined[..1]);
        assert_eq!(found.iter().filter(|(has_gap, _)| *has_gap).count(), HOLES_MAX);
        assert_eq!(found.iter().map(|(_, count)| count).sum::<usize>(), 3 + 2 * HOLES_MAX);
    }

    #[test]
    fn invalid_messages_are_refused() {
        let (hub, worker, mut plan) = hub(Limits::default());
        plan.message_bytes_max = 10;
        assert_eq!(hub.publish("", "x", &plan), Err(Refused::Name));
        assert_eq!(hub.publish("a,b", "x", &plan), Err(Refused::Name));
        assert_eq!(hub.publish(&"a".repeat(129), "x", &plan), Err(Refused::Name));
        assert_eq!(hub.publish("a", vec![0xff], &plan), Err(Refused::Text));
        assert_eq!(hub.publish("a", vec![b'x'; 11], &plan), Err(Refused::TooLarge));
        let event = Publication { event: Some("a\nid: 1".into()), ..Publication::from("x") };
        assert_eq!(hub.publish("a", event, &plan), Err(Refused::Text));
        plan.subscribers_max = Some(1);
        let address = Some(IpAddr::from([10, 0, 0, 1]));
        plan.per_address_max = Some(1);
        let (joined, _) = hub.join(worker, &names(&["a"]), &plan, address).unwrap();
        assert_eq!(hub.join(worker, &names(&["b"]), &plan, address), Err(NotJoined::Address));
        assert_eq!(hub.join(worker, &names(&["b", "a"]), &plan, None), Err(NotJoined::Full));
        assert_eq!((hub.subscribers("", "a"), hub.subscribers("", "b")), (1, 0));
        hub.leave(worker, joined, address);
        assert!(hub.join(worker, &names(&["b"]), &plan, address).is_ok());
    }
}
