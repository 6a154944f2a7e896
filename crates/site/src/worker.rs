//! Takes a request through its rules, on a worker.
//!
//! ```text
//! resolve ─> maintenance ─> access ─> rates ⏸ ─> preflight ─> password ─> authority ─> path ─> length ─> room ─> body ─> action
//!   400       503            403      429       204          401 ⏸        ⏸          404      413     503 ⏸  413 ⏸
//!   421                                                                              405
//! ```
//!
//! At `body` waits a body that an action wants whole, and that its client sends only when it is asked to, or without a length: it
//! is collected here. The engine collects others before.
//!
//! The first rule that refuses sends the response. Where a request has to wait (⏸), it is kept and continues from
//! there.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use flatout_engine::{BodyPlan, Lane, Reply, Request, Response, Service};
use flatout_wire::target::PathForm;
use flatout_wire::{Framing, Head, Method, Status};

use super::basic::Credentials;
use super::compiled::{Act, Compiled, CompiledRoute, CompiledSite, Guards};
use super::concurrency::Permit;
use super::finish::{Finishers, Needs};
use super::guard::Outcome;
use super::passwords::Passwords;
use super::rate::Waits;
use super::resolve::Resolution;
use super::suspend::{Waiting, suspend};
use flatout_gateway::{Finish, Forwarding, ResponseOrigin};
use flatout_push::WorkerChannels;

/// One worker's copy of all sites.
pub(crate) struct Answers {
    pub(crate) compiled: Compiled,
    pub(crate) folders: Vec<Box<dyn Service>>,
    pub(crate) passwords: Option<Arc<Passwords>>,
    pub(crate) forwarding: Rc<dyn Forwarding>,
    /// The worker's part of all channels, if any.
    pub(crate) worker_channels: Option<Rc<WorkerChannels>>,
    /// The worker's lane; `None` in tests without a server.
    pub(crate) lane: Option<Lane>,
    /// By site: those of each route, and those used when no route matches.
    finishers: Vec<(Vec<Finishers>, Finishers)>,
    /// Used when no site matches.
    nobodys: Finishers,
    /// Some requests get the same response as an identical earlier one.
    repeats: bool,
    /// A buffer for the fields sent to an upstream, kept for its capacity.
    pub(super) lines: RefCell<Vec<u8>>,
    /// The same for a cache key.
    pub(super) key: RefCell<Vec<u8>>,
}

/// A worker's service.
pub(crate) struct Front(pub(crate) Rc<Answers>);

/// The progress of a request through the rules, and the results so far.
#[derive(Default)]
pub(crate) struct Progress {
    pub(crate) at: Step,
    /// Why it is refused, if that was decided while it waited.
    pub(crate) refusal: Option<Refusal>,
    pub(crate) identity: Identity,
    /// Lines that forward-auth adds to the request.
    pub(crate) authority_lines: Vec<u8>,
    pub(crate) needs: Needs,
    /// It has to be delayed to an even rate.
    pub(super) waits: Option<Waits>,
}

/// What was verified of a client.
#[derive(Debug, Default)]
pub(crate) struct Identity {
    /// The user name whose password was verified.
    pub(crate) user: Vec<u8>,
    /// The client's verified certificate (DER).
    pub(crate) certificate: Option<Vec<u8>>,
}

/// The steps after which a request may wait.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    #[default]
    Begin,
    /// The delay to an even rate is over.
    Paced,
    Password,
    Authority,
    /// Concurrency limits, from this one on.
    Room(usize),
    /// Its body is complete.
    Collected,
}

/// Why a request is refused.
pub(crate) enum Refusal {
    Status(Status),
    /// 503; a retry soon may succeed.
    Busy,
    /// 401, with the value of `WWW-Authenticate`.
    Password(String),
    /// The response of the auth service.
    Response(Box<Response>),
}

impl Service for Front {
    fn believes_proxy(&self, peer: Option<SocketAddr>) -> bool {
        self.0.compiled.clients.believes(peer)
    }

