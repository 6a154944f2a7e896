//! What was received from each of the other servers, to ignore repeated parcels and to detect lost ones.

use std::collections::HashMap;

use flatout_lane::clock::Ticks;

/// Maximum number of servers. Above it, the one that has been silent for longest is forgotten.
const ORIGINS_MAX: usize = 1024;

/// The last number of each of the other servers. A server numbers its parcels consecutively.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    by_origin: HashMap<u64, Last>,
    /// All existing servers have been heard: an unknown server is new and starts with 1.
    is_complete: bool,
    /// Parcels come from a history that has lost its oldest ones: nothing counts as lost until all servers
    /// have been heard.
    has_holes: bool,
}

#[derive(Debug, Clone, Copy)]
struct Last {
    number: u64,
    at: Ticks,
}

/// The result for a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// The next one, or the first one heard of its server.
    Next,
    /// Received before.
    Repeated,
    /// The next one after a loss.
    Missed,
}

impl Heard {
    /// Records the number of a received parcel.
    pub(crate) fn step(&mut self, origin: u64, number: u64, now: Ticks) -> Step {
        let Some(last) = self.by_origin.get_mut(&origin) else {
            self.remember(origin, number, now);
            let is_next = number == 1 || !self.is_complete;
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
    pub(crate) fn tip(&mut self, origin: u64, number: u64, now: Ticks) -> bool {
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
    pub(crate) fn complete(&mut self) {
        (self.is_complete, self.has_holes) = (true, false);
    }

    /// Records that the first parcels come from a history, which may have gaps.
    pub(crate) fn expect_holes(&mut self) {
        self.has_holes = !self.is_complete;
    }

    /// Servers heard since this moment.
    pub(crate) fn since(&self, at: Ticks) -> Vec<u64> {
        self.by_origin.iter().filter(|(_, last)| last.at >= at).map(|(origin, _)| *origin).collect()
    }

    /// The whole state, for another process.
    pub(crate) fn all(&self) -> Vec<(u64, u64)> {
        self.by_origin.iter().map(|(origin, last)| (*origin, last.number)).collect()
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
        let mut heard = Heard::default();
        let steps = [(7, Step::Next), (8, Step::Next), (8, Step::Repeated), (7, Step::Repeated)];
        for (number, step) in steps {
            assert_eq!(heard.step(1, number, 0), step, "{number}");
        }
        assert_eq!(heard.step(2, 1, 5), Step::Next);
        assert!(!heard.tip(3, 9, 2) && !heard.tip(1, 8, 2) && heard.tip(1, 12, 2));
        assert_eq!(heard.step(1, 14, 1), Step::Missed);
        assert_eq!(heard.step(1, 15, 1), Step::Next);
        assert!(!heard.tip(1, 15, 2) && heard.tip(1, 17, 2) && !heard.tip(1, 17, 2));
        assert_eq!(heard.step(1, 18, 2), Step::Next);
        assert_eq!(heard.step(1, u64::MAX, 2), Step::Missed);
        assert_eq!(heard.step(1, u64::MAX, 2), Step::Repeated);
        assert_eq!(heard.since(3), [2]);
        let mut all = heard.all();
        all.sort_unstable();
        assert_eq!(all, [(1, u64::MAX), (2, 1), (3, 9)]);
    }

    #[test]
    fn gaps_in_a_history_are_allowed() {
        let mut heard = Heard::default();
        heard.expect_holes();
        let steps = [(1, Step::Next), (5, Step::Next), (5, Step::Repeated), (9, Step::Next)];
        for (number, step) in steps {
            assert_eq!(heard.step(1, number, 0), step, "{number}");
        }
        heard.complete();
        heard.expect_holes();
        assert_eq!((heard.step(1, 10, 0), heard.step(1, 12, 0)), (Step::Next, Step::Missed));
    }

    #[test]
    fn a_new_server_starts_at_1() {
        let mut heard = Heard::default();
        assert_eq!(heard.step(1, 50, 0), Step::Next);
        assert!(!heard.tip(2, 50, 0));
        heard.complete();
        assert_eq!((heard.step(3, 1, 0), heard.step(4, 2, 0)), (Step::Next, Step::Missed));
        assert!(heard.tip(5, 1, 0) && !heard.tip(6, 0, 0));
        assert_eq!(heard.step(6, 1, 0), Step::Next);
    }

    #[test]
    fn the_number_of_servers_is_limited() {
        let mut heard = Heard::default();
        for origin in 0..10 * ORIGINS_MAX as u64 {
            heard.step(origin, 1, origin as Ticks);
        }
        assert_eq!(heard.by_origin.len(), ORIGINS_MAX);
        assert!(heard.by_origin.contains_key(&(10 * ORIGINS_MAX as u64 - 1)));
    }
}
