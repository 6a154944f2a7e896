//! Handles the response of an upstream: stores it, streams it to all waiting clients, replaces it with a stale one,
//! or passes it to one client.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use flatout_engine::{Body, GuestKey, Lane, Response, WorkerHold, bug};
use flatout_lane::clock;
use flatout_wire::Status;
use flatout_wire::cache::{RequestDirectives, StorageDecision};

use crate::entry::{Entry, Parts, body_of};
use crate::fetch::bad_gateway;
use crate::fetch::flight::{Flight, Outcome};
use crate::fetch::waiting_request::with_head;
use crate::key::{Key, KeyBuf};
use crate::policy::RequestConditions;
use crate::respond::{self, add_cache_status};
use crate::status::CacheStatus;
use crate::tally::note_outcome;
use crate::worker::CacheWorker;
use flatout_gateway::private::{PrivateLifetime, is_redirected, private_lifetime};
use flatout_gateway::{ResponseOrigin, Rules};
use flatout_proxy::{Disposition, ParkedClient, ResponseSink};

/// What was requested, and how to handle its response.
pub(crate) struct FillRequest {
    pub(crate) key: KeyBuf,
    pub(crate) rules: Arc<Rules>,
    /// The head of the client's request.
    pub(crate) head: Vec<u8>,
    pub(crate) directives: RequestDirectives,
    pub(crate) conditions: RequestConditions,
    pub(crate) is_authorized: bool,
    /// `Authorization` is part of the key.
    pub(crate) has_authorization_key: bool,
    pub(crate) asked_ms: u64,
    pub(crate) cache_status: CacheStatus,
}

/// Handles one response.
pub(crate) struct Fill {
    pub(super) worker: Rc<CacheWorker>,
    pub(super) flight: Arc<Flight>,
    /// The entry to revalidate.
    pub(super) stale: Option<Arc<Entry>>,
    /// The client of the request; `None` if an entry is refreshed in the background.
    client: RefCell<Option<ParkedClient>>,
    pub(super) order: FillRequest,
    guest: Cell<Option<GuestKey>>,
    /// The note of the upstream's response, for the log line of the client.
    note: Cell<u64>,
    /// How long the upstream lets this cache use its response (`X-Accel-Expires`).
    pub(super) lifetime: Cell<Option<PrivateLifetime>>,
    stream: RefCell<Option<Stream>>,
    /// Clients of other workers may wait for it.
    _hold: WorkerHold,
}

/// A body that is being received.
struct Stream {
    /// The entry without its body.
    head: Arc<Entry>,
    bytes: u64,
    /// It has not exceeded the limit.
    is_kept: bool,
}

impl Fill {
    pub(crate) fn new(
        worker: Rc<CacheWorker>,
        flight: Arc<Flight>,
        stale: Option<Arc<Entry>>,
        client: Option<ParkedClient>,
        order: FillRequest,
    ) -> Fill {
        let (guest, stream) = (Cell::new(None), RefCell::new(None));
        let (client, note) = (RefCell::new(client), Cell::default());
        let (lifetime, hold) = (Cell::default(), worker.lane.hold_worker());
        Fill { worker, flight, stale, client, order, guest, note, lifetime, stream, _hold: hold }
    }

