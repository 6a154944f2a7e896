//! What is noted of a request while it is served, for [`Service::ended`]; nothing where nobody wants it.

use std::net::SocketAddr;

use flatout_lane::clock;
use flatout_wire::{Method, Status};

use crate::service::{Ended, Outcome, Service};

/// A request so far.
pub(crate) struct Record {
    pub(crate) method: Method,
    pub(crate) path: Box<[u8]>,
    pub(crate) status: Option<Status>,
    pub(crate) received_bytes: u64,
    pub(crate) sent_bytes: u64,
    pub(crate) began_ns: u64,
    pub(crate) first_byte_ns: Option<u64>,
    pub(crate) is_refused: bool,
    pub(crate) note: u64,
}

impl Record {
    /// Of a request whose head was read.
    pub(crate) fn of(method: Method, path: &[u8], received_bytes: u64) -> Record {
        Record {
            method,
            path: path.into(),
            status: None,
            received_bytes,
            sent_bytes: 0,
            began_ns: clock::nanoseconds(),
            first_byte_ns: None,
            is_refused: false,
            note: 0,
        }
    }

    /// Of bytes that are no request.
    pub(crate) fn refused(received_bytes: u64) -> Record {
        Record { is_refused: true, ..Record::of(Method::Other, b"", received_bytes) }
    }

    /// Hands it over: the request is over. A service that panics here has said what it had to.
    pub(crate) fn end(&self, service: &dyn Service, outcome: Outcome, peer: Option<SocketAddr>) {
        let now_ns = clock::nanoseconds();
        let sent = outcome == Outcome::Sent;
        let ended = Ended {
            method: self.method,
            path: &self.path,
            status: self.status,
            received_bytes: self.received_bytes,
            sent_bytes: self.sent_bytes,
            began_ns: self.began_ns,
            first_byte_ns: self.first_byte_ns.or(sent.then_some(now_ns)),
            ended_ns: now_ns,
            outcome: if sent && self.is_refused { Outcome::Refused } else { outcome },
            peer,
            note: self.note,
        };
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| service.ended(&ended)));
    }
}
