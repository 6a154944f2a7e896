//! A table with stable keys, in chunks that never move.
//!
//! A growing `Vec` would hold up to twice the memory of its entries and copy all of them; chunks of [`CHUNK_ENTRIES`]
//! grow as needed, and an empty chunk releases its memory. A [`Key`] consists of an index and a generation, so that
//! an event for a connection that was closed in the same turn matches nothing, instead of its successor.

use std::num::NonZeroU64;
use std::ops::Range;

/// Entries allocated at a time.
pub const CHUNK_ENTRIES: usize = 256;

/// Identifies one entry for its lifetime. It fits in [`Key::BITS`] bits, so that an epoll token has room for a kind,
/// and `Option<Key>` is as small as a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key(NonZeroU64);

impl Key {
    /// Bits of a key, of the 64 that epoll stores per descriptor.
    pub const BITS: u32 = 61;

    /// The key as a number below 2^[`Key::BITS`].
    #[inline]
    pub fn to_u64(self) -> u64 {
        self.0.get()
    }

    /// The key from [`Key::to_u64`]; other numbers match no entry.
    #[inline]
    pub fn from_u64(bits: u64) -> Key {
        Key(NonZeroU64::new(bits).unwrap_or(NonZeroU64::MAX))
    }

    #[inline]
    fn new(index: u32, generation: u32) -> Key {
        Key::from_u64(u64::from(generation) << 32 | u64::from(index))
    }

    #[inline]
    fn index(self) -> u32 {
        self.0.get() as u32
    }

    #[inline]
    fn generation(self) -> u32 {
        (self.0.get() >> 32) as u32
    }
}

/// A table of `T`s.
pub struct Slab<T> {
    chunks: Vec<Chunk<T>>,
    /// The chunk for the next entry, if it has room.
    filling: usize,
    occupied_count: usize,
    /// The first generation in newly allocated memory: above all earlier ones there.
    generation_start: u32,
}

/// The position of an iteration over a table that may change between two steps, or over several turns. Every iteration
/// uses it, so that vacant slots are skipped in one place.
///
/// Each entry that stays in the table is visited once. One that is added meanwhile may be visited or not.
#[derive(Debug, Clone)]
pub struct Cursor {
    /// The next slot.
    slot: usize,
    /// Where the iteration ends.
    end: usize,
}

/// Over the whole table, also what is added at its end meanwhile.
impl Default for Cursor {
    fn default() -> Self {
        Cursor { slot: 0, end: usize::MAX }
    }
}

impl Cursor {
    /// The next entry; `None` at the end. Costs a look at each vacant slot between two entries, at most two chunks of
    /// them, and at each chunk without entries.
    #[inline]
    pub fn next<'a, T>(&mut self, slab: &'a Slab<T>) -> Option<(Key, &'a T)> {
        let (slot, key, entry) = slab.first_of(self.slot..self.end)?;
        self.slot = slot + 1;
        Some((key, entry))
    }
}

/// Slots; without memory while none is occupied.
struct Chunk<T> {
    slots: Box<[Slot<T>]>,
    occupied_count: u32,
    /// The first vacant slot, or [`NONE`].
    vacant: u32,
}

struct Slot<T> {
    generation: u32,
    content: Content<T>,
}

enum Content<T> {
    Occupied(T),
    /// The next vacant slot of the chunk, or [`NONE`].
    Vacant(u32),
}

const NONE: u32 = u32::MAX;

/// Generations are 1 to this, so that keys are never 0 and stay below 2^[`Key::BITS`].
const GENERATION_MAX: u32 = (1 << (Key::BITS - 32)) - 1;

impl<T> Slab<T> {
    /// An empty table, without allocation.
    pub fn new() -> Slab<T> {
        Slab { chunks: Vec::new(), filling: 0, occupied_count: 0, generation_start: 1 }
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.occupied_count
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.occupied_count == 0
    }

    /// The number of slots, including vacant ones.
    pub fn slots(&self) -> usize {
        self.chunks.len() * CHUNK_ENTRIES
    }

    /// Adds an entry. Allocates once per [`CHUNK_ENTRIES`].
    pub fn insert(&mut self, entry: T) -> Key {
        if !self.chunks.get(self.filling).is_some_and(Chunk::has_room) {
            self.filling = self.chunks.iter().position(Chunk::has_room).unwrap_or_else(|| self.grow());
        }
        let chunk = &mut self.chunks[self.filling];
        if chunk.slots.is_empty() {
            chunk.fill(self.generation_start);
        }
        let at = chunk.vacant;
        let slot = &mut chunk.slots[at as usize];
        if let Content::Vacant(next) = slot.content {
            chunk.vacant = next;
        }
        slot.content = Content::Occupied(entry);
        chunk.occupied_count += 1;
        self.occupied_count += 1;
        Key::new((self.filling * CHUNK_ENTRIES) as u32 + at, slot.generation)
    }

