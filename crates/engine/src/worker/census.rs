//! Connections by state, on request: counted by the sweep, one slice at a time, so that no turn is delayed.

use std::sync::atomic::Ordering;

use flatout_wire::h1::Wants;

use super::WorkerLoop;
use crate::connection::Connection;
use crate::h1::Serving;

/// The state of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It waits for a request.
    Idle,
    /// Its client is sending a request.
    Reading,
    /// Its request is being served.
    Serving,
    /// Its client is reading a response.
    Sending,
    /// Its last response has ended.
    Closing,
}

impl State {
    /// All states, in the order of their numbers.
    pub const ALL: [State; 5] = [State::Idle, State::Reading, State::Serving, State::Sending, State::Closing];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            State::Idle => "idle",
            State::Reading => "reading",
            State::Serving => "serving",
            State::Sending => "sending",
            State::Closing => "closing",
        }
    }

    fn of(connection: &Connection) -> State {
        if let Some(session) = connection.session() {
            return match session.is_idle() {
                _ if connection.is_sending() => State::Sending,
                true => State::Idle,
                false => State::Serving,
            };
        }
        match connection.machine.wants() {
            _ if connection.lingering.is_some() => State::Closing,
            _ if connection.is_sending() => State::Sending,
            Wants::Head if connection.is_holding() => State::Reading,
            Wants::Head => State::Idle,
            Wants::Body => State::Reading,
            Wants::Answer => State::Serving,
            Wants::Nothing => State::Closing,
        }
    }
}

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
            if let Some(count) = census.0.get_mut(State::of(connection) as usize) {
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
        crate::h1::READ_BYTES + self.output_bytes_kept()
    }
}
