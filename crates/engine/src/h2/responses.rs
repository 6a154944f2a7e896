//! From the service to the state machine.

use std::future::Future;
use std::pin::Pin;

use bytes::Bytes;
use flatout_lane::slab::Key;
use flatout_wire::h2::hpack::{encode_lines, encode_status};
use flatout_wire::h2::{Code, StreamId};
use tokio::task::spawn_local;

use super::Session;
use crate::connection::Connection;
use crate::exchange::{Exchange, Outgoing, spawn_body, spawn_response};
use crate::output::{Content, Piece};
use crate::record::Record;
use crate::service::{
    Carrier, ConnectionPermit, DetachedConnection, ExchangeKey, Outcome, Response, Takeover,
};
use crate::serving::{Fate, OUT_BYTES_PER_SEND, Serving, body_fault_of};

impl Serving {
    /// Starts the task that makes a response.
    pub(super) fn run_response(&self, exchange: Key, future: Pin<Box<dyn Future<Output = Response>>>) {
        let task = spawn_response(self.lane.clone(), ExchangeKey(exchange), future);
        self.lane.with(exchange, |exchange| exchange.task = Some(task));
    }

    /// Sends the worker's response, which the service has written.
    pub(super) fn respond_now(
        &mut self,
        key: Key,
        session: &mut Session,
        id: StreamId,
        record: Option<Record>,
    ) {
        let Serving { output, response, prelude, .. } = self;
        let before = output.len();
        let note = response.note();
        if session.websockets > 0 {
            session.convert_websocket_response(id, response);
        }
        let status = response.status();
        let content = output.encode_h2(response, &mut session.machine, id, prelude);
        let filter = response.take_filter();
        response.reset();
        let record = record.map(|record| self.note_head(record, status, note, before));
        self.send_content(Some(key), session, id, content, record);
        let exchange = session.stream(id).and_then(|stream| stream.exchange);
        if let (Some(filter), Some(exchange)) = (filter, exchange) {
            self.lane.set_filter(exchange, filter);
        }
    }

    /// The same with its own response.
    pub(super) fn respond_with(
        &mut self,
        session: &mut Session,
        id: StreamId,
        response: &mut Response,
        record: Option<Record>,
    ) {
        let before = self.output.len();
        let note = response.note();
        if session.websockets > 0 {
            session.convert_websocket_response(id, response);
        }
        let status = response.status();
        let content = self.output.encode_h2(response, &mut session.machine, id, &self.prelude);
        let record = record.map(|record| self.note_head(record, status, note, before));
        self.send_content(None, session, id, content, record);
    }

    fn note_head(&self, mut record: Record, status: flatout_wire::Status, note: u64, before: u64) -> Record {
        let ended = &mut record.ended;
        ended.status = Some(status);
        ended.note = note;
        ended.sent_bytes = self.output.len() - before;
        ended.sent_head_bytes = self.output.head_ends_at().saturating_sub(before) as u32;
        record
    }

    /// Continues with the content of a response whose head was written. `key`: the connection, if an exchange may
    /// have to be created.
    fn send_content(
        &mut self,
        key: Option<Key>,
        session: &mut Session,
        id: StreamId,
        content: Content,
        record: Option<Record>,
    ) {
        match content {
            Content::Over => {
                self.records.extend(record);
                self.end_stream(session, id, Outcome::Sent);
            }
            Content::Waits(pieces, trailers, memory_bytes) => {
                pieces.into_iter().for_each(|piece| session.queue(id, piece));
                session.waiting_bytes += memory_bytes;
                let stream = session.enter(id);
                stream.memory_bytes += memory_bytes;
                stream.end = Some(trailers);
                stream.record = record;
                self.wait_or_end(session, id);
            }
            Content::Stream(body) => {
                let exchange = self.exchange_of(key, session, id, record);
                if let Some(exchange) = exchange {
                    let task = spawn_body(self.lane.clone(), ExchangeKey(exchange), body);
                    self.lane.with(exchange, |exchange| exchange.task = Some(task));
                }
            }
            Content::Pushed => {
                self.exchange_of(key, session, id, record);
            }
            Content::Take(takeover) => {
                if let Some(exchange) = self.exchange_of(key, session, id, record) {
                    self.take_over(session, ExchangeKey(exchange), takeover);
                }
            }
            Content::Failed => {
                session.machine.reset(id, Code::INTERNAL_ERROR, self.output.bytes());
                session.enter(id).record = record;
                self.end_stream(session, id, Outcome::Failed);
            }
        }
    }

