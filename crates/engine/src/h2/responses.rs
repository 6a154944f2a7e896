//! From the service to the state machine.

use super::{bodies, deadlines, input, output, requests};
use std::future::Future;
use std::pin::Pin;

use bytes::Bytes;
use flatout_lane::clock::Ticks;
use flatout_lane::slab::Key;
use flatout_wire::h2::hpack::{encode_lines, encode_status};
use flatout_wire::h2::{Code, StreamId};
use tokio::task::spawn_local;

use super::Session;
use crate::connection::Connection;
use crate::exchange::{Exchange, Outgoing, spawn_body, spawn_response};
use crate::output::{Content, Pace, Piece};
use crate::record::Record;
use crate::service::{
    Carrier, ConnectionPermit, DetachedConnection, ExchangeKey, Outcome, Response, SendRate, Takeover,
};
use crate::serving::{DISCARD_BYTES_MAX, Fate, OUT_BYTES_PER_SEND, Serving, body_fault_of};

/// Starts the task that makes a response.
pub(super) fn run_response(
    serving: &Serving,
    exchange: Key,
    future: Pin<Box<dyn Future<Output = Response>>>,
) {
    let task = spawn_response(serving.lane.clone(), ExchangeKey(exchange), future);
    serving.lane.with(exchange, |exchange| exchange.task = Some(task));
}

/// Sends the worker's response, which the service has written.
pub(super) fn respond_now(
    serving: &mut Serving,
    key: Key,
    session: &mut Session,
    id: StreamId,
    record: Option<Record>,
) {
    let Serving { output, response, prelude, .. } = serving;
    let before = output.len();
    let note = response.note();
    if session.websockets > 0 {
        session.convert_websocket_response(id, response);
    }
    let status = response.status();
    let limit = response.rate_limit();
    let content = output.encode_h2(response, &mut session.machine, id, prelude);
    let rules = response.take_pushed_rules();
    response.reset();
    let record = record.map(|record| note_head(serving, record, status, note, before));
    set_pace(session, id, limit, &content, serving.now.ticks);
    send_content(serving, Some(key), session, id, content, record);
    let exchange = session.stream(id).and_then(|stream| stream.exchange);
    if let (Some(rules), Some(exchange)) = (rules, exchange) {
        serving.lane.set_pushed_rules(exchange, *rules);
    }
}

/// The same with its own response.
pub(super) fn respond_with(
    serving: &mut Serving,
    session: &mut Session,
    id: StreamId,
    response: &mut Response,
    record: Option<Record>,
) {
    let before = serving.output.len();
    let note = response.note();
    if session.websockets > 0 {
        session.convert_websocket_response(id, response);
    }
    let (status, limit) = (response.status(), response.rate_limit());
    let content = serving.output.encode_h2(response, &mut session.machine, id, &serving.prelude);
    let record = record.map(|record| note_head(serving, record, status, note, before));
    set_pace(session, id, limit, &content, serving.now.ticks);
    send_content(serving, None, session, id, content, record);
}

/// Limits the rate of content that follows a head.
#[inline]
fn set_pace(session: &mut Session, id: StreamId, limit: Option<SendRate>, content: &Content, now: Ticks) {
    if let Some(limit) = limit
        && matches!(content, Content::Waits(..) | Content::Stream(_) | Content::Pushed)
    {
        session.enter(id).pace = Some(Box::new(Pace::new(limit, now)));
    }
}

fn note_head(
    serving: &Serving,
    mut record: Record,
    status: flatout_wire::Status,
    note: u64,
    before: u64,
) -> Record {
    let ended = &mut record.ended;
    ended.status = Some(status);
    ended.note = note;
    ended.sent_bytes = serving.output.len() - before;
    ended.sent_head_bytes = serving.output.head_ends_at().saturating_sub(before) as u32;
    record
}

/// Continues with the content of a response whose head was written. `key`: the connection, if an exchange may
/// have to be created.
fn send_content(
    serving: &mut Serving,
    key: Option<Key>,
    session: &mut Session,
    id: StreamId,
    content: Content,
    record: Option<Record>,
) {
    match content {
        Content::Over => {
            serving.records.extend(record);
            end_stream(serving, session, id, Outcome::Sent);
        }
        Content::Waits(pieces, trailers, memory_bytes) => {
            pieces.into_iter().for_each(|piece| session.queue(id, piece));
            session.waiting_bytes += memory_bytes;
            let stream = session.enter(id);
            stream.memory_bytes += memory_bytes;
            stream.end = Some(trailers);
            stream.record = record;
            wait_or_end(serving, session, id);
        }
        Content::Stream(body) => {
            let exchange = exchange_of(serving, key, session, id, record);
            if let Some(exchange) = exchange {
                let task = spawn_body(serving.lane.clone(), ExchangeKey(exchange), body);
                serving.lane.with(exchange, |exchange| exchange.task = Some(task));
            }
        }
        Content::Pushed => {
            exchange_of(serving, key, session, id, record);
        }
        Content::Take(takeover) => {
            if let Some(exchange) = exchange_of(serving, key, session, id, record) {
                take_over(serving, session, ExchangeKey(exchange), takeover);
            }
        }
        Content::Failed => {
            session.machine.reset(id, Code::INTERNAL_ERROR, serving.output.bytes());
            session.enter(id).record = record;
            end_stream(serving, session, id, Outcome::Failed);
        }
    }
}

