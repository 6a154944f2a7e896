//! Requests that wait for the response to another request.

use std::future::pending;
use std::rc::Rc;
use std::sync::Arc;

use flatout_engine::{Body, Reply, Request, Response};
use flatout_lane::clock;
use flatout_wire::cache::{Asks, Verdict};
use flatout_wire::head::{HEAD_BYTES_CEILING, HeadLimits, parse};
use flatout_wire::{Head, Status};

use super::entry::{Entry, body_of};
use super::flight::{Flight, Outcome};
use super::invalidate::{After, Marked};
use super::label::{Label, Said};
use super::respond::{self, Wishes};
use super::worker::{Caching, left_out_always, select};
use crate::proxy::{Asker, Links, Prepared};
use crate::site::{Finish, Forwarded, MadeBy};

/// The head was parsed before, within the server's limits.
const LIMITS: HeadLimits = HeadLimits {
    head_bytes_max: HEAD_BYTES_CEILING,
    target_bytes_max: HEAD_BYTES_CEILING,
    fields_max: usize::MAX,
};

/// Calls `act` with a kept head.
pub(super) fn with_head<T>(bytes: &[u8], act: impl FnOnce(&Head<'_>) -> T) -> Option<T> {
    let mut fields = Vec::new();
    let head = parse(bytes, &mut fields, &LIMITS).ok()??;
    Some(act(&head))
}

/// A waiting request.
struct Follower {
    links: Rc<Links>,
    flight: Arc<Flight>,
    head: Vec<u8>,
    stale: Option<Arc<Entry>>,
    asks: Asks,
    wishes: Wishes,
    said: Option<Said>,
    finish: Rc<dyn Finish>,
}

impl Caching {
    /// Makes a request wait for the response to another.
    #[expect(clippy::too_many_arguments, reason = "they are what a follower is made of")]
    pub(super) fn follow(
        &self,
        request: Request<'_>,
        mut what: Forwarded<'_>,
        flight: Arc<Flight>,
        stale: Option<Arc<Entry>>,
        (asks, wishes): (Asks, Wishes),
        said: Said,
        response: &mut Response,
    ) -> Reply {
        what.edits.left_out = left_out_always();
        let Some(prepared) = self.links.prepare(&request, &what) else {
            respond::refuse(Status::BAD_GATEWAY, None, response);
            what.finish.finish(response, MadeBy::Here);
            return Reply::Now;
        };
        self.counters.collapsed();
        self.counters.count(said.label);
        let said = what.caching.filter(|caching| caching.rules.says_status).map(|_| said);
        let alone = Rc::new(Marked {
            inner: what.finish.clone(),
            said: said.map(|said| Said { is_collapsed: false, ..said }),
            store: self.store.clone(),
            after: After::Nothing,
        });
        let asker = Asker { exchange: request.park(), finish: alone };
        let follower = Follower {
            links: self.links.clone(),
            flight,
            head: request.head.bytes().to_vec(),
            stale,
            asks,
            wishes,
            said,
            finish: what.finish,
        };
        let stale_time = what.caching.map_or(0, |caching| caching.rules.stale_seconds());
        Reply::Later(Box::pin(follower.wait(prepared, asker, stale_time)))
    }
}

impl Follower {
    async fn wait(self, prepared: Prepared, asker: Asker, stale_time: u32) -> Response {
        let outcome = self.flight.outcome().await;
        match self.response(outcome, stale_time) {
            Some(response) => response,
            None => {
                self.links.pass_on(prepared, asker);
                // The response comes by key.
                pending().await
            }
        }
    }

    /// The response, if the outcome can be used for this request.
    fn response(&self, outcome: Outcome, stale_time: u32) -> Option<Response> {
        let now_ms = clock::unix_milliseconds();
        let mut response = Response::new();
        let by = match outcome {
            Outcome::Whole(entry) => {
                self.fits(&entry, now_ms).then_some(())?;
                let said = self.said;
                self.write(&entry, said, now_ms, &mut response)?;
                MadeBy::Upstream
            }
            Outcome::Stream(entry, length) => {
                self.fits(&entry, now_ms).then_some(())?;
                let body = self.flight.reader(length)?;
                let wishes = Wishes { has_conditions: false, has_range: false };
                with_head(&self.head, |head| {
                    respond::write(
                        &entry,
                        bytes::Bytes::new(),
                        head,
                        wishes,
                        now_ms,
                        self.said.as_ref(),
                        &mut response,
                    );
                })?;
                response.set_body(Body::Stream(Box::pin(body)));
                MadeBy::Upstream
            }
            Outcome::Failed(status) => match &self.stale {
                Some(stale) if stale.policy.stands_in(&self.asks, now_ms, Some(stale_time)) => {
                    let ttl = Some(stale.policy.fresh_for(now_ms));
                    let said = Said { ttl, detail: Some("error"), ..Said::of(Label::Stale) };
                    self.write(stale, self.said.map(|_| said), now_ms, &mut response)?;
                    MadeBy::Upstream
                }
                _ => {
                    respond::refuse(status, self.said.as_ref(), &mut response);
                    MadeBy::Here
                }
            },
            Outcome::Released => return None,
        };
        self.finish.finish(&mut response, by);
        Some(response)
    }

    /// Whether a response may be shared with other requests, and with this one.
    fn fits(&self, entry: &Entry, now_ms: u64) -> bool {
        let is_usable = entry.policy.judge(&self.asks, now_ms, false) != Verdict::Validate;
        let is_selected = || {
            let mut selected = Vec::new();
            with_head(&self.head, |head| select(head, entry.vary(), &mut selected));
            entry.selected() == selected
        };
        is_usable && (entry.vary().is_empty() || is_selected())
    }

    fn write(
        &self,
        entry: &Arc<Entry>,
        said: Option<Said>,
        now_ms: u64,
        response: &mut Response,
    ) -> Option<()> {
        with_head(&self.head, |head| {
            respond::write(entry, body_of(entry), head, self.wishes, now_ms, said.as_ref(), response);
        })
    }
}
