//! From a request to its handler.

use std::rc::Rc;
use std::sync::Arc;

use flatout_engine::{BodyPlan, Prepared, Reply, Request, Response, Service, Worker};
use flatout_wire::target::PathForm;
use flatout_wire::{Head, Method, Status};
use matchit::{Params, Router};
use tokio::sync::watch;

use crate::app::{App, Route};
use crate::chain::Chain;
use crate::extract::BodyUse;
use crate::fallback::Fallbacks;
use crate::handler::Endpoint;
use crate::route_check::{RouteCheck, reachable, refusal, route_name};
use crate::scope::{NestedScope, Scope, ScopeList, WorkerLocal};
use crate::{Context, Error, Problem, Respond};

/// All routes, shared by the workers.
pub(crate) struct Routes {
    fixed: FixedPaths,
    router: Router<Arc<Methods>>,
    fallbacks: Fallbacks,
    places: ScopeList,
    path_form: PathForm,
    /// The server's limit, for routes without their own.
    pub(crate) body_bytes_max: u64,
}

/// The handlers of one pattern.
#[derive(Default)]
struct Methods {
    by_method: Vec<(Method, RouteEntry)>,
    any: Option<RouteEntry>,
    /// Handles the methods without a handler, once all are known.
    others: Option<RouteEntry>,
}

/// Handles the methods for which a pattern has no handler.
struct OtherMethods {
    /// The value of `Allow`.
    allow: String,
}

/// Patterns without parameters, by length: most routes have none, and comparing the few of one length is cheaper than
/// walking a tree. They take precedence over patterns with parameters, as in the router, which contains them too.
#[derive(Default)]
struct FixedPaths(Vec<Vec<(Box<str>, Arc<Methods>)>>);

/// A longer pattern is only in the router.
const FIXED_PATH_BYTES_MAX: usize = 64;

/// A handler and the values it can find.
pub(crate) struct RouteEntry {
    endpoint: Arc<dyn Endpoint>,
    /// Never empty: the application's own is the first.
    places: Vec<Arc<NestedScope>>,
    /// The middleware around the handler, if any.
    chain: Option<Arc<Chain>>,
}

impl FixedPaths {
    fn insert(&mut self, pattern: &str, methods: &Arc<Methods>) {
        let is_fixed = pattern.len() <= FIXED_PATH_BYTES_MAX && !pattern.contains(['{', '}']);
        if is_fixed {
            let wanted = self.0.len().max(pattern.len() + 1);
            self.0.resize_with(wanted, Vec::new);
            self.0[pattern.len()].push((pattern.into(), methods.clone()));
        }
    }

    #[inline]
    fn find(&self, path: &[u8]) -> Option<(&str, &Methods)> {
        let alike = self.0.get(path.len())?;
        alike
            .iter()
            .find(|(known, _)| known.as_bytes() == path)
            .map(|(known, methods)| (&**known, &**methods))
    }
}

impl Routes {
    /// Sorts an application's routes.
    ///
    /// # Errors
    /// A pattern that is malformed, that no path can match, that conflicts with another or has a method twice, and
    /// arguments that no request can fill. All of the latter are reported together.
    pub(crate) fn of(app: App) -> Result<Routes, Error> {
        #[cfg(feature = "openapi")]
        for document in &app.documents {
            let routes = app.routes.iter().map(|route| (route.method.map(Method::name), &*route.pattern));
            if let Some(operation) = document.without_route(routes) {
                return Err(Error::Route(format!("OpenAPI: `{operation}` has no route")));
            }
        }
        let (path_form, body_bytes_max) = (app.path_form, app.plan.limits.body_bytes_max);
        let root = Arc::new(app.scope);
        let mut places = ScopeList::default();
        let mut patterns: Vec<(String, Methods)> = Vec::new();
        let mut faults = Vec::new();
        for Route { method, pattern, endpoint, scopes } in app.routes {
            let chain = places.of(outermost_first(&root, scopes));
            let checked = reachable(&pattern, path_form)
                .and_then(|()| endpoint.check(&RouteCheck::new(&pattern, &chain)));
            faults.extend(checked.err().map(|fault| format!("{}: {fault}", route_name(method, &pattern))));
            endpoint.placed(&pattern);
            let entry = RouteEntry::new(endpoint, chain, Some(&pattern));
            // In that form, a percent sign in a path is kept escaped.
            let pattern = if path_form == PathForm::Forward { pattern.replace('%', "%25") } else { pattern };
            let at = patterns.iter().position(|(known, _)| *known == pattern).unwrap_or(patterns.len());
            if at == patterns.len() {
                patterns.push((pattern, Methods::default()));
            }
            let (pattern, methods) = &mut patterns[at];
            methods.add(method, entry).map_err(|what| twice(pattern, what))?;
        }
        if !faults.is_empty() {
            return Err(Error::Route(faults.join("\n")));
        }
        let mut router = Router::new();
        let mut fixed = FixedPaths::default();
        for (pattern, mut methods) in patterns {
            let refused = |error| Error::Route(format!("route `{pattern}`{}", refusal(&error)));
            methods.complete(&pattern);
            let methods = Arc::new(methods);
            fixed.insert(&pattern, &methods);
            router.insert(pattern.as_str(), methods).map_err(refused)?;
        }
        let fallbacks = Fallbacks::of(app.fallbacks, &root, &mut places, path_form)?;
        Ok(Routes { fixed, router, fallbacks, places, path_form, body_bytes_max })
    }

