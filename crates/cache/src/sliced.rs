//! Requests served from slices: each waits for its slices, one after the other.

use std::cell::RefCell;
use std::future::{Future, pending};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use flatout_engine::{Body, BoxError, Reply, Request, Response};
use flatout_lane::clock;
use flatout_wire::cache::Verdict;
use flatout_wire::condition::range_applies;
use flatout_wire::range::{Ranges, Start, parse, start};
use flatout_wire::{Head, Method, Status};
use http_body::{Frame, SizeHint};

use super::entry::{Entry, body_of};
use super::flight::Outcome;
use super::follow::with_head;
use super::invalidate::{After, CacheFinish};
use super::respond::{self, RequestConditions};
use super::slice_fill::{SharedClient, Source};
use super::slice_store::Slice;
use super::slices::{Whole, pass_slot};
use super::status::{CacheOutcome, CacheStatus};
use super::worker::{Caching, Case, LEFT_OUT, left_out_always};
use flatout_gateway::{Finish, Forwarded, ResponseOrigin};
use flatout_proxy::{ParkedClient, Prepared};

impl Caching {
    /// Whether a request is served from slices, and where it starts; `None` if not. `manifest` is what is known of
    /// the response.
    pub(super) fn sliced(
        &self,
        head: &Head<'_>,
        case: &Case<'_>,
        manifest: Option<&Arc<Entry>>,
    ) -> Option<Start> {
        let rules = &case.rules;
        let slice_bytes = rules.rules.slice_bytes.filter(|&bytes| bytes <= self.store.body_bytes_max())?;
        let is_everybodys = !case.cache_fields.is_authorized || rules.names_authorization;
        let is_stored = !rules.is_unstored && !case.asks.no_store && !case.asks.only_if_cached;
        if head.method != Method::Get || slice_bytes == 0 || !is_everybodys || !is_stored {
            return None;
        }
        match head.field("range") {
            Some(value) => start(value),
            None => manifest.map(|_| Start::At(0)),
        }
        .filter(|_| !self.store.is_passed(pass_slot(&case.key, &self.store), case.now_ms))
    }

    /// Serves a request from slices.
    pub(super) fn answer_sliced(
        &self,
        request: Request<'_>,
        mut what: Forwarded<'_>,
        case: &Case<'_>,
        start: Start,
        manifest: Option<Arc<Entry>>,
        response: &mut Response,
    ) -> Reply {
        let known = manifest.as_ref().and_then(Whole::of);
        let is_fresh = |entry: &Arc<Entry>| {
            entry.policy.judge(&case.asks, case.now_ms, entry.is_expired()) == Verdict::Fresh
        };
        let cache_status = match &known {
            Some(whole) if is_fresh(&whole.entry) => {
                let ttl = Some(whole.entry.policy.fresh_for(case.now_ms));
                CacheStatus { ttl, ..CacheStatus::of(CacheOutcome::Hit) }
            }
            Some(_) => CacheStatus::forwarded(CacheOutcome::Expired, "stale"),
            None => CacheStatus::forwarded(CacheOutcome::Miss, "uri-miss"),
        };
        let whole = known.filter(|_| cache_status.label == CacheOutcome::Hit);
        let slice_bytes = match &whole {
            Some(whole) => whole.slice_bytes,
            None => case.rules.rules.slice_bytes.unwrap_or(1),
        };
        what.edits.left_out = left_out_always();
        let own = self.proxy_worker.prepare(&request, &what);
        what.edits.left_out = &LEFT_OUT;
        let of_slices = self.proxy_worker.prepare(&request, &what);
        let (Some(own), Some(of_slices), Some(caching)) = (own, of_slices, self.me.upgrade()) else {
            respond::refuse(Status::BAD_GATEWAY, None, response);
            what.finish.finish(response, ResponseOrigin::Here);
            return Reply::Now;
        };
        let says = case.rules.rules.says_status;
        let alone = Rc::new(CacheFinish {
            inner: what.finish.clone(),
            cache_status: says.then_some(cache_status),
            store: self.store.clone(),
            after: After::Nothing,
        });
        let source = Source {
            caching,
            key: case.key.to_buf(),
            rules: case.rules.rules.clone(),
            slice_bytes,
            request: of_slices,
            stale: manifest.filter(|_| whole.is_none()),
        };
        let sliced = Sliced {
            source: Rc::new(source),
            start,
            head: request.head.bytes().to_vec(),
            conditions: case.cache_fields.conditions,
            own,
            client: Rc::new(RefCell::new(Some(ParkedClient { exchange: request.park(), finish: alone }))),
            cache_status: says.then_some(cache_status),
            finish: what.finish,
        };
        self.counters.count(cache_status.label);
        Reply::Later(Box::pin(sliced.respond(whole)))
    }
}

/// A request that is served from slices.
struct Sliced {
    source: Rc<Source>,
    start: Start,
    head: Vec<u8>,
    conditions: RequestConditions,
    /// The original request of the client.
    own: Prepared,
    client: SharedClient,
    cache_status: Option<CacheStatus>,
    finish: Rc<dyn Finish>,
}

