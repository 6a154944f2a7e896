//! One worker's part of all sites. The way of a request through them is the table in `steps.rs`.

use std::cell::{OnceCell, RefCell};
use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use flatout_engine::{BodyPlan, Lane, Prepared, Reply, Request, RequestBody, Response, Service, Ticket, bug};
use flatout_wire::target::PathForm;
use flatout_wire::{Framing, Head, Method, Status};

use super::basic::Credentials;
use super::compiled::{
    Compiled, CompiledAction, CompiledRoute, CompiledSite, Guards, ResponseRules, SiteList,
};
use super::facts::Uses;
use super::finish::{BlockNeeds, Finishers, Needs};
use super::late::FieldValue;
use super::passwords::Passwords;
use super::render::View;
use super::resolve::{Arrival, Decision, Origin, Resolution};
use super::steps::{Identity, Progress};
use flatout_gateway::Forwarding;
use flatout_observe::observed::Notes;
use flatout_push::WorkerChannels;

/// The longest body of a request that a field or a log may have in it; others leave it empty.
const BODY_VALUE_BYTES_MAX: usize = 16 << 10;

/// One worker's part of all sites.
pub(crate) struct SiteWorker {
    pub(crate) compiled: Compiled,
    pub(crate) folders: Vec<Box<dyn Service>>,
    pub(crate) passwords: Option<Arc<Passwords>>,
    pub(crate) forwarding: Rc<dyn Forwarding>,
    /// The worker's part of all channels, if any.
    pub(crate) worker_channels: Option<Rc<WorkerChannels>>,
    /// The worker's lane; `None` in tests without a server.
    pub(crate) lane: Option<Lane>,
    /// By site; made at its first request.
    finishers: Vec<OnceCell<Box<SiteFinishers>>>,
    /// Used when no site matches.
    no_finishers: Finishers,
    no_guards: Guards,
    /// The worker's notes, for rules that show attempts at upstreams.
    notes: Option<Rc<Notes>>,
    /// This worker, for responses whose rules need it.
    this: OnceCell<Weak<SiteWorker>>,
    /// Some requests get the same response as an identical earlier one.
    repeats: bool,
    /// A buffer for the fields sent to an upstream, kept for its capacity.
    pub(super) lines: RefCell<Vec<u8>>,
    /// The same for a cache key.
    pub(super) key: RefCell<Vec<u8>>,
}

/// Those of each route, and those used when no route matches.
type SiteFinishers = (Vec<Finishers>, Finishers);

/// A worker's sites: those of the plan, and copies of those with expressions. Copies that the next plan keeps are not made again.
#[derive(Default)]
pub struct WorkerSites {
    shared: SiteList,
    own: SiteList,
}

/// A copy, by the site that it is of.
type Known<'c> = HashMap<*const CompiledSite, &'c Arc<CompiledSite>>;

/// Copies that workers have not taken yet: one list for each, of the sites with expressions that the plan before did not have.
#[derive(Clone, Default)]
pub(crate) struct Copies(Arc<Mutex<Vec<WorkerSites>>>);

impl Copies {
    pub(crate) fn make(&self, workers: usize, sites: &SiteList, former: &SiteList) {
        let former: HashSet<*const CompiledSite> = former.iter().map(Arc::as_ptr).collect();
        let is_new = |site: &&Arc<CompiledSite>| site.has_expressions && !former.contains(&Arc::as_ptr(site));
        let shared: Vec<&Arc<CompiledSite>> = sites.iter().filter(is_new).collect();
        let copies = || WorkerSites {
            shared: shared.iter().copied().cloned().collect(),
            own: shared.iter().map(|site| Arc::new(CompiledSite::clone(site))).collect(),
        };
        let made = (0..workers).map(|_| copies()).collect();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = made;
    }

    /// Those of one worker; none if all were taken.
    fn take(&self) -> WorkerSites {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }
}

impl WorkerSites {
    /// Those of this plan, after those of the plan before.
    pub(crate) fn after(sites: &SiteList, former: &WorkerSites, made: &Copies) -> WorkerSites {
        let made = made.take();
        let mut known: Known<'_> = former.copies().collect();
        known.extend(made.copies());
        let own = |shared: &Arc<CompiledSite>| match known.get(&Arc::as_ptr(shared)) {
            Some(&own) => own.clone(),
            None if shared.has_expressions => Arc::new(CompiledSite::clone(shared)),
            None => shared.clone(),
        };
        WorkerSites { shared: sites.iter().cloned().collect(), own: sites.iter().map(own).collect() }
    }

