//! Requests that continue at another route, with all its rules: by `reroute`, and for the page of an error.

use std::borrow::Cow;

use flatout_engine::RequestBody;
use flatout_expression::Regex;
use flatout_wire::target::forward_path;
use flatout_wire::{Framing, Method, Status};

use super::fault::{Fault, Place};
use super::maps::TableCounts;
use super::plan::{Piece, Plan, Reroute, RouteEntry, Template, Variable};
use super::render::{Paths, Text, View, escape_unsafe};
use super::rewrite::{Goal, split_at_question_mark};
use super::steps::{RequestContext, Step};
use super::upstream_redirect::{UpstreamRedirect, goes_with_errors, kept_of_error};
use super::worker::SiteWorker;
use flatout_gateway::{Client, ResponseOrigin};

/// How often a request may continue at another route, as in nginx.
pub(crate) const REROUTES_MAX: u8 = 10;

/// Where a request continues.
#[derive(Debug, Clone)]
pub(crate) enum CompiledReroute {
    /// At the route of this index, with its path.
    Named(usize),
    /// At the route of this path; the query is dropped, if there is none.
    Path(Text, Option<Text>),
}

/// A request that continues at another route.
#[derive(Debug, Default)]
pub(crate) struct Rerouted {
    pub(crate) goal: Goal<'static>,
    pub(crate) named: Option<usize>,
    /// The error whose page is made: it replaces the status 200, and further errors have no page.
    pub(crate) error: Option<Status>,
    /// The status of the error is not kept.
    pub(crate) has_own_status: bool,
    /// Fields of the response that is replaced: of an upstream that has sent it here, or of the error.
    pub(crate) kept: Vec<(String, Vec<u8>)>,
    /// Its client, if a route that it came by has decided that: it stays who it is.
    pub(crate) client: Option<Client>,
    /// The note of the response of the error.
    pub(crate) note: u64,
    /// The route decides about the request: static error pages must not change its status.
    pub(crate) is_decision: bool,
    count: u8,
}

impl CompiledReroute {
    /// # Errors
    /// The site has no route of this name, or the text uses something unknown.
    pub(crate) fn new(
        reroute: &Reroute,
        plan: &Plan,
        expression: Option<&Regex>,
        place: Place,
    ) -> Result<CompiledReroute, Fault> {
        match reroute {
            Reroute::Named(name) => {
                let site = match place {
                    Place::Site(site) | Place::Route(site, _) => plan.sites.get(site),
                    _ => None,
                };
                let mut routes = site.map(|site| site.routes.iter()).unwrap_or_default();
                let at = routes.position(|route| route.entry == RouteEntry::Named && route.name == *name);
                at.map(CompiledReroute::Named)
                    .ok_or_else(|| place.fault(format!("the site has no route `{name}`")))
            }
            Reroute::Path(template) => {
                let text =
                    |template: &Template| Text::new(template, expression, TableCounts::of(plan), place);
                let (path, query) = split_at_query(template);
                Ok(CompiledReroute::Path(text(&path)?, query.map(|query| text(&query)).transpose()?))
            }
        }
    }

    pub(crate) fn uses_captures(&self) -> bool {
        match self {
            CompiledReroute::Named(_) => false,
            CompiledReroute::Path(path, query) => {
                path.uses_captures() || query.as_ref().is_some_and(Text::uses_captures)
            }
        }
    }

