//! One worker's part of the cache: it serves a request from the cache or sends it to the upstream.

mod answering;
mod asking;
mod looked;

use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use flatout_engine::{BodyPlan, Mailbox, Reply, Request, Response, Worker};
use flatout_lane::clock;
use flatout_wire::cache::{Asks, write_selected};
use flatout_wire::{Framing, Head, Method};

use super::forms::Served;
use super::front::Front;
use super::invalidate::After;
use super::key::{Key, write_key};
use super::label::{Label, Said};
use super::repeat::Repeats;
use super::store::Store;
use super::tally::Counters;
use crate::proxy::{Forward, Links};
use crate::site::{Caching as Asked, Forwarded, Forwarding, Opinion, Question};
pub(super) use looked::{LEFT_OUT, Looked, left_out_always};

/// One worker's part of a cache.
pub(super) struct Caching {
    pub(super) me: Weak<Caching>,
    pub(super) links: Rc<Links>,
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
    pub(super) rules: Asked<'c>,
    pub(super) looked: Looked,
    pub(super) asks: Asks,
    pub(super) now_ms: u64,
}

impl Case<'_> {
    /// The `Cache-Status` of a response, if that is enabled.
    fn said(&self, said: Said) -> Option<Said> {
        self.rules.rules.says_status.then_some(said)
    }
}

impl Caching {
    pub(super) fn new(worker: &Worker, store: Arc<Store>, links: Rc<Links>) -> Rc<Caching> {
        Rc::new_cyclic(|me| Caching {
            me: me.clone(),
            links,
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

impl Forwarding for Caching {
    fn body(&self, to: &Forward, head: &Head<'_>, bytes_max: Option<u64>) -> BodyPlan {
        self.links.body(to, head, bytes_max)
    }

    fn forward(&self, request: Request<'_>, what: Forwarded<'_>, response: &mut Response) -> Reply {
        let Some(rules) = what.caching else { return self.links.forward(request, what, response) };
        let head = request.head;
        let mut bytes = self.key.take();
        bytes.clear();
        let upstream = self.links.upstream_name(what.forward.upstream);
        let url_ends = write_key(&head, &what, &rules, upstream, &mut bytes);
        let key = Key::of(&bytes, url_ends, rules.key.is_some(), |bytes| self.store.hash(bytes));
        let looked = Looked::at(&head);
        let is_readable = matches!(head.method, Method::Get | Method::Head) && head.framing == Framing::None;
        let reply = if !is_readable {
            let after = After::of_method(head.method, &key);
            self.pass(request, what, Said::forwarded(Label::Bypass, "method"), after, response)
        } else if rules.is_bypassed || looked.is_for_origin {
            let reason = if rules.is_bypassed { "bypass" } else { "request" };
            self.pass(request, what, Said::forwarded(Label::Bypass, reason), After::Nothing, response)
        } else {
            let asks = if rules.rules.ignores_requests { Asks::default() } else { looked.asks };
            let case = Case { key, rules, looked, asks, now_ms: clock::unix_milliseconds() };
            match self.hit(&head, &what, &case, response) {
                Some(slot) => {
                    self.counters.count(Label::Hit);
                    what.finish.finish_stored(response, &Served { caching: self, slot, hash: key.hash });
                    Reply::Now
                }
                None => self.look(request, what, case, response),
            }
        };
        self.key.replace(bytes);
        reply
    }

    #[inline]
    fn repeat(&self, request: &Request<'_>, response: &mut Response) -> bool {
        self.answer_again(request, response)
    }

    fn ask(&self, question: Question<'_>, then: Box<dyn FnOnce(Opinion)>) {
        self.links.ask(question, then);
    }
}
