//! The position of a client that was connected to another server of the bus before.
//!
//! All servers have the messages of one publishing server in the same order, but messages of several
//! publishers may be interleaved differently, depending on when they arrive. A position from another server
//! is valid here only if there can be no such difference after it. Otherwise the client gets a gap.

use std::time::Duration;

use flatout_lane::clock;

use super::hub::Hub;
use super::message::Mark;

/// Maximum number of messages examined per channel, starting with the newest.
const LOOKED_MAX: usize = 2048;

/// Messages of two publishers that are further apart have the same order on all servers, unless one of them
/// was delayed.
const ORDER_TIME: Duration = Duration::from_secs(10);

impl Hub {
    /// Converts a position from another server, given as the origin and number of its last message, into an
    /// id of this server. `None` if that is not possible without risking a loss.
    pub(super) fn position_of(&self, channels: &[u32], (origin, number): (u64, u64)) -> Option<u64> {
        let state = self.lock();
        let kept = |at: &u32| Some(&state.channels.get(*at as usize)?.as_ref()?.kept);
        let is_it = |mark: &Mark| mark.origin == origin && mark.number == number;
        let found = channels.iter().filter_map(kept).find_map(|kept| {
            kept.newest().take(LOOKED_MAX).find(|message| message.mark.as_ref().is_some_and(is_it))
        })?;
        if found.mark.is_none_or(|mark| mark.is_late) {
            return None;
        }
        let near = clock::ticks(ORDER_TIME);
        for kept in channels.iter().filter_map(kept) {
            let is_after = |at: u32| at.saturating_add(near) >= found.published_at;
            let around = kept.newest().take_while(|it| it.id > found.id || is_after(it.published_at));
            for (count, message) in around.enumerate() {
                let mark = message.mark.filter(|_| count < LOOKED_MAX)?;
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
        let kept = |at: &u32| Some(&state.channels.get(*at as usize)?.as_ref()?.kept);
        let last = channels
            .iter()
            .filter_map(kept)
            .filter_map(|kept| kept.newest().take(LOOKED_MAX).find(|message| message.id <= id));
        last.max_by_key(|message| message.id)?.mark
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use flatout_lane::poll::Wake;

    use super::*;
    use crate::push::carrying::{Carry, Incoming};
    use crate::push::message::Publication;
    use crate::push::plan::{History, Limits, Plan};

    struct Nowhere;

    impl Carry for Nowhere {
        fn carry(&self, _: u64, _: &str, _: &Publication, _: &History) {}

        fn sync(&self, _: Duration) {}
    }

    fn hub() -> (Hub, Vec<u32>) {
        let hub = Hub::new(Limits::default());
        hub.carry_by(9, Box::new(Nowhere));
        let worker = hub.enroll(Arc::new(Wake::new().unwrap()));
        let names = ["a".to_owned(), "b".to_owned()];
        let (channels, _) = hub.join(worker, &names, &Plan::default(), None).unwrap();
        (hub, channels)
    }

    fn arrive(hub: &Hub, (origin, number): (u64, u64), channel: &str, age_s: u64, is_late: bool) {
        hub.arrive(Incoming {
            origin,
            number,
            channel,
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
        assert_eq!(hub.position_of(&channels, (1, 7)), Some(7));
        assert_eq!(hub.position_of(&channels[..1], (1, 7)), None, "of another channel");
        assert_eq!(hub.position_of(&channels, (1, 11)), None, "it is not there");
        assert_eq!(hub.position_of(&channels, (1, 4)), None, "others may have been before it elsewhere");
        let mark = |id| hub.mark_at(&channels, id).map(|mark| mark.number);
        assert_eq!((mark(7), mark(100), mark(0)), (Some(7), Some(10), None));
        assert_eq!(hub.mark_at(&channels[..1], 7).map(|mark| mark.number), Some(6));
    }

    #[test]
    fn positions_near_messages_of_other_publishers_are_not_converted() {
        let (hub, channels) = hub();
        for (number, age_s) in [(1, 100), (2, 60), (3, 20)] {
            arrive(&hub, (1, number), "a", age_s, false);
        }
        arrive(&hub, (2, 1), "a", 16, false);
        assert_eq!(hub.position_of(&channels, (1, 2)), Some(2));
        assert_eq!(hub.position_of(&channels, (1, 3)), None, "too near");
        assert_eq!(hub.position_of(&channels, (2, 1)), None, "too near");
        arrive(&hub, (3, 1), "b", 1, true);
        assert_eq!(hub.position_of(&channels, (1, 2)), None, "elsewhere it may have come before");
        assert_eq!(hub.position_of(&channels[..1], (1, 2)), Some(2));
        hub.publish("a", "own", &Plan::default()).unwrap();
        assert_eq!(hub.position_of(&channels[..1], (9, 1)), Some(6));
    }
}
