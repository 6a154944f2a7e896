//! Sends requests to the upstream: for one client, or for all that miss together.

use std::rc::Rc;
use std::sync::Arc;

use flatout_engine::{Reply, Request, Response};
use flatout_wire::cache::Verdict;
use flatout_wire::{Method, Status};

use crate::entry::{Entry, write_line};
use crate::fetch::bypass::StoreEffect;
use crate::fetch::fill::{Fill, FillRequest};
use crate::fetch::flight::{Flight, Outcome};
use crate::fetch::{Fetch, bad_gateway};
use crate::policy::{LEFT_OUT, is_early};
use crate::respond;
use crate::status::{CacheOutcome, CacheStatus};
use crate::store::{FlightRole, Found};
use crate::worker::{CacheWorker, Lookup};
use flatout_gateway::{Forwarded, ResponseOrigin};
use flatout_proxy::ParkedClient;

impl CacheWorker {
    /// Sends this request to the upstream, alone or for all that wait for the same response.
    pub(crate) fn ask(
        self: &Rc<Self>,
        request: Request<'_>,
        forwarded: Forwarded<'_>,
        lookup: Lookup<'_>,
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
        if lookup.directives.only_if_cached {
            let cache_status = lookup.cache_status(CacheStatus {
                detail: Some("only-if-cached"),
                ..CacheStatus::forwarded(label, reason)
            });
            respond::refuse(Status::GATEWAY_TIMEOUT, cache_status.as_ref(), response);
            forwarded.finish.finish(response, ResponseOrigin::Here);
            self.counters.count_response(label, response);
            return Reply::Now;
        }
        // The upstream may treat it as a possible replay, and others must not get what it sends for that.
        let is_early = is_early(&request, &forwarded);
        if !is_known
            && !is_early
            && lookup.cache_fields.conditions.has_range
            && let Some(start) = self.sliced(&request.head, &lookup, None)
            && self.store.is_used_enough(lookup.key.hash, lookup.rules.rules.uses_min)
        {
            return self.answer_sliced(request, forwarded, &lookup, start, None, response);
        }
        let is_alone = request.head.method == Method::Head
            || (!is_known && lookup.cache_fields.conditions.has_range)
            || lookup.rules.is_unstored
            || is_early
            || lookup.directives.no_store
            || !self.store.is_used_enough(lookup.key.hash, lookup.rules.rules.uses_min);
        if is_alone {
            let after = match (&found.entry, request.head.method) {
                (Some(entry), Method::Head) => StoreEffect::Compare(entry.clone()),
                _ => StoreEffect::Nothing,
            };
            return self.pass(request, forwarded, CacheStatus::forwarded(label, reason), after, response);
        }
        let shares = !lookup.cache_fields.is_authorized && !self.store.is_passed(found.slot, lookup.now_ms);
        let joined = match shares {
            true => self.store.join(&lookup.key, found.slot, found.entry.as_ref()),
            false => FlightRole::Alone,
        };
        let flight = match joined {
            FlightRole::Follows(flight) => {
                self.counters.collapsed();
                let cache_status =
                    CacheStatus { is_collapsed: true, ..CacheStatus::forwarded(label, reason) };
                let fetch = Fetch { flight, stale: found.entry, cache_status };
                return self.follow(&request, &forwarded, &lookup, fetch);
            }
            FlightRole::Here(entry) => {
                let is_ours = entry.vary().is_empty() || self.is_selected(&entry, &request.head);
                let verdict = entry.policy.judge(&lookup.directives, lookup.now_ms, entry.is_expired());
                if is_ours && verdict == Verdict::Fresh {
                    self.serve(&entry, found.slot, CacheOutcome::Hit, &request.head, &lookup, response);
                    forwarded.finish.finish(response, ResponseOrigin::Upstream);
                    return Reply::Now;
                }
                Arc::new(Flight::new(found.slot, self.store.moment()))
            }
            FlightRole::Leads(flight) => flight,
            FlightRole::Alone => Arc::new(Flight::new(found.slot, self.store.moment())),
        };
        let cache_status = CacheStatus::forwarded(label, reason);
        let fetch = Fetch { flight, stale: found.entry, cache_status };
        self.lead_client(&request, &forwarded, &lookup, fetch, response)
    }

