//! Requests that are byte-identical to one that was served from the cache.
//!
//! Polling programs and probes send the same head again and again. If the rules of a route depend only on the head,
//! its site, route, key and fields are the same each time: a worker remembers which of its hot entries was served.
//! Heads that differ in anything, such as a cookie, take the usual way, at the extra cost of a hash and a comparison.

use std::rc::Rc;
use std::sync::{Arc, Weak};

use flatout_engine::{Request, Response};
use flatout_lane::clock;
use flatout_wire::cache::{RequestDirectives, Verdict};

use crate::encodings::ServedEntry;
use crate::entry::Entry;
use crate::status::CacheOutcome;
use crate::worker::CacheWorker;
use flatout_gateway::Finish;

/// Heads that a worker remembers.
const PLACES: usize = 256;

/// Longer heads are not remembered.
const HEAD_BYTES_MAX: usize = 1 << 10;

/// Slots by hash; a newer head replaces an older one.
pub(crate) struct HotHeads {
    places: Box<[HeadSlot; PLACES]>,
    /// The hash of the current head, unless it is too long.
    hash: u64,
    /// The listener of the current request.
    listener: u16,
}

#[derive(Default)]
struct HeadSlot {
    hash: u64,
    head: Vec<u8>,
    is_https: bool,
    listener: u16,
    /// `None` if the head was seen only once.
    known: Option<KnownResponse>,
}

/// The entry that was served for a head.
pub(crate) struct KnownResponse {
    /// The slot of the entry, which is its key's.
    slot: u64,
    /// The entry itself; a weak reference does not keep it in memory.
    entry: Weak<Entry>,
    says_status: bool,
    finish: Rc<dyn Finish>,
}

impl KnownResponse {
    pub(crate) fn new(
        slot: u64,
        entry: &Arc<Entry>,
        says_status: bool,
        finish: Rc<dyn Finish>,
    ) -> KnownResponse {
        KnownResponse { slot, entry: Arc::downgrade(entry), says_status, finish }
    }

    /// Whether this is the entry; while the weak reference exists, no other entry can have its address.
    #[inline]
    fn is(&self, entry: &Arc<Entry>) -> bool {
        std::ptr::eq(self.entry.as_ptr(), Arc::as_ptr(entry))
    }
}

impl CacheWorker {
    /// Serves a request with a known head, if its entry is still live and fresh. Returns whether it did.
    #[inline]
    pub(crate) fn answer_again(&self, request: &Request<'_>, response: &mut Response) -> bool {
        let (bytes, is_https) = (request.head.bytes(), request.tls.is_some());
        if bytes.len() > HEAD_BYTES_MAX {
            return false;
        }
        let mut repeats = self.hot_heads.borrow_mut();
        (repeats.hash, repeats.listener) = (self.store.hash(bytes), request.listener);
        let Some(known) = repeats.find(bytes, is_https) else { return false };
        let (slot_at, finish) = (known.slot, known.finish.clone());
        let mut front = self.hot_entries.borrow_mut();
        let Some((slot, is_due)) = front.get(slot_at).filter(|(slot, _)| known.is(&slot.entry)) else {
            return false;
        };
        let now_ms = clock::unix_milliseconds();
        let entry = &slot.entry;
        if entry.policy.judge(&RequestDirectives::default(), now_ms, entry.is_expired()) != Verdict::Fresh {
            return false;
        }
        entry.touch(now_ms);
        slot.write(now_ms, known.says_status, response);
        if is_due {
            self.store.touch(slot_at);
        }
        drop((front, repeats));
        self.counters.count_response(CacheOutcome::Hit, response);
        finish.finish_stored(response, &ServedEntry { worker: self, slot: slot_at, hash: slot_at });
        true
    }
}

impl HotHeads {
    pub(crate) fn new() -> HotHeads {
        HotHeads { places: Box::new(std::array::from_fn(|_| HeadSlot::default())), hash: 0, listener: 0 }
    }

    /// What was served for this head before.
    #[inline]
    fn find(&self, head: &[u8], is_https: bool) -> Option<&KnownResponse> {
        let place = &self.places[self.hash as usize % PLACES];
        let is_it = place.hash == self.hash
            && place.is_https == is_https
            && place.listener == self.listener
            && place.head == head;
        if is_it { place.known.as_ref() } else { None }
    }

    /// Remembers what was served for the current head. The first time only the hash is kept, because most heads are
    /// not repeated.
    pub(crate) fn note(&mut self, head: &[u8], is_https: bool, make: impl FnOnce() -> KnownResponse) {
        let place = &mut self.places[self.hash as usize % PLACES];
        if head.len() > HEAD_BYTES_MAX {
            return;
        }
        if place.hash != self.hash {
            place.hash = self.hash;
            place.head.clear();
            place.known = None;
        } else {
            place.head.clear();
            place.head.extend_from_slice(head);
            (place.is_https, place.listener) = (is_https, self.listener);
            place.known = Some(make());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::Parts;
    use crate::key::Key;
    use flatout_engine::Response;
    use flatout_gateway::ResponseOrigin;
    use flatout_wire::Status;
    use flatout_wire::cache::Policy;

    struct NoRules;

    impl Finish for NoRules {
        fn finish(&self, _: &mut Response, _: ResponseOrigin) {}
    }

    fn entry() -> Arc<Entry> {
        let key = Key { url: b"http://a/", rest: b"", is_custom: false, hash: 1 };
        let policy = Policy::default();
        let parts = Parts { key, vary: b"", selected: b"", lines: b"", status: Status::OK, policy };
        Arc::new(Entry::new(&parts, Vec::new()))
    }

    #[test]
    fn a_head_is_known_from_the_second_time_on() {
        let (mut repeats, one) = (HotHeads::new(), entry());
        let of = || KnownResponse::new(1, &one, true, Rc::new(NoRules));
        repeats.hash = 7;
        assert!(repeats.find(b"GET /", false).is_none());
        repeats.note(b"GET /", false, || panic!("it may not come again"));
        assert!(repeats.find(b"GET /", false).is_none());
        repeats.note(b"GET /", false, of);
        assert!(repeats.find(b"GET /", false).is_some_and(|it| it.is(&one) && !it.is(&entry())));
        // Another scheme, another head with the same hash.
        assert!(repeats.find(b"GET /", true).is_none() && repeats.find(b"GET /x", false).is_none());
        // Another head in the same slot.
        repeats.hash = 7 + PLACES as u64;
        assert!(repeats.find(b"GET /", false).is_none());
        repeats.note(b"GET /y", false, of);
        repeats.hash = 7;
        assert!(repeats.find(b"GET /", false).is_none());
        let long = vec![b'a'; HEAD_BYTES_MAX + 1];
        repeats.note(&long, false, of);
        repeats.note(&long, false, of);
        assert!(repeats.find(&long, false).is_none());
    }
}
