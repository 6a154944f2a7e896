//! What the lock of a hub guards: channels by name and number, their messages, and the workers.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

use flatout_engine::bug;
use flatout_lane::clock::{self, Ticks};
use flatout_lane::poll::Wake;

use super::channels::{Channel, ChannelTable};
use super::groups::Groups;
use super::handover::Task;
use super::history::ChannelHistory;
use super::hub::Refused;
use super::message::{Mark, Message, Publication};
use super::plan::{self, ChannelName, Limits};
use super::waiting_publishes::WaitingPublish;
use crate::sequence::SequenceTracker;

/// Channels that each publish examines, to drop unused ones.
const LOOKED_AT: usize = 2;

#[derive(Default)]
pub(super) struct HubState {
    pub(super) last_id: u64,
    /// The channels of each group, by name.
    pub(super) names: HashMap<Arc<str>, HashMap<Arc<str>, u32>>,
    pub(super) channels: ChannelTable,
    /// The groups of all routes.
    pub(super) groups: Groups,
    /// The last id of any dropped channel.
    pub(super) forgotten_id: u64,
    pub(super) history_bytes: usize,
    pub(super) workers: Vec<Side>,
    pub(super) addresses: HashMap<IpAddr, u32>,
    /// The next channel to examine.
    pub(super) look_at: usize,
    /// Publishing is suspended: the messages move to or from another process.
    pub(super) is_frozen: bool,
    /// Channels of another process move here next, and publishing is suspended until then.
    pub(super) awaits_channels: bool,
    /// Messages were lost while publishing was suspended.
    pub(super) owes_gap: bool,
    /// Subscribers are expected from another process: no channel is dropped for lack of subscribers.
    pub(super) awaits_subscribers: bool,
    /// Publishes that wait while `is_frozen`, in order of arrival.
    pub(super) waiting_publishes: VecDeque<WaitingPublish>,
    /// Workers with channels will start.
    pub(super) expects_workers: bool,
    /// The limit for messages of other servers, if it is known.
    pub(super) message_bytes_max: Option<usize>,
    /// The number of messages of this process sent to other servers.
    pub(super) carried: u64,
    /// The messages received from other servers.
    pub(super) sequences: SequenceTracker,
    /// Messages up to this id may have another order on other servers, which have received one of them late.
    pub(super) unordered_id: u64,
}

/// A worker from the publishers' side; `None` after it has ended.
pub(super) struct Side {
    pub(super) wake: Option<Arc<Wake>>,
    pub(super) listed: Vec<u32>,
    pub(super) tasks: Vec<Task>,
}

/// A message to add.
pub(super) struct New {
    pub(super) publication: Publication,
    pub(super) history: plan::History,
    pub(super) published_at: Ticks,
    pub(super) mark: Option<Mark>,
}

impl HubState {
    /// Adds a message to a channel, which is created with this history if needed, and lists it for the
    /// workers.
    pub(super) fn add(
        &mut self,
        channel: ChannelName<'_>,
        new: New,
        limits: &Limits,
    ) -> Result<Arc<Message>, Refused> {
        let New { publication, history, published_at, mark } = new;
        self.forget_some();
        let bytes = publication.bytes();
        let at = self.channel(channel, history, limits).ok_or(Refused::Full)?;
        let is_other_kind = |channel: &Channel| channel.history.kind != history.kind;
        if self.channels.existing(at).is_some_and(is_other_kind) {
            return Err(Refused::Kind);
        }
        self.make_room(at, bytes, limits.history_bytes_max)?;
        let id = self.last_id + 1;
        let message = Arc::new(Message::new(id, published_at, publication).marked(mark));
        let channel = self.channels.existing_mut(at).ok_or(Refused::Full)?;
        channel.history = history;
        let (history_bytes, lost_id) = (&mut self.history_bytes, &mut channel.lost_id);
        let is_log = history.kind == plan::Kind::Log;
        let dropped = |message: &Message| {
            *history_bytes = history_bytes.saturating_sub(message.bytes());
            if is_log {
                *lost_id = (*lost_id).max(message.id);
            }
        };
        channel.stored.push(message.clone(), &channel.history, dropped).map_err(|_| Refused::Full)?;
        self.history_bytes += bytes;
        self.last_id = id;
        self.announce(at);
        Ok(message)
    }

    /// Lists a channel with news up to the last id for its workers.
    pub(super) fn announce(&mut self, at: u32) {
        let Some(channel) = self.channels.existing_mut(at) else { return };
        channel.last_id = self.last_id;
        for (entry, worker) in channel.worker_entries.iter_mut().zip(&mut self.workers) {
            if entry.subscribers > 0 && !std::mem::replace(&mut entry.is_listed, true) {
                worker.list(at);
            }
        }
    }

    pub(super) fn find_at(&self, ChannelName { group, name }: ChannelName<'_>) -> Option<u32> {
        self.names.get(group)?.get(name).copied()
    }

    pub(super) fn find(&self, name: ChannelName<'_>) -> Option<&Channel> {
        self.channels.existing(self.find_at(name)?)
    }

