//! Which contents stay in memory: a limit, and a clock algorithm that drops files that are not requested.
//!
//! ```text
//!            hand
//!             v
//!   [ a  b  c  d  e  f ]     d was asked for lately: it stays, and goes to the end
//!                            d was not: its bytes leave memory, it is sent from disk
//! ```
//!
//! Each step of the hand is constant work. In one epoch it passes each entry at most once, so loading files costs at
//! most one round per epoch, however many are requested.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use flatout_wire::accept::Coding;

use super::entry::{Content, Entry};

/// Slots of the clock for dropped entries before they are cleaned up.
const STALE_MAX: usize = 1024;

/// The contents in memory.
pub(crate) struct Memory {
    bytes: u64,
    bytes_max: u64,
    cache_control: Option<String>,
    clock: VecDeque<Weak<Entry>>,
    /// Entries of the clock that are still in memory.
    resident_count: usize,
    /// Steps that the hand may still take in this epoch.
    steps_left: usize,
    #[cfg(test)]
    steps: usize,
}

impl Memory {
    pub(crate) fn new(bytes_max: u64, cache_control: Option<String>) -> Memory {
        Memory {
            bytes: 0,
            bytes_max,
            cache_control,
            clock: VecDeque::new(),
            resident_count: 0,
            steps_left: 0,
            #[cfg(test)]
            steps: 0,
        }
    }

    /// Bytes that can be added without eviction.
    pub(crate) fn room(&self) -> u64 {
        self.bytes_max.saturating_sub(self.bytes)
    }

    /// Counts an entry that already has its contents.
    pub(crate) fn add(&mut self, entry: &Arc<Entry>) {
        let bytes = entry.contents().memory_bytes();
        if bytes > 0 {
            self.bytes += bytes;
            self.resident_count += 1;
            self.clock.push_back(Arc::downgrade(entry));
            self.clear_stale();
        }
    }

    /// Puts the contents of an entry into memory.
    pub(crate) fn put(&mut self, entry: &Arc<Entry>, contents: Vec<(Coding, Content)>) {
        let before = entry.contents().memory_bytes();
        entry.set_contents(contents, self.cache_control.as_deref());
        if before == 0 {
            self.add(entry);
        } else {
            self.bytes = self.bytes - before + entry.contents().memory_bytes();
        }
    }

    /// Adds compressed variants, if there is room for them.
    pub(crate) fn put_variants(&mut self, entry: &Arc<Entry>, variants: Vec<(Coding, Bytes)>, epoch: u32) {
        let contents = entry.contents();
        let Some(plain) = contents.plain().filter(|_| entry.is_to_precompress(&contents) && !entry.is_gone())
        else {
            return;
        };
        let plain = (Coding::Identity, Content::Memory(plain.clone()));
        let bytes: u64 = variants.iter().map(|(_, bytes)| bytes.len() as u64).sum();
        let is_here = |memory: &Memory| bytes <= memory.room() && entry.contents().is_in_memory();
        if self.make_room(bytes, epoch) && is_here(self) {
            let made = variants.into_iter().map(|(coding, bytes)| (coding, Content::Memory(bytes)));
            self.put(entry, std::iter::once(plain).chain(made).collect());
        }
    }

    /// Removes a dropped entry. Responses in progress keep its bytes alive.
    pub(crate) fn forget(&mut self, entry: &Entry) {
        entry.leave();
        let bytes = entry.contents().memory_bytes();
        if bytes > 0 {
            self.bytes -= bytes;
            self.resident_count -= 1;
        }
    }

    /// Starts an epoch: the hand may go round once more.
    pub(crate) fn begin_epoch(&mut self) {
        self.steps_left = self.clock.len();
    }

    /// Evicts files not used in this or the previous epoch, until there is room for this many bytes. Returns whether
    /// there is.
    pub(crate) fn make_room(&mut self, bytes: u64, epoch: u32) -> bool {
        if bytes > self.bytes_max {
            return false;
        }
        while self.room() < bytes && self.steps_left > 0 {
            self.steps_left -= 1;
            self.step(|entry| entry.used() + 1 >= epoch);
        }
        self.room() >= bytes
    }

    /// Frees memory until the limit is met, the least used files first.
    pub(crate) fn trim(&mut self, epoch: u32) {
        if self.bytes <= self.bytes_max {
            return;
        }
        // One round spares recently used files, the other does not.
        for spares in [true, false] {
            for _ in 0..self.clock.len() {
                if self.bytes <= self.bytes_max {
                    return;
                }
                self.step(|entry| spares && entry.used() + 1 >= epoch);
            }
        }
    }