    /// One worker's service.
    pub(crate) fn service(
        self: Arc<Self>,
        draining: watch::Receiver<bool>,
        worker: Option<Worker>,
    ) -> RoutesService {
        RoutesService { local: self.places.worker(self.clone(), draining, worker), routes: self }
    }

    /// The form of paths that its service takes.
    pub(crate) fn path_form(&self) -> PathForm {
        self.path_form
    }

    /// The parameters of a path that was matched before.
    pub(crate) fn params<'a>(&'a self, method: Method, path: &'a str) -> Params<'a, 'a> {
        self.find(method, path.as_bytes()).map_or_else(|_| Params::default(), |(_, _, params)| params)
    }

    /// The path as text, the handler for it and the method, and its parameters.
    ///
    /// # Errors
    /// The path is not UTF-8.
    #[inline]
    fn find<'a>(&'a self, method: Method, path: &'a [u8]) -> Result<Match<'a>, std::str::Utf8Error> {
        match self.fixed.find(path) {
            Some((path, methods)) => Ok((path, methods.find(method), Params::default())),
            None => self.find_in_router(method, path),
        }
    }

    #[inline(never)]
    fn find_in_router<'a>(
        &'a self,
        method: Method,
        path: &'a [u8],
    ) -> Result<Match<'a>, std::str::Utf8Error> {
        let path = std::str::from_utf8(path)?;
        Ok(match self.router.at(path) {
            Ok(matched) => (path, matched.value.find(method), matched.params),
            Err(_) => {
                let (entry, params) = self.fallbacks.find(path);
                (path, Some(entry), params)
            }
        })
    }
}

/// The path as text, the handler for it and the method, and its parameters.
type Match<'a> = (&'a str, Option<&'a RouteEntry>, Params<'a, 'a>);

impl Methods {
    fn add(&mut self, method: Option<Method>, entry: RouteEntry) -> Result<(), &'static str> {
        match method {
            Some(method) if self.by_method.iter().any(|(known, _)| *known == method) => Err(method.name()),
            Some(method) => {
                self.by_method.push((method, entry));
                Ok(())
            }
            None if self.any.is_some() => Err("any method"),
            None => {
                self.any = Some(entry);
                Ok(())
            }
        }
    }

    /// All are `None` if there is no handler for any method.
    #[inline]
    fn find(&self, method: Method) -> Option<&RouteEntry> {
        self.handler(method).or(self.others.as_ref())
    }

    #[inline]
    fn handler(&self, method: Method) -> Option<&RouteEntry> {
        let of = |wanted| self.by_method.iter().find(|(known, _)| *known == wanted).map(|(_, entry)| entry);
        let get_for_head = || (method == Method::Head).then(|| of(Method::Get)).flatten();
        of(method).or_else(get_for_head).or(self.any.as_ref())
    }

    /// Adds the handler of the other methods, with the middleware of the handler that was registered first.
    fn complete(&mut self, pattern: &str) {
        let Some((_, first)) = self.by_method.first().filter(|_| self.any.is_none()) else { return };
        let others = OtherMethods { allow: self.allow() };
        self.others = Some(RouteEntry::new(Arc::new(others), first.places.clone(), Some(pattern)));
    }

    /// The value of `Allow`.
    fn allow(&self) -> String {
        let has = |method: &Method| match method {
            Method::Options => true,
            Method::Head => self.handler(Method::Head).is_some(),
            method => self.by_method.iter().any(|(known, _)| known == method),
        };
        let names: Vec<&str> =
            Method::NAMED.into_iter().filter(|method| has(method)).map(Method::name).collect();
        names.join(", ")
    }
}

