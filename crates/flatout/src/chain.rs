//! The middleware around a handler: that of its application and of the outer applications.
//!
//! ```text
//! request ──> with, around, layer ──> before ──> inner application: the same ──> handler
//!             in order of registration  in order                                    │
//! response <─ the same, backwards <───── after <── inner application: the same <────┘
//! ```
//!
//! A handler without middleware has no chain and is called directly.

use std::sync::Arc;

use flatout_engine::{Reply, Response};
use flatout_wire::Method;

use crate::Context;
use crate::extract::BodyUse;
use crate::handler::Endpoint;
use crate::scope::Place;

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
    places: Vec<Arc<Place>>,
    steps: Vec<Step>,
    /// The pattern; `None` for a fallback.
    route: Option<Arc<str>>,
}

/// One step on the way to the handler: the index of the place, and of the middleware in it.
#[derive(Clone, Copy)]
enum Step {
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
    /// `None` where nothing runs around the handler.
    pub(crate) fn of(
        endpoint: &Arc<dyn Endpoint>,
        places: &[Arc<Place>],
        route: Option<&str>,
    ) -> Option<Arc<Chain>> {
        let mut steps = Vec::new();
        for (index, place) in places.iter().enumerate() {
            steps.extend((0..place.scope.wraps.len()).map(|wrap| Step::Wrap(index, wrap)));
            if !place.scope.before.is_empty() || !place.scope.after.is_empty() {
                steps.push(Step::Checks(index));
            }
        }
        if steps.is_empty() {
            return None;
        }
        let (endpoint, places, route) = (endpoint.clone(), places.to_vec(), route.map(Arc::from));
        Some(Arc::new(Chain { endpoint, places, steps, route }))
    }

    /// Runs the rest of the chain from a step on.
    pub(crate) fn run<'a>(
        self: &'a Arc<Chain>,
        at: usize,
        context: &mut Context<'a>,
        response: &mut Response,
    ) -> Reply {
        match self.steps.get(at) {
            Some(&Step::Wrap(place, wrap)) => {
                context.place = &self.places[place];
                self.places[place].scope.wraps[wrap].call(
                    Inner { chain: self, at: at + 1 },
                    context,
                    response,
                )
            }
            Some(&Step::Checks(place)) => self.checks(at, place, context, response),
            None => {
                context.place = self.place();
                self.endpoint.call(context, response)
            }
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
    fn place(&self) -> &Place {
        &self.places[self.places.len() - 1]
    }
}

fn run_after(place: &Place, answered: &Answered<'_>, response: &mut Response) {
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
    pub(crate) fn place(&self) -> &Place {
        self.chain.place()
    }

    pub(crate) fn body_use(&self) -> BodyUse {
        self.chain.endpoint.body_use()
    }
}
