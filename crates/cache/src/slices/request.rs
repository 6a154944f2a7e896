//! Requests served from slices: each waits for its slices, one after the other.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use flatout_engine::{Body, Reply, Request, Response, bug};
use flatout_lane::clock;
use flatout_wire::cache::Verdict;
use flatout_wire::condition::range_applies;
use flatout_wire::range::{Ranges, Start, parse, start};
use flatout_wire::{Head, Method, Status};

use crate::entry::Entry;
use crate::fetch::bad_gateway;
use crate::fetch::bypass::{CacheFinish, StoreEffect};
use crate::fetch::flight::Outcome;
use crate::fetch::waiting_request::with_head;
use crate::policy::{LEFT_OUT, RequestConditions, left_out_always};
use crate::respond;
use crate::slices::body::{SliceBody, SliceReader};
use crate::slices::fill::{SharedClient, SliceSource};
use crate::slices::manifest::{Representation, pass_slot};
use crate::status::{CacheOutcome, CacheStatus};
use crate::worker::{CacheWorker, Lookup};
use flatout_gateway::{Abandoned, Finish, Forwarded, ResponseOrigin, complete, signalling};
use flatout_proxy::{ParkedClient, Prepared};

impl CacheWorker {
    /// Whether a request is served from slices, and where it starts; `None` if not. `manifest` is what is known of
    /// the response.
    pub(crate) fn sliced(
        &self,
        head: &Head<'_>,
        lookup: &Lookup<'_>,
        manifest: Option<&Arc<Entry>>,
    ) -> Option<Start> {
        let rules = &lookup.rules;
        let slice_bytes = rules.rules.slice_bytes.filter(|&bytes| bytes <= self.store.body_bytes_max())?;
        let is_everybodys = !lookup.cache_fields.is_authorized || rules.names_authorization;
        let is_stored =
            !rules.is_unstored && !lookup.directives.no_store && !lookup.directives.only_if_cached;
        if head.method != Method::Get || slice_bytes == 0 || !is_everybodys || !is_stored {
            return None;
        }
        match head.field("range") {
            Some(value) => start(value),
            None => manifest.map(|_| Start::At(0)),
        }
        .filter(|_| !self.store.is_passed(pass_slot(&lookup.key, &self.store), lookup.now_ms))
    }

    /// Serves a request from slices.
    pub(crate) fn answer_sliced(
        self: &Rc<Self>,
        request: Request<'_>,
        mut forwarded: Forwarded<'_>,
        lookup: &Lookup<'_>,
        start: Start,
        manifest: Option<Arc<Entry>>,
        response: &mut Response,
    ) -> Reply {
        let known = manifest.as_ref().and_then(Representation::of);
        let is_fresh = |entry: &Arc<Entry>| {
            entry.policy.judge(&lookup.directives, lookup.now_ms, entry.is_expired()) == Verdict::Fresh
        };
        let cache_status = match &known {
            Some(whole) if is_fresh(&whole.entry) => {
                let ttl = Some(whole.entry.policy.fresh_for(lookup.now_ms));
                CacheStatus { ttl, ..CacheStatus::of(CacheOutcome::Hit) }
            }
            Some(_) => CacheStatus::forwarded(CacheOutcome::Expired, "stale"),
            None => CacheStatus::forwarded(CacheOutcome::Miss, "uri-miss"),
        };
        let whole = known.filter(|_| cache_status.label == CacheOutcome::Hit);
        let slice_bytes = match &whole {
            Some(whole) => whole.slice_bytes,
            None => lookup.rules.rules.slice_bytes.unwrap_or(0),
        };
        if slice_bytes == 0 {
            bug!("a response is served from slices without a size");
            return bad_gateway(&*forwarded.finish, response);
        }
        forwarded.edits.handled = left_out_always();
        let own = self.proxy_worker.prepare(&request, &forwarded);
        forwarded.edits.handled = &LEFT_OUT;
        let of_slices = self.proxy_worker.prepare(&request, &forwarded);
        let (Some(own), Some(of_slices)) = (own, of_slices) else {
            return bad_gateway(&*forwarded.finish, response);
        };
        let says = lookup.rules.rules.says_status;
        let alone = Rc::new(CacheFinish {
            inner: forwarded.finish.clone(),
            label: cache_status.label,
            cache_status: says.then_some(cache_status),
            store: self.store.clone(),
            after: StoreEffect::Nothing,
        });
        let source = SliceSource {
            worker: self.clone(),
            key: lookup.key.to_buf(),
            rules: lookup.rules.rules.clone(),
            slice_bytes,
            request: of_slices,
            stale: manifest.filter(|_| whole.is_none()),
        };
        let (finish, abandoned) = signalling(alone);
        let sliced = SlicedRequest {
            source: Rc::new(source),
            start,
            head: request.head.kept_bytes(),
            conditions: lookup.cache_fields.conditions,
            own,
            client: Rc::new(RefCell::new(Some(ParkedClient { exchange: request.park(), finish }))),
            cache_status: says.then_some(cache_status),
            finish: forwarded.finish,
            abandoned,
        };
        self.counters.count(cache_status.label);
        Reply::Later(Box::pin(sliced.respond(whole)))
    }
}

