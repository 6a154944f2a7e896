//! The channels of a hub, each with a number under which subscribers and workers know it.
//!
//! A channel with subscribers stays, so its number is valid for them. Other numbers may be stale: of a channel that
//! was listed for a worker and has been dropped since. The number may then be that of another channel.

use std::sync::Arc;

use flatout_engine::bug;

use super::history::ChannelHistory;
use super::plan;

/// Gaps within the history of a channel.
pub(super) const HOLES_MAX: usize = 16;

pub(super) struct Channel {
    pub(super) group: Arc<str>,
    pub(super) name: Arc<str>,
    pub(super) history: plan::History,
    pub(super) stored: ChannelHistory,
    pub(super) last_id: u64,
    /// The last id that was dropped from the history: what remains is newer.
    pub(super) lost_id: u64,
    /// Ids at which messages are missing within the history.
    pub(super) holes: Vec<u64>,
    pub(super) subscribers: u32,
    /// No route has it any more. Its name is free, and its subscribers leave.
    pub(super) is_removed: bool,
    /// One for each worker that ever had a subscriber.
    pub(super) worker_entries: Vec<WorkerEntry>,
}

/// A channel's state on one worker.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct WorkerEntry {
    pub(super) subscribers: u32,
    pub(super) is_listed: bool,
}

#[derive(Default)]
pub(super) struct ChannelTable {
    places: Vec<Option<Channel>>,
    vacant: Vec<u32>,
}

impl Channel {
    /// `lost_id`: it may have existed before, and have lost its messages up to this one.
    pub(super) fn new(group: Arc<str>, name: Arc<str>, history: plan::History, lost_id: u64) -> Channel {
        Channel {
            group,
            name,
            history,
            stored: ChannelHistory::new(history.kind),
            last_id: 0,
            lost_id,
            holes: Vec::new(),
            subscribers: 0,
            is_removed: false,
            worker_entries: Vec::new(),
        }
    }

    /// Counts a subscriber of this worker.
    pub(super) fn join(&mut self, worker: usize) {
        self.subscribers += 1;
        if self.worker_entries.len() <= worker {
            self.worker_entries.resize(worker + 1, WorkerEntry::default());
        }
        self.worker_entries[worker].subscribers += 1;
    }

    /// Uncounts a subscriber of this worker.
    pub(super) fn leave(&mut self, worker: usize) {
        match self.worker_entries.get_mut(worker) {
            Some(entry) if entry.subscribers > 0 && self.subscribers > 0 => {
                entry.subscribers -= 1;
                self.subscribers -= 1;
            }
            _ => bug!("a subscriber leaves the channel `{}` without having joined it", self.name),
        }
    }

    /// Records that messages are missing before this id.
    pub(super) fn add_hole(&mut self, id: u64) {
        let last = self.stored.newest().next().map_or(0, |message| message.id);
        let lost_id = self.lost_id;
        self.holes.retain(|hole| *hole > lost_id);
        // Two without a message in between are one, and the oldest of too many moves to the next.
        if self.holes.last().is_some_and(|hole| *hole > last) {
            self.holes.pop();
        } else if self.holes.len() >= HOLES_MAX {
            self.holes.remove(0);
        }
        self.holes.push(id);
    }
}

impl ChannelTable {
    /// How many channels there are.
    pub(super) fn count(&self) -> usize {
        self.places.len() - self.vacant.len()
    }

    /// All numbers are below this one.
    pub(super) fn numbers_end(&self) -> usize {
        self.places.len()
    }

    /// A channel, unless the number is stale.
    pub(super) fn find(&self, at: u32) -> Option<&Channel> {
        self.places.get(at as usize)?.as_ref()
    }

    /// The same, to change it.
    pub(super) fn find_mut(&mut self, at: u32) -> Option<&mut Channel> {
        self.places.get_mut(at as usize)?.as_mut()
    }

    /// The channel of a subscriber or of a name, which stays while they exist: `None` is reported as a bug.
    pub(super) fn existing(&self, at: u32) -> Option<&Channel> {
        let channel = self.find(at);
        if channel.is_none() {
            bug!("channel {at} was dropped while it was in use");
        }
        channel
    }

    /// The same, to change it.
    pub(super) fn existing_mut(&mut self, at: u32) -> Option<&mut Channel> {
        self.existing(at)?;
        self.find_mut(at)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Channel> {
        self.places.iter().flatten()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Channel> {
        self.places.iter_mut().flatten()
    }

    pub(super) fn insert(&mut self, channel: Channel) -> u32 {
        let at = self.vacant.pop().unwrap_or_else(|| {
            self.places.push(None);
            (self.places.len() - 1) as u32
        });
        // Numbers of vacant places come from this table.
        self.places[at as usize] = Some(channel);
        at
    }

    /// Removes a channel if it may go.
    pub(super) fn remove_if(
        &mut self,
        at: u32,
        may_go: impl FnOnce(&mut Channel) -> bool,
    ) -> Option<Channel> {
        let removed = self.places.get_mut(at as usize)?.take_if(may_go)?;
        self.vacant.push(at);
        Some(removed)
    }

    #[cfg(test)]
    pub(super) fn vacant_count(&self) -> usize {
        self.vacant.len()
    }
}
