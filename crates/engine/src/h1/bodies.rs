//! Bodies of requests on their way in.

use flatout_lane::clock;
use flatout_lane::slab::Key;
use flatout_wire::h1::{Piece, Refusal, Trailers};

use super::{Fate, Serving, Step};
use crate::connection::Connection;
use crate::exchange::{Fed, Intake};

/// How long a request's body may wait for memory before the answer is 503.
const STARVED_TIME_MAX: std::time::Duration = std::time::Duration::from_secs(5);

impl Serving {
    /// Bytes of a body at `read[at..end]`.
    pub(super) fn body(&mut self, key: Key, connection: &mut Connection, at: usize, end: usize) -> Step {
        if !self.takes_body(connection) {
            return Step::Partial;
        }
        if !self.make_room(key, connection, end - at) {
            return Step::Partial;
        }
        let bytes = self.read.get(at..end).unwrap_or_default();
        let mut trailers = Vec::new();
        let mut used = 0;
        loop {
            let rest = bytes.get(used..).unwrap_or_default();
            let (taken, piece) = match connection.machine.body(rest, &mut trailers) {
                Ok(stepped) => stepped,
                Err(refusal) => return self.broken_body(connection, refusal, end - at),
            };
            used += taken;
            match piece {
                Piece::NeedMore => break,
                Piece::End => {
                    note_received(connection, used);
                    return self.whole_body(key, connection, used, trailers, at + used == end);
                }
                Piece::Data(data) => {
                    match self.with_intake(connection, |intake| intake.feed(data)) {
                        // The end of the body, if it has come, is not the reader's to wait for.
                        Some(Ok(Fed::Paused)) if connection.machine.length_left() != Some(0) => break,
                        Some(Ok(_)) | None => {}
                        Some(Err(fault)) => {
                            connection.machine.give_up();
                            return self.broken_body(connection, fault.refusal(), end - at);
                        }
                    }
                }
            }
        }
        note_received(connection, used);
        if used == 0 { Step::Partial } else { Step::Used(used) }
    }

    /// Does something with the intake of the connection's exchange, if it has one.
    pub(super) fn with_intake<T>(
        &self,
        connection: &Connection,
        act: impl FnOnce(&mut Intake) -> T,
    ) -> Option<T> {
        self.lane.with(connection.exchange?, |exchange| exchange.intake.as_mut().map(act)).flatten()
    }

    /// Makes memory for bytes of a body that is collected; where there is none, the connection waits.
    fn make_room(&mut self, key: Key, connection: &mut Connection, bytes: usize) -> bool {
        let has_room = self.with_intake(connection, |intake| intake.make_room(bytes)).unwrap_or(true);
        if !has_room && !connection.work().is_starved {
            connection.work().is_starved = true;
            connection.deadline = self.now.ticks + clock::ticks(STARVED_TIME_MAX);
            self.starved.push(key);
        } else if has_room && connection.work().is_starved {
            connection.work().is_starved = false;
            self.begin_window(connection);
        }
        has_room
    }

    /// A body that waits for memory goes on if there is some, and waits on otherwise.
    pub(crate) fn feed_starved(&mut self, key: Key, connection: &mut Connection) -> Fate {
        let Some(work) = connection.work.as_ref().filter(|work| work.is_starved) else { return Fate::Keep };
        let held_bytes = work.held.len();
        if !self.make_room(key, connection, held_bytes) {
            self.starved.push(key);
            return Fate::Keep;
        }
        self.resume(key, connection)
    }

    /// A body that cannot be read on. If its request was not served yet, it is refused; else its reader was told, and the
    /// response, begun or still to come, is the last.
    fn broken_body(&mut self, connection: &mut Connection, refusal: Refusal, used: usize) -> Step {
        connection.readable = true;
        let is_called = match connection.exchange {
            None => false,
            Some(key) => {
                let was = self.lane.with(key, |exchange| {
                    (exchange.is_called, exchange.intake.take().inspect(Intake::spoil))
                });
                was.is_some_and(|(is_called, _)| is_called)
            }
        };
        if !is_called && connection.machine.owes_response() {
            self.close_exchange(connection);
            return self.refuse(connection, refusal, used);
        }
        Step::Used(used)
    }

    /// A body that has come to its end.
    fn whole_body(
        &mut self,
        key: Key,
        connection: &mut Connection,
        used: usize,
        trailers: Trailers,
        nothing_behind: bool,
    ) -> Step {
        let Some(exchange) = connection.exchange else {
            return Step::Used(used);
        };
        let intake = self.lane.with(exchange, |exchange| exchange.intake.take()).flatten();
        let whole = intake.and_then(|intake| intake.finish(trailers));
        if let Some((whole, trailers)) = whole {
            self.whole_request(key, connection, &whole, &trailers, nothing_behind);
        }
        Step::Used(used)
    }
}

fn note_received(connection: &mut Connection, bytes: usize) {
    let work = connection.work();
    work.moved_bytes += bytes as u64;
    if let Some(open) = &mut work.open {
        open.received_bytes += bytes as u64;
    }
}