    /// Moves the hand by one step.
    fn step(&mut self, stays: impl Fn(&Entry) -> bool) {
        #[cfg(test)]
        {
            self.steps += 1;
        }
        let Some(weak) = self.clock.pop_front() else { return };
        let Some(entry) = weak.upgrade().filter(|entry| !entry.is_gone()) else { return };
        let bytes = entry.contents().memory_bytes();
        if bytes == 0 {
            return;
        }
        if stays(&entry) {
            self.clock.push_back(weak);
            return;
        }
        entry.set_contents(entry.on_disk(), self.cache_control.as_deref());
        entry.reset_pressing();
        self.bytes -= bytes;
        self.resident_count -= 1;
    }

    /// Cleans up the slots of dropped entries, at an amortised constant cost.
    fn clear_stale(&mut self) {
        if self.clock.len() > 2 * self.resident_count + STALE_MAX {
            let is_here = |entry: Arc<Entry>| !entry.is_gone() && entry.contents().is_in_memory();
            self.clock.retain(|weak| weak.upgrade().is_some_and(is_here));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::super::write_detection::Stamp;
    use super::*;

    const BYTES: usize = 10;

    fn entry(number: usize) -> Arc<Entry> {
        let stamp = Stamp { device: 1, inode: number as u64, bytes: BYTES as u64, modified: UNIX_EPOCH };
        Arc::new(Entry::new(format!("{number}").into(), stamp, Vec::new(), None))
    }

    fn contents() -> Vec<(Coding, Content)> {
        vec![(Coding::Identity, Content::Memory(Bytes::from_static(&[0; BYTES])))]
    }

    fn filled(count: usize) -> (Memory, Vec<Arc<Entry>>) {
        let mut memory = Memory::new((count * BYTES) as u64, None);
        let entries: Vec<Arc<Entry>> = (0..count).map(entry).collect();
        entries.iter().for_each(|entry| memory.put(entry, contents()));
        assert_eq!(memory.room(), 0);
        (memory, entries)
    }

    #[test]
    fn unused_files_are_evicted() {
        let (mut memory, entries) = filled(3);
        entries[0].use_in(7);
        entries[2].use_in(6);
        memory.begin_epoch();
        assert!(memory.make_room(BYTES as u64, 7));
        assert!(!entries[1].contents().is_in_memory());
        assert!(entries[0].contents().is_in_memory() && entries[2].contents().is_in_memory());
        assert!(!memory.make_room(2 * BYTES as u64, 7), "the others are in use");
    }

    /// 100 000 files over the limit are all requested in each epoch.
    #[test]
    fn a_hundred_thousand_over_the_ceiling_cost_one_round_an_epoch() {
        const COUNT: usize = 100_000;
        let (mut memory, entries) = filled(COUNT);
        for epoch in 10..13 {
            entries.iter().for_each(|entry| entry.use_in(epoch));
            memory.begin_epoch();
            let before = memory.steps;
            for _ in 0..COUNT {
                assert!(!memory.make_room(BYTES as u64, epoch));
            }
            assert!(memory.steps - before <= COUNT, "{} steps", memory.steps - before);
        }
        memory.begin_epoch();
        let before = memory.steps;
        for number in 0..COUNT {
            assert!(memory.make_room(BYTES as u64, 20));
            memory.put(&entry(COUNT + number), contents());
        }
        assert!(memory.steps - before <= 2 * COUNT, "{} steps", memory.steps - before);
    }

    #[test]
    fn the_ceiling_holds_even_if_all_is_in_use() {
        let (mut memory, entries) = filled(5);
        entries.iter().for_each(|entry| entry.use_in(3));
        let new = entry(9);
        new.set_contents(contents(), None);
        memory.add(&new);
        memory.trim(3);
        assert_eq!(memory.room(), 0);
        entries.iter().for_each(|entry| memory.forget(entry));
        memory.forget(&new);
        assert_eq!((memory.bytes, memory.resident_count), (0, 0));
    }

    #[test]
    fn slots_of_removed_files_are_freed() {
        let mut memory = Memory::new(1 << 20, None);
        for number in 0..10_000 {
            let entry = entry(number);
            memory.put(&entry, contents());
            memory.forget(&entry);
        }
        assert!(memory.clock.len() <= 2 * STALE_MAX, "{}", memory.clock.len());
    }
}
