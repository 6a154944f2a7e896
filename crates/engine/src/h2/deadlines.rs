//! How connections end: by deadlines, by leaving, by the client.

use super::{input, output, responses};
use std::time::Duration;

use flatout_lane::clock;
use flatout_lane::slab::Key;
use flatout_wire::h2::Code;

use super::Session;
use crate::connection::Connection;
use crate::exchange::Exchange;
use crate::output::Queue;
use crate::service::Outcome;
use crate::serving::{Fate, Serving, acknowledged_bytes};

/// How long the first GOAWAY may stay unconfirmed before the second one names the last stream.
const LEAVE_TIME_MAX: Duration = Duration::from_secs(1);

/// How long a connection without streams keeps memory for the next ones.
const REST_TIME: Duration = Duration::from_secs(1);

/// Sets the next deadline of the connection, and refills its budgets as time passes.
pub(super) fn set_deadline(serving: &mut Serving, connection: &mut Connection, session: &mut Session) {
    if connection.lingering.is_some() {
        return;
    }
    let now = serving.now.ticks;
    let second = clock::ticks(Duration::from_secs(1));
    while now.saturating_sub(session.refilled_at) >= second {
        session.refilled_at += second;
        session.machine.refill();
        if now.saturating_sub(session.refilled_at) > 10 * second {
            session.refilled_at = now;
        }
    }
    if serving.draining {
        // Frames of the client do not move it to a later time.
        connection.deadline = connection.deadline.min(now + clock::ticks(LEAVE_TIME_MAX));
        return;
    }
    if session.machine.streams_count() > 0 {
        // The rate window begins with the first stream; the rate is judged when the window ends.
        if !session.has_window || connection.deadline > now + serving.bounds.window_ticks {
            begin_rate(serving, connection, session);
        }
        (session.has_window, session.is_beginning) = (true, false);
        return;
    }
    (session.has_window, session.was_stalled) = (false, false);
    if is_at_rest(connection, session) {
        session.is_beginning = false;
        session.idle_until = now + serving.bounds.idle_ticks;
        connection.deadline = now + serving.bounds.idle_ticks.min(clock::ticks(REST_TIME));
    } else if !std::mem::replace(&mut session.is_beginning, true) {
        connection.deadline = now + serving.bounds.head_ticks;
    }
}

fn begin_rate(serving: &Serving, connection: &mut Connection, session: &mut Session) {
    serving.begin_window(connection);
    session.content_bytes = 0;
}

/// A deadline has passed.
pub(crate) fn expire(serving: &mut Serving, key: Key, connection: &mut Connection) -> Fate {
    if connection.lingering.is_some() {
        return Fate::Close(Outcome::TimedOut);
    }
    input::with_session(serving, connection, |serving, connection, session| {
        expire_session(serving, key, connection, session)
    })
}

fn expire_session(
    serving: &mut Serving,
    key: Key,
    connection: &mut Connection,
    session: &mut Session,
) -> Fate {
    let records_at = serving.records.len();
    if session.machine.streams_count() == 0 {
        if !connection.is_sending() {
            session.rest();
            connection.work().queue = Queue::default();
            let is_at_rest = is_at_rest(connection, session);
            if is_at_rest && !serving.draining && session.idle_until > serving.now.ticks {
                connection.deadline = session.idle_until;
                return Fate::Keep;
            }
            begin_rate(serving, connection, session);
            match is_at_rest || serving.draining {
                true => session.machine.leave_now(serving.output.bytes()),
                false => session.machine.close(Code::SETTINGS_TIMEOUT, "too slow", serving.output.bytes()),
            }
            return output::send_visit(serving, key, connection, session, records_at);
        }
    } else if serving.draining {
        session.machine.leave_now(serving.output.bytes());
    }
    for id in session.overdue_lingerers() {
        responses::end_stream(serving, session, id, Outcome::Sent);
    }
    if session.machine.streams_count() == 0 {
        set_deadline(serving, connection, session);
        return output::send_visit(serving, key, connection, session, records_at);
    }
    if is_fast_enough(serving, connection, session) {
        begin_rate(serving, connection, session);
        return output::send_visit(serving, key, connection, session, records_at);
    }
    end_streams(serving, session, Outcome::TimedOut);
    session.machine.close(Code::ENHANCE_YOUR_CALM, "too slow", serving.output.bytes());
    match output::send_visit(serving, key, connection, session, records_at) {
        // The client gets a chance to read the reason.
        Fate::Keep if connection.lingering.is_some() => Fate::Keep,
        _ => Fate::Close(Outcome::TimedOut),
    }
}

/// Whether the client sends and receives content fast enough, if we are waiting for it. Only content
/// counts: a client that keeps its windows closed cannot stay by sending frames without effect.
fn is_fast_enough(serving: &Serving, connection: &mut Connection, session: &mut Session) -> bool {
    // A client that waits for our disk is not slow.
    let is_warming = connection.work().is_warming;
    let is_sending = connection.is_sending() && !is_warming;
    // A client that has no window left is measured from then on, not from a time when there was nothing to send.
    let is_stalled = session.machine.is_stalled() && !is_warming;
    let was_stalled = std::mem::replace(&mut session.was_stalled, is_stalled);
    let taken = acknowledged_bytes(connection, is_sending);
    if is_sending {
        return taken.is_none_or(|taken| serving.is_enough(connection, taken, session.slowest_pace()));
    }
    let takes = |exchange: &mut Exchange| {
        exchange.intake.as_ref().is_some_and(|intake| !intake.is_paused() && !intake.has_ended())
    };
    let is_receiving = session.streams.iter().any(|(_, stream)| {
        // A WebSocket may be silent: its owner has its own timeouts.
        !stream.is_websocket
            && stream.exchange.is_some_and(|exchange| serving.lane.with(exchange, takes).unwrap_or(false))
    });
    let is_awaited = is_receiving || (is_stalled && was_stalled);
    !is_awaited || serving.is_enough(connection, session.content_bytes, session.slowest_pace())
}

/// Ends all streams of a connection that is gone.
pub(crate) fn end_streams(serving: &mut Serving, session: &mut Session, outcome: Outcome) {
    let records_at = serving.records.len();
    while let Some((id, _)) = session.streams.last() {
        let id = *id;
        responses::end_stream(serving, session, id, outcome);
    }
    serving.output.forget();
    if serving.records.len() > records_at {
        let now_ns = clock::nanoseconds();
        for mut record in serving.records.drain(records_at..) {
            let outcome = record.ended.outcome;
            record.end(&*serving.service, outcome, now_ns, &serving.now);
        }
    }
}

/// Whether the connection only waits for the next request.
fn is_at_rest(connection: &Connection, session: &Session) -> bool {
    session.machine.is_idle() && session.machine.has_begun() && !connection.is_holding()
}
