//! Requests that wait for the response to another request, or for a read from disk.
//!
//! ```text
//! outcome ── its own variant ──────────────> the response
//!         ── another variant, read from disk ─> through the cache again
//!         ── a response for one client only ──> forwarded alone
//! ```

use std::rc::Rc;

use bytes::Bytes;
use flatout_engine::{Body, Reply, Request, Response};
use flatout_lane::clock;
use flatout_wire::Status;
use flatout_wire::cache::Verdict;

use crate::entry::{Entry, body_of};
use crate::fetch::Fetch;
use crate::fetch::bypass::StoreEffect;
use crate::fetch::flight::Outcome;
use crate::fetch::waiting_request::{WaitHistory, WaitingRequest, with_head};
use crate::policy::{RequestConditions, select};
use crate::respond;
use crate::status::{CacheOutcome, CacheStatus};
use crate::worker::{CacheWorker, Lookup};
use flatout_gateway::{Finish, Forwarded, ResponseOrigin, complete, signalling};

/// A waiting request.
struct Follower {
    worker: Rc<CacheWorker>,
    fetch: Fetch,
    waiting: WaitingRequest,
}

/// How a request goes on.
enum Next {
    /// Its response was written.
    Respond(ResponseOrigin),
    /// Through the cache again.
    Again(WaitHistory),
    /// Without the cache.
    Alone,
}

impl CacheWorker {
    /// Makes a request wait for the response to another, or for a read from disk.
    pub(crate) fn follow(
        self: &Rc<Self>,
        request: &Request<'_>,
        forwarded: &Forwarded<'_>,
        lookup: &Lookup<'_>,
        fetch: Fetch,
    ) -> Reply {
        let waiting = WaitingRequest::of(request, forwarded, lookup);
        Reply::Later(Box::pin(Follower { worker: self.clone(), fetch, waiting }.respond()))
    }
}

impl Follower {
    async fn respond(self) -> Response {
        let outcome = self.fetch.flight.outcome().await;
        let mut response = Response::new();
        let (finish, abandoned) = signalling(self.waiting.finish.clone());
        let reply = self.resume(outcome, finish, &mut response);
        // The flight may hold a whole body.
        drop(self);
        complete(reply, response, abandoned).await
    }

    fn resume(&self, outcome: Outcome, finish: Rc<dyn Finish>, response: &mut Response) -> Reply {
        let Follower { worker, waiting, .. } = self;
        match self.next(outcome, response) {
            Next::Respond(by) => {
                finish.finish(response, by);
                Reply::Now
            }
            Next::Again(waited) => {
                waiting.resume(&worker.store, finish, response, |request, forwarded, lookup, response| {
                    worker.look(request, forwarded, Lookup { waited, ..lookup }, response)
                })
            }
            Next::Alone => {
                waiting.resume(&worker.store, finish, response, |request, forwarded, _, response| {
                    let cache_status = CacheStatus { is_collapsed: false, ..self.fetch.cache_status };
                    worker.pass(request, forwarded, cache_status, StoreEffect::Nothing, response)
                })
            }
        }
    }

    /// What follows from the outcome. Writes the response, if there is one now.
    fn next(&self, outcome: Outcome, response: &mut Response) -> Next {
        let now_ms = clock::unix_milliseconds();
        match outcome {
            Outcome::Whole(entry) => self.misfit(&entry, now_ms).unwrap_or_else(|| {
                self.write(
                    &entry,
                    body_of(&entry),
                    self.waiting.cache_fields.conditions,
                    self.fetch.cache_status,
                    response,
                )
            }),
            Outcome::Stream(entry, length) => self.misfit(&entry, now_ms).unwrap_or_else(|| {
                let Some(body) = self.fetch.flight.reader(length) else { return Next::Alone };
                let conditions = RequestConditions { has_conditions: false, has_range: false };
                let next = self.write(&entry, Bytes::new(), conditions, self.fetch.cache_status, response);
                response.set_body(Body::Stream(Box::pin(body)));
                next
            }),
            Outcome::Loaded(is_there) => self.again(|waited| waited.was_on_disk = Some(is_there)),
            Outcome::Failed(status) => {
                self.fail(status, Some(self.waiting.rules.stale_seconds()), now_ms, response)
            }
            Outcome::Rejected(status) => self.fail(status, None, now_ms, response),
            Outcome::Released => Next::Alone,
        }
    }

    /// How the request goes on if it cannot use this response: alone if the response must be validated for each request, and through the
    /// cache again if it is another variant.
    fn misfit(&self, entry: &Entry, now_ms: u64) -> Option<Next> {
        if entry.policy.judge(&self.waiting.directives, now_ms, false) == Verdict::Validate {
            return Some(Next::Alone);
        }
        if entry.vary().is_empty() {
            return None;
        }
        let mut selected = Vec::new();
        if with_head(self.waiting.head(), |head| select(head, entry.vary(), &mut selected)).is_none() {
            return Some(Next::Alone);
        }
        if entry.selected() == selected {
            return None;
        }
        let store = &self.worker.store;
        let variant = Some(store.slot_of(self.waiting.key(store).hash, &selected));
        Some(self.again(|waited| waited.variant = variant))
    }

    fn again(&self, change: impl FnOnce(&mut WaitHistory)) -> Next {
        let Some(mut waited) = self.waiting.waited.once_more() else { return Next::Alone };
        change(&mut waited);
        Next::Again(waited)
    }

    /// The upstream has failed: sends the stale response, if that is allowed; by a rule, for at most `cut_off` seconds.
    fn fail(&self, status: Status, cut_off: Option<u32>, now_ms: u64, response: &mut Response) -> Next {
        if let Some(stale) = &self.fetch.stale
            && stale.policy.stands_in(&self.waiting.directives, now_ms, cut_off)
        {
            let ttl = Some(stale.policy.fresh_for(now_ms));
            let cache_status =
                CacheStatus { ttl, detail: Some("error"), ..CacheStatus::of(CacheOutcome::Stale) };
            return self.write(
                stale,
                body_of(stale),
                self.waiting.cache_fields.conditions,
                cache_status,
                response,
            );
        }
        respond::refuse(status, self.reported(self.fetch.cache_status).as_ref(), response);
        self.worker.counters.count_response(self.fetch.cache_status.label, response);
        Next::Respond(ResponseOrigin::Here)
    }

    fn reported(&self, cache_status: CacheStatus) -> Option<CacheStatus> {
        self.waiting.rules.says_status.then_some(cache_status)
    }

    fn write(
        &self,
        entry: &Entry,
        body: Bytes,
        conditions: RequestConditions,
        cache_status: CacheStatus,
        response: &mut Response,
    ) -> Next {
        self.worker.counters.count_response(cache_status.label, response);
        let (reported, now_ms) = (self.reported(cache_status), clock::unix_milliseconds());
        let written = with_head(self.waiting.head(), |head| {
            respond::write(entry, body, head, conditions, now_ms, reported.as_ref(), response);
        });
        if written.is_none() {
            response.set_status(Status::INTERNAL_SERVER_ERROR);
        }
        Next::Respond(ResponseOrigin::Upstream)
    }
}