    pub(super) fn key(&self) -> Key<'_> {
        self.worker.store.key_of(&self.order.key)
    }

    pub(super) fn cache_status(&self, cache_status: CacheStatus) -> Option<CacheStatus> {
        self.order.rules.says_status.then_some(cache_status)
    }

    /// No further request can join; waiting requests get the outcome.
    pub(super) fn settle(&self, outcome: Outcome) {
        self.worker.store.land(&self.flight);
        self.flight.settle(outcome);
    }

    /// Sends the client its response.
    pub(super) fn answer(&self, lane: &Lane, mut response: Box<Response>, by: ResponseOrigin) {
        if let Some(ParkedClient { exchange, finish }) = self.client.take() {
            finish.finish(&mut response, by);
            lane.answer(exchange, response);
        }
    }

    /// Counts a response of the upstream, and adds the cache status.
    fn report(&self, cache_status: CacheStatus, response: &mut Response) {
        self.worker.counters.count_response(cache_status.label, response);
        add_cache_status(self.cache_status(cache_status).as_ref(), response);
    }

    /// Sends the client the upstream's response as it is.
    pub(super) fn relay(
        &self,
        lane: &Lane,
        mut response: Box<Response>,
        cache_status: CacheStatus,
        by: ResponseOrigin,
    ) {
        self.report(cache_status, &mut response);
        self.answer(lane, response, by);
    }

    /// Sends the client a response from this entry.
    pub(super) fn answer_with(
        &self,
        lane: &Lane,
        entry: &Arc<Entry>,
        cache_status: CacheStatus,
        now_ms: u64,
    ) {
        self.worker.counters.count(cache_status.label);
        if self.client.borrow().is_none() {
            return;
        }
        let mut response = lane.response();
        response.set_note(self.note.get());
        note_outcome(cache_status.label, &mut response);
        let cache_status = self.cache_status(cache_status);
        let written = with_head(&self.order.head, |head| {
            let body = body_of(entry);
            respond::write(
                entry,
                body,
                head,
                self.order.conditions,
                now_ms,
                cache_status.as_ref(),
                &mut response,
            );
        });
        if written.is_none() {
            response.set_status(Status::INTERNAL_SERVER_ERROR);
        }
        self.answer(lane, response, ResponseOrigin::Upstream);
    }

    /// The response is not stored: its client gets it unchanged, and waiting requests are forwarded.
    fn release(&self, mut response: Box<Response>, is_for_all: bool) -> Disposition {
        let slot = self.flight.slot;
        if is_for_all {
            self.worker.store.pass(slot, clock::unix_milliseconds());
        }
        let status = response.status().code();
        if let Some(stale) = self.stale.as_ref().filter(|_| status < 500) {
            // It was replaced by a response that is not stored.
            self.worker.store.remove_everywhere(&self.key(), slot, stale);
        }
        self.settle(Outcome::Released);
        self.report(CacheStatus { status: Some(status), ..self.order.cache_status }, &mut response);
        match self.client.take() {
            Some(client) => Disposition::Passed(response, client),
            None => Disposition::Consumed(false),
        }
    }

    /// Handles a response whose body arrived with its head.
    fn whole(
        &self,
        lane: &Lane,
        response: Box<Response>,
        decision: &StorageDecision,
        now_ms: u64,
    ) -> Disposition {
        let body = response.body_bytes().unwrap_or_default().to_vec();
        let entry = self.entry(response.status(), response.fields(), decision, now_ms, body);
        let (entry, is_stored) = self.worker.store.insert(&self.key(), entry, self.flight.asked);
        self.pass_if_stale_at_once(decision, now_ms);
        self.settle(Outcome::Whole(entry.clone()));
        let status = Some(entry.status.code());
        let cache_status = CacheStatus { status, is_stored, ..self.order.cache_status };
        let conditions = self.order.conditions;
        if conditions.has_conditions || conditions.has_range {
            self.answer_with(lane, &entry, cache_status, now_ms);
        } else {
            self.relay(lane, response, cache_status, ResponseOrigin::Upstream);
        }
        Disposition::Consumed(false)
    }

    /// Handles a response whose body is still being received.
    fn streaming(
        &self,
        lane: &Lane,
        mut response: Box<Response>,
        decision: &StorageDecision,
        now_ms: u64,
    ) -> Disposition {
        let length = response.declared_length();
        let head = Arc::new(self.entry(response.status(), response.fields(), decision, now_ms, Vec::new()));
        let body = self.flight.reader(length);
        *self.stream.borrow_mut() = Some(Stream { head: head.clone(), bytes: 0, is_kept: true });
        self.pass_if_stale_at_once(decision, now_ms);
        // Requests that arrive meanwhile can still join.
        self.flight.settle(Outcome::Stream(head.clone(), length));
        let cache_status =
            CacheStatus { status: Some(head.status.code()), is_stored: true, ..self.order.cache_status };
        let is_known = self.order.conditions.has_conditions
            && head.status == Status::OK
            && with_head(&self.order.head, |request| respond::is_not_modified(&head, request)) == Some(true);
        match body {
            Some(body) if !is_known => {
                response.set_body(Body::Stream(Box::pin(body)));
                self.relay(lane, response, cache_status, ResponseOrigin::Upstream);
            }
            _ => self.answer_with(lane, &head, cache_status, now_ms),
        }
        Disposition::Consumed(true)
    }

    /// Lets the next requests pass on their own if the response has to be validated for each of them.
    fn pass_if_stale_at_once(&self, decision: &StorageDecision, now_ms: u64) {
        if decision.policy.is_validated_always || decision.policy.fresh_for(now_ms) <= 0 {
            self.worker.store.pass(self.flight.slot, now_ms);
        }
    }

    /// Counts bytes that are buffered until the body is complete. Returns whether the limit for all fills allows
    /// them.
    fn holds(&self, bytes: u64) -> bool {
        let (held, has_room) = self.worker.store.hold(bytes);
        self.flight.count(held);
        has_room
    }
}

