//! Serves requests from the cache: from the worker's own entries, from the shared ones, or from disk.

use std::sync::Arc;

use flatout_engine::{Reply, Request, Response};
use flatout_wire::Head;
use flatout_wire::cache::{Asks, Verdict};

use super::{Caching, Case, select};
use crate::encodings::Served;
use crate::entry::{Entry, body_of};
use crate::flight::{Flight, Outcome};
use crate::repeat::KnownResponse;
use crate::respond;
use crate::status::{CacheOutcome, CacheStatus};
use crate::store::{DiskLoad, FlightRole, Store};
use flatout_gateway::Forwarded;

impl Caching {
    /// Serves a request from this worker's own entries, if one is fresh. Returns its slot. Allocates nothing.
    #[inline]
    pub(super) fn hit(
        &self,
        head: &Head<'_>,
        what: &Forwarded<'_>,
        case: &Case<'_>,
        response: &mut Response,
    ) -> Option<u64> {
        let mut front = self.front.borrow_mut();
        let hash = case.key.hash;
        let first = front.peek(hash).filter(|first| first.entry.is_live() && first.entry.is_of(&case.key))?;
        let mut slot_at = hash;
        if !first.entry.vary().is_empty() {
            first.entry.touch(case.now_ms);
            let mut selected = self.selected.borrow_mut();
            selected.clear();
            select(head, first.entry.vary(), &mut selected);
            if first.entry.selected() != *selected {
                let family = first.entry.family;
                slot_at = self.store.slot_of(hash, &selected);
                let other = front.peek(slot_at).map(|other| &other.entry);
                let is_it = |it: &Arc<Entry>| {
                    it.family == family && it.is_of(&case.key) && it.selected() == *selected
                };
                if !other.is_some_and(is_it) {
                    return None;
                }
            }
        }
        // A hit counts once: what counts twice is never due if the count is odd.
        let (slot, is_due) = front.get(slot_at)?;
        let entry = &slot.entry;
        if entry.policy.judge(&case.asks, case.now_ms, entry.is_expired()) != Verdict::Fresh {
            return None;
        }
        entry.touch(case.now_ms);
        let (conditions, says_status) = (case.cache_fields.conditions, case.rules.rules.says_status);
        let has_wishes = conditions.has_conditions || conditions.has_range;
        if has_wishes {
            let ttl = Some(entry.policy.fresh_for(case.now_ms));
            let cache_status = case.cache_status(CacheStatus { ttl, ..CacheStatus::of(CacheOutcome::Hit) });
            let body = slot.body.clone();
            respond::write(entry, body, head, conditions, case.now_ms, cache_status.as_ref(), response);
        } else {
            slot.write(case.now_ms, says_status, response);
        }
        if case.rules.repeats && !has_wishes && case.asks == Asks::default() && slot_at == hash {
            let known = || KnownResponse::new(slot_at, &slot.entry, says_status, what.finish.clone());
            self.repeats.borrow_mut().note(head.bytes(), what.client.is_https, known);
        }
        if is_due {
            self.store.touch(slot_at);
            // Without the first variant the others are not found.
            self.store.touch(hash);
        }
        Some(slot_at)
    }

    pub(super) fn is_selected(&self, entry: &Entry, head: &Head<'_>) -> bool {
        let mut selected = self.selected.borrow_mut();
        selected.clear();
        select(head, entry.vary(), &mut selected);
        entry.selected() == *selected
    }

