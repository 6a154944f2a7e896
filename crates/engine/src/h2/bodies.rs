//! Receiving request bodies.

use super::{deadlines, input, output, requests, responses};
use flatout_lane::slab::Key;
use flatout_wire::h2::StreamId;

use super::Session;
use crate::connection::Connection;
use crate::exchange::Intake;
use crate::service::{BodyFault, Outcome};
use crate::serving::{Fate, Refusal, Serving, Trailers};

/// A piece of a request's body.
pub(super) fn receive_body(serving: &mut Serving, session: &mut Session, id: StreamId, bytes: &[u8]) {
    session.content_bytes += bytes.len() as u64;
    let Some(stream) = session.stream(id) else {
        // It is not needed.
        return session.machine.consumed(id, bytes.len(), serving.output.bytes());
    };
    if let Some(record) = &mut stream.record {
        record.ended.received_bytes += bytes.len() as u64;
    }
    stream.unread_bytes += bytes.len();
    stream.waits = false;
    let Some(exchange) = stream.exchange else { return give_credit(serving, session, id) };
    let fed = serving.lane.with(exchange, |exchange| {
        let intake = exchange.intake.as_mut()?;
        match intake.make_room(bytes.len()) {
            true => Some(intake.feed(bytes).map(|_| ()).map_err(|fault| fault.refusal())),
            false => Some(Err(OVERLOADED)),
        }
    });
    match fed.flatten() {
        Some(Err(refusal)) => reject_body(serving, session, id, exchange, refusal),
        Some(Ok(())) => {
            serving.notify_reader(exchange);
            give_credit(serving, session, id);
        }
        None => give_credit(serving, session, id),
    }
}

/// A body that is too large, or for which there is no memory.
fn reject_body(serving: &mut Serving, session: &mut Session, id: StreamId, exchange: Key, refusal: Refusal) {
    let is_called = serving.lane.with(exchange, |exchange| {
        exchange.fail_body(BodyFault::TooLarge);
        exchange.is_called
    });
    serving.notify_reader(exchange);
    match is_called {
        Some(false) => {
            let record = session.stream(id).and_then(|stream| stream.record.take());
            requests::refuse(serving, session, id, refusal, record);
        }
        _ if session.reads_on(id) => responses::end_stream(serving, session, id, Outcome::Sent),
        // The rest of the body must not delay the response.
        _ => give_credit(serving, session, id),
    }
}

pub(super) fn end_body(
    serving: &mut Serving,
    key: Key,
    connection: &mut Connection,
    session: &mut Session,
    id: StreamId,
    trailers: Trailers,
) {
    let Some(stream) = session.stream(id) else { return };
    if stream.skips {
        return responses::end_stream(serving, session, id, Outcome::Sent);
    }
    let Some(exchange) = stream.exchange else { return };
    match serving.lane.with(exchange, |exchange| exchange.end_body(trailers)).flatten() {
        Some((whole, trailers)) => {
            requests::serve_collected(serving, key, connection, session, id, exchange, whole, &trailers);
        }
        None if session.is_lingering(id) || session.reads_on(id) => {
            responses::end_stream(serving, session, id, Outcome::Sent)
        }
        None => serving.notify_reader(exchange),
    }
}

/// Gives the client credit for body bytes that were read, unless the reader is behind.
pub(super) fn give_credit(serving: &mut Serving, session: &mut Session, id: StreamId) {
    let Some(stream) = session.stream(id) else { return };
    let is_paused = stream.exchange.and_then(|exchange| {
        serving.lane.with(exchange, |it| it.intake.as_ref().is_some_and(|intake| intake.is_paused()))
    });
    if is_paused != Some(true) {
        let bytes = std::mem::take(&mut stream.unread_bytes);
        session.machine.consumed(id, bytes, serving.output.bytes());
    }
}

/// Readers of bodies have caught up.
pub(crate) fn read_on(serving: &mut Serving, key: Key, connection: &mut Connection) -> Fate {
    input::with_session(serving, connection, |serving, connection, session| {
        let records_at = serving.records.len();
        notice_readers(serving, session);
        give_all_credit(serving, session);
        let fate = match connection.is_sending() {
            // What was encoded now is queued behind the rest: it must not stay for the next connection.
            true => output::send_visit(serving, key, connection, session, records_at),
            false => input::run_session(serving, key, connection, session),
        };
        // The last stream may have ended.
        deadlines::set_deadline(serving, connection, session);
        fate
    })
}

/// Readers of bodies want the first byte, or have dropped a body whose response was sent.
fn notice_readers(serving: &mut Serving, session: &mut Session) {
    // From the last: one that ends moves those behind it.
    for at in (0..session.streams.len()).rev() {
        let Some((id, stream)) = session.streams.get(at).map(|(id, stream)| (*id, stream)) else {
            continue;
        };
        if stream.waits {
            requests::proceed(serving, session, id);
        } else if stream.reads_on && !is_held(serving, stream.exchange) {
            responses::end_stream(serving, session, id, Outcome::Sent);
        }
    }
}

/// Whether somebody holds the body of an exchange's request.
pub(super) fn is_held(serving: &Serving, exchange: Option<Key>) -> bool {
    let is_held = |key| serving.lane.with(key, |it| it.intake.as_ref().is_some_and(Intake::is_held));
    exchange.and_then(is_held).unwrap_or(false)
}

pub(super) fn give_all_credit(serving: &mut Serving, session: &mut Session) {
    for at in 0..session.streams.len() {
        if let Some((id, stream)) = session.streams.get(at)
            && stream.unread_bytes > 0
        {
            let id = *id;
            give_credit(serving, session, id);
        }
    }
}

const OVERLOADED: Refusal = Refusal {
    status: flatout_wire::Status::SERVICE_UNAVAILABLE,
    reason: "the server has no memory left for request bodies; try again",
};
