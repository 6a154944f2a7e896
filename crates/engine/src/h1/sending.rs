//! Sends encoded responses.

use flatout_lane::clock;
use flatout_lane::slab::Key;
use flatout_wire::h1::Wants;

use super::{Fate, Sending, Serving, Staged};
use crate::connection::Connection;
use crate::exchange::GuestEvent;
use crate::output::{Drained, Piece};
use crate::readers::Job;
use crate::record::end_all;
use crate::service::{ExchangeKey, Outcome};

impl Serving {
    /// The socket has room again.
    pub(crate) fn writable(&mut self, key: Key, connection: &mut Connection) -> Fate {
        let Some(work) = connection.work.as_mut() else { return Fate::Keep };
        if work.queue.is_empty() {
            return Fate::Keep;
        }
        let before = work.queue.bytes();
        let drained = self.drain(key, connection);
        let work = connection.work();
        work.moved_bytes += before - work.queue.bytes();
        self.note_unsent(connection);
        match drained {
            Drained::All => {
                let records_at = self.records.len();
                self.sent(connection, records_at);
                if connection.is_h2() {
                    return Fate::Keep;
                }
                match self.settle(connection) {
                    Fate::Keep => self.go_on(key, connection),
                    fate => fate,
                }
            }
            Drained::Full | Drained::Cold => Fate::Keep,
            Drained::Yield => Fate::Again,
            Drained::Broken => Fate::Close(Outcome::ClientGone),
        }
    }