impl Sliced {
    async fn respond(self, whole: Option<Whole>) -> Response {
        let first = match whole {
            Some(whole) => Ok(whole),
            None => self.first().await,
        };
        if let Err(SliceFailure::Passed) = first {
            if let Some(client) = self.client.take() {
                self.source.caching.proxy_worker.pass_on(self.own, client);
            }
            // The response comes by key.
            return pending().await;
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
    async fn first(&self) -> Result<Whole, SliceFailure> {
        let Source { caching, slice_bytes, .. } = &*self.source;
        let index = match self.start {
            Start::At(first) => first / (*slice_bytes).max(1),
            // This gives the complete length.
            Start::Suffix => 0,
        };
        let key = self.source.key();
        // All requests for the same slice wait for the same flight, whatever representation it will belong to.
        let slot = caching.store.slot_of(key.hash, format!("\x01first {slice_bytes}:{index}").as_bytes());
        let flight = self.source.flight((slot, index), None, self.client.clone());
        let outcome = flight.outcome().await;
        if self.client.borrow().is_none() {
            return Err(SliceFailure::Passed);
        }
        match outcome {
            Outcome::Whole(slice) => {
                Whole::of(&slice).ok_or(SliceFailure::Failed(Status::INTERNAL_SERVER_ERROR))
            }
            Outcome::Failed(status) => Err(SliceFailure::Failed(status)),
            Outcome::Released | Outcome::Stream(..) | Outcome::Loaded(_) => Err(SliceFailure::Passed),
        }
    }

    /// Writes the response, with a body streamed from slices.
    fn write(&self, whole: &Whole, head: &Head<'_>, response: &mut Response) {
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
            let body = SliceBody { reader, next: part.start, end: part.end, coming: None };
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

/// Gets the slices of one response.
struct SliceReader {
    source: Rc<Source>,
    whole: Whole,
}

impl SliceReader {
    /// A slice: from memory, from disk, or from the upstream.
    async fn slice(self: Rc<Self>, index: u64) -> Result<Arc<Entry>, BoxError> {
        let SliceReader { source, whole } = &*self;
        let store = &source.caching.store;
        let (key, selected, now_ms) = (source.key(), whole.selected(index), clock::unix_milliseconds());
        let place = whole.place(&key, index, store);
        match store.slice(&key, place, &selected, now_ms) {
            Slice::Here(entry) => return Ok(entry),
            Slice::Cold => {
                if let Some(entry) = self.clone().slice_slowly(index, now_ms).await {
                    return Ok(entry);
                }
            }
            Slice::Nothing => {}
        }
        let flight = source.flight((place.0, index), Some(whole.expected()), SharedClient::default());
        match flight.outcome().await {
            Outcome::Whole(entry) if entry.selected() == selected => Ok(entry),
            _ => Err("a part of the response could not be fetched, or it has changed".into()),
        }
    }

    /// Makes another thread read a slice on disk.
    async fn slice_slowly(self: Rc<Self>, index: u64, now_ms: u64) -> Option<Arc<Entry>> {
        let SliceReader { source, whole } = &*self;
        let store = source.caching.store.clone();
        let key = source.key.clone();
        let selected = whole.selected(index);
        let place = whole.place(&source.key(), index, &store);
        let read = tokio::task::spawn_blocking(move || {
            store.slice_slowly(&store.key_of(&key), place, &selected, now_ms)
        });
        read.await.ok().flatten()
    }
}

/// The future of the next slice.
type Coming = Pin<Box<dyn Future<Output = Result<Arc<Entry>, BoxError>>>>;

/// A part of a body, read slice by slice. It holds one slice at a time.
struct SliceBody {
    reader: Rc<SliceReader>,
    next: u64,
    end: u64,
    coming: Option<Coming>,
}

impl http_body::Body for SliceBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let SliceBody { reader, next, end, coming } = &mut *self;
        if *next >= *end {
            return Poll::Ready(None);
        }
        let index = *next / reader.whole.slice_bytes.max(1);
        let slice = coming.get_or_insert_with(|| Box::pin(reader.clone().slice(index)));
        let polled = match slice.as_mut().poll(context) {
            Poll::Ready(polled) => polled,
            Poll::Pending => return Poll::Pending,
        };
        *coming = None;
        let part = reader.whole.part(index);
        let wanted = (*next - part.start)..((*end).min(part.end) - part.start);
        let piece = polled.and_then(|entry| {
            let body = body_of(&entry);
            let wanted = wanted.start as usize..wanted.end as usize;
            match wanted.end <= body.len() && !wanted.is_empty() {
                true => Ok(body.slice(wanted)),
                false => Err("a stored part is too short".into()),
            }
        });
        match &piece {
            Ok(piece) => *next += piece.len() as u64,
            Err(_) => *next = *end,
        }
        Poll::Ready(Some(piece.map(Frame::data)))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.end - self.next)
    }
}
