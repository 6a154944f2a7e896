//! The hot entries of one worker.
//!
//! All workers share the store's lock and an entry's reference count. If all of them served one key from the store,
//! these cache lines would move between CPUs with each request. So each worker keeps its recently served entries,
//! each with its own reference count. Whether an entry is live is a byte that is written only when the entry is
//! replaced, purged or evicted.

use std::sync::Arc;

use bytes::Bytes;
use flatout_engine::Response;

use super::entry::{Entry, body_of};
use super::respond;
use super::status::{CacheOutcome, CacheStatus};

/// Entries of one worker.
const SLOTS: usize = 512;

/// Larger bodies are not kept here, because they would stay in memory after their eviction from the store.
const BODY_BYTES_MAX: usize = 64 << 10;

/// One in this many hits is reported to the store, which has to know what is in use.
const HITS_PER_TOUCH: u32 = 32;

/// Slots by hash; a newer entry replaces an older one.
pub(super) struct Front {
    slots: Box<[Option<HotEntry>]>,
}

pub(super) struct HotEntry {
    hash: u64,
    pub(super) entry: Arc<Entry>,
    pub(super) body: Bytes,
    hits: u32,
    encoded: Encoded,
}

/// The encoded lines of a response, valid for a second.
#[derive(Default)]
struct Encoded {
    lines: Vec<u8>,
    age: u32,
    says_status: bool,
}

impl HotEntry {
    /// Writes a response from the entry for an unconditional request. Its lines are encoded once for each second of
    /// its age.
    #[inline]
    pub(super) fn write(&mut self, now_ms: u64, says_status: bool, response: &mut Response) {
        let age = self.entry.policy.age(now_ms);
        let Encoded { lines, .. } = &self.encoded;
        if lines.is_empty() || self.encoded.age != age || self.encoded.says_status != says_status {
            self.encode(age, says_status);
        }
        respond::write_encoded(&self.entry, &self.encoded.lines, self.body.clone(), response);
    }

    #[cold]
    fn encode(&mut self, age: u32, says_status: bool) {
        let Encoded { lines, .. } = &mut self.encoded;
        lines.clear();
        lines.extend_from_slice(self.entry.lines());
        let ttl = Some(i64::from(self.entry.policy.lifetime) - i64::from(age));
        let cache_status = says_status.then_some(CacheStatus { ttl, ..CacheStatus::of(CacheOutcome::Hit) });
        respond::write_age(age, cache_status.as_ref(), lines);
        (self.encoded.age, self.encoded.says_status) = (age, says_status);
    }
}

impl Front {
    pub(super) fn new() -> Front {
        Front { slots: (0..SLOTS).map(|_| None).collect() }
    }

    /// The entry under this hash, unless it was replaced, purged or evicted. The flag: the hit has to be reported to
    /// the store.
    #[inline]
    pub(super) fn get(&mut self, hash: u64) -> Option<(&mut HotEntry, bool)> {
        let place = self.slots.get_mut(hash as usize % SLOTS)?;
        let slot = place.as_mut().filter(|slot| slot.hash == hash)?;
        slot.hits = slot.hits.wrapping_add(1);
        let is_due = slot.hits % HITS_PER_TOUCH == 0;
        match slot.entry.is_live() {
            true => Some((slot, is_due)),
            false => None,
        }
    }

    /// The slot under this hash, without counting a hit.
    #[inline]
    pub(super) fn peek(&self, hash: u64) -> Option<&HotEntry> {
        self.slots.get(hash as usize % SLOTS)?.as_ref().filter(|slot| slot.hash == hash)
    }

    /// Keeps an entry. Returns its body.
    pub(super) fn put(&mut self, hash: u64, entry: &Arc<Entry>) -> Bytes {
        let body = body_of(entry);
        if body.len() <= BODY_BYTES_MAX
            && let Some(place) = self.slots.get_mut(hash as usize % SLOTS)
        {
            *place = Some(HotEntry {
                hash,
                entry: entry.clone(),
                body: body.clone(),
                hits: 0,
                encoded: Encoded::default(),
            });
        }
        body
    }
}
