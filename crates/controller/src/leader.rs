//! Which of several controllers is the leader: the holder of a Lease, in a term of its own.
//!
//! A controller may be paused, by its machine or by a signal, and go on long after another one holds the Lease, without knowing. So it
//! leads only for a while after each renewal, by its own clock, and data planes refuse whoever led before the controller that they
//! had last: each term has a higher number.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// After this time without a renewal, a holder stops by itself: before others take over.
pub(crate) const LEAD_TIME_MAX: Duration = Duration::from_secs(10);

/// A term of a leader.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeaderTerm {
    /// The Lease: terms of different ones cannot be compared.
    pub lease: String,
    /// How often the Lease has had another holder.
    pub number: u64,
}

/// How long `retire` waits until the Lease is given back.
const RELEASE_TIME_MAX: Duration = Duration::from_secs(2);

/// Whether this process is the leader.
#[derive(Debug, Default)]
pub struct Leader {
    lead: Mutex<Lead>,
    has_changed: Condvar,
}

#[derive(Debug, Default)]
enum Lead {
    /// It does not hold the Lease, and asks for it again and again.
    #[default]
    No,
    /// There is no other one.
    Always,
    /// It holds the Lease, and has renewed it then.
    For(LeaderTerm, Instant),
    /// It no longer leads, but may still hold the Lease.
    Retiring,
    /// It no longer leads, and does not hold the Lease.
    Retired,
}

impl Leader {
    /// Of the only controller: the objects of a folder have no Lease.
    pub fn always() -> Leader {
        Leader { lead: Mutex::new(Lead::Always), has_changed: Condvar::new() }
    }

    /// It has renewed the Lease: at this time, before it asked for that.
    pub fn renewed(&self, term: LeaderTerm, at: Instant) {
        self.set(Lead::For(term, at));
    }

    /// It does not hold the Lease.
    pub fn lost(&self) {
        self.set(Lead::No);
    }

    /// Stops leading for good, because this process is about to end or another one has taken over. Waits at most two seconds until the Lease
    /// is given back, so that another process can lead at once.
    pub fn retire(&self) {
        let mut lead = self.lock();
        *lead = match *lead {
            // A process that was replaced calls this again when it ends.
            Lead::Always | Lead::Retired => Lead::Retired,
            // One that does not lead may be about to: its request for the Lease is on its way.
            Lead::No | Lead::For(..) | Lead::Retiring => Lead::Retiring,
        };
        let is_held = |lead: &mut Lead| matches!(lead, Lead::Retiring);
        drop(self.has_changed.wait_timeout_while(lead, RELEASE_TIME_MAX, is_held));
    }

    /// Whether it has stopped leading for good.
    pub fn is_retired(&self) -> bool {
        matches!(*self.lock(), Lead::Retiring | Lead::Retired)
    }

    /// The Lease is given back.
    #[cfg_attr(not(any(feature = "cluster", test)), expect(dead_code, reason = "folders have no Lease"))]
    pub(crate) fn released(&self) {
        *self.lock() = Lead::Retired;
        self.has_changed.notify_all();
    }

    /// Whether it leads now.
    pub fn leads(&self) -> bool {
        self.term().is_ok()
    }

    /// Its term; none if it is the only one.
    ///
    /// # Errors
    /// It does not lead.
    pub fn term(&self) -> Result<Option<LeaderTerm>, NotLeading> {
        match &*self.lock() {
            Lead::Always => Ok(None),
            Lead::For(term, renewed) if renewed.elapsed() <= LEAD_TIME_MAX => Ok(Some(term.clone())),
            _ => Err(NotLeading),
        }
    }

    fn set(&self, lead: Lead) {
        let mut state = self.lock();
        if !matches!(*state, Lead::Retiring | Lead::Retired) {
            *state = lead;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Lead> {
        self.lead.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// This controller does not lead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotLeading;

impl LeaderTerm {
    /// Whether another controller has led since, in the term `known`.
    pub(crate) fn is_before(&self, known: &LeaderTerm) -> bool {
        self.lease == known.lease && self.number < known.number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn term(lease: &str, number: u64) -> LeaderTerm {
        LeaderTerm { lease: lease.to_owned(), number }
    }

    #[test]
    fn a_leader_that_was_paused_is_no_longer_the_leader() {
        let leader = Leader::default();
        assert!(!leader.leads());
        leader.renewed(term("a", 3), Instant::now());
        assert_eq!(leader.term(), Ok(Some(term("a", 3))));
        let long_ago = Instant::now().checked_sub(LEAD_TIME_MAX + Duration::from_secs(1)).unwrap();
        leader.renewed(term("a", 3), long_ago);
        assert_eq!(leader.term(), Err(NotLeading));
        leader.renewed(term("a", 3), Instant::now());
        leader.lost();
        assert!(!leader.leads());
        assert_eq!(Leader::always().term(), Ok(None));
    }

    #[test]
    fn a_process_that_was_replaced_never_leads_again() {
        let leader = Leader::default();
        leader.renewed(term("a", 3), Instant::now());
        std::thread::scope(|scope| {
            let retiring = scope.spawn(|| leader.retire());
            while !leader.is_retired() {
                std::thread::yield_now();
            }
            assert!(!leader.leads());
            let ending = scope.spawn(|| leader.retire());
            std::thread::sleep(Duration::from_millis(50));
            assert!(!ending.is_finished(), "the process does not end while the Lease is held");
            leader.released();
            retiring.join().unwrap();
            ending.join().unwrap();
        });
        leader.renewed(term("a", 3), Instant::now());
        assert!(leader.is_retired() && !leader.leads());
    }

    #[test]
    fn a_process_that_may_be_about_to_hold_the_lease_gives_it_back_before_it_ends() {
        let leader = Leader::default();
        std::thread::scope(|scope| {
            let ending = scope.spawn(|| leader.retire());
            std::thread::sleep(Duration::from_millis(50));
            assert!(!ending.is_finished(), "its request for the Lease may be on its way");
            leader.released();
            ending.join().unwrap();
        });
        let began = Instant::now();
        Leader::always().retire();
        leader.retire();
        assert!(began.elapsed() < RELEASE_TIME_MAX, "there is nothing to give back");
    }

    #[test]
    fn terms_are_compared_within_one_lease() {
        assert!(term("a", 1).is_before(&term("a", 2)));
        assert!(!term("a", 2).is_before(&term("a", 2)));
        assert!(!term("a", 1).is_before(&term("b", 2)));
    }
}
