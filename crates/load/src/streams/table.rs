//! The pending streams of one connection, by id.
//!
//! Ids grow by two, so half of the id, modulo the table's size, is a slot that is nearly always free. If it is taken,
//! the stream is in the next free slot.

use std::rc::Rc;

use flatout_wire::h2::StreamId;

/// A pending request, and what has arrived of its response.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(super) id: StreamId,
    /// Start of its latency.
    pub(super) due_ns: u64,
    /// When it was sent.
    pub(super) since_ns: u64,
    /// The response's status, once the head has arrived.
    pub(super) status: Option<u16>,
    pub(super) body_at: u64,
    pub(super) body_fits: bool,
    /// The rest of the request's body.
    pub(super) body: Option<Body>,
}

/// A request's body, and how much of it was sent.
#[derive(Debug)]
pub(super) struct Body {
    pub(super) bytes: Rc<[u8]>,
    pub(super) sent: usize,
}

/// Holds at most as many streams as it was made for.
#[derive(Debug)]
pub(super) struct Table {
    /// A power of two.
    slots: Vec<Option<Stream>>,
    count: usize,
}

impl Stream {
    pub(super) fn new(id: StreamId, due_ns: u64, since_ns: u64, body: Option<Body>) -> Stream {
        Stream { id, due_ns, since_ns, status: None, body_at: 0, body_fits: true, body }
    }
}

impl Table {
    /// A table for this many streams: half of its slots stay free, so that few streams collide.
    pub(super) fn new(streams_max: usize) -> Table {
        let slots = (2 * streams_max).next_power_of_two();
        Table { slots: (0..slots).map(|_| None).collect(), count: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// The slots from an id's own slot on.
    fn places(&self, id: StreamId) -> impl Iterator<Item = usize> + use<> {
        let mask = self.slots.len() - 1;
        (0..=mask).map(move |step| (id.number() as usize / 2 + step) & mask)
    }

    #[inline]
    fn find(&self, id: StreamId) -> Option<usize> {
        self.places(id).find(|&at| self.slots[at].as_ref().is_some_and(|stream| stream.id == id))
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: StreamId) -> Option<&mut Stream> {
        self.find(id).and_then(|at| self.slots[at].as_mut())
    }

    /// Adds a stream that is not in the table; a full table drops it.
    pub(super) fn insert(&mut self, stream: Stream) {
        let free = self.places(stream.id).find(|&at| self.slots[at].is_none());
        if let Some(at) = free {
            self.slots[at] = Some(stream);
            self.count += 1;
        }
    }

    pub(super) fn remove(&mut self, id: StreamId) -> Option<Stream> {
        let at = self.find(id)?;
        self.count -= 1;
        self.slots[at].take()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Stream> {
        self.slots.iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use flatout_wire::h2::{Asking, Code, Connection, Limits};

    use super::*;

    #[test]
    fn the_table_agrees_with_a_set() {
        let mut random = flatout_trial::Random::new(3);
        let (mut table, mut set) = (Table::new(100), BTreeSet::new());
        // Ids as a connection assigns them.
        let mut machine = Connection::client(Limits::default(), &mut Vec::new());
        for _ in 0..50_000 {
            if set.len() < 100 && random.below(2) == 0 {
                let id = machine.ask(Asking::default(), |_| (), &mut Vec::new()).unwrap();
                machine.reset(id, Code::CANCEL, &mut Vec::new());
                machine.release(id, &mut Vec::new());
                table.insert(Stream::new(id, 0, 0, None));
                set.insert(id);
            } else if let Some(&id) = set.iter().nth(random.below(set.len().max(1) as u64) as usize) {
                assert_eq!(table.remove(id).map(|stream| stream.id), Some(id));
                assert!(table.remove(id).is_none());
                set.remove(&id);
            }
            assert_eq!(table.len(), set.len());
            assert!(set.iter().all(|&id| table.get_mut(id).is_some()));
        }
        assert_eq!(table.iter().map(|stream| stream.id).collect::<BTreeSet<_>>(), set);
    }
}
