//! The entries that all workers share, and the flights that bring new ones.
//!
//! An entry is stored in the slot of its key's hash. If a response varies, its first variant is stored there. The slot of each other
//! variant is a hash of that one and of the request fields that selected it. All variants have the number of the first one's family, so
//! that none of them is found once the first one is gone.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use foldhash::fast::RandomState;
use quick_cache::sync::Cache as Table;
use quick_cache::{Lifecycle, OptionsBuilder, Weighter};

use super::disk::{Disk, Looked};
use super::entry::{Entry, seconds};
use super::flight::Flight;
use super::forms::Maker;
use super::key::Key;
use super::plan::DiskPlan;
use super::purge::{Log, Purge};
use super::tally::{Tally, Totals};

/// Parts of the table, each with a lock of its own. An entry may be as large as a part, less what is new and unproven.
const SHARDS: usize = 8;

/// An entry is at most this share of the memory.
const ENTRY_SHARE: u64 = 16;

/// Bodies that are still arriving take at most this share besides.
const HELD_SHARE: u64 = 4;

/// The usual weight of an entry, for the first size of the table.
const ENTRY_BYTES_USUAL: u64 = 16 << 10;

/// Locks of flights and of changes, by hash.
const STRIPES: usize = 64;

/// Flights of one stripe; over it requests go to the upstream without sharing.
const FLIGHTS_MAX: usize = 4096;

/// Keys whose responses were not stored lately.
const PASSES_MAX: usize = 64 << 10;

/// How long requests for such a key do not wait for each other.
const PASS_TIME_MS: u64 = 10_000;

/// Keys whose uses are counted before they are stored.
const USES_MAX: usize = 64 << 10;

/// Keys that were invalidated lately: a response that was requested before that is not stored.
const INVALIDATED_MAX: usize = 64 << 10;

/// What is under way, by slot.
type Flights = HashMap<u64, Arc<Flight>, RandomState>;

pub(super) struct Store {
    table: Table<u64, Arc<Entry>, Weigh, BuildHasherDefault<AsItIs>, Evicted>,
    passes: Table<u64, u64>,
    uses: Table<u64, u32>,
    stripes: Box<[Mutex<Flights>]>,
    purges: RwLock<Log>,
    /// How many keys were invalidated, and for each of late which of these it was.
    invalidations: AtomicU64,
    invalidated: Table<u64, u64>,
    hashes: RandomState,
    families: AtomicU64,
    /// Bytes of the largest body that is stored.
    pub(super) body_bytes_max: u64,
    pub(super) tally: Tally,
    disk: Option<Disk>,
    /// Makes compressed forms of entries.
    pub(super) maker: Maker,
    /// There was a form once.
    has_forms: AtomicBool,
    /// Bytes of bodies that are on their way, and how many there may be: others are passed through.
    held_bytes: AtomicU64,
    held_bytes_max: u64,
}

/// What the disk has for a request.
pub(super) enum Brought {
    Nothing,
    /// It is in memory now.
    Here,
    /// It has to be read from the disk first.
    Cold(u64),
}

/// What is known for a request.
pub(super) struct Found {
    pub(super) entry: Option<Arc<Entry>>,
    /// Its slot, or the slot it will probably have.
    pub(super) slot: u64,
    /// There are variants, and none is for this request.
    pub(super) is_other_variant: bool,
}

/// What had been purged and invalidated when a response was asked for.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Moment {
    purges: u64,
    invalidations: u64,
}

/// Who fetches a response.
pub(super) enum Joined {
    /// It has been stored meanwhile.
    Here(Arc<Entry>),
    /// The caller.
    Leads(Arc<Flight>),
    /// Another request, which the caller waits for.
    Follows(Arc<Flight>),
    /// The caller, for itself only: there are too many flights.
    Alone,
}

