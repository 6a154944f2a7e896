//! What was received from each other server: nothing is taken twice, and what is missing is noticed.

use std::collections::HashMap;

use flatout_lane::clock::Ticks;

/// Servers that are remembered; over it, the one that was silent for the longest is forgotten.
const ORIGINS_MAX: usize = 1024;

/// Numbers that may be missing of one server at a time. A number further on is none of its own: everything that it sends later would count as
/// repeated.
const MISSING_MAX: u64 = 1 << 32;

/// The same for a server that is unknown, which may have sent for years.
const FIRST_MAX: u64 = 1 << 48;

/// How far each other server has come. A server numbers what it sends without holes.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    by_origin: HashMap<u64, Last>,
    /// All servers that there were have been heard: one that is unknown begins now, with 1.
    is_complete: bool,
    /// What comes was kept, and some of it is not kept any more: nothing counts as missing until all have been heard.
    has_holes: bool,
    /// The bus keeps what is sent, for a time: of a server that is unknown, the first that comes may have any number.
    is_kept: bool,
}

#[derive(Debug, Clone, Copy)]
struct Last {
    number: u64,
    at: Ticks,
}

/// What a number means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// It is the next one, or the first that is heard of its server.
    Next,
    /// It was there before.
    Repeated,
    /// Some before it did not arrive.
    Missed,
    /// This server cannot have come that far.
    Impossible,
}

impl Heard {
    /// This number of this server has arrived.
    pub(crate) fn step(&mut self, origin: u64, number: u64, now: Ticks) -> Step {
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

    /// This server says that it has sent all up to this number. Returns whether some of them did not arrive.
    pub(crate) fn tip(&mut self, origin: u64, number: u64, now: Ticks) -> bool {
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

    /// All servers that are there have been heard.
    pub(crate) fn complete(&mut self) {
        (self.is_complete, self.has_holes) = (true, false);
    }

    /// What comes was kept for a time.
    pub(crate) fn expect_holes(&mut self) {
        (self.has_holes, self.is_kept) = (!self.is_complete, true);
    }

    /// Goes on with what another process has heard. One that was on no bus has heard nobody.
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

    /// All of it, for another process.
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
    fn nothing_is_taken_twice_and_what_is_missing_is_noticed() {
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
        let mut all = heard.all();
        all.sort_unstable();
        assert_eq!(all, [(1, 18), (2, 1), (3, 9)]);
    }

    #[test]
    fn a_number_out_of_reach_does_not_silence_a_server() {
        let mut heard = Heard::default();
        assert_eq!(heard.step(1, 5, 0), Step::Next);
        for number in [u64::MAX, 6 + MISSING_MAX] {
            assert_eq!(heard.step(1, number, 0), Step::Impossible, "{number}");
            assert!(!heard.tip(1, number, 0), "{number}");
        }
        assert_eq!(heard.step(1, 6, 0), Step::Next);
        assert_eq!(heard.step(1, 6 + MISSING_MAX, 0), Step::Missed);
        assert_eq!(heard.step(2, u64::MAX, 0), Step::Impossible);
        assert!(!heard.tip(3, FIRST_MAX + 1, 0));
        assert_eq!((heard.step(2, FIRST_MAX, 0), heard.step(3, 1, 0)), (Step::Next, Step::Next));
    }

    #[test]
    fn what_was_kept_may_have_holes() {
        let mut heard = Heard::default();
        heard.expect_holes();
        let steps = [(1, Step::Next), (5, Step::Next), (5, Step::Repeated), (9, Step::Next)];
        for (number, step) in steps {
            assert_eq!(heard.step(1, number, 0), step, "{number}");
        }
        heard.complete();
        heard.expect_holes();
        assert_eq!((heard.step(1, 10, 0), heard.step(1, 12, 0)), (Step::Next, Step::Missed));
        assert_eq!(heard.step(2, 51, 0), Step::Next, "the others of this server are not kept any more");
        assert_eq!(heard.step(2, 53, 0), Step::Missed);
    }

    #[test]
    fn a_successor_goes_on_where_another_process_was() {
        let mut heard = Heard::default();
        heard.expect_holes();
        heard.restore(Vec::new(), 0);
        let steps = [(3, Step::Next), (5, Step::Next)];
        for (number, step) in steps {
            assert_eq!(heard.step(1, number, 0), step, "the other was on no bus: {number}");
        }
        heard.restore(vec![(1, 7)], 0);
        let steps = [(7, Step::Repeated), (8, Step::Next), (10, Step::Missed)];
        for (number, step) in steps {
            assert_eq!(heard.step(1, number, 0), step, "{number}");
        }
    }

    #[test]
    fn a_new_server_begins_with_its_first() {
        let mut heard = Heard::default();
        assert_eq!(heard.step(1, 50, 0), Step::Next);
        assert!(!heard.tip(2, 50, 0));
        heard.complete();
        assert_eq!((heard.step(3, 1, 0), heard.step(4, 2, 0)), (Step::Next, Step::Missed));
        assert!(heard.tip(5, 1, 0) && !heard.tip(6, 0, 0));
        assert_eq!(heard.step(6, 1, 0), Step::Next);
    }

    #[test]
    fn servers_that_come_and_go_are_forgotten() {
        let mut heard = Heard::default();
        for origin in 0..10 * ORIGINS_MAX as u64 {
            heard.step(origin, 1, origin as Ticks);
        }
        assert_eq!(heard.by_origin.len(), ORIGINS_MAX);
        assert!(heard.by_origin.contains_key(&(10 * ORIGINS_MAX as u64 - 1)));
    }
}
