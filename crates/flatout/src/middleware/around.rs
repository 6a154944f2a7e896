//! Async functions around handlers.
//!
//! If the function calls [`Next::run`] before it waits for anything else, the request is still available and nothing is
//! copied. If it waits first, the request is copied:
//!
//! ```text
//! poll ── ready ──────────────────────> response, without what is inside
//!   │
//!   ├── wants what is inside ── call it ── poll again ── ready ──> response
//!   │                                         └── pending ──> Reply::Later
//!   └── pending ── copy the request ──> Reply::Later, which calls what is inside once that is wanted
//! ```

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, Waker};

use flatout_engine::{Reply, Response};
use http::Extensions;

use super::owned::Owned;
use super::{Inner, Middleware};
use crate::chain::Rest;
use crate::extract::{BodyUse, ExtractAsync};
use crate::{Context, Problem, Respond};

/// An async function for [`App::around`](crate::App::around): up to seven arguments of async handlers, except the body,
/// and [`Next`] as the last one. `Arguments` selects the implementation.
///
/// ```
/// use flatout::middleware::{Around, Next};
/// use flatout::{App, Headers, Response, test::Client};
///
/// async fn languages(Headers(headers): Headers, next: Next) -> Response {
///     let mut response = next.run().await;
///     if headers.contains_key("accept-language") {
///         response.header("Vary", "Accept-Language");
///     }
///     response
/// }
///
/// /// An application with middleware that its caller chooses.
/// fn with<A>(around: impl Around<A>) -> App {
///     App::new().around(around).get("/", || "hello")
/// }
///
/// let answer = Client::new(with(languages))?.get("/").header("Accept-Language", "en").send();
/// assert_eq!(answer.header("Vary"), Some("Accept-Language"));
/// # Ok::<(), flatout::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "this cannot be used as middleware",
    label = "no `Around`",
    note = "`App::around` takes an async function whose last argument is `flatout::middleware::Next`, whose others are `Extract` or `ExtractAsync`, and whose result is `Respond`"
)]
pub trait Around<Arguments>: Send + Sync + 'static {
    /// The function with its types erased.
    fn into_middleware(self) -> impl Middleware;
}

/// The rest of the chain inside async middleware: further middleware, and finally the handler.
///
/// ```
/// use flatout::middleware::Next;
/// use flatout::{App, Extension, Headers, Problem, Status, test::Client};
///
/// #[derive(Clone)]
/// struct User(String);
///
/// async fn find_user(token: &[u8]) -> Option<User> {
///     (token == b"7").then(|| User("ada".to_owned()))
/// }
///
/// let app = App::new()
///     .around(async |Headers(headers): Headers, mut next: Next| {
///         let token = headers.get("authorization").ok_or(Problem::new(Status::UNAUTHORIZED))?;
///         let user = find_user(token.as_bytes()).await.ok_or(Problem::new(Status::UNAUTHORIZED))?;
///         next.extensions_mut().insert(user);
///         Ok::<_, Problem>(next.run().await)
///     })
///     .get("/me", |Extension(User(name)): Extension<User>| name);
/// let client = Client::new(app)?;
/// assert_eq!(client.get("/me").header("Authorization", "7").send().text(), "ada");
/// assert_eq!(client.get("/me").send().status(), Status::UNAUTHORIZED);
/// # Ok::<(), flatout::Error>(())
/// ```
pub struct Next {
    shared: Rc<Shared>,
    extensions: Extensions,
}

/// State shared by the function and the code that polls it.
struct Shared {
    state: RefCell<CallState>,
    /// The code that polls the function checks the state itself.
    is_driven: Cell<bool>,
    driver: RefCell<Option<Waker>>,
}

enum CallState {
    Idle,
    Wanted(Extensions, Waker),
    Called(HandlerResponse),
    Over,
}

enum HandlerResponse {
    Now(Box<Response>),
    Later(Pin<Box<dyn Future<Output = Response>>>),
}

impl Next {
    fn new(shared: &Rc<Shared>, extensions: Extensions) -> Next {
        Next { shared: shared.clone(), extensions }
    }

    /// Values that handlers get as [`Extension`](crate::Extension), by type.
    pub fn extensions_mut(&mut self) -> &mut Extensions {
        &mut self.extensions
    }

    /// Runs the rest of the chain.
    pub async fn run(self) -> Response {
        let Next { shared, extensions } = self;
        let mut extensions = Some(extensions);
        let called = std::future::poll_fn(|context| shared.poll(&mut extensions, context)).await;
        match called {
            HandlerResponse::Now(response) => *response,
            HandlerResponse::Later(future) => future.await,
        }
    }
}

impl Shared {
    fn new() -> Shared {
        Shared {
            state: RefCell::new(CallState::Idle),
            is_driven: Cell::new(false),
            driver: RefCell::default(),
        }
    }

    fn poll(&self, extensions: &mut Option<Extensions>, context: &TaskContext<'_>) -> Poll<HandlerResponse> {
        let mut state = self.state.borrow_mut();
        match std::mem::replace(&mut *state, CallState::Over) {
            CallState::Called(called) => return Poll::Ready(called),
            CallState::Idle => {
                *state = CallState::Wanted(extensions.take().unwrap_or_default(), context.waker().clone());
                // Polled by a task other than that of the function.
                if !self.is_driven.get()
                    && let Some(driver) = self.driver.borrow_mut().take()
                {
                    driver.wake();
                }
            }
            CallState::Wanted(extensions, _) => {
                *state = CallState::Wanted(extensions, context.waker().clone())
            }
            CallState::Over => {}
        }
        Poll::Pending
    }

