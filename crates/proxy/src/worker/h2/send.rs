//! Sends what HTTP/2 connections have to send.

use crate::connection::Flushed;
use crate::worker::ProxyWorker;
use crate::worker::state::State;

/// How often one connection frames and sends content before others get their turn.
const SENDS_PER_CALL: usize = 8;

impl ProxyWorker {
    /// Frames and sends content, as the windows and the socket allow.
    pub(crate) fn say(&self, state: &mut State, at: usize) -> Flushed {
        let Some(connection) = state.table.known(at) else { return Flushed::All };
        let mut is_full = connection.is_full;
        let Some((session, guest, _)) = connection.h2() else { return Flushed::All };
        if session.is_gone {
            session.out = Vec::new();
            session.sent = 0;
            return Flushed::All;
        }
        let mut flushed = Flushed::All;
        for _ in 0..SENDS_PER_CALL {
            session.take_turns(&self.lane, guest);
            flushed = session.flush(&self.lane, guest, &mut is_full);
            if flushed != Flushed::All || session.turns.is_empty() {
                break;
            }
        }
        if session.machine.is_closed() {
            // The server opens its windows by tiny amounts (an attack).
            flushed = Flushed::Broken;
        } else if flushed == Flushed::All && !session.turns.is_empty() {
            self.schedule(session, guest);
        }
        connection.is_full = is_full;
        flushed
    }
}
