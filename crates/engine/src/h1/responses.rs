//! From the service to the transport.

use super::{input, output};
use flatout_lane::slab::Key;
use flatout_wire::h1::{Next, Refusal, Wants};

use super::Step;
use crate::bug;
use crate::connection::Connection;
use crate::exchange::{Exchange, Outgoing, spawn_body, spawn_response};
use crate::output::{Drained, Follow, Output, Piece};
use crate::service::{Body, BodyFault, Ended, ExchangeKey, Outcome, Reply, Response, Takeover};
use crate::serving::{DISCARD_BYTES_MAX, Fate, FlushTime, OUT_BYTES_PER_SEND, Serving, refused};

/// Handles the reply of the service: a response, or how it will be made.
#[inline]
pub(super) fn handle_reply(
    serving: &mut Serving,
    key: Key,
    connection: &mut Connection,
    reply: Reply,
    is_last_input: bool,
) {
    match reply {
        Reply::Now => {
            let close = closes(serving, connection, &serving.response, is_last_input);
            let before = serving.output.len();
            let Serving { output, response, prelude, .. } = serving;
            let follow = output.encode(response, &mut connection.machine, close, prelude);
            if serving.wants_ended {
                serving.note_response(connection, serving.response.status(), serving.response.note(), before);
            }
            set_pace(serving, connection, &serving.response, &follow);
            let rules = serving.response.take_pushed_rules();
            serving.response.reset();
            after_response(serving, key, connection, follow);
            if let (Some(rules), Some(exchange)) = (rules, connection.exchange) {
                serving.lane.set_pushed_rules(exchange, *rules);
            }
            // There is nothing to drop; `forget` lets the compiler omit the check.
            std::mem::forget(reply);
        }
        reply => handle_deferred_reply(serving, key, connection, reply),
    }
}

#[inline(never)]
fn handle_deferred_reply(serving: &mut Serving, key: Key, connection: &mut Connection, reply: Reply) {
    note_without_response(serving, connection);
    match reply {
        Reply::Later(future) => {
            let exchange = exchange(serving, key, connection);
            let task = spawn_response(serving.lane.clone(), ExchangeKey(exchange), future);
            serving.lane.with(exchange, |exchange| exchange.task = Some(task));
        }
        Reply::Parked => {
            exchange(serving, key, connection);
        }
        // These are handled where they are made, while the request's bytes are available.
        Reply::Now | Reply::Leave(_) => {
            bug!("a reply was deferred that needs the request's bytes");
            connection.machine.close();
        }
    }
}

/// Notes what the service says about a request whose response does not come now, or never.
pub(super) fn note_without_response(serving: &mut Serving, connection: &mut Connection) {
    let note = serving.response.take_note();
    if let Some(open) = serving.open_record(connection) {
        open.ended.note = note;
    }
}

/// The connection's exchange; created if there is none.
fn exchange(serving: &mut Serving, key: Key, connection: &mut Connection) -> Key {
    match connection.work {
        Some(_) => serving.begin_window(connection),
        // Nothing is transferred: the rate cannot be checked.
        None => connection.deadline = serving.now.ticks + serving.bounds.window_ticks,
    }
    let exchange = match connection.exchange {
        Some(exchange) => exchange,
        None => serving.lane.open(Exchange::called(key)),
    };
    connection.exchange = Some(exchange);
    exchange
}

/// Whether a response is the connection's last, for our own reasons.
#[inline]
fn closes(serving: &Serving, connection: &Connection, response: &Response, is_last_input: bool) -> bool {
    connection.requests_left == 0
        || (serving.draining && is_last_input && !connection.is_holding())
        || has_too_much_unread(serving, connection, response)
}

/// Encodes a response by key, or its start.
fn respond(serving: &mut Serving, key: Key, connection: &mut Connection, response: &mut Response) {
    let close = closes(serving, connection, response, true);
    let before = serving.output.len();
    let (status, note) = (response.status(), response.note());
    let follow = serving.output.encode(response, &mut connection.machine, close, &serving.prelude);
    if serving.wants_ended {
        serving.note_response(connection, status, note, before);
    }
    set_pace(serving, connection, response, &follow);
    after_response(serving, key, connection, follow);
}