    fn path_form(&self) -> PathForm {
        PathForm::Forward
    }

    fn body(&self, head: &Head<'_>, path: &[u8]) -> BodyPlan {
        self.0.body(head, path)
    }

    fn call(&self, request: Request<'_>, response: &mut Response) -> Reply {
        if self.0.repeats && self.0.forwarding.repeat(&request, response) {
            return Reply::Now;
        }
        Answers::go_on(&self.0, request, Progress::default(), response)
    }
}

impl Answers {
    pub(crate) fn new(
        compiled: Compiled,
        folders: Vec<Box<dyn Service>>,
        passwords: Option<Arc<Passwords>>,
        forwarding: Rc<dyn Forwarding>,
        worker_channels: Option<Rc<WorkerChannels>>,
        lane: Option<Lane>,
    ) -> Answers {
        let finishers = compiled.sites.iter().map(|site| {
            let routes = site.routes.iter().map(|route| Finishers::new(route.response.clone())).collect();
            (routes, Finishers::new(site.rest_response.clone()))
        });
        Answers {
            finishers: finishers.collect(),
            nobodys: Finishers::new(Default::default()),
            repeats: compiled.sites.iter().any(CompiledSite::repeats),
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

    /// If a request is going to be refused, its body is neither collected nor streamed.
    fn body(&self, head: &Head<'_>, path: &[u8]) -> BodyPlan {
        // The peer is known only at the call; rules that depend on it are checked there.
        let resolution = self.compiled.resolve(head, path, None, false);
        let Some(route) = self.route(&resolution) else { return BodyPlan::None };
        let guards = &route.guards;
        if self.is_too_large(head, guards) {
            return BodyPlan::Refused;
        }
        if guards.basic.is_some() && Credentials::of(head).is_none() {
            return BodyPlan::None;
        }
        let plan = match (&route.act, &self.worker_channels) {
            (Act::Proxy(forward), _) => self.forwarding.body(forward, head, guards.body_bytes_max),
            (Act::Push(plan), Some(worker_channels)) => {
                worker_channels.body(head, plan, guards.body_bytes_max)
            }
            _ => BodyPlan::None,
        };
        match plan {
            // Collected after the guards: a refusal saves the client from sending it, and follows the route's rules.
            BodyPlan::Whole { bytes_max } if head.expects_continue || head.framing == Framing::Chunked => {
                BodyPlan::Stream { bytes_max }
            }
            plan => plan,
        }
    }

    /// Continues a request from its current step.
    pub(crate) fn go_on(
        this: &Rc<Self>,
        request: Request<'_>,
        mut progress: Progress,
        response: &mut Response,
    ) -> Reply {
        let mut resolution =
            this.compiled.resolve(&request.head, request.path, request.peer, request.tls.is_some());
        // A request that has waited is not known to its connection any more.
        if progress.identity.certificate.is_none() {
            progress.identity.certificate = request.tls.and_then(|tls| tls.client_certificate());
        }
        resolution.client.is_early = request.tls.is_some_and(|tls| tls.is_early());
        let outcome = match progress.refusal.take() {
            Some(refusal) => Outcome::Refused(refusal),
            None => this.guard(&request, &resolution, &mut progress, response),
        };
        match (outcome, this.route(&resolution)) {
            (Outcome::Refused(refusal), _) => {
                this.refuse(&request.head, refusal, response);
                this.finish(&request.head, &resolution, progress, response)
            }
            (Outcome::Wait(waiting), route) => this.wait(request, route, progress, waiting),
            (Outcome::Go, Some(route)) => this.act(request, &resolution, route, progress, response),
            (Outcome::Go, None) => this.finish(&request.head, &resolution, progress, response),
        }
    }

    fn wait(
        self: &Rc<Self>,
        request: Request<'_>,
        route: Option<&CompiledRoute>,
        progress: Progress,
        waiting: Waiting,
    ) -> Reply {
        let left = match route.map(|route| &route.act) {
            Some(Act::Proxy(forward)) => self.forwarding.time_left(forward, request.park()),
            _ => None,
        };
        suspend(self.clone(), request, progress, waiting, left)
    }

    /// Continues a request when its body was collected. Only bodies that an action wants whole are streamed to a site.
    #[cold]
    pub(super) fn collect(
        self: &Rc<Self>,
        request: Request<'_>,
        route: &CompiledRoute,
        progress: Progress,
    ) -> Reply {
        self.wait(request, Some(route), progress, Waiting::Body(self.lane.clone()))
    }

    pub(super) fn route(&self, resolution: &Resolution<'_>) -> Option<&CompiledRoute> {
        let site = self.compiled.sites.get(resolution.site?)?;
        site.routes.get(*resolution.route.as_ref().ok()?)
    }

    pub(super) fn guards(&self, resolution: &Resolution<'_>) -> Option<&Guards> {
        let site = self.compiled.sites.get(resolution.site?)?;
        let route = resolution.ruling_route().and_then(|route| site.routes.get(route));
        Some(route.map_or(&site.rest, |route| &route.guards))
    }

    pub(super) fn finishers(&self, resolution: &Resolution<'_>) -> &Finishers {
        let site = resolution.site.and_then(|site| self.finishers.get(site));
        match (site, resolution.ruling_route()) {
            (Some((routes, rest)), Some(route)) => routes.get(route).unwrap_or(rest),
            (Some((_, rest)), None) => rest,
            (None, _) => &self.nobodys,
        }
    }

    fn refuse(&self, head: &Head<'_>, refusal: Refusal, response: &mut Response) {
        match refusal {
            Refusal::Status(status) => write_status(status, response),
            Refusal::Busy => {
                write_status(Status::SERVICE_UNAVAILABLE, response);
                response.header("Retry-After", "1");
            }
            Refusal::Password(challenge) => {
                write_status(Status::UNAUTHORIZED, response);
                response.header("WWW-Authenticate", challenge);
            }
            Refusal::Response(made) => *response = *made,
        }
        if head.method == Method::Connect {
            // The following bytes may be meant for the tunnel (RFC 9931).
            response.close();
        }
    }

    /// Applies the response rules to a response made here.
    pub(super) fn finish(
        &self,
        head: &Head<'_>,
        resolution: &Resolution<'_>,
        mut progress: Progress,
        response: &mut Response,
    ) -> Reply {
        self.gather_needs(head, resolution, &mut progress);
        self.finishers(resolution).of(progress.needs).finish(response, ResponseOrigin::Here);
        Reply::Now
    }

    /// Copies from a request what the rules for its response need.
    pub(super) fn gather_needs(&self, head: &Head<'_>, resolution: &Resolution<'_>, progress: &mut Progress) {
        let Some(rules) = self.finishers(resolution).rules() else { return };
        progress.needs.is_https = resolution.client.is_https;
        if rules.cors.is_some() {
            progress.needs.origin = head.field("origin").map(<[u8]>::to_vec);
        }
        if rules.compress.is_some() {
            progress.needs.is_head = head.method == Method::Head;
            let accepted: Vec<&[u8]> = head.field_all("accept-encoding").collect();
            progress.needs.accept = (!accepted.is_empty()).then(|| accepted.join(&b","[..]));
        }
        if !rules.fields.is_constant() {
            let view = self.compiled.view_of(head, resolution, &progress.identity);
            progress.needs.values = rules.fields.rendered(&view);
        }
    }
}

impl Progress {
    /// Stores a permit that the request waited for.
    pub(crate) fn enter(&mut self, permit: Permit) {
        self.needs.permits.push(permit);
    }
}

pub(super) fn write_status(status: Status, response: &mut Response) {
    response.reset();
    response.set_status(status).encoded_fields(b"Content-Type: text/plain; charset=utf-8\r\n");
    let body = response.buffer();
    body.extend_from_slice(status.reason().as_bytes());
    body.push(b'\n');
}
