//! Sends encoded responses.

use flatout_lane::slab::Key;

use super::{Fate, Serving, StagedOutput};
use crate::connection::{Connection, Work};
use crate::output::{Drained, Piece};
use crate::readers::Job;
use crate::service::Outcome;

impl Serving {
    /// Sends the queue of a connection whose socket has room again.
    pub(crate) fn send_queue(&mut self, key: Key, connection: &mut Connection) -> Drained {
        let before = connection.work().queue.bytes();
        let drained = self.drain(key, connection);
        let work = connection.work();
        work.moved_bytes += before - work.queue.bytes();
        self.note_unsent(connection);
        if drained == Drained::All {
            let records_at = self.records.len();
            self.sent(connection, records_at);
        }
        drained
    }

    /// Sends the queue. Parts that are not in memory are first read by other threads.
    fn drain(&mut self, key: Key, connection: &mut Connection) -> Drained {
        let work = connection.work.get_or_insert_default();
        loop {
            if work.is_warming {
                return Drained::Cold;
            }
            let bytes_max = work.pace.as_mut().map_or(u64::MAX, |pace| pace.bytes(self.now.ticks));
            let before = work.queue.bytes();
            let drained = work.queue.drain(&mut connection.transport, bytes_max);
            if let Some(pace) = &mut work.pace {
                pace.spend(before - work.queue.bytes());
            }
            match drained {
                Drained::Cold => {}
                Drained::Held => {
                    self.hold_back(key, work);
                    return drained;
                }
                drained => return drained,
            }
            let mailbox = self.mailbox.clone();
            let job = work.queue.cold().map(|(file, offset, bytes)| Job {
                file,
                offset,
                bytes,
                connection: key,
                mailbox,
            });
            match job.is_some_and(|job| self.readers.read(job)) {
                true => work.is_warming = true,
                false => work.queue.trust_little(),
            }
        }
    }

    /// Lists a connection for the next tick.
    pub(crate) fn hold_back(&mut self, key: Key, work: &mut Work) {
        if !std::mem::replace(&mut work.is_held_back, true) {
            self.held_back.push(key);
        }
    }

    /// Sends the output of the current connection, after its queue.
    pub(crate) fn flush(&mut self, key: Key, connection: &mut Connection, records_at: usize) -> Drained {
        if self.output.is_empty() {
            return Drained::All;
        }
        let had_queue = connection.is_sending();
        let is_paced = connection.is_paced();
        let queued_bytes = connection.work.as_ref().map_or(0, |work| work.queue.bytes());
        let waiting_bytes = queued_bytes + self.output.len();
        let drained = match self.output.send(&mut connection.transport, had_queue || is_paced) {
            // Usually the socket accepts everything, and the connection has nothing to keep.
            Some((drained, None)) => drained,
            Some((drained, Some(rest))) => {
                connection.work().queue.push(Piece::Bytes(rest));
                drained
            }
            None => {
                self.output.move_to(&mut connection.work().queue);
                self.drain(key, connection)
            }
        };
        if let Some(work) = &mut connection.work {
            work.moved_bytes += waiting_bytes - work.queue.bytes();
            if !work.queue.is_empty() && !had_queue {
                work.unacknowledged_bytes = None;
                self.begin_window(connection);
            }
        }
        if self.wants_ended {
            self.note_first_byte(connection, records_at);
        }
        self.note_complete(connection, records_at, drained);
        self.note_unsent(connection);
        drained
    }

    /// Sends the output that a connection left during the stage.
    #[inline]
    pub(crate) fn flush_staged(&mut self, staged: &StagedOutput, connection: &mut Connection) -> Fate {
        let (drained, rest) = self.output.send_span(staged.span.clone(), &mut connection.transport);
        if let Some(rest) = rest {
            connection.work().queue.push(Piece::Bytes(rest));
            self.begin_window(connection);
        }
        if self.wants_ended && drained != Drained::All {
            self.end_staged(staged, connection, drained);
        }
        match drained {
            Drained::Broken => Fate::Close(Outcome::ClientGone),
            // Held requests wait until after the stage, unsent bytes for the socket's room.
            _ if connection.is_holding() && !connection.is_sending() => Fate::Again,
            _ => Fate::Keep,
        }
    }

    /// Ends a stage: everything was sent.
    #[inline]
    pub(crate) fn clear_stage(&mut self) {
        self.staged.clear();
        if !self.records.is_empty() {
            self.end_records();
        }
        self.output.clear();
    }

    /// Updates how much of the exchange's body waits, and notifies producers that wait for room.
    #[inline]
    pub(crate) fn note_unsent(&mut self, connection: &mut Connection) {
        let Some(key) = connection.exchange else { return };
        let unsent = connection.work.as_ref().map_or(0, |work| work.queue.bytes());
        self.note_unsent_of(key, unsent);
    }

    /// Drops what was encoded for a connection that is gone.
    pub(crate) fn forget_output(&mut self) {
        self.output.forget();
    }
}
