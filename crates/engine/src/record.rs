//! What is recorded of a request while it is served, for [`Service::ended`]; nothing if the service does not want it.
//!
//! A record is a few numbers. The service itself keeps facts about the request: it sees the head in
//! [`Service::begun`].

use std::borrow::BorrowMut;
use std::panic::{AssertUnwindSafe, catch_unwind};

use flatout_lane::clock::Moment;
use flatout_wire::Head;

use crate::connection::Peer;
use crate::service::{Begun, Ended, Outcome, Service, Tls};

/// Where a request comes from.
#[derive(Clone, Copy)]
pub(crate) struct Origin<'t> {
    pub(crate) peer: Peer,
    pub(crate) tls: Option<Tls<'t>>,
    /// The number of its connection's listener.
    pub(crate) listener: u16,
}

impl<'t> Origin<'t> {
    #[inline]
    fn begun<'a>(self, head: Option<&'a Head<'a>>, refused: &'a [u8], number: u64) -> Begun<'a>
    where
        't: 'a,
    {
        let Origin { peer, tls, listener } = self;
        Begun { head, refused, peer: peer.address(), tls, listener, number }
    }
}

/// A request so far: the value that will be reported, in place. Until then its outcome is the one for the case that
/// all is sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Record {
    pub(crate) ended: Ended,
    /// A copy was moved to its connection, and is reported later.
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

    /// For a request whose head was parsed. `recorder` is the service that wants records, if any.
    #[inline]
    pub(crate) fn of(
        recorder: Option<&dyn Service>,
        head: &Head<'_>,
        origin: Origin<'_>,
        (began_ns, number): (u64, u64),
    ) -> Record {
        let mark = match recorder {
            Some(service) => begun(service, &origin.begun(Some(head), b"", number)),
            None => 0,
        };
        Record::new(head.len(), began_ns, mark, Outcome::Sent)
    }

    /// For bytes that are not a request.
    pub(crate) fn refused(
        recorder: Option<&dyn Service>,
        refused: &[u8],
        origin: Origin<'_>,
        (began_ns, number): (u64, u64),
    ) -> Record {
        let mark = match recorder {
            Some(service) => begun(service, &origin.begun(None, refused, number)),
            None => 0,
        };
        Record::new(refused.len(), began_ns, mark, Outcome::Refused)
    }

    /// Reports it: the request has ended.
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

/// Reports requests whose responses were sent, or whose clients left before. If a service panics, the others are
/// reported nevertheless.
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

/// Shows the head to the service. If it panics, it keeps nothing.
#[inline]
fn begun(service: &dyn Service, begun: &Begun<'_>) -> u64 {
    catch_unwind(AssertUnwindSafe(|| service.begun(begun))).unwrap_or(0)
}