/// Limits the rate of a response, or does not. What follows HTTP is not limited.
#[inline]
fn set_pace(serving: &Serving, connection: &mut Connection, response: &Response, follow: &Follow) {
    let limit = response.rate_limit();
    // Nearly always neither, and so nothing of this is in the way of the next request.
    if limit.is_some() || connection.is_paced() {
        connection.set_pace(limit.filter(|_| !matches!(follow, Follow::Take(_))), serving.now.ticks);
    }
}

/// Continues after the encoded part of a response: usually with the next request.
#[inline]
fn after_response(serving: &mut Serving, key: Key, connection: &mut Connection, follow: Follow) {
    match follow {
        Follow::Next(Next::Request) if connection.exchange.is_none() && serving.has_no_open_record() => {
            std::mem::forget(follow);
        }
        follow => follow_up(serving, key, connection, follow),
    }
}

#[inline(never)]
fn follow_up(serving: &mut Serving, key: Key, connection: &mut Connection, follow: Follow) {
    match follow {
        Follow::Next(next) => end_request(serving, connection, next),
        Follow::Stream(body) => {
            let exchange = exchange(serving, key, connection);
            let task = spawn_body(serving.lane.clone(), ExchangeKey(exchange), body);
            serving.lane.with(exchange, |exchange| exchange.task = Some(task));
        }
        Follow::Pushed => {
            exchange(serving, key, connection);
        }
        Follow::Take(takeover) => {
            end_request(serving, connection, Next::Close);
            connection.work().takeover = Some(takeover);
        }
    }
}

/// Whether so much of the request's body is unread that it is not skipped for the next request. A response that
/// is streamed may still be reading it.
#[inline]
fn has_too_much_unread(serving: &Serving, connection: &Connection, response: &Response) -> bool {
    connection.machine.wants() == Wants::Body
        && connection.machine.length_left().is_some_and(|left| left > u64::from(DISCARD_BYTES_MAX))
        && !matches!(response.body(), Body::Stream(_) | Body::Pushed)
        && !input::is_body_held(serving, connection)
}

/// A response has ended, and its exchange, unless somebody reads the rest of the request's body.
#[inline]
pub(super) fn end_request(serving: &mut Serving, connection: &mut Connection, mut next: Next) {
    if next == Next::Body {
        if input::is_body_held(serving, connection) {
            serving.begin_window(connection);
            serving.end_response(connection.exchange);
            serving.close_record(connection);
            return;
        }
        next = connection.machine.skip_rest();
    }
    serving.fail_body(connection, BodyFault::Responded);
    serving.close_exchange(connection);
    if !serving.wants_ended && next == Next::Request {
        return;
    }
    serving.close_record(connection);
    if next == Next::Skip {
        serving.begin_window(connection);
    }
}

/// The connection leaves HTTP without a response to its request; the caller makes sure that the request's bytes
/// are held.
pub(super) fn leave(serving: &mut Serving, connection: &mut Connection, takeover: Takeover) {
    connection.machine.close();
    serving.close_exchange(connection);
    connection.work().takeover = Some(takeover);
}

/// Responds to an invalid request, or to one that is not read further; it is the last response. The client may
/// still be sending, which must not cause a reset that discards the response (see [`Serving::finish`]).
pub(super) fn refuse(
    serving: &mut Serving,
    connection: &mut Connection,
    refusal: Refusal,
    used: usize,
) -> Step {
    connection.readable = true;
    let mut response = refused(refusal);
    let before = serving.output.len();
    serving.output.encode(&mut response, &mut connection.machine, true, &serving.prelude);
    if serving.wants_ended {
        let sent_bytes = serving.output.len() - before;
        let sent_head_bytes = serving.output.head_ends_at().saturating_sub(before) as u32;
        let status = Some(refusal.status);
        if serving.close_record(connection)
            && let Some(record) = serving.records.last_mut()
        {
            record.ended =
                Ended { status, sent_bytes, sent_head_bytes, outcome: Outcome::Refused, ..record.ended };
        }
    }
    serving.close_exchange(connection);
    Step::Used(used)
}

