//! The middleware around a handler: that of its application and of the outer applications.
//!
//! ```text
//! request ──> with, around, layer ──> before ──> inner application: the same ──> handler
//!             in order of registration  in order                                    │
//! response <─ the same, backwards <───── after <── inner application: the same <────┘
//! ```
//!
//! A handler that has no middleware and reads no body has no chain and is called directly.

use std::sync::Arc;

use flatout_engine::{BodyPlan, Reply, RequestBody, Response};
use flatout_wire::{Framing, Head, Method, Status};

use crate::collect::refused;
use crate::extract::BodyUse;
use crate::handler::{Endpoint, planned};
use crate::middleware::owned::Owned;
use crate::scope::{NestedScope, WorkerLocal};
use crate::{Context, Problem, Respond};

/// The request that was handled.
///
/// ```
/// use flatout::{Answered, App, Response};
///
/// fn log(answered: &Answered<'_>, response: &mut Response) {
///     println!("{} {} {}", answered.method.name(), answered.path, response.status().code());
/// }
///
/// App::new().get("/", || "hello").after(log);
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Answered<'a> {
    /// Its method.
    pub method: Method,
    /// Its decoded path.
    pub path: &'a str,
}

/// A handler and the middleware around it.
pub(crate) struct Chain {
    endpoint: Arc<dyn Endpoint>,
    /// Outermost first; never empty: the first is that of the application itself.
    places: Vec<Arc<NestedScope>>,
    /// Empty where the handler has no middleware but reads bodies.
    steps: Vec<ChainStep>,
    /// A middleware among them reads bodies.
    reads_body: bool,
    /// The pattern; `None` for a fallback.
    route: Option<Arc<str>>,
}

/// One step on the way to the handler: the index of the place, and of the middleware in it.
#[derive(Clone, Copy)]
enum ChainStep {
    Wrap(usize, usize),
    Checks(usize),
}

/// The rest of the chain inside a middleware: further middleware, and finally the handler.
///
/// ```
/// use flatout::engine::{Reply, Response};
/// use flatout::middleware::{Inner, Middleware};
/// use flatout::{App, Context, Problem, Respond, Status, test::Client};
///
/// /// Refuses requests without a key, and shows which route has handled the others.
/// struct Keys;
///
/// impl Middleware for Keys {
///     fn call<'a>(&self, inner: Inner<'a>, context: &mut Context<'a>, response: &mut Response) -> Reply {
///         if context.header("x-key").is_none() {
///             Problem::new(Status::UNAUTHORIZED).respond(response);
///             return Reply::Now;
///         }
///         if context.path() == "/health" {
///             return inner.call(context, response);
///         }
///         let route = inner.route().unwrap_or("none").to_owned();
///         inner.call_then(context, response, move |response| {
///             response.header("X-Route", route);
///         })
///     }
/// }
///
/// let client = Client::new(App::new().with(Keys).get("/items/{id}", || "item"))?;
/// assert_eq!(client.get("/items/7").header("X-Key", "k").send().header("X-Route"), Some("/items/{id}"));
/// assert_eq!(client.get("/items/7").send().status(), Status::UNAUTHORIZED);
/// # Ok::<(), flatout::Error>(())
/// ```
pub struct Inner<'a> {
    chain: &'a Arc<Chain>,
    at: usize,
}

/// A part of a chain that outlives the request's turn.
#[derive(Clone)]
pub(crate) struct Rest {
    chain: Arc<Chain>,
    at: usize,
}