    /// The response leaves HTTP: from now on, its content is sent by the new owner.
    fn take_over(&self, session: &Session, exchange: ExchangeKey, takeover: Takeover) {
        // The stream's connection is still in the lane, and counts there.
        let taken = DetachedConnection {
            carrier: Carrier::stream(&self.lane, exchange),
            read: Bytes::new(),
            peer: session.peer.address(),
            is_direct: false,
            permit: ConnectionPermit::none(),
        };
        spawn_local(async move { takeover(taken).await });
    }

    /// The exchange of a stream; created if there is none.
    fn exchange_of(
        &mut self,
        key: Option<Key>,
        session: &mut Session,
        id: StreamId,
        record: Option<Record>,
    ) -> Option<Key> {
        let stream = session.enter(id);
        stream.record = record;
        if stream.exchange.is_none() {
            stream.exchange = key.map(|key| self.lane.open(Exchange::called(key).of_stream(id)));
        }
        stream.exchange
    }

    /// Whether something was given to an exchange and not handled: what came for another stream of its connection may have been handled
    /// with it.
    pub(crate) fn has_news(&self, exchange: Key) -> bool {
        self.lane.with(exchange, |exchange| exchange.has_news()).unwrap_or(false)
    }

    /// Handles what was given to the exchange of a stream.
    pub(crate) fn attend_h2(&mut self, key: Key, connection: &mut Connection, exchange: Key) -> Fate {
        self.with_session(connection, |serving, connection, session| {
            let records_at = serving.records.len();
            serving.handle_items(connection, session, exchange);
            serving.handle_items_of_others(connection, session, exchange);
            let fate = serving.send_now(key, connection, session, records_at);
            serving.set_deadline(connection, session);
            match fate {
                // Bytes that were read before wait for their turn.
                Fate::Keep if connection.is_holding() && !connection.is_sending() => Fate::Again,
                fate => fate,
            }
        })
    }

    /// Also handles messages for the connection's other streams, so that all of them are sent at once. These
    /// streams stay listed, but have nothing left to handle.
    fn handle_items_of_others(&mut self, connection: &mut Connection, session: &mut Session, first: Key) {
        if !self.lane.has_listed() {
            return;
        }
        // From the last: one that ends by it moves those behind it.
        for at in (0..session.streams.len()).rev() {
            let Some(exchange) = session.streams.get(at).and_then(|(_, stream)| stream.exchange) else {
                continue;
            };
            if exchange == first || !self.has_news(exchange) {
                continue;
            }
            if self.output.len() >= OUT_BYTES_PER_SEND {
                return;
            }
            self.handle_items(connection, session, exchange);
        }
    }