impl Store {
    pub(super) fn new(memory_bytes: u64) -> Store {
        let options = OptionsBuilder::new()
            .estimated_items_capacity((memory_bytes / ENTRY_BYTES_USUAL).max(64) as usize)
            .weight_capacity(memory_bytes)
            .shards(SHARDS)
            .build();
        let tally = Tally::default();
        let evicted = Evicted { count: tally.evicted.clone() };
        let table = match options {
            Ok(options) => Table::with_options(options, Weigh, BuildHasherDefault::default(), evicted),
            // All that has to be set is set.
            Err(_) => Table::with(64, memory_bytes, Weigh, BuildHasherDefault::default(), evicted),
        };
        Store {
            table,
            passes: Table::new(PASSES_MAX),
            uses: Table::new(USES_MAX),
            stripes: (0..STRIPES).map(|_| Mutex::default()).collect(),
            purges: RwLock::default(),
            invalidations: AtomicU64::new(0),
            invalidated: Table::new(INVALIDATED_MAX),
            hashes: RandomState::default(),
            families: AtomicU64::new(0),
            body_bytes_max: memory_bytes / ENTRY_SHARE,
            tally,
            disk: None,
            maker: Maker::default(),
            has_forms: AtomicBool::new(false),
            held_bytes: AtomicU64::new(0),
            held_bytes_max: memory_bytes / HELD_SHARE,
        }
    }

    /// Counts bytes of a body that is on its way. Whether there is room for them.
    pub(super) fn hold(&self, bytes: u64) -> bool {
        self.held_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes <= self.held_bytes_max
    }