impl ResponseSink for Fill {
    fn inform(&self, lane: &Lane, status: Status, lines: &[u8]) {
        if let Some(client) = &*self.client.borrow() {
            lane.inform(client.exchange, status, lines);
        }
    }

    fn head(
        &self,
        lane: &Lane,
        guest: Option<GuestKey>,
        mut response: Box<Response>,
        by: ResponseOrigin,
    ) -> Disposition {
        self.guest.set(guest);
        self.note.set(response.note());
        let status = response.status();
        if response.field("x-cache-status").is_some() {
            response.remove_header("x-cache-status");
        }
        if by == ResponseOrigin::Here {
            return self.fail(lane, response, by);
        }
        let now_ms = clock::unix_milliseconds();
        if is_redirected(&response) && status != Status::NOT_MODIFIED {
            // What it leads to may differ for each client, and has a cache of its own.
            return self.release(response, true);
        }
        if !self.order.rules.ignored.x_accel_expires {
            self.lifetime.set(private_lifetime(&response, now_ms / 1000));
        }
        match &self.stale {
            Some(stale) if status == Status::NOT_MODIFIED => return self.revalidated(lane, stale, &response),
            Some(stale) if self.may_replace(stale, status, by, now_ms) => {
                return self.fail(lane, response, by);
            }
            _ => {}
        }
        match self.stored(&response) {
            Err(is_for_all) => self.release(response, is_for_all),
            Ok(decision) if matches!(response.body(), Body::Pushed) => {
                self.streaming(lane, response, &decision, now_ms)
            }
            Ok(decision) => self.whole(lane, response, &decision, now_ms),
        }
    }

    fn has_room(&self) -> bool {
        self.flight.has_room(|| {
            let (mailbox, guest) = (self.worker.mailbox.clone(), self.guest.get());
            Box::new(move || {
                if let Some(guest) = guest {
                    mailbox.call_again(guest);
                }
            })
        })
    }

    fn push(&self, data: Bytes) -> bool {
        let mut stream = self.stream.borrow_mut();
        let Some(stream) = &mut *stream else {
            bug!("a body arrives that nobody receives");
            return false;
        };
        stream.bytes += data.len() as u64;
        let is_too_large = stream.bytes > self.worker.store.body_bytes_max();
        if stream.is_kept && (is_too_large || !self.holds(data.len() as u64)) {
            stream.is_kept = false;
            self.worker.store.pass(self.flight.slot, clock::unix_milliseconds());
            self.worker.store.land(&self.flight);
            self.flight.keep_no_more();
        }
        self.flight.push(data);
        stream.is_kept || self.flight.has_readers()
    }

    fn end(&self) {
        if let Some(Stream { head, is_kept: true, .. }) = self.stream.take() {
            let parts = Parts {
                key: self.key(),
                vary: head.vary(),
                selected: head.selected(),
                lines: head.lines(),
                status: head.status,
                policy: head.policy,
            };
            let entry = Entry::new(&parts, self.flight.body());
            let (entry, _) = self.worker.store.insert(&self.key(), entry, self.flight.asked);
            self.flight.end_stored(&entry);
        }
        self.worker.store.land(&self.flight);
        self.flight.end(true);
    }

    fn cut(&self) {
        self.stream.take();
        self.worker.store.land(&self.flight);
        self.flight.end(false);
    }
}

impl Drop for Fill {
    fn drop(&mut self) {
        // All requests that wait for it must get a response. If it was settled or has ended, nothing changes.
        self.settle(Outcome::Failed(Status::BAD_GATEWAY));
        self.flight.end(false);
        if let Some(ParkedClient { exchange, finish }) = self.client.take() {
            let mut response = self.worker.lane.response();
            bad_gateway(&*finish, &mut response);
            self.worker.lane.answer(exchange, response);
        }
    }
}