    /// Sends a request to the upstream whatever is stored, and stores the response.
    #[inline(never)]
    pub(crate) fn renew(
        self: &Rc<Self>,
        request: Request<'_>,
        forwarded: Forwarded<'_>,
        lookup: Lookup<'_>,
        response: &mut Response,
    ) -> Reply {
        let cache_status = CacheStatus::forwarded(CacheOutcome::Bypass, "bypass");
        let is_part = lookup.cache_fields.conditions.has_range || lookup.rules.rules.slice_bytes.is_some();
        let is_stored = request.head.method == Method::Get
            && !is_part
            && !lookup.rules.is_unstored
            && !lookup.directives.no_store
            && !is_early(&request, &forwarded);
        if !is_stored {
            return self.pass(request, forwarded, cache_status, StoreEffect::Nothing, response);
        }
        let found = self.find(&lookup, &request.head);
        // Others do not wait for it: they get what is stored.
        let flight = Arc::new(Flight::new(found.slot, self.store.moment()));
        let fetch = Fetch { flight, stale: None, cache_status };
        self.lead_client(&request, &forwarded, &lookup, fetch, response)
    }

    /// Sends a client's request to the upstream, and parks it until the response arrives.
    fn lead_client(
        self: &Rc<Self>,
        request: &Request<'_>,
        forwarded: &Forwarded<'_>,
        lookup: &Lookup<'_>,
        fetch: Fetch,
        response: &mut Response,
    ) -> Reply {
        let client = ParkedClient { exchange: request.park(), finish: forwarded.finish.clone() };
        match self.lead(request, forwarded, lookup, fetch, Some(client)) {
            true => Reply::Parked,
            false => bad_gateway(&*forwarded.finish, response),
        }
    }

    /// Validates a stale entry in the background, while it is served. Returns whether this began now.
    pub(crate) fn refresh(
        self: &Rc<Self>,
        request: &Request<'_>,
        forwarded: &Forwarded<'_>,
        lookup: &Lookup<'_>,
        found: &Found,
    ) -> bool {
        if request.head.method != Method::Get || lookup.rules.is_unstored || is_early(request, forwarded) {
            return false;
        }
        let joined = self.store.join(&lookup.key, found.slot, found.entry.as_ref());
        let FlightRole::Leads(flight) = joined else { return false };
        let cache_status = CacheStatus::forwarded(CacheOutcome::Expired, "stale");
        let fetch = Fetch { flight, stale: found.entry.clone(), cache_status };
        self.lead(request, forwarded, lookup, fetch, None)
    }

    /// Sends the request of a flight to the upstream. Returns `false` if there is no upstream.
    fn lead(
        self: &Rc<Self>,
        request: &Request<'_>,
        forwarded: &Forwarded<'_>,
        lookup: &Lookup<'_>,
        fetch: Fetch,
        client: Option<ParkedClient>,
    ) -> bool {
        let mut edits = forwarded.edits;
        edits.handled = &LEFT_OUT;
        let asked = Forwarded { edits, finish: forwarded.finish.clone(), ..*forwarded };
        let Fetch { flight, stale, cache_status } = fetch;
        let Some(mut prepared) = self.proxy_worker.prepare(request, &asked) else {
            self.store.land(&flight);
            flight.settle(Outcome::Failed(Status::BAD_GATEWAY));
            return false;
        };
        if let Some(stale) = &stale {
            prepared.add_lines(&conditions(stale));
        }
        let order = FillRequest {
            key: lookup.key.to_buf(),
            rules: lookup.rules.rules.clone(),
            head: request.head.kept_bytes(),
            directives: lookup.directives,
            conditions: lookup.cache_fields.conditions,
            is_authorized: lookup.cache_fields.is_authorized && !lookup.rules.names_authorization,
            has_authorization_key: lookup.rules.names_authorization,
            asked_ms: lookup.now_ms,
            cache_status,
        };
        self.proxy_worker.fetch(prepared, Rc::new(Fill::new(self.clone(), flight, stale, client, order)));
        true
    }
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
