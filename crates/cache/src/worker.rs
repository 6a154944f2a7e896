//! One worker's part of the cache: it serves a request from the cache or sends it to the upstream.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use flatout_engine::{BodyPlan, ExchangeKey, Lane, Mailbox, Reply, Request, Response, Worker};
use flatout_lane::clock;
use flatout_wire::cache::RequestDirectives;
use flatout_wire::{Framing, Head, Method};

use crate::encodings::ServedEntry;
use crate::fetch::bypass::StoreEffect;
use crate::fetch::waiting_request::WaitHistory;
use crate::hot::entries::HotEntries;
use crate::hot::heads::HotHeads;
use crate::key::{Key, write_key};
use crate::policy::CacheFields;
use crate::status::{CacheOutcome, CacheStatus};
use crate::store::Store;
use crate::tally::Counters;
use flatout_gateway::{AuthDecision, AuthQuery, Caching, Forwarded, Forwarding};
use flatout_proxy::{Forward, ProxyWorker};

/// One worker's part of a cache.
pub(crate) struct CacheWorker {
    pub(crate) proxy_worker: Rc<ProxyWorker>,
    pub(crate) store: Arc<Store>,
    pub(crate) lane: Lane,
    pub(crate) mailbox: Mailbox,
    pub(crate) counters: Arc<Counters>,
    pub(crate) hot_entries: RefCell<HotEntries>,
    pub(crate) hot_heads: RefCell<HotHeads>,
    /// Buffers for the key and for the selecting fields of a request, reused to avoid allocations.
    key: RefCell<Vec<u8>>,
    pub(crate) selected: RefCell<Vec<u8>>,
}

/// The worker's cache as the sites call it.
pub(crate) struct CacheService(pub(crate) Rc<CacheWorker>);

/// The request being served, with its parsed properties.
pub(crate) struct Lookup<'c> {
    pub(crate) key: Key<'c>,
    pub(crate) rules: Caching<'c>,
    pub(crate) cache_fields: CacheFields,
    pub(crate) directives: RequestDirectives,
    pub(crate) now_ms: u64,
    pub(crate) waited: WaitHistory,
}

impl Lookup<'_> {
    /// The `Cache-Status` of a response, if that is enabled.
    pub(crate) fn cache_status(&self, cache_status: CacheStatus) -> Option<CacheStatus> {
        self.rules.rules.says_status.then_some(cache_status)
    }
}

impl CacheWorker {
    pub(crate) fn new(worker: &Worker, store: Arc<Store>, proxy_worker: Rc<ProxyWorker>) -> Rc<CacheWorker> {
        Rc::new(CacheWorker {
            proxy_worker,
            counters: store.tally.counters(),
            store,
            lane: worker.lane.clone(),
            mailbox: worker.mailbox.clone(),
            hot_entries: RefCell::new(HotEntries::new()),
            hot_heads: RefCell::new(HotHeads::new()),
            key: RefCell::default(),
            selected: RefCell::default(),
        })
    }
}

/// A request with its parsed properties.
#[inline]
fn lookup<'k>(key: Key<'k>, rules: Caching<'k>, cache_fields: CacheFields) -> Lookup<'k> {
    let directives = match rules.rules.ignores_requests {
        true => RequestDirectives::default(),
        false => cache_fields.directives,
    };
    let (now_ms, waited) = (clock::unix_milliseconds(), WaitHistory::default());
    Lookup { key, rules, cache_fields, directives, now_ms, waited }
}

/// The same request with the host of its key, which the upstream gets.
fn as_in_key<'k>(mut forwarded: Forwarded<'k>, key: &Key<'k>) -> Forwarded<'k> {
    forwarded.edits.authority = Some(key.authority(forwarded.target));
    forwarded
}

impl CacheWorker {
    /// Serves a request from the cache, or sends it to the upstream.
    #[inline]
    fn forward(
        self: &Rc<Self>,
        request: Request<'_>,
        forwarded: Forwarded<'_>,
        response: &mut Response,
    ) -> Reply {
        let Some(rules) = forwarded.caching else {
            return self.proxy_worker.forward(request, forwarded, response);
        };
        let head = request.head;
        let mut bytes = self.key.take();
        bytes.clear();
        let upstream = self.proxy_worker.upstream_name(forwarded.forward.upstream);
        let url_ends = write_key(&head, &forwarded, &rules, upstream, &mut bytes);
        let key = Key::of(&bytes, url_ends, rules.key.is_some(), |bytes| self.store.hash(bytes));
        // A hit needs none of it.
        let to_upstream = |forwarded| as_in_key(forwarded, &key);
        let cache_fields = CacheFields::at(&head);
        let is_readable = matches!(head.method, Method::Get | Method::Head) && head.framing == Framing::None;
        let reply = if !is_readable {
            let after = StoreEffect::of_method(head.method, &key);
            self.pass(
                request,
                to_upstream(forwarded),
                CacheStatus::forwarded(CacheOutcome::Bypass, "method"),
                after,
                response,
            )
        } else if rules.is_bypassed || cache_fields.is_for_origin {
            let reason = if rules.is_bypassed { "bypass" } else { "request" };
            self.pass(
                request,
                to_upstream(forwarded),
                CacheStatus::forwarded(CacheOutcome::Bypass, reason),
                StoreEffect::Nothing,
                response,
            )
        } else if rules.is_refreshed {
            let lookup = lookup(key, rules, cache_fields);
            self.renew(request, to_upstream(forwarded), lookup, response)
        } else {
            let lookup = lookup(key, rules, cache_fields);
            match self.hit(&head, &forwarded, &lookup, response) {
                Some(slot) => {
                    self.counters.count_response(CacheOutcome::Hit, response);
                    forwarded
                        .finish
                        .finish_stored(response, &ServedEntry { worker: self, slot, hash: key.hash });
                    Reply::Now
                }
                None => self.look(request, to_upstream(forwarded), lookup, response),
            }
        };
        self.key.replace(bytes);
        reply
    }
}

impl Forwarding for CacheService {
    fn body(&self, to: &Forward, head: &Head<'_>, bytes_max: Option<u64>) -> BodyPlan {
        self.0.proxy_worker.body(to, head, bytes_max)
    }

    fn time_left(&self, to: &Forward, key: ExchangeKey) -> Option<Duration> {
        self.0.proxy_worker.time_left(to, key)
    }

    fn forward(&self, request: Request<'_>, forwarded: Forwarded<'_>, response: &mut Response) -> Reply {
        self.0.forward(request, forwarded, response)
    }

    #[inline]
    fn repeat(&self, request: &Request<'_>, response: &mut Response) -> bool {
        self.0.answer_again(request, response)
    }

    fn ask(&self, query: AuthQuery<'_>, then: tokio::sync::oneshot::Sender<AuthDecision>) {
        self.0.proxy_worker.ask(query, then);
    }
}
