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
use super::invalidate::{After, Marked};
use super::label::{Label, Said};
use super::respond::{self, Wishes};
use super::slice_fill::{SharedAsker, Source};
use super::slice_store::Slice;
use super::slices::{Whole, pass_slot};
use super::worker::{Caching, Case, LEFT_OUT, left_out_always};
use crate::proxy::{Asker, Prepared};
use crate::site::{Finish, Forwarded, MadeBy};

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
        let is_everybodys = !case.looked.is_authorized || rules.names_authorization;
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
        let said = match &known {
            Some(whole) if is_fresh(&whole.entry) => {
                let ttl = Some(whole.entry.policy.fresh_for(case.now_ms));
                Said { ttl, ..Said::of(Label::Hit) }
            }
            Some(_) => Said::forwarded(Label::Expired, "stale"),
            None => Said::forwarded(Label::Miss, "uri-miss"),
        };
        let whole = known.filter(|_| said.label == Label::Hit);
        let slice_bytes = match &whole {
            Some(whole) => whole.slice_bytes,
            None => case.rules.rules.slice_bytes.unwrap_or(1),
        };
        what.edits.left_out = left_out_always();
        let own = self.links.prepare(&request, &what);
        what.edits.left_out = &LEFT_OUT;
        let of_slices = self.links.prepare(&request, &what);
        let (Some(own), Some(of_slices), Some(caching)) = (own, of_slices, self.me.upgrade()) else {
            respond::refuse(Status::BAD_GATEWAY, None, response);
            what.finish.finish(response, MadeBy::Here);
            return Reply::Now;
        };
        let says = case.rules.rules.says_status;
        let alone = Rc::new(Marked {
            inner: what.finish.clone(),
            said: says.then_some(said),
            store: self.store.clone(),
            after: After::Nothing,
        });
        let source = Source {
            caching,
            key: [case.key.url, case.key.rest].concat(),
            url_ends: case.key.url.len(),
            is_custom: case.key.is_custom,
            rules: case.rules.rules.clone(),
            slice_bytes,
            request: of_slices,
            stale: manifest.filter(|_| whole.is_none()),
        };
        let sliced = Sliced {
            source: Rc::new(source),
            start,
            head: request.head.bytes().to_vec(),
            wishes: case.looked.wishes,
            own,
            asker: Rc::new(RefCell::new(Some(Asker { exchange: request.park(), finish: alone }))),
            said: says.then_some(said),
            finish: what.finish,
        };
        self.counters.count(said.label);
        Reply::Later(Box::pin(sliced.respond(whole)))
    }
}

/// A request that is served from slices.
struct Sliced {
    source: Rc<Source>,
    start: Start,
    head: Vec<u8>,
    wishes: Wishes,
    /// The original request of the client.
    own: Prepared,
    asker: SharedAsker,
    said: Option<Said>,
    finish: Rc<dyn Finish>,
}

impl Sliced {
    async fn respond(self, whole: Option<Whole>) -> Response {
        let first = match whole {
            Some(whole) => Ok(whole),
            None => self.first().await,
        };
        if let Err(Missing::Passed) = first {
            if let Some(asker) = self.asker.take() {
                self.source.caching.links.pass_on(self.own, asker);
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
                MadeBy::Upstream
            }
            Err(missing) => {
                respond::refuse(missing.status(), self.said.as_ref(), &mut response);
                MadeBy::Here
            }
        };
        self.finish.finish(&mut response, by);
        response
    }

    /// Requests the slice in which the range starts, which also describes the complete response.
    async fn first(&self) -> Result<Whole, Missing> {
        let Source { caching, slice_bytes, .. } = &*self.source;
        let index = match self.start {
            Start::At(first) => first / (*slice_bytes).max(1),
            // This gives the complete length.
            Start::Suffix => 0,
        };
        let key = self.source.key();
        // All requests for the same slice wait for the same flight, whatever representation it will belong to.
        let slot = caching.store.slot_of(key.hash, format!("\x01first {slice_bytes}:{index}").as_bytes());
        let flight = self.source.flight((slot, index), None, self.asker.clone());
        let outcome = flight.outcome().await;
        if self.asker.borrow().is_none() {
            return Err(Missing::Passed);
        }
        match outcome {
            Outcome::Whole(slice) => Whole::of(&slice).ok_or(Missing::Failed(Status::INTERNAL_SERVER_ERROR)),
            Outcome::Failed(status) => Err(Missing::Failed(status)),
            Outcome::Released | Outcome::Stream(..) | Outcome::Brought(_) => Err(Missing::Passed),
        }
    }

    /// Writes the response, with a body streamed from slices.
    fn write(&self, whole: &Whole, head: &Head<'_>, response: &mut Response) {
        let (entry, length) = (&whole.entry, whole.length);
        let age = entry.policy.age(clock::unix_milliseconds());
        if self.wishes.has_conditions && respond::is_not_modified(entry, head) {
            respond::write_not_modified(entry, response);
            return respond::write_more(age, self.said.as_ref(), response);
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
        respond::write_more(age, self.said.as_ref(), response);
        if !part.is_empty() {
            let reader = Rc::new(Reader { source: self.source.clone(), whole: whole.clone() });
            let body = SliceBody { reader, next: part.start, end: part.end, coming: None };
            response.set_body(Body::Stream(Box::pin(body)));
        }
    }
}

/// Why there is no first slice.
enum Missing {
    /// The client gets a response in another way.
    Passed,
    Failed(Status),
}

impl Missing {
    fn status(&self) -> Status {
        match self {
            Missing::Passed => Status::BAD_GATEWAY,
            Missing::Failed(status) => *status,
        }
    }
}

/// Gets the slices of one response.
struct Reader {
    source: Rc<Source>,
    whole: Whole,
}

impl Reader {
    /// A slice: from memory, from disk, or from the upstream.
    async fn slice(self: Rc<Self>, index: u64) -> Result<Arc<Entry>, BoxError> {
        let Reader { source, whole } = &*self;
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
        let flight = source.flight((place.0, index), Some(whole.expected()), SharedAsker::default());
        match flight.outcome().await {
            Outcome::Whole(entry) if entry.selected() == selected => Ok(entry),
            _ => Err("a part of the response could not be fetched, or it has changed".into()),
        }
    }

    /// Makes another thread read a slice on disk.
    async fn slice_slowly(self: Rc<Self>, index: u64, now_ms: u64) -> Option<Arc<Entry>> {
        let Reader { source, whole } = &*self;
        let store = source.caching.store.clone();
        let (bytes, url_ends, is_custom) = (source.key.clone(), source.url_ends, source.is_custom);
        let selected = whole.selected(index);
        let place = whole.place(&source.key(), index, &store);
        let read = tokio::task::spawn_blocking(move || {
            let key = super::key::Key::of(&bytes, url_ends, is_custom, |bytes| store.hash(bytes));
            store.slice_slowly(&key, place, &selected, now_ms)
        });
        read.await.ok().flatten()
    }
}

/// The future of the next slice.
type Coming = Pin<Box<dyn Future<Output = Result<Arc<Entry>, BoxError>>>>;

/// A part of a body, read slice by slice. It holds one slice at a time.
struct SliceBody {
    reader: Rc<Reader>,
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
