//! Chooses the route of a path: by paths, conditions and rewrites in turn.

use std::borrow::Cow;

use flatout_wire::Head;

use super::compiled::{Compiled, CompiledSite, all_hold};
use super::cors::preflight_method;
use super::facts::Noted;
use super::plan::RouteEntry;
use super::render::{Captures, View};
use super::resolve::{NoRoute, Origin, Resolution};
use super::rewrite::{Goal, RewriteResult};
use super::table::{Found, RouteQuery};

/// How often one request may be rewritten to another route, as in nginx.
const ROUTES_CHOSEN_MAX: usize = 10;

/// The route chosen for a path.
pub(super) struct RouteChoice<'p> {
    pub(super) route: usize,
    /// The rewritten path and query, if there were rewrites.
    pub(super) goal: Option<Goal<'p>>,
    /// The route, or another with the same paths, has the method.
    pub(super) has_method: bool,
}

impl Compiled {
    /// Rewrites and routes a path in turn, until a route is final.
    pub(super) fn choose<'p>(
        &self,
        site: &CompiledSite,
        head: &Head<'_>,
        resolution: &Resolution<'p>,
        (origin, noted): (&Origin<'_>, &Noted),
        path: &'p [u8],
    ) -> Result<RouteChoice<'p>, NoRoute> {
        let view = View { path, ..self.choice_view(head, resolution, origin, noted) };
        const BAD: NoRoute = NoRoute::Path("the rewritten path is malformed");
        let begin =
            || Goal { path: Cow::Borrowed(path), query: resolution.goal.query.clone(), is_rewritten: false };
        let mut goal = None;
        if !site.rewrites.is_empty() {
            let goal = goal.get_or_insert_with(begin);
            if site.rewrites.apply(goal, &view) == RewriteResult::Bad {
                return Err(BAD);
            }
        }
        if !site.before_paths.is_empty()
            && let Some(route) = site.before_paths(goal.as_ref(), &view)
        {
            return Ok(RouteChoice { route, goal, has_method: true });
        }
        self.walk(site, head, &view, (goal, 0), begin, path)
    }

    /// Chooses the route of a request that continues elsewhere: at a route of this index, or by its goal.
    pub(super) fn choose_again<'p>(
        &self,
        site: &CompiledSite,
        head: &Head<'_>,
        resolution: &Resolution<'p>,
        (origin, noted): (&Origin<'_>, &Noted),
        (named, to): (Option<usize>, &Goal<'p>),
    ) -> Result<RouteChoice<'p>, NoRoute> {
        let mut goal = to.clone();
        let view = self.choice_view(head, resolution, origin, noted);
        let view = View { path: &to.path, query: to.query.as_deref(), ..view };
        if let Some((at, route)) = named.and_then(|at| Some((at, site.routes.get(at)?))) {
            match route.rewrites.apply(&mut goal, &view) {
                RewriteResult::Done => {
                    return Ok(RouteChoice { route: at, goal: Some(goal), has_method: true });
                }
                RewriteResult::Route => {}
                RewriteResult::Bad => return Err(NoRoute::Path("the rewritten path is malformed")),
            }
        }
        self.walk(site, head, &view, (Some(goal.clone()), 1), || goal.clone(), b"")
    }

    /// Finds the route of a path, rewrites it there and finds the route of the new path, until a route is final. `goal` is what it was
    /// rewritten to before.
    fn walk<'p>(
        &self,
        site: &CompiledSite,
        head: &Head<'_>,
        view: &View<'_>,
        (mut goal, first): (Option<Goal<'p>>, usize),
        begin: impl Fn() -> Goal<'p>,
        path: &[u8],
    ) -> Result<RouteChoice<'p>, NoRoute> {
        const BAD: NoRoute = NoRoute::Path("the rewritten path is malformed");
        let query = RouteQuery { method: head.method_name(), preflight: preflight_method(head) };
        for round in first..ROUTES_CHOSEN_MAX {
            let path = goal.as_ref().map_or(path, |goal| &goal.path);
            let found = match site.is_conditional {
                false => site.table.find(path, query),
                true => site.find(goal.as_ref(), view, path, query),
            };
            let at = match found {
                Found::Route(at) => at,
                Found::WrongMethod(route) => return Ok(RouteChoice { route, goal, has_method: false }),
                Found::Nothing => return Err(NoRoute::NotFound),
            };
            let route = site.route(at).ok_or(NoRoute::Bug)?;
            if route.entry == RouteEntry::Internal && round == 0 {
                return Err(NoRoute::NotFound);
            }
            if route.rewrites.is_empty() {
                return Ok(RouteChoice { route: at, goal, has_method: true });
            }
            let captured = match &route.captures {
                Some(expression) => Captures::of(expression, path).unwrap_or_default(),
                None => Captures::default(),
            };
            let view = View { captured: &captured, ..*view };
            match route.rewrites.apply(goal.get_or_insert_with(&begin), &view) {
                RewriteResult::Done => return Ok(RouteChoice { route: at, goal, has_method: true }),
                RewriteResult::Route => {}
                RewriteResult::Bad => return Err(BAD),
            }
        }
        Err(NoRoute::Circle)
    }
}

impl CompiledSite {
    /// The first route that is chosen before paths are compared.
    fn before_paths(&self, goal: Option<&Goal<'_>>, view: &View<'_>) -> Option<usize> {
        let view = view_at(goal, view);
        let holds = |at: &usize| self.routes.get(*at).is_some_and(|route| all_hold(&route.when, &view));
        self.before_paths.iter().copied().find(holds)
    }

    /// The route of a path whose conditions are true.
    fn find(&self, goal: Option<&Goal<'_>>, view: &View<'_>, path: &[u8], query: RouteQuery<'_>) -> Found {
        let view = view_at(goal, view);
        self.table.find_where(path, query, |at| {
            let Some(route) = self.routes.get(at).filter(|route| !route.when.is_empty()) else { return true };
            match &route.captures {
                Some(expression) => {
                    let captured = Captures::of(expression, path).unwrap_or_default();
                    all_hold(&route.when, &View { captured: &captured, ..view })
                }
                None => all_hold(&route.when, &view),
            }
        })
    }
}

/// The view of a request at the path and query that it was rewritten to.
fn view_at<'v>(goal: Option<&'v Goal<'_>>, view: &View<'v>) -> View<'v> {
    match goal {
        Some(goal) => View { path: &goal.path, query: goal.query.as_deref(), ..*view },
        None => *view,
    }
}
