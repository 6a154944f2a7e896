//! Sends requests to the upstream: for one client, or for all that miss together.

use std::rc::Rc;
use std::sync::Arc;

use flatout_engine::{Reply, Request, Response};
use flatout_wire::cache::Verdict;
use flatout_wire::{Method, Status};

use super::looked::{LEFT_OUT, left_out_always};
use super::{Caching, Case};
use crate::cache::entry::{Entry, write_line};
use crate::cache::fill::{Fill, Order};
use crate::cache::flight::{Flight, Outcome};
use crate::cache::invalidate::{After, Marked};
use crate::cache::label::{Label, Said};
use crate::cache::respond;
use crate::cache::store::{Found, Joined};
use crate::proxy::Asker;
use crate::site::{Forwarded, Forwarding, MadeBy};

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
        let label = if is_known { Label::Expired } else { Label::Miss };
        let reason = match (is_known, found.is_other_variant) {
            (true, _) => "stale",
            (false, true) => "vary-miss",
            (false, false) => "uri-miss",
        };
        if case.asks.only_if_cached {
            let said = case.said(Said { detail: Some("only-if-cached"), ..Said::forwarded(label, reason) });
            respond::refuse(Status::GATEWAY_TIMEOUT, said.as_ref(), response);
            what.finish.finish(response, MadeBy::Here);
            self.counters.count(label);
            return Reply::Now;
        }
        if !is_known
            && case.looked.wishes.has_range
            && let Some(start) = self.sliced(&request.head, &case, None)
            && self.store.is_used_enough(case.key.hash, case.rules.rules.uses_min)
        {
            return self.answer_sliced(request, what, &case, start, None, response);
        }
        let is_alone = request.head.method == Method::Head
            || (!is_known && case.looked.wishes.has_range)
            || case.rules.is_unstored
            || case.asks.no_store
            || !self.store.is_used_enough(case.key.hash, case.rules.rules.uses_min);
        if is_alone {
            let after = match (&found.entry, request.head.method) {
                (Some(entry), Method::Head) => After::Compare(entry.clone()),
                _ => After::Nothing,
            };
            return self.pass(request, what, Said::forwarded(label, reason), after, response);
        }
        let shares = !case.looked.is_authorized && !self.store.is_passed(found.slot, case.now_ms);
        let joined = match shares {
            true => self.store.join(&case.key, found.slot, found.entry.as_ref()),
            false => Joined::Alone,
        };
        let flight = match joined {
            Joined::Follows(flight) => {
                let said = Said { is_collapsed: true, ..Said::forwarded(label, reason) };
                return self.follow(
                    request,
                    what,
                    flight,
                    found.entry,
                    (case.asks, case.looked.wishes),
                    said,
                    response,
                );
            }
            Joined::Here(entry) => {
                let is_ours = entry.vary().is_empty() || self.is_selected(&entry, &request.head);
                let verdict = entry.policy.judge(&case.asks, case.now_ms, entry.is_expired());
                if is_ours && verdict == Verdict::Fresh {
                    self.serve(&entry, found.slot, Label::Hit, &request.head, &case, response);
                    what.finish.finish(response, MadeBy::Upstream);
                    return Reply::Now;
                }
                Arc::new(Flight::new(found.slot, self.store.moment()))
            }
            Joined::Leads(flight) => flight,
            Joined::Alone => Arc::new(Flight::new(found.slot, self.store.moment())),
        };
        let asker = Asker { exchange: request.park(), finish: what.finish.clone() };
        let finish = what.finish.clone();
        if self.lead(&request, &what, &case, flight, found.entry, Some(asker), Said::forwarded(label, reason))
        {
            return Reply::Parked;
        }
        respond::refuse(Status::BAD_GATEWAY, None, response);
        finish.finish(response, MadeBy::Here);
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
        if request.head.method != Method::Get || case.rules.is_unstored {
            return;
        }
        let joined = self.store.join(&case.key, found.slot, found.entry.as_ref());
        if let Joined::Leads(flight) = joined {
            let said = Said::forwarded(Label::Expired, "stale");
            self.lead(request, what, case, flight, found.entry.clone(), None, said);
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
        asker: Option<Asker>,
        said: Said,
    ) -> bool {
        let mut edits = what.edits;
        edits.left_out = &LEFT_OUT;
        let asked = Forwarded { edits, finish: what.finish.clone(), ..*what };
        let (Some(mut prepared), Some(caching)) = (self.links.prepare(request, &asked), self.me.upgrade())
        else {
            self.store.land(&flight);
            flight.settle(Outcome::Failed(Status::BAD_GATEWAY));
            return false;
        };
        if let Some(stale) = &stale {
            prepared.add_lines(&conditions(stale));
        }
        let order = Order {
            key: [case.key.url, case.key.rest].concat(),
            url_ends: case.key.url.len(),
            is_custom: case.key.is_custom,
            rules: case.rules.rules.clone(),
            head: request.head.bytes().to_vec(),
            asks: case.asks,
            wishes: case.looked.wishes,
            is_authorized: case.looked.is_authorized && !case.rules.names_authorization,
            asked_ms: case.now_ms,
            said,
        };
        self.links.fetch(prepared, Rc::new(Fill::new(caching, flight, stale, asker, order)));
        true
    }

    /// Forwards a request without using the cache, except for the `Cache-Status` field and invalidation.
    pub(in crate::cache) fn pass(
        &self,
        request: Request<'_>,
        mut what: Forwarded<'_>,
        said: Said,
        after: After,
        response: &mut Response,
    ) -> Reply {
        let says = what.caching.is_some_and(|caching| caching.rules.says_status);
        what.edits.left_out = left_out_always();
        self.counters.count(said.label);
        what.finish = Rc::new(Marked {
            inner: what.finish,
            said: says.then_some(said),
            store: self.store.clone(),
            after,
        });
        self.links.forward(request, what, response)
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
