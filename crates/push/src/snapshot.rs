//! The channels of a process with their messages, for transfer to another process.

use std::sync::Arc;

use super::channels::{Channel, HOLES_MAX};
use super::history::ChannelHistory;
use super::hub::Hub;
use super::message::Message;
use super::plan::{ChannelName, History};

/// A snapshot of all channels.
pub struct Snapshot {
    /// The message counter.
    pub tip: Tip,
    /// The channels with their messages.
    pub channels: Vec<ChannelSnapshot>,
}

/// The state of the message counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tip {
    pub(crate) epoch: u64,
    pub(crate) last_id: u64,
    /// The last id of a dropped channel.
    pub(crate) forgotten_id: u64,
    /// Messages up to this id may have another order on other servers.
    pub(crate) unordered_id: u64,
    /// Messages were lost that subscribers were not told of.
    pub owes_gap: bool,
}

/// One channel.
pub struct ChannelSnapshot {
    /// The group of its route.
    pub group: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// What it retains.
    pub history: History,
    /// The id of its last message.
    pub last_id: u64,
    /// The id of the last message that it does not retain.
    pub lost_id: u64,
    /// Ids at which messages are missing within the history.
    pub holes: Vec<u64>,
    /// The messages it retains, oldest first.
    pub messages: Vec<Arc<Message>>,
}

impl ChannelSnapshot {
    /// What identifies it.
    pub(crate) fn full_name(&self) -> ChannelName<'_> {
        ChannelName { group: &self.group, name: &self.name }
    }
}

impl ChannelHistory {
    fn all(&self) -> Vec<Arc<Message>> {
        self.after(0, usize::MAX).0
    }
}

impl Hub {
    /// A snapshot of all channels. Messages are shared, so this is fast; publishing has to be suspended. `moves_outbox`: messages
    /// that the bus has not carried move too.
    pub fn snapshot(&self, moves_outbox: bool) -> Snapshot {
        let state = self.lock();
        let of = |channel: &Channel| ChannelSnapshot {
            group: channel.group.clone(),
            name: channel.name.clone(),
            history: channel.history,
            last_id: channel.last_id,
            lost_id: channel.lost_id,
            holes: channel.holes.clone(),
            messages: channel.stored.all(),
        };
        // If this process ends before the bus has carried its messages, other servers never get them.
        let carry = self.0.carry.get();
        let has_unsent = !moves_outbox && carry.is_some_and(|carry| carry.has_unsent());
        let owes_gap = state.owes_gap || carry.is_some_and(|carry| carry.misses_messages());
        let unordered_id = if has_unsent { state.last_id } else { state.unordered_id };
        let (last_id, forgotten_id) = (state.last_id, state.forgotten_id);
        Snapshot {
            tip: Tip { epoch: self.epoch(), last_id, forgotten_id, unordered_id, owes_gap },
            channels: state.channels.iter().filter(|channel| !channel.is_removed).map(of).collect(),
        }
    }

    /// Continues where another process has stopped. Call it on an unused hub; it is frozen, and drops no channel,
    /// until it is [thawed](Hub::thaw) and [finished](Hub::finish_handover).
    pub fn begin_at(&self, tip: Tip) {
        self.set_epoch(tip.epoch);
        let mut state = self.lock();
        (state.last_id, state.forgotten_id) = (tip.last_id, tip.forgotten_id);
        state.unordered_id = tip.unordered_id;
        // What this process has missed until now, the other one has received.
        state.owes_gap = tip.owes_gap;
        (state.is_frozen, state.awaits_subscribers) = (true, true);
    }

    /// Whether subscribers of another process are still expected.
    pub fn awaits_subscribers(&self) -> bool {
        self.lock().awaits_subscribers
    }

    /// Adds a channel of another process. Returns whether there is room and a route for it.
    pub fn restore(&self, channel: &ChannelSnapshot) -> bool {
        let limits = self.0.limits;
        let mut state = self.lock();
        let state = &mut *state;
        if !state.groups.has(&channel.group, channel.history.kind) {
            return false;
        }
        let Some(at) = state.channel(channel.full_name(), channel.history, &limits) else { return false };
        if let Some(place) = state.channels.existing_mut(at) {
            (place.last_id, place.lost_id) = (channel.last_id, channel.lost_id);
            place.holes = channel.holes.iter().copied().take(HOLES_MAX).collect();
        }
        true
    }

    /// Adds a message to the channel of this name. If there is no room for it, it is lost like an expired one.
    pub fn restore_message(&self, name: ChannelName<'_>, message: Message) {
        let bytes = message.bytes();
        let bytes_max = self.0.limits.history_bytes_max;
        let mut state = self.lock();
        let state = &mut *state;
        // There was no room for its channel.
        let Some(at) = state.find_at(name) else { return };
        let has_room = state.make_room(at, bytes, bytes_max).is_ok();
        let Some(channel) = state.channels.existing_mut(at) else { return };
        let id = message.id;
        let (history_bytes, lost_id) = (&mut state.history_bytes, &mut channel.lost_id);
        let is_log = matches!(channel.stored, ChannelHistory::Log(_));
        let dropped = |message: &Message| {
            *history_bytes = history_bytes.saturating_sub(message.bytes());
            if is_log {
                *lost_id = (*lost_id).max(message.id);
            }
        };
        match has_room && channel.stored.push(Arc::new(message), &channel.history, dropped).is_ok() {
            true => state.history_bytes += bytes,
            false => channel.lost_id = channel.lost_id.max(id),
        }
    }

