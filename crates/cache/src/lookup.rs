//! Serves requests from the entries of all workers, or from disk; others go to the upstream.

use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use flatout_engine::{Reply, Request, Response};
use flatout_wire::Head;
use flatout_wire::cache::Verdict;

use crate::encodings::{DiskEntry, ServedEntry};
use crate::entry::{Entry, body_of};
use crate::policy::select;
use crate::respond;
use crate::status::{CacheOutcome, CacheStatus};
use crate::store::{DiskLoad, FlightRole, Found};
use crate::worker::{CacheWorker, Lookup};
use flatout_gateway::Forwarded;

impl CacheWorker {
    pub(crate) fn is_selected(&self, entry: &Entry, head: &Head<'_>) -> bool {
        let mut selected = self.selected.borrow_mut();
        selected.clear();
        select(head, entry.vary(), &mut selected);
        entry.selected() == *selected
    }

    /// What is stored for a request.
    pub(crate) fn find(&self, lookup: &Lookup<'_>, head: &Head<'_>) -> Found {
        self.store.find(&lookup.key, lookup.now_ms, |names, out| select(head, names, out))
    }

    #[inline(never)]
    pub(crate) fn look(
        self: &Rc<Self>,
        request: Request<'_>,
        forwarded: Forwarded<'_>,
        lookup: Lookup<'_>,
        response: &mut Response,
    ) -> Reply {
        let head = request.head;
        let find = || {
            let mut found = self.find(&lookup, &head);
            if let (None, Some(slot)) = (&found.entry, lookup.waited.variant) {
                // The first variant may still be arriving, and not be stored yet.
                (found.slot, found.is_other_variant) = (slot, true);
            }
            found
        };
        let mut found = find();
        let may_be_on_disk = lookup.waited.was_on_disk != Some(false) && self.store.disk().is_some();
        if found.entry.is_none() && may_be_on_disk {
            let select = |names: &[u8], out: &mut Vec<u8>| select(&head, names, out);
            let is_fresh = |entry: &Entry| {
                let verdict = entry.policy.judge(&lookup.directives, lookup.now_ms, entry.is_expired());
                verdict == Verdict::Fresh && !entry.is_manifest()
            };
            match self.store.read_from_disk(&lookup.key, found.slot, lookup.now_ms, select, is_fresh) {
                DiskLoad::Nothing => {}
                DiskLoad::Here => found = find(),
                DiskLoad::Once(entry, reservation, slot) => {
                    let body = reservation.body(entry.clone());
                    self.write(&entry, body, CacheOutcome::Hit, &head, &lookup, response);
                    forwarded.finish.finish_stored(response, &DiskEntry { store: &self.store, slot });
                    return Reply::Now;
                }
                DiskLoad::Cold(slot) => {
                    if let FlightRole::Leads(flight) = self.store.join(&lookup.key, found.slot, None) {
                        return self.read_from_disk_slowly(request, forwarded, &lookup, flight, slot);
                    }
                }
            }
        }
        if let Some(manifest) = found.entry.take_if(|entry| entry.is_manifest())
            && let Some(start) = self.sliced(&head, &lookup, Some(&manifest))
        {
            return self.answer_sliced(request, forwarded, &lookup, start, Some(manifest), response);
        }
        if let Some(entry) = &found.entry {
            let verdict = entry.policy.judge(&lookup.directives, lookup.now_ms, entry.is_expired());
            let label = match verdict {
                Verdict::Fresh => CacheOutcome::Hit,
                Verdict::Stale => CacheOutcome::Stale,
                // The first one begins to validate it, the others come meanwhile.
                Verdict::Refresh => match self.refresh(&request, &forwarded, &lookup, &found) {
                    true => CacheOutcome::Stale,
                    false => CacheOutcome::Updating,
                },
                Verdict::Validate => return self.ask(request, forwarded, lookup, found, response),
            };
            self.serve(entry, found.slot, label, &head, &lookup, response);
            let served = ServedEntry { worker: self, slot: found.slot, hash: lookup.key.hash };
            forwarded.finish.finish_stored(response, &served);
            return Reply::Now;
        }
        self.ask(request, forwarded, lookup, found, response)
    }

    pub(crate) fn serve(
        &self,
        entry: &Arc<Entry>,
        slot: u64,
        label: CacheOutcome,
        head: &Head<'_>,
        lookup: &Lookup<'_>,
        response: &mut Response,
    ) {
        let body = match label {
            CacheOutcome::Hit => self.hot_entries.borrow_mut().put(slot, entry),
            _ => body_of(entry),
        };
        self.write(entry, body, label, head, lookup, response);
    }

    fn write(
        &self,
        entry: &Entry,
        body: Bytes,
        label: CacheOutcome,
        head: &Head<'_>,
        lookup: &Lookup<'_>,
        response: &mut Response,
    ) {
        let ttl = Some(entry.policy.fresh_for(lookup.now_ms));
        let detail = lookup.waited.was_on_disk.and_then(|is_there| is_there.then_some("disk"));
        let cache_status = lookup.cache_status(CacheStatus { ttl, detail, ..CacheStatus::of(label) });
        respond::write(
            entry,
            body,
            head,
            lookup.cache_fields.conditions,
            lookup.now_ms,
            cache_status.as_ref(),
            response,
        );
        self.counters.count_response(label, response);
    }
}
