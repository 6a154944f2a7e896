//! Takes a request through its rules, on a worker.
//!
//! ```text
//! settle ─> maintenance ─> access ─> rates ⏸ ─> preflight ─> password ─> authority ─> body ─> room ─> action
//!   400       503            403      429       204          401 ⏸        ⏸          413     503 ⏸
//!   404 405 421
//! ```
//!
//! The first rule that refuses sends the response. Where a request has to wait (⏸), it is kept and continues from
//! there.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use flatout_engine::{BodyPlan, Reply, Request, Response, Service};
use flatout_wire::target::PathForm;
use flatout_wire::{Head, Method, Status};

use super::basic::Credentials;
use super::compiled::{Act, Compiled, Guards, Route, Site};
use super::concurrency::Permit;
use super::finish::{Finishers, Needs};
use super::forward::{Finish, Forwarding, MadeBy};
use super::guard::{Outcome, is_too_large};
use super::passwords::Passwords;
use super::rate::Waits;
use super::settle::Settled;
use super::suspend::suspend;
use crate::push::Desk;

/// One worker's copy of all sites.
pub(crate) struct Answers {
    pub(crate) compiled: Compiled,
    pub(crate) folders: Vec<Box<dyn Service>>,
    pub(crate) passwords: Option<Arc<Passwords>>,
    pub(crate) forwarding: Rc<dyn Forwarding>,
    /// The worker's part of all channels, if any.
    pub(crate) desk: Option<Rc<Desk>>,
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
        desk: Option<Rc<Desk>>,
    ) -> Answers {
        let finishers = compiled.sites.iter().map(|site| {
            let routes = site.routes.iter().map(|route| Finishers::new(route.response.clone())).collect();
            (routes, Finishers::new(site.rest_response.clone()))
        });
        Answers {
            finishers: finishers.collect(),
            nobodys: Finishers::new(Default::default()),
            repeats: compiled.sites.iter().any(Site::repeats),
            compiled,
            folders,
            passwords,
            forwarding,
            desk,
            lines: RefCell::default(),
            key: RefCell::default(),
        }
    }

    /// If a request is going to be refused, its body is neither collected nor streamed.
    fn body(&self, head: &Head<'_>, path: &[u8]) -> BodyPlan {
        // The peer is known only at the call; rules that depend on it are checked there.
        let settled = self.compiled.settle(head, path, None, false);
        let Some(route) = self.route(&settled) else { return BodyPlan::None };
        let guards = &route.guards;
        if is_too_large(head, guards) || (guards.basic.is_some() && Credentials::of(head).is_none()) {
            return BodyPlan::None;
        }
        match (&route.act, &self.desk) {
            (Act::Proxy(forward), _) => self.forwarding.body(forward, head, guards.body_bytes_max),
            (Act::Push(plan), Some(desk)) => desk.body(head, plan, guards.body_bytes_max),
            _ => BodyPlan::None,
        }
    }

    /// Continues a request from its current step.
    pub(crate) fn go_on(
        this: &Rc<Self>,
        request: Request<'_>,
        mut progress: Progress,
        response: &mut Response,
    ) -> Reply {
        let mut settled =
            this.compiled.settle(&request.head, request.path, request.peer, request.tls.is_some());
        // A request that has waited is not known to its connection any more.
        if progress.identity.certificate.is_none() {
            progress.identity.certificate = request.tls.and_then(|tls| tls.client_certificate());
        }
        settled.client.is_early = request.tls.is_some_and(|tls| tls.is_early());
        let outcome = match progress.refusal.take() {
            Some(refusal) => Outcome::Refused(refusal),
            None => this.guard(&request.head, &settled, &mut progress, response),
        };
        match (outcome, this.route(&settled)) {
            (Outcome::Refused(refusal), _) => {
                this.refuse(&request.head, refusal, response);
                this.finish(&request.head, &settled, progress, response)
            }
            (Outcome::Wait(waiting), _) => suspend(this.clone(), request, progress, waiting),
            (Outcome::Go, Some(route)) => this.act(request, &settled, route, progress, response),
            (Outcome::Go, None) => this.finish(&request.head, &settled, progress, response),
        }
    }

    pub(super) fn route(&self, settled: &Settled<'_>) -> Option<&Route> {
        let site = self.compiled.sites.get(settled.site?)?;
        site.routes.get(*settled.route.as_ref().ok()?)
    }

    pub(super) fn guards(&self, settled: &Settled<'_>) -> Option<&Guards> {
        let site = self.compiled.sites.get(settled.site?)?;
        Some(self.route(settled).map_or(&site.rest, |route| &route.guards))
    }

    pub(super) fn finishers(&self, settled: &Settled<'_>) -> &Finishers {
        let site = settled.site.and_then(|site| self.finishers.get(site));
        match (site, &settled.route) {
            (Some((routes, rest)), Ok(route)) => routes.get(*route).unwrap_or(rest),
            (Some((_, rest)), Err(_)) => rest,
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
        settled: &Settled<'_>,
        mut progress: Progress,
        response: &mut Response,
    ) -> Reply {
        self.gather_needs(head, settled, &mut progress);
        self.finishers(settled).of(progress.needs).finish(response, MadeBy::Here);
        Reply::Now
    }

    /// Copies from a request what the rules for its response need.
    pub(super) fn gather_needs(&self, head: &Head<'_>, settled: &Settled<'_>, progress: &mut Progress) {
        let Some(rules) = self.finishers(settled).rules() else { return };
        progress.needs.is_https = settled.client.is_https;
        if rules.cors.is_some() {
            progress.needs.origin = head.field("origin").map(<[u8]>::to_vec);
        }
        if rules.compress.is_some() {
            progress.needs.is_head = head.method == Method::Head;
            let accepted: Vec<&[u8]> = head.field_all("accept-encoding").collect();
            progress.needs.accept = (!accepted.is_empty()).then(|| accepted.join(&b","[..]));
        }
        if !rules.fields.is_constant() {
            let view = self.compiled.view_of(head, settled, &progress.identity);
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
