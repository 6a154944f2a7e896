//! Passes requests with their heads and complete bodies to the service.

use super::responses;
use std::cell::Cell;

use flatout_lane::slab::Key;
use flatout_wire::h1::{Piece, Refusal};
use flatout_wire::{Framing, head};

use super::Step;
use crate::bug;
use crate::connection::Connection;
use crate::exchange::{CollectedRequest, Exchange, Intake, Lane, Memory, panicked};
use crate::record::Record;
use crate::service::{BodyPlan, Reply, Request, RequestBody, Tls, stream};
use crate::serving::{
    BAD_PATH, Parker, Serving, call, is_http2_preface, normal_path, prepare, read_on, refused,
};

/// One request at `read[at..end]`.
#[inline]
pub(super) fn request(
    serving: &mut Serving,
    key: Key,
    connection: &mut Connection,
    at: usize,
    end: usize,
) -> Step {
    let step = serve(serving, key, connection, at, end);
    if serving.wants_ended {
        serving.store_open_record(connection);
    }
    step
}

#[inline]
fn serve(serving: &mut Serving, key: Key, connection: &mut Connection, at: usize, end: usize) -> Step {
    let began_ns = serving.began_ns();
    let Serving { read, fields, path, path_form, .. } = serving;
    let bytes = read.get(at..end).unwrap_or_default();
    // Parsed in place, and copied once.
    let parsed = connection.machine.head(bytes, fields, &serving.bounds.head);
    let head = match &parsed {
        Ok(Some(head)) => head,
        Ok(None) => return Step::Partial,
        Err(refusal) => return refuse_head(serving, connection, (at, end), *refusal, began_ns),
    };
    serving.number = serving.number.wrapping_add(1);
    let number = serving.number;
    if serving.wants_ended {
        let recorder = serving.wants_begun.then_some(&*serving.service);
        serving.records.push(Record::of(recorder, head, connection.origin(), (began_ns, number)));
        serving.has_open = true;
    }
    let Some(path) = normal_path(head, *path_form, path) else {
        connection.machine.give_up();
        return responses::refuse(serving, connection, BAD_PATH, end - at);
    };
    connection.requests_left = connection.requests_left.saturating_sub(1);
    serving.requests_count += 1;
    // A body may still come; collected ones are not worth a check.
    connection.client_closes = !head.keep_alive && head.framing == Framing::None;
    let rest = bytes.get(head.len()..).unwrap_or_default();
    let mut ticket = None;
    let (body, used) = match head.framing {
        Framing::None => (RequestBody::NONE, head.len()),
        framing => {
            match prepare(&*serving.service, &serving.limits, head, path, connection.listener).map(
                |prepared| {
                    ticket = prepared.ticket;
                    prepared.body
                },
            ) {
                Err(refusal) => {
                    connection.machine.give_up();
                    return responses::refuse(serving, connection, refusal, end - at);
                }
                Ok(BodyPlan::None | BodyPlan::Refused) => match skip_body(&mut connection.machine, rest) {
                    Ok(skipped) => (RequestBody::NONE, head.len() + skipped),
                    Err(refusal) => return responses::refuse(serving, connection, refusal, end - at),
                },
                Ok(BodyPlan::Whole { bytes_max }) => match connection.machine.whole_body(rest) {
                    Some(body) => {
                        (RequestBody::Whole { bytes: body, trailers: &[] }, head.len() + body.len())
                    }
                    None => {
                        let memory =
                            Memory::none(serving.bodies_bytes.clone(), serving.limits.bodies_memory_max);
                        let bytes_max = bytes_max.unwrap_or(serving.limits.body_bytes_max);
                        let intake = Intake::collect(head, (number, ticket.take()), bytes_max, memory);
                        let (used, none_received) = (head.len(), rest.is_empty());
                        expect_body(serving, connection, Exchange::collecting(key, intake), none_received);
                        return Step::Used(used);
                    }
                },
                Ok(BodyPlan::Stream { bytes_max }) => {
                    let exchange = serving.lane.open(Exchange::called(key));
                    let (sender, stream) =
                        stream(framing.length(), read_on(serving.mailbox.clone(), exchange));
                    let intake = Intake::stream(sender, bytes_max.unwrap_or(serving.limits.body_bytes_max));
                    attach_intake(&serving.lane, connection, exchange, intake, rest.is_empty());
                    connection.machine.keep_body();
                    (RequestBody::Stream(stream), head.len())
                }
                Ok(BodyPlan::Pull { bytes_max }) => {
                    let exchange = serving.lane.open(Exchange::called(key));
                    let intake = Intake::pull(bytes_max.unwrap_or(serving.limits.body_bytes_max));
                    attach_intake(&serving.lane, connection, exchange, intake, rest.is_empty());
                    (RequestBody::NONE, head.len())
                }
            }
        }
    };
    if serving.has_open
        && let Some(open) = serving.records.last_mut()
    {
        open.ended.received_bytes = used as u64;
    }
    if connection.exchange.is_some() {
        connection.deadline = serving.now.ticks + serving.bounds.window_ticks;
        connection.work().judged_at = serving.now.ticks;
    }
    let parking = Parker { lane: &serving.lane, connection: key, exchange: Cell::new(connection.exchange) };
    let (peer, listener) = (connection.peer, connection.listener);
    let tls = connection.transport.secured().map(Tls::of);
    let request = || Request {
        head: *head,
        path,
        body,
        peer: peer.address(),
        tls,
        listener,
        number,
        ticket,
        parking: Some(&parking),
    };
    let reply = call(&*serving.service, request, &mut serving.response);
    connection.exchange = parking.exchange.get();
    if let Reply::Leave(takeover) = reply {
        responses::note_without_response(serving, connection);
        responses::leave(serving, connection, takeover);
        // If it is not used, the request is held from its first byte on.
        return Step::Partial;
    }
    responses::handle_reply(serving, key, connection, reply, at + used == end);
    Step::Used(used)
}

