//! What is noted of a request while it is served, for [`Service::ended`]; nothing where nobody wants it.
//!
//! A record is a few numbers. What was asked is the service's to keep: it sees the head in [`Service::begun`].

use std::borrow::BorrowMut;
use std::panic::{AssertUnwindSafe, catch_unwind};

use flatout_lane::clock::Moment;
use flatout_wire::Head;

use crate::connection::Peer;
use crate::service::{Begun, Ended, Outcome, Service};

/// A request so far: what will be handed over, in place. Until then its outcome is what it will be if all is sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Record {
    pub(crate) ended: Ended,
    /// A copy of it has gone to its connection, and is handed over later.
    pub(crate) has_moved: bool,
}

impl Record {
    #[inline]
    fn new(received_bytes: usize, began_ns: u64, mark: u64, outcome: Outcome) -> Record {
        let ended = Ended {
            status: None,
            received_bytes: received_bytes as u64,
            sent_bytes: 0,
            sent_head_bytes: 0,
            began_ns,
            first_byte_ns: None,
            ended_ns: 0,
            unix_ns: 0,
            outcome,
            mark,
            note: 0,
        };
        Record { ended, has_moved: false }
    }

    /// Of a request whose head was read. `teller` is who wants to see it, if anybody does.
    #[inline]
    pub(crate) fn of(teller: Option<&dyn Service>, head: &Head<'_>, peer: Peer, began_ns: u64) -> Record {
        let mark = match teller {
            Some(service) => begun(service, &Begun { head: Some(head), refused: b"", peer: peer.address() }),
            None => 0,
        };
        Record::new(head.len(), began_ns, mark, Outcome::Sent)
    }

    /// Of bytes that are no request.
    pub(crate) fn refused(teller: Option<&dyn Service>, refused: &[u8], peer: Peer, began_ns: u64) -> Record {
        let mark = match teller {
            Some(service) => begun(service, &Begun { head: None, refused, peer: peer.address() }),
            None => 0,
        };
        Record::new(refused.len(), began_ns, mark, Outcome::Refused)
    }

    /// Hands it over: the request is over.
    pub(crate) fn end(&mut self, service: &dyn Service, outcome: Outcome, now_ns: u64, now: &Moment) {
        self.ended.outcome = outcome;
        self.close(now_ns, now);
        let _ = catch_unwind(AssertUnwindSafe(|| service.ended(&self.ended)));
    }

    #[inline]
    fn close(&mut self, now_ns: u64, now: &Moment) {
        self.ended.ended_ns = now_ns;
        self.ended.unix_ns = now_ns + now.unix_offset_ns;
    }
}

/// Hands over requests whose responses were sent, or whose clients went away before. A service that panics has said what it had
/// to of that request; the next ones are handed over all the same.
#[inline]
pub(crate) fn end_all<R: BorrowMut<Record>>(
    mut records: impl Iterator<Item = R>,
    service: &dyn Service,
    now_ns: u64,
    now: &Moment,
) {
    let mut end_rest = || {
        for mut record in records.by_ref() {
            let record = record.borrow_mut();
            if record.ended.outcome != Outcome::ClientGone {
                record.ended.first_byte_ns.get_or_insert(now_ns);
            }
            record.close(now_ns, now);
            service.ended(&record.ended);
        }
    };
    while catch_unwind(AssertUnwindSafe(&mut end_rest)).is_err() {}
}

/// Has the service look at what has come. Where it panics, it keeps nothing.
#[inline]
fn begun(service: &dyn Service, begun: &Begun<'_>) -> u64 {
    catch_unwind(AssertUnwindSafe(|| service.begun(begun))).unwrap_or(0)
}
