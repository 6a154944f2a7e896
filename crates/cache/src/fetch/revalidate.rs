//! Responses to requests for which there is a stale entry: it is served instead of an error, or updated by a 304.

use std::sync::Arc;

use flatout_engine::{Lane, Response};
use flatout_lane::clock;
use flatout_wire::Status;
use flatout_wire::cache::{Policy, StorageDecision, initial_age, is_kept_on_update, is_stored};

use super::fill::Fill;
use crate::entry::{Content, Entry};
use crate::fetch::flight::Outcome;
use crate::status::{CacheOutcome, CacheStatus};
use flatout_gateway::ResponseOrigin;
use flatout_proxy::Disposition;

impl Fill {
    /// The upstream failed: serves a stale response instead, if that is allowed.
    pub(crate) fn fail(&self, lane: &Lane, response: Box<Response>, by: ResponseOrigin) -> Disposition {
        let now_ms = clock::unix_milliseconds();
        let status = response.status();
        self.settle(match self.is_named(status, by) {
            true => Outcome::Failed(status),
            false => Outcome::Rejected(status),
        });
        match &self.stale {
            Some(stale) if self.may_replace(stale, status, by, now_ms) => {
                let ttl = Some(stale.policy.fresh_for(now_ms));
                let cache_status =
                    CacheStatus { ttl, detail: Some("error"), ..CacheStatus::of(CacheOutcome::Stale) };
                self.answer_with(lane, stale, cache_status, now_ms);
            }
            _ => {
                let status = (by == ResponseOrigin::Upstream).then_some(status.code());
                self.relay(lane, response, CacheStatus { status, ..self.order.cache_status }, by);
            }
        }
        Disposition::Consumed(false)
    }

    /// Whether a stale response may replace this one.
    pub(crate) fn may_replace(&self, stale: &Entry, status: Status, by: ResponseOrigin, now_ms: u64) -> bool {
        let is_named = self.is_named(status, by);
        let is_failure = is_named || matches!(status.code(), 500 | 502 | 503 | 504);
        let cut_off = is_named.then(|| self.order.rules.stale_seconds());
        is_failure && stale.policy.stands_in(&self.order.directives, now_ms, cut_off)
    }

    /// Whether it is a failure of the connection, or has a status that a rule names.
    fn is_named(&self, status: Status, by: ResponseOrigin) -> bool {
        by == ResponseOrigin::Here || self.order.rules.is_replaced(status.code())
    }

    /// The stale response is still valid: updates it with the fields of the 304.
    pub(crate) fn revalidated(&self, lane: &Lane, stale: &Arc<Entry>, response: &Response) -> Disposition {
        let now_ms = clock::unix_milliseconds();
        let fields = updated(stale, response, now_ms / 1000);
        let fields = || fields.iter().map(|(name, value)| (name.as_slice(), value.as_slice()));
        let decision = self.storage_decision(stale.status, fields(), now_ms);
        let updated = |decision: &StorageDecision| {
            self.entry(stale.status, fields(), decision, now_ms, Content::Of(stale.owner().clone()))
        };
        let is_replaced = self.is_replaced(stale);
        let is_stored = decision.is_ok() && !is_replaced;
        let entry = match &decision {
            Ok(decision) if !is_stored => Arc::new(updated(decision)),
            Ok(decision) => self.worker.store.insert(&self.key(), updated(decision), self.flight.asked).0,
            // It must not be stored any more, and serves only this request: with what the 304 says to other caches.
            Err(_) => {
                if !is_replaced {
                    self.worker.store.remove_everywhere(&self.key(), self.flight.slot, stale);
                }
                let age = fields().find(|(name, _)| name.eq_ignore_ascii_case(b"age"));
                let said = age.and_then(|(_, value)| std::str::from_utf8(value).ok()?.trim().parse().ok());
                let initial_age = initial_age(said.unwrap_or(0), None, self.order.asked_ms, now_ms);
                let policy = Policy { stored_ms: now_ms, initial_age, ..Policy::default() };
                Arc::new(updated(&StorageDecision { policy, withheld: Vec::new() }))
            }
        };
        // Requests that wait get it too, unless each has to validate it or there is another one for them.
        let is_shared = is_stored && !entry.policy.is_validated_always;
        self.settle(if is_shared { Outcome::Whole(entry.clone()) } else { Outcome::Released });
        let cache_status = CacheStatus {
            status: Some(304),
            ttl: Some(entry.policy.fresh_for(now_ms)),
            is_stored,
            ..CacheStatus::forwarded(CacheOutcome::Revalidated, "stale")
        };
        self.answer_with(lane, &entry, cache_status, now_ms);
        Disposition::Consumed(false)
    }

    /// Whether another request has stored another response in place of this one since the upstream was asked: one that bypassed it
    /// (`cache-refresh`, or no-cache). The older response is valid for this request, but must not come back into the cache.
    fn is_replaced(&self, stale: &Entry) -> bool {
        self.worker.store.at(self.flight.slot, &self.key()).is_some_and(|current| {
            !current.shares_body(stale)
                && current.selected() == stale.selected()
                && current.policy.stored_ms >= self.order.asked_ms
        })
    }
}

/// The fields of a stored response updated from a 304 (RFC 9111 section 3.2), with the age of the 304.
fn updated(stale: &Entry, response: &Response, now: u64) -> Vec<(Vec<u8>, Vec<u8>)> {
    let is_new = |name: &[u8]| {
        is_stored(name) && !is_kept_on_update(name) && !name.eq_ignore_ascii_case(b"set-cookie")
    };
    let confirmed: Vec<(Vec<u8>, Vec<u8>)> = response
        .fields()
        .filter(|(name, _)| is_new(name) || name.eq_ignore_ascii_case(b"age"))
        .map(|(name, value)| (name.to_vec(), value.to_vec()))
        .collect();
    let is_confirmed = |name: &[u8]| confirmed.iter().any(|(this, _)| this.eq_ignore_ascii_case(name));
    // Its age is that of the response that has confirmed it.
    let is_kept = |name: &[u8]| !is_confirmed(name) && !name.eq_ignore_ascii_case(b"date");
    let mut fields: Vec<(Vec<u8>, Vec<u8>)> = stale
        .fields()
        .filter(|(name, _)| is_kept(name))
        .map(|(name, value)| (name.to_vec(), value.to_vec()))
        .collect();
    let has_date = is_confirmed(b"date");
    fields.extend(confirmed);
    if !has_date {
        fields.push((b"Date".to_vec(), flatout_wire::date::format(now).to_vec()));
    }
    fields
}
