//! The groups of channels that routes serve. A reload may add and remove some.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use super::handover::Task;
use super::hub::Hub;
use super::plan::{History, Kind};

/// The served groups, with the histories of their routes.
#[derive(Debug, Default)]
pub(super) struct Groups {
    /// `None`: all groups. A program's own channels have no routes that could be removed.
    served: Option<HashMap<String, Vec<History>>>,
}

/// A group's figures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupCount {
    /// Its name.
    pub group: String,
    /// Its channels with subscribers or messages.
    pub channels: u64,
    /// Their current subscribers. One with several channels counts once for each.
    pub subscribers: u64,
}

impl Groups {
    /// Whether a route serves channels of this kind in this group.
    pub(super) fn has(&self, group: &str, kind: Kind) -> bool {
        let Some(served) = &self.served else { return true };
        served.get(group).is_some_and(|histories| histories.iter().any(|history| history.kind == kind))
    }

    /// The history that all routes of this kind have for the channels of a group. `None`: that of a message's own route counts.
    fn history_of_all(&self, group: &str, kind: Kind) -> Option<History> {
        let mut histories = self.served.as_ref()?.get(group)?.iter().filter(|history| history.kind == kind);
        let first = *histories.next()?;
        histories.all(|history| *history == first).then_some(first)
    }

    /// The history of a new channel that another server has created with this one. `None` if no route serves the group.
    pub(super) fn history(&self, group: &str, there: History) -> Option<History> {
        let Some(served) = &self.served else { return Some(there) };
        let histories = served.get(group)?;
        let has_kind = histories.iter().any(|history| history.kind == there.kind);
        if has_kind { Some(there) } else { histories.first().copied() }
    }
}

