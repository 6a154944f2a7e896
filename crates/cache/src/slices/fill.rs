//! Fetches slices, and handles their responses.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use flatout_engine::{Body, GuestKey, Lane, Response, WorkerHold, bug};
use flatout_lane::clock;
use flatout_wire::Status;
use flatout_wire::cache::{Exchange, Policy, store};

use crate::entry::{Entry, Parts, stored_lines};
use crate::fetch::flight::{Flight, Outcome};
use crate::key::{Key, KeyBuf};
use crate::slices::manifest::{self, ExpectedSlice, Representation, SliceHead};
use crate::store::{BodyReservation, FlightRole};
use crate::worker::CacheWorker;
use flatout_gateway::ResponseOrigin;
use flatout_gateway::Rules;
use flatout_proxy::{Disposition, ParkedClient, Prepared, ResponseSink};

/// The request behind the slices of one response.
pub(crate) struct SliceSource {
    pub(crate) worker: Rc<CacheWorker>,
    pub(crate) key: KeyBuf,
    pub(crate) rules: Arc<Rules>,
    pub(crate) slice_bytes: u64,
    /// The request without a range.
    pub(crate) request: Prepared,
    /// The stale entry that was found.
    pub(crate) stale: Option<Arc<Entry>>,
}

impl SliceSource {
    pub(crate) fn key(&self) -> Key<'_> {
        self.worker.store.key_of(&self.key)
    }

    /// Gets a slice: from a request in progress, a new one, or what has been stored since the caller looked.
    /// `expected` is the representation that the slice must belong to, if that is known.
    pub(crate) fn flight(
        self: &Rc<Self>,
        (slot, index): (u64, u64),
        expected: Option<ExpectedSlice>,
        client: SharedClient,
    ) -> Arc<Flight> {
        let store = &self.worker.store;
        let key = self.key();
        let is_it = |slice: &Arc<Entry>| expected.as_ref().is_some_and(|expected| expected.is(slice, index));
        let alone = || Arc::new(Flight::new(slot, store.moment()));
        let (flight, stored) = match store.join(&key, slot, None) {
            FlightRole::Follows(flight) => {
                if expected.is_none() {
                    self.worker.counters.collapsed();
                }
                return flight;
            }
            // The first slice is fetched under the manifest's slot.
            FlightRole::Leads(flight) if expected.is_none() => {
                let stored = store.manifest(&key, self.stale.as_ref());
                (flight, stored.filter(|stored| self.has_slices_of(stored)))
            }
            FlightRole::Leads(flight) => (flight, None),
            FlightRole::Here(slice) => (alone(), Some(slice).filter(is_it)),
            FlightRole::Alone => (alone(), None),
        };
        match stored {
            Some(entry) => {
                store.land(&flight);
                flight.settle(Outcome::Whole(entry));
            }
            None => self.fetch(index, flight.clone(), expected, client),
        }
        flight
    }

    fn has_slices_of(&self, manifest: &Arc<Entry>) -> bool {
        Representation::of(manifest).is_some_and(|whole| whole.slice_bytes == self.slice_bytes)
    }

    /// Requests a slice. Without `If-Range`, because after a change it is cheaper to discard a short range than to
    /// receive the complete body.
    fn fetch(
        self: &Rc<Self>,
        index: u64,
        flight: Arc<Flight>,
        expected: Option<ExpectedSlice>,
        client: SharedClient,
    ) {
        let Range { start, end } = manifest::part(self.slice_bytes, index);
        let mut request = self.worker.proxy_worker.prepare_again(&self.request);
        request.add_lines(format!("Range: bytes={start}-{}\r\n", end.saturating_sub(1)).as_bytes());
        let fill = SliceFill {
            source: self.clone(),
            flight,
            index,
            expected,
            client,
            asked_ms: clock::unix_milliseconds(),
            partial: RefCell::new(None),
            held: Cell::new(None),
            _hold: self.worker.lane.hold_worker(),
        };
        self.worker.proxy_worker.fetch(request, Rc::new(fill));
    }
}

/// The client of the first slice; `None` once it has its response, or is served elsewhere.
pub(crate) type SharedClient = Rc<RefCell<Option<ParkedClient>>>;

/// Handles one slice. Waiting requests get it once it is complete.
struct SliceFill {
    source: Rc<SliceSource>,
    flight: Arc<Flight>,
    index: u64,
    expected: Option<ExpectedSlice>,
    client: SharedClient,
    asked_ms: u64,
    partial: RefCell<Option<PartialSlice>>,
    /// Bytes of the body that count towards the limit for all fills.
    held: Cell<Option<BodyReservation>>,
    /// Clients of other workers may wait for it.
    _hold: WorkerHold,
}

/// A slice that is being received.
struct PartialSlice {
    head: SliceHead,
    lines: Vec<u8>,
    policy: Policy,
    body: Vec<u8>,
}

impl SliceFill {
    fn settle(&self, outcome: Outcome) {
        self.source.worker.store.land(&self.flight);
        self.flight.settle(outcome);
    }

