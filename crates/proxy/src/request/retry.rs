//! When a request may be sent again.

use super::job::{Job, Pulled};

impl Job {
    /// Whether its time as a whole is over.
    pub(crate) fn is_overdue(&self, now_ns: u64) -> bool {
        self.ends_ns.is_some_and(|ends_ns| ends_ns <= now_ns)
    }

    /// Whether the request may be repeated, at this or another server, after this attempt has failed. `was_seen`: the
    /// server may have started to process it.
    pub(crate) fn may_repeat(&self, was_seen: bool) -> bool {
        let is_there = matches!(self.pulled, Pulled::Not | Pulled::Waiting);
        !self.is_answered && is_there && self.retries_left > 0 && (self.is_idempotent || !was_seen)
    }
}