impl Chain {
    /// `None` where nothing runs around the handler, and the handler reads no body.
    pub(crate) fn of(
        endpoint: &Arc<dyn Endpoint>,
        places: &[Arc<NestedScope>],
        route: Option<&str>,
    ) -> Option<Arc<Chain>> {
        let mut steps = Vec::new();
        for (index, place) in places.iter().enumerate() {
            steps.extend((0..place.scope.wraps.len()).map(|wrap| ChainStep::Wrap(index, wrap)));
            if !place.scope.before.is_empty() || !place.scope.after.is_empty() {
                steps.push(ChainStep::Checks(index));
            }
        }
        if steps.is_empty() && endpoint.body_use() == BodyUse::None {
            return None;
        }
        let (endpoint, places, route) = (endpoint.clone(), places.to_vec(), route.map(Arc::from));
        let reads_body =
            places.iter().flat_map(|place| &place.scope.wraps).any(|middleware| middleware.reads_body());
        Some(Arc::new(Chain { endpoint, places, steps, reads_body, route }))
    }

    /// Runs the rest of the chain from a step on.
    pub(crate) fn run<'a>(
        self: &'a Arc<Chain>,
        at: usize,
        context: &mut Context<'a>,
        response: &mut Response,
    ) -> Reply {
        match self.steps.get(at) {
            Some(&ChainStep::Wrap(place, wrap)) => {
                context.place = &self.places[place];
                self.places[place].scope.wraps[wrap].call(
                    Inner { chain: self, at: at + 1 },
                    context,
                    response,
                )
            }
            Some(&ChainStep::Checks(place)) => self.checks(at, place, context, response),
            None => {
                context.place = self.place();
                match (context.head().framing, &context.request.body) {
                    (Framing::None, RequestBody::Whole { .. }) => self.endpoint.call(context, response),
                    // The engine has collected it, within the limit.
                    (Framing::Length(length), RequestBody::Whole { bytes, .. })
                        if self.steps.is_empty() && bytes.len() as u64 == length =>
                    {
                        self.endpoint.call(context, response)
                    }
                    _ => self.call_with_body(at, context, response),
                }
            }
        }
    }

    /// Calls the handler of a request with a body. Where middleware had to see the request first, the body is collected
    /// only now, or refused because of its declared length.
    fn call_with_body<'a>(
        self: &'a Arc<Chain>,
        at: usize,
        context: &mut Context<'a>,
        response: &mut Response,
    ) -> Reply {
        let (body_use, local) = (self.endpoint.body_use(), context.local);
        if body_use == BodyUse::None {
            return self.endpoint.call(context, response);
        }
        let bytes_max = self.body_bytes_max(local);
        if matches!(context.head().framing, Framing::Length(bytes) if bytes > bytes_max) {
            Problem::new(Status::CONTENT_TOO_LARGE).respond(response);
            return Reply::Now;
        }
        if body_use != BodyUse::Whole || !matches!(context.request.body, RequestBody::Stream(_)) {
            return self.endpoint.call(context, response);
        }
        let (mut owned, rest) = (Owned::of(context), Rest { chain: self.clone(), at });
        Reply::Later(Box::pin(async move {
            let mut response = Response::new();
            if let Err(fault) = owned.request.body.collect(bytes_max, owned.local.lane()).await {
                refused(fault).respond(&mut response);
                return response;
            }
            match owned.call(&rest, &mut response) {
                Reply::Later(later) => later.await,
                _ => response,
            }
        }))
    }

    /// The largest body of its route: the innermost limit applies.
    fn body_bytes_max(&self, local: &WorkerLocal) -> u64 {
        let limits = self.places.iter().rev().find_map(|place| place.scope.body_bytes_max);
        limits.unwrap_or(local.routes.body_bytes_max)
    }

    /// How the body after this head is to be read.
    ///
    /// Bodies that need not be received before middleware has seen the request come later: one that is too large or of
    /// unknown length, so that a refusal passes through the middleware, and one whose client waits for
    /// `100 Continue`, so that a refusal saves it from sending the body.
    pub(crate) fn body_plan(&self, head: &Head<'_>, bytes_max: Option<u64>, default_max: u64) -> BodyPlan {
        if matches!(head.framing, Framing::Length(bytes) if bytes > bytes_max.unwrap_or(default_max)) {
            return match self.endpoint.body_use() {
                BodyUse::None => BodyPlan::None,
                // The chain refuses it, see above.
                BodyUse::Whole | BodyUse::Stream => BodyPlan::Refused,
            };
        }
        let plan = match self.reads_body {
            true => planned(self.endpoint.body_use(), bytes_max),
            false => self.endpoint.body_plan(head, bytes_max),
        };
        match plan {
            BodyPlan::Whole { bytes_max } if head.expects_continue || head.framing == Framing::Chunked => {
                BodyPlan::Stream { bytes_max }
            }
            plan => plan,
        }
    }

    fn checks<'a>(
        self: &'a Arc<Chain>,
        at: usize,
        place: usize,
        context: &mut Context<'a>,
        response: &mut Response,
    ) -> Reply {
        context.place = &self.places[place];
        let scope = &self.places[place].scope;
        let (method, path) = (context.method(), context.path());
        if !scope.before.iter().all(|before| before(context, response)) {
            for place in self.places[place..].iter().rev() {
                run_after(place, &Answered { method, path }, response);
            }
            return Reply::Now;
        }
        match self.run(at + 1, context, response) {
            reply if scope.after.is_empty() => reply,
            Reply::Now => {
                run_after(&self.places[place], &Answered { method, path }, response);
                Reply::Now
            }
            Reply::Later(future) => {
                let (place, path) = (self.places[place].clone(), path.to_owned());
                Reply::Later(Box::pin(async move {
                    let mut response = future.await;
                    run_after(&place, &Answered { method, path: &path }, &mut response);
                    response
                }))
            }
            // This application does not see the response.
            reply @ (Reply::Parked | Reply::Leave(_)) => reply,
        }
    }

    /// The handler's own.
    fn place(&self) -> &NestedScope {
        &self.places[self.places.len() - 1]
    }
}

