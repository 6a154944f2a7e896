//! Connections by state, on request: counted by the sweep, one slice at a time, so that no turn is delayed.

use std::sync::atomic::Ordering;

use super::WorkerLoop;
use crate::connection::Connection;
use crate::serving::{READ_BYTES, Serving, State, state_of};

/// A partial count.
#[derive(Debug, Default)]
pub(super) struct Census([usize; State::ALL.len()]);

impl WorkerLoop {
    /// Counts the connections of one slice of the table, if requested; after the last slice the counts are published.
    pub(super) fn count_states(&mut self, slice: usize, slices: usize) {
        if slice == 0 && self.stats.is_asked.swap(false, Ordering::Relaxed) {
            self.census = Some(Census::default());
        }
        let Some(census) = &mut self.census else { return };
        let mut cursor = self.connections.slice(slice, slices);
        while let Some((_, connection)) = cursor.next(&self.connections) {
            if let Some(count) = census.0.get_mut(state_of(connection) as usize) {
                *count += 1;
            }
        }
        if slice + 1 < slices {
            return;
        }
        let census = self.census.take().unwrap_or_default();
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