impl Endpoint for OtherMethods {
    fn body_use(&self) -> BodyUse {
        BodyUse::None
    }

    fn call(&self, context: &mut Context<'_>, response: &mut Response) -> Reply {
        match context.method() {
            Method::Options => ().respond(response),
            Method::Other => Problem::new(Status::NOT_IMPLEMENTED).respond(response),
            _ => Problem::new(Status::METHOD_NOT_ALLOWED).respond(response),
        }
        response.header("Allow", &self.allow);
        Reply::Now
    }
}

/// One worker's routes.
pub(crate) struct RoutesService {
    routes: Arc<Routes>,
    local: Rc<WorkerLocal>,
}

impl Service for RoutesService {
    fn path_form(&self) -> PathForm {
        self.routes.path_form
    }

    fn prepare(&self, head: &Head<'_>, path: &[u8], _: u16) -> Prepared {
        let Ok((_, Some(entry), _)) = self.routes.find(head.method, path) else {
            return BodyPlan::None.into();
        };
        // The innermost limit applies.
        let bytes_max = entry.places.iter().rev().find_map(|place| place.scope.body_bytes_max);
        match &entry.chain {
            None => entry.endpoint.body_plan(head, bytes_max),
            Some(chain) => chain.body_plan(head, bytes_max, self.routes.body_bytes_max),
        }
        .into()
    }

    #[inline]
    fn call(&self, request: Request<'_>, response: &mut Response) -> Reply {
        match self.routes.fixed.find(request.path) {
            Some((path, methods)) => {
                let found = methods.find(request.head.method);
                self.answer(request, (path, found, Params::default()), response)
            }
            None => self.answer_routed(request, response),
        }
    }
}

impl RoutesService {
    /// Handles requests that match no fixed path.
    #[inline(never)]
    fn answer_routed(&self, request: Request<'_>, response: &mut Response) -> Reply {
        let method = request.head.method;
        let Ok(matched) = self.routes.find_in_router(method, request.path) else {
            Problem::new(Status::BAD_REQUEST).detail("the path is not UTF-8").respond(response);
            return Reply::Now;
        };
        if matched.0 == "*" && method == Method::Options {
            ().respond(response);
            return Reply::Now;
        }
        self.answer(request, matched, response)
    }

    /// Inlined, the parameters that a fixed path does not have cost next to nothing.
    #[inline(always)]
    fn answer<'a>(
        &'a self,
        request: Request<'a>,
        (path, found, params): Match<'a>,
        response: &mut Response,
    ) -> Reply {
        let Some(entry) = found else {
            Problem::new(Status::NOT_FOUND).respond(response);
            return Reply::Now;
        };
        let mut context = Context {
            request,
            body_is_taken: false,
            extensions: http::Extensions::new(),
            path,
            path_form: self.routes.path_form,
            params,
            place: entry.place(),
            local: &self.local,
        };
        entry.call(&mut context, response)
    }
}

impl RouteEntry {
    /// `route` is the pattern; `None` for a fallback.
    pub(crate) fn new(
        endpoint: Arc<dyn Endpoint>,
        places: Vec<Arc<NestedScope>>,
        route: Option<&str>,
    ) -> RouteEntry {
        RouteEntry { chain: Chain::of(&endpoint, &places, route), endpoint, places }
    }

    /// The handler's own.
    #[inline]
    fn place(&self) -> &NestedScope {
        &self.places[self.places.len() - 1]
    }

    #[inline]
    fn call<'a>(&'a self, context: &mut Context<'a>, response: &mut Response) -> Reply {
        match &self.chain {
            None => self.endpoint.call(context, response),
            Some(chain) => chain.run(0, context, response),
        }
    }
}

pub(crate) fn outermost_first(
    root: &Arc<Scope>,
    scopes: Vec<Arc<Scope>>,
) -> impl Iterator<Item = Arc<Scope>> + use<> {
    std::iter::once(root.clone()).chain(scopes.into_iter().rev())
}

pub(crate) fn twice(pattern: &str, what: &str) -> Error {
    Error::Route(format!("route `{pattern}`: {what} has two handlers"))
}
