//! What is noted of a request while it is served, for [`Service::ended`]; nothing where nobody wants it.
//!
//! A record is a few numbers. What was asked is the service's to keep: it sees the head in [`Service::begun`].

use std::panic::{AssertUnwindSafe, catch_unwind};

use flatout_lane::clock::Moment;
use flatout_wire::{Head, Status};

use crate::connection::Peer;
use crate::service::{Begun, Ended, Outcome, Service};

/// A request so far.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Record {
    pub(crate) status: Option<Status>,
    pub(crate) received_bytes: u64,
    pub(crate) sent_bytes: u64,
    pub(crate) sent_head_bytes: u32,
    pub(crate) began_ns: u64,
    /// 0 before.
    pub(crate) first_byte_ns: u64,
    pub(crate) is_refused: bool,
    pub(crate) mark: u64,
    pub(crate) note: u64,
    /// How it ended; `None` where it is kept elsewhere meanwhile.
    pub(crate) outcome: Option<Outcome>,
}

impl Record {
    fn new(received_bytes: usize, began_ns: u64, mark: u64) -> Record {
        Record {
            status: None,
            received_bytes: received_bytes as u64,
            sent_bytes: 0,
            sent_head_bytes: 0,
            began_ns,
            first_byte_ns: 0,
            is_refused: false,
            mark,
            note: 0,
            outcome: Some(Outcome::Sent),
        }
    }

    /// Of a request whose head was read. `teller` is who wants to see it, if anybody does.
    #[inline]
    pub(crate) fn of(teller: Option<&dyn Service>, head: &Head<'_>, peer: Peer, began_ns: u64) -> Record {
        let mark = teller.map_or(0, |service| {
            begun(service, &Begun { head: Some(head), refused: b"", peer: peer.address() })
        });
        Record::new(head.len(), began_ns, mark)
    }

    /// Of bytes that are no request.
    pub(crate) fn refused(teller: Option<&dyn Service>, refused: &[u8], peer: Peer, began_ns: u64) -> Record {
        let mark =
            teller.map_or(0, |service| begun(service, &Begun { head: None, refused, peer: peer.address() }));
        Record { is_refused: true, ..Record::new(refused.len(), began_ns, mark) }
    }

    /// Hands it over: the request is over. A service that panics here has said what it had to.
    #[inline]
    pub(crate) fn end(&self, service: &dyn Service, outcome: Outcome, now_ns: u64, now: &Moment) {
        let sent = outcome == Outcome::Sent;
        let first_byte_ns = if self.first_byte_ns == 0 && sent { now_ns } else { self.first_byte_ns };
        let ended = Ended {
            status: self.status,
            received_bytes: self.received_bytes,
            sent_bytes: self.sent_bytes,
            sent_head_bytes: self.sent_head_bytes,
            began_ns: self.began_ns,
            first_byte_ns: (first_byte_ns != 0).then_some(first_byte_ns),
            ended_ns: now_ns,
            unix_ns: now_ns + now.unix_offset_ns,
            outcome: if sent && self.is_refused { Outcome::Refused } else { outcome },
            mark: self.mark,
            note: self.note,
        };
        let _ = catch_unwind(AssertUnwindSafe(|| service.ended(&ended)));
    }
}

/// Has the service look at what has come. Where it panics, it keeps nothing.
#[inline]
fn begun(service: &dyn Service, begun: &Begun<'_>) -> u64 {
    catch_unwind(AssertUnwindSafe(|| service.begun(begun))).unwrap_or(0)
}