    fn copies(&self) -> impl Iterator<Item = (*const CompiledSite, &Arc<CompiledSite>)> {
        let both = self.shared.iter().zip(&*self.own);
        both.filter(|(shared, _)| shared.has_expressions).map(|(shared, own)| (Arc::as_ptr(shared), own))
    }
}

#[cfg(test)]
impl WorkerSites {
    /// Whether each site is a copy, and one of `former`.
    pub(crate) fn copied(&self, former: &WorkerSites) -> Vec<(bool, bool)> {
        let is_known = |site: &Arc<CompiledSite>| former.own.iter().any(|own| Arc::ptr_eq(own, site));
        let is_copy = |(shared, own): (&Arc<CompiledSite>, &Arc<CompiledSite>)| !Arc::ptr_eq(shared, own);
        self.shared.iter().zip(&*self.own).map(|it| (is_copy(it), is_known(it.1))).collect()
    }
}

impl std::fmt::Debug for WorkerSites {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkerSites").field("count", &self.own.len()).finish_non_exhaustive()
    }
}

/// A worker's service.
pub(crate) struct SiteService(pub(crate) Rc<SiteWorker>);

impl Service for SiteService {
    fn believes_proxy(&self, peer: Option<SocketAddr>, listener: u16) -> bool {
        self.0.compiled.believes_proxy(peer, listener)
    }

    fn path_form(&self) -> PathForm {
        PathForm::Forward
    }

    fn prepare(&self, head: &Head<'_>, path: &[u8], listener: u16) -> Prepared {
        self.0.prepare(head, path, listener)
    }

    fn call(&self, mut request: Request<'_>, response: &mut Response) -> Reply {
        if self.0.repeats && self.0.forwarding.repeat(&request, response) {
            return Reply::Now;
        }
        let mut progress = Progress::new();
        progress.identity.noted.number = request.number;
        if let Some(ticket) = request.ticket.take() {
            progress.decision = ticket.open::<Decision>().ok();
        }
        self.0.run(request, progress, response)
    }
}

impl SiteWorker {
    /// `sites` are the worker's, of this plan.
    pub(crate) fn new(
        (compiled, sites): (&Compiled, &WorkerSites),
        folders: Vec<Box<dyn Service>>,
        passwords: Option<Arc<Passwords>>,
        forwarding: Rc<dyn Forwarding>,
        worker_channels: Option<Rc<WorkerChannels>>,
        (lane, notes): (Option<Lane>, Option<&Rc<Notes>>),
    ) -> SiteWorker {
        let compiled = compiled.with_sites(sites.own.iter().cloned().collect());
        if let Some(notes) = notes.filter(|_| compiled.sites.iter().any(|site| site.uses_attempts())) {
            notes.want_upstreams();
        }
        SiteWorker {
            finishers: compiled.sites.iter().map(|_| OnceCell::new()).collect(),
            notes: notes.cloned(),
            no_finishers: Finishers::none(),
            no_guards: Guards::default(),
            this: OnceCell::new(),
            // Each request has its own line.
            repeats: !notes.is_some_and(|notes| notes.wants_names())
                && compiled.sites.iter().any(|site| site.repeats()),
            compiled,
            folders,
            passwords,
            forwarding,
            worker_channels,
            lane,
            lines: RefCell::default(),
            key: RefCell::default(),
        }
    }

    /// The service of a worker.
    pub(crate) fn service(self) -> SiteService {
        let worker = Rc::new(self);
        // It was just made.
        let _ = worker.this.set(Rc::downgrade(&worker));
        SiteService(worker)
    }

    pub(crate) fn this(&self) -> Option<Rc<SiteWorker>> {
        self.this.get().and_then(Weak::upgrade)
    }

    /// Decides where a request goes and how its body is read. If it is going to be refused, its body is neither collected nor streamed.
    fn prepare(&self, head: &Head<'_>, path: &[u8], listener: u16) -> Prepared {
        // The peer is known only at the call; rules that depend on it are checked there.
        let identity = Identity::default();
        let arrival = Arrival { listener, ..Arrival::default() };
        let origin = Origin { arrival, request: None, identity: &identity, rerouted: None };
        let resolution = self.compiled.resolve(head, path, &origin);
        let site = resolution.site.and_then(|site| self.compiled.sites.get(site)).map(|site| &**site);
        if site.is_some_and(|site| site.choice_uses.has(Uses::CONNECTION)) {
            return self.body_of_any(site, head).into();
        }
        let body = match self.route(&resolution) {
            Some(route) if route.may_reroute => self.body_of_any(site, head),
            Some(route) => self.body_of(route, head),
            None => BodyPlan::None,
        };
        Prepared { body, ticket: Some(Ticket::new(resolution.decision())) }
    }

