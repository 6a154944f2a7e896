//! From the transport to the service.

use super::{bodies, output, requests, responses};
use crate::serving::dispatch;
use flatout_lane::limit;
use flatout_lane::slab::Key;
use flatout_lane::socket::Moved;
use flatout_wire::h1::Wants;

use super::Step;
use crate::connection::Connection;
use crate::output::Drained;
use crate::service::Outcome;
use crate::serving::{Fate, FlushTime, OUT_BYTES_PER_SEND, SLICE_BYTES, Serving};

/// Reads from one connection before others get their turn.
const READS_PER_TURN: usize = 8;

/// Requests of one connection after which the clock is checked.
const REQUESTS_PER_LOOK: usize = limit::looks(8);

/// Bytes in the read buffer: `at..end`, of which the first `carried` are the start of a head that was parsed before.
struct Span {
    at: usize,
    end: usize,
    carried: usize,
}

/// Serves the bytes received into a slice.
#[inline]
pub(crate) fn serve_slice(
    serving: &mut Serving,
    key: Key,
    connection: &mut Connection,
    slice: usize,
    bytes: usize,
) -> Fate {
    let at = slice * SLICE_BYTES;
    consume(serving, key, connection, Span { at, end: at + bytes, carried: 0 }, FlushTime::Staged)
}

/// Receives and serves everything in the socket.
pub(crate) fn pump(serving: &mut Serving, key: Key, connection: &mut Connection) -> Fate {
    for _ in 0..READS_PER_TURN {
        if connection.lingering.is_some() {
            return serving.discard_input(connection);
        }
        if !connection.readable || !wants_input(serving, connection) {
            return notice_closed(serving, connection);
        }
        if connection.machine.wants() == Wants::Body && !connection.is_holding() {
            match bodies::pipe_body(serving, key, connection) {
                Some(Moved::Bytes(0) | Moved::Broken) => return Fate::Close(Outcome::ClientGone),
                Some(Moved::WouldBlock) => {
                    connection.readable = false;
                    return Fate::Keep;
                }
                Some(Moved::Bytes(_)) => continue,
                None => {}
            }
        }
        let is_head_part = connection.holds_head_part();
        let held = serving.take_held(connection);
        let Some(room) = serving.read.get_mut(held..).map(limit::room) else {
            return Fate::Close(Outcome::Failed);
        };
        let room_bytes = room.len();
        let fate = if room_bytes == 0 {
            consume(serving, key, connection, Span { at: 0, end: held, carried: 0 }, FlushTime::AtOnce)
        } else {
            match connection.transport.receive(room) {
                Moved::Bytes(0) | Moved::Broken => return Fate::Close(Outcome::ClientGone),
                Moved::Bytes(read) => {
                    connection.readable =
                        read == room_bytes || connection.read_closed || connection.transport.holds_end();
                    if dispatch::selects_http2(serving, connection) {
                        return dispatch::switch_to_http2(serving, connection, 0, held + read);
                    }
                    let carried = if is_head_part { held } else { 0 };
                    let span = Span { at: 0, end: held + read, carried };
                    consume(serving, key, connection, span, FlushTime::AtOnce)
                }
                Moved::WouldBlock => {
                    connection.readable = false;
                    if dispatch::selects_http2(serving, connection) {
                        return dispatch::switch_to_http2(serving, connection, 0, held);
                    }
                    serving.hold(connection, 0, held);
                    // Behind a slice of pipelined requests, nobody knew at the last response that nothing follows it.
                    return match serving.draining && connection.is_at_rest() {
                        true => serving.finish_draining(connection),
                        false => Fate::Keep,
                    };
                }
            }
        };
        match fate {
            Fate::Keep => {}
            fate => return fate,
        }
    }
    Fate::Again
}

/// Continues with held bytes, after a response has ended or a reader has caught up.
pub(crate) fn resume(serving: &mut Serving, key: Key, connection: &mut Connection) -> Fate {
    if connection.is_holding() && !connection.holds_head_part() && wants_input(serving, connection) {
        let end = serving.take_held(connection);
        match consume(serving, key, connection, Span { at: 0, end, carried: 0 }, FlushTime::AtOnce) {
            Fate::Keep => {}
            fate => return fate,
        }
    }
    pump(serving, key, connection)
}

/// The reader of a request's body has caught up. A new window for the peer's rate starts.
pub(crate) fn read_on(serving: &mut Serving, key: Key, connection: &mut Connection) -> Fate {
    serving.begin_window(connection);
    if connection.machine.is_reading_on() && !is_body_held(serving, connection) {
        // It was dropped after the response.
        let next = connection.machine.skip_rest();
        responses::end_request(serving, connection, next);
        match output::settle(serving, connection) {
            Fate::Keep => {}
            fate => return fate,
        }
    }
    if proceeds(serving, connection) {
        let records_at = serving.records.len();
        connection.machine.proceed(serving.output.bytes());
        match output::finish_visit(serving, key, connection, records_at, FlushTime::AtOnce) {
            Fate::Keep => {}
            fate => return fate,
        }
    }
    resume(serving, key, connection)
}

