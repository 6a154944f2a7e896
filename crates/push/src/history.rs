//! The history of one channel: the last messages of a log, or the latest value of each key.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use flatout_lane::clock::{self, Ticks};

use super::message::Message;
use super::plan;

/// The minimum number and age of messages kept of a log, so that workers can fetch them.
const IN_FLIGHT_COUNT: usize = 1024;
pub(super) const IN_FLIGHT_TIME: std::time::Duration = std::time::Duration::from_secs(2);

/// One channel's messages, by their ids.
#[derive(Debug)]
pub(super) enum ChannelHistory {
    Log(VecDeque<Arc<Message>>),
    Latest { by_id: BTreeMap<u64, Arc<Message>>, by_key: HashMap<Box<str>, u64> },
}

/// Why a message is not stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooManyKeys;

impl ChannelHistory {
    pub(super) fn new(kind: plan::Kind) -> ChannelHistory {
        match kind {
            plan::Kind::Log => ChannelHistory::Log(VecDeque::new()),
            plan::Kind::Latest => ChannelHistory::Latest { by_id: BTreeMap::new(), by_key: HashMap::new() },
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        match self {
            ChannelHistory::Log(messages) => messages.is_empty(),
            ChannelHistory::Latest { by_id, .. } => by_id.is_empty(),
        }
    }

    /// Adds a message, and drops the ones that it replaces. `dropped` is called with each.
    pub(super) fn push(
        &mut self,
        message: Arc<Message>,
        limits: &plan::History,
        mut dropped: impl FnMut(&Message),
    ) -> Result<(), TooManyKeys> {
        match self {
            ChannelHistory::Log(messages) => {
                let now = message.published_at;
                messages.push_back(message);
                while messages.len() > limits.count.max(IN_FLIGHT_COUNT) {
                    messages.pop_front().inspect(|message| dropped(message));
                }
                self.expire(now, limits, dropped);
                Ok(())
            }
            ChannelHistory::Latest { by_id, by_key } => {
                let key = message.publication.key.clone().unwrap_or_default();
                let is_full = by_key.len() >= limits.count;
                match by_key.get_mut(&key) {
                    Some(id) => {
                        by_id.remove(id).inspect(|message| dropped(message));
                        *id = message.id;
                    }
                    None if is_full => return Err(TooManyKeys),
                    None => {
                        by_key.insert(key, message.id);
                    }
                }
                by_id.insert(message.id, message);
                Ok(())
            }
        }
    }

    /// Drops messages of a log that are too old.
    pub(super) fn expire(&mut self, now: Ticks, limits: &plan::History, mut dropped: impl FnMut(&Message)) {
        let ChannelHistory::Log(messages) = self else { return };
        let age_max = clock::ticks(limits.age.max(IN_FLIGHT_TIME));
        while messages.front().is_some_and(|first| now.saturating_sub(first.published_at) > age_max) {
            messages.pop_front().inspect(|message| dropped(message));
        }
    }

    /// Drops the oldest message of a log; returns whether there was one.
    pub(super) fn drop_first(&mut self, mut dropped: impl FnMut(&Message)) -> bool {
        let ChannelHistory::Log(messages) = self else { return false };
        messages.pop_front().inspect(|message| dropped(message)).is_some()
    }

    /// At most `count_max` messages after this one, in order; and whether there are more.
    pub(super) fn after(&self, id: u64, count_max: usize) -> (Vec<Arc<Message>>, bool) {
        match self {
            ChannelHistory::Log(messages) => {
                let at = messages.partition_point(|message| message.id <= id);
                let found: Vec<_> = messages.iter().skip(at).take(count_max).cloned().collect();
                let has_more = at + found.len() < messages.len();
                (found, has_more)
            }
            ChannelHistory::Latest { by_id, .. } => {
                let mut behind = by_id.range(id.saturating_add(1)..).map(|(_, message)| message);
                let found: Vec<_> = behind.by_ref().take(count_max).cloned().collect();
                (found, behind.next().is_some())
            }
        }
    }

    /// The last message up to this id.
    pub(super) fn last_up_to(&self, id: u64) -> Option<&Arc<Message>> {
        match self {
            ChannelHistory::Log(messages) => {
                let count = messages.partition_point(|message| message.id <= id);
                messages.get(count.checked_sub(1)?)
            }
            ChannelHistory::Latest { by_id, .. } => {
                by_id.range(..=id).next_back().map(|(_, message)| message)
            }
        }
    }

    /// All of them, the newest first.
    pub(super) fn newest(&self) -> Box<dyn Iterator<Item = &Arc<Message>> + '_> {
        match self {
            ChannelHistory::Log(messages) => Box::new(messages.iter().rev()),
            ChannelHistory::Latest { by_id, .. } => Box::new(by_id.values().rev()),
        }
    }

    /// The latest value of a key.
    pub(super) fn latest(&self, key: &str) -> Option<&Arc<Message>> {
        match self {
            ChannelHistory::Log(_) => None,
            ChannelHistory::Latest { by_id, by_key } => by_id.get(by_key.get(key)?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Publication;
    use std::time::Duration;

    fn message(id: u64, at: Ticks, key: &str) -> Arc<Message> {
        let publication = Publication { key: Some(key.into()), ..Publication::from("x") };
        Arc::new(Message::new(id, at, publication))
    }

    fn ids(history: &ChannelHistory, after: u64, count_max: usize) -> (Vec<u64>, bool) {
        let (found, has_more) = history.after(after, count_max);
        (found.iter().map(|message| message.id).collect(), has_more)
    }

    #[test]
    fn a_log_keeps_its_last_messages_while_they_are_young() {
        let limits = plan::History { count: 3000, age: Duration::from_secs(10), ..Default::default() };
        let mut history = ChannelHistory::new(plan::Kind::Log);
        let mut dropped = 0;
        for id in 1..=5000 {
            history.push(message(id, 0, ""), &limits, |_| dropped += 1).unwrap();
        }
        assert_eq!(dropped, 2000);
        assert_eq!(ids(&history, 4998, 10), (vec![4999, 5000], false));
        assert_eq!(ids(&history, 0, 2), (vec![2001, 2002], true));
        let up_to = |id| history.last_up_to(id).map(|message| message.id);
        assert_eq!([2000, 2001, 4000, 9000].map(up_to), [None, Some(2001), Some(4000), Some(5000)]);
        history.expire(80, &limits, |_| dropped += 1);
        assert_eq!(dropped, 2000);
        history.expire(81, &limits, |_| dropped += 1);
        assert!(history.is_empty() && dropped == 5000);
    }

    #[test]
    fn of_latest_values_one_is_kept_for_each_key() {
        let limits = plan::History { kind: plan::Kind::Latest, count: 2, ..Default::default() };
        let mut history = ChannelHistory::new(limits.kind);
        for (id, key) in [(1, "a"), (2, "b"), (3, "a"), (4, "a")] {
            history.push(message(id, 0, key), &limits, |_| ()).unwrap();
        }
        assert_eq!(ids(&history, 0, 10), (vec![2, 4], false));
        assert_eq!(ids(&history, 2, 10), (vec![4], false));
        let up_to = |id| history.last_up_to(id).map(|message| message.id);
        assert_eq!([1, 3, 9].map(up_to), [None, Some(2), Some(4)]);
        assert_eq!(history.latest("a").unwrap().id, 4);
        assert_eq!(history.push(message(5, 0, "c"), &limits, |_| ()), Err(TooManyKeys));
    }
}