    /// How to read the body of a request for this route.
    fn body_of(&self, route: &CompiledRoute, head: &Head<'_>) -> BodyPlan {
        let guards = &route.guards;
        if self.is_too_large(head, guards) {
            return BodyPlan::Refused;
        }
        if guards.basic.is_some() && !guards.satisfies_any && Credentials::of(head).is_none() {
            return BodyPlan::None;
        }
        let plan = match (&route.action, &self.worker_channels) {
            (CompiledAction::Proxy(_), _) if route.replaced.as_ref().is_some_and(|it| it.has_body()) => {
                BodyPlan::None
            }
            (CompiledAction::Proxy(forward), _) => self.forwarding.body(forward, head, guards.body_bytes_max),
            (CompiledAction::Push(plan), Some(worker_channels)) => {
                worker_channels.body(head, plan, guards.body_bytes_max)
            }
            _ => BodyPlan::None,
        };
        let plan = match plan {
            // A field of the response has it.
            BodyPlan::None | BodyPlan::Pull { .. }
                if route.response.uses_body && head.framing != Framing::None =>
            {
                BodyPlan::Whole { bytes_max: guards.body_bytes_max }
            }
            BodyPlan::Pull { .. } if self.logs_body(route, head) => {
                BodyPlan::Whole { bytes_max: guards.body_bytes_max }
            }
            plan => plan,
        };
        match plan {
            // Collected after the guards: a refusal saves the client from sending it, and follows the route's rules.
            BodyPlan::Whole { bytes_max } if head.expects_continue || head.framing == Framing::Chunked => {
                BodyPlan::Stream { bytes_max }
            }
            plan => plan,
        }
    }

    /// Whether a log has the body of this request. A longer one, or one of unknown length, is not collected for that.
    fn logs_body(&self, route: &CompiledRoute, head: &Head<'_>) -> bool {
        let is_short = matches!(head.framing, Framing::Length(bytes) if bytes <= BODY_VALUE_BYTES_MAX as u64);
        let rules = &route.response;
        is_short && self.notes.as_ref().is_some_and(|notes| notes.wants_body(rules.site, rules.logs))
    }

    /// How to read a body whose route may be another one, once the connection is known, or an error needs a page: it is streamed, and
    /// collected when its route is known. The largest limit of the site's routes applies; that of the route is applied after that.
    fn body_of_any(&self, site: Option<&CompiledSite>, head: &Head<'_>) -> BodyPlan {
        let servers = self.lane.as_ref().map(Lane::body_bytes_max);
        let limits = site.into_iter().flat_map(|site| &site.routes).map(|route| route.guards.body_bytes_max);
        let bytes_max = limits.map(|bytes_max| bytes_max.or(servers)).max().flatten();
        match is_longer(head, bytes_max) {
            // Its route refuses it, by its rules.
            true => BodyPlan::Refused,
            false => BodyPlan::Stream { bytes_max },
        }
    }

    /// The time that is left to a request of this route while it waits.
    pub(crate) fn time_left(&self, route: &CompiledRoute, request: &Request<'_>) -> Option<Duration> {
        match &route.action {
            CompiledAction::Proxy(forward) => self.forwarding.time_left(forward, request.park()),
            _ => None,
        }
    }

    /// Whether its declared length is above the limit of its route, or else of the server.
    pub(crate) fn is_too_large(&self, head: &Head<'_>, guards: &Guards) -> bool {
        is_longer(head, guards.body_bytes_max.or_else(|| self.lane.as_ref().map(Lane::body_bytes_max)))
    }

    pub(super) fn route(&self, resolution: &Resolution<'_>) -> Option<&CompiledRoute> {
        self.compiled.site(resolution.site?)?.route(*resolution.route.as_ref().ok()?)
    }

    /// The guards of the route, or else of the site; without a site, those that allow everything.
    pub(crate) fn guards(&self, resolution: &Resolution<'_>) -> &Guards {
        let Some(site) = resolution.site.and_then(|site| self.compiled.site(site)) else {
            return &self.no_guards;
        };
        let route = resolution.ruling_route().and_then(|route| site.route(route));
        route.map_or(&site.rest, |route| &route.guards)
    }