    #[inline(never)]
    pub(crate) fn look(
        &self,
        request: Request<'_>,
        what: Forwarded<'_>,
        case: Case<'_>,
        response: &mut Response,
    ) -> Reply {
        let head = request.head;
        let find = || {
            let mut found = self.store.find(&case.key, case.now_ms, |names, out| select(&head, names, out));
            if let (None, Some(slot)) = (&found.entry, case.waited.variant) {
                // The first variant may still be arriving, and not be stored yet.
                (found.slot, found.is_other_variant) = (slot, true);
            }
            found
        };
        let mut found = find();
        let may_be_on_disk = case.waited.was_on_disk != Some(false) && self.store.disk().is_some();
        if found.entry.is_none() && may_be_on_disk {
            let select = |names: &[u8], out: &mut Vec<u8>| select(&head, names, out);
            match self.store.read_from_disk(&case.key, found.slot, case.now_ms, select) {
                DiskLoad::Nothing => {}
                DiskLoad::Here => found = find(),
                DiskLoad::Cold(slot) => {
                    if let FlightRole::Leads(flight) = self.store.join(&case.key, found.slot, None) {
                        return self.read_from_disk_slowly(request, what, &case, flight, slot, response);
                    }
                }
            }
        }
        if let Some(manifest) = found.entry.take_if(|entry| entry.is_manifest())
            && let Some(start) = self.sliced(&head, &case, Some(&manifest))
        {
            return self.answer_sliced(request, what, &case, start, Some(manifest), response);
        }
        if let Some(entry) = &found.entry {
            let verdict = entry.policy.judge(&case.asks, case.now_ms, entry.is_expired());
            let label = match verdict {
                Verdict::Fresh => CacheOutcome::Hit,
                Verdict::Stale => CacheOutcome::Stale,
                Verdict::Refresh => CacheOutcome::Updating,
                Verdict::Validate => return self.ask(request, what, case, found, response),
            };
            self.serve(entry, found.slot, label, &head, &case, response);
            if verdict == Verdict::Refresh {
                self.refresh(&request, &what, &case, &found);
            }
            let served = Served { caching: self, slot: found.slot, hash: case.key.hash };
            what.finish.finish_stored(response, &served);
            return Reply::Now;
        }
        self.ask(request, what, case, found, response)
    }

    /// Reads an entry from disk on another thread. After that, the request goes through the cache again.
    fn read_from_disk_slowly(
        &self,
        request: Request<'_>,
        what: Forwarded<'_>,
        case: &Case<'_>,
        flight: Arc<Flight>,
        slot: u64,
        response: &mut Response,
    ) -> Reply {
        let reading = Reading { store: self.store.clone(), flight: flight.clone() };
        let (key, now_ms) = (case.key.to_buf(), case.now_ms);
        tokio::task::spawn_blocking(move || {
            let Reading { store, flight } = &reading;
            let is_there =
                store.read_from_disk_slowly(&store.key_of(&key), slot, now_ms, flight.asked).is_some();
            store.land(flight);
            flight.settle(Outcome::Loaded(is_there));
        });
        let cache_status = CacheStatus::forwarded(CacheOutcome::Miss, "uri-miss");
        self.follow(&request, &what, case, flight, None, cache_status, response)
    }

    pub(super) fn serve(
        &self,
        entry: &Arc<Entry>,
        slot: u64,
        label: CacheOutcome,
        head: &Head<'_>,
        case: &Case<'_>,
        response: &mut Response,
    ) {
        let body = match label {
            CacheOutcome::Hit => self.front.borrow_mut().put(slot, entry),
            _ => body_of(entry),
        };
        let ttl = Some(entry.policy.fresh_for(case.now_ms));
        let detail = case.waited.was_on_disk.and_then(|is_there| is_there.then_some("disk"));
        let cache_status = case.cache_status(CacheStatus { ttl, detail, ..CacheStatus::of(label) });
        respond::write(
            entry,
            body,
            head,
            case.cache_fields.conditions,
            case.now_ms,
            cache_status.as_ref(),
            response,
        );
        self.counters.count(label);
    }
}

/// A read from disk that requests wait for. Dropping it ends the read, also after a panic or if the runtime shuts down before the read
/// runs: otherwise the requests would wait forever.
struct Reading {
    store: Arc<Store>,
    flight: Arc<Flight>,
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.store.land(&self.flight);
        // If it has an outcome, that stays.
        self.flight.settle(Outcome::Loaded(false));
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::key::Key;

    #[test]
    fn a_read_that_does_not_run_releases_the_requests_that_wait_for_it() {
        let store = Arc::new(Store::new(1 << 20));
        let bytes = b"http://a/";
        let key = Key::of(bytes, bytes.len(), false, |bytes| store.hash(bytes));
        let FlightRole::Leads(flight) = store.join(&key, key.hash, None) else { panic!("another one leads") };
        let reading = Reading { store: store.clone(), flight: flight.clone() };
        let read = move || drop(reading);
        let mut context = Context::from_waker(Waker::noop());
        let mut outcome = pin!(flight.outcome());
        assert!(outcome.as_mut().poll(&mut context).is_pending());
        drop(read);
        assert!(matches!(outcome.poll(&mut context), Poll::Ready(Outcome::Loaded(false))));
        assert!(matches!(store.join(&key, key.hash, None), FlightRole::Leads(_)), "nobody else waits for it");
    }
}