/// Handles the items given to a connection's exchange.
pub(crate) fn attend(serving: &mut Serving, key: Key, connection: &mut Connection) -> Fate {
    let records_at = serving.records.len();
    let mut again = false;
    let reads_on =
        connection.exchange.and_then(|key| serving.lane.with(key, |it| std::mem::take(&mut it.reads_on)));
    if reads_on == Some(true) {
        serving.begin_window(connection);
        if input::proceeds(serving, connection) {
            connection.machine.proceed(serving.output.bytes());
        }
    }
    while let Some(exchange) = connection.exchange {
        let Some(item) = serving.lane.with(exchange, Exchange::dequeue).flatten() else {
            break;
        };
        match item {
            Outgoing::Answer(mut response) if connection.machine.owes_response() => {
                respond(serving, key, connection, &mut response);
                serving.lane.give_back(response);
            }
            Outgoing::Answer(_) => {}
            Outgoing::Inform(status, fields) => {
                connection.machine.inform(status, &fields, serving.output.bytes());
            }
            Outgoing::Data(bytes) => {
                let count = bytes.len();
                if !frame_data(serving, connection, count, |output| output.add(bytes)) {
                    return abort_response(serving, key, connection, records_at);
                }
            }
            Outgoing::Pipe(pipe) => {
                let count = pipe.bytes();
                if !frame_data(serving, connection, count, |output| output.add_pipe(pipe)) {
                    return abort_response(serving, key, connection, records_at);
                }
            }
            Outgoing::File(range) => {
                let count = range.bytes as usize;
                if !frame_data(serving, connection, count, |output| output.add_piece(Piece::File(range))) {
                    return abort_response(serving, key, connection, records_at);
                }
            }
            Outgoing::End(trailers) if connection.machine.is_responding() => {
                let before = serving.output.len();
                // Shorter than its Content-Length: the client must not take the next response for the rest.
                let Ok(next) = connection.machine.end(&trailers, serving.output.bytes()) else {
                    return abort_response(serving, key, connection, records_at);
                };
                serving.note_sent(connection, before);
                end_request(serving, connection, next);
            }
            Outgoing::End(_) => {}
            Outgoing::Leave(takeover, head) => {
                if connection.machine.owes_response() {
                    connection.work().held.splice(..0, head);
                    leave(serving, connection, takeover);
                }
            }
            // The response has ended before.
            Outgoing::Cut if connection.machine.is_reading_on() => {}
            // A connection that leaves HTTP has no exchange: only streams of HTTP/2 are left.
            Outgoing::Cut | Outgoing::Abandon => return abort_response(serving, key, connection, records_at),
            Outgoing::GiveUpAfter(time) => connection.transport.give_up_after(time),
        }
        if serving.output.len() >= OUT_BYTES_PER_SEND {
            match serving.flush(key, connection, records_at) {
                Drained::Broken => return Fate::Close(Outcome::ClientGone),
                // No event will report that the socket still accepts more.
                Drained::Yield => again = true,
                Drained::All | Drained::Full | Drained::Cold | Drained::Held => {}
            }
        }
    }
    let fate = match output::finish_visit(serving, key, connection, records_at, FlushTime::AtOnce) {
        Fate::Keep => continue_input(serving, key, connection),
        fate => fate,
    };
    match fate {
        Fate::Keep if again => Fate::Again,
        fate => fate,
    }
}

/// Frames a piece of a body. Fails if the body becomes longer than its Content-Length: the client would take the
/// rest for the next response.
fn frame_data(
    serving: &mut Serving,
    connection: &mut Connection,
    bytes: usize,
    add: impl FnOnce(&mut Output),
) -> bool {
    if !connection.machine.is_responding() {
        return true;
    }
    let before = serving.output.len();
    let Ok(behind) = connection.machine.data(bytes, serving.output.bytes()) else { return false };
    add(&mut serving.output);
    serving.output.bytes().extend_from_slice(behind);
    serving.note_sent(connection, before);
    true
}

/// The body cannot be completed: what was encoded is sent, and then the connection is aborted.
fn abort_response(serving: &mut Serving, key: Key, connection: &mut Connection, records_at: usize) -> Fate {
    connection.machine.close();
    connection.work().is_cut = true;
    serving.close_exchange(connection);
    output::finish_visit(serving, key, connection, records_at, FlushTime::AtOnce)
}

/// After a response, the next request may already be held.
pub(super) fn continue_input(serving: &mut Serving, key: Key, connection: &mut Connection) -> Fate {
    if connection.machine.is_idle() && !connection.is_sending() {
        connection.deadline = serving.idle_deadline();
    }
    // While the server drains: a response whose head was sent before could not announce that it is the last.
    connection.readable |= serving.draining;
    match input::resume(serving, key, connection) {
        Fate::Keep if serving.draining && connection.is_at_rest() => serving.finish(connection),
        fate => fate,
    }
}
