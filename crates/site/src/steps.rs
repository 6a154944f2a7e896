//! The way of a request through its site: one table of steps.

use std::ops::ControlFlow;
use std::rc::Rc;
use std::sync::Arc;

use flatout_engine::tls::PeerCertificate;
use flatout_engine::{Reply, Request, Response};
use flatout_observe::observed::Notes;
use flatout_wire::{Method, Status};

use super::compiled::{Authority, Block, CompiledRoute, Guards};
use super::concurrency::Permit;
use super::facts::{Noted, Uses};
use super::finish::{Finishers, Needs};
use super::handler::location;
use super::limit_status::{Count, Counts, LimitStatus, LimitStatuses};
use super::rate::PaceDelay;
use super::render::View;
use super::reroute::Rerouted;
use super::resolve::{Arrival, Decision, Origin, Resolution};
use super::suspend::{Event, suspend};
use super::worker::{SiteWorker, write_status};
use super::{guard, handler};
use flatout_gateway::Client;

/// Makes the enum of all steps, and the function that runs them in order.
macro_rules! request_steps {
    ($($(#[doc = $purpose:literal])* $step:ident => $function:path,)*) => {
        /// The steps of a request, in their order. A suspended request resumes at one of them.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub(crate) enum Step {
            $($(#[doc = $purpose])* $step,)*
        }

        impl Step {
            /// Runs the steps from this one on, until one of them ends or suspends the request.
            fn run(self, worker: &SiteWorker, context: &mut RequestContext<'_>) -> Next {
                $(
                    if self <= Step::$step {
                        $function(worker, context)?;
                    }
                )*
                Next::Continue(())
            }
        }
    };
}

// ⏸: the request may be suspended, and resumes at the step in parentheses. The first step that refuses decides the response.
request_steps! {
    /// 421: no site has this host at this listener, or the connection has followed other rules of TLS.
    Host => guard::host,
    /// 503, except for some clients.
    Maintenance => guard::maintenance,
    /// 403 by the client's address.
    Access => guard::access,
    /// 429 (or as configured).
    Rates => guard::rates,
    /// 204 for a CORS preflight.
    Preflight => guard::preflight,
    /// ⏸ Delays the request to an even rate (`Target`).
    Pace => guard::pace,
    /// 400, 500, and 204 for `OPTIONS *`: the target leads to no route, and to no rules of one.
    Target => guard::target,
    /// 401 ⏸ Basic authentication (`Authority`).
    Password => guard::password,
    /// ⏸ The response of an auth service, or 502 (`User`).
    Authority => guard::authority,
    /// 403, 429 ⏸ The rules that depend on the user, who is known now (`Route`).
    User => guard::user,
    /// 404, 405: after authentication, so that they reveal nothing to others.
    Route => guard::route,
    /// 413 by the declared length.
    Length => guard::length,
    /// 503 ⏸ Limits of concurrent requests (`Concurrency`, with the next limit).
    Concurrency => guard::concurrency,
    /// ⏸ A file of `try-files` (`TryFiles`, if the volume may hang).
    TryFiles => handler::try_files,
    /// 413, 408 ⏸ Collects a body that the handler needs as a whole, and that its client sends only on request, or without a length
    /// (`Handler`). The engine collects others before.
    Body => handler::body,
    /// ⏸ An upstream, a channel, a folder (`Handler`, if its volume may hang), a redirect, a text.
    Handler => handler::handle,
    /// The route for the page of an error that was made here.
    ErrorRoute => handler::error_route,
    /// The response rules, for a response made here. Upstreams apply them through `gateway::Finish`.
    Finish => handler::finish,
}

/// What follows after a step: the next step, or an outcome.
pub(crate) type Next = ControlFlow<Outcome>;

/// How the way of a request through the steps ends, or is suspended.
pub(crate) enum Outcome {
    /// The response is written: `Finish`.
    Respond,
    /// A response with this reason, then `Finish`.
    Refuse(Refusal),
    /// The request waits for an event, and resumes at this step.
    Suspend(Event, Step),
    /// The request begins again at another route.
    Reroute,
    /// The handler takes care of the rest.
    Reply(Reply),
}

/// Why a request is refused.
pub(crate) enum Refusal {
    Status(Status),
    /// 503, or as a limit says; a retry soon may succeed.
    Busy(Status),
    /// 401, with the value of `WWW-Authenticate`.
    Password(String),
    /// 302, to where clients of this auth service sign in.
    SignIn(Arc<Authority>),
    /// The response of the auth service, or one made by a step.
    Response(Box<Response>),
}

/// A request on its way through its site.
pub(crate) struct RequestContext<'a> {
    pub(crate) request: Request<'a>,
    pub(crate) resolution: Resolution<'a>,
    /// The rules that apply: those of the route, or else of the site.
    pub(crate) guards: &'a Guards,
    pub(crate) finishers: &'a Finishers,
    /// `None` if no route matches.
    pub(crate) route: Option<&'a CompiledRoute>,
    /// Which blocks of the guards are in force, a bit for each.
    pub(crate) blocks: u64,
    pub(crate) progress: Progress,
    pub(crate) response: &'a mut Response,
}

/// The results of the steps so far, which a suspended request keeps.
pub(crate) struct Progress {
    /// Where the request starts or resumes.
    pub(crate) step: Step,
    /// Why it is refused, if that was decided while it waited.
    pub(crate) refusal: Option<Refusal>,
    pub(crate) identity: Identity,
    /// Lines that forward-auth adds to the request.
    pub(crate) authority_lines: Vec<u8>,
    pub(crate) needs: Needs,
    /// Which blocks are in force, once that is known.
    pub(crate) blocks: Option<u64>,
    /// Where the request goes, if that was decided before.
    pub(crate) decision: Option<Box<Decision>>,
    /// Neither a password nor the auth service is needed any more.
    pub(crate) is_satisfied: bool,
    /// It continues at another route.
    pub(crate) rerouted: Option<Box<Rerouted>>,
    /// Which limits have counted it, of this route or of one before.
    pub(crate) counts: Counts,
    /// The limits of concurrent requests of this route that it has passed.
    pub(crate) gates_passed: usize,
    /// It has to be delayed to an even rate.
    pub(crate) waits: Option<PaceDelay>,
    /// The response for which it waited.
    pub(crate) made: Option<Box<Response>>,
}

/// What was verified of a client, and noted of its request.
#[derive(Debug, Default)]
pub(crate) struct Identity {
    pub(crate) noted: Noted,
    /// The user name whose password was verified.
    pub(crate) user: Vec<u8>,
    /// Fields of the responses of auth services, the latest first.
    pub(crate) auth_fields: Vec<(String, Vec<u8>)>,
    /// The client's certificate.
    pub(crate) certificate: Option<PeerCertificate>,
    /// What limits have decided.
    pub(crate) limits: LimitStatuses,
}

impl SiteWorker {
    /// Takes a request through the steps, from its current one on.
    pub(crate) fn run(
        self: &Rc<Self>,
        request: Request<'_>,
        progress: Progress,
        response: &mut Response,
    ) -> Reply {
        let mut context = RequestContext::new(self, request, progress, response);
        let refusal = match context.progress.refusal.take() {
            // Without a right password the auth service may still allow it.
            Some(Refusal::Password(_)) if context.guards.satisfies_any && context.guards.has_authority() => {
                None
            }
            refusal => refusal,
        };
        let next = match refusal {
            Some(refusal) => Next::Break(Outcome::Refuse(refusal)),
            None => context.progress.step.run(self, &mut context),
        };
        let outcome = match next {
            Next::Continue(()) => return Reply::Now,
            Next::Break(outcome) => outcome,
        };
        match outcome {
            Outcome::Reply(reply) => {
                if !matches!(reply, Reply::Now) {
                    context.note();
                }
                reply
            }
            Outcome::Respond if context.reroute_error(self) => context.begin_again(self),
            Outcome::Respond => context.finish(self),
            Outcome::Refuse(refusal) => {
                context.refuse(self, refusal);
                match context.reroute_error(self) {
                    true => context.begin_again(self),
                    false => context.finish(self),
                }
            }
            Outcome::Reroute => context.begin_again(self),
            Outcome::Suspend(event, step) => {
                context.note();
                let time_left = context.route.and_then(|route| self.time_left(route, &context.request));
                let RequestContext { request, resolution, mut progress, .. } = context;
                progress.step = step;
                progress.decision = Some(Box::new(resolution.decision()));
                suspend(self.clone(), request, progress, event, time_left)
            }
        }
    }
}

impl<'a> RequestContext<'a> {
    pub(crate) fn new(
        worker: &'a SiteWorker,
        request: Request<'a>,
        mut progress: Progress,
        response: &'a mut Response,
    ) -> RequestContext<'a> {
        let announced = if worker.compiled.trusts_differ { request.announced() } else { None };
        let arrival = Arrival {
            listener: request.listener,
            peer: request.peer,
            announcer: announced.map(|announced| announced.peer),
            is_tls: request.tls.is_some(),
        };
        if progress.identity.certificate.is_none() {
            progress.identity.certificate = request.tls.and_then(|tls| tls.client_certificate());
        }
        let origin = Origin {
            arrival,
            request: Some(&request),
            identity: &progress.identity,
            rerouted: progress.rerouted.as_deref(),
        };
        let mut resolution = match progress.decision.take() {
            None => worker.compiled.resolve(&request.head, request.path, &origin),
            Some(decision) => worker.compiled.follow(*decision, &request.head, request.path, arrival),
        };
        if let Some(client) = progress.rerouted.as_ref().and_then(|rerouted| rerouted.client) {
            resolution.client = client;
        }
        resolution.client.is_early = request.tls.is_some_and(|tls| tls.is_early());
        let mut context = RequestContext {
            guards: worker.guards(&resolution),
            finishers: worker.finishers(&resolution),
            route: worker.route(&resolution),
            request,
            resolution,
            blocks: 0,
            progress,
            response,
        };
        if context.guards.decide_first() {
            context.decide_first(worker);
        }
        context
    }

    /// Who the client is for this route, and which blocks are in force for it.
    #[cold]
    fn decide_first(&mut self, worker: &SiteWorker) {
        let is_decided = self.resolution.is_for_render
            || self.progress.rerouted.as_ref().is_some_and(|rerouted| rerouted.client.is_some());
        if let Some(clients) = self.guards.clients.as_ref().filter(|_| !is_decided) {
            let is_early = self.resolution.client.is_early;
            self.resolution.client = Client { is_early, ..clients.of_request(&self.request) };
        }
        if !self.guards.blocks.is_empty() {
            self.choose_blocks(worker);
        }
    }

    /// Decides which blocks are in force. A request that was suspended keeps its blocks.
    fn choose_blocks(&mut self, worker: &SiteWorker) {
        self.blocks = match self.progress.blocks {
            Some(blocks) => blocks,
            None => {
                let view = self.view(worker);
                let bits = self
                    .guards
                    .blocks
                    .iter()
                    .enumerate()
                    .map(|(at, block)| u64::from(block.holds(&view)) << at);
                bits.fold(0, |all, bit| all | bit)
            }
        };
        self.progress.blocks = Some(self.blocks);
    }

    /// The user is known now: decides again, if conditions depend on that.
    pub(crate) fn identify(&mut self, worker: &SiteWorker) {
        self.progress.identity.noted.forget_user(&worker.compiled.tables);
        if self.guards.blocks.iter().any(|block| block.uses.has(Uses::USER)) {
            self.progress.blocks = None;
            self.choose_blocks(worker);
        }
    }

    /// The blocks that are in force.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = &'a Block> + use<'a> {
        let bits = self.blocks;
        let all: &'a [Block] = if bits == 0 { &[] } else { &self.guards.blocks };
        all.iter().enumerate().filter(move |(at, _)| bits >> at & 1 == 1).map(|(_, block)| block)
    }

    /// The guards that are in force: those of blocks, then those around them.
    pub(crate) fn all_guards(&self) -> impl Iterator<Item = &'a Guards> + use<'a> {
        self.blocks().map(|block| &block.guards).chain([self.guards])
    }

    /// The request for templates.
    pub(crate) fn view<'v>(&'v self, worker: &'v SiteWorker) -> View<'v> {
        worker.compiled.view_of(
            &self.request.head,
            Some(&self.request),
            &self.resolution,
            &self.progress.identity,
        )
    }

    /// Takes the request through the steps of the route where it continues. What an upstream has done for it so far stays in its note.
    pub(crate) fn begin_again(self, worker: &Rc<SiteWorker>) -> Reply {
        let RequestContext { request, progress, response, .. } = self;
        let note = response.note();
        response.reset();
        response.set_note(note);
        worker.run(request, progress, response)
    }

    /// Notes the site and its logs, in case that the client leaves before there is a response.
    fn note(&mut self) {
        let Some(rules) = self.finishers.rules() else { return };
        let bits = self.blocks;
        let in_force = rules.blocks.iter().enumerate();
        let in_force = in_force.filter(|(at, block)| !block.is_late && bits >> at & 1 == 1);
        let (mut logs, mut log_skips) = (rules.logs, 0);
        in_force.for_each(|(_, block)| block.choose_logs(&mut logs, &mut log_skips));
        self.response.set_note(Notes::routed(self.response.note(), rules.site, logs, log_skips));
    }

    /// Applies the response rules to a response made here.
    fn finish(&mut self, worker: &SiteWorker) -> Reply {
        // Nothing follows.
        let _ = handler::finish(worker, self);
        Reply::Now
    }

    fn refuse(&mut self, worker: &SiteWorker, refusal: Refusal) {
        match refusal {
            Refusal::Status(status) => write_status(status, self.response),
            Refusal::Busy(status) => {
                write_status(status, self.response);
                self.response.header("Retry-After", "1");
            }
            Refusal::Password(challenge) => {
                write_status(Status::UNAUTHORIZED, self.response);
                self.response.header("WWW-Authenticate", challenge);
            }
            Refusal::SignIn(authority) => {
                let sign_in = authority.sign_in.as_ref();
                let to = sign_in.map(|to| location(to, &self.view(worker))).unwrap_or_default();
                write_status(Status::FOUND, self.response);
                self.response.header("Location", to);
            }
            Refusal::Response(made) => *self.response = *made,
        }
        if self.request.head.method == Method::Connect {
            // The following bytes may be meant for the tunnel (RFC 9931).
            self.response.close();
        }
    }
}

impl Refusal {
    pub(crate) const BUSY: Refusal = Refusal::Busy(Status::SERVICE_UNAVAILABLE);
}

impl Progress {
    /// That of a request that has just arrived.
    #[inline]
    pub(crate) fn new() -> Progress {
        Progress {
            step: Step::Host,
            refusal: None,
            identity: Identity::default(),
            authority_lines: Vec::new(),
            needs: Needs::default(),
            blocks: None,
            decision: None,
            is_satisfied: false,
            rerouted: None,
            counts: Counts::default(),
            gates_passed: 0,
            waits: None,
            made: None,
        }
    }

    /// Stores a permit that the request waited for.
    pub(crate) fn enter(&mut self, permit: Permit, status: LimitStatus) {
        self.needs.permits.push(Arc::new(permit));
        self.gates_passed += 1;
        self.identity.limits.concurrency.add(status);
    }

    /// It gets no permit.
    pub(crate) fn turn_away(&mut self) {
        self.counts.concurrency = Count::Yes;
        self.identity.limits.concurrency.add(LimitStatus::Rejected);
    }
}
