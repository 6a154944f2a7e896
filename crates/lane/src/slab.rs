//! A table of entries under stable keys, in chunks that never move.
//!
//! A `Vec` that doubles would hold up to twice the memory of its entries and copy them all while it grows;
//! chunks of [`CHUNK_ENTRIES`] grow by what is needed. A [`Key`] names an index and a generation, so that an event
//! for a connection that was closed in the same turn finds nothing instead of its successor.

/// Entries allocated at a time.
pub const CHUNK_ENTRIES: usize = 256;

/// Names one entry for as long as it lives; fits the 64 bits that epoll keeps for each descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key(u64);

impl Key {
    /// The key as epoll's user data.
    pub fn to_u64(self) -> u64 {
        self.0
    }

    /// The key that [`Key::to_u64`] gave.
    pub fn from_u64(bits: u64) -> Key {
        Key(bits)
    }

    fn new(index: u32, generation: u32) -> Key {
        Key(u64::from(generation) << 32 | u64::from(index))
    }

    fn index(self) -> u32 {
        self.0 as u32
    }

    fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// A table of `T`s.
pub struct Slab<T> {
    chunks: Vec<Vec<Slot<T>>>,
    vacant: u32,
    occupied_count: usize,
}

struct Slot<T> {
    generation: u32,
    content: Content<T>,
}

enum Content<T> {
    Occupied(T),
    /// The next vacant slot, or [`NONE`].
    Vacant(u32),
}

const NONE: u32 = u32::MAX;

/// Generations stay below 2^31, so keys stay below every value that a caller reserves at the top of `u64`.
const GENERATION_MASK: u32 = u32::MAX >> 1;

impl<T> Slab<T> {
    /// An empty table, without memory of its own.
    pub fn new() -> Slab<T> {
        Slab { chunks: Vec::new(), vacant: NONE, occupied_count: 0 }
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.occupied_count
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.occupied_count == 0
    }

    /// How many slots there are, vacant ones too: the range that [`Slab::key_at`] takes.
    pub fn slots(&self) -> usize {
        self.chunks.len() * CHUNK_ENTRIES
    }

    /// Adds an entry. Allocates once for [`CHUNK_ENTRIES`] of them.
    pub fn insert(&mut self, entry: T) -> Key {
        if self.vacant == NONE {
            self.grow();
        }
        let index = self.vacant;
        let slot = &mut self.chunks[index as usize / CHUNK_ENTRIES][index as usize % CHUNK_ENTRIES];
        if let Content::Vacant(next) = slot.content {
            self.vacant = next;
        }
        slot.content = Content::Occupied(entry);
        self.occupied_count += 1;
        Key::new(index, slot.generation)
    }

    /// The entry under this key, if it still lives.
    #[inline]
    pub fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let index = key.index() as usize;
        let slot = self.chunks.get_mut(index / CHUNK_ENTRIES)?.get_mut(index % CHUNK_ENTRIES)?;
        match &mut slot.content {
            Content::Occupied(entry) if slot.generation == key.generation() => Some(entry),
            _ => None,
        }
    }

    /// Takes the entry out; its key finds nothing from now on.
    pub fn remove(&mut self, key: Key) -> Option<T> {
        self.get_mut(key)?;
        let index = key.index() as usize;
        let slot = &mut self.chunks[index / CHUNK_ENTRIES][index % CHUNK_ENTRIES];
        let content = std::mem::replace(&mut slot.content, Content::Vacant(self.vacant));
        slot.generation = (slot.generation + 1) & GENERATION_MASK;
        self.vacant = key.index();
        self.occupied_count -= 1;
        match content {
            Content::Occupied(entry) => Some(entry),
            Content::Vacant(_) => None,
        }
    }

    /// The entry in this slot with its key, for sweeps.
    #[inline]
    pub fn slot(&self, slot: usize) -> Option<(Key, &T)> {
        let found = self.chunks.get(slot / CHUNK_ENTRIES)?.get(slot % CHUNK_ENTRIES)?;
        match &found.content {
            Content::Occupied(entry) => Some((Key::new(slot as u32, found.generation), entry)),
            Content::Vacant(_) => None,
        }
    }

    fn grow(&mut self) {
        let first = self.slots() as u32;
        let slots = (0..CHUNK_ENTRIES as u32).map(|at| {
            let next = if at as usize == CHUNK_ENTRIES - 1 { NONE } else { first + at + 1 };
            Slot { generation: 0, content: Content::Vacant(next) }
        });
        self.chunks.push(slots.collect());
        self.vacant = first;
    }
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
    fn keys_of_the_dead_find_nothing() {
        let mut slab = Slab::new();
        let first = slab.insert("a");
        assert_eq!(slab.remove(first), Some("a"));
        let second = slab.insert("b");
        assert_ne!(first, second);
        assert_eq!(slab.get_mut(first), None);
        assert_eq!(slab.remove(first), None);
        assert_eq!(slab.get_mut(second), Some(&mut "b"));
        assert_eq!(slab.get_mut(Key::from_u64(u64::MAX)), None);
    }

    #[test]
    fn many_come_and_go() {
        let mut slab = Slab::new();
        let keys: Vec<Key> = (0..1000).map(|n| slab.insert(n)).collect();
        for key in keys.iter().step_by(2) {
            slab.remove(*key);
        }
        assert_eq!(slab.len(), 500);
        let seen: Vec<i32> = (0..slab.slots()).filter_map(|at| slab.slot(at)).map(|(_, n)| *n).collect();
        assert_eq!(seen, (0..1000).filter(|n| n % 2 == 1).collect::<Vec<_>>());
        let slots = slab.slots();
        for n in 0..500 {
            slab.insert(n);
        }
        assert_eq!(slab.slots(), slots, "vacant slots are used first");
    }
}