    /// The path and query; `None` if the path has no normal form.
    fn goal(&self, view: &View<'_>) -> Option<Goal<'static>> {
        let (path, query) = match self {
            CompiledReroute::Named(_) => (view.path.to_vec(), view.query.map(<[u8]>::to_vec)),
            CompiledReroute::Path(to, to_query) => {
                let (mut path, mut form, mut query) = (Vec::new(), Vec::new(), Vec::new());
                to.render(view, Paths::Decoded, &mut path);
                // The target as it was sent has its own query: `/index.php$request_uri`.
                let has_target = || to.variables().any(|variable| matches!(variable, Variable::Target));
                if let Some(at) = path.iter().position(|&byte| byte == b'?').filter(|_| has_target()) {
                    query.extend_from_slice(path.get(at + 1..).unwrap_or_default());
                    path.truncate(at);
                }
                let path =
                    forward_path(&path, &mut form).ok().filter(|path| path.starts_with(b"/"))?.to_vec();
                if let Some(text) = to_query {
                    text.render(view, Paths::Query, &mut query);
                    escape_unsafe(&mut query);
                }
                (path, Some(query).filter(|query| !query.is_empty()))
            }
        };
        Some(Goal { path: Cow::Owned(path), query: query.map(Cow::Owned), is_rewritten: true })
    }
}

/// The path of a template, and its query: behind a literal `?`, or behind `$is_args`.
fn split_at_query(template: &Template) -> (Template, Option<Template>) {
    let (path, query) = split_at_question_mark(template);
    let is_mark = |piece: &Piece| matches!(piece, Piece::Variable(Variable::QuestionMark));
    let Some(at) = path.0.iter().position(is_mark) else { return (path, query.map(|(query, _)| query)) };
    let (before, behind) = template.0.split_at(at);
    (Template(before.to_vec()), Some(Template(behind.iter().skip(1).cloned().collect())))
}

impl RequestContext<'_> {
    /// Sends the request to another route; `error` is the status for whose page it goes there, and whether that status is kept.
    /// `false`: too many times, or the path is malformed.
    pub(crate) fn reroute(
        &mut self,
        worker: &SiteWorker,
        to: &CompiledReroute,
        error: Option<(Status, bool)>,
    ) -> bool {
        let count = self.progress.rerouted.as_ref().map_or(0, |rerouted| rerouted.count) + 1;
        let Some(goal) = to.goal(&self.view(worker)).filter(|_| count <= REROUTES_MAX) else { return false };
        let named = match to {
            CompiledReroute::Named(at) => Some(*at),
            CompiledReroute::Path(..) => None,
        };
        let client = self.decided_client();
        // What it brings stays with it.
        let before = self.progress.rerouted.take().unwrap_or_default();
        let mut rerouted = Rerouted { goal, named, client, count, ..*before };
        if let Some((status, is_kept)) = error {
            (rerouted.error, rerouted.has_own_status) = (Some(status), !is_kept);
            rerouted.kept.retain(|(name, _)| goes_with_errors(name));
            rerouted.kept.extend(kept_of_error(self.response));
        }
        self.progress.rerouted = Some(Box::new(rerouted));
        self.restart(worker);
        if error.is_some() {
            // A page is got, whatever was wanted, and with whatever content.
            if self.request.head.method != Method::Head {
                self.request.head.method = Method::Get;
            }
            self.request.head.framing = Framing::None;
            self.request.body = RequestBody::NONE;
        }
        true
    }

    /// Sends the request where its upstream has left the response to.
    pub(crate) fn follow_upstream(&mut self, worker: &SiteWorker, redirect: UpstreamRedirect) {
        let UpstreamRedirect { goal, named, kept, reroutes } = redirect;
        let client = self.decided_client();
        self.progress.rerouted = Some(Box::new(Rerouted {
            goal,
            named,
            kept,
            client,
            count: reroutes + 1,
            ..Rerouted::default()
        }));
        self.restart(worker);
    }

    /// The client, if this route or one before has decided who that is.
    fn decided_client(&self) -> Option<Client> {
        let before = self.progress.rerouted.as_ref().and_then(|before| before.client);
        before.or_else(|| self.guards.clients.is_some().then_some(self.resolution.client))
    }

    fn restart(&mut self, worker: &SiteWorker) {
        self.progress.step = Step::Maintenance;
        self.progress.blocks = None;
        self.progress.gates_passed = 0;
        // The other route checks for itself.
        self.progress.is_satisfied = false;
        self.progress.identity.user.clear();
        self.progress.identity.noted.forget_user(&worker.compiled.tables);
        self.progress.authority_lines.clear();
    }

    /// Sends the request to the route of the page for the response that was made here, if there is one.
    pub(crate) fn reroute_error(&mut self, worker: &SiteWorker) -> bool {
        let status = self.response.status();
        if status.code() < 300
            || self.progress.rerouted.as_ref().is_some_and(|rerouted| rerouted.error.is_some())
        {
            return false;
        }
        let pages = self.finishers.rules().map(|rules| &rules.pages);
        let Some((to, is_kept)) = pages.and_then(|pages| pages.route(status, ResponseOrigin::Here)) else {
            return false;
        };
        self.reroute(worker, to, Some((status, is_kept)))
    }
}

impl Rerouted {
    /// How often the request has continued at another route.
    pub(crate) fn count(&self) -> u8 {
        self.count
    }

    /// The status of the error whose page is made, which its page has in place of 200.
    pub(crate) fn kept_status(&self) -> Option<Status> {
        self.error.filter(|_| !self.has_own_status)
    }
}
