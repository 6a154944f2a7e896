//! The position of a client that was connected to another server of the bus before.
//!
//! All servers have the messages of one publishing server in the same order, but messages of several
//! publishers may be interleaved differently, depending on when they arrive. A position from another server
//! is valid here only if there can be no such difference after it. Otherwise the client gets a gap.

use std::time::Duration;

use flatout_lane::clock;

use super::history::ChannelHistory;
use super::hub::Hub;
use super::message::Mark;

/// Maximum number of messages examined for one client, in all of its channels together: the hub is locked meanwhile.
const LOOKED_MAX: usize = 8192;

/// Messages of two publishers that are further apart have the same order on all servers, unless one of them
/// was delayed.
const ORDER_TIME: Duration = Duration::from_secs(10);

impl Hub {
    /// Converts a position from another server, given as the origin and number of its last message, into an
    /// id of this server. `None` if that is not possible without risking a loss.
    pub(super) fn position_of(&self, channels: &[u32], (origin, number): (u64, u64)) -> Option<u64> {
        let state = self.lock();
        let history = |at: &u32| Some(&state.channels.existing(*at)?.stored);
        let is_it = |mark: &Mark| mark.origin == origin && mark.number == number;
        let mut looks = LOOKED_MAX;
        let mut found = None;
        for message in channels.iter().filter_map(history).flat_map(ChannelHistory::newest) {
            looks = looks.checked_sub(1)?;
            if message.mark.as_ref().is_some_and(is_it) {
                found = Some(message);
                break;
            }
        }
        let found = found?;
        if found.id <= state.unordered_id || found.mark.is_none_or(|mark| mark.is_late) {
            return None;
        }
        let near = clock::ticks(ORDER_TIME);
        for history in channels.iter().filter_map(history) {
            let is_after = |at: u32| at.saturating_add(near) >= found.published_at;
            let around = history.newest().take_while(|it| it.id > found.id || is_after(it.published_at));
            for message in around {
                looks = looks.checked_sub(1)?;
                let mark = message.mark?;
                let is_near = message.published_at.abs_diff(found.published_at) <= near;
                if mark.origin != origin && (mark.is_late || is_near) {
                    return None;
                }
            }
        }
        Some(found.id)
    }

