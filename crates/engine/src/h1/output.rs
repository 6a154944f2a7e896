//! The end of a visit: its output is staged or sent, and the connection continues or ends.

use super::responses;
use flatout_lane::slab::Key;
use flatout_wire::h1::Wants;

use crate::connection::Connection;
use crate::output::Drained;
use crate::service::Outcome;
use crate::serving::{Fate, FlushTime, Serving, StagedOutput};

/// Everything is sent: continues with the next request.
pub(crate) fn continue_after_sending(serving: &mut Serving, key: Key, connection: &mut Connection) -> Fate {
    match settle(serving, connection) {
        Fate::Keep => responses::continue_input(serving, key, connection),
        fate => fate,
    }
}

/// Sends the output of this visit, or leaves it for the end of the stage, and continues.
#[inline]
pub(super) fn finish_visit(
    serving: &mut Serving,
    key: Key,
    connection: &mut Connection,
    records_at: usize,
    flush_time: FlushTime,
) -> Fate {
    if serving.output.is_empty() {
        // The end of a response may have had no bytes.
        serving.note_complete(connection, records_at, Drained::All);
        serving.note_unsent(connection);
        return settle(serving, connection);
    }
    let is_plain = connection.machine.is_idle() && connection.exchange.is_none() && !connection.is_sending();
    if flush_time == FlushTime::Staged
        && is_plain
        && let Some(span) = serving.output.stage()
    {
        connection.rest();
        serving.staged.push(StagedOutput { key, span, records: records_at..serving.records.len() });
        return Fate::Keep;
    }
    match serving.flush(key, connection, records_at) {
        Drained::Broken => Fate::Close(Outcome::ClientGone),
        Drained::Yield => Fate::Again,
        Drained::All | Drained::Full | Drained::Cold | Drained::Held => settle(serving, connection),
    }
}

/// What to do when everything is sent.
#[inline]
pub(super) fn settle(serving: &mut Serving, connection: &mut Connection) -> Fate {
    if connection.is_sending() {
        return Fate::Keep;
    }
    if connection.machine.wants() == Wants::Nothing {
        return match connection.work.as_mut().and_then(|work| work.takeover.take()) {
            Some(takeover) => Fate::Take(takeover),
            None if connection.is_cut() => Fate::Close(Outcome::Failed),
            None => serving.finish(connection),
        };
    }
    connection.rest();
    // The last response was sent before the drain started, and the rest of its request was read only now.
    if serving.draining && connection.is_at_rest() && !connection.readable {
        return serving.finish_draining(connection);
    }
    Fate::Keep
}