    /// The entry with this key, if it still exists.
    #[inline]
    pub fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let index = key.index() as usize;
        let slot = self.chunks.get_mut(index / CHUNK_ENTRIES)?.slots.get_mut(index % CHUNK_ENTRIES)?;
        match &mut slot.content {
            Content::Occupied(entry) if slot.generation == key.generation() => Some(entry),
            _ => None,
        }
    }

    /// Removes the entry; its key matches nothing from now on. A chunk that becomes empty is freed, unless it is the
    /// one being filled: a table with few entries must not allocate for each.
    pub fn remove(&mut self, key: Key) -> Option<T> {
        self.get_mut(key)?;
        let index = key.index() as usize;
        let chunk = &mut self.chunks[index / CHUNK_ENTRIES];
        let slot = &mut chunk.slots[index % CHUNK_ENTRIES];
        let content = std::mem::replace(&mut slot.content, Content::Vacant(chunk.vacant));
        slot.generation = following(slot.generation);
        self.generation_start = self.generation_start.max(slot.generation);
        chunk.vacant = (index % CHUNK_ENTRIES) as u32;
        chunk.occupied_count -= 1;
        self.occupied_count -= 1;
        if chunk.occupied_count == 0 && index / CHUNK_ENTRIES != self.filling {
            *chunk = Chunk::unallocated();
            self.forget_last_chunks();
        }
        match content {
            Content::Occupied(entry) => Some(entry),
            Content::Vacant(_) => None,
        }
    }

    /// The entries, in the order of their slots. Where entries are changed or removed meanwhile: a [`Cursor`].
    pub fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        let mut cursor = Cursor::default();
        std::iter::from_fn(move || cursor.next(self))
    }

    /// Iterates over one of `slices` equal parts of the current table.
    pub fn slice(&self, slice: usize, slices: usize) -> Cursor {
        let slots = self.slots();
        Cursor { slot: slots * slice / slices, end: slots * (slice + 1) / slices }
    }

    /// The slot and the entry of the first occupied slot in this range. Chunks without entries are skipped.
    fn first_of(&self, slots: Range<usize>) -> Option<(usize, Key, &T)> {
        let first = slots.start / CHUNK_ENTRIES;
        let chunks =
            self.chunks.get(first..)?.iter().enumerate().filter(|(_, chunk)| chunk.occupied_count > 0);
        for (skipped, chunk) in chunks {
            let chunk_start = (first + skipped) * CHUNK_ENTRIES;
            if chunk_start >= slots.end {
                return None;
            }
            let start = slots.start.saturating_sub(chunk_start);
            let end = (slots.end - chunk_start).min(chunk.slots.len());
            let found =
                chunk.slots.get(start..end)?.iter().zip(start..).find_map(|(slot, at)| match &slot.content {
                    Content::Occupied(entry) => Some((chunk_start + at, slot.generation, entry)),
                    Content::Vacant(_) => None,
                });
            if let Some((at, generation, entry)) = found {
                return Some((at, Key::new(at as u32, generation), entry));
            }
        }
        None
    }

    /// Slots with allocated memory.
    pub fn allocated_slots(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.slots.len()).sum()
    }

    fn grow(&mut self) -> usize {
        self.chunks.push(Chunk::unallocated());
        self.chunks.len() - 1
    }

    fn forget_last_chunks(&mut self) {
        while self.chunks.len() > self.filling + 1
            && self.chunks.last().is_some_and(|last| last.slots.is_empty())
        {
            self.chunks.pop();
        }
    }
}

impl<T> Chunk<T> {
    fn unallocated() -> Chunk<T> {
        Chunk { slots: Box::default(), occupied_count: 0, vacant: NONE }
    }

    fn has_room(&self) -> bool {
        self.slots.is_empty() || self.vacant != NONE
    }

    fn fill(&mut self, generation: u32) {
        let slots = (0..CHUNK_ENTRIES as u32).map(|at| {
            let next = if at as usize == CHUNK_ENTRIES - 1 { NONE } else { at + 1 };
            Slot { generation, content: Content::Vacant(next) }
        });
        self.slots = slots.collect();
        self.vacant = 0;
    }
}

