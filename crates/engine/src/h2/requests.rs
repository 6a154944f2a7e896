//! Passes requests of streams to the service.

use super::{responses, websockets};
use std::cell::Cell;

use flatout_lane::slab::Key;
use flatout_wire::h2::hpack::encode_status;
use flatout_wire::h2::{Code, StreamId};
use flatout_wire::{Framing, Head, Status, head};

use super::{Session, UNREAD_BYTES_MAX, WAITING_BYTES_MAX};
use crate::bug;
use crate::connection::Connection;
use crate::exchange::{CollectedRequest, Exchange, Intake, Memory, panicked};
use crate::record::Record;
use crate::service::{BodyPlan, Outcome, Reply, Request, RequestBody, Tls, stream_with};
use crate::serving::{BAD_PATH, Parker, Refusal, Serving, call, normal_path, prepare, read_on, refused};

/// A request whose head has come.
#[derive(Clone, Copy)]
pub(super) struct H2Request<'a, 'b> {
    pub(super) head: &'a Head<'b>,
    /// Nothing follows the head.
    pub(super) is_whole: bool,
    /// It asks for a WebSocket.
    pub(super) is_websocket: bool,
}

/// The head of a request has arrived.
pub(super) fn request(
    serving: &mut Serving,
    key: Key,
    connection: &mut Connection,
    session: &mut Session,
    id: StreamId,
    request: H2Request<'_, '_>,
) {
    let head = request.head;
    if session.waiting_bytes > WAITING_BYTES_MAX {
        // It was not processed, so the client may retry it.
        session.machine.reset(id, Code::REFUSED_STREAM, serving.output.bytes());
        return session.machine.release(id, serving.output.bytes());
    }
    serving.number = serving.number.wrapping_add(1);
    let record = serving.wants_ended.then(|| {
        let recorder = serving.wants_begun.then_some(&*serving.service);
        Record::of(recorder, head, connection.origin(), (serving.began_ns(), serving.number))
    });
    let mut scratch = std::mem::take(&mut serving.path);
    match normal_path(head, serving.path_form, &mut scratch) {
        Some(path) => serve(serving, key, connection, session, id, request, path, record),
        None => refuse(serving, session, id, BAD_PATH, record),
    }
    serving.path = scratch;
    if connection.requests_left == 0 {
        session.machine.leave(serving.output.bytes());
    }
}

#[expect(clippy::too_many_arguments, reason = "it is the second half of one function")]
fn serve(
    serving: &mut Serving,
    key: Key,
    connection: &mut Connection,
    session: &mut Session,
    id: StreamId,
    request: H2Request<'_, '_>,
    path: &[u8],
    record: Option<Record>,
) {
    let H2Request { head, is_whole, is_websocket } = request;
    connection.requests_left = connection.requests_left.saturating_sub(1);
    serving.requests_count += 1;
    let (mut exchange, mut ticket) = (None, None);
    let mut body = RequestBody::NONE;
    if is_websocket {
        exchange = Some(websockets::open_websocket(serving, key, session, id, is_whole));
    } else if !is_whole && head.framing != Framing::None {
        let bytes_max = serving.limits.body_bytes_max;
        match prepare(&*serving.service, &serving.limits, head, path, connection.listener).map(|prepared| {
            ticket = prepared.ticket;
            prepared.body
        }) {
            Err(refusal) => return refuse(serving, session, id, refusal, record),
            Ok(BodyPlan::None | BodyPlan::Refused) => {}
            Ok(BodyPlan::Whole { bytes_max: own }) => {
                let memory = Memory::none(serving.bodies_bytes.clone(), serving.limits.bodies_memory_max);
                let bytes_max = own.unwrap_or(bytes_max);
                let intake = Intake::collect(head, (serving.number, ticket.take()), bytes_max, memory);
                let exchange = serving.lane.open(Exchange::collecting(key, intake).of_stream(id));
                let stream = session.enter(id);
                (stream.exchange, stream.record) = (Some(exchange), record);
                stream.waits = head.expects_continue;
                return proceed(serving, session, id);
            }
            Ok(BodyPlan::Stream { bytes_max: own }) => {
                let opened = serving.lane.open(Exchange::called(key).of_stream(id));
                let resume = read_on(serving.mailbox.clone(), opened);
                let (sender, stream) = stream_with(head.framing.length(), UNREAD_BYTES_MAX, resume);
                let intake = Intake::stream(sender, own.unwrap_or(bytes_max));
                attach_intake(serving, session, id, opened, intake, head);
                exchange = Some(opened);
                body = RequestBody::Stream(stream);
            }
            Ok(BodyPlan::Pull { bytes_max: own }) => {
                let opened = serving.lane.open(Exchange::called(key).of_stream(id));
                let intake = Intake::pull_with(own.unwrap_or(bytes_max), UNREAD_BYTES_MAX);
                attach_intake(serving, session, id, opened, intake, head);
                exchange = Some(opened);
            }
        }
    }
    let parking = Parker { lane: &serving.lane, connection: key, exchange: Cell::new(exchange) };
    let (peer, listener) = (connection.peer.address(), connection.listener);
    let tls = connection.transport.secured().map(Tls::of);
    let number = serving.number;
    let request =
        || Request { head: *head, path, body, peer, tls, listener, number, ticket, parking: Some(&parking) };
    let reply = call(&*serving.service, request, &mut serving.response);
    let exchange = parking.exchange.get();
    handle_reply(serving, key, session, id, reply, exchange, record);
}