    /// The slice, if the response is one that may be stored, of the expected representation.
    fn partial(&self, response: &Response) -> Option<PartialSlice> {
        let head = SliceHead::read(response.fields(), self.source.slice_bytes, self.index)?;
        if self.expected.as_ref().is_some_and(|expected| expected.marks != head.marks) {
            return None;
        }
        let rules = &self.source.rules;
        let has = |name: &[u8]| response.fields().any(|(this, _)| this.eq_ignore_ascii_case(name));
        if has(b"vary") && !rules.ignored.vary {
            return None;
        }
        let now_ms = clock::unix_milliseconds();
        let exchange = Exchange {
            request_ms: self.asked_ms,
            response_ms: now_ms,
            is_authorized: false,
            has_authorization_key: false,
            asks_no_store: false,
        };
        // A slice is stored under the same conditions as the complete response.
        let rules = rules.of(Status::OK.code());
        let kept = store(Status::OK, response.fields(), &exchange, &rules).ok()?;
        let is_about_all = |name: &[u8]| !name.eq_ignore_ascii_case(b"content-range");
        let fields = response.fields().filter(|(name, _)| is_about_all(name));
        let lines = stored_lines(fields, &kept.withheld, Some(now_ms / 1000));
        let body = Vec::with_capacity(usize::try_from(head.bytes).ok()?);
        Some(PartialSlice { head, lines, policy: kept.policy, body })
    }

    /// Counts bytes that are buffered until the slice is complete. Returns whether the limit for all fills allows
    /// them.
    fn holds(&self, bytes: u64) -> bool {
        let (held, has_room) = self.source.worker.store.hold(bytes);
        self.held.set(Some(held));
        has_room
    }

    /// The response is not the slice: the representation has changed, or cannot be stored in slices.
    fn refuse(&self) {
        let store = &self.source.worker.store;
        let key = self.source.key();
        match &self.expected {
            None => store.pass(manifest::pass_slot(&key, store), clock::unix_milliseconds()),
            Some(expected) => store.remove_manifest(&key, expected.family),
        }
        self.give_up();
    }

    /// Requests that wait for the first slice are forwarded. A response that has started is aborted.
    fn give_up(&self) {
        self.settle(match self.expected {
            None => Outcome::Released,
            Some(_) => Outcome::Failed(Status::BAD_GATEWAY),
        });
    }

    /// Stores the received slice.
    fn keep(&self, partial: PartialSlice) {
        let store = &self.source.worker.store;
        let PartialSlice { head, lines, policy, body } = partial;
        let key = self.source.key();
        let parts = || Parts {
            key,
            vary: b"",
            selected: b"",
            lines: &lines,
            status: Status::PARTIAL_CONTENT,
            policy,
        };
        let family = match &self.expected {
            Some(expected) => expected.family,
            None => {
                let manifest = manifest::manifest(parts(), &head.marks);
                store.insert(&key, manifest, self.flight.asked).0.family
            }
        };
        let slot = store.slot_of(key.hash, &manifest::selected(self.index, &head.marks));
        let slice = manifest::slice(parts(), self.index, &head.marks, body);
        self.settle(Outcome::Whole(store.insert_slice(&key, slice, (slot, family), self.flight.asked)));
    }
}

impl ResponseSink for SliceFill {
    fn inform(&self, _: &Lane, _: Status, _: &[u8]) {}

    fn head(
        &self,
        _: &Lane,
        _: Option<GuestKey>,
        response: Box<Response>,
        by: ResponseOrigin,
    ) -> Disposition {
        if by == ResponseOrigin::Upstream && response.status() == Status::PARTIAL_CONTENT {
            let Some(mut partial) = self.partial(&response) else {
                self.refuse();
                return Disposition::Consumed(false);
            };
            if !self.holds(partial.head.bytes) {
                self.give_up();
                return Disposition::Consumed(false);
            }
            if matches!(response.body(), Body::Pushed) {
                *self.partial.borrow_mut() = Some(partial);
                return Disposition::Consumed(true);
            }
            partial.body.extend_from_slice(response.body_bytes().unwrap_or_default());
            *self.partial.borrow_mut() = Some(partial);
            self.end();
            return Disposition::Consumed(false);
        }
        let (client, status) = (self.client.take(), response.status());
        match by {
            ResponseOrigin::Here => self.settle(Outcome::Failed(status)),
            // An error says nothing about stored slices, nor does a range beyond the end.
            ResponseOrigin::Upstream if status.code() >= 500 => self.give_up(),
            ResponseOrigin::Upstream if self.expected.is_none() && status != Status::OK => self.give_up(),
            ResponseOrigin::Upstream => self.refuse(),
        }
        match client {
            Some(client) => Disposition::Passed(response, client),
            None => Disposition::Consumed(false),
        }
    }

    fn has_room(&self) -> bool {
        true
    }

    fn push(&self, data: Bytes) -> bool {
        let mut partial = self.partial.borrow_mut();
        let Some(partial) = &mut *partial else {
            bug!("a slice arrives that nobody receives");
            return false;
        };
        partial.body.extend_from_slice(&data);
        partial.body.len() as u64 <= partial.head.bytes
    }

    fn end(&self) {
        match self.partial.take() {
            Some(partial) if partial.body.len() as u64 == partial.head.bytes => self.keep(partial),
            _ => self.settle(Outcome::Failed(Status::BAD_GATEWAY)),
        }
    }

    fn cut(&self) {
        self.partial.take();
        self.settle(Outcome::Failed(Status::BAD_GATEWAY));
    }
}

impl Drop for SliceFill {
    fn drop(&mut self) {
        // If it was settled before, nothing changes.
        self.settle(Outcome::Failed(Status::BAD_GATEWAY));
    }
}