fn following(generation: u32) -> u32 {
    if generation >= GENERATION_MAX { 1 } else { generation + 1 }
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_keys_never_match() {
        let mut slab = Slab::new();
        let first = slab.insert("a");
        assert_eq!(slab.remove(first), Some("a"));
        let second = slab.insert("b");
        assert_ne!(first, second);
        assert_eq!(slab.get_mut(first), None);
        assert_eq!(slab.remove(first), None);
        assert_eq!(slab.get_mut(second), Some(&mut "b"));
        assert_eq!(slab.get_mut(Key::from_u64(u64::MAX)), None);
        assert_eq!(slab.get_mut(Key::from_u64(0)), None);
        assert_eq!(size_of::<Option<Key>>(), 8);
    }

    #[test]
    fn memory_of_removed_entries_is_freed() {
        let mut slab = Slab::new();
        let keys: Vec<Key> = (0..10_000).map(|n| slab.insert(n)).collect();
        assert!(slab.allocated_slots() >= 10_000);
        let last = *keys.last().unwrap();
        for key in &keys {
            slab.remove(*key);
        }
        assert!(slab.is_empty() && slab.allocated_slots() <= CHUNK_ENTRIES, "{}", slab.allocated_slots());
        assert_eq!(slab.iter().count(), 0);
        // Newly allocated memory must not make old keys valid again.
        let again: Vec<Key> = (0..10_000).map(|n| slab.insert(n)).collect();
        assert!(keys.iter().all(|key| slab.get_mut(*key).is_none()) && slab.get_mut(last).is_none());
        assert!(again.iter().all(|key| slab.get_mut(*key).is_some() && key.to_u64() >> Key::BITS == 0));
    }

    #[test]
    fn generations_go_round_without_zero() {
        assert_eq!(following(GENERATION_MAX), 1);
        assert_eq!(following(1), 2);
    }

    #[test]
    fn removed_slots_are_reused() {
        let mut slab = Slab::new();
        let keys: Vec<Key> = (0..1000).map(|n| slab.insert(n)).collect();
        for key in keys.iter().step_by(2) {
            slab.remove(*key);
        }
        assert_eq!(slab.len(), 500);
        let seen: Vec<i32> = slab.iter().map(|(_, n)| *n).collect();
        assert_eq!(seen, (0..1000).filter(|n| n % 2 == 1).collect::<Vec<_>>());
        let slots = slab.slots();
        for n in 0..500 {
            slab.insert(n);
        }
        assert_eq!(slab.slots(), slots, "vacant slots are used first");
    }

    /// A table with these chunks, each as the positions of its entries. An entry is the number of its slot.
    fn table(chunks: &[&[usize]]) -> Slab<usize> {
        let mut slab = Slab::new();
        let keys: Vec<Key> = (0..chunks.len() * CHUNK_ENTRIES).map(|slot| slab.insert(slot)).collect();
        for (slot, key) in keys.into_iter().enumerate() {
            if !chunks[slot / CHUNK_ENTRIES].contains(&(slot % CHUNK_ENTRIES)) {
                slab.remove(key);
            }
        }
        slab
    }

    #[test]
    fn an_iteration_finds_every_entry_behind_holes() {
        const LAST: usize = CHUNK_ENTRIES - 1;
        let all: Vec<usize> = (0..CHUNK_ENTRIES).collect();
        let chunk_forms: [&[usize]; 8] =
            [&[], &[0], &[LAST], &[100], &[0, LAST], &[1, 2, 254], &all, &all[1..]];
        for first in chunk_forms {
            for second in chunk_forms {
                for third in chunk_forms {
                    let chunks = [first, second, third];
                    let mut slab = table(&chunks);
                    let mut expected: Vec<usize> = Vec::new();
                    for (at, entries) in chunks.iter().enumerate() {
                        expected.extend(entries.iter().map(|entry| at * CHUNK_ENTRIES + entry));
                    }
                    let entries = |slab: &Slab<usize>, mut cursor: Cursor| {
                        let mut entries = Vec::new();
                        while let Some((_, entry)) = cursor.next(slab) {
                            entries.push(*entry);
                        }
                        entries
                    };
                    assert_eq!(slab.iter().map(|(_, entry)| *entry).collect::<Vec<_>>(), expected);
                    let sliced: Vec<usize> =
                        (0..8).flat_map(|slice| entries(&slab, slab.slice(slice, 8))).collect();
                    assert_eq!(sliced, expected, "in slices");
                    // Entries are removed while the iteration goes on.
                    let (mut cursor, mut removed) = (Cursor::default(), Vec::new());
                    while let Some((key, _)) = cursor.next(&slab) {
                        removed.extend(slab.remove(key));
                    }
                    assert_eq!(removed, expected, "while they are removed");
                    assert!(slab.is_empty());
                }
            }
        }
    }
}
