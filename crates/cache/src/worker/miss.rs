//! Sends requests to the upstream: for one client, or for all that miss together.

use std::rc::Rc;
use std::sync::Arc;

use flatout_engine::{Reply, Request, Response};
use flatout_wire::cache::Verdict;
use flatout_wire::{Method, Status};

use super::fields::{LEFT_OUT, left_out_always};
use super::{Caching, Case};
use crate::entry::{Entry, write_line};
use crate::fill::{Fill, FillRequest};
use crate::flight::{Flight, Outcome};
use crate::invalidate::{After, CacheFinish};
use crate::respond;
use crate::status::{CacheOutcome, CacheStatus};
use crate::store::{FlightRole, Found};
use flatout_gateway::{Forwarded, Forwarding, ResponseOrigin};
use flatout_proxy::ParkedClient;

impl Caching {
    /// Sends this request to the upstream, alone or for all that wait for the same response.
    pub(super) fn ask(
        &self,
        request: Request<'_>,
        what: Forwarded<'_>,
        case: Case<'_>,
        found: Found,
        response: &mut Response,
    ) -> Reply {
        let is_known = found.entry.is_some();
        let label = if is_known { CacheOutcome::Expired } else { CacheOutcome::Miss };
        let reason = match (is_known, found.is_other_variant) {
            (true, _) => "stale",
            (false, true) => "vary-miss",
            (false, false) => "uri-miss",
        };
        if case.asks.only_if_cached {
            let cache_status = case.cache_status(CacheStatus {
                detail: Some("only-if-cached"),
                ..CacheStatus::forwarded(label, reason)
            });
            respond::refuse(Status::GATEWAY_TIMEOUT, cache_status.as_ref(), response);
            what.finish.finish(response, ResponseOrigin::Here);
            self.counters.count(label);
            return Reply::Now;
        }
        // The upstream may treat it as a possible replay, and others must not get what it sends for that.
        let is_early = is_early(&request, &what);
        if !is_known
            && !is_early
            && case.cache_fields.conditions.has_range
            && let Some(start) = self.sliced(&request.head, &case, None)
            && self.store.is_used_enough(case.key.hash, case.rules.rules.uses_min)
        {
            return self.answer_sliced(request, what, &case, start, None, response);
        }
        let is_alone = request.head.method == Method::Head
            || (!is_known && case.cache_fields.conditions.has_range)
            || case.rules.is_unstored
            || is_early
            || case.asks.no_store
            || !self.store.is_used_enough(case.key.hash, case.rules.rules.uses_min);
        if is_alone {
            let after = match (&found.entry, request.head.method) {
                (Some(entry), Method::Head) => After::Compare(entry.clone()),
                _ => After::Nothing,
            };
            return self.pass(request, what, CacheStatus::forwarded(label, reason), after, response);
        }
        let shares = !case.cache_fields.is_authorized && !self.store.is_passed(found.slot, case.now_ms);
        let joined = match shares {
            true => self.store.join(&case.key, found.slot, found.entry.as_ref()),
            false => FlightRole::Alone,
        };
        let flight = match joined {
            FlightRole::Follows(flight) => {
                self.counters.collapsed();
                let cache_status =
                    CacheStatus { is_collapsed: true, ..CacheStatus::forwarded(label, reason) };
                return self.follow(&request, &what, &case, flight, found.entry, cache_status, response);
            }
            FlightRole::Here(entry) => {
                let is_ours = entry.vary().is_empty() || self.is_selected(&entry, &request.head);
                let verdict = entry.policy.judge(&case.asks, case.now_ms, entry.is_expired());
                if is_ours && verdict == Verdict::Fresh {
                    self.serve(&entry, found.slot, CacheOutcome::Hit, &request.head, &case, response);
                    what.finish.finish(response, ResponseOrigin::Upstream);
                    return Reply::Now;
                }
                Arc::new(Flight::new(found.slot, self.store.moment()))
            }
            FlightRole::Leads(flight) => flight,
            FlightRole::Alone => Arc::new(Flight::new(found.slot, self.store.moment())),
        };
        let client = ParkedClient { exchange: request.park(), finish: what.finish.clone() };
        let finish = what.finish.clone();
        if self.lead(
            &request,
            &what,
            &case,
            flight,
            found.entry,
            Some(client),
            CacheStatus::forwarded(label, reason),
        ) {
            return Reply::Parked;
        }
        respond::refuse(Status::BAD_GATEWAY, None, response);
        finish.finish(response, ResponseOrigin::Here);
        Reply::Now
    }

