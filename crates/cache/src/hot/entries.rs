//! The hot entries of one worker.
//!
//! All workers share the store's lock and an entry's reference count. If all of them served one key from the store,
//! these cache lines would move between CPUs with each request. So each worker keeps its recently served entries,
//! each with its own reference count. Whether an entry is live is a byte that is written only when the entry is
//! replaced, purged or evicted.

use std::sync::Arc;

use bytes::Bytes;
use flatout_engine::Response;
use flatout_gateway::Forwarded;
use flatout_wire::Head;
use flatout_wire::cache::{RequestDirectives, Verdict};

use crate::entry::{Entry, body_of};
use crate::hot::heads::KnownResponse;
use crate::policy::select;
use crate::respond;
use crate::status::{CacheOutcome, CacheStatus};
use crate::worker::{CacheWorker, Lookup};

/// Entries of one worker.
const SLOTS: usize = 512;

/// Larger bodies are not kept here, because they would stay in memory after their eviction from the store.
const BODY_BYTES_MAX: usize = 64 << 10;

/// One in this many hits is reported to the store, which has to know what is in use.
const HITS_PER_TOUCH: u32 = 32;

/// Slots by hash; a newer entry replaces an older one.
pub(crate) struct HotEntries {
    slots: Box<[Option<HotEntry>; SLOTS]>,
}

pub(crate) struct HotEntry {
    hash: u64,
    pub(crate) entry: Arc<Entry>,
    pub(crate) body: Bytes,
    hits: u32,
    encoded: EncodedLines,
}

/// The encoded lines of a response, valid for a second.
#[derive(Default)]
struct EncodedLines {
    lines: Vec<u8>,
    age: u32,
    says_status: bool,
}

impl HotEntry {
    /// Writes a response from the entry for an unconditional request. Its lines are encoded once for each second of
    /// its age.
    #[inline]
    pub(crate) fn write(&mut self, now_ms: u64, says_status: bool, response: &mut Response) {
        let age = self.entry.policy.age(now_ms);
        let EncodedLines { lines, .. } = &self.encoded;
        if lines.is_empty() || self.encoded.age != age || self.encoded.says_status != says_status {
            self.encode(age, says_status);
        }
        respond::write_encoded(&self.entry, &self.encoded.lines, self.body.clone(), response);
    }

    #[cold]
    fn encode(&mut self, age: u32, says_status: bool) {
        let EncodedLines { lines, .. } = &mut self.encoded;
        lines.clear();
        lines.extend_from_slice(self.entry.lines());
        let ttl = Some(i64::from(self.entry.policy.lifetime) - i64::from(age));
        let cache_status = says_status.then_some(CacheStatus { ttl, ..CacheStatus::of(CacheOutcome::Hit) });
        respond::write_age(age, cache_status.as_ref(), lines);
        (self.encoded.age, self.encoded.says_status) = (age, says_status);
    }
}

impl HotEntries {
    pub(crate) fn new() -> HotEntries {
        HotEntries { slots: Box::new([const { None }; SLOTS]) }
    }

    /// The entry under this hash, unless it was replaced, purged or evicted. The flag: the hit has to be reported to
    /// the store.
    #[inline]
    pub(crate) fn get(&mut self, hash: u64) -> Option<(&mut HotEntry, bool)> {
        let slot = self.slots[hash as usize % SLOTS].as_mut().filter(|slot| slot.hash == hash)?;
        slot.hits = slot.hits.wrapping_add(1);
        let is_due = slot.hits % HITS_PER_TOUCH == 0;
        match slot.entry.is_live() {
            true => Some((slot, is_due)),
            false => None,
        }
    }

    /// The slot under this hash, without counting a hit.
    #[inline]
    pub(crate) fn peek(&self, hash: u64) -> Option<&HotEntry> {
        self.slots[hash as usize % SLOTS].as_ref().filter(|slot| slot.hash == hash)
    }

    /// Keeps an entry. Returns its body.
    pub(crate) fn put(&mut self, hash: u64, entry: &Arc<Entry>) -> Bytes {
        let body = body_of(entry);
        if body.len() <= BODY_BYTES_MAX {
            self.slots[hash as usize % SLOTS] = Some(HotEntry {
                hash,
                entry: entry.clone(),
                body: body.clone(),
                hits: 0,
                encoded: EncodedLines::default(),
            });
        }
        body
    }
}

impl CacheWorker {
    /// Serves a request from this worker's own entries, if one is fresh. Returns its slot. Allocates nothing.
    #[inline]
    pub(crate) fn hit(
        &self,
        head: &Head<'_>,
        forwarded: &Forwarded<'_>,
        lookup: &Lookup<'_>,
        response: &mut Response,
    ) -> Option<u64> {
        let mut front = self.hot_entries.borrow_mut();
        let hash = lookup.key.hash;
        let first =
            front.peek(hash).filter(|first| first.entry.is_live() && first.entry.is_of(&lookup.key))?;
        let mut slot_at = hash;
        if !first.entry.vary().is_empty() {
            first.entry.touch(lookup.now_ms);
            let mut selected = self.selected.borrow_mut();
            selected.clear();
            select(head, first.entry.vary(), &mut selected);
            if first.entry.selected() != *selected {
                let family = first.entry.family;
                slot_at = self.store.slot_of(hash, &selected);
                let other = front.peek(slot_at).map(|other| &other.entry);
                let is_it = |it: &Arc<Entry>| {
                    it.family == family && it.is_of(&lookup.key) && it.selected() == *selected
                };
                if !other.is_some_and(is_it) {
                    return None;
                }
            }
        }
        // A hit counts once: what counts twice is never due if the count is odd.
        let (slot, is_due) = front.get(slot_at)?;
        let entry = &slot.entry;
        if entry.policy.judge(&lookup.directives, lookup.now_ms, entry.is_expired()) != Verdict::Fresh {
            return None;
        }
        entry.touch(lookup.now_ms);
        let (conditions, says_status) = (lookup.cache_fields.conditions, lookup.rules.rules.says_status);
        let has_wishes = conditions.has_conditions || conditions.has_range;
        if has_wishes {
            let ttl = Some(entry.policy.fresh_for(lookup.now_ms));
            let cache_status = lookup.cache_status(CacheStatus { ttl, ..CacheStatus::of(CacheOutcome::Hit) });
            let body = slot.body.clone();
            respond::write(entry, body, head, conditions, lookup.now_ms, cache_status.as_ref(), response);
        } else {
            slot.write(lookup.now_ms, says_status, response);
        }
        if lookup.rules.repeats
            && !has_wishes
            && lookup.directives == RequestDirectives::default()
            && slot_at == hash
        {
            let known = || KnownResponse::new(slot_at, &slot.entry, says_status, forwarded.finish.clone());
            self.hot_heads.borrow_mut().note(head.bytes(), forwarded.client.is_https, known);
        }
        if is_due {
            self.store.touch(slot_at);
            // Without the first variant the others are not found.
            self.store.touch(hash);
        }
        Some(slot_at)
    }
}