    /// The origin and number of the last message of these channels up to this id. `None` without a bus.
    pub(super) fn mark_at(&self, channels: &[u32], id: u64) -> Option<Mark> {
        self.0.carry.get()?;
        let state = self.lock();
        let history = |at: &u32| Some(&state.channels.existing(*at)?.stored);
        let last = channels.iter().filter_map(history).filter_map(|history| history.last_up_to(id));
        last.max_by_key(|message| message.id)?.mark
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use flatout_lane::poll::Wake;

    use super::*;
    use crate::carrier::{Carry, Incoming};
    use crate::message::{Message, Publication};
    use crate::plan::{ChannelName, History, Limits, Plan};

    /// A bus that carries nothing, and perhaps should.
    struct NullCarrier(bool);

    impl Carry for NullCarrier {
        fn origin(&self) -> u64 {
            9
        }

        fn carry(&self, _: u64, _: ChannelName<'_>, _: &Publication, _: &History) {}

        fn sync(&self, _: Duration) {}

        fn misses_messages(&self) -> bool {
            false
        }

        fn has_unsent(&self) -> bool {
            self.0
        }
    }

    fn hub() -> (Hub, Vec<u32>) {
        hub_with(false)
    }

    fn hub_with(has_unsent: bool) -> (Hub, Vec<u32>) {
        let hub = Hub::new(Limits::default());
        hub.carry_by(Box::new(NullCarrier(has_unsent)));
        let worker = hub.enroll(Arc::new(Wake::new().unwrap()));
        let names = ["a".to_owned(), "b".to_owned()];
        let (channels, _) = hub.join(worker, &names, &Plan::default(), None).unwrap();
        (hub, channels)
    }

    fn arrive(hub: &Hub, (origin, number): (u64, u64), channel: &str, age_s: u64, is_late: bool) {
        hub.arrive(Incoming {
            origin,
            number,
            channel: ChannelName { group: "", name: channel },
            publication: "x".into(),
            history: History::default(),
            age: Duration::from_secs(age_s),
            is_late,
        });
    }

    #[test]
    fn positions_of_one_publisher_are_converted() {
        let (hub, channels) = hub();
        for number in 1..=10 {
            arrive(&hub, (1, number), if number % 2 == 0 { "a" } else { "b" }, 0, number == 4);
        }
        assert_eq!(hub.position_of(&channels, (1, 7)), Some(8));
        assert_eq!(hub.position_of(&channels[..1], (1, 7)), None, "of another channel");
        assert_eq!(hub.position_of(&channels, (1, 11)), None, "it is not there");
        assert_eq!(hub.position_of(&channels, (1, 4)), None, "others may have been before it elsewhere");
        let mark = |id| hub.mark_at(&channels, id).map(|mark| mark.number);
        assert_eq!((mark(8), mark(100), mark(0)), (Some(7), Some(10), None));
        assert_eq!(hub.mark_at(&channels[..1], 8).map(|mark| mark.number), Some(6));
    }

    #[test]
    fn positions_near_messages_of_other_publishers_are_not_converted() {
        let (hub, channels) = hub();
        for (number, age_s) in [(1, 100), (2, 60), (3, 20)] {
            arrive(&hub, (1, number), "a", age_s, false);
        }
        arrive(&hub, (2, 1), "a", 16, false);
        assert_eq!(hub.position_of(&channels, (1, 2)), Some(3));
        assert_eq!(hub.position_of(&channels, (1, 3)), None, "too near");
        assert_eq!(hub.position_of(&channels, (2, 1)), None, "too near");
        arrive(&hub, (3, 1), "b", 1, true);
        assert_eq!(hub.position_of(&channels, (1, 2)), None, "elsewhere it may have come before");
        assert_eq!(hub.position_of(&channels[..1], (1, 2)), Some(3));
        hub.publish("a", "own", &Plan::default()).unwrap();
        assert_eq!(hub.position_of(&channels[..1], (9, 1)), Some(7));
    }

    /// A server publishes while it is disconnected, and receives the messages of others later. They have them in another order.
    #[test]
    fn positions_before_a_late_message_are_refused() {
        for is_own in [true, false] {
            let (hub, channels) = hub();
            match is_own {
                true => drop(hub.publish("a", "5", &Plan::default()).unwrap()),
                false => arrive(&hub, (1, 5), "a", 60, false),
            }
            arrive(&hub, (2, 1), "a", 30, false);
            assert!(hub.position_of(&channels, (2, 1)).is_some(), "as far as is known now");
            match is_own {
                true => hub.note_late(),
                false => arrive(&hub, (1, 5), "a", 0, true),
            }
            assert_eq!(
                hub.position_of(&channels, (2, 1)),
                None,
                "a client with this message may lack the other one"
            );
            arrive(&hub, (2, 2), "b", 0, false);
            assert!(hub.position_of(&channels[1..], (2, 2)).is_some(), "what comes later is in one order");
        }
    }

    #[test]
    fn all_channels_of_a_client_have_one_limit() {
        const CHANNELS: usize = 64;
        let hub = hub().0;
        let names: Vec<String> = (0..CHANNELS).map(|at| format!("c{at}")).collect();
        let worker = hub.enroll(Arc::new(Wake::new().unwrap()));
        let (channels, _) = hub.join(worker, &names, &Plan::default(), None).unwrap();
        let each = LOOKED_MAX / CHANNELS / 2;
        let fill = |from: usize| {
            for number in from..from + CHANNELS * each {
                arrive(&hub, (1, number as u64), &names[number % CHANNELS], 0, false);
            }
        };
        fill(1);
        let last = |rounds: usize| (1, (rounds * CHANNELS * each) as u64);
        assert!(hub.position_of(&channels, last(1)).is_some());
        fill(1 + CHANNELS * each);
        assert!(hub.position_of(&channels, last(2)).is_none(), "twice as many, of which all are near");
        assert!(hub.position_of(&channels[..CHANNELS / 4], last(2)).is_some());
    }

    #[test]
    fn positions_are_valid_after_an_upgrade() {
        for (has_unsent, moves_outbox) in [(false, false), (true, false), (true, true)] {
            let (former, _) = hub_with(has_unsent);
            for number in 1..=3 {
                arrive(&former, (1, number), "a", 0, false);
            }
            let (next, _) = hub();
            let snapshot = former.snapshot(moves_outbox);
            next.begin_at(snapshot.tip);
            for channel in &snapshot.channels {
                next.restore(channel);
                for it in &channel.messages {
                    let message = Message::new(it.id, it.published_at, it.publication.clone());
                    next.restore_message(channel.full_name(), message.marked(it.mark));
                }
            }
            next.thaw();
            let (channels, _) = next.join(0, &["a".to_owned()], &Plan::default(), None).unwrap();
            let is_lost = has_unsent && !moves_outbox;
            let expected = former.position_of(&channels, (1, 2)).filter(|_| !is_lost);
            assert_eq!(next.position_of(&channels, (1, 2)), expected);
            assert_eq!(expected.is_none(), is_lost, "other servers may never get what was not sent");
        }
    }
}