/// Passes a body on while the service handles the request. A client that waits for 100 gets it when the body is
/// first wanted.
fn attach_intake(
    serving: &Serving,
    session: &mut Session,
    id: StreamId,
    exchange: Key,
    mut intake: Intake,
    head: &Head<'_>,
) {
    if head.expects_continue {
        intake.wait();
        session.enter(id).waits = true;
    }
    serving.lane.with(exchange, |exchange| exchange.intake = Some(intake));
}

/// Sends 100 to a client that waits for it, if the body is wanted.
pub(super) fn proceed(serving: &mut Serving, session: &mut Session, id: StreamId) {
    let Some(stream) = session.stream(id).filter(|stream| stream.waits) else { return };
    let is_unwanted = stream.exchange.and_then(|exchange| {
        serving.lane.with(exchange, |it| it.intake.as_ref().is_none_or(Intake::is_unwanted))
    });
    if is_unwanted == Some(false) {
        stream.waits = false;
        let encode = |block: &mut Vec<u8>| encode_status(Status::CONTINUE, block);
        session.machine.inform(id, encode, serving.output.bytes());
    }
}

/// A request whose body was collected.
#[expect(clippy::too_many_arguments, reason = "all of it belongs to the one request")]
pub(super) fn serve_collected(
    serving: &mut Serving,
    key: Key,
    connection: &mut Connection,
    session: &mut Session,
    id: StreamId,
    exchange: Key,
    mut whole: CollectedRequest,
    trailers: &[(Vec<u8>, Vec<u8>)],
) {
    serving.lane.with(exchange, |exchange| exchange.is_called = true);
    let (mut fields, mut scratch) = (std::mem::take(&mut serving.fields), std::mem::take(&mut serving.path));
    let framing = match whole.body.len() {
        0 => Framing::None,
        bytes => Framing::Length(bytes as u64),
    };
    let head = head::parse_kept(&whole.head, &mut fields, Some(framing));
    // The form of paths may have changed since it was parsed first.
    let path = head.as_ref().and_then(|head| normal_path(head, serving.path_form, &mut scratch));
    let record = session.stream(id).and_then(|stream| stream.record.take());
    let reply = if let (Some(head), Some(path)) = (head, path) {
        let body = RequestBody::Whole { bytes: &whole.body, trailers };
        let parking = Parker { lane: &serving.lane, connection: key, exchange: Cell::new(Some(exchange)) };
        let (peer, listener) = (connection.peer.address(), connection.listener);
        let tls = connection.transport.secured().map(Tls::of);
        let (number, ticket) = (whole.number, whole.ticket.take());
        let request =
            || Request { head, path, body, peer, tls, listener, number, ticket, parking: Some(&parking) };
        call(&*serving.service, request, &mut serving.response)
    } else if head.is_some() {
        serving.response = refused(BAD_PATH);
        Reply::Now
    } else {
        bug!("the head of a collected request cannot be parsed again");
        serving.response = panicked();
        Reply::Now
    };
    handle_reply(serving, key, session, id, reply, Some(exchange), record);
    serving.fields = fields;
    serving.path = scratch;
}

/// Handles the reply of the service: a response, or how it will be made.
fn handle_reply(
    serving: &mut Serving,
    key: Key,
    session: &mut Session,
    id: StreamId,
    reply: Reply,
    exchange: Option<Key>,
    mut record: Option<Record>,
) {
    if let (Reply::Now, None) = (&reply, exchange) {
        return responses::respond_now(serving, key, session, id, record);
    }
    if !matches!(reply, Reply::Now) {
        let note = serving.response.take_note();
        record.iter_mut().for_each(|record| record.ended.note = note);
    }
    let exchange = exchange.unwrap_or_else(|| serving.lane.open(Exchange::called(key)));
    serving.lane.with(exchange, |exchange| exchange.set_stream(id));
    let stream = session.enter(id);
    (stream.exchange, stream.record) = (Some(exchange), record);
    match reply {
        Reply::Now => {
            let record = session.stream(id).and_then(|stream| stream.record.take());
            responses::respond_now(serving, key, session, id, record);
        }
        Reply::Later(future) => responses::run_response(serving, exchange, future),
        Reply::Parked => {}
        Reply::Leave(_) => responses::refuse_to_leave(serving, session, id),
    }
}

/// The record of a request that the state machine has refused.
pub(super) fn refused_record(serving: &mut Serving, connection: &Connection) -> Option<Record> {
    serving.number = serving.number.wrapping_add(1);
    serving.wants_ended.then(|| {
        let recorder = serving.wants_begun.then_some(&*serving.service);
        Record::refused(recorder, b"", connection.origin(), (serving.began_ns(), serving.number))
    })
}

/// Refuses a request.
pub(super) fn refuse(
    serving: &mut Serving,
    session: &mut Session,
    id: StreamId,
    refusal: Refusal,
    record: Option<Record>,
) {
    let mut response = refused(refusal);
    let record = record.map(|mut record| {
        record.ended.outcome = Outcome::Refused;
        record
    });
    responses::respond_with(serving, session, id, &mut response, record);
}
