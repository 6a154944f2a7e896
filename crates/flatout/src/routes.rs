//! From a request to its handler.

use std::sync::Arc;

use flatout_engine::{BodyPlan, Reply, Request, Response, Service};
use flatout_wire::{Head, Method, Status};
use matchit::{Params, Router};
use tokio::sync::watch;

use crate::app::{App, MakeLocal, Route};
use crate::context::{Local, Shared};
use crate::extract::BodyUse;
use crate::handler::Endpoint;
use crate::{Context, Error, Problem, Respond};

/// What surrounds the handlers of one application.
#[derive(Default)]
pub(crate) struct Scope {
    pub(crate) before: Vec<Before>,
    pub(crate) after: Vec<After>,
    pub(crate) body_bytes_max: Option<u64>,
}

/// Returns whether to go on; if not, it has written the response.
pub(crate) type Before = Box<dyn Fn(&mut Context<'_>, &mut Response) -> bool + Send + Sync>;
pub(crate) type After = Box<dyn Fn(&Answered<'_>, &mut Response) + Send + Sync>;

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
    not_found: Entry,
    shared: Shared,
    locals: Vec<MakeLocal>,
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

/// A handler and its scopes, outermost first.
struct Entry {
    endpoint: Arc<dyn Endpoint>,
    scopes: Vec<Arc<Scope>>,
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
        let root = Arc::new(app.scope);
        let mut patterns: Vec<(String, Methods)> = Vec::new();
        for Route { method, pattern, endpoint, mut scopes } in app.routes {
            scopes.push(root.clone());
            scopes.reverse();
            let at = patterns.iter().position(|(known, _)| *known == pattern).unwrap_or(patterns.len());
            if at == patterns.len() {
                patterns.push((pattern, Methods::default()));
            }
            let (pattern, methods) = &mut patterns[at];
            methods.add(method, Entry::new(endpoint, scopes)).map_err(|what| twice(pattern, what))?;
        }
        let mut router = Router::new();
        let mut fixed = FixedPaths::default();
        for (pattern, methods) in patterns {
            let refused = |error| Error::Route(format!("route `{pattern}`: {error}"));
            let methods = Arc::new(methods);
            fixed.insert(&pattern, &methods);
            router.insert(pattern.as_str(), methods).map_err(refused)?;
        }
        let endpoint = app.fallback.unwrap_or_else(|| Arc::new(NotFound));
        let not_found = Entry::new(endpoint, vec![root]);
        Ok(Routes { fixed, router, not_found, shared: app.shared, locals: app.locals })
    }

    /// One worker's service.
    pub(crate) fn service(self: Arc<Self>, draining: watch::Receiver<bool>) -> RoutesService {
        RoutesService { local: Local::make(&self.locals, draining), routes: self }
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
            Err(_) => (path, Found::Entry(&self.not_found), Params::default()),
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
    local: Local,
}

impl Service for RoutesService {
    fn body(&self, head: &Head<'_>, path: &[u8]) -> BodyPlan {
        let Ok((_, Found::Entry(entry), _)) = self.routes.find(head.method, path) else {
            return BodyPlan::None;
        };
        // The innermost limit counts.
        let bytes_max = entry.scopes.iter().rev().find_map(|scope| scope.body_bytes_max);
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
            head: request.head,
            path,
            params,
            body: Some(request.body),
            peer: request.peer,
            shared: &self.routes.shared,
            local: &self.local,
        };
        let reply = entry.call(&mut context, response);
        entry.after(method, path, reply, response)
    }
}

impl Entry {
    fn new(endpoint: Arc<dyn Endpoint>, scopes: Vec<Arc<Scope>>) -> Entry {
        Entry {
            has_before: scopes.iter().any(|scope| !scope.before.is_empty()),
            has_after: scopes.iter().any(|scope| !scope.after.is_empty()),
            endpoint,
            scopes,
        }
    }

    #[inline]
    fn call(&self, context: &mut Context<'_>, response: &mut Response) -> Reply {
        if !self.has_before {
            return self.endpoint.call(context, response);
        }
        let mut before = self.scopes.iter().flat_map(|scope| &scope.before);
        if before.all(|before| before(context, response)) {
            return self.endpoint.call(context, response);
        }
        Reply::Now
    }

    /// Runs what comes after the handler, innermost scope first, when its response is there.
    #[inline]
    fn after(&self, method: Method, path: &str, reply: Reply, response: &mut Response) -> Reply {
        if !self.has_after {
            return reply;
        }
        match reply {
            Reply::Now => {
                run_after(&self.scopes, &Answered { method, path }, response);
                Reply::Now
            }
            Reply::Later(future) => {
                let (scopes, path) = (self.scopes.clone(), path.to_owned());
                Reply::Later(Box::pin(async move {
                    let mut response = future.await;
                    run_after(&scopes, &Answered { method, path: &path }, &mut response);
                    response
                }))
            }
            // Nothing of this application sees the response.
            reply @ (Reply::Parked | Reply::Leave(_)) => reply,
        }
    }
}

fn run_after(scopes: &[Arc<Scope>], answered: &Answered<'_>, response: &mut Response) {
    for after in scopes.iter().rev().flat_map(|scope| &scope.after) {
        after(answered, response);
    }
}

/// Answers what no route matches.
struct NotFound;

impl Endpoint for NotFound {
    fn body_use(&self) -> BodyUse {
        BodyUse::None
    }

    fn call(&self, context: &mut Context<'_>, response: &mut Response) -> Reply {
        let status = match context.method() {
            Method::Other => Status::NOT_IMPLEMENTED,
            _ => Status::NOT_FOUND,
        };
        Problem::new(status).respond(response);
        Reply::Now
    }
}

fn twice(pattern: &str, what: &str) -> Error {
    Error::Route(format!("route `{pattern}`: {what} has two handlers"))
}