/// The response leaves HTTP: from now on, its content is sent by the new owner.
fn take_over(serving: &Serving, session: &Session, exchange: ExchangeKey, takeover: Takeover) {
    // The stream's connection is still in the lane, and counts there.
    let taken = DetachedConnection {
        carrier: Carrier::stream(&serving.lane, exchange),
        read: Bytes::new(),
        peer: session.peer.address(),
        is_direct: false,
        permit: ConnectionPermit::none(),
    };
    spawn_local(async move { takeover(taken).await });
}

/// The exchange of a stream; created if there is none.
fn exchange_of(
    serving: &mut Serving,
    key: Option<Key>,
    session: &mut Session,
    id: StreamId,
    record: Option<Record>,
) -> Option<Key> {
    let stream = session.enter(id);
    stream.record = record;
    if stream.exchange.is_none() {
        stream.exchange = key.map(|key| serving.lane.open(Exchange::called(key).of_stream(id)));
    }
    stream.exchange
}

/// Whether something was given to an exchange and not handled: what came for another stream of its connection may have been handled
/// with it.
pub(crate) fn has_news(serving: &Serving, exchange: Key) -> bool {
    serving.lane.with(exchange, |exchange| exchange.has_news()).unwrap_or(false)
}

/// Handles what was given to the exchange of a stream.
pub(crate) fn attend(serving: &mut Serving, key: Key, connection: &mut Connection, exchange: Key) -> Fate {
    input::with_session(serving, connection, |serving, connection, session| {
        let records_at = serving.records.len();
        handle_items(serving, connection, session, exchange);
        handle_items_of_others(serving, connection, session, exchange);
        let fate = output::send_now(serving, key, connection, session, records_at);
        deadlines::set_deadline(serving, connection, session);
        match fate {
            // Bytes that were read before wait for their turn.
            Fate::Keep if connection.is_holding() && !connection.is_sending() => Fate::Again,
            fate => fate,
        }
    })
}

/// Also handles messages for the connection's other streams, so that all of them are sent at once. These
/// streams stay listed, but have nothing left to handle.
fn handle_items_of_others(
    serving: &mut Serving,
    connection: &mut Connection,
    session: &mut Session,
    first: Key,
) {
    if !serving.lane.has_listed() {
        return;
    }
    // From the last: one that ends by it moves those behind it.
    for at in (0..session.streams.len()).rev() {
        let Some(exchange) = session.streams.get(at).and_then(|(_, stream)| stream.exchange) else {
            continue;
        };
        if exchange == first || !has_news(serving, exchange) {
            continue;
        }
        if serving.output.len() >= OUT_BYTES_PER_SEND {
            return;
        }
        handle_items(serving, connection, session, exchange);
    }
}

fn handle_items(serving: &mut Serving, connection: &mut Connection, session: &mut Session, exchange: Key) {
    let Some(Some(id)) = serving.lane.with(exchange, |exchange| exchange.stream()) else { return };
    let Some(stream) = session.stream(id).filter(|stream| stream.exchange == Some(exchange)) else {
        return;
    };
    stream.has_moved = true;
    let reads_on = serving.lane.with(exchange, |exchange| std::mem::take(&mut exchange.reads_on));
    if reads_on == Some(true) {
        requests::proceed(serving, session, id);
        bodies::give_credit(serving, session, id);
    }
    while let Some(item) = serving.lane.with(exchange, Exchange::dequeue).flatten() {
        match item {
            Outgoing::Answer(mut response) => {
                if session.machine.owes_response(id) {
                    let record = session.stream(id).and_then(|stream| stream.record.take());
                    respond_with(serving, session, id, &mut response, record);
                }
                serving.lane.give_back(response);
            }
            Outgoing::Inform(status, fields) => {
                let encode = |block: &mut Vec<u8>| {
                    encode_status(status, block);
                    encode_lines(&fields, block);
                };
                session.machine.inform(id, encode, serving.output.bytes());
            }
            Outgoing::Data(bytes) => queue_content(session, id, Piece::Bytes(bytes)),
            Outgoing::Pipe(mut pipe) => {
                // Frames separate its parts, so it cannot be spliced from socket to socket.
                match pipe.take_bytes() {
                    Some(bytes) => queue_content(session, id, Piece::Bytes(bytes)),
                    None => abort_response(serving, session, id),
                }
            }
            Outgoing::File(range) => queue_content(session, id, Piece::File(range)),
            Outgoing::End(trailers) => {
                if session.machine.is_responding(id) {
                    session.enter(id).end = Some(trailers);
                    wait_or_end(serving, session, id);
                }
            }
            // The response has ended before.
            Outgoing::Cut if session.reads_on(id) => {}
            Outgoing::Cut => abort_response(serving, session, id),
            Outgoing::Abandon => handle_abandon(serving, session, id),
            Outgoing::Leave(..) => refuse_to_leave(serving, session, id),
            Outgoing::GiveUpAfter(time) => connection.transport.give_up_after(time),
        }
    }
}

