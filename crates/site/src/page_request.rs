//! Responses of other routes, made from a copy of the request: the page of an upstream's error, and the decision of a route about a
//! request.

use std::net::SocketAddr;
use std::rc::Rc;

use flatout_engine::tls::PeerCertificate;
use flatout_engine::{Announced, Reply, Request, RequestBody, Response, Tls};
use flatout_wire::head::parse_kept;
use flatout_wire::{Method, Status};

use super::compiled::{CompiledAction, CompiledRoute};
use super::limit_status::Counts;
use super::reroute::CompiledReroute;
use super::steps::{Identity, Progress, RequestContext, Step};
use super::upstream_redirect::kept_of_error;
use super::worker::SiteWorker;

/// A request, kept until its response arrives.
pub(crate) struct PageRequest {
    worker: Rc<SiteWorker>,
    head: Vec<u8>,
    path: Vec<u8>,
    peer: Option<SocketAddr>,
    listener: u16,
    number: u64,
    is_tls: bool,
    announced: Option<Rc<Announced>>,
    user: Vec<u8>,
    certificate: Option<PeerCertificate>,
    counts: Counts,
}

/// The error whose page is made.
struct PageOf {
    status: Status,
    is_kept: bool,
    /// The note of its response.
    note: u64,
}

impl std::fmt::Debug for PageRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PageRequest").field("path", &self.path).finish_non_exhaustive()
    }
}

impl PageRequest {
    pub(crate) fn of(worker: Rc<SiteWorker>, context: &RequestContext<'_>) -> PageRequest {
        let RequestContext { request, progress, .. } = context;
        PageRequest {
            worker,
            head: request.head.kept_bytes(),
            path: request.path.to_vec(),
            peer: request.peer,
            listener: request.listener,
            number: request.number,
            is_tls: request.tls.is_some(),
            announced: request.announced(),
            user: progress.identity.user.clone(),
            certificate: progress.identity.certificate.clone(),
            counts: progress.counts,
        }
    }

    /// Replaces a response with that of another route, if that can be made at once; returns whether it did.
    pub(crate) fn replace(&self, to: &CompiledReroute, is_kept: bool, response: &mut Response) -> bool {
        let error = PageOf { status: response.status(), is_kept, note: response.note() };
        let Some(page) = self.response(to, error, kept_of_error(response), Step::Maintenance) else {
            return false;
        };
        *response = page;
        true
    }

    /// The response of a route that decides about the request, if it responds at once. The route's own rules about clients do not apply,
    /// as in nginx, and its errors have no pages.
    pub(crate) fn decision(&self, to: &CompiledReroute) -> Option<Response> {
        let error = PageOf { status: Status::OK, is_kept: false, note: 0 };
        self.response(to, error, Vec::new(), Step::Route)
    }

    /// The response of another route. The body of the request is gone, so it gets a GET without one.
    fn response(
        &self,
        to: &CompiledReroute,
        error: PageOf,
        kept: Vec<(String, Vec<u8>)>,
        step: Step,
    ) -> Option<Response> {
        let mut fields = Vec::new();
        let mut head = parse_kept(&self.head, &mut fields, Some(flatout_wire::Framing::None))?;
        if head.method != Method::Head {
            head.method = Method::Get;
        }
        let announced = self.announced.as_ref();
        let mut request = Request::detached_behind(announced, head, &self.path, RequestBody::NONE);
        request.peer = self.peer;
        request.listener = self.listener;
        request.number = self.number;
        request.tls = self.is_tls.then_some(Tls::UNKNOWN);
        let mut progress = Progress::new();
        progress.identity = Identity {
            user: self.user.clone(),
            certificate: self.certificate.clone(),
            ..Identity::default()
        };
        progress.identity.noted.number = self.number;
        // A request is counted where it goes, not where that is decided.
        progress.counts = if step > Step::Authority { Counts::ALL } else { self.counts };
        let mut page = Response::new();
        page.set_note(error.note);
        let reply = self.run(request, progress, (to, step), error, kept, &mut page)?;
        matches!(reply, Reply::Now).then_some(page)
    }

    fn run(
        &self,
        request: Request<'_>,
        progress: Progress,
        (to, step): (&CompiledReroute, Step),
        error: PageOf,
        kept: Vec<(String, Vec<u8>)>,
        page: &mut Response,
    ) -> Option<Reply> {
        let mut context = RequestContext::new(&self.worker, request, progress, page);
        if !context.reroute(&self.worker, to, Some((error.status, error.is_kept))) {
            return None;
        }
        if let Some(rerouted) = &mut context.progress.rerouted {
            rerouted.kept = kept;
            rerouted.note = error.note;
            rerouted.is_decision = step > Step::Authority;
        }
        context.progress.step = step;
        let RequestContext { request, progress, response, .. } = context;
        let context = RequestContext::new(&self.worker, request, progress, response);
        if !context.route.is_some_and(|route| is_immediate(route, step)) {
            return None;
        }
        Some(context.begin_again(&self.worker))
    }
}

/// Whether a route responds from this step on without waiting for anything.
fn is_immediate(route: &CompiledRoute, step: Step) -> bool {
    let guards = &route.guards;
    let is_local = matches!(
        route.action,
        CompiledAction::Files(_)
            | CompiledAction::Redirect { .. }
            | CompiledAction::Respond { .. }
            | CompiledAction::RespondLate { .. }
    );
    is_local && (step > Step::Authority || guards.basic.is_none() && !guards.has_authority())
}