    /// All moving subscribers have arrived: unused channels are dropped again.
    pub fn finish_handover(&self) {
        self.lock().awaits_subscribers = false;
    }

    /// The other process has published more and then ended: subscribers that ask for those messages are sent a gap.
    pub fn skip(&self) {
        /// More than any process publishes during a hand-over.
        const SKIPPED: u64 = 1 << 32;
        let mut state = self.lock();
        let last_id = state.last_id.saturating_add(SKIPPED);
        (state.last_id, state.forgotten_id) = (last_id, last_id);
        for channel in state.channels.iter_mut() {
            channel.add_hole(last_id);
            channel.last_id = last_id;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Kind, Limits, Plan};
    use crate::{Publication, Refused};
    use flatout_lane::poll::Wake;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    /// Creates another hub with the same contents.
    fn moved(hub: &Hub, limits: Limits) -> (Hub, usize) {
        let snapshot = hub.snapshot(false);
        let next = Hub::new(limits);
        let worker = next.enroll(Arc::new(Wake::new().unwrap()));
        next.begin_at(snapshot.tip);
        for channel in &snapshot.channels {
            next.restore(channel);
            for message in &channel.messages {
                let copy = Message::new(message.id, message.published_at, message.publication.clone());
                next.restore_message(channel.full_name(), copy);
            }
        }
        (next, worker)
    }

    #[test]
    fn another_hub_goes_on_with_the_same_ids() {
        let hub = Hub::new(Limits::default());
        let worker = hub.enroll(Arc::new(Wake::new().unwrap()));
        let plan = Plan::default();
        let latest = Plan {
            history: History { kind: Kind::Latest, count: 10, ..History::default() },
            ..Plan::default()
        };
        let (idle, _) = hub.join(worker, &names(&["idle"]), &plan, None).unwrap();
        hub.join(worker, &names(&["a"]), &plan, None).unwrap();
        let first = hub.publish("a", "1", &plan).unwrap();
        for (key, value) in [("x", "1"), ("y", "2"), ("x", "3")] {
            let publication = Publication { key: Some(key.into()), ..Publication::from(value) };
            hub.publish("q", publication, &latest).unwrap();
        }
        let gone = hub.join(worker, &names(&["gone"]), &plan, None).unwrap().0;
        hub.leave(worker, gone, None);
        hub.freeze();
        assert_eq!(hub.publish("a", "2", &plan), Err(Refused::Moving));

        let (next, worker) = moved(&hub, Limits::default());
        assert_eq!(next.publish("a", "2", &plan), Err(Refused::Moving));
        assert_eq!(next.totals().history_bytes, hub.totals().history_bytes);
        // New channels must not displace those that have moved.
        for n in 0..100 {
            let (joined, _) = next.join(worker, &[format!("other{n}")], &plan, None).unwrap();
            next.leave(worker, joined, None);
        }
        next.thaw();
        let second = next.publish("a", "2", &plan).unwrap();
        let (epoch, id) = first.split_once('-').unwrap();
        assert_eq!((id, second), ("2", format!("{epoch}-6")));
        let (mut joined, _) = next.join(worker, &names(&["a", "idle"]), &plan, None).unwrap();
        let (others, tip) = next.join(worker, &names(&["q"]), &latest, None).unwrap();
        joined.extend(others);
        let fetched = next.fetch(&joined, 0, u64::MAX, usize::MAX);
        let texts: Vec<&str> = fetched.messages.iter().map(|(_, message)| message.text()).collect();
        assert_eq!((texts, tip, fetched.has_gap), (vec!["1", "2", "3", "2"], 6, false));
        assert!(!idle.is_empty() && next.totals().channels > 3);
        next.finish_handover();
        for _ in 0..200 {
            next.publish("a", "x", &plan).unwrap();
        }
        assert_eq!(next.totals().channels, 3, "what nobody needs is forgotten in the end");
    }

    #[test]
    fn messages_above_the_limit_are_a_gap() {
        let hub = Hub::new(Limits::default());
        let worker = hub.enroll(Arc::new(Wake::new().unwrap()));
        let plan = Plan::default();
        hub.join(worker, &names(&["a"]), &plan, None).unwrap();
        for _ in 0..20 {
            hub.publish("a", "x", &plan).unwrap();
        }
        let limits = Limits { history_bytes_max: 8000, channels_max: 1 };
        let (next, worker) = moved(&hub, limits);
        assert!(next.totals().history_bytes <= 8000);
        let (joined, _) = next.join(worker, &names(&["a"]), &plan, None).unwrap();
        assert!(next.fetch(&joined, 0, u64::MAX, usize::MAX).has_gap);
    }

    #[test]
    fn messages_of_another_process_are_a_gap() {
        let hub = Hub::new(Limits::default());
        let worker = hub.enroll(Arc::new(Wake::new().unwrap()));
        let plan = Plan::default();
        let (joined, _) = hub.join(worker, &names(&["a"]), &plan, None).unwrap();
        hub.publish("a", "1", &plan).unwrap();
        hub.freeze();
        hub.skip();
        hub.thaw();
        hub.publish("a", "2", &plan).unwrap();
        // Some clients have ids that only the other process has issued.
        for seen in [2, 3, 1000] {
            let fetched = hub.fetch(&joined, seen, u64::MAX, usize::MAX);
            assert!(fetched.has_gap && fetched.messages.len() == 1, "{seen}");
        }
    }
}