    pub(super) fn release(&self, bytes: u64) {
        self.held_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Opens the tier on disk. What is there counts as asked for now.
    ///
    /// # Errors
    /// The folder cannot be used.
    pub(super) fn open_disk(&mut self, plan: &DiskPlan, now_ms: u64) -> io::Result<()> {
        let (hashes, of_slots) = (self.hashes.clone(), self.hashes.clone());
        let hash = Box::new(move |bytes: &[u8]| hashes.hash_one(bytes));
        let slot = Box::new(move |hash: u64, selected: &[u8]| of_slots.hash_one((hash, selected)));
        self.disk = Some(Disk::open(plan, now_ms, hash, slot)?);
        Ok(())
    }

    /// Reads the response to a request from disk into memory, unless that would block. `slot` is where it is expected.
    pub(super) fn bring(
        &self,
        key: &Key<'_>,
        slot: u64,
        now_ms: u64,
        select: impl Fn(&[u8], &mut Vec<u8>),
    ) -> Brought {
        let Some(disk) = &self.disk else { return Brought::Nothing };
        let asked = self.moment();
        let mut slot = slot;
        // A variant that is not the first, after that one.
        for _ in 0..2 {
            let entry = match disk.look(slot, key, now_ms) {
                Looked::Nothing => return Brought::Nothing,
                Looked::Cold => return Brought::Cold(slot),
                Looked::Here(entry) => entry,
            };
            let mut selected = Vec::new();
            select(entry.vary(), &mut selected);
            let is_it = entry.selected() == selected;
            entry.touch(now_ms);
            if self.admit(key, entry, asked).1.is_none() {
                return Brought::Nothing;
            }
            if is_it {
                return Brought::Here;
            }
            slot = self.slot_of(key.hash, &selected);
        }
        Brought::Nothing
    }

    /// The same, waiting for the disk.
    pub(super) fn bring_slowly(
        &self,
        key: &Key<'_>,
        slot: u64,
        now_ms: u64,
        asked: Moment,
    ) -> Option<Arc<Entry>> {
        let entry = self.disk.as_ref()?.load(slot, key)?;
        entry.touch(now_ms);
        let (entry, slot) = self.admit(key, entry, asked);
        slot.map(|_| entry)
    }

    /// The hash of a key; nobody outside can choose two that are the same.
    #[inline]
    pub(super) fn hash(&self, bytes: &[u8]) -> u64 {
        self.hashes.hash_one(bytes)
    }

    /// Where a variant stands that is not the first.
    pub(super) fn slot_of(&self, hash: u64, selected: &[u8]) -> u64 {
        self.hashes.hash_one((hash, selected))
    }

    pub(super) fn at(&self, slot: u64, key: &Key<'_>) -> Option<Arc<Entry>> {
        self.table.get(&slot).filter(|entry| entry.is_live() && entry.is_of(key))
    }

    /// What there is for a request; `select` writes what it has of the fields that a response varies by.
    pub(super) fn find(&self, key: &Key<'_>, now_ms: u64, select: impl FnOnce(&[u8], &mut Vec<u8>)) -> Found {
        let Some(first) = self.at(key.hash, key) else {
            return Found { entry: None, slot: key.hash, is_other_variant: false };
        };
        // Without it the other variants are not found.
        first.touch(now_ms);
        if first.vary().is_empty() {
            return Found { entry: Some(first), slot: key.hash, is_other_variant: false };
        }
        let mut selected = Vec::new();
        select(first.vary(), &mut selected);
        if first.selected() == selected {
            return Found { entry: Some(first), slot: key.hash, is_other_variant: false };
        }
        let slot = self.slot_of(key.hash, &selected);
        let is_it = |entry: &Arc<Entry>| entry.family == first.family && entry.selected() == selected;
        let entry = self.at(slot, key).filter(is_it);
        entry.iter().for_each(|entry| entry.touch(now_ms));
        Found { is_other_variant: entry.is_none(), entry, slot }
    }

    /// Tells the table that an entry is in use.
    pub(super) fn touch(&self, slot: u64) {
        let _ = self.table.get(&slot);
    }

    fn stripe(&self, hash: u64) -> MutexGuard<'_, Flights> {
        let at = (hash >> 32) as usize % STRIPES;
        // Every change in the lock is a single step.
        self.stripes[at].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Joins those that wait for the response of this slot, or leads them. `seen` is the entry that was found before.
    pub(super) fn join(&self, key: &Key<'_>, slot: u64, seen: Option<&Arc<Entry>>) -> Joined {
        let moment = self.moment();
        let mut flights = self.stripe(slot);
        if let Some(flight) = flights.get(&slot) {
            return match flight.has_room_for_one() {
                true => Joined::Follows(flight.clone()),
                false => Joined::Alone,
            };
        }
        // Somebody may have brought it between the look and the lock.
        if let Some(entry) = self.at(slot, key).filter(|entry| !entry.is_manifest())
            && seen.is_none_or(|seen| !Arc::ptr_eq(seen, &entry))
        {
            return Joined::Here(entry);
        }
        if flights.len() >= FLIGHTS_MAX {
            return Joined::Alone;
        }
        let flight = Arc::new(Flight::new(slot, moment));
        flights.insert(slot, flight.clone());
        Joined::Leads(flight)
    }

    /// Nobody joins this flight any more.
    pub(super) fn land(&self, flight: &Arc<Flight>) {
        let mut flights = self.stripe(flight.slot);
        if flights.get(&flight.slot).is_some_and(|known| Arc::ptr_eq(known, flight)) {
            flights.remove(&flight.slot);
        }
    }

    /// Stores an entry, unless a purge or an invalidation has come since it was asked for. Returns it, and whether it is stored.
    pub(super) fn insert(&self, key: &Key<'_>, entry: Entry, asked: Moment) -> (Arc<Entry>, bool) {
        let (entry, slot) = self.admit(key, entry, asked);
        self.keep(&entry, slot, key);
        (entry, slot.is_some())
    }

    /// Has an entry that was admitted written to disk too.
    pub(super) fn keep(&self, entry: &Arc<Entry>, slot: Option<u64>, key: &Key<'_>) {
        if let Some(slot) = slot {
            self.tally.stored();
            if let Some(disk) = &self.disk {
                disk.put(entry, slot, key);
            }
        }
    }

    /// Takes an entry into memory, in the same way. Returns the slot that it stands in.
    fn admit(&self, key: &Key<'_>, entry: Entry, asked: Moment) -> (Arc<Entry>, Option<u64>) {
        self.admit_at(key, entry, asked, |entry| {
            let first = self.at(key.hash, key).filter(|first| first.vary() == entry.vary());
            let slot = match &first {
                Some(first) if first.selected() != entry.selected() => {
                    self.slot_of(key.hash, entry.selected())
                }
                _ => key.hash,
            };
            (slot, first.map(|first| first.family))
        })
    }

    /// The same, with the slot and the family that `place` says; without one it gets a new one.
    pub(super) fn admit_at(
        &self,
        key: &Key<'_>,
        mut entry: Entry,
        asked: Moment,
        place: impl FnOnce(&Entry) -> (u64, Option<u64>),
    ) -> (Arc<Entry>, Option<u64>) {
        // Whoever adds a purge waits for those who insert, and finds what they have inserted.
        let log = self.purges.read().unwrap_or_else(PoisonError::into_inner);
        if log.has_purged(&entry, asked.purges) {
            return (Arc::new(entry), None);
        }
        let change = self.stripe(key.hash);
        if self.invalidated.get(&key.hash).is_some_and(|number| number >= asked.invalidations) {
            return (Arc::new(entry), None);
        }
        let (slot, family) = place(&entry);
        entry.family = family.unwrap_or_else(|| self.families.fetch_add(1, Ordering::Relaxed));
        let entry = Arc::new(entry);
        if let Some(former) = self.table.peek(&slot) {
            former.kill();
        }
        self.remove_forms(slot);
        self.table.insert(slot, entry.clone());
        drop(change);
        (entry, Some(slot))
    }

    /// Removes this entry.
    pub(super) fn remove(&self, slot: u64, entry: &Arc<Entry>) {
        entry.kill();
        self.remove_forms(slot);
        self.table.remove_if(&slot, |known| Arc::ptr_eq(known, entry));
    }

    /// Removes the compressed forms of what was in a slot.
    fn remove_forms(&self, slot: u64) {
        if !self.has_forms.load(Ordering::Acquire) {
            return;
        }
        for at in self.form_slots(slot) {
            if let Some(form) = self.table.peek(&at).filter(|form| form.is_form()) {
                form.kill();
                self.table.remove_if(&at, |known| Arc::ptr_eq(known, &form));
            }
        }
    }

    /// Stores a form in the slot `at`, if the plain entry is still in `slot`.
    pub(super) fn insert_beside(&self, plain: &Arc<Entry>, slot: u64, hash: u64, at: u64, form: Arc<Entry>) {
        // Whoever replaces the plain entry holds this lock, and removes its forms.
        let _change = self.stripe(hash);
        let is_there = self.table.peek(&slot).is_some_and(|known| Arc::ptr_eq(&known, plain));
        if is_there && plain.is_live() {
            self.has_forms.store(true, Ordering::Release);
            self.table.insert(at, form);
        }
    }

    /// What is in a slot, and that it is in use.
    pub(super) fn get(&self, slot: u64) -> Option<Arc<Entry>> {
        self.table.get(&slot)
    }

    /// What is in a slot.
    pub(super) fn peek(&self, slot: u64) -> Option<Arc<Entry>> {
        self.table.peek(&slot)
    }

    /// Removes what there is for a key, in all variants.
    pub(super) fn invalidate(&self, key: &Key<'_>) {
        let _change = self.stripe(key.hash);
        self.invalidated.insert(key.hash, self.invalidations.fetch_add(1, Ordering::SeqCst));
        if let Some(entry) = self.at(key.hash, key) {
            self.remove(key.hash, &entry);
        }
        if let Some(disk) = &self.disk {
            disk.forget(key);
        }
    }

    /// What has been purged and invalidated so far.
    pub(super) fn moment(&self) -> Moment {
        let purges = self.purges.read().unwrap_or_else(PoisonError::into_inner).count();
        Moment { purges, invalidations: self.invalidations.load(Ordering::SeqCst) }
    }

    /// Removes entries, or marks them stale. Costs a look at each entry there is.
    pub(super) fn purge(&self, purge: &Purge) -> usize {
        {
            let mut log = self.purges.write().unwrap_or_else(PoisonError::into_inner);
            log.add(purge);
        }
        let is_meant = |entry: &Entry| entry.is_live() && !entry.is_form() && purge.fits(entry);
        let found: Vec<(u64, Arc<Entry>)> = self.table.iter().filter(|(_, entry)| is_meant(entry)).collect();
        for (slot, entry) in &found {
            match purge.is_soft {
                true => entry.expire(),
                false => self.remove(*slot, entry),
            }
        }
        if let Some(disk) = &self.disk {
            disk.purge(purge);
        }
        self.tally.purged(found.len());
        found.len()
    }

    /// Removes what nobody has asked for in `inactive_s` seconds. The disk is told of uses in memory by each sweep, so that what is on
    /// disk stays for the time between two sweeps more. Costs a look at each entry there is. Returns how many were removed.
    pub(super) fn sweep(&self, now_ms: u64, inactive_s: u32, period_s: u32) -> usize {
        let now_s = seconds(now_ms);
        let mut count = 0;
        for (slot, entry) in self.table.iter().filter(|(_, entry)| !entry.is_form()) {
            if now_s.saturating_sub(entry.used_s()) > inactive_s {
                self.remove(slot, &entry);
                self.disk.iter().for_each(|disk| disk.remove(slot));
                count += 1;
            } else if let Some(disk) = &self.disk {
                disk.used(slot, entry.used_s());
            }
        }
        if let Some(disk) = &self.disk {
            count += disk.sweep(now_s, inactive_s.saturating_add(period_s));
        }
        self.tally.inactive(count);
        count
    }

    /// The response of this slot was not stored: those who ask for it next do not wait for each other.
    pub(super) fn pass(&self, slot: u64, now_ms: u64) {
        self.passes.insert(slot, now_ms + PASS_TIME_MS);
    }

    pub(super) fn is_passed(&self, slot: u64, now_ms: u64) -> bool {
        self.passes.get(&slot).is_some_and(|until| now_ms < until)
    }

    /// Counts a use of a key that is not stored; whether there were enough.
    pub(super) fn is_used_enough(&self, hash: u64, uses_min: u32) -> bool {
        if uses_min <= 1 {
            return true;
        }
        let uses = self.uses.get(&hash).unwrap_or(0) + 1;
        self.uses.insert(hash, uses);
        uses >= uses_min
    }

    /// What is on disk, if anything is.
    pub(super) fn disk(&self) -> Option<&Disk> {
        self.disk.as_ref()
    }

    /// All figures.
    pub(super) fn totals(&self) -> Totals {
        let mut totals = self.tally.totals();
        totals.entries = self.table.len() as u64;
        totals.bytes = self.table.weight();
        totals
    }
}

/// How much memory entries take.
#[derive(Clone)]
struct Weigh;

impl Weighter<u64, Arc<Entry>> for Weigh {
    fn weight(&self, _: &u64, entry: &Arc<Entry>) -> u64 {
        entry.weight()
    }
}

/// Counts what makes room.
#[derive(Clone)]
struct Evicted {
    count: Arc<AtomicU64>,
}

impl Lifecycle<u64, Arc<Entry>> for Evicted {
    type RequestState = ();