fn run_after(place: &NestedScope, answered: &Answered<'_>, response: &mut Response) {
    for after in &place.scope.after {
        after(answered, response);
    }
}

impl<'a> Inner<'a> {
    /// Runs it. Like a handler, it writes the response or returns how the response will arrive.
    pub fn call(self, context: &mut Context<'a>, response: &mut Response) -> Reply {
        self.chain.run(self.at, context, response)
    }

    /// Runs it, then `then` with its response: immediately if the handler does not wait. A response sent by the
    /// exchange's key, or by code that took over the connection, is not seen.
    pub fn call_then(
        self,
        context: &mut Context<'a>,
        response: &mut Response,
        then: impl FnOnce(&mut Response) + 'static,
    ) -> Reply {
        match self.call(context, response) {
            Reply::Now => {
                then(response);
                Reply::Now
            }
            Reply::Later(future) => Reply::Later(Box::pin(async move {
                let mut response = future.await;
                then(&mut response);
                response
            })),
            reply @ (Reply::Parked | Reply::Leave(_)) => reply,
        }
    }

    /// The pattern of the route, such as `/items/{id}`; `None` if no route matched.
    pub fn route(&self) -> Option<&'a str> {
        self.chain.route.as_deref()
    }

    /// For running it after this request's turn.
    pub(crate) fn keep(&self) -> Rest {
        Rest { chain: self.chain.clone(), at: self.at }
    }
}

impl Rest {
    pub(crate) fn call<'a>(&'a self, context: &mut Context<'a>, response: &mut Response) -> Reply {
        self.chain.run(self.at, context, response)
    }

    /// The handler's own place.
    pub(crate) fn place(&self) -> &NestedScope {
        self.chain.place()
    }

    pub(crate) fn body_use(&self) -> BodyUse {
        self.chain.endpoint.body_use()
    }

    pub(crate) fn body_bytes_max(&self, local: &WorkerLocal) -> u64 {
        self.chain.body_bytes_max(local)
    }
}