    pub(super) fn finishers(&self, resolution: &Resolution<'_>) -> &Finishers {
        let site = resolution.site.and_then(|at| {
            let made = || self.make_finishers(at);
            self.finishers.get(at).map(|finishers| &**finishers.get_or_init(made))
        });
        match (site, resolution.ruling_route()) {
            (Some((routes, rest)), Some(route)) => routes.get(route).unwrap_or_else(|| {
                bug!("no rules for responses have the index {route}");
                rest
            }),
            (Some((_, rest)), None) => rest,
            (None, _) => &self.no_finishers,
        }
    }

    #[cold]
    fn make_finishers(&self, at: usize) -> Box<SiteFinishers> {
        let make = |rules: &ResponseRules| Finishers::new(rules.clone(), self.notes.as_ref());
        let site = self.compiled.sites.get(at);
        let routes =
            site.into_iter().flat_map(|site| &site.routes).map(|route| make(&route.response)).collect();
        Box::new((routes, site.map_or_else(Finishers::none, |site| make(&site.rest_response))))
    }

    /// Copies from a request what the rules for its response need.
    pub(crate) fn gather_needs(
        &self,
        request: &Request<'_>,
        resolution: &Resolution<'_>,
        finishers: &Finishers,
        identity: &Identity,
        needs: &mut Needs,
        blocks: u64,
    ) {
        let head = &request.head;
        let Some(rules) = finishers.rules() else { return };
        needs.is_https = resolution.client.is_https;
        if rules.cors.is_some() {
            needs.origin = head.field("origin").map(<[u8]>::to_vec);
        }
        if rules.compress.is_some() {
            needs.is_head = head.method == Method::Head;
            let accepted: Vec<&[u8]> = head.field_all("accept-encoding").collect();
            needs.accept = (!accepted.is_empty()).then(|| accepted.join(&b","[..]));
        }
        if !rules.has_constant_values() {
            let view = self.compiled.view_of(head, Some(request), resolution, identity);
            needs.values = rules.rendered(&View { body: short_body(request), ..view });
        }
        if !rules.upstream.is_constant() {
            let view = self.compiled.view_of(head, Some(request), resolution, identity);
            needs.upstream = rules.upstream.rendered(&view);
        }
        if let Some(replacements) = &rules.replacements {
            let view = self.compiled.view_of(head, Some(request), resolution, identity);
            needs.texts = replacements.rendered(&view);
        }
        if !rules.rate.is_fixed() {
            let view = self.compiled.view_of(head, Some(request), resolution, identity);
            needs.rate = Some(rules.rate.rendered(&view));
        }
        if !rules.blocks.is_empty() {
            let view = self.compiled.view_of(head, Some(request), resolution, identity);
            needs.blocks = BlockNeeds::of(&rules.blocks, blocks, &view);
        }
        if needs.is_decision {
            // It has no line.
            return;
        }
        if finishers.logs_body() {
            needs.logged.body = short_body(request).to_vec();
        }
        if !finishers.log_names().is_empty() {
            let view = self.compiled.view_of(head, Some(request), resolution, identity);
            let value = |name: &Arc<str>| {
                let (_, text) = rules.log_values.iter().find(|(known, _)| **known == **name)?;
                Some((name.clone(), FieldValue::of(text, &view), text.is_of_tables()))
            };
            needs.logged.named = finishers.log_names().iter().filter_map(value).collect();
        }
    }
}

/// Whether the declared length is above a limit.
fn is_longer(head: &Head<'_>, bytes_max: Option<u64>) -> bool {
    matches!(head.framing, Framing::Length(bytes) if bytes_max.is_some_and(|bytes_max| bytes > bytes_max))
}

/// The body of a request, for a field.
fn short_body<'r>(request: &'r Request<'_>) -> &'r [u8] {
    match &request.body {
        RequestBody::Whole { bytes, .. } if bytes.len() <= BODY_VALUE_BYTES_MAX => bytes,
        _ => b"",
    }
}

pub(super) fn write_status(status: Status, response: &mut Response) {
    response.reset();
    response.set_status(status).encoded_fields(b"Content-Type: text/plain; charset=utf-8\r\n");
    let body = response.buffer();
    body.extend_from_slice(status.reason().as_bytes());
    body.push(b'\n');
}
