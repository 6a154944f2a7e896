//! Passes the events of a connection to its protocol. Only this file asks which protocol a connection speaks.

use crate::{h1, h2};
use flatout_lane::clock;
use flatout_lane::slab::Key;
use flatout_lane::socket::Moved;
use flatout_wire::h1::Wants;
use flatout_wire::h2::PREFACE;

use super::{Fate, SLICE_BYTES, STAGE_SOCKETS, Serving, State, body_fault_of};
use crate::connection::Connection;
use crate::output::Drained;
use crate::service::Outcome;

/// Receives into a slice of the read buffer, and returns how many bytes.
#[inline]
pub(crate) fn receive_slice(
    serving: &mut Serving,
    connection: &mut Connection,
    slice: usize,
) -> Result<usize, Fate> {
    debug_assert!(slice < STAGE_SOCKETS);
    let room = serving.read.get_mut(slice * SLICE_BYTES..(slice + 1) * SLICE_BYTES).unwrap_or_default();
    match connection.transport.receive(room) {
        Moved::Bytes(0) | Moved::Broken => Err(Fate::Close(Outcome::ClientGone)),
        Moved::Bytes(read) => {
            // A short read emptied the socket: new data causes a new edge. At most the end of the peer's stream
            // may have come with the same edge, and is read after the bytes.
            connection.readable =
                read == SLICE_BYTES || connection.read_closed || connection.transport.holds_end();
            if selects_http2(serving, connection) {
                let at = slice * SLICE_BYTES;
                return Err(switch_to_http2(serving, connection, at, at + read));
            }
            Ok(read)
        }
        Moved::WouldBlock => {
            connection.readable = false;
            match selects_http2(serving, connection) {
                true => Err(switch_to_http2(serving, connection, 0, 0)),
                false => Ok(0),
            }
        }
    }
}

/// Receives and serves everything in the socket.
#[inline]
pub(crate) fn pump(serving: &mut Serving, key: Key, connection: &mut Connection) -> Fate {
    if connection.is_h2() { h2::visit(serving, key, connection) } else { h1::pump(serving, key, connection) }
}

/// Continues with held bytes, and then receives and serves everything in the socket.
#[inline]
pub(crate) fn resume(serving: &mut Serving, key: Key, connection: &mut Connection) -> Fate {
    if connection.is_h2() {
        h2::visit(serving, key, connection)
    } else {
        h1::resume(serving, key, connection)
    }
}

/// The reader of a request's body has caught up.
pub(crate) fn read_on(serving: &mut Serving, key: Key, connection: &mut Connection) -> Fate {
    if connection.is_h2() {
        h2::read_on(serving, key, connection)
    } else {
        h1::read_on(serving, key, connection)
    }
}

/// Handles the items given to an exchange of this connection.
pub(crate) fn attend(serving: &mut Serving, key: Key, connection: &mut Connection, exchange: Key) -> Fate {
    match connection.exchange {
        Some(own) if own == exchange => h1::attend(serving, key, connection),
        None if connection.is_h2() && h2::has_news(serving, exchange) => {
            h2::attend(serving, key, connection, exchange)
        }
        _ => Fate::Keep,
    }
}

/// The socket has room again.
pub(crate) fn writable(serving: &mut Serving, key: Key, connection: &mut Connection) -> Fate {
    if !connection.is_sending() {
        return Fate::Keep;
    }
    match serving.send_queue(key, connection) {
        Drained::All if connection.is_h2() => Fate::Keep,
        Drained::All => h1::continue_after_sending(serving, key, connection),
        Drained::Full | Drained::Cold | Drained::Held => Fate::Keep,
        Drained::Yield => Fate::Again,
        Drained::Broken => Fate::Close(Outcome::ClientGone),
    }
}

/// The file that a connection sends is in memory up to this offset.
pub(crate) fn warmed(serving: &mut Serving, key: Key, connection: &mut Connection, until: u64) -> Fate {
    let Some(work) = connection.work.as_mut().filter(|work| work.is_warming) else { return Fate::Keep };
    work.is_warming = false;
    work.queue.trust(until);
    serving.begin_window(connection);
    match writable(serving, key, connection) {
        Fate::Keep if connection.is_h2() => h2::visit(serving, key, connection),
        fate => fate,
    }
}

/// A deadline has passed.
pub(crate) fn expire(serving: &mut Serving, key: Key, connection: &mut Connection) -> Fate {
    if connection.is_h2() {
        h2::expire(serving, key, connection)
    } else {
        h1::expire(serving, key, connection)
    }
}

/// The connection is gone: its pending work is dropped.
pub(crate) fn closed(serving: &mut Serving, connection: &mut Connection, outcome: Outcome) {
    serving.fail_body(connection, body_fault_of(outcome));
    serving.close_exchange(connection);
    if let Some(mut session) = connection.take_session() {
        h2::end_streams(serving, &mut session, outcome);
    }
    // A truncated response must not look complete; and who has taken it goes on.
    if outcome != Outcome::Taken && connection.machine.is_idle() && !connection.is_sending() {
        connection.transport.end();
    }
    if !serving.wants_ended {
        return;
    }
    if let Some(mut work) = connection.work.take()
        && (work.open.is_some() || !work.unsent.is_empty())
    {
        let now_ns = clock::nanoseconds();
        for record in work.unsent.iter_mut().chain(work.open.as_deref_mut()) {
            record.end(&*serving.service, outcome, now_ns, &serving.now);
        }
    }
}

/// Checks whether a handshake has ended, and whether it has selected HTTP/2. Without a request after it, the
/// connection is now idle.
#[inline]
pub(crate) fn selects_http2(serving: &Serving, connection: &mut Connection) -> bool {
    connection.transport.has_handshaken() && note_handshake(serving, connection)
}

#[cold]
fn note_handshake(serving: &Serving, connection: &mut Connection) -> bool {
    if connection.is_at_rest() {
        connection.deadline =
            if serving.draining { serving.first_request_deadline() } else { serving.idle_deadline() };
    }
    connection.transport.selected_h2()
}

/// Switches the connection to HTTP/2, with the received bytes `at..end` of the read buffer.
#[cold]
pub(crate) fn switch_to_http2(
    serving: &mut Serving,
    connection: &mut Connection,
    at: usize,
    end: usize,
) -> Fate {
    h2::begin(serving, connection, at, end)
}

/// Whether bytes that are not an HTTP/1 request are the HTTP/2 preface, or its start.
#[cold]
pub(crate) fn is_http2_preface(bytes: &[u8]) -> bool {
    let most = bytes.len().min(PREFACE.len());
    bytes.get(..most) == PREFACE.get(..most)
}

/// The state of a connection.
pub(crate) fn state_of(connection: &Connection) -> State {
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
