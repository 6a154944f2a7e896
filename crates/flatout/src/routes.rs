//! From a request to its handler.

use std::sync::Arc;

use flatout_engine::{BodyPlan, Lane, Reply, Request, Response, Service};
use flatout_wire::target::PathForm;
use flatout_wire::{Head, Method, Status};
use matchit::{Params, Router};
use tokio::sync::watch;

use crate::app::{App, Route};
use crate::extract::BodyUse;
use crate::fallback::Fallbacks;
use crate::handler::Endpoint;
use crate::scope::{Place, Places, Scope, WorkerLocal};
use crate::{Context, Error, Problem, Respond};

/// Which request was answered.
#[derive(Debug, Clone, Copy)]
pub struct Answered<'a> {
    /// Its method.
    pub method: Method,
    /// Its decoded path.
    pub path: &'a str,
}

/// All routes, shared by the workers.
pub(crate) struct Routes {
    fixed: FixedPaths,
    router: Router<Arc<Methods>>,
    fallbacks: Fallbacks,
    places: Places,
    path_form: PathForm,
}

/// The handlers of one pattern.
#[derive(Default)]
struct Methods {
    by_method: Vec<(Method, Entry)>,
    any: Option<Entry>,
}

/// Patterns without parameters, by their length: most routes are such, and comparing with the few of one length costs less
/// than to walk a tree. They win over patterns with parameters, as in the router, which has them too.
#[derive(Default)]
struct FixedPaths(Vec<Vec<(Box<str>, Arc<Methods>)>>);

/// A longer pattern is only in the router.
const FIXED_PATH_BYTES_MAX: usize = 64;

/// A handler and its places, outermost first.
pub(crate) struct Entry {
    endpoint: Arc<dyn Endpoint>,
    /// Never empty: the application's own is the first.
    places: Vec<Arc<Place>>,
    /// Whether any of the scopes has something to run before, or after.
    has_before: bool,
    has_after: bool,
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
    /// A pattern that is malformed, contradicts another, or has a method twice.
    pub(crate) fn of(app: App) -> Result<Routes, Error> {
        let path_form = app.path_form;
        let root = Arc::new(app.scope);
        let mut places = Places::default();
        let mut patterns: Vec<(String, Methods)> = Vec::new();
        for Route { method, pattern, endpoint, scopes } in app.routes {
            let entry = Entry::new(endpoint, places.of(outermost_first(&root, scopes)));
            // In that form a percent sign of a path stands as its escape.
            let pattern = if path_form == PathForm::Forward { pattern.replace('%', "%25") } else { pattern };
            let at = patterns.iter().position(|(known, _)| *known == pattern).unwrap_or(patterns.len());
            if at == patterns.len() {
                patterns.push((pattern, Methods::default()));
            }
            let (pattern, methods) = &mut patterns[at];
            methods.add(method, entry).map_err(|what| twice(pattern, what))?;
        }
        let mut router = Router::new();
        let mut fixed = FixedPaths::default();
        for (pattern, methods) in patterns {
            let refused = |error| Error::Route(format!("route `{pattern}`: {error}"));
            let methods = Arc::new(methods);
            fixed.insert(&pattern, &methods);
            router.insert(pattern.as_str(), methods).map_err(refused)?;
        }
        let fallbacks = Fallbacks::of(app.fallbacks, &root, &mut places)?;
        Ok(Routes { fixed, router, fallbacks, places, path_form })
    }

    /// One worker's service.
    pub(crate) fn service(
        self: Arc<Self>,
        draining: watch::Receiver<bool>,
        lane: Option<Lane>,
    ) -> RoutesService {
        RoutesService { local: self.places.worker(draining, lane), routes: self }
    }

    /// The path as text, the handler for it and the method, and its parameters.
    ///
    /// # Errors
    /// The path is not UTF-8.
    #[inline]
    fn find<'a>(
        &'a self,
        method: Method,
        path: &'a [u8],
    ) -> Result<(&'a str, Found<'a>, Params<'a, 'a>), std::str::Utf8Error> {
        if let Some((path, methods)) = self.fixed.find(path) {
            return Ok((path, methods.find(method), Params::default()));
        }
        let path = std::str::from_utf8(path)?;
        Ok(match self.router.at(path) {
            Ok(matched) => (path, matched.value.find(method), matched.params),
            Err(_) => {
                let (entry, params) = self.fallbacks.find(path);
                (path, Found::Entry(entry), params)
            }
        })
    }
}

