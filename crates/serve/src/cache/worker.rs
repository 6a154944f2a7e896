//! One worker's part of the cache: what it answers at once, and what it asks the upstream for.

use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use flatout_engine::{BodyPlan, Mailbox, Reply, Request, Response, Worker};
use flatout_lane::clock;
use flatout_wire::cache::{Asks, Verdict, write_selected};
use flatout_wire::{Framing, Head, Method, Status};

use super::entry::{Entry, body_of};
use super::fill::{Fill, Order};
use super::flight::{Flight, Outcome};
use super::forms::Served;
use super::front::Front;
use super::invalidate::{After, Marked};
use super::key::{Key, write_key};
use super::label::{Label, Said};
use super::repeat::{Repeated, Repeats};
use super::respond::{self, Wishes};
use super::store::{Brought, Found, Joined, Store};
use super::tally::Counters;
use crate::proxy::{Asker, Forward, Links};
use crate::site::{Caching as Asked, Forwarded, Forwarding, MadeBy, Opinion, Question};

/// Fields of clients that are not passed on where a response is to be stored: the cache asks for the whole of it, and some
/// applications build what they respond with of the others, which are not in the key.
pub(super) const LEFT_OUT: [&[u8]; 19] = [
    b"if-match",
    b"if-modified-since",
    b"if-none-match",
    b"if-range",
    b"if-unmodified-since",
    b"range",
    b"x-forwarded-host",
    b"x-forwarded-port",
    b"x-forwarded-prefix",
    b"x-forwarded-scheme",
    b"x-forwarded-server",
    b"x-host",
    b"x-http-host-override",
    b"x-http-method",
    b"x-http-method-override",
    b"x-method-override",
    b"x-original-host",
    b"x-original-url",
    b"x-rewrite-url",
];

/// How many of them are about conditions and ranges: what is not stored is asked for as the client does.
const OF_CONDITIONS: usize = 6;

/// What is not passed on of a request whose response is not stored.
pub(super) fn left_out_always() -> &'static [&'static [u8]] {
    LEFT_OUT.get(OF_CONDITIONS..).unwrap_or_default()
}

/// One worker's part of a cache.
pub(super) struct Caching {
    pub(super) me: Weak<Caching>,
    pub(super) links: Rc<Links>,
    pub(super) store: Arc<Store>,
    pub(super) mailbox: Mailbox,
    pub(super) counters: Arc<Counters>,
    pub(super) front: RefCell<Front>,
    pub(super) repeats: RefCell<Repeats>,
    /// The key in hand, and what a request has of the fields that a response varies by; their capacity is kept.
    key: RefCell<Vec<u8>>,
    selected: RefCell<Vec<u8>>,
}

/// What the fields of a request say to a cache.
#[derive(Debug, Clone, Copy)]
pub(super) struct Looked {
    pub(super) asks: Asks,
    pub(super) wishes: Wishes,
    pub(super) is_authorized: bool,
    /// It asks for what only the origin can answer.
    is_for_origin: bool,
}

impl Looked {
    /// One pass over the fields; nearly all are passed over by the length of their names.
    #[inline]
    pub(super) fn at(head: &Head<'_>) -> Looked {
        let wishes = Wishes { has_conditions: false, has_range: false };
        let mut looked = Looked { asks: Asks::default(), wishes, is_authorized: false, is_for_origin: false };
        let mut asks = false;
        for (name, _) in head.fields() {
            let is = |this: &[u8]| name.eq_ignore_ascii_case(this);
            match name.len() {
                5 => looked.wishes.has_range |= is(b"range"),
                6 => asks |= is(b"pragma"),
                7 => looked.is_for_origin |= is(b"upgrade"),
                8 => looked.is_for_origin |= is(b"if-match"),
                13 => {
                    asks |= is(b"cache-control");
                    looked.is_authorized |= is(b"authorization");
                    looked.wishes.has_conditions |= is(b"if-none-match");
                }
                17 => looked.wishes.has_conditions |= is(b"if-modified-since"),
                19 => looked.is_for_origin |= is(b"if-unmodified-since"),
                _ => {}
            }
        }
        if asks {
            looked.asks = Asks::of(head.fields());
        }
        looked
    }
}

