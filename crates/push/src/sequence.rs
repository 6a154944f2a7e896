//! What was received from each of the other servers, to ignore repeated parcels and to detect lost ones.

use std::collections::HashMap;

use flatout_lane::clock::Ticks;

/// Maximum number of servers. Above it, the one that has been silent for longest is forgotten.
const ORIGINS_MAX: usize = 1024;

/// How many numbers of one server may be lost at a time. A number beyond that is refused: the server's own next ones would count as
/// repeated.
const MISSING_MAX: u64 = 1 << 32;

/// The same for the first number of an unknown server, which may have been running for years.
const FIRST_MAX: u64 = 1 << 48;

/// The last number of each of the other servers. A server numbers its parcels consecutively.
#[derive(Debug, Default)]
pub struct SequenceTracker {
    by_origin: HashMap<u64, Last>,
    /// All existing servers have been heard: an unknown server is new and starts with 1.
    is_complete: bool,
    /// Parcels come from a history that has lost its oldest ones: nothing counts as lost until all servers
    /// have been heard.
    has_holes: bool,
    /// The bus has a history: the first parcel of an unknown server may have any number.
    is_kept: bool,
}

#[derive(Debug, Clone, Copy)]
struct Last {
    number: u64,
    at: Ticks,
}

/// The result for a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The next one, or the first one heard of its server.
    Next,
    /// Received before.
    Repeated,
    /// The next one after a loss.
    Missed,
    /// The server cannot have reached this number.
    Impossible,
}

impl SequenceTracker {
    /// Records the number of a received parcel.
    pub fn step(&mut self, origin: u64, number: u64, now: Ticks) -> Step {
        if !self.is_possible(origin, number) {
            return Step::Impossible;
        }
        let Some(last) = self.by_origin.get_mut(&origin) else {
            self.remember(origin, number, now);
            let is_next = number == 1 || !self.is_complete || self.is_kept;
            return if is_next { Step::Next } else { Step::Missed };
        };
        last.at = now;
        if number <= last.number {
            return Step::Repeated;
        }
        let is_next = number == last.number + 1 || self.has_holes;
        last.number = number;
        if is_next { Step::Next } else { Step::Missed }
    }

    /// Records that a server has sent everything up to this number. Returns whether some of it was lost.
    pub fn tip(&mut self, origin: u64, number: u64, now: Ticks) -> bool {
        if !self.is_possible(origin, number) {
            return false;
        }
        let Some(last) = self.by_origin.get_mut(&origin) else {
            self.remember(origin, number, now);
            return self.is_complete && number > 0;
        };
        last.at = now;
        let has_missed = number > last.number && !self.has_holes;
        last.number = last.number.max(number);
        has_missed
    }

    /// Records that all running servers have been heard.
    pub fn complete(&mut self) {
        (self.is_complete, self.has_holes) = (true, false);
    }

    /// Records that parcels come from a history: the first ones may have gaps.
    pub(crate) fn expect_holes(&mut self) {
        (self.has_holes, self.is_kept) = (!self.is_complete, true);
    }

    /// Continues with what another process has heard: nothing, if that was on no bus.
    pub(crate) fn restore(&mut self, heard: Vec<(u64, u64)>, now: Ticks) {
        if heard.is_empty() {
            return;
        }
        self.by_origin.clear();
        for (origin, number) in heard {
            self.remember(origin, number, now);
        }
        self.complete();
    }

    /// The whole state, for another process.
    pub(crate) fn all(&self) -> Vec<(u64, u64)> {
        self.by_origin.iter().map(|(origin, last)| (*origin, last.number)).collect()
    }

    fn is_possible(&self, origin: u64, number: u64) -> bool {
        match self.by_origin.get(&origin) {
            Some(last) => number <= last.number.saturating_add(MISSING_MAX),
            None => number <= FIRST_MAX,
        }
    }