/// A request that is served from slices.
struct SlicedRequest {
    source: Rc<SliceSource>,
    start: Start,
    head: Vec<u8>,
    conditions: RequestConditions,
    /// The original request of the client.
    own: Prepared,
    client: SharedClient,
    cache_status: Option<CacheStatus>,
    finish: Rc<dyn Finish>,
    /// Nobody has the client any more.
    abandoned: Abandoned,
}

impl SlicedRequest {
    async fn respond(self, whole: Option<Representation>) -> Response {
        let first = match whole {
            Some(whole) => Ok(whole),
            None => self.first().await,
        };
        if let Err(SliceFailure::Passed) = first {
            if let Some(client) = self.client.take() {
                self.source.worker.proxy_worker.pass_on(self.own, client);
            }
            // The response comes by key, from whoever has taken the client.
            return complete(Reply::Parked, Response::new(), self.abandoned).await;
        }
        let mut response = Response::new();
        let by = match first {
            Ok(whole) => {
                if with_head(&self.head, |head| self.write(&whole, head, &mut response)).is_none() {
                    response.set_status(Status::INTERNAL_SERVER_ERROR);
                }
                ResponseOrigin::Upstream
            }
            Err(missing) => {
                respond::refuse(missing.status(), self.cache_status.as_ref(), &mut response);
                ResponseOrigin::Here
            }
        };
        self.finish.finish(&mut response, by);
        response
    }

    /// Requests the slice in which the range starts, which also describes the complete response.
    async fn first(&self) -> Result<Representation, SliceFailure> {
        let SliceSource { worker, slice_bytes, .. } = &*self.source;
        let index = match self.start {
            Start::At(first) => first / (*slice_bytes).max(1),
            // This gives the complete length.
            Start::Suffix => 0,
        };
        let key = self.source.key();
        // All requests for the same slice wait for the same flight, whatever representation it will belong to.
        let slot = worker.store.slot_of(key.hash, format!("\x01first {slice_bytes}:{index}").as_bytes());
        let flight = self.source.flight((slot, index), None, self.client.clone());
        let outcome = flight.outcome().await;
        if self.client.borrow().is_none() {
            return Err(SliceFailure::Passed);
        }
        match outcome {
            Outcome::Whole(slice) => {
                let whole = Representation::of(&slice);
                if whole.is_none() {
                    bug!("a flight for a slice has brought something else");
                }
                whole.ok_or(SliceFailure::Failed(Status::INTERNAL_SERVER_ERROR))
            }
            Outcome::Failed(status) | Outcome::Rejected(status) => Err(SliceFailure::Failed(status)),
            Outcome::Released | Outcome::Stream(..) | Outcome::Loaded(_) => Err(SliceFailure::Passed),
        }
    }

    /// Writes the response, with a body streamed from slices.
    fn write(&self, whole: &Representation, head: &Head<'_>, response: &mut Response) {
        let (entry, length) = (&whole.entry, whole.length);
        let age = entry.policy.age(clock::unix_milliseconds());
        if self.conditions.has_conditions && respond::is_not_modified(entry, head) {
            respond::write_not_modified(entry, response);
            return respond::write_more(age, self.cache_status.as_ref(), response);
        }
        let asked = head.field("range").filter(|_| range_applies(head, entry.etag(), entry.modified()));
        let (status, part) = match asked.map_or(Ranges::Whole, |value| parse(value, length, 1)) {
            Ranges::Some(ranges) => match ranges.first() {
                Some(range) => (Status::PARTIAL_CONTENT, range.clone()),
                None => (Status::OK, 0..length),
            },
            Ranges::Unsatisfiable => (Status::RANGE_NOT_SATISFIABLE, 0..0),
            Ranges::Whole => (Status::OK, 0..length),
        };
        response.set_status(status);
        response.encoded_head(entry.lines(), entry.has_date(), entry.has_server());
        if status == Status::PARTIAL_CONTENT {
            let (first, last) = (part.start, part.end.saturating_sub(1));
            response.header("Content-Range", format!("bytes {first}-{last}/{length}"));
        } else if status == Status::RANGE_NOT_SATISFIABLE {
            response.header("Content-Range", format!("bytes */{length}"));
        }
        respond::write_more(age, self.cache_status.as_ref(), response);
        if !part.is_empty() {
            let reader = Rc::new(SliceReader { source: self.source.clone(), whole: whole.clone() });
            let body = SliceBody { reader, next: part.start, end: part.end, pending: None };
            response.set_body(Body::Stream(Box::pin(body)));
        }
    }
}

/// Why there is no first slice.
enum SliceFailure {
    /// The client gets a response in another way.
    Passed,
    Failed(Status),
}

impl SliceFailure {
    fn status(&self) -> Status {
        match self {
            SliceFailure::Passed => Status::BAD_GATEWAY,
            SliceFailure::Failed(status) => *status,
        }
    }
}
