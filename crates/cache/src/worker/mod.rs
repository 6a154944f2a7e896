//! One worker's part of the cache: it serves a request from the cache or sends it to the upstream.

mod fields;
mod hit;
mod miss;

use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use flatout_engine::{BodyPlan, ExchangeKey, Mailbox, Reply, Request, Response, Worker};
use flatout_lane::clock;
use flatout_wire::cache::{Asks, write_selected};
use flatout_wire::{Framing, Head, Method};

use super::encodings::Served;
use super::front::Front;
use super::invalidate::After;
use super::key::{Key, write_key};
use super::repeat::Repeats;
use super::status::{CacheOutcome, CacheStatus};
use super::store::Store;
use super::tally::Counters;
use super::waiting_request::WaitHistory;
pub(super) use fields::{CacheFields, LEFT_OUT, left_out_always};
use flatout_gateway::{AuthDecision, AuthQuery, Caching as CachingRules, Forwarded, Forwarding};
use flatout_proxy::{Forward, ProxyWorker};

/// One worker's part of a cache.
pub(super) struct Caching {
    pub(super) me: Weak<Caching>,
    pub(super) proxy_worker: Rc<ProxyWorker>,
    pub(super) store: Arc<Store>,
    pub(super) mailbox: Mailbox,
    pub(super) counters: Arc<Counters>,
    pub(super) front: RefCell<Front>,
    pub(super) repeats: RefCell<Repeats>,
    /// Buffers for the key and for the selecting fields of a request, reused to avoid allocations.
    key: RefCell<Vec<u8>>,
    selected: RefCell<Vec<u8>>,
}

/// The request being served, with its parsed properties.
pub(super) struct Case<'c> {
    pub(super) key: Key<'c>,
    pub(super) rules: CachingRules<'c>,
    pub(super) cache_fields: CacheFields,
    pub(super) asks: Asks,
    pub(super) now_ms: u64,
    pub(super) waited: WaitHistory,
}

impl Case<'_> {
    /// The `Cache-Status` of a response, if that is enabled.
    fn cache_status(&self, cache_status: CacheStatus) -> Option<CacheStatus> {
        self.rules.rules.says_status.then_some(cache_status)
    }
}

impl Caching {
    pub(super) fn new(worker: &Worker, store: Arc<Store>, proxy_worker: Rc<ProxyWorker>) -> Rc<Caching> {
        Rc::new_cyclic(|me| Caching {
            me: me.clone(),
            proxy_worker,
            counters: store.tally.counters(),
            store,
            mailbox: worker.mailbox.clone(),
            front: RefCell::new(Front::new()),
            repeats: RefCell::new(Repeats::new()),
            key: RefCell::default(),
            selected: RefCell::default(),
        })
    }
}

/// Writes the request's values of the fields named in `Vary`.
pub(super) fn select(head: &Head<'_>, names: &[u8], out: &mut Vec<u8>) {
    let of = |name: &[u8]| {
        let name = name.to_vec();
        head.fields().filter(move |(this, _)| this.eq_ignore_ascii_case(&name)).map(|(_, value)| value)
    };
    write_selected(names, of, out);
}

/// The same request with the host of its key, which the upstream gets.
fn as_in_key<'k>(mut what: Forwarded<'k>, key: &Key<'k>) -> Forwarded<'k> {
    what.edits.authority = Some(key.authority(what.target));
    what
}

impl Forwarding for Caching {
    fn body(&self, to: &Forward, head: &Head<'_>, bytes_max: Option<u64>) -> BodyPlan {
        self.proxy_worker.body(to, head, bytes_max)
    }

    fn time_left(&self, to: &Forward, key: ExchangeKey) -> Option<Duration> {
        self.proxy_worker.time_left(to, key)
    }

    fn forward(&self, request: Request<'_>, what: Forwarded<'_>, response: &mut Response) -> Reply {
        let Some(rules) = what.caching else { return self.proxy_worker.forward(request, what, response) };
        let head = request.head;
        let mut bytes = self.key.take();
        bytes.clear();
        let upstream = self.proxy_worker.upstream_name(what.forward.upstream);
        let url_ends = write_key(&head, &what, &rules, upstream, &mut bytes);
        let key = Key::of(&bytes, url_ends, rules.key.is_some(), |bytes| self.store.hash(bytes));
        // A hit needs none of it.
        let to_upstream = |what| as_in_key(what, &key);
        let cache_fields = CacheFields::at(&head);
        let is_readable = matches!(head.method, Method::Get | Method::Head) && head.framing == Framing::None;
        let reply = if !is_readable {
            let after = After::of_method(head.method, &key);
            self.pass(
                request,
                to_upstream(what),
                CacheStatus::forwarded(CacheOutcome::Bypass, "method"),
                after,
                response,
            )
        } else if rules.is_bypassed || cache_fields.is_for_origin {
            let reason = if rules.is_bypassed { "bypass" } else { "request" };
            self.pass(
                request,
                to_upstream(what),
                CacheStatus::forwarded(CacheOutcome::Bypass, reason),
                After::Nothing,
                response,
            )
        } else {
            let asks = if rules.rules.ignores_requests { Asks::default() } else { cache_fields.asks };
            let case = Case {
                key,
                rules,
                cache_fields,
                asks,
                now_ms: clock::unix_milliseconds(),
                waited: WaitHistory::default(),
            };
            match self.hit(&head, &what, &case, response) {
                Some(slot) => {
                    self.counters.count(CacheOutcome::Hit);
                    what.finish.finish_stored(response, &Served { caching: self, slot, hash: key.hash });
                    Reply::Now
                }
                None => self.look(request, to_upstream(what), case, response),
            }
        };
        self.key.replace(bytes);
        reply
    }

    #[inline]
    fn repeat(&self, request: &Request<'_>, response: &mut Response) -> bool {
        self.answer_again(request, response)
    }

    fn ask(&self, query: AuthQuery<'_>, then: tokio::sync::oneshot::Sender<AuthDecision>) {
        self.proxy_worker.ask(query, then);
    }
}
