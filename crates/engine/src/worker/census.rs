//! Connections by state, on request: counted by the sweep, one slice at a time, so that no turn is delayed.

use std::sync::atomic::Ordering;

use flatout_lane::slab::Cursor;

use super::WorkerLoop;
use crate::connection::Connection;
use crate::server::WorkerFigures;
use crate::serving::{READ_BYTES, Serving, State, state_of};

/// Connections that are counted at once, in less than a millisecond. Where there are more, the latest counts of the sweep are used.
const COUNTED_AT_ONCE_MAX: usize = 16 << 10;

/// A partial count.
#[derive(Debug, Default)]
pub(super) struct Census([usize; State::ALL.len()]);

impl Census {
    fn add(&mut self, connection: &Connection) {
        if let Some(count) = self.0.get_mut(state_of(connection) as usize) {
            *count += 1;
        }
    }
}

impl WorkerLoop {
    /// Counts the connections of one slice of the table, if requested; after the last slice the counts are published.
    pub(super) fn count_states(&mut self, slice: usize, slices: usize) {
        if slice == 0 && self.stats.is_asked.swap(false, Ordering::Relaxed) {
            self.census = Some(Census::default());
        }
        let Some(census) = &mut self.census else { return };
        let mut cursor = self.connections.slice(slice, slices);
        while let Some((_, connection)) = cursor.next(&self.connections) {
            census.add(connection);
        }
        if slice + 1 < slices {
            return;
        }
        let census = self.census.take().unwrap_or_default();
        self.publish(&census);
    }

    /// The figures as they are now.
    pub(super) fn figures(&mut self) -> WorkerFigures {
        self.note_stats();
        if self.connections.len() <= COUNTED_AT_ONCE_MAX {
            let mut census = Census::default();
            let mut cursor = Cursor::default();
            while let Some((_, connection)) = cursor.next(&self.connections) {
                census.add(connection);
            }
            self.publish(&census);
        }
        self.stats.of_worker()
    }

    fn publish(&self, census: &Census) {
        for (stat, count) in self.stats.states.iter().zip(census.0) {
            stat.store(count, Ordering::Relaxed);
        }
        let memory = self.connections.slots() * size_of::<Connection>() + self.serving.memory_bytes();
        self.stats.memory_bytes.store(memory, Ordering::Relaxed);
    }
}

impl Serving {
    /// Memory of the buffers that the connections of a worker share.
    fn memory_bytes(&self) -> usize {
        READ_BYTES + self.output_bytes_kept()
    }
}
