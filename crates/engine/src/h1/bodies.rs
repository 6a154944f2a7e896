//! Receiving request bodies.

use super::{input, requests, responses};
use flatout_lane::clock;
use flatout_lane::limit;
use flatout_lane::slab::Key;
use flatout_lane::socket::Moved;
use flatout_wire::h1::{Piece, Refusal, Trailers};

use super::Step;
use crate::connection::Connection;
use crate::exchange::{Acceptance, Intake, PIPE_BYTES};
use crate::service::BodyFault;
use crate::serving::{Fate, Serving};

/// From this size on, a pipe is cheaper than receiving the rest of a body.
const PIPED_BYTES_MIN: usize = 64 << 10;

/// How long a request's body may wait for memory before the response is 503.
const STARVED_TIME_MAX: std::time::Duration = std::time::Duration::from_secs(5);

/// Bytes of a body at `read[at..end]`.
#[inline(never)]
pub(super) fn body(
    serving: &mut Serving,
    key: Key,
    connection: &mut Connection,
    at: usize,
    end: usize,
) -> Step {
    if !input::takes_body(serving, connection) {
        return Step::Partial;
    }
    if !make_room(serving, key, connection, end - at) {
        return Step::Partial;
    }
    let bytes = serving.read.get(at..end).unwrap_or_default();
    let mut trailers = Vec::new();
    let mut used = 0;
    loop {
        let rest = bytes.get(used..).unwrap_or_default();
        let (taken, piece) = match connection.machine.body(rest, &mut trailers) {
            Ok(stepped) => stepped,
            Err(refusal) => {
                return reject_body(serving, connection, refusal, BodyFault::Malformed, end - at);
            }
        };
        used += taken;
        match piece {
            Piece::NeedMore => break,
            Piece::End => {
                note_received(connection, used);
                return end_body(serving, key, connection, used, trailers, at + used == end);
            }
            Piece::Data(data) => {
                match with_intake(serving, connection, |intake| intake.feed(data)) {
                    // If the end of the body has arrived, it does not have to wait for the reader.
                    Some(Ok(Acceptance::Paused)) if connection.machine.length_left() != Some(0) => break,
                    Some(Ok(_)) | None => {}
                    Some(Err(fault)) => {
                        connection.machine.give_up();
                        let refusal = fault.refusal();
                        return reject_body(serving, connection, refusal, BodyFault::TooLarge, end - at);
                    }
                }
            }
        }
    }
    note_received(connection, used);
    notify_own_reader(serving, connection);
    if used == 0 { Step::Partial } else { Step::Used(used) }
}

fn notify_own_reader(serving: &mut Serving, connection: &Connection) {
    if let Some(key) = connection.exchange {
        serving.notify_reader(key);
    }
}

/// Moves received data of a large pulled body into a pipe. `None` if it has to be received instead.
pub(super) fn pipe_body(serving: &mut Serving, key: Key, connection: &mut Connection) -> Option<Moved> {
    let left =
        connection.machine.length_left().filter(|&left| left >= limit::bytes(PIPED_BYTES_MIN) as u64)?;
    if !connection.transport.has_pipe() {
        return None;
    }
    let most = with_intake(serving, connection, |intake| intake.pipe_bytes_max()).flatten()?;
    let mut pipe = serving.lane.pipe().ok()?;
    let bytes = usize::try_from(left.min(most)).map_or(PIPE_BYTES, |bytes| bytes.min(PIPE_BYTES));
    let moved = connection.transport.fill_pipe(pipe.pipe()?, bytes);
    if let Moved::Bytes(count @ 1..) = moved {
        connection.machine.passed(count as u64);
        note_received(connection, count);
        with_intake(serving, connection, |intake| intake.feed_pipe(pipe));
        if connection.machine.length_left() == Some(0) {
            let mut trailers = Vec::new();
            // The end takes no bytes.
            let _ = connection.machine.body(&[], &mut trailers);
            end_body(serving, key, connection, 0, trailers, true);
        } else {
            notify_own_reader(serving, connection);
        }
    }
    Some(moved)
}

/// Accesses the intake of the connection's exchange, if it has one.
pub(super) fn with_intake<T>(
    serving: &Serving,
    connection: &Connection,
    act: impl FnOnce(&mut Intake) -> T,
) -> Option<T> {
    serving.lane.with(connection.exchange?, |exchange| exchange.intake.as_mut().map(act)).flatten()
}

/// Reserves memory for a collected body; without memory, the connection waits.
fn make_room(serving: &mut Serving, key: Key, connection: &mut Connection, bytes: usize) -> bool {
    let has_room = with_intake(serving, connection, |intake| intake.make_room(bytes)).unwrap_or(true);
    if !has_room && !connection.work().is_starved {
        connection.work().is_starved = true;
        connection.deadline = serving.now.ticks + clock::ticks(STARVED_TIME_MAX);
        serving.starved.push(key);
    } else if has_room && connection.work().is_starved {
        connection.work().is_starved = false;
        serving.begin_window(connection);
    }
    has_room
}

/// A body that waits for memory continues if there is some.
pub(crate) fn feed_starved(serving: &mut Serving, key: Key, connection: &mut Connection) -> Fate {
    let Some(work) = connection.work.as_ref().filter(|work| work.is_starved) else { return Fate::Keep };
    let held_bytes = work.held.len();
    if !make_room(serving, key, connection, held_bytes) {
        serving.starved.push(key);
        return Fate::Keep;
    }
    input::resume(serving, key, connection)
}

/// A body that cannot be read further. If its request was not served yet, it is refused; otherwise its reader was
/// notified, and the response, started or not, is the last.
fn reject_body(
    serving: &mut Serving,
    connection: &mut Connection,
    refusal: Refusal,
    fault: BodyFault,
    used: usize,
) -> Step {
    connection.readable = true;
    let is_called = match connection.exchange {
        None => false,
        Some(key) => {
            let is_called = serving.lane.with(key, |exchange| {
                exchange.fail_body(fault);
                exchange.is_called
            });
            notify_own_reader(serving, connection);
            is_called.unwrap_or(false)
        }
    };
    if !is_called && connection.machine.owes_response() {
        serving.close_exchange(connection);
        return responses::refuse(serving, connection, refusal, used);
    }
    Step::Used(used)
}

/// A body that is complete.
fn end_body(
    serving: &mut Serving,
    key: Key,
    connection: &mut Connection,
    used: usize,
    trailers: Trailers,
    is_last_input: bool,
) -> Step {
    let Some(exchange) = connection.exchange else {
        return Step::Used(used);
    };
    let whole = serving.lane.with(exchange, |exchange| exchange.end_body(trailers)).flatten();
    match whole {
        Some((whole, trailers)) => {
            requests::serve_collected(serving, key, connection, whole, &trailers, is_last_input)
        }
        // It was read after its response.
        None if !connection.machine.owes_response() && !connection.machine.is_responding() => {
            serving.close_exchange(connection);
        }
        None => notify_own_reader(serving, connection),
    }
    Step::Used(used)
}

fn note_received(connection: &mut Connection, bytes: usize) {
    let work = connection.work();
    work.moved_bytes += bytes as u64;
    if let Some(open) = &mut work.open {
        open.ended.received_bytes += bytes as u64;
    }
}