/// A request that is being answered, with all that is known of it.
pub(super) struct Case<'c> {
    pub(super) key: Key<'c>,
    pub(super) rules: Asked<'c>,
    pub(super) looked: Looked,
    pub(super) asks: Asks,
    pub(super) now_ms: u64,
}

impl Case<'_> {
    /// What is said of a response, where that is wanted.
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

    /// Answers from this worker's own entries, if one is fresh. Returns its slot. Nothing is allocated.
    #[inline]
    fn hit(
        &self,
        head: &Head<'_>,
        what: &Forwarded<'_>,
        case: &Case<'_>,
        response: &mut Response,
    ) -> Option<u64> {
        let mut front = self.front.borrow_mut();
        let hash = case.key.hash;
        let (first, _) = front.get(hash).filter(|(first, _)| first.entry.is_of(&case.key))?;
        first.entry.touch(case.now_ms);
        let mut slot_at = hash;
        if !first.entry.vary().is_empty() {
            let mut selected = self.selected.borrow_mut();
            selected.clear();
            select(head, first.entry.vary(), &mut selected);
            if first.entry.selected() != *selected {
                let family = first.entry.family;
                slot_at = self.store.slot_of(hash, &selected);
                let other = front.get(slot_at).map(|(other, _)| &other.entry);
                let is_it = |it: &Arc<Entry>| {
                    it.family == family && it.is_of(&case.key) && it.selected() == *selected
                };
                if !other.is_some_and(is_it) {
                    return None;
                }
            }
        }
        let (slot, is_due) = front.get(slot_at)?;
        let entry = &slot.entry;
        if entry.policy.judge(&case.asks, case.now_ms, entry.is_expired()) != Verdict::Fresh {
            return None;
        }
        entry.touch(case.now_ms);
        let (wishes, says_status) = (case.looked.wishes, case.rules.rules.says_status);
        let has_wishes = wishes.has_conditions || wishes.has_range;
        if has_wishes {
            let ttl = Some(entry.policy.fresh_for(case.now_ms));
            let said = case.said(Said { ttl, ..Said::of(Label::Hit) });
            let body = slot.body.clone();
            respond::write(entry, body, head, wishes, case.now_ms, said.as_ref(), response);
        } else {
            slot.write(case.now_ms, says_status, response);
        }
        if case.rules.repeats && !has_wishes && case.asks == Asks::default() && slot_at == hash {
            let known = || Repeated::new(slot_at, &slot.entry, says_status, what.finish.clone());
            self.repeats.borrow_mut().note(head.bytes(), what.client.is_https, known);
        }
        if is_due {
            self.store.touch(slot_at);
            // Without the first variant the others are not found.
            self.store.touch(hash);
        }
        Some(slot_at)
    }

    fn is_selected(&self, entry: &Entry, head: &Head<'_>) -> bool {
        let mut selected = self.selected.borrow_mut();
        selected.clear();
        select(head, entry.vary(), &mut selected);
        entry.selected() == *selected
    }

    #[inline(never)]
    fn look(
        &self,
        request: Request<'_>,
        what: Forwarded<'_>,
        case: Case<'_>,
        response: &mut Response,
    ) -> Reply {
        let head = request.head;
        let find = || self.store.find(&case.key, case.now_ms, |names, out| select(&head, names, out));
        let mut found = find();
        if found.entry.is_none() && self.store.disk().is_some() {
            let select = |names: &[u8], out: &mut Vec<u8>| select(&head, names, out);
            match self.store.bring(&case.key, found.slot, case.now_ms, select) {
                Brought::Nothing => {}
                Brought::Here => found = find(),
                Brought::Cold(slot) => {
                    if let Joined::Leads(flight) = self.store.join(&case.key, found.slot, None) {
                        return self.bring_slowly(request, what, &case, flight, slot, response);
                    }
                }
            }
        }
        if let Some(manifest) = found.entry.take_if(|entry| entry.is_manifest())
            && let Some(start) = self.sliced(&head, &case, Some(&manifest))
        {
            return self.answer_sliced(request, what, &case, start, Some(manifest), response);
        }
        if let Some(entry) = &found.entry {
            let verdict = entry.policy.judge(&case.asks, case.now_ms, entry.is_expired());
            let label = match verdict {
                Verdict::Fresh => Label::Hit,
                Verdict::Stale => Label::Stale,
                Verdict::Refresh => Label::Updating,
                Verdict::Validate => return self.ask(request, what, case, found, response),
            };
            self.serve(entry, found.slot, label, &head, &case, response);
            if verdict == Verdict::Refresh {
                self.refresh(&request, &what, &case, &found);
            }
            let served = Served { caching: self, slot: found.slot, hash: case.key.hash };
            what.finish.finish_stored(response, &served);
            return Reply::Now;
        }
        self.ask(request, what, case, found, response)
    }

    /// Has another thread read what is on disk. The request waits for that as for another one's response.
    fn bring_slowly(
        &self,
        request: Request<'_>,
        what: Forwarded<'_>,
        case: &Case<'_>,
        flight: Arc<Flight>,
        slot: u64,
        response: &mut Response,
    ) -> Reply {
        let (store, of_reader) = (self.store.clone(), flight.clone());
        let (bytes, url_ends) = ([case.key.url, case.key.rest].concat(), case.key.url.len());
        let (is_custom, now_ms) = (case.key.is_custom, case.now_ms);
        tokio::task::spawn_blocking(move || {
            let key = Key::of(&bytes, url_ends, is_custom, |bytes| store.hash(bytes));
            let entry = store.bring_slowly(&key, slot, now_ms, of_reader.asked);
            let entry = entry.filter(|entry| !entry.is_manifest());
            store.land(&of_reader);
            of_reader.settle(entry.map_or(Outcome::Released, Outcome::Whole));
        });
        let said = Said { detail: Some("disk"), ..Said::of(Label::Hit) };
        self.follow(request, what, flight, None, (case.asks, case.looked.wishes), said, response)
    }

    fn serve(
        &self,
        entry: &Arc<Entry>,
        slot: u64,
        label: Label,
        head: &Head<'_>,
        case: &Case<'_>,
        response: &mut Response,
    ) {
        let body = match label {
            Label::Hit => self.front.borrow_mut().put(slot, entry),
            _ => body_of(entry),
        };
        let ttl = Some(entry.policy.fresh_for(case.now_ms));
        let said = case.said(Said { ttl, ..Said::of(label) });
        respond::write(entry, body, head, case.looked.wishes, case.now_ms, said.as_ref(), response);
        self.counters.count(label);
    }

    /// Has the upstream asked, for this request or for all that wait for the same.
    fn ask(
        &self,
        request: Request<'_>,
        what: Forwarded<'_>,
        case: Case<'_>,
        found: Found,
        response: &mut Response,
    ) -> Reply {
        let is_known = found.entry.is_some();
        let label = if is_known { Label::Expired } else { Label::Miss };
        let reason = match (is_known, found.is_other_variant) {
            (true, _) => "stale",
            (false, true) => "vary-miss",
            (false, false) => "uri-miss",
        };
        if case.asks.only_if_cached {
            let said = case.said(Said { detail: Some("only-if-cached"), ..Said::forwarded(label, reason) });
            respond::refuse(Status::GATEWAY_TIMEOUT, said.as_ref(), response);
            what.finish.finish(response, MadeBy::Here);
            self.counters.count(label);
            return Reply::Now;
        }
        if !is_known
            && case.looked.wishes.has_range
            && let Some(start) = self.sliced(&request.head, &case, None)
            && self.store.is_used_enough(case.key.hash, case.rules.rules.uses_min)
        {
            return self.answer_sliced(request, what, &case, start, None, response);
        }
        let is_alone = request.head.method == Method::Head
            || (!is_known && case.looked.wishes.has_range)
            || case.rules.is_unstored
            || case.asks.no_store
            || !self.store.is_used_enough(case.key.hash, case.rules.rules.uses_min);
        if is_alone {
            let after = match (&found.entry, request.head.method) {
                (Some(entry), Method::Head) => After::Compare(entry.clone()),
                _ => After::Nothing,
            };
            return self.pass(request, what, Said::forwarded(label, reason), after, response);
        }
        let shares = !case.looked.is_authorized && !self.store.is_passed(found.slot, case.now_ms);
        let joined = match shares {
            true => self.store.join(&case.key, found.slot, found.entry.as_ref()),
            false => Joined::Alone,
        };
        let flight = match joined {
            Joined::Follows(flight) => {
                let said = Said { is_collapsed: true, ..Said::forwarded(label, reason) };
                return self.follow(
                    request,
                    what,
                    flight,
                    found.entry,
                    (case.asks, case.looked.wishes),
                    said,
                    response,
                );
            }
            Joined::Here(entry) => {
                let is_ours = entry.vary().is_empty() || self.is_selected(&entry, &request.head);
                let verdict = entry.policy.judge(&case.asks, case.now_ms, entry.is_expired());
                if is_ours && verdict == Verdict::Fresh {
                    self.serve(&entry, found.slot, Label::Hit, &request.head, &case, response);
                    what.finish.finish(response, MadeBy::Upstream);
                    return Reply::Now;
                }
                Arc::new(Flight::new(found.slot, self.store.moment()))
            }
            Joined::Leads(flight) => flight,
            Joined::Alone => Arc::new(Flight::new(found.slot, self.store.moment())),
        };
        let asker = Asker { exchange: request.park(), finish: what.finish.clone() };
        let finish = what.finish.clone();
        if self.lead(&request, &what, &case, flight, found.entry, Some(asker), Said::forwarded(label, reason))
        {
            return Reply::Parked;
        }
        respond::refuse(Status::BAD_GATEWAY, None, response);
        finish.finish(response, MadeBy::Here);
        Reply::Now
    }

    /// Validates an entry behind the response that it has given.
    fn refresh(&self, request: &Request<'_>, what: &Forwarded<'_>, case: &Case<'_>, found: &Found) {
        if request.head.method != Method::Get || case.rules.is_unstored {
            return;
        }
        let joined = self.store.join(&case.key, found.slot, found.entry.as_ref());
        if let Joined::Leads(flight) = joined {
            let said = Said::forwarded(Label::Expired, "stale");
            self.lead(request, what, case, flight, found.entry.clone(), None, said);
        }
    }

    /// Asks the upstream. Returns whether there is one.
    #[expect(clippy::too_many_arguments, reason = "they are what an order is made of")]
    fn lead(
        &self,
        request: &Request<'_>,
        what: &Forwarded<'_>,
        case: &Case<'_>,
        flight: Arc<Flight>,
        stale: Option<Arc<Entry>>,
        asker: Option<Asker>,
        said: Said,
    ) -> bool {
        let mut edits = what.edits;
        edits.left_out = &LEFT_OUT;
        let asked = Forwarded { edits, finish: what.finish.clone(), ..*what };
        let (Some(mut prepared), Some(caching)) = (self.links.prepare(request, &asked), self.me.upgrade())
        else {
            self.store.land(&flight);
            flight.settle(Outcome::Failed(Status::BAD_GATEWAY));
            return false;
        };
        if let Some(stale) = &stale {
            prepared.add_lines(&conditions(stale));
        }
        let order = Order {
            key: [case.key.url, case.key.rest].concat(),
            url_ends: case.key.url.len(),
            is_custom: case.key.is_custom,
            rules: case.rules.rules.clone(),
            head: request.head.bytes().to_vec(),
            asks: case.asks,
            wishes: case.looked.wishes,
            is_authorized: case.looked.is_authorized && !case.rules.names_authorization,
            asked_ms: case.now_ms,
            said,
        };
        self.links.fetch(prepared, Rc::new(Fill::new(caching, flight, stale, asker, order)));
        true
    }

    /// Passes a request on as if there were no cache, but for what is said of it.
    pub(super) fn pass(
        &self,
        request: Request<'_>,
        mut what: Forwarded<'_>,
        said: Said,
        after: After,
        response: &mut Response,
    ) -> Reply {
        let says = what.caching.is_some_and(|caching| caching.rules.says_status);
        what.edits.left_out = left_out_always();
        self.counters.count(said.label);
        what.finish = Rc::new(Marked {
            inner: what.finish,
            said: says.then_some(said),
            store: self.store.clone(),
            after,
        });
        self.links.forward(request, what, response)
    }
}

/// What asks the upstream whether an entry is still right.
fn conditions(entry: &Entry) -> Vec<u8> {
    let mut lines = Vec::new();
    for (name, value) in entry.fields() {
        if name.eq_ignore_ascii_case(b"etag") {
            super::entry::write_line(b"If-None-Match", value, &mut lines);
        } else if name.eq_ignore_ascii_case(b"last-modified") {
            super::entry::write_line(b"If-Modified-Since", value, &mut lines);
        }
    }
    lines
}

/// Writes what a request has of the fields that a response varies by.
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