    fn handle_items(&mut self, connection: &mut Connection, session: &mut Session, exchange: Key) {
        let Some(Some(id)) = self.lane.with(exchange, |exchange| exchange.stream()) else { return };
        let Some(stream) = session.stream(id).filter(|stream| stream.exchange == Some(exchange)) else {
            return;
        };
        stream.has_moved = true;
        let reads_on = self.lane.with(exchange, |exchange| std::mem::take(&mut exchange.reads_on));
        if reads_on == Some(true) {
            self.proceed_h2(session, id);
            self.give_credit(session, id);
        }
        while let Some(item) = self.lane.with(exchange, Exchange::dequeue).flatten() {
            match item {
                Outgoing::Answer(mut response) => {
                    if session.machine.owes_response(id) {
                        let record = session.stream(id).and_then(|stream| stream.record.take());
                        self.respond_with(session, id, &mut response, record);
                    }
                    self.lane.give_back(response);
                }
                Outgoing::Inform(status, fields) => {
                    let encode = |block: &mut Vec<u8>| {
                        encode_status(status, block);
                        encode_lines(&fields, block);
                    };
                    session.machine.inform(id, encode, self.output.bytes());
                }
                Outgoing::Data(bytes) => self.queue_content(session, id, Piece::Bytes(bytes)),
                Outgoing::Pipe(mut pipe) => {
                    // Frames separate its parts, so it cannot be spliced from socket to socket.
                    match pipe.take_bytes() {
                        Some(bytes) => self.queue_content(session, id, Piece::Bytes(bytes)),
                        None => self.abort_response_h2(session, id),
                    }
                }
                Outgoing::File(range) => self.queue_content(session, id, Piece::File(range)),
                Outgoing::End(trailers) => {
                    if session.machine.is_responding(id) {
                        session.enter(id).end = Some(trailers);
                        self.wait_or_end(session, id);
                    }
                }
                // The response has ended before.
                Outgoing::Cut if session.reads_on(id) => {}
                Outgoing::Cut => self.abort_response_h2(session, id),
                Outgoing::Abandon => self.handle_abandon(session, id),
                Outgoing::Leave(..) => self.refuse_to_leave(session, id),
                Outgoing::GiveUpAfter(time) => connection.transport.give_up_after(time),
            }
        }
    }

    /// A stream cannot be handed over like a connection: it ends without a response.
    pub(super) fn refuse_to_leave(&mut self, session: &mut Session, id: StreamId) {
        session.machine.reset(id, Code::CANCEL, self.output.bytes());
        self.end_stream(session, id, Outcome::Failed);
    }

    /// The owner has left a stream: it ends after the data already pushed.
    fn handle_abandon(&mut self, session: &mut Session, id: StreamId) {
        if session.note_owner_left(id) {
            self.end_stream(session, id, Outcome::Sent);
        } else if session.machine.is_responding(id) {
            session.enter(id).end.get_or_insert_default();
            self.wait_or_end(session, id);
        }
    }

    /// Ends a response whose content has been sent, or marks it to be ended then. The end itself needs no window.
    fn wait_or_end(&mut self, session: &mut Session, id: StreamId) {
        match session.stream(id).map(|stream| stream.content_bytes) {
            Some(0) => self.end_of_content(session, id),
            _ => session.machine.set_waiting(id, true),
        }
    }

    /// Resets a stream whose response cannot be completed.
    fn abort_response_h2(&mut self, session: &mut Session, id: StreamId) {
        session.machine.reset(id, Code::INTERNAL_ERROR, self.output.bytes());
        self.end_stream(session, id, Outcome::Failed);
    }

    fn queue_content(&mut self, session: &mut Session, id: StreamId, piece: Piece) {
        let has_ended = session.stream(id).is_none_or(|stream| stream.end.is_some());
        if session.machine.is_responding(id) && !has_ended {
            session.queue(id, piece);
            session.machine.set_waiting(id, true);
        }
    }

    /// Removes a stream that has ended, for whatever reason. If its response was sent and somebody still reads its
    /// request's body, only its response has ended.
    pub(super) fn end_stream(&mut self, session: &mut Session, id: StreamId, outcome: Outcome) {
        if let Some(mut stream) = session.take(id) {
            let is_awaited = outcome == Outcome::Sent && !stream.waits && !stream.is_websocket;
            if is_awaited && self.is_held(stream.exchange) && session.machine.awaits_content(id) {
                self.end_response(stream.exchange);
                self.records.extend(stream.record.take());
                stream.memory_bytes = 0;
                stream.reads_on = true;
                return session.put(id, stream);
            }
            if stream.unread_bytes > 0 {
                session.machine.consumed(id, stream.unread_bytes, self.output.bytes());
            }
            if let Some(exchange) = stream.exchange {
                self.lane.with(exchange, |exchange| exchange.fail_body(body_fault_of(outcome)));
                self.end_exchange(exchange);
            }
            if let Some(mut record) = stream.record {
                // All was sent, and the client had nothing more to say.
                if outcome != Outcome::Sent && !stream.has_ended {
                    record.ended.outcome = outcome;
                }
                self.records.push(record);
            }
        }
        session.machine.release(id, self.output.bytes());
    }
}