/// A stream cannot be handed over like a connection: it ends without a response.
pub(super) fn refuse_to_leave(serving: &mut Serving, session: &mut Session, id: StreamId) {
    session.machine.reset(id, Code::CANCEL, serving.output.bytes());
    end_stream(serving, session, id, Outcome::Failed);
}

/// The owner has left a stream: it ends after the data already pushed.
fn handle_abandon(serving: &mut Serving, session: &mut Session, id: StreamId) {
    if session.note_owner_left(id) {
        end_stream(serving, session, id, Outcome::Sent);
    } else if session.machine.is_responding(id) {
        session.enter(id).end.get_or_insert_default();
        wait_or_end(serving, session, id);
    }
}

/// Ends a response whose content has been sent, or marks it to be ended then. The end itself needs no window.
fn wait_or_end(serving: &mut Serving, session: &mut Session, id: StreamId) {
    match session.stream(id).map(|stream| stream.content_bytes) {
        Some(0) => output::end_of_content(serving, session, id),
        _ => session.machine.set_waiting(id, true),
    }
}

/// Resets a stream whose response cannot be completed.
fn abort_response(serving: &mut Serving, session: &mut Session, id: StreamId) {
    session.machine.reset(id, Code::INTERNAL_ERROR, serving.output.bytes());
    end_stream(serving, session, id, Outcome::Failed);
}

fn queue_content(session: &mut Session, id: StreamId, piece: Piece) {
    let has_ended = session.stream(id).is_none_or(|stream| stream.end.is_some());
    if session.machine.is_responding(id) && !has_ended {
        session.queue(id, piece);
        session.machine.set_waiting(id, true);
    }
}

/// Removes a stream that has ended, for whatever reason. If its response was sent and somebody still reads its
/// request's body, only its response has ended.
pub(super) fn end_stream(serving: &mut Serving, session: &mut Session, id: StreamId, outcome: Outcome) {
    let mut rest = match outcome {
        Outcome::Sent if !session.machine.is_open(id) => session.machine.content_left(id),
        _ => None,
    };
    if let Some(mut stream) = session.take(id) {
        rest = rest.filter(|_| !stream.skips && !stream.waits && !stream.is_websocket);
        let is_awaited = outcome == Outcome::Sent && !stream.waits && !stream.is_websocket;
        if is_awaited && bodies::is_held(serving, stream.exchange) && session.machine.awaits_content(id) {
            serving.end_response(stream.exchange);
            serving.records.extend(stream.record.take());
            stream.memory_bytes = 0;
            stream.reads_on = true;
            return session.put(id, stream);
        }
        if stream.unread_bytes > 0 {
            session.machine.consumed(id, stream.unread_bytes, serving.output.bytes());
        }
        if let Some(exchange) = stream.exchange {
            serving.lane.with(exchange, |exchange| exchange.fail_body(body_fault_of(outcome)));
            serving.end_exchange(exchange);
        }
        if let Some(mut record) = stream.record {
            // All was sent, and the client had nothing more to say.
            if outcome != Outcome::Sent && !stream.has_ended {
                record.ended.outcome = outcome;
            }
            serving.records.push(record);
        }
    }
    match rest {
        // Some clients drop a response whose stream is reset while they send, although it is complete; and some read nothing more
        // once they have it, so all the window that they need comes with it.
        Some(bytes) if bytes <= u64::from(DISCARD_BYTES_MAX) => {
            session.enter(id).skips = true;
            session.machine.widen(id, bytes as u32, serving.output.bytes());
        }
        _ => session.machine.release(id, serving.output.bytes()),
    }
}
