//! Receiving request bodies.

use flatout_lane::slab::Key;
use flatout_wire::h2::StreamId;

use super::Session;
use crate::connection::Connection;
use crate::exchange::Intake;
use crate::service::{BodyFault, Outcome};
use crate::serving::{Fate, Refusal, Serving, Trailers};

impl Serving {
    /// A piece of a request's body.
    pub(super) fn receive_body(&mut self, session: &mut Session, id: StreamId, bytes: &[u8]) {
        session.content_bytes += bytes.len() as u64;
        let Some(stream) = session.stream(id) else {
            // It is not needed.
            return session.machine.consumed(id, bytes.len(), self.output.bytes());
        };
        if let Some(record) = &mut stream.record {
            record.ended.received_bytes += bytes.len() as u64;
        }
        stream.unread_bytes += bytes.len();
        stream.waits = false;
        let Some(exchange) = stream.exchange else { return self.give_credit(session, id) };
        let fed = self.lane.with(exchange, |exchange| {
            let intake = exchange.intake.as_mut()?;
            match intake.make_room(bytes.len()) {
                true => Some(intake.feed(bytes).map(|_| ()).map_err(|fault| fault.refusal())),
                false => Some(Err(OVERLOADED)),
            }
        });
        match fed.flatten() {
            Some(Err(refusal)) => self.reject_body_h2(session, id, exchange, refusal),
            Some(Ok(())) => {
                self.notify_reader(exchange);
                self.give_credit(session, id);
            }
            None => self.give_credit(session, id),
        }
    }

    /// A body that is too large, or for which there is no memory.
    fn reject_body_h2(&mut self, session: &mut Session, id: StreamId, exchange: Key, refusal: Refusal) {
        let is_called = self.lane.with(exchange, |exchange| {
            exchange.fail_body(BodyFault::TooLarge);
            exchange.is_called
        });
        self.notify_reader(exchange);
        match is_called {
            Some(false) => {
                let record = session.stream(id).and_then(|stream| stream.record.take());
                self.refuse_h2(session, id, refusal, record);
            }
            _ if session.reads_on(id) => self.end_stream(session, id, Outcome::Sent),
            // The rest of the body must not delay the response.
            _ => self.give_credit(session, id),
        }
    }

    pub(super) fn end_body_h2(
        &mut self,
        key: Key,
        connection: &mut Connection,
        session: &mut Session,
        id: StreamId,
        trailers: Trailers,
    ) {
        let Some(exchange) = session.stream(id).and_then(|stream| stream.exchange) else { return };
        match self.lane.with(exchange, |exchange| exchange.end_body(trailers)).flatten() {
            Some((whole, trailers)) => {
                self.serve_collected_h2(key, connection, session, id, exchange, whole, &trailers);
            }
            None if session.is_lingering(id) || session.reads_on(id) => {
                self.end_stream(session, id, Outcome::Sent)
            }
            None => self.notify_reader(exchange),
        }
    }

    /// Gives the client credit for body bytes that were read, unless the reader is behind.
    pub(super) fn give_credit(&mut self, session: &mut Session, id: StreamId) {
        let Some(stream) = session.stream(id) else { return };
        let is_paused = stream.exchange.and_then(|exchange| {
            self.lane.with(exchange, |it| it.intake.as_ref().is_some_and(|intake| intake.is_paused()))
        });
        if is_paused != Some(true) {
            let bytes = std::mem::take(&mut stream.unread_bytes);
            session.machine.consumed(id, bytes, self.output.bytes());
        }
    }

    /// Readers of bodies have caught up.
    pub(crate) fn read_on_h2(&mut self, key: Key, connection: &mut Connection) -> Fate {
        self.with_session(connection, |serving, connection, session| {
            let records_at = serving.records.len();
            serving.notice_readers(session);
            serving.give_all_credit(session);
            let fate = match connection.is_sending() {
                // What was encoded now is queued behind the rest: it must not stay for the next connection.
                true => serving.send_visit(key, connection, session, records_at),
                false => serving.run_session(key, connection, session),
            };
            // The last stream may have ended.
            serving.set_deadline(connection, session);
            fate
        })
    }

    /// Readers of bodies want the first byte, or have dropped a body whose response was sent.
    fn notice_readers(&mut self, session: &mut Session) {
        // From the last: one that ends moves those behind it.
        for at in (0..session.streams.len()).rev() {
            let Some((id, stream)) = session.streams.get(at).map(|(id, stream)| (*id, stream)) else {
                continue;
            };
            if stream.waits {
                self.proceed_h2(session, id);
            } else if stream.reads_on && !self.is_held(stream.exchange) {
                self.end_stream(session, id, Outcome::Sent);
            }
        }
    }

    /// Whether somebody holds the body of an exchange's request.
    pub(super) fn is_held(&self, exchange: Option<Key>) -> bool {
        let is_held = |key| self.lane.with(key, |it| it.intake.as_ref().is_some_and(Intake::is_held));
        exchange.and_then(is_held).unwrap_or(false)
    }

    pub(super) fn give_all_credit(&mut self, session: &mut Session) {
        for at in 0..session.streams.len() {
            if let Some((id, stream)) = session.streams.get(at)
                && stream.unread_bytes > 0
            {
                let id = *id;
                self.give_credit(session, id);
            }
        }
    }
}

const OVERLOADED: Refusal = Refusal {
    status: flatout_wire::Status::SERVICE_UNAVAILABLE,
    reason: "the server has no memory left for request bodies; try again",
};