    fn on_evict(&self, (): &mut (), _: u64, entry: Arc<Entry>) {
        // A worker that has it among its hot ones lets it go as well.
        entry.evict();
        self.count.fetch_add(1, Ordering::Relaxed);
    }
}

/// Slots are hashes already.
#[derive(Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, slot: u64) {
        self.0 = slot;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::entry::Parts;
    use flatout_wire::Status;
    use flatout_wire::cache::Policy;

    const NOW_MS: u64 = 784_111_777_000;

    fn policy() -> Policy {
        Policy { stored_ms: NOW_MS, lifetime: 60, ..Policy::default() }
    }

    fn key<'a>(store: &Store, url: &'a str) -> Key<'a> {
        Key::of(url.as_bytes(), url.len(), false, |bytes| store.hash(bytes))
    }

    fn entry(key: Key<'_>, vary: &[u8], selected: &[u8], body: usize) -> Entry {
        let parts = Parts { key, vary, selected, lines: b"A: b\r\n", status: Status::OK, policy: policy() };
        Entry::new(&parts, vec![b'x'; body])
    }

    fn put(store: &Store, url: &str, vary: &[u8], selected: &[u8]) -> Arc<Entry> {
        let key = key(store, url);
        store.insert(&key, entry(key, vary, selected, 100), store.moment()).0
    }

    fn find(store: &Store, url: &str, value: &[u8]) -> Found {
        store.find(&key(store, url), NOW_MS, |_, out| out.extend_from_slice(value))
    }

    #[test]
    fn variants_are_found_by_what_selects_them() {
        let store = Store::new(1 << 20);
        let one = put(&store, "http://a/", b"\nx", b"1");
        let two = put(&store, "http://a/", b"\nx", b"2");
        let is = |found: Found, entry: &Arc<Entry>| found.entry.is_some_and(|it| Arc::ptr_eq(&it, entry));
        assert!(is(find(&store, "http://a/", b"1"), &one) && is(find(&store, "http://a/", b"2"), &two));
        let other = find(&store, "http://a/", b"3");
        assert!(other.entry.is_none() && other.is_other_variant);
        // The first one is replaced: the other stays.
        let again = put(&store, "http://a/", b"\nx", b"1");
        assert!(!one.is_live() && is(find(&store, "http://a/", b"1"), &again));
        assert!(is(find(&store, "http://a/", b"2"), &two));
        // It varies by something else from now on.
        put(&store, "http://a/", b"\ny", b"7");
        assert!(find(&store, "http://a/", b"2").entry.is_none());
    }

    #[test]
    fn an_invalidated_key_has_no_variants_any_more() {
        let store = Store::new(1 << 20);
        put(&store, "http://a/", b"\nx", b"1");
        put(&store, "http://a/", b"\nx", b"2");
        let before = store.moment();
        let late = key(&store, "http://a/");
        store.invalidate(&late);
        assert!(!store.insert(&late, entry(late, b"", b"", 1), before).1, "it was asked for before");
        assert!(find(&store, "http://a/", b"1").entry.is_none());
        put(&store, "http://a/", b"\nx", b"1");
        assert!(find(&store, "http://a/", b"2").entry.is_none(), "it is of another family");
    }

    #[test]
    fn a_purge_meets_what_is_stored_and_what_is_under_way() {
        let store = Store::new(1 << 20);
        let (one, other) = (put(&store, "http://a/1", b"", b""), put(&store, "http://b/", b"", b""));
        let before = store.moment();
        let purge = |text| store.purge(&Purge::from_text(text).unwrap());
        assert_eq!(purge("hard prefix http://a/"), 1);
        assert!(!one.is_live() && other.is_live() && find(&store, "http://a/1", b"").entry.is_none());
        let late = key(&store, "http://a/1");
        let (_, is_stored) = store.insert(&late, entry(late, b"", b"", 1), before);
        assert!(!is_stored && find(&store, "http://a/1", b"").entry.is_none());
        assert_eq!(purge("soft all"), 1);
        assert!(other.is_live() && other.is_expired());
        assert_eq!(purge("hard all"), 1);
        assert_eq!(store.table.len(), 0);
    }

    #[test]
    fn forms_go_with_what_they_are_forms_of() {
        let store = Store::new(1 << 20);
        let first = put(&store, "http://a/", b"", b"");
        let key = key(&store, "http://a/");
        let [at, ..] = store.form_slots(key.hash).collect::<Vec<_>>()[..] else { panic!("no codings") };
        let form = || Arc::new(entry(key, b"\0br", b"", 10));
        let insert = |plain: &Arc<Entry>, form: &Arc<Entry>| {
            store.insert_beside(plain, key.hash, key.hash, at, form.clone());
            store.peek(at).is_some_and(|known| Arc::ptr_eq(&known, form))
        };
        let one = form();
        assert!(one.is_form() && insert(&first, &one) && one.is_live());
        let second = put(&store, "http://a/", b"", b"");
        assert!(!one.is_live() && store.peek(at).is_none());
        // One that was made too late.
        assert!(!insert(&first, &form()) && insert(&second, &form()));
        let two = store.peek(at).unwrap();
        assert_eq!(store.purge(&Purge::from_text("hard all").unwrap()), 1);
        assert!(!two.is_live() && store.totals().entries == 0);
        let third = put(&store, "http://a/", b"", b"");
        assert!(insert(&third, &form()));
        store.invalidate(&key);
        assert!(store.peek(at).is_none());
    }

    #[test]
    fn memory_is_bounded_with_all_that_it_takes() {
        let store = Store::new(1 << 20);
        for at in 0..20_000 {
            put(&store, &format!("http://a/{at}"), b"", b"");
        }
        let totals = store.totals();
        assert!(totals.bytes <= 1 << 20 && totals.bytes > (1 << 20) * 9 / 10, "{totals:?}");
        assert!(totals.evicted > 10_000 && totals.entries < 4000, "{totals:?}");
        let big = key(&store, "http://a/big");
        store.insert(&big, entry(big, b"", b"", 900 << 10), store.moment());
        assert!(store.totals().bytes <= 1 << 20);
    }

    #[test]
    fn what_nobody_asks_for_is_removed() {
        let store = Store::new(1 << 20);
        let [used, unused] = ["http://a/used", "http://a/unused"].map(|url| put(&store, url, b"", b""));
        let first = put(&store, "http://a/", b"\nx", b"1");
        let variants = [b"2", b"3"].map(|selected| put(&store, "http://a/", b"\nx", selected));
        let form = Arc::new(entry(key(&store, "http://a/unused"), b"\0br", b"", 10));
        let slot = key(&store, "http://a/unused").hash;
        let at = store.form_slots(slot).next().unwrap();
        store.insert_beside(&unused, slot, slot, at, form.clone());

        assert_eq!(store.sweep(NOW_MS + 10_000, 10, 1), 0, "not before the time is over");
        let later = NOW_MS + 8_000;
        for (url, value) in [("http://a/used", &b""[..]), ("http://a/", b"2")] {
            assert!(
                store.find(&key(&store, url), later, |_, out| out.extend_from_slice(value)).entry.is_some()
            );
        }
        // A clock that went back removes nothing.
        assert_eq!(store.sweep(NOW_MS - 20_000, 10, 1), 0);
        assert_eq!(store.sweep(NOW_MS + 11_000, 10, 1), 2);
        assert!(!unused.is_live() && !form.is_live() && !variants[1].is_live());
        assert!(
            used.is_live() && first.is_live() && variants[0].is_live(),
            "the first variant leads to others"
        );
        assert_eq!(store.sweep(later + 11_000, 10, 1), 3);
        assert_eq!(store.totals().entries, 0);
    }

    #[test]
    fn one_brings_and_the_others_follow() {
        let store = Store::new(1 << 20);
        let key = key(&store, "http://a/");
        let Joined::Leads(flight) = store.join(&key, key.hash, None) else { panic!("nobody was before") };
        assert!(
            matches!(store.join(&key, key.hash, None), Joined::Follows(same) if Arc::ptr_eq(&same, &flight))
        );
        store.land(&flight);
        let stored = put(&store, "http://a/", b"", b"");
        assert!(
            matches!(store.join(&key, key.hash, None), Joined::Here(entry) if Arc::ptr_eq(&entry, &stored))
        );
        assert!(matches!(store.join(&key, key.hash, Some(&stored)), Joined::Leads(_)));
    }

    #[test]
    fn uses_are_counted_where_they_matter() {
        let store = Store::new(1 << 20);
        assert!(store.is_used_enough(1, 1) && !store.is_used_enough(1, 3) && !store.is_used_enough(1, 3));
        assert!(store.is_used_enough(1, 3));
        store.pass(5, 1000);
        assert!(store.is_passed(5, 1000 + PASS_TIME_MS - 1) && !store.is_passed(5, 1000 + PASS_TIME_MS));
    }
}
