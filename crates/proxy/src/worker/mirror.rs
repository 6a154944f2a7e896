//! Copies of requests for other upstreams: nobody waits for them, and their responses are dropped.

use std::cell::Cell;
use std::rc::Rc;

use bytes::Bytes;
use flatout_engine::{GuestKey, Lane, Request, Response, request_random};
use flatout_gateway::{Forward, Forwarded, Mirror, ResponseOrigin};
use flatout_wire::{Framing, Head, Status};

use crate::receiver::{Disposition, Receiver, ResponseSink};
use crate::request::job::{Job, Pulled};
use crate::worker::ProxyWorker;
use crate::worker::forward::key_hash;

/// Bytes of a body that is collected so that it can be copied. A request with a longer one, or with one of unknown length, is not copied.
pub(crate) const BODY_BYTES_MAX: u64 = 64 << 10;

/// Bytes that are read of the response to a copy. With a longer one, its connection is closed: reading it would only take time.
const RESPONSE_BYTES_MAX: u64 = 1 << 20;

/// Drops a response.
#[derive(Default)]
struct Dropped {
    bytes: Cell<u64>,
}

impl ResponseSink for Dropped {
    fn inform(&self, _: &Lane, _: Status, _: &[u8]) {}

    fn head(&self, _: &Lane, _: Option<GuestKey>, _: Box<Response>, _: ResponseOrigin) -> Disposition {
        Disposition::Consumed(true)
    }

    fn has_room(&self) -> bool {
        true
    }

    fn push(&self, data: Bytes) -> bool {
        self.bytes.set(self.bytes.get() + data.len() as u64);
        self.bytes.get() <= RESPONSE_BYTES_MAX
    }

    fn end(&self) {}

    fn cut(&self) {}
}

/// Whether the body after this head is collected for copies of its request.
pub(crate) fn collects_body(forward: &Forward, head: &Head<'_>) -> bool {
    !forward.mirrors.is_empty() && matches!(head.framing, Framing::Length(1..=BODY_BYTES_MAX))
}

impl ProxyWorker {
    /// The copies of a request, before it is sent itself. They are sent once, and use no retry.
    #[cold]
    pub(crate) fn copies(&self, request: &Request<'_>, what: &Forwarded<'_>, job: &Job) -> Vec<Job> {
        // Whatever else a body was collected for.
        let is_long = job.pulled != Pulled::Not || job.body.len() as u64 > BODY_BYTES_MAX;
        if is_long || request.head.field("upgrade").is_some() {
            return Vec::new();
        }
        let is_chosen = |mirror: &&Mirror| {
            let [random, _] = request_random(0);
            random
                .checked_rem(u64::from(mirror.denominator))
                .is_some_and(|at| at < u64::from(mirror.numerator))
        };
        let copy = |mirror: &Mirror| {
            let upstream_id = self.upstreams.id(mirror.upstream)?;
            let upstream = self.upstreams.at(upstream_id);
            Some(Job {
                upstream: upstream_id,
                receiver: Receiver::Sink(Rc::new(Dropped::default())),
                retries_left: 0,
                refusals_left: 0,
                spool_bytes_max: 0,
                stuck_to: None,
                named: None,
                hash: key_hash(&upstream.plan.balance, request, what.client.address),
                ends_ns: self.ends_ns(upstream, None),
                ..job.again()
            })
        };
        what.forward.mirrors.iter().filter(is_chosen).filter_map(copy).collect()
    }
}
