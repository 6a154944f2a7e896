//! A copy of a waiting request, with which it can go through the cache again.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use flatout_engine::{ExchangeKey, Reply, Request, RequestBody, Response};
use flatout_lane::clock;
use flatout_wire::Status;
use flatout_wire::cache::Asks;

use super::follow::with_head;
use super::key::{Key, KeyBuf};
use super::store::Store;
use super::worker::{CacheFields, Case};
use flatout_gateway::Rules;
use flatout_gateway::{Caching as CachingRules, Client, Edits, Finish, Forwarded};
use flatout_proxy::Forward;

/// How often a request waits before it is forwarded alone: for a read of the first variant from disk, for a read of its own variant, and
/// for the upstream's response to another request.
const WAITS_MAX: u8 = 3;

/// What a request has waited for before it goes through the cache again.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct WaitHistory {
    count: u8,
    /// The slot of its variant, if the response was another variant.
    pub(super) variant: Option<u64>,
    /// Whether an entry was found on disk; `None` if no read was waited for.
    pub(super) was_on_disk: Option<bool>,
}

impl WaitHistory {
    /// The same after it has waited once more; `None` if that exceeds the limit.
    pub(super) fn once_more(self) -> Option<WaitHistory> {
        (self.count + 1 < WAITS_MAX).then_some(WaitHistory { count: self.count + 1, ..self })
    }
}

/// A request without a body, and how it is forwarded and cached.
pub(super) struct WaitingRequest {
    pub(super) head: Vec<u8>,
    path: Vec<u8>,
    peer: Option<SocketAddr>,
    exchange: ExchangeKey,
    forward: Forward,
    target: Vec<u8>,
    client: Client,
    /// Names of fields that the site removes, and lines that it adds.
    dropped: Vec<String>,
    lines: Vec<u8>,
    pub(super) finish: Rc<dyn Finish>,
    key: KeyBuf,
    pub(super) rules: Arc<Rules>,
    names_authorization: bool,
    is_unstored: bool,
    pub(super) cache_fields: CacheFields,
    pub(super) asks: Asks,
    pub(super) waited: WaitHistory,
}

impl WaitingRequest {
    pub(super) fn of(request: &Request<'_>, what: &Forwarded<'_>, case: &Case<'_>) -> WaitingRequest {
        let Edits { dropped, dropped_too, lines, .. } = what.edits;
        WaitingRequest {
            head: request.head.bytes().to_vec(),
            path: request.path.to_vec(),
            peer: request.peer,
            exchange: request.park(),
            forward: what.forward.clone(),
            target: what.target.to_vec(),
            client: what.client,
            dropped: [dropped, dropped_too].concat(),
            lines: lines.to_vec(),
            finish: what.finish.clone(),
            key: case.key.to_buf(),
            rules: case.rules.rules.clone(),
            names_authorization: case.rules.names_authorization,
            is_unstored: case.rules.is_unstored,
            cache_fields: case.cache_fields,
            asks: case.asks,
            waited: case.waited,
        }
    }

    pub(super) fn key(&self, store: &Store) -> Key<'_> {
        store.key_of(&self.key)
    }

    /// Passes the request, as it arrived, to `act`.
    pub(super) fn resume(
        &self,
        store: &Store,
        response: &mut Response,
        act: impl FnOnce(Request<'_>, Forwarded<'_>, Case<'_>, &mut Response) -> Reply,
    ) -> Reply {
        let rules = CachingRules {
            rules: &self.rules,
            // It is in our key.
            key: None,
            names_authorization: self.names_authorization,
            repeats: false,
            is_bypassed: false,
            is_unstored: self.is_unstored,
        };
        let (dropped, lines) = (&*self.dropped, &*self.lines);
        let key = self.key(store);
        let authority = Some(key.authority(&self.target));
        let what = Forwarded {
            forward: &self.forward,
            target: &self.target,
            client: self.client,
            edits: Edits { dropped, lines, authority, ..Edits::default() },
            finish: self.finish.clone(),
            caching: Some(rules),
        };
        let case = Case {
            key,
            rules,
            cache_fields: self.cache_fields,
            asks: self.asks,
            now_ms: clock::unix_milliseconds(),
            waited: self.waited,
        };
        let reply = with_head(&self.head, |head| {
            let request = Request::resumed(*head, &self.path, RequestBody::NONE, self.peer, &self.exchange);
            act(request, what, case, response)
        });
        reply.unwrap_or_else(|| {
            response.set_status(Status::INTERNAL_SERVER_ERROR);
            Reply::Now
        })
    }
}
