//! What happens when the deadline of a connection has passed.

use super::{bodies, input, output, responses};
use flatout_lane::slab::Key;
use flatout_wire::Status;
use flatout_wire::h1::{Refusal, Wants};

use crate::connection::Connection;
use crate::record::{Origin, Record};
use crate::service::Outcome;
use crate::serving::{Fate, FlushTime, Serving, acknowledged_bytes};

/// A deadline has passed.
pub(crate) fn expire(serving: &mut Serving, key: Key, connection: &mut Connection) -> Fate {
    if connection.lingering.is_some() || connection.transport.is_handshaking() {
        return Fate::Close(Outcome::TimedOut);
    }
    if connection.work.as_ref().is_some_and(|work| work.is_starved) {
        return refuse_now(serving, key, connection, OVERLOADED);
    }
    if connection.machine.is_idle() && !connection.is_sending() {
        return match connection.is_holding() {
            true => refuse_now(serving, key, connection, SLOW_HEAD),
            false => serving.finish(connection),
        };
    }
    judge(serving, key, connection)
}

/// Checks whether the peer sends or receives fast enough.
fn judge(serving: &mut Serving, key: Key, connection: &mut Connection) -> Fate {
    // A client that waits for our disk is not slow.
    let is_warming = connection.work.as_ref().is_some_and(|work| work.is_warming);
    let sending = connection.is_sending() && !is_warming;
    let receiving = connection.machine.wants() == Wants::Body && input::takes_body(serving, connection);
    let taken = acknowledged_bytes(connection, sending);
    let work = connection.work();
    let pace = work.pace.as_deref().copied().filter(|_| sending);
    // It has taken everything that its rate allowed.
    let is_held_back = work.is_held_back && work.unacknowledged_bytes == Some(0);
    if (!sending && !receiving)
        || is_held_back
        || taken.is_none_or(|taken| serving.is_enough(connection, taken, pace))
    {
        serving.begin_window(connection);
        return Fate::Keep;
    }
    if !sending && awaits_body(serving, connection) {
        return refuse_now(serving, key, connection, SLOW_BODY);
    }
    Fate::Close(Outcome::TimedOut)
}

/// Whether the service was not called yet, because it waits for the body.
fn awaits_body(serving: &Serving, connection: &Connection) -> bool {
    bodies::with_intake(serving, connection, |intake| intake.is_awaited()).unwrap_or(false)
}

/// Refuses a request after a time limit.
fn refuse_now(serving: &mut Serving, key: Key, connection: &mut Connection, refusal: Refusal) -> Fate {
    let records_at = serving.records.len();
    connection.machine.give_up();
    if serving.wants_ended && connection.work().open.is_none() {
        let (recorder, began_ns) = (serving.wants_begun.then_some(&*serving.service), serving.began_ns());
        let origin = Origin { peer: connection.peer, tls: None, listener: connection.listener };
        serving.number = serving.number.wrapping_add(1);
        let start = (began_ns, serving.number);
        serving.records.push(Record::refused(recorder, &connection.work().held, origin, start));
        serving.has_open = true;
    }
    responses::refuse(serving, connection, refusal, 0);
    if let Some(work) = connection.work.as_mut() {
        work.held = Vec::new();
        work.is_starved = false;
    }
    output::finish_visit(serving, key, connection, records_at, FlushTime::AtOnce)
}

const SLOW_HEAD: Refusal =
    Refusal { status: Status::REQUEST_TIMEOUT, reason: "the request head was not received in time" };

const SLOW_BODY: Refusal =
    Refusal { status: Status::REQUEST_TIMEOUT, reason: "the request body was received too slowly" };

const OVERLOADED: Refusal = Refusal {
    status: Status::SERVICE_UNAVAILABLE,
    reason: "the server has no memory left for request bodies; try again later",
};