    /// The channel of this name, created if needed; `None` if there are too many.
    pub(super) fn channel(
        &mut self,
        name: ChannelName<'_>,
        history: plan::History,
        limits: &Limits,
    ) -> Option<u32> {
        if let Some(at) = self.find_at(name) {
            return Some(at);
        }
        if self.channels.count() >= limits.channels_max {
            return None;
        }
        // All channels of a group share its name.
        let group = self.names.get_key_value(name.group).map(|(group, _)| group.clone());
        let group = group.unwrap_or_else(|| name.group.into());
        let name: Arc<str> = name.name.into();
        let channel = Channel::new(group.clone(), name.clone(), history, self.forgotten_id);
        let at = self.channels.insert(channel);
        self.names.entry(group).or_default().insert(name, at);
        Some(at)
    }

    pub(super) fn leave(&mut self, worker: usize, at: u32) {
        let Some(channel) = self.channels.existing_mut(at) else { return };
        channel.leave(worker);
        self.forget_if_unused(at);
    }

    /// Drops old messages of this channel until there is room for this many bytes.
    pub(super) fn make_room(&mut self, at: u32, bytes: usize, bytes_max: usize) -> Result<(), Refused> {
        let channel = self.channels.existing_mut(at).ok_or(Refused::Full)?;
        while self.history_bytes + bytes > bytes_max {
            let (history_bytes, lost_id) = (&mut self.history_bytes, &mut channel.lost_id);
            let has_dropped = channel.stored.drop_first(|message| {
                *history_bytes = history_bytes.saturating_sub(message.bytes());
                *lost_id = (*lost_id).max(message.id);
            });
            if !has_dropped {
                return Err(Refused::Full);
            }
        }
        Ok(())
    }

    /// Examines the next channels, to drop old messages and unused channels.
    pub(super) fn forget_some(&mut self) {
        let now = clock::now().ticks;
        let numbers_end = self.channels.numbers_end();
        for _ in 0..LOOKED_AT.min(numbers_end) {
            self.look_at = (self.look_at + 1) % numbers_end;
            let at = self.look_at as u32;
            if let Some(channel) = self.channels.find_mut(at) {
                let (history_bytes, lost_id) = (&mut self.history_bytes, &mut channel.lost_id);
                channel.stored.expire(now, &channel.history, |message| {
                    *history_bytes = history_bytes.saturating_sub(message.bytes());
                    *lost_id = (*lost_id).max(message.id);
                });
                self.forget_if_unused(at);
            }
        }
    }

    /// A worker, by the number that [`Hub::enroll`] has returned.
    pub(super) fn side(&mut self, worker: usize) -> Option<&mut Side> {
        let side = self.workers.get_mut(worker);
        if side.is_none() {
            bug!("worker {worker} was never enrolled");
        }
        side
    }

    pub(super) fn post(&mut self, worker: usize, task: Task) {
        let Some(side) = self.side(worker) else { return };
        // It has ended: the task is dropped, which closes the connections in it.
        let Some(wake) = &side.wake else { return };
        side.tasks.push(task);
        wake.wake();
    }

    /// Drops the messages of a channel that no route has any more, and frees its name. It remains until its subscribers have left.
    pub(super) fn remove(&mut self, at: u32) {
        let Some(channel) = self.channels.existing_mut(at) else { return };
        let bytes: usize = channel.stored.newest().map(|message| message.bytes()).sum();
        self.history_bytes = self.history_bytes.saturating_sub(bytes);
        channel.stored = ChannelHistory::new(channel.history.kind);
        if !std::mem::replace(&mut channel.is_removed, true) {
            let (group, name) = (channel.group.clone(), channel.name.clone());
            self.free_name(&group, &name);
        }
        self.forget_if_unused(at);
    }

    pub(super) fn free_name(&mut self, group: &str, name: &str) {
        let names = self.names.get_mut(group);
        match names.and_then(|names| names.remove(name).map(|_| names.is_empty())) {
            Some(true) => drop(self.names.remove(group)),
            Some(false) => {}
            None => bug!("the channel `{name}` of the group `{group}` has no entry under its name"),
        }
    }

    pub(super) fn forget_if_unused(&mut self, at: u32) {
        let awaits_subscribers = self.awaits_subscribers;
        let is_unused = |channel: &mut Channel| {
            channel.subscribers == 0
                && channel.stored.is_empty()
                && (channel.is_removed || !awaits_subscribers)
        };
        if let Some(channel) = self.channels.remove_if(at, is_unused) {
            self.forgotten_id = self.forgotten_id.max(channel.last_id);
            if !channel.is_removed {
                self.free_name(&channel.group, &channel.name);
            }
        }
    }
}

impl Side {
    pub(super) fn list(&mut self, at: u32) {
        self.listed.push(at);
        // Listed but not fetched yet: it has been woken.
        if self.listed.len() == 1
            && let Some(wake) = &self.wake
        {
            wake.wake();
        }
    }
}