/// Whether to send 100: the body is wanted, and nothing of it has come.
pub(super) fn proceeds(serving: &Serving, connection: &Connection) -> bool {
    connection.machine.awaits_100()
        && !connection.is_holding()
        && bodies::with_intake(serving, connection, |intake| !intake.is_unwanted()).unwrap_or(false)
}

/// Whether somebody still reads the body of the current request, also after its response.
pub(super) fn is_body_held(serving: &Serving, connection: &Connection) -> bool {
    bodies::with_intake(serving, connection, |intake| intake.is_held()).unwrap_or(false)
}

/// Whether more input could be used now.
pub(crate) fn wants_input(serving: &Serving, connection: &Connection) -> bool {
    match connection.machine.wants() {
        Wants::Head => !connection.is_sending(),
        Wants::Body => takes_body(serving, connection),
        Wants::Answer | Wants::Nothing => false,
    }
}

/// Whether more of a body can be accepted. A collected body waits until the previous response was sent: otherwise
/// its own response could end up in the middle of that one.
pub(super) fn takes_body(serving: &Serving, connection: &Connection) -> bool {
    if connection.work.as_ref().is_some_and(|work| work.is_starved) {
        return false;
    }
    let Some(exchange) = connection.exchange else { return true };
    let is_sending = connection.is_sending();
    let taken = serving.lane.with(exchange, |exchange| match &exchange.intake {
        Some(intake) if intake.is_awaited() => !is_sending,
        Some(intake) => !intake.is_paused(),
        // It is not needed: the rest is skipped after the response, within a limit.
        None => false,
    });
    taken.unwrap_or(true)
}

/// A client that closes its side before its response is ready is gone, unless half-closed connections are served.
fn notice_closed(serving: &Serving, connection: &Connection) -> Fate {
    let waits = match connection.machine.wants() {
        Wants::Answer => connection.exchange.is_some(),
        Wants::Body => connection.exchange.is_some_and(|exchange| {
            serving.lane.with(exchange, |exchange| exchange.intake.is_none()).unwrap_or(false)
        }),
        Wants::Head | Wants::Nothing => false,
    };
    if connection.read_closed && waits && !serving.limits.half_close {
        return Fate::Close(Outcome::ClientGone);
    }
    Fate::Keep
}

/// Consumes a span of the read buffer.
#[inline]
fn consume(
    serving: &mut Serving,
    key: Key,
    connection: &mut Connection,
    span: Span,
    flush_time: FlushTime,
) -> Fate {
    let Span { mut at, end, carried } = span;
    let records_at = serving.records.len();
    let mut again = false;
    let mut steps = 0;
    while at < end && !(carried > 0 && steps == 0 && is_same_head(serving, connection, &span)) {
        let step = match connection.machine.wants() {
            Wants::Head if connection.is_sending() => Step::Partial,
            Wants::Head => requests::request(serving, key, connection, at, end),
            Wants::Body => bodies::body(serving, key, connection, at, end),
            Wants::Answer | Wants::Nothing => Step::Partial,
        };
        match step {
            Step::Partial => break,
            Step::Used(used) => at += used,
            Step::Http2 => {
                return dispatch::switch_to_http2(serving, connection, at, end);
            }
        }
        // A limited response is sent before another one is made: the queue ends the loop.
        if serving.output.len() >= OUT_BYTES_PER_SEND || connection.is_paced() {
            match serving.flush(key, connection, records_at) {
                Drained::Broken => return Fate::Close(Outcome::ClientGone),
                // No event will report that the socket still accepts more; the queue ends the loop.
                Drained::Yield => again = true,
                Drained::All | Drained::Full | Drained::Cold | Drained::Held => {}
            }
        }
        steps += 1;
        if steps % REQUESTS_PER_LOOK == 0 && at < end && serving.is_over_budget() {
            again = true;
            break;
        }
    }
    serving.hold(connection, at, end);
    let rests = connection.machine.is_idle() && !connection.is_sending();
    if rests {
        set_rest_deadline(serving, connection, carried > 0 && at == span.at);
    }
    if let Some(work) = &mut connection.work {
        work.is_head_part = rests && !again && at < end;
    }
    match output::finish_visit(serving, key, connection, records_at, flush_time) {
        Fate::Keep if again => Fate::Again,
        fate => fate,
    }
}

/// Whether there is nothing new: the start of the head was parsed before, and without another line end there is
/// nothing to add.
fn is_same_head(serving: &Serving, connection: &Connection, span: &Span) -> bool {
    let fresh = serving.read.get(span.at + span.carried..span.end).unwrap_or_default();
    connection.machine.is_idle()
        && !connection.is_sending()
        && span.end - span.at < serving.bounds.head.head_bytes_max
        && !fresh.contains(&b'\n')
}

/// Without a request: idle, or waiting for the rest of a head, whose time counts from its first bytes.
#[inline]
fn set_rest_deadline(serving: &mut Serving, connection: &mut Connection, head_goes_on: bool) {
    if !connection.is_holding() {
        connection.deadline = serving.idle_deadline();
    } else if !head_goes_on {
        connection.deadline = serving.now.ticks + serving.bounds.head_ticks;
    }
}
