//! How connections end: by deadlines, after the last response, by the client.

use std::num::NonZeroU32;

use flatout_lane::clock::{self, Ticks};
use flatout_lane::slab::Key;
use flatout_lane::socket::Moved;
use flatout_wire::Status;
use flatout_wire::h1::{Refusal, Wants};

use super::{Fate, Sending, Serving};
use crate::connection::Connection;
use crate::record::Record;
use crate::service::{BodyFault, Outcome};

/// Bytes discarded after the last response, so that the client can read it before the connection is reset.
const LINGER_BYTES_MAX: NonZeroU32 = NonZeroU32::new(1 << 20).unwrap();

/// How long this may take.
const LINGER_TIME_MAX: std::time::Duration = std::time::Duration::from_secs(2);

/// How long a new connection may take to send its first request while the server drains. Its client has only just
/// connected, and does not expect it to be closed.
const FIRST_REQUEST_TIME_MAX: std::time::Duration = std::time::Duration::from_secs(1);

impl Serving {
    /// Closes a connection at rest while the server drains; one that has not sent a request yet may still do so.
    pub(crate) fn finish_draining(&mut self, connection: &mut Connection) -> Fate {
        if connection.requests_left < self.requests_max {
            return self.finish(connection);
        }
        connection.deadline = connection.deadline.min(self.first_request_deadline());
        Fate::Keep
    }

    /// When a new connection must have sent its first request while the server drains.
    pub(super) fn first_request_deadline(&self) -> Ticks {
        self.now.ticks + clock::ticks(FIRST_REQUEST_TIME_MAX)
    }

    /// A deadline has passed.
    pub(crate) fn expire(&mut self, key: Key, connection: &mut Connection) -> Fate {
        if connection.is_h2() {
            return self.expire_h2(key, connection);
        }
        if connection.lingering.is_some() || connection.transport.is_shaking() {
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
        let receiving = connection.machine.wants() == Wants::Body && self.wants_body_now(connection);
        let taken = taken_bytes(connection, sending);
        if (!sending && !receiving) || taken.is_none_or(|taken| self.is_enough(connection, taken)) {
            self.begin_window(connection);
            return Fate::Keep;
        }
        if !sending && self.awaits_body(connection) {
            return self.refuse_now(key, connection, SLOW_BODY);
        }
        Fate::Close(Outcome::TimedOut)
    }

    /// Whether this is enough bytes since the rate was last checked.
    pub(crate) fn is_enough(&self, connection: &mut Connection, bytes: u64) -> bool {
        let ticks = self.now.ticks.saturating_sub(connection.work().judged_at);
        let seconds = f64::from(ticks) * clock::TICK.as_secs_f64();
        bytes as f64 >= self.limits.rate_min_bytes_per_s as f64 * seconds
    }

    fn wants_body_now(&self, connection: &Connection) -> bool {
        !self.with_intake(connection, |intake| intake.is_paused()).unwrap_or(false)
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
            let (teller, began_ns) = (self.wants_begun.then_some(&*self.service), self.began_ns());
            let peer = connection.peer;
            self.records.push(Record::refused(teller, &connection.work().held, peer, began_ns));
            self.has_open = true;
        }
        self.refuse(connection, refusal, 0);
        if let Some(work) = connection.work.as_mut() {
            work.held = Vec::new();
            work.is_starved = false;
        }
        self.finish_visit(key, connection, records_at, Sending::AtOnce)
    }

    /// Ends the connection after its last response. Closing a socket with unread input resets the connection, and the
    /// reset may overtake the response. So only our side is shut down, and input is discarded for a while, until the
    /// client has closed too.
    pub(crate) fn finish(&mut self, connection: &mut Connection) -> Fate {
        let unread = connection.readable || connection.is_holding();
        if !unread && (connection.client_closes || connection.read_closed) {
            connection.transport.end();
            return Fate::Close(Outcome::Sent);
        }
        self.close_exchange(connection);
        connection.machine.close();
        connection.work = None;
        connection.lingering = Some(LINGER_BYTES_MAX);
        connection.deadline = self.now.ticks + clock::ticks(LINGER_TIME_MAX);
        connection.transport.shut_down();
        // Input is received in a separate turn: in this one the read buffer may hold requests of others.
        if connection.readable { Fate::Again } else { Fate::Keep }
    }

    pub(crate) fn throw_away(&mut self, connection: &mut Connection) -> Fate {
        while connection.readable {
            match connection.transport.receive(&mut self.read) {
                Moved::Bytes(0) | Moved::Broken => return Fate::Close(Outcome::Sent),
                Moved::WouldBlock => connection.readable = false,
                Moved::Bytes(read) => {
                    let left = connection.lingering.map_or(0, NonZeroU32::get).saturating_sub(read as u32);
                    connection.lingering = NonZeroU32::new(left);
                    if left == 0 {
                        return Fate::Close(Outcome::Sent);
                    }
                    connection.readable = read == self.read.len() || connection.read_closed;
                }
            }
        }
        Fate::Keep
    }

    /// The connection is gone: its pending work is dropped.
    pub(crate) fn closed(&mut self, connection: &mut Connection, outcome: Outcome) {
        self.spoil_body(connection, why_incomplete(outcome));
        self.close_exchange(connection);
        if let Some(mut session) = connection.take_session() {
            self.end_streams(&mut session, outcome);
        }
        // A truncated response must not look complete.
        if connection.machine.is_idle() && !connection.is_sending() {
            connection.transport.end();
        }
        if !self.wants_ended {
            return;
        }
        if let Some(mut work) = connection.work.take()
            && (work.open.is_some() || !work.unsent.is_empty())
        {
            let now_ns = clock::nanoseconds();
            for record in work.unsent.iter_mut().chain(work.open.as_deref_mut()) {
                record.end(&*self.service, outcome, now_ns, &self.now);
            }
        }
    }

    /// Drops what was encoded for a connection that is gone.
    pub(crate) fn forget_output(&mut self) {
        self.output.forget();
    }
}

/// What the reader of a body learns when its connection or stream ends like this.
pub(crate) fn why_incomplete(outcome: Outcome) -> BodyFault {
    match outcome {
        Outcome::TimedOut => BodyFault::TooSlow,
        Outcome::Stopped => BodyFault::Stopped,
        Outcome::Sent => BodyFault::Responded,
        Outcome::ClientGone | Outcome::Refused | Outcome::Failed | Outcome::Taken => BodyFault::Aborted,
    }
}

/// Bytes that were moved since the rate was last checked. When sending, only those that the peer has acknowledged: a
/// send buffer may be full, and report no room, while its reader steadily continues. `None`: a response is measured
/// from its own start, not from a time when there was nothing to send.
pub(crate) fn taken_bytes(connection: &mut Connection, is_sending: bool) -> Option<u64> {
    let waiting = if is_sending { connection.transport.unacknowledged_bytes() } else { 0 };
    let work = connection.work();
    let before = std::mem::replace(&mut work.unacknowledged_bytes, is_sending.then_some(waiting));
    if is_sending && before.is_none() {
        return None;
    }
    Some((work.moved_bytes + before.unwrap_or(waiting)).saturating_sub(waiting))
}

const SLOW_HEAD: Refusal =
    Refusal { status: Status::REQUEST_TIMEOUT, reason: "the request head was not received in time" };

const SLOW_BODY: Refusal =
    Refusal { status: Status::REQUEST_TIMEOUT, reason: "the request body was received too slowly" };

const OVERLOADED: Refusal = Refusal {
    status: Status::SERVICE_UNAVAILABLE,
    reason: "the server has no memory left for request bodies; try again later",
};
