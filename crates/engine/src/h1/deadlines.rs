//! What happens when the deadline of a connection has passed.

use flatout_lane::slab::Key;
use flatout_wire::Status;
use flatout_wire::h1::{Refusal, Wants};

use crate::connection::Connection;
use crate::record::Record;
use crate::service::Outcome;
use crate::serving::{Fate, FlushTime, Serving, acknowledged_bytes};

impl Serving {
    /// A deadline has passed.
    pub(crate) fn expire_h1(&mut self, key: Key, connection: &mut Connection) -> Fate {
        if connection.lingering.is_some() || connection.transport.is_handshaking() {
            return Fate::Close(Outcome::TimedOut);
        }
        if connection.work.as_ref().is_some_and(|work| work.is_starved) {
            return self.refuse_now(key, connection, OVERLOADED);
        }
        if connection.machine.is_idle() && !connection.is_sending() {
            return match connection.is_holding() {
                true => self.refuse_now(key, connection, SLOW_HEAD),
                false => self.finish(connection),
            };
        }
        self.judge(key, connection)
    }

    /// Checks whether the peer sends or receives fast enough.
    fn judge(&mut self, key: Key, connection: &mut Connection) -> Fate {
        // A client that waits for our disk is not slow.
        let is_warming = connection.work.as_ref().is_some_and(|work| work.is_warming);
        let sending = connection.is_sending() && !is_warming;
        let receiving = connection.machine.wants() == Wants::Body && self.takes_body(connection);
        let taken = acknowledged_bytes(connection, sending);
        if (!sending && !receiving) || taken.is_none_or(|taken| self.is_enough(connection, taken)) {
            self.begin_window(connection);
            return Fate::Keep;
        }
        if !sending && self.awaits_body(connection) {
            return self.refuse_now(key, connection, SLOW_BODY);
        }
        Fate::Close(Outcome::TimedOut)
    }

    /// Whether the service was not called yet, because it waits for the body.
    fn awaits_body(&self, connection: &Connection) -> bool {
        self.with_intake(connection, |intake| intake.is_awaited()).unwrap_or(false)
    }

    /// Refuses a request after a time limit.
    fn refuse_now(&mut self, key: Key, connection: &mut Connection, refusal: Refusal) -> Fate {
        let records_at = self.records.len();
        connection.machine.give_up();
        if self.wants_ended && connection.work().open.is_none() {
            let (recorder, began_ns) = (self.wants_begun.then_some(&*self.service), self.began_ns());
            let peer = connection.peer;
            self.records.push(Record::refused(recorder, &connection.work().held, (peer, None), began_ns));
            self.has_open = true;
        }
        self.refuse(connection, refusal, 0);
        if let Some(work) = connection.work.as_mut() {
            work.held = Vec::new();
            work.is_starved = false;
        }
        self.finish_visit(key, connection, records_at, FlushTime::AtOnce)
    }
}

const SLOW_HEAD: Refusal =
    Refusal { status: Status::REQUEST_TIMEOUT, reason: "the request head was not received in time" };

const SLOW_BODY: Refusal =
    Refusal { status: Status::REQUEST_TIMEOUT, reason: "the request body was received too slowly" };

const OVERLOADED: Refusal = Refusal {
    status: Status::SERVICE_UNAVAILABLE,
    reason: "the server has no memory left for request bodies; try again later",
};
