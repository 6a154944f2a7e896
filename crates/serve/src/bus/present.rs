//! Which other servers are on the bus, by what they say of themselves, and whether one has ended without saying that all it sent was carried.

use std::collections::HashMap;
use std::time::Duration;

use flatout_lane::clock::{self, Ticks};

/// Servers that are remembered; over it, the one that was silent for the longest is forgotten.
const ORIGINS_MAX: usize = 1024;

/// A server that says nothing for so long has crashed or is cut off. It is longer than a server takes that notices a lost connection and
/// makes a new one.
pub(super) const SILENCE_TIME: Duration = Duration::from_secs(30);

/// The other servers.
#[derive(Debug, Default)]
pub(super) struct Present {
    by_origin: HashMap<u64, Expected>,
}

#[derive(Debug, Clone, Copy)]
struct Expected {
    /// By when it is to say something.
    until: Ticks,
    /// It has not.
    is_silent: bool,
}

impl Present {
    /// This server says that it is there. Returns whether messages or purges may be lost: one that is new may have taken the place of one that
    /// is silent, and what that could not send was lost with its process.
    pub(super) fn hears(&mut self, origin: u64, now: Ticks) -> bool {
        let expected = Expected { until: now + clock::ticks(SILENCE_TIME), is_silent: false };
        if let Some(known) = self.by_origin.get_mut(&origin) {
            *known = expected;
            return false;
        }
        let count = self.by_origin.len();
        self.by_origin.retain(|_, other| !other.is_silent);
        let had_silent = self.by_origin.len() < count;
        if self.by_origin.len() >= ORIGINS_MAX {
            let oldest =
                self.by_origin.iter().min_by_key(|(_, other)| other.until).map(|(origin, _)| *origin);
            oldest.and_then(|origin| self.by_origin.remove(&origin));
        }
        self.by_origin.insert(origin, expected);
        had_silent
    }

    /// This server ends, and all that it sent was carried.
    pub(super) fn leaves(&mut self, origin: u64) {
        self.by_origin.remove(&origin);
    }

    /// Nothing could be heard until now: all may take this long to say something.
    pub(super) fn expect_within(&mut self, time: Duration, now: Ticks) {
        for other in self.by_origin.values_mut().filter(|other| !other.is_silent) {
            other.until = now + clock::ticks(time);
        }
    }

    /// Whether a server has become silent since the last look: nobody knows what it has not sent.
    pub(super) fn has_new_silent(&mut self, now: Ticks) -> bool {
        let mut has_new = false;
        for other in self.by_origin.values_mut().filter(|other| !other.is_silent && now >= other.until) {
            other.is_silent = true;
            has_new = true;
        }
        has_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn silence() -> Ticks {
        clock::ticks(SILENCE_TIME)
    }

    #[test]
    fn a_server_that_ends_without_a_word_is_noticed_once() {
        let mut present = Present::default();
        assert!(!present.hears(1, 0) && !present.hears(2, 0) && !present.hears(3, 0));
        present.leaves(1);
        assert!(!present.hears(2, 100) && !present.has_new_silent(silence() - 1));
        assert!(present.has_new_silent(silence()), "the third");
        assert!(!present.has_new_silent(silence() + 99));
        assert!(!present.hears(3, silence() + 99), "it was cut off, and its numbers tell what is missing");
        assert!(present.has_new_silent(silence() + 100), "the second");
    }

    #[test]
    fn a_new_server_may_have_taken_the_place_of_a_silent_one() {
        let mut present = Present::default();
        present.hears(1, 0);
        assert!(!present.hears(2, silence() - 1), "nobody is silent");
        assert!(present.has_new_silent(silence()));
        assert!(!present.hears(2, silence()), "it was there before");
        assert!(present.hears(3, silence()), "what the first could not send is lost");
        assert!(!present.hears(4, silence()), "that was told");
    }

    #[test]
    fn time_in_which_nothing_can_be_heard_does_not_count() {
        let mut present = Present::default();
        present.hears(1, 0);
        present.expect_within(Duration::from_secs(3), silence());
        let answered = silence() + clock::ticks(Duration::from_secs(3));
        assert!(!present.has_new_silent(answered - 1) && present.has_new_silent(answered));
        present.expect_within(Duration::from_secs(3), answered);
        assert!(!present.has_new_silent(2 * answered), "once");
    }

    #[test]
    fn servers_that_come_and_go_are_forgotten() {
        let mut present = Present::default();
        for origin in 0..10 * ORIGINS_MAX as u64 {
            present.hears(origin, origin as Ticks);
        }
        assert_eq!(present.by_origin.len(), ORIGINS_MAX);
    }
}
