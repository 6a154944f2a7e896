//! What is recorded of requests, for [`Service::ended`](crate::Service::ended): filled in as bytes are encoded and
//! sent, and reported when the kernel has accepted the whole response.

use flatout_lane::clock;
use flatout_wire::Status;

use super::{Serving, StagedOutput};
use crate::connection::Connection;
use crate::output::Drained;
use crate::record::{Record, end_all};
use crate::service::Outcome;

impl Serving {
    #[inline]
    pub(crate) fn note_response(
        &mut self,
        connection: &mut Connection,
        status: Status,
        note: u64,
        before: u64,
    ) {
        let sent_bytes = self.output.len() - before;
        let head_bytes = self.output.head_ends_at().saturating_sub(before).min(sent_bytes);
        if let Some(open) = self.open_record(connection) {
            open.ended.status = Some(status);
            open.ended.note = note;
            open.ended.sent_bytes += sent_bytes;
            open.ended.sent_head_bytes = head_bytes as u32;
        }
    }

    /// Counts the encoded bytes of the current response.
    #[inline]
    pub(crate) fn note_sent(&mut self, connection: &mut Connection, before: u64) {
        let sent_bytes = self.output.len() - before;
        if let Some(open) = self.open_record(connection) {
            open.ended.sent_bytes += sent_bytes;
        }
    }

    /// The current request has to wait: its record moves to the connection.
    #[inline]
    pub(crate) fn store_open_record(&mut self, connection: &mut Connection) {
        if std::mem::take(&mut self.has_open) {
            connection.work().open = self.records.pop().map(Box::new);
        }
    }

    /// The record of the current request: in place, or moved to its connection.
    #[inline]
    pub(crate) fn open_record<'a>(&'a mut self, connection: &'a mut Connection) -> Option<&'a mut Record> {
        match self.has_open {
            true => self.records.last_mut(),
            false => connection.work.as_mut().and_then(|work| work.open.as_deref_mut()),
        }
    }

    /// Moves the record of the current request to the finished ones. Returns whether there was one.
    #[inline]
    pub(crate) fn close_record(&mut self, connection: &mut Connection) -> bool {
        if std::mem::take(&mut self.has_open) {
            return true;
        }
        let open = connection.work.as_mut().and_then(|work| work.open.take());
        let was_there = open.is_some();
        self.records.extend(open.map(|open| *open));
        was_there
    }

    /// Whether there is nothing left to record for a request whose response was encoded: records are not wanted, or
    /// its record is already among the finished ones.
    #[inline]
    pub(crate) fn has_no_open_record(&mut self) -> bool {
        !self.wants_ended || std::mem::take(&mut self.has_open)
    }

    /// Reports the responses that this visit has completed, or keeps them until the kernel has accepted them.
    #[inline]
    pub(crate) fn note_complete(&mut self, connection: &mut Connection, records_at: usize, drained: Drained) {
        if drained == Drained::All && !connection.is_sending() {
            self.sent(connection, records_at);
        } else if self.records.len() > records_at {
            let unsent = self.records.drain(records_at..);
            connection.work().unsent.extend(unsent);
        }
    }

    #[cold]
    pub(crate) fn note_first_byte(&mut self, connection: &mut Connection, records_at: usize) {
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
    pub(crate) fn sent(&mut self, connection: &mut Connection, records_at: usize) {
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

    /// The kernel has not accepted all of this connection's output: its requests end with another outcome, or later.
    #[cold]
    pub(crate) fn end_staged(
        &mut self,
        staged: &StagedOutput,
        connection: &mut Connection,
        drained: Drained,
    ) {
        let records = self.records.get_mut(staged.records.clone()).unwrap_or_default();
        match drained {
            Drained::All => {}
            Drained::Broken => {
                records.iter_mut().for_each(|record| record.ended.outcome = Outcome::ClientGone);
            }
            Drained::Full | Drained::Yield | Drained::Cold | Drained::Held => {
                connection.work().unsent.extend_from_slice(records);
                records.iter_mut().for_each(|record| record.has_moved = true);
            }
        }
    }

    /// The connection of this output is gone.
    #[cold]
    pub(crate) fn forget_staged(&mut self, staged: &StagedOutput) {
        let records = self.records.get_mut(staged.records.clone()).unwrap_or_default();
        records.iter_mut().for_each(|record| record.ended.outcome = Outcome::ClientGone);
    }

    /// Reports the requests whose responses the stage has sent, after all of its sends: the clock is read once for
    /// all.
    #[inline(never)]
    pub(crate) fn end_records(&mut self) {
        let now_ns = clock::nanoseconds();
        let records = self.records.iter_mut().filter(|record| !record.has_moved);
        end_all(records, &*self.service, now_ns, &self.now);
        self.records.clear();
    }
}