/// Refuses `read[at..end]`, which is no head of HTTP/1, unless it is the preface of HTTP/2.
#[cold]
fn refuse_head(
    serving: &mut Serving,
    connection: &mut Connection,
    (at, end): (usize, usize),
    refusal: Refusal,
    began_ns: u64,
) -> Step {
    let bytes = serving.read.get(at..end).unwrap_or_default();
    if serving.limits.http2
        && is_http2_preface(bytes)
        && connection.requests_left == serving.bounds.requests_max
        && !connection.is_sending()
    {
        return Step::Http2;
    }
    if serving.wants_ended {
        serving.number = serving.number.wrapping_add(1);
        let recorder = serving.wants_begun.then_some(&*serving.service);
        let origin = connection.origin();
        serving.records.push(Record::refused(recorder, bytes, origin, (began_ns, serving.number)));
        serving.has_open = true;
    }
    responses::refuse(serving, connection, refusal, end - at)
}

/// Starts collecting a body.
#[inline(never)]
fn expect_body(serving: &mut Serving, connection: &mut Connection, exchange: Exchange, none_received: bool) {
    connection.exchange = Some(serving.lane.open(exchange));
    serving.begin_window(connection);
    if none_received {
        connection.machine.proceed(serving.output.bytes());
    }
}

/// A request whose body was collected.
pub(super) fn serve_collected(
    serving: &mut Serving,
    key: Key,
    connection: &mut Connection,
    mut whole: CollectedRequest,
    trailers: &[(Vec<u8>, Vec<u8>)],
    is_last_input: bool,
) {
    if let Some(exchange) = connection.exchange {
        serving.lane.with(exchange, |exchange| exchange.is_called = true);
    }
    let Serving { fields, path, path_form, .. } = serving;
    // It was parsed before. The limits of heads may have changed since, and so may the form of paths.
    let Some(head) = head::parse_kept(&whole.head, fields, None) else {
        bug!("the head of a collected request cannot be parsed again");
        serving.response = panicked();
        return responses::handle_reply(serving, key, connection, Reply::Now, is_last_input);
    };
    let Some(path) = normal_path(&head, *path_form, path) else {
        serving.response = refused(BAD_PATH);
        return responses::handle_reply(serving, key, connection, Reply::Now, is_last_input);
    };
    let body = RequestBody::Whole { bytes: &whole.body, trailers };
    let parking = Parker { lane: &serving.lane, connection: key, exchange: Cell::new(connection.exchange) };
    let (peer, listener) = (connection.peer.address(), connection.listener);
    let tls = connection.transport.secured().map(Tls::of);
    let (number, ticket) = (whole.number, whole.ticket.take());
    let request =
        || Request { head, path, body, peer, tls, listener, number, ticket, parking: Some(&parking) };
    let reply = call(&*serving.service, request, &mut serving.response);
    if let Reply::Leave(takeover) = reply {
        let mut bytes = whole.head.clone();
        match head.framing {
            Framing::Chunked => {
                flatout_wire::chunk::chunk_head(whole.body.len(), &mut bytes);
                bytes.extend_from_slice(&whole.body);
                bytes.extend_from_slice(if whole.body.is_empty() { b"\r\n" } else { b"\r\n0\r\n\r\n" });
            }
            Framing::Length(_) | Framing::None => bytes.extend_from_slice(&whole.body),
        }
        connection.work().held = bytes;
        responses::note_without_response(serving, connection);
        responses::leave(serving, connection, takeover);
        return;
    }
    responses::handle_reply(serving, key, connection, reply, is_last_input);
}

/// Passes a body on while the service handles the request. A client that waits for 100 gets it when the body is first
/// wanted, unless it has begun to send it.
fn attach_intake(
    lane: &Lane,
    connection: &mut Connection,
    exchange: Key,
    mut intake: Intake,
    none_received: bool,
) {
    if none_received && connection.machine.awaits_100() {
        intake.wait();
    }
    lane.with(exchange, |exchange| exchange.intake = Some(intake));
    connection.exchange = Some(exchange);
}

/// Skips the received part of a body that is not needed, and returns how many bytes. Malformed framing is rejected
/// here too.
#[inline(never)]
fn skip_body(machine: &mut flatout_wire::h1::Server, bytes: &[u8]) -> Result<usize, Refusal> {
    let mut used = 0;
    while let Some(rest) = bytes.get(used..).filter(|rest| !rest.is_empty()) {
        match machine.body(rest, &mut Vec::new())? {
            (taken, Piece::End) => return Ok(used + taken),
            (taken, Piece::Data(_) | Piece::NeedMore) => used += taken,
        }
    }
    Ok(used)
}
