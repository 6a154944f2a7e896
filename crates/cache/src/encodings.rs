//! Compressed encodings of stored responses.
//!
//! An encoding is a separate entry, in a slot derived from the plain entry's: it counts towards the memory limit and is
//! evicted like all others. It has the plain entry's key and no fields. When a client that accepts a coding requests
//! an entry without that encoding, a thread with the lowest priority creates it, once. If an encoding would hardly be smaller,
//! it is stored without a body, so that this is not tried again.

use std::collections::HashSet;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use bytes::Bytes;
use flatout_wire::accept::Coding;

use crate::entry::{Entry, Parts};
use crate::key::Key;
use crate::store::Store;
use crate::worker::CacheWorker;
use flatout_compress::{compressed, give_way};
use flatout_gateway::Stored;

/// Forms queued for compression; beyond that, entries are compressed for each response, or sent uncompressed.
const WAITING_MAX: usize = 256;

/// Larger bodies have no encodings: compressing one would take many seconds.
const PLAIN_BYTES_MAX: usize = 8 << 20;

const CODINGS: [Coding; 3] = [Coding::Brotli, Coding::Zstd, Coding::Gzip];

/// The mark of an encoding in place of the names in `Vary`. No name starts like this, so it cannot be confused with a
/// variant.
fn mark(coding: Coding) -> &'static [u8] {
    match coding {
        Coding::Identity => b"\0",
        Coding::Brotli => b"\0br",
        Coding::Zstd => b"\0zstd",
        Coding::Gzip => b"\0gzip",
    }
}

impl Entry {
    pub(crate) fn is_encoding(&self) -> bool {
        self.vary().first() == Some(&0)
    }

    fn is_encoding_of(&self, plain: &Entry, coding: Coding) -> bool {
        // An encoding has the URL and the fields of the entry that owns the body. Those of an update may differ: with a
        // custom key, or if its `Vary` is another one.
        let plain = plain.source();
        self.vary() == mark(coding)
            && self.url() == plain.url()
            && self.rest() == plain.rest()
            && self.selected() == plain.selected()
    }

    /// Whether this is the entry whose body is to be sent, and it is still live.
    fn is_sent(&self, body: &[u8]) -> bool {
        std::ptr::eq(self.body(), body) && self.is_live()
    }
}

/// An encoding to be created.
struct EncodeJob {
    /// Weak: the store ends with its last user, and evicted entries are freed.
    store: Weak<Store>,
    /// The entry that owns the body.
    plain: Weak<Entry>,
    coding: Coding,
    /// The plain entry's slot, and the hash of its key.
    slot: u64,
    hash: u64,
    /// The encoding's slot.
    at: u64,
}

/// Creates encodings. The thread starts with the first order, and ends with the store.
#[derive(Default)]
pub(crate) struct Encoder {
    queue: OnceLock<Option<SyncSender<EncodeJob>>>,
    /// The slots of the encodings that were ordered.
    ordered: Mutex<HashSet<u64>>,
}

impl Encoder {
    fn order(&self, order: EncodeJob) {
        let at = order.at;
        if !self.ordered().insert(at) {
            return;
        }
        #[cfg(feature = "simulation")]
        if flatout_lane::clock::simulated::is_set() {
            let has_room = flatout_lane::jobs::defer(move || {
                make(&order);
            });
            if !has_room {
                self.ordered().remove(&at);
            }
            return;
        }
        let queue = self.queue.get_or_init(|| {
            let (queue, orders) = sync_channel(WAITING_MAX);
            let thread = std::thread::Builder::new().name("flatout-press".to_owned());
            thread.spawn(move || make_all(&orders)).ok().map(|_| queue)
        });
        let refused = queue.as_ref().is_none_or(|queue| queue.try_send(order).is_err());
        if refused {
            self.ordered().remove(&at);
        }
    }

    fn ordered(&self) -> MutexGuard<'_, HashSet<u64>> {
        // Each change under the lock is a single step.
        self.ordered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn make_all(orders: &Receiver<EncodeJob>) {
    give_way();
    while let Ok(order) = orders.recv() {
        if !make(&order) {
            return;
        }
    }
}

/// Creates an encoding. Returns `false` if the store has ended.
fn make(order: &EncodeJob) -> bool {
    let is_there =
        |plain: &Arc<Entry>| order.store.upgrade().is_some_and(|store| store.has_body_of(plain, order.slot));
    let plain = order.plain.upgrade().filter(is_there);
    let made = plain.map(|plain| (compressed(order.coding, plain.body()).unwrap_or_default(), plain));
    let Some(store) = order.store.upgrade() else { return false };
    if let Some((body, plain)) = made {
        store.insert_encoding(order, &plain, body.into());
    }
    store.encoder.ordered().remove(&order.at);
    true
}

impl Store {
    fn encoding_slot(&self, slot: u64, coding: Coding) -> u64 {
        self.slot_of(slot, mark(coding))
    }

