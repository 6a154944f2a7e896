//! When a request may be sent again.

use super::job::Job;
use crate::failure::Failure;
use crate::plan::RetryOn;
use crate::select::balance::{Shares, was_tried};

impl Job {
    /// Whether its time as a whole is over.
    pub(crate) fn is_overdue(&self, now_ns: u64) -> bool {
        self.ends_ns.is_some_and(|ends_ns| ends_ns <= now_ns)
    }

    /// Whether the request may be repeated, at this or another server, after this attempt has failed. `was_seen`: the
    /// server may have started to process it.
    pub(crate) fn may_repeat(&self, was_seen: bool) -> bool {
        !self.is_answered
            && self.has_whole_body()
            && self.retries_left > 0
            && (self.is_idempotent || !was_seen)
    }

    /// Whether another server may be asked instead of passing on this server's response.
    pub(crate) fn may_ask_another(&self, shares: &Shares, server: usize) -> bool {
        let is_other = |&at: &usize| {
            at != server && !was_tried(self.tried, at) && shares.server(at).is_some_and(|it| it.is_up())
        };
        self.may_repeat(true) && shares.active().iter().any(is_other)
    }
}

impl RetryOn {
    /// Whether a request that failed for this reason is sent again. What a server has not processed always is.
    pub(crate) fn has(&self, failure: Failure) -> bool {
        match failure {
            Failure::ConnectTime | Failure::SendTime | Failure::ReadTime => self.timeout,
            Failure::Malformed => self.invalid_response,
            _ => self.error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_name_failures() {
        let (default, none) = (RetryOn::default(), RetryOn::none());
        assert!(default.has(Failure::Closed) && default.has(Failure::ReadTime));
        assert!(!default.has(Failure::Malformed) && !none.has(Failure::NotConnected));
        assert!(RetryOn { invalid_response: true, ..none }.has(Failure::Malformed));
    }
}
