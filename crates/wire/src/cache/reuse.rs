//! Whether a stored response may be used for a request (RFC 9111 sections 4.2.4 and 5.2.1, RFC 5861).

use super::age::current_age;
use super::control::RequestDirectives;

/// The freshness of a stored response. Durations are in seconds. The default is stale from the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Policy {
    /// When its head arrived, in milliseconds since 1970.
    pub stored_ms: u64,
    /// Its age at that time.
    pub initial_age: u32,
    /// The age at which it becomes stale.
    pub lifetime: u32,
    /// How long after that it may be served while it is revalidated.
    pub stale_while_revalidate: u32,
    /// How long after that it may be served instead of an error.
    pub stale_if_error: u32,
    /// `no-cache`: it is revalidated for each request.
    pub is_validated_always: bool,
    /// `must-revalidate`, `proxy-revalidate`: it is never served stale.
    pub is_never_stale: bool,
    /// `s-maxage`: it is served stale only if the response itself allows it.
    pub is_stale_where_said: bool,
}

/// How to use a stored response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Serve it.
    Fresh,
    /// Serve it although it is stale: the client allows this.
    Stale,
    /// Serve it, and revalidate it afterwards.
    Refresh,
    /// Revalidate it first.
    Validate,
}

impl Policy {
    /// Its current age, in seconds.
    #[inline]
    pub fn age(&self, now_ms: u64) -> u32 {
        current_age(self.initial_age, self.stored_ms, now_ms)
    }

    /// How many seconds it stays fresh; negative if it is stale.
    #[inline]
    pub fn fresh_for(&self, now_ms: u64) -> i64 {
        i64::from(self.lifetime) - i64::from(self.age(now_ms))
    }

    /// How to use it for a request. `is_expired`: it was marked stale early.
    #[inline]
    pub fn judge(&self, directives: &RequestDirectives, now_ms: u64, is_expired: bool) -> Verdict {
        let age = self.age(now_ms);
        let is_fresh = age < self.lifetime && !is_expired;
        if is_fresh && !self.is_validated_always && *directives == RequestDirectives::default() {
            return Verdict::Fresh;
        }
        self.judge_closely(directives, age, is_fresh)
    }

    fn judge_closely(&self, directives: &RequestDirectives, age: u32, is_fresh: bool) -> Verdict {
        let is_too_old = directives.max_age.is_some_and(|max| age > max);
        let left = if is_fresh { self.lifetime - age } else { 0 };
        let is_too_stale = directives.min_fresh.is_some_and(|min| left < min);
        if self.is_validated_always || directives.no_cache || is_too_old || is_too_stale {
            return Verdict::Validate;
        }
        if is_fresh {
            return Verdict::Fresh;
        }
        let stale_for = age.saturating_sub(self.lifetime);
        if self.is_never_stale {
            return Verdict::Validate;
        }
        if self.stale_while_revalidate > 0 && stale_for <= self.stale_while_revalidate {
            return Verdict::Refresh;
        }
        let is_wanted = directives.max_stale.is_some_and(|max| max > 0 && stale_for <= max);
        match is_wanted && !self.is_stale_where_said {
            true => Verdict::Stale,
            false => Verdict::Validate,
        }
    }