    /// The extensions to pass on, if the function runs the rest of the chain.
    fn wanted(&self) -> Option<(Extensions, Waker)> {
        let mut state = self.state.borrow_mut();
        match std::mem::replace(&mut *state, CallState::Over) {
            CallState::Wanted(extensions, waker) => Some((extensions, waker)),
            other => {
                *state = other;
                None
            }
        }
    }

    fn call(&self, called: HandlerResponse, waker: Waker) {
        *self.state.borrow_mut() = CallState::Called(called);
        waker.wake();
    }

    fn drive<T>(
        &self,
        future: Pin<&mut (impl Future<Output = T> + ?Sized)>,
        context: &mut TaskContext<'_>,
    ) -> Poll<T> {
        self.is_driven.set(true);
        let polled = future.poll(context);
        self.is_driven.set(false);
        polled
    }
}

/// Runs a function around the rest of the chain.
fn run<'a, R: Respond + 'static>(
    make: impl FnOnce(&mut Context<'a>, Next) -> Pin<Box<dyn Future<Output = R>>>,
    inner: Inner<'a>,
    context: &mut Context<'a>,
    response: &mut Response,
) -> Reply {
    let shared = Rc::new(Shared::new());
    let extensions = std::mem::take(&mut context.extensions);
    // Arguments may use values that outer middleware has stored.
    context.extensions = extensions.clone();
    let mut future = make(context, Next::new(&shared, extensions));
    let mut no_waker = TaskContext::from_waker(Waker::noop());
    if let Poll::Ready(reply) = shared.drive(future.as_mut(), &mut no_waker) {
        reply.respond(response);
        return Reply::Now;
    }
    let Some((extensions, waker)) = shared.wanted() else {
        let mut request = Some((Owned::of(context), inner.keep()));
        return Reply::Later(Box::pin(async move {
            let polled =
                std::future::poll_fn(|context| poll_owned(&shared, &mut future, &mut request, context));
            into_response(polled.await)
        }));
    };
    context.extensions = extensions;
    match inner.call(context, response) {
        Reply::Now => shared.call(HandlerResponse::Now(Box::new(std::mem::take(response))), waker),
        Reply::Later(later) => shared.call(HandlerResponse::Later(later), waker),
        // The response is not seen here.
        reply @ (Reply::Parked | Reply::Leave(_)) => return reply,
    }
    match shared.drive(future.as_mut(), &mut no_waker) {
        Poll::Ready(reply) => {
            reply.respond(response);
            Reply::Now
        }
        Poll::Pending => Reply::Later(Box::pin(async move { into_response(future.await) })),
    }
}

fn poll_owned<R>(
    shared: &Shared,
    future: &mut Pin<Box<dyn Future<Output = R>>>,
    request: &mut Option<(Owned, Rest)>,
    context: &mut TaskContext<'_>,
) -> Poll<R> {
    loop {
        if request.is_some() {
            *shared.driver.borrow_mut() = Some(context.waker().clone());
        }
        if let Poll::Ready(reply) = shared.drive(future.as_mut(), context) {
            return Poll::Ready(reply);
        }
        let Some((extensions, waker)) = shared.wanted() else { return Poll::Pending };
        let Some((mut owned, rest)) = request.take() else { return Poll::Pending };
        owned.extensions = extensions;
        let mut response = Response::new();
        let called = match owned.call(&rest, &mut response) {
            Reply::Later(later) => HandlerResponse::Later(later),
            _ => HandlerResponse::Now(Box::new(response)),
        };
        shared.call(called, waker);
    }
}

fn into_response(reply: impl Respond) -> Response {
    let mut response = Response::new();
    reply.respond(&mut response);
    response
}

struct AroundFunction<F, Arguments>(Arc<F>, PhantomData<fn(Arguments)>);

macro_rules! around {
    ($($argument:ident)*) => {
        impl<F, R, $($argument),*> Around<($($argument,)* Next,)> for F
        where
            F: AsyncFn($($argument,)* Next) -> R + Send + Sync + 'static,
            R: Respond + 'static,
            $($argument: ExtractAsync,)*
        {
            fn into_middleware(self) -> impl Middleware {
                $(const {
                    assert!(matches!($argument::BODY, BodyUse::None), "middleware cannot have the body as an argument");
                })*
                AroundFunction::<F, ($($argument,)*)>(Arc::new(self), PhantomData)
            }
        }

        #[allow(non_snake_case, unused_variables)]
        impl<F, R, $($argument),*> Middleware for AroundFunction<F, ($($argument,)*)>
        where
            F: AsyncFn($($argument,)* Next) -> R + Send + Sync + 'static,
            R: Respond + 'static,
            $($argument: ExtractAsync,)*
        {
            fn call<'a>(&self, inner: Inner<'a>, context: &mut Context<'a>, response: &mut Response) -> Reply {
                let function = self.0.clone();
                let make = |context: &mut Context<'a>, next: Next| {
                    $(let $argument = $argument::extract_async(context);)*
                    let future: Pin<Box<dyn Future<Output = Result<R, Problem>>>> = Box::pin(async move {
                        $(let $argument = $argument.await?;)*
                        Ok(function($($argument,)* next).await)
                    });
                    future
                };
                run(make, inner, context, response)
            }
        }
    };
}

around!();
around!(A);
around!(A B);
around!(A B C);
around!(A B C D);
around!(A B C D E);
around!(A B C D E G);
around!(A B C D E G H);
