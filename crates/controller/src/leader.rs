//! Which of several controllers is the leader: the holder of a Lease, in a term of its own.
//!
//! A controller may be paused, by its machine or by a signal, and go on long after another one holds the Lease, without knowing. So it
//! leads only for a while after each renewal, by its own clock, and data planes refuse whoever led before the controller that they
//! had last: each term has a higher number.

use std::sync::{Mutex, MutexGuard, PoisonError};
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

/// Whether this process is the leader.
#[derive(Debug, Default)]
pub struct Leader(Mutex<Lead>);

#[derive(Debug, Default)]
enum Lead {
    /// Another process leads, or none.
    #[default]
    No,
    /// There is no other one.
    Always,
    /// It holds the Lease, and has renewed it then.
    For(LeaderTerm, Instant),
    /// Another process has taken over from this one.
    Retired,
}

impl Leader {
    /// Of the only controller: the objects of a folder have no Lease.
    pub fn always() -> Leader {
        Leader(Mutex::new(Lead::Always))
    }

    /// It has renewed the Lease: at this time, before it asked for that.
    pub fn renewed(&self, term: LeaderTerm, at: Instant) {
        self.set(Lead::For(term, at));
    }

    /// It does not hold the Lease.
    pub fn lost(&self) {
        self.set(Lead::No);
    }

    /// Another process has taken over from this one, which never leads again.
    pub fn retire(&self) {
        self.set(Lead::Retired);
    }

    /// Whether another process has taken over from this one.
    pub fn is_retired(&self) -> bool {
        matches!(*self.lock(), Lead::Retired)
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
        if !matches!(*state, Lead::Retired) {
            *state = lead;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Lead> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
        leader.retire();
        assert!(leader.is_retired() && !leader.leads());
        leader.renewed(term("a", 3), Instant::now());
        assert!(!leader.leads());
    }

    #[test]
    fn terms_are_compared_within_one_lease() {
        assert!(term("a", 1).is_before(&term("a", 2)));
        assert!(!term("a", 2).is_before(&term("a", 2)));
        assert!(!term("a", 1).is_before(&term("b", 2)));
    }
}