    /// Sends the queue. Parts that are not in memory are first read by other threads.
    fn drain(&mut self, key: Key, connection: &mut Connection) -> Drained {
        let work = connection.work.get_or_insert_default();
        loop {
            if work.is_warming {
                return Drained::Cold;
            }
            match work.queue.drain(&mut connection.transport) {
                Drained::Cold => {}
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

    /// The file that a connection sends is in memory up to this offset.
    pub(crate) fn warmed(&mut self, key: Key, connection: &mut Connection, until: u64) -> Fate {
        let Some(work) = connection.work.as_mut().filter(|work| work.is_warming) else { return Fate::Keep };
        work.is_warming = false;
        work.queue.trust(until);
        self.begin_window(connection);
        match self.writable(key, connection) {
            Fate::Keep if connection.is_h2() => self.visit_h2(key, connection),
            fate => fate,
        }
    }

    /// Sends the output of this visit, or leaves it for the end of the stage, and continues.
    #[inline]
    pub(super) fn finish_visit(
        &mut self,
        key: Key,
        connection: &mut Connection,
        records_at: usize,
        sending: Sending,
    ) -> Fate {
        if self.output.is_empty() {
            // The end of a response may have had no bytes.
            self.note_over(connection, records_at, Drained::All);
            self.note_unsent(connection);
            return self.settle(connection);
        }
        let is_plain =
            connection.machine.is_idle() && connection.exchange.is_none() && !connection.is_sending();
        if sending == Sending::Staged
            && is_plain
            && let Some(span) = self.output.stage()
        {
            connection.rest();
            self.staged.push(Staged { key, span, records: records_at..self.records.len() });
            return Fate::Keep;
        }
        match self.flush(key, connection, records_at) {
            Drained::Broken => Fate::Close(Outcome::ClientGone),
            Drained::Yield => Fate::Again,
            Drained::All | Drained::Full | Drained::Cold => self.settle(connection),
        }
    }

    /// Sends the output of the current connection, after its queue.
    pub(crate) fn flush(&mut self, key: Key, connection: &mut Connection, records_at: usize) -> Drained {
        if self.output.is_empty() {
            return Drained::All;
        }
        let had_queue = connection.is_sending();
        let queued_bytes = connection.work.as_ref().map_or(0, |work| work.queue.bytes());
        let waiting_bytes = queued_bytes + self.output.len();
        let drained = match self.output.send(&mut connection.transport, had_queue) {
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
        self.note_over(connection, records_at, drained);
        self.note_unsent(connection);
        drained
    }

    /// Reports the responses that this visit has completed, or keeps them until the kernel has accepted them.
    #[inline]
    pub(crate) fn note_over(&mut self, connection: &mut Connection, records_at: usize, drained: Drained) {
        if drained == Drained::All && !connection.is_sending() {
            self.sent(connection, records_at);
        } else if self.records.len() > records_at {
            let unsent = self.records.drain(records_at..);
            connection.work().unsent.extend(unsent);
        }
    }

    /// Sends the output that a connection left during the stage.
    #[inline]
    pub(crate) fn flush_staged(&mut self, staged: &Staged, connection: &mut Connection) -> Fate {
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

    /// The kernel has not accepted all of this connection's output: its requests end with another outcome, or later.
    #[cold]
    fn end_staged(&mut self, staged: &Staged, connection: &mut Connection, drained: Drained) {
        let records = self.records.get_mut(staged.records.clone()).unwrap_or_default();
        match drained {
            Drained::All => {}
            Drained::Broken => {
                records.iter_mut().for_each(|record| record.ended.outcome = Outcome::ClientGone);
            }
            Drained::Full | Drained::Yield | Drained::Cold => {
                connection.work().unsent.extend_from_slice(records);
                records.iter_mut().for_each(|record| record.has_moved = true);
            }
        }
    }

    /// The connection of this output is gone.
    #[cold]
    pub(crate) fn forget_staged(&mut self, staged: &Staged) {
        let records = self.records.get_mut(staged.records.clone()).unwrap_or_default();
        records.iter_mut().for_each(|record| record.ended.outcome = Outcome::ClientGone);
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

    /// Reports the requests whose responses the stage has sent, after all of its sends: the clock is read once for
    /// all.
    #[inline(never)]
    fn end_records(&mut self) {
        let now_ns = clock::nanoseconds();
        let records = self.records.iter_mut().filter(|record| !record.has_moved);
        end_all(records, &*self.service, now_ns, &self.now);
        self.records.clear();
    }

    #[cold]
    fn note_first_byte(&mut self, connection: &mut Connection, records_at: usize) {
        let now_ns = clock::nanoseconds();
        let work = connection.work();
        let open = work.open.as_deref_mut().into_iter().filter(|open| open.ended.status.is_some());
        let done = self.records.get_mut(records_at..).unwrap_or_default().iter_mut();
        for record in done.chain(open) {
            record.ended.first_byte_ns.get_or_insert(now_ns);
        }
    }

    /// The kernel has accepted everything: requests with complete responses have ended.
    #[inline]
    fn sent(&mut self, connection: &mut Connection, records_at: usize) {
        if self.wants_ended {
            self.end_sent(connection, records_at);
        }
        connection.rest();
    }

    #[cold]
    fn end_sent(&mut self, connection: &mut Connection, records_at: usize) {
        let unsent =
            connection.work.as_mut().map(|work| std::mem::take(&mut work.unsent)).unwrap_or_default();
        if unsent.is_empty() && self.records.len() == records_at {
            return;
        }
        let now_ns = clock::nanoseconds();
        end_all(
            unsent.into_iter().chain(self.records.drain(records_at..)),
            &*self.service,
            now_ns,
            &self.now,
        );
    }

    /// Updates how much of the exchange's body waits, and notifies producers that wait for room.
    #[inline]
    fn note_unsent(&mut self, connection: &mut Connection) {
        let Some(key) = connection.exchange else { return };
        let unsent = connection.work.as_ref().map_or(0, |work| work.queue.bytes());
        self.note_unsent_of(key, unsent);
    }

    /// The same for one exchange that has `unsent` bytes of its body left to send.
    #[inline]
    pub(crate) fn note_unsent_of(&mut self, key: Key, unsent: u64) {
        let heard = self.lane.with(key, |exchange| {
            exchange.unsent_bytes = unsent;
            match exchange.has_room() {
                true => {
                    let was_refused = std::mem::take(&mut exchange.was_refused);
                    (exchange.room.take(), exchange.guest.filter(|_| was_refused))
                }
                false => (None, None),
            }
        });
        let Some((room, guest)) = heard else { return };
        if let Some(room) = room {
            room.wake();
        }
        if let Some(guest) = guest {
            self.notices.push((guest, GuestEvent::Room(ExchangeKey(key))));
        }
    }

    /// What to do when everything is sent.
    #[inline]
    pub(super) fn settle(&mut self, connection: &mut Connection) -> Fate {
        if connection.is_sending() {
            return Fate::Keep;
        }
        if connection.machine.wants() == Wants::Nothing {
            return match connection.work.as_mut().and_then(|work| work.takeover.take()) {
                Some(takeover) => Fate::Take(takeover),
                None if connection.is_cut() => Fate::Close(Outcome::Failed),
                None => self.finish(connection),
            };
        }
        connection.rest();
        // The last response was sent before the drain started, and the rest of its request was read only now.
        if self.draining && connection.is_at_rest() && !connection.readable {
            return self.finish_draining(connection);
        }
        Fate::Keep
    }
}