impl Hub {
    /// Sets the groups that routes serve. Channels of others are removed with their messages, and their subscribers'
    /// connections end.
    pub fn serve_groups<'g>(&self, served: impl Iterator<Item = (&'g str, History)>) {
        let mut groups: HashMap<String, Vec<History>> = HashMap::new();
        for (group, history) in served {
            groups.entry(group.to_owned()).or_default().push(history);
        }
        let mut state = self.lock();
        let state = &mut *state;
        let is_known = |(group, histories): (&String, &Vec<History>)| {
            histories.iter().all(|history| state.groups.has(group, history.kind))
        };
        if !groups.iter().all(is_known) {
            // A group that comes back has lost its messages, and one that is new has missed those of other servers.
            state.forgotten_id = state.forgotten_id.max(state.last_id);
        }
        state.groups.served = Some(groups);
        let mut has_removed = false;
        for at in 0..state.channels.numbers_end() as u32 {
            // Not each number has a channel.
            let Some(channel) = state.channels.find_mut(at) else { continue };
            if !state.groups.has(&channel.group, channel.history.kind) {
                state.remove(at);
                has_removed = true;
            } else if let Some(history) = state.groups.history_of_all(&channel.group, channel.history.kind) {
                // The next message takes away what is too much now.
                channel.history = history;
            }
        }
        if has_removed {
            self.0.has_removed.store(true, Ordering::Relaxed);
            (0..state.workers.len()).for_each(|worker| state.post(worker, Task::EndRemoved));
        }
    }

    /// Whether any channel was ever removed.
    pub(super) fn has_removed(&self) -> bool {
        self.0.has_removed.load(Ordering::Relaxed)
    }

    /// Those of these channels that were removed.
    pub(super) fn removed(&self, channels: impl Iterator<Item = u32>) -> Vec<u32> {
        let state = self.lock();
        let is_removed = |at: &u32| {
            // Those of a channel that was dropped have left, or are about to.
            state.channels.find(*at).is_none_or(|channel| channel.is_removed)
        };
        channels.filter(is_removed).collect()
    }

    /// The figures of each group that has channels.
    pub fn group_counts(&self) -> Vec<GroupCount> {
        let mut counts: HashMap<&str, (u64, u64)> = HashMap::new();
        let state = self.lock();
        for channel in state.channels.iter().filter(|channel| !channel.is_removed) {
            let (channels, subscribers) = counts.entry(&channel.group).or_default();
            *channels += 1;
            *subscribers += u64::from(channel.subscribers);
        }
        let mut counts: Vec<GroupCount> = counts
            .into_iter()
            .map(|(group, (channels, subscribers))| GroupCount {
                group: group.to_owned(),
                channels,
                subscribers,
            })
            .collect();
        counts.sort_by(|one, other| one.group.cmp(&other.group));
        counts
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use flatout_lane::poll::Wake;

    use super::*;
    use crate::hub::{NotJoined, Refused};
    use crate::plan::{ChannelName, Limits, Plan};

    fn plan(group: &str, kind: Kind) -> Plan {
        Plan { group: group.to_owned(), history: History { kind, ..History::default() }, ..Plan::default() }
    }

    fn serve(hub: &Hub, plans: &[&Plan]) {
        hub.serve_groups(plans.iter().map(|plan| (plan.group.as_str(), plan.history)));
    }

    #[test]
    fn a_group_has_its_own_channels() {
        let hub = Hub::new(Limits::default());
        let worker = hub.enroll(Arc::new(Wake::new().unwrap()));
        let (one, other) = (plan("one", Kind::Log), plan("other", Kind::Latest));
        let name = ["a".to_owned()];
        let (here, _) = hub.join(worker, &name, &one, None).unwrap();
        let (there, _) = hub.join(worker, &name, &other, None).unwrap();
        hub.publish("a", "1", &one).unwrap();
        hub.publish("a", "2", &other).unwrap();
        for (joined, expected) in [(here, "1"), (there, "2")] {
            let fetched = hub.fetch(&joined, 0, u64::MAX, usize::MAX);
            let texts: Vec<&str> = fetched.messages.iter().map(|(_, message)| message.text()).collect();
            assert_eq!(texts, [expected]);
        }
        let counts = hub.group_counts();
        assert_eq!(counts.len(), 2);
        assert!(counts.iter().all(|count| (count.channels, count.subscribers) == (1, 1)), "{counts:?}");
    }

    #[test]
    fn channels_of_another_kind_are_refused() {
        let hub = Hub::new(Limits::default());
        let worker = hub.enroll(Arc::new(Wake::new().unwrap()));
        let (log, latest) = (plan("g", Kind::Log), plan("g", Kind::Latest));
        hub.publish("a", "1", &log).unwrap();
        assert_eq!(hub.publish("a", "2", &latest), Err(Refused::Kind));
        assert_eq!(hub.join(worker, &["a".to_owned()], &latest, None), Err(NotJoined::Kind));
        hub.publish("b", "1", &latest).unwrap();
        assert_eq!(hub.publish("b", "2", &log), Err(Refused::Kind));
        hub.publish("a", "3", &log).unwrap();
    }

    #[test]
    fn channels_get_the_history_of_a_reload() {
        let hub = Hub::new(Limits::default());
        let short = plan("g", Kind::Log);
        let long = Plan { history: History { count: 3, ..short.history }, ..short.clone() };
        let short = Plan { history: History { count: 1, ..short.history }, ..short };
        serve(&hub, &[&short]);
        hub.publish("a", "1", &short).unwrap();
        // Messages of other servers say nothing about it.
        let history = |hub: &Hub| hub.lock().find(ChannelName { group: "g", name: "a" }).unwrap().history;
        serve(&hub, &[&long]);
        assert_eq!(history(&hub), long.history);
        // Where routes differ, that of the next message counts.
        serve(&hub, &[&short, &long]);
        assert_eq!(history(&hub), long.history);
        hub.publish("a", "2", &short).unwrap();
        assert_eq!(history(&hub), short.history);
    }

    #[test]
    fn removed_groups_lose_their_channels_and_others_keep_them() {
        let hub = Hub::new(Limits::default());
        let worker = hub.enroll(Arc::new(Wake::new().unwrap()));
        let (one, other) = (plan("one", Kind::Log), plan("other", Kind::Log));
        serve(&hub, &[&one, &other]);
        let name = ["a".to_owned()];
        let (here, _) = hub.join(worker, &name, &one, None).unwrap();
        let (there, _) = hub.join(worker, &name, &other, None).unwrap();
        let bytes = |hub: &Hub| hub.counted().history_bytes;
        hub.publish("a", "1", &one).unwrap();
        let kept = bytes(&hub);
        hub.publish("a", "2", &other).unwrap();
        serve(&hub, &[&one]);
        assert_eq!(bytes(&hub), kept);
        assert_eq!(hub.removed([here[0], there[0]].into_iter()), there);
        assert_eq!(hub.publish("a", "3", &other), Err(Refused::Removed));
        assert_eq!(hub.join(worker, &name, &other, None), Err(NotJoined::Removed));
        // It comes back while its former subscribers have not left yet.
        serve(&hub, &[&one, &other]);
        let (again, tip) = hub.join(worker, &name, &other, None).unwrap();
        assert_ne!(again, there);
        assert!(hub.fetch(&again, tip - 1, u64::MAX, usize::MAX).has_gap, "its messages are lost");
        hub.leave(worker, there, None);
        assert_eq!(hub.subscribers("other", "a"), 1);
        // Another kind is another channel.
        serve(&hub, &[&one, &plan("other", Kind::Latest)]);
        assert_eq!(hub.removed(again.iter().copied()), again);
        hub.publish("a", "4", &plan("other", Kind::Latest)).unwrap();
        assert!(hub.removed(here.iter().copied()).is_empty());
    }
}
