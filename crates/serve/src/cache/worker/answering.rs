//! Serves requests from the cache: from the worker's own entries, from the shared ones, or from disk.

use std::sync::Arc;

use flatout_engine::{Reply, Request, Response};
use flatout_wire::Head;
use flatout_wire::cache::{Asks, Verdict};

use super::{Caching, Case, select};
use crate::cache::entry::{Entry, body_of};
use crate::cache::flight::{Flight, Outcome};
use crate::cache::forms::Served;
use crate::cache::key::Key;
use crate::cache::label::{Label, Said};
use crate::cache::repeat::Repeated;
use crate::cache::respond;
use crate::cache::store::{Brought, Joined, Store};
use crate::site::Forwarded;

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
        let (first, _) = front.get(hash).filter(|(first, _)| first.entry.is_of(&case.key))?;
        first.entry.touch(case.now_ms);
        let mut slot_at = hash;
        if !first.entry.vary().is_empty() {
            let mut selected = self.selected.borrow_mut();
            selected.clear();
            select(head, first.entry.vary(), &mut selected);
            if first.entry.selected() != *selected {
                let family = first.entry.family;
                slot_at = self.store.slot_of(hash, &selected);
                let other = front.get(slot_at).map(|(other, _)| &other.entry);
                let is_it = |it: &Arc<Entry>| {
                    it.family == family && it.is_of(&case.key) && it.selected() == *selected
                };
                if !other.is_some_and(is_it) {
                    return None;
                }
            }
        }
        let (slot, is_due) = front.get(slot_at)?;
        let entry = &slot.entry;
        if entry.policy.judge(&case.asks, case.now_ms, entry.is_expired()) != Verdict::Fresh {
            return None;
        }
        entry.touch(case.now_ms);
        let (wishes, says_status) = (case.looked.wishes, case.rules.rules.says_status);
        let has_wishes = wishes.has_conditions || wishes.has_range;
        if has_wishes {
            let ttl = Some(entry.policy.fresh_for(case.now_ms));
            let said = case.said(Said { ttl, ..Said::of(Label::Hit) });
            let body = slot.body.clone();
            respond::write(entry, body, head, wishes, case.now_ms, said.as_ref(), response);
        } else {
            slot.write(case.now_ms, says_status, response);
        }
        if case.rules.repeats && !has_wishes && case.asks == Asks::default() && slot_at == hash {
            let known = || Repeated::new(slot_at, &slot.entry, says_status, what.finish.clone());
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
    pub(in crate::cache) fn look(
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
            match self.store.bring(&case.key, found.slot, case.now_ms, select) {
                Brought::Nothing => {}
                Brought::Here => found = find(),
                Brought::Cold(slot) => {
                    if let Joined::Leads(flight) = self.store.join(&case.key, found.slot, None) {
                        return self.bring_slowly(request, what, &case, flight, slot, response);
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
                Verdict::Fresh => Label::Hit,
                Verdict::Stale => Label::Stale,
                Verdict::Refresh => Label::Updating,
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
    fn bring_slowly(
        &self,
        request: Request<'_>,
        what: Forwarded<'_>,
        case: &Case<'_>,
        flight: Arc<Flight>,
        slot: u64,
        response: &mut Response,
    ) -> Reply {
        let reading = Reading { store: self.store.clone(), flight: flight.clone() };
        let (bytes, url_ends) = ([case.key.url, case.key.rest].concat(), case.key.url.len());
        let (is_custom, now_ms) = (case.key.is_custom, case.now_ms);
        tokio::task::spawn_blocking(move || {
            let Reading { store, flight } = &reading;
            let key = Key::of(&bytes, url_ends, is_custom, |bytes| store.hash(bytes));
            let is_there = store.bring_slowly(&key, slot, now_ms, flight.asked).is_some();
            store.land(flight);
            flight.settle(Outcome::Brought(is_there));
        });
        let said = Said::forwarded(Label::Miss, "uri-miss");
        self.follow(&request, &what, case, flight, None, said, response)
    }

    pub(super) fn serve(
        &self,
        entry: &Arc<Entry>,
        slot: u64,
        label: Label,
        head: &Head<'_>,
        case: &Case<'_>,
        response: &mut Response,
    ) {
        let body = match label {
            Label::Hit => self.front.borrow_mut().put(slot, entry),
            _ => body_of(entry),
        };
        let ttl = Some(entry.policy.fresh_for(case.now_ms));
        let detail = case.waited.was_on_disk.and_then(|is_there| is_there.then_some("disk"));
        let said = case.said(Said { ttl, detail, ..Said::of(label) });
        respond::write(entry, body, head, case.looked.wishes, case.now_ms, said.as_ref(), response);
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
        self.flight.settle(Outcome::Brought(false));
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[test]
    fn a_read_that_does_not_run_releases_the_requests_that_wait_for_it() {
        let store = Arc::new(Store::new(1 << 20));
        let bytes = b"http://a/";
        let key = Key::of(bytes, bytes.len(), false, |bytes| store.hash(bytes));
        let Joined::Leads(flight) = store.join(&key, key.hash, None) else { panic!("another one leads") };
        let reading = Reading { store: store.clone(), flight: flight.clone() };
        let read = move || drop(reading);
        let mut context = Context::from_waker(Waker::noop());
        let mut outcome = pin!(flight.outcome());
        assert!(outcome.as_mut().poll(&mut context).is_pending());
        drop(read);
        assert!(matches!(outcome.poll(&mut context), Poll::Ready(Outcome::Brought(false))));
        assert!(matches!(store.join(&key, key.hash, None), Joined::Leads(_)), "nobody else waits for it");
    }
}