    /// Stores an encoding, unless its plain entry was replaced meanwhile.
    fn insert_encoding(&self, order: &EncodeJob, plain: &Arc<Entry>, body: Vec<u8>) {
        let parts = Parts {
            key: Key { url: plain.url(), rest: plain.rest(), is_custom: false, hash: order.hash },
            vary: mark(order.coding),
            selected: plain.selected(),
            lines: b"",
            status: plain.status,
            policy: plain.policy,
        };
        self.insert_beside(plain, order.slot, order.hash, order.at, Arc::new(Entry::new(&parts, body)));
    }

    /// The slots of all encodings of an entry.
    pub(crate) fn encoding_slots(&self, slot: u64) -> impl Iterator<Item = u64> {
        CODINGS.into_iter().map(move |coding| self.encoding_slot(slot, coding))
    }
}

/// An entry that is being served.
pub(crate) struct ServedEntry<'c> {
    pub(crate) worker: &'c CacheWorker,
    pub(crate) slot: u64,
    /// The hash of its key.
    pub(crate) hash: u64,
}

impl Stored for ServedEntry<'_> {
    fn compressed(&self, coding: Coding, plain: &[u8]) -> Option<Bytes> {
        if plain.len() > PLAIN_BYTES_MAX {
            return None;
        }
        let store = &self.worker.store;
        let at = store.encoding_slot(self.slot, coding);
        let mut front = self.worker.hot_entries.borrow_mut();
        if let (Some(encoding), Some(entry)) = (front.peek(at), front.peek(self.slot))
            && encoding.entry.is_live()
            && encoding.entry.is_encoding_of(&entry.entry, coding)
            // Check after finding the encoding: the plain entry is dead before another one gets an encoding.
            && entry.entry.is_sent(plain)
        {
            let (slot, is_due) = front.get(at)?;
            let body = slot.body.clone();
            if is_due {
                store.touch(at);
            }
            return (!body.is_empty()).then_some(body);
        }
        let entry = store.peek(self.slot).filter(|entry| entry.is_sent(plain))?;
        let encoding =
            store.get(at).filter(|encoding| encoding.is_live() && encoding.is_encoding_of(&entry, coding));
        match encoding {
            Some(encoding) => {
                let body = front.put(at, &encoding);
                (!body.is_empty() && entry.is_live()).then_some(body)
            }
            None => {
                store.encoder.order(EncodeJob {
                    store: Arc::downgrade(store),
                    plain: Arc::downgrade(entry.owner()),
                    coding,
                    slot: self.slot,
                    hash: self.hash,
                    at,
                });
                None
            }
        }
    }
}

/// An entry that was read from disk for one response.
pub(crate) struct DiskEntry<'c> {
    pub(crate) store: &'c Store,
    /// Its slot on disk.
    pub(crate) slot: u64,
}

impl Stored for DiskEntry<'_> {
    /// None: encodings belong to entries in memory, where the next request for this one puts it.
    fn compressed(&self, _: Coding, plain: &[u8]) -> Option<Bytes> {
        if let Some(disk) = self.store.disk().filter(|_| plain.len() <= PLAIN_BYTES_MAX) {
            disk.keep_next(self.slot);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use flatout_wire::Status;
    use flatout_wire::cache::Policy;

    use super::*;
    use crate::entry::Content;

    #[test]
    fn encodings_belong_to_updates_with_another_url_or_vary() {
        let store = Arc::new(Store::new(1 << 20));
        let key = |url| Key { url, rest: b"h/a", is_custom: true, hash: 7 };
        let entry = |url, vary, selected, body: Content| {
            let policy = Policy::default();
            Entry::new(&Parts { key: key(url), vary, selected, lines: b"", status: Status::OK, policy }, body)
        };
        let own = entry(b"http://h/a", b"", b"", b"plain".to_vec().into());
        let first = store.insert(&key(b"http://h/a"), own, store.moment()).0;
        let at = store.encoding_slot(7, Coding::Gzip);
        let order = EncodeJob {
            store: Arc::downgrade(&store),
            plain: Arc::downgrade(first.owner()),
            coding: Coding::Gzip,
            slot: 7,
            hash: 7,
            at,
        };
        store.insert_encoding(&order, &first, b"encoding".to_vec());
        let encoding = store.get(at).unwrap();
        assert!(
            encoding.is_encoding_of(&first, Coding::Gzip) && !encoding.is_encoding_of(&first, Coding::Brotli)
        );
        for (vary, selected) in [(&b""[..], &b""[..]), (b"\nx", b",1\n")] {
            let update = entry(b"https://h/a", vary, selected, Content::Of(first.owner().clone()));
            let update = store.insert(&key(b"https://h/a"), update, store.moment()).0;
            assert!(store.get(at).is_some_and(|encoding| encoding.is_encoding_of(&update, Coding::Gzip)));
        }
        let other = entry(b"https://h/a", b"", b"", b"plain".to_vec().into());
        assert!(!encoding.is_encoding_of(&other, Coding::Gzip));
    }
}
