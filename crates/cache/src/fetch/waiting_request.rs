//! A copy of a waiting request, with which it can go through the cache again.

use std::rc::Rc;
use std::sync::Arc;

use flatout_engine::{OwnedRequest, Reply, Request, Response, bug};
use flatout_lane::clock;
use flatout_wire::cache::RequestDirectives;
use flatout_wire::head::parse_kept;
use flatout_wire::{Head, Status};

use crate::key::{Key, KeyBuf};
use crate::policy::CacheFields;
use crate::store::Store;
use crate::worker::Lookup;
use flatout_gateway::Rules;
use flatout_gateway::{Caching, Client, Edits, Finish, Forwarded};
use flatout_proxy::Forward;

/// Calls `act` with a kept head. `None`, which is reported as a bug, if it cannot be parsed again.
pub(crate) fn with_head<T>(bytes: &[u8], act: impl FnOnce(&Head<'_>) -> T) -> Option<T> {
    let mut fields = Vec::new();
    let head = parse_kept(bytes, &mut fields, None);
    if head.is_none() {
        bug!("the head of a request that waited cannot be parsed again");
    }
    Some(act(&head?))
}

/// How often a request waits before it is forwarded alone: for a read of the first variant from disk, for a read of its own variant, and
/// for the upstream's response to another request.
const WAITS_MAX: u8 = 3;

/// What a request has waited for before it goes through the cache again.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct WaitHistory {
    count: u8,
    /// The slot of its variant, if the response was another variant.
    pub(crate) variant: Option<u64>,
    /// Whether an entry was found on disk; `None` if no read was waited for.
    pub(crate) was_on_disk: Option<bool>,
}

impl WaitHistory {
    /// The same after it has waited once more; `None` if that exceeds the limit.
    pub(crate) fn once_more(self) -> Option<WaitHistory> {
        (self.count + 1 < WAITS_MAX).then_some(WaitHistory { count: self.count + 1, ..self })
    }
}

/// A request without a body, and how it is forwarded and cached.
pub(crate) struct WaitingRequest {
    request: OwnedRequest,
    forward: Forward,
    target: Vec<u8>,
    client: Client,
    /// Names of fields that the site removes, and lines that it adds.
    dropped: Vec<String>,
    lines: Vec<u8>,
    /// The method that the site has chosen.
    method: Option<Vec<u8>>,
    drops_all: bool,
    pub(crate) finish: Rc<dyn Finish>,
    key: KeyBuf,
    pub(crate) rules: Arc<Rules>,
    names_authorization: bool,
    is_unstored: bool,
    pub(crate) cache_fields: CacheFields,
    pub(crate) directives: RequestDirectives,
    pub(crate) waited: WaitHistory,
}

impl WaitingRequest {
    pub(crate) fn of(
        request: &Request<'_>,
        forwarded: &Forwarded<'_>,
        lookup: &Lookup<'_>,
    ) -> WaitingRequest {
        let Edits { dropped, dropped_too, left_out, lines, method, drops_all, .. } = forwarded.edits;
        let left_out: Vec<String> =
            left_out.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect();
        WaitingRequest {
            request: OwnedRequest::without_body(request),
            forward: forwarded.forward.clone(),
            target: forwarded.target.to_vec(),
            client: forwarded.client,
            dropped: [dropped, dropped_too, &left_out].concat(),
            lines: lines.to_vec(),
            method: method.map(<[u8]>::to_vec),
            drops_all,
            finish: forwarded.finish.clone(),
            key: lookup.key.to_buf(),
            rules: lookup.rules.rules.clone(),
            names_authorization: lookup.rules.names_authorization,
            is_unstored: lookup.rules.is_unstored,
            cache_fields: lookup.cache_fields,
            directives: lookup.directives,
            waited: lookup.waited,
        }
    }

    /// Its head.
    pub(crate) fn head(&self) -> &[u8] {
        &self.request.head
    }

    pub(crate) fn key(&self, store: &Store) -> Key<'_> {
        store.key_of(&self.key)
    }

    /// Passes the request, as it arrived, to `act`, with these rules for its response.
    pub(crate) fn resume(
        &self,
        store: &Store,
        finish: Rc<dyn Finish>,
        response: &mut Response,
        act: impl FnOnce(Request<'_>, Forwarded<'_>, Lookup<'_>, &mut Response) -> Reply,
    ) -> Reply {
        let rules = Caching {
            rules: &self.rules,
            // They are in our key.
            key: None,
            space: b"",
            names_authorization: self.names_authorization,
            repeats: false,
            is_bypassed: false,
            is_refreshed: false,
            is_unstored: self.is_unstored,
        };
        let (dropped, lines) = (&*self.dropped, &*self.lines);
        let (method, drops_all) = (self.method.as_deref(), self.drops_all);
        let key = self.key(store);
        let authority = Some(key.authority(&self.target));
        let forwarded = Forwarded {
            forward: &self.forward,
            target: &self.target,
            client: self.client,
            edits: Edits { dropped, lines, authority, method, drops_all, ..Edits::default() },
            finish,
            caching: Some(rules),
        };
        let lookup = Lookup {
            key,
            rules,
            cache_fields: self.cache_fields,
            directives: self.directives,
            now_ms: clock::unix_milliseconds(),
            waited: self.waited,
        };
        let act = |request: Request<'_>| act(request, forwarded, lookup, &mut *response);
        self.request.resume_without_body(act).unwrap_or_else(|| {
            bug!("the head of a request that waited cannot be parsed again");
            response.set_status(Status::INTERNAL_SERVER_ERROR);
            Reply::Now
        })
    }
}