/// What a pattern has for a method.
enum Found<'a> {
    Entry(&'a Entry),
    OtherMethods(&'a Methods),
}

impl Methods {
    fn add(&mut self, method: Option<Method>, entry: Entry) -> Result<(), &'static str> {
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

    #[inline]
    fn find(&self, method: Method) -> Found<'_> {
        let of = |wanted| self.by_method.iter().find(|(known, _)| *known == wanted).map(|(_, entry)| entry);
        let get_for_head = || (method == Method::Head).then(|| of(Method::Get)).flatten();
        match of(method).or_else(get_for_head).or(self.any.as_ref()) {
            Some(entry) => Found::Entry(entry),
            None => Found::OtherMethods(self),
        }
    }

    /// The value of `Allow`.
    fn allow(&self) -> String {
        let has = |method: &Method| match method {
            Method::Options => true,
            Method::Head => matches!(self.find(Method::Head), Found::Entry(_)),
            method => self.by_method.iter().any(|(known, _)| known == method),
        };
        let names: Vec<&str> =
            Method::NAMED.into_iter().filter(|method| has(method)).map(Method::name).collect();
        names.join(", ")
    }

    /// Answers a method that has no handler.
    fn answer(&self, method: Method, response: &mut Response) {
        match method {
            Method::Options => ().respond(response),
            Method::Other => Problem::new(Status::NOT_IMPLEMENTED).respond(response),
            _ => Problem::new(Status::METHOD_NOT_ALLOWED).respond(response),
        }
        response.header("Allow", self.allow());
    }
}

/// One worker's routes.
pub(crate) struct RoutesService {
    routes: Arc<Routes>,
    local: WorkerLocal,
}

impl Service for RoutesService {
    fn path_form(&self) -> PathForm {
        self.routes.path_form
    }

    fn body(&self, head: &Head<'_>, path: &[u8]) -> BodyPlan {
        let Ok((_, Found::Entry(entry), _)) = self.routes.find(head.method, path) else {
            return BodyPlan::None;
        };
        // The innermost limit counts.
        let bytes_max = entry.places.iter().rev().find_map(|place| place.scope.body_bytes_max);
        match entry.endpoint.body_use() {
            BodyUse::None => BodyPlan::None,
            BodyUse::Whole => BodyPlan::Whole { bytes_max },
            BodyUse::Stream => BodyPlan::Stream { bytes_max },
        }
    }

    #[inline]
    fn call(&self, request: Request<'_>, response: &mut Response) -> Reply {
        let method = request.head.method;
        let Ok((path, found, params)) = self.routes.find(method, request.path) else {
            Problem::new(Status::BAD_REQUEST).detail("the path is not UTF-8").respond(response);
            return Reply::Now;
        };
        if path == "*" && method == Method::Options {
            ().respond(response);
            return Reply::Now;
        }
        let entry = match found {
            Found::Entry(entry) => entry,
            Found::OtherMethods(methods) => {
                methods.answer(method, response);
                return Reply::Now;
            }
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
        let reply = entry.call(&mut context, response);
        entry.after(method, path, reply, response)
    }
}

impl Entry {
    pub(crate) fn new(endpoint: Arc<dyn Endpoint>, places: Vec<Arc<Place>>) -> Entry {
        Entry {
            has_before: places.iter().any(|place| !place.scope.before.is_empty()),
            has_after: places.iter().any(|place| !place.scope.after.is_empty()),
            endpoint,
            places,
        }
    }

    /// The handler's own.
    #[inline]
    fn place(&self) -> &Place {
        &self.places[self.places.len() - 1]
    }

    #[inline]
    fn call<'a>(&'a self, context: &mut Context<'a>, response: &mut Response) -> Reply {
        if !self.has_before {
            return self.endpoint.call(context, response);
        }
        for place in &self.places {
            context.place = place;
            if !place.scope.before.iter().all(|before| before(context, response)) {
                return Reply::Now;
            }
        }
        self.endpoint.call(context, response)
    }

    /// Runs what comes after the handler, innermost scope first, when its response is there.
    #[inline]
    fn after(&self, method: Method, path: &str, reply: Reply, response: &mut Response) -> Reply {
        if !self.has_after {
            return reply;
        }
        match reply {
            Reply::Now => {
                run_after(&self.places, &Answered { method, path }, response);
                Reply::Now
            }
            Reply::Later(future) => {
                let (places, path) = (self.places.clone(), path.to_owned());
                Reply::Later(Box::pin(async move {
                    let mut response = future.await;
                    run_after(&places, &Answered { method, path: &path }, &mut response);
                    response
                }))
            }
            // Nothing of this application sees the response.
            reply @ (Reply::Parked | Reply::Leave(_)) => reply,
        }
    }
}

fn run_after(places: &[Arc<Place>], answered: &Answered<'_>, response: &mut Response) {
    for after in places.iter().rev().flat_map(|place| &place.scope.after) {
        after(answered, response);
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