    /// Whether it may be served instead of an error. `cut_off`: for this many seconds after its lifetime if the
    /// upstream could not be reached at all; `None` if it was reached, and responded with an error.
    pub fn stands_in(&self, directives: &RequestDirectives, now_ms: u64, cut_off: Option<u32>) -> bool {
        let age = self.age(now_ms);
        if self.is_validated_always
            || self.is_never_stale
            || directives.no_cache
            || directives.min_fresh.is_some_and(|min| min > 0)
            || directives.max_age.is_some_and(|max| age > max)
        {
            return false;
        }
        let unsaid = match self.is_stale_where_said {
            true => 0,
            false => cut_off.unwrap_or(0).max(directives.stale_if_error.unwrap_or(0)),
        };
        let allowed = self.stale_if_error.max(unsaid);
        allowed > 0 && age.saturating_sub(self.lifetime) <= allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: Policy = Policy {
        stored_ms: 1_000_000,
        initial_age: 2,
        lifetime: 10,
        stale_while_revalidate: 0,
        stale_if_error: 0,
        is_validated_always: false,
        is_never_stale: false,
        is_stale_where_said: false,
    };

    fn at(seconds: u64) -> u64 {
        POLICY.stored_ms + seconds * 1000
    }

    #[test]
    fn responses_are_fresh_until_their_lifetime_ends() {
        let directives = RequestDirectives::default();
        assert_eq!(POLICY.judge(&directives, at(0), false), Verdict::Fresh);
        assert_eq!(POLICY.judge(&directives, at(7), false), Verdict::Fresh);
        assert_eq!(POLICY.judge(&directives, at(8), false), Verdict::Validate);
        assert_eq!(POLICY.judge(&directives, at(0), true), Verdict::Validate);
        let no_cache = Policy { is_validated_always: true, ..POLICY };
        assert_eq!(no_cache.judge(&directives, at(0), false), Verdict::Validate);
        assert_eq!((POLICY.fresh_for(at(0)), POLICY.fresh_for(at(18))), (8, -10));
    }

    #[test]
    fn a_request_may_ask_for_more_or_less() {
        let ask = |directives: RequestDirectives, seconds| POLICY.judge(&directives, at(seconds), false);
        assert_eq!(
            ask(RequestDirectives { no_cache: true, ..RequestDirectives::default() }, 0),
            Verdict::Validate
        );
        assert_eq!(
            ask(RequestDirectives { max_age: Some(2), ..RequestDirectives::default() }, 0),
            Verdict::Fresh
        );
        assert_eq!(
            ask(RequestDirectives { max_age: Some(1), ..RequestDirectives::default() }, 0),
            Verdict::Validate
        );
        assert_eq!(
            ask(RequestDirectives { min_fresh: Some(8), ..RequestDirectives::default() }, 0),
            Verdict::Fresh
        );
        assert_eq!(
            ask(RequestDirectives { min_fresh: Some(9), ..RequestDirectives::default() }, 0),
            Verdict::Validate
        );
        let stale = RequestDirectives { max_stale: Some(3), ..RequestDirectives::default() };
        assert_eq!((ask(stale, 11), ask(stale, 12)), (Verdict::Stale, Verdict::Validate));
        let strict = Policy { is_never_stale: true, ..POLICY };
        assert_eq!(strict.judge(&stale, at(9), false), Verdict::Validate);
        let shared = Policy { is_stale_where_said: true, ..POLICY };
        assert_eq!(shared.judge(&stale, at(9), false), Verdict::Validate);
    }

    #[test]
    fn stale_while_revalidate_is_limited() {
        let policy = Policy { stale_while_revalidate: 5, ..POLICY };
        let directives = RequestDirectives::default();
        assert_eq!(policy.judge(&directives, at(8), false), Verdict::Refresh);
        assert_eq!(policy.judge(&directives, at(13), false), Verdict::Refresh);
        assert_eq!(policy.judge(&directives, at(14), false), Verdict::Validate);
        assert_eq!(policy.judge(&directives, at(0), true), Verdict::Refresh);
    }

    #[test]
    fn stale_if_error_is_honoured() {
        let directives = RequestDirectives::default();
        assert!(!POLICY.stands_in(&directives, at(9), None));
        assert!(
            POLICY.stands_in(&directives, at(9), Some(5)) && !POLICY.stands_in(&directives, at(14), Some(5))
        );
        let said = Policy { stale_if_error: 5, ..POLICY };
        assert!(said.stands_in(&directives, at(13), None) && !said.stands_in(&directives, at(14), None));
        let wants = RequestDirectives { stale_if_error: Some(5), ..directives };
        assert!(POLICY.stands_in(&wants, at(9), None));
        for never in [
            Policy { is_never_stale: true, ..said },
            Policy { is_validated_always: true, ..said },
            Policy { is_stale_where_said: true, ..POLICY },
        ] {
            assert!(!never.stands_in(&directives, at(9), Some(5)), "{never:?}");
        }
        assert!(!said.stands_in(&RequestDirectives { no_cache: true, ..directives }, at(9), Some(5)));
    }
}
