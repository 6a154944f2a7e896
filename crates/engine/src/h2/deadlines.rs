//! How connections end: by deadlines, by leaving, by the client.

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

impl Serving {
    /// Sets the next deadline of the connection, and refills its budgets as time passes.
    pub(super) fn set_deadline(&mut self, connection: &mut Connection, session: &mut Session) {
        if connection.lingering.is_some() {
            return;
        }
        let now = self.now.ticks;
        let second = clock::ticks(Duration::from_secs(1));
        while now.saturating_sub(session.refilled_at) >= second {
            session.refilled_at += second;
            session.machine.refill();
            if now.saturating_sub(session.refilled_at) > 10 * second {
                session.refilled_at = now;
            }
        }
        if self.draining {
            // Frames of the client do not move it to a later time.
            connection.deadline = connection.deadline.min(now + clock::ticks(LEAVE_TIME_MAX));
            return;
        }
        if session.machine.streams_count() > 0 {
            // The rate window begins with the first stream; the rate is judged when the window ends.
            if session.is_beginning || connection.deadline > now + self.window_ticks {
                self.begin_rate(connection, session);
            }
            session.is_beginning = false;
            return;
        }
        if is_at_rest(connection, session) {
            session.is_beginning = false;
            session.idle_until = now + self.idle_ticks;
            connection.deadline = now + self.idle_ticks.min(clock::ticks(REST_TIME));
        } else if !std::mem::replace(&mut session.is_beginning, true) {
            connection.deadline = now + self.head_ticks;
        }
    }

    fn begin_rate(&self, connection: &mut Connection, session: &mut Session) {
        self.begin_window(connection);
        session.content_bytes = 0;
    }

    /// A deadline has passed.
    pub(crate) fn expire_h2(&mut self, key: Key, connection: &mut Connection) -> Fate {
        if connection.lingering.is_some() {
            return Fate::Close(Outcome::TimedOut);
        }
        self.with_session(connection, |serving, connection, session| {
            serving.expire_session(key, connection, session)
        })
    }

    fn expire_session(&mut self, key: Key, connection: &mut Connection, session: &mut Session) -> Fate {
        let records_at = self.records.len();
        if session.machine.streams_count() == 0 {
            if !connection.is_sending() {
                session.rest();
                connection.work().queue = Queue::default();
                let is_at_rest = is_at_rest(connection, session);
                if is_at_rest && !self.draining && session.idle_until > self.now.ticks {
                    connection.deadline = session.idle_until;
                    return Fate::Keep;
                }
                self.begin_rate(connection, session);
                match is_at_rest || self.draining {
                    true => session.machine.leave_now(self.output.bytes()),
                    false => session.machine.close(Code::SETTINGS_TIMEOUT, "too slow", self.output.bytes()),
                }
                return self.send_visit(key, connection, session, records_at);
            }
        } else if self.draining {
            session.machine.leave_now(self.output.bytes());
        }
        for id in session.overdue_lingerers() {
            self.end_stream(session, id, Outcome::Sent);
        }
        if session.machine.streams_count() == 0 {
            self.set_deadline(connection, session);
            return self.send_visit(key, connection, session, records_at);
        }
        if self.is_fast_enough(connection, session) {
            self.begin_rate(connection, session);
            return self.send_visit(key, connection, session, records_at);
        }
        self.end_streams(session, Outcome::TimedOut);
        session.machine.close(Code::ENHANCE_YOUR_CALM, "too slow", self.output.bytes());
        match self.send_visit(key, connection, session, records_at) {
            // The client gets a chance to read the reason.
            Fate::Keep if connection.lingering.is_some() => Fate::Keep,
            _ => Fate::Close(Outcome::TimedOut),
        }
    }

    /// Whether the client sends and receives content fast enough, if we are waiting for it. Only content
    /// counts: a client that keeps its windows closed cannot stay by sending frames without effect.
    fn is_fast_enough(&self, connection: &mut Connection, session: &Session) -> bool {
        // A client that waits for our disk is not slow.
        let is_warming = connection.work().is_warming;
        let is_sending = connection.is_sending() && !is_warming;
        let taken = acknowledged_bytes(connection, is_sending);
        if is_sending {
            return taken.is_none_or(|taken| self.is_enough(connection, taken));
        }
        let takes = |exchange: &mut Exchange| {
            exchange.intake.as_ref().is_some_and(|intake| !intake.is_paused() && !intake.has_ended())
        };
        let is_receiving = session.streams.iter().any(|(_, stream)| {
            // A WebSocket may be silent: its owner has its own timeouts.
            !stream.is_websocket
                && stream.exchange.is_some_and(|exchange| self.lane.with(exchange, takes).unwrap_or(false))
        });
        let is_awaited = is_receiving || (session.machine.is_stalled() && !is_warming);
        !is_awaited || self.is_enough(connection, session.content_bytes)
    }

    /// Ends all streams of a connection that is gone.
    pub(crate) fn end_streams(&mut self, session: &mut Session, outcome: Outcome) {
        let records_at = self.records.len();
        while let Some((id, _)) = session.streams.last() {
            let id = *id;
            self.end_stream(session, id, outcome);
        }
        self.output.forget();
        if self.records.len() > records_at {
            let now_ns = clock::nanoseconds();
            for mut record in self.records.drain(records_at..) {
                let outcome = record.ended.outcome;
                record.end(&*self.service, outcome, now_ns, &self.now);
            }
        }
    }
}

/// Whether the connection only waits for the next request.
fn is_at_rest(connection: &Connection, session: &Session) -> bool {
    session.machine.is_idle() && session.machine.has_begun() && !connection.is_holding()
}
