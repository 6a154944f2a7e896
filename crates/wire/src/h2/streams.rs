//! The table of active streams, by number.
//!
//! Numbers grow by two, so half of a number modulo the table's size is a slot that is almost always free: a hash
//! table with open addressing that shifts entries back on removal. It is never more than half full.

use super::frame::WINDOW_FIRST;
use super::priority::Priority;

/// A stream that is active, or that the application has not released.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stream {
    /// 0 for a free slot.
    pub(super) id: u32,
    /// Our send window; below 0 if the peer has reduced it.
    pub(super) send_window: i64,
    /// The receive window.
    pub(super) receive_window: i64,
    /// Bytes consumed but not yet returned to the peer as window.
    pub(super) credit: u32,
    /// Content still to be received, if its length is known.
    pub(super) length_left: Option<u64>,
    /// Content still to be sent, if its length was declared.
    pub(super) send_left: Option<u64>,
    pub(super) priority: Priority,
    /// The turn in which it was last chosen to send.
    pub(super) served_at: u32,
    /// The peer may send more of its message.
    pub(super) is_remote_open: bool,
    /// We may send more of ours.
    pub(super) is_local_open: bool,
    /// The application holds it.
    pub(super) is_held: bool,
    /// Its head was sent (server), or received (client).
    pub(super) has_answer: bool,
    /// It has content that waits for its turn.
    pub(super) is_waiting: bool,
    /// The response has no content, whatever its head declares (HEAD).
    pub(super) is_head: bool,
    pub(super) is_connect: bool,
    pub(super) interims: u8,
}

impl Stream {
    pub(super) fn new(id: u32, send_window: i64, receive_window: i64) -> Stream {
        Stream {
            id,
            send_window,
            receive_window,
            credit: 0,
            length_left: None,
            send_left: None,
            priority: Priority::default(),
            served_at: 0,
            is_remote_open: true,
            is_local_open: true,
            is_held: true,
            has_answer: false,
            is_waiting: false,
            is_head: false,
            is_connect: false,
            interims: 0,
        }
    }

    fn none() -> Stream {
        Stream::new(0, 0, i64::from(WINDOW_FIRST))
    }

    /// Both messages are complete, or one was reset.
    pub(super) fn is_over(&self) -> bool {
        !self.is_remote_open && !self.is_local_open
    }

    /// Ends it at once.
    pub(super) fn break_off(&mut self) {
        self.is_remote_open = false;
        self.is_local_open = false;
        self.is_waiting = false;
    }
}

/// All streams of a connection.
#[derive(Debug, Default)]
pub(super) struct Streams {
    /// The length is a power of two, or zero.
    slots: Vec<Stream>,
    count: usize,
}

/// The minimum number of slots of a non-empty table.
const SLOTS_MIN: usize = 8;

impl Streams {
    pub(super) fn len(&self) -> usize {
        self.count
    }

    fn place(&self, id: u32) -> usize {
        (id as usize / 2) & self.slots.len().wrapping_sub(1)
    }

    fn find(&self, id: u32) -> Option<usize> {
        let mut at = self.place(id);
        loop {
            match self.slots.get(at)?.id {
                0 => return None,
                this if this == id => return Some(at),
                _ => at = (at + 1) & (self.slots.len() - 1),
            }
        }
    }

    #[inline]
    pub(super) fn get(&self, id: u32) -> Option<&Stream> {
        self.slots.get(self.find(id)?)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut Stream> {
        let at = self.find(id)?;
        self.slots.get_mut(at)
    }

    /// Adds a new stream.
    pub(super) fn insert(&mut self, stream: Stream) {
        if self.slots.len() < 2 * (self.count + 1) {
            let slots = (self.slots.len() * 2).max(SLOTS_MIN);
            let old = std::mem::replace(&mut self.slots, vec![Stream::none(); slots]);
            old.into_iter().filter(|stream| stream.id != 0).for_each(|stream| self.put(stream));
        }
        self.put(stream);
        self.count += 1;
    }

    fn put(&mut self, stream: Stream) {
        let mut at = self.place(stream.id);
        while let Some(slot) = self.slots.get_mut(at) {
            if slot.id == 0 {
                *slot = stream;
                return;
            }
            at = (at + 1) & (self.slots.len() - 1);
        }
    }

    /// Removes a stream, and shifts entries back that would not be found otherwise.
    pub(super) fn remove(&mut self, id: u32) {
        let Some(mut hole) = self.find(id) else { return };
        self.count -= 1;
        let mask = self.slots.len() - 1;
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let Some(stream) = self.slots.get(at).copied().filter(|stream| stream.id != 0) else { break };
            let home = self.place(stream.id);
            // It may move into the hole unless that is before its home slot.
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(hole) & mask {
                if let Some(slot) = self.slots.get_mut(hole) {
                    *slot = stream;
                }
                hole = at;
            }
        }
        if let Some(slot) = self.slots.get_mut(hole) {
            *slot = Stream::none();
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Stream> {
        self.slots.iter().filter(|stream| stream.id != 0)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Stream> {
        self.slots.iter_mut().filter(|stream| stream.id != 0)
    }

    /// Frees the memory if there are no streams.
    pub(super) fn rest(&mut self) {
        if self.count == 0 {
            self.slots = Vec::new();
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Stream>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_table_agrees_with_a_set() {
        let (mut table, mut set, mut seed) = (Streams::default(), BTreeSet::new(), 1u64);
        let mut next = 1;
        for _ in 0..100_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            if seed >> 60 < 8 && set.len() < 100 {
                // With gaps, which clients may leave.
                next += 2 * (1 + (seed >> 40) as u32 % 3 * (seed >> 50) as u32 % 300);
                table.insert(Stream::new(next, 0, 0));
                set.insert(next);
            } else if let Some(&id) = set.iter().nth((seed >> 33) as usize % set.len().max(1)) {
                table.remove(id);
                set.remove(&id);
                assert!(table.get(id).is_none());
            }
            assert_eq!(table.len(), set.len());
            assert!(set.iter().all(|&id| table.get(id).is_some_and(|stream| stream.id == id)));
        }
        assert_eq!(table.iter().map(|stream| stream.id).collect::<BTreeSet<_>>(), set);
        assert!(table.slots.len() <= 256);
    }
}