    fn remember(&mut self, origin: u64, number: u64, at: Ticks) {
        if self.by_origin.len() >= ORIGINS_MAX {
            let silent = self.by_origin.iter().min_by_key(|(_, last)| last.at).map(|(origin, _)| *origin);
            silent.and_then(|origin| self.by_origin.remove(&origin));
        }
        self.by_origin.insert(origin, Last { number, at });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_and_lost_numbers_are_detected() {
        let mut tracker = SequenceTracker::default();
        let steps = [(7, Step::Next), (8, Step::Next), (8, Step::Repeated), (7, Step::Repeated)];
        for (number, step) in steps {
            assert_eq!(tracker.step(1, number, 0), step, "{number}");
        }
        assert_eq!(tracker.step(2, 1, 5), Step::Next);
        assert!(!tracker.tip(3, 9, 2) && !tracker.tip(1, 8, 2) && tracker.tip(1, 12, 2));
        assert_eq!(tracker.step(1, 14, 1), Step::Missed);
        assert_eq!(tracker.step(1, 15, 1), Step::Next);
        assert!(!tracker.tip(1, 15, 2) && tracker.tip(1, 17, 2) && !tracker.tip(1, 17, 2));
        assert_eq!(tracker.step(1, 18, 2), Step::Next);
        let mut all = tracker.all();
        all.sort_unstable();
        assert_eq!(all, [(1, 18), (2, 1), (3, 9)]);
    }

    #[test]
    fn impossible_numbers_are_refused() {
        let mut tracker = SequenceTracker::default();
        assert_eq!(tracker.step(1, 5, 0), Step::Next);
        for number in [u64::MAX, 6 + MISSING_MAX] {
            assert_eq!(tracker.step(1, number, 0), Step::Impossible, "{number}");
            assert!(!tracker.tip(1, number, 0), "{number}");
        }
        assert_eq!(tracker.step(1, 6, 0), Step::Next);
        assert_eq!(tracker.step(1, 6 + MISSING_MAX, 0), Step::Missed);
        assert_eq!(tracker.step(2, u64::MAX, 0), Step::Impossible);
        assert!(!tracker.tip(3, FIRST_MAX + 1, 0));
        assert_eq!((tracker.step(2, FIRST_MAX, 0), tracker.step(3, 1, 0)), (Step::Next, Step::Next));
    }

    #[test]
    fn gaps_in_a_history_are_allowed() {
        let mut tracker = SequenceTracker::default();
        tracker.expect_holes();
        let steps = [(1, Step::Next), (5, Step::Next), (5, Step::Repeated), (9, Step::Next)];
        for (number, step) in steps {
            assert_eq!(tracker.step(1, number, 0), step, "{number}");
        }
        tracker.complete();
        tracker.expect_holes();
        assert_eq!((tracker.step(1, 10, 0), tracker.step(1, 12, 0)), (Step::Next, Step::Missed));
        assert_eq!(tracker.step(2, 51, 0), Step::Next, "the others of this server are not kept any more");
        assert_eq!(tracker.step(2, 53, 0), Step::Missed);
    }

    #[test]
    fn a_new_process_continues_with_the_numbers_of_the_old_one() {
        let mut tracker = SequenceTracker::default();
        tracker.expect_holes();
        tracker.restore(Vec::new(), 0);
        let steps = [(3, Step::Next), (5, Step::Next)];
        for (number, step) in steps {
            assert_eq!(tracker.step(1, number, 0), step, "the other was on no bus: {number}");
        }
        tracker.restore(vec![(1, 7)], 0);
        let steps = [(7, Step::Repeated), (8, Step::Next), (10, Step::Missed)];
        for (number, step) in steps {
            assert_eq!(tracker.step(1, number, 0), step, "{number}");
        }
    }

    #[test]
    fn a_new_server_starts_at_1() {
        let mut tracker = SequenceTracker::default();
        assert_eq!(tracker.step(1, 50, 0), Step::Next);
        assert!(!tracker.tip(2, 50, 0));
        tracker.complete();
        assert_eq!((tracker.step(3, 1, 0), tracker.step(4, 2, 0)), (Step::Next, Step::Missed));
        assert!(tracker.tip(5, 1, 0) && !tracker.tip(6, 0, 0));
        assert_eq!(tracker.step(6, 1, 0), Step::Next);
    }

    #[test]
    fn the_number_of_servers_is_limited() {
        let mut tracker = SequenceTracker::default();
        for origin in 0..10 * ORIGINS_MAX as u64 {
            tracker.step(origin, 1, origin as Ticks);
        }
        assert_eq!(tracker.by_origin.len(), ORIGINS_MAX);
        assert!(tracker.by_origin.contains_key(&(10 * ORIGINS_MAX as u64 - 1)));
    }
}