    /// Validates a stale entry in the background, after it was served.
    pub(super) fn refresh(
        &self,
        request: &Request<'_>,
        what: &Forwarded<'_>,
        case: &Case<'_>,
        found: &Found,
    ) {
        if request.head.method != Method::Get || case.rules.is_unstored || is_early(request, what) {
            return;
        }
        let joined = self.store.join(&case.key, found.slot, found.entry.as_ref());
        if let FlightRole::Leads(flight) = joined {
            let cache_status = CacheStatus::forwarded(CacheOutcome::Expired, "stale");
            self.lead(request, what, case, flight, found.entry.clone(), None, cache_status);
        }
    }

    /// Sends the request of a flight to the upstream. Returns `false` if there is no upstream.
    #[expect(clippy::too_many_arguments, reason = "they are what an order is made of")]
    fn lead(
        &self,
        request: &Request<'_>,
        what: &Forwarded<'_>,
        case: &Case<'_>,
        flight: Arc<Flight>,
        stale: Option<Arc<Entry>>,
        client: Option<ParkedClient>,
        cache_status: CacheStatus,
    ) -> bool {
        let mut edits = what.edits;
        edits.left_out = &LEFT_OUT;
        let asked = Forwarded { edits, finish: what.finish.clone(), ..*what };
        let (Some(mut prepared), Some(caching)) =
            (self.proxy_worker.prepare(request, &asked), self.me.upgrade())
        else {
            self.store.land(&flight);
            flight.settle(Outcome::Failed(Status::BAD_GATEWAY));
            return false;
        };
        if let Some(stale) = &stale {
            prepared.add_lines(&conditions(stale));
        }
        let order = FillRequest {
            key: case.key.to_buf(),
            rules: case.rules.rules.clone(),
            head: request.head.bytes().to_vec(),
            asks: case.asks,
            conditions: case.cache_fields.conditions,
            is_authorized: case.cache_fields.is_authorized && !case.rules.names_authorization,
            has_authorization_key: case.rules.names_authorization,
            asked_ms: case.now_ms,
            cache_status,
        };
        self.proxy_worker.fetch(prepared, Rc::new(Fill::new(caching, flight, stale, client, order)));
        true
    }

    /// Forwards a request without using the cache, except for the `Cache-Status` field and invalidation.
    pub(crate) fn pass(
        &self,
        request: Request<'_>,
        mut what: Forwarded<'_>,
        cache_status: CacheStatus,
        after: After,
        response: &mut Response,
    ) -> Reply {
        let says = what.caching.is_some_and(|caching| caching.rules.says_status);
        what.edits.left_out = left_out_always();
        self.counters.count(cache_status.label);
        what.finish = Rc::new(CacheFinish {
            inner: what.finish,
            cache_status: says.then_some(cache_status),
            store: self.store.clone(),
            after,
        });
        self.proxy_worker.forward(request, what, response)
    }
}

/// Whether the upstream may see it as early data (RFC 8470): it arrived so, or its client says that.
fn is_early(request: &Request<'_>, what: &Forwarded<'_>) -> bool {
    what.client.is_early || request.head.field("early-data").is_some()
}

/// The fields of a request that validates an entry.
fn conditions(entry: &Entry) -> Vec<u8> {
    let mut lines = Vec::new();
    for (name, value) in entry.fields() {
        if name.eq_ignore_ascii_case(b"etag") {
            write_line(b"If-None-Match", value, &mut lines);
        } else if name.eq_ignore_ascii_case(b"last-modified") {
            write_line(b"If-Modified-Since", value, &mut lines);
        }
    }
    lines
}
