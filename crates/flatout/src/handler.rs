//! Functions as handlers.
//!
//! A sync function responds in the lane. An async one is polled once where it is called, so if it is ready immediately,
//! it responds in the lane too. Only a function that waits becomes a task.

use std::marker::PhantomData;
use std::sync::Arc;

use flatout_engine::{BodyPlan, Reply, Response};
use flatout_wire::Head;

use crate::extract::{BodyUse, Extract, ExtractAsync};
use crate::ready::{SpareId, later_unless_ready};
use crate::{Context, Problem, Respond, RouteCheck};

/// The handler of a route.
///
/// Implement it for your own type to respond without arguments and without [`Respond`]:
///
/// ```
/// use flatout::engine::{Reply, Response};
/// use flatout::{App, BodyUse, Context, Endpoint, test::Client};
///
/// struct Prepared(Vec<u8>);
///
/// impl Endpoint for Prepared {
///     fn body_use(&self) -> BodyUse {
///         BodyUse::None
///     }
///
///     fn call(&self, _: &mut Context<'_>, response: &mut Response) -> Reply {
///         response.header("Content-Type", "text/plain").buffer().extend_from_slice(&self.0);
///         Reply::Now
///     }
/// }
///
/// let client = Client::new(App::new().get("/", Prepared(b"ready".to_vec())))?;
/// assert_eq!(client.get("/").send().text(), "ready");
/// # Ok::<(), flatout::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an endpoint",
    label = "`Endpoint` is not implemented for it",
    note = "endpoints are types of your own that implement `Endpoint`, and what `flatout::blocking` returns; functions are handlers"
)]
pub trait Endpoint: Send + Sync + 'static {
    /// How the body has to be read.
    fn body_use(&self) -> BodyUse;

    /// How the body after this head is to be read, up to this many bytes (`None`: the server's limit).
    #[doc(hidden)]
    fn body_plan(&self, head: &Head<'_>, bytes_max: Option<u64>) -> BodyPlan {
        let _ = head;
        planned(self.body_use(), bytes_max)
    }

    /// Sets its place among the routes: once for each of its patterns, before the first request.
    #[doc(hidden)]
    fn placed(&self, prefix: &str) {
        let _ = prefix;
    }

    /// Whether it takes whole connections over ([`Reply::Leave`]), which HTTP/2 cannot give.
    #[doc(hidden)]
    fn takes_connections(&self) -> bool {
        false
    }

    /// Checks its arguments against its route, when the application starts.
    ///
    /// # Errors
    /// Why every request would fail.
    #[doc(hidden)]
    fn check(&self, route: &RouteCheck<'_>) -> Result<(), String> {
        let _ = route;
        Ok(())
    }

    /// Handles one request.
    fn call(&self, context: &mut Context<'_>, response: &mut Response) -> Reply;
}

pub(crate) fn planned(body_use: BodyUse, bytes_max: Option<u64>) -> BodyPlan {
    match body_use {
        BodyUse::None => BodyPlan::None,
        BodyUse::Whole => BodyPlan::Whole { bytes_max },
        BodyUse::Stream => BodyPlan::Stream { bytes_max },
    }
}

/// A function with the shape of a handler: up to eight arguments and a result, whatever their types are. With it the compiler
/// infers arguments and kind even if they are wrong, so that it can report which type is invalid and why.
///
/// Results of sync functions must be `Unpin`: that distinguishes them from futures. Most types are. If a type of your own contains a
/// stream that is not, keep the stream in a `Pin<Box<_>>`, or write `impl<S> Unpin for MyStream<S> {}`.
///
/// [`Handler`] implies it. A function of your own that takes handlers may name it beside [`Handler`], as those of
/// [`App`](crate::App) do: then its callers get the same messages.
///
/// ```
/// use flatout::{App, Handler, Shape};
///
/// fn status_page<A, K, H: Shape<A, K> + Handler<A, K>>(app: App, handler: H) -> App {
///     app.get("/status", handler)
/// }
///
/// status_page(App::new(), async || "all is well");
/// ```
#[diagnostic::on_unimplemented(
    message = "this is not a handler",
    label = "it is not a function of at most eight arguments",
    note = "a handler is a sync or async function whose arguments are `Extract` and whose result is `Respond`"
)]
pub trait Shape<Arguments, Kind> {}

impl<E: Endpoint> Shape<(), Itself> for E {}

/// A function that can be a handler: sync or async, with up to eight arguments that implement [`Extract`] (or
/// [`ExtractAsync`], if it is async), and a result that implements [`Respond`]. `Arguments` and `Kind` select the
/// implementation.
///
/// ```
/// use flatout::{App, Handler, test::Client};
///
/// /// The same page under two paths.
/// fn home<A, K>(app: App, handler: impl Handler<A, K> + Clone) -> App {
///     app.get("/", handler.clone()).get("/index.html", handler)
/// }
///
/// let client = Client::new(home(App::new(), || "home"))?;
/// assert_eq!(client.get("/index.html").send().text(), "home");
/// # Ok::<(), flatout::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "this is not a handler",
    label = "it is not a function of at most eight arguments",
    note = "a handler is a sync or async function whose arguments are `Extract` and whose result is `Respond`"
)]
pub trait Handler<Arguments, Kind>: Shape<Arguments, Kind> + Send + Sync + 'static {
    /// The function with its types erased.
    fn into_endpoint(self) -> Arc<dyn Endpoint>;
}

/// Marks sync handlers.
pub enum Plain {}

/// Marks async handlers.
pub enum Async {}

/// Marks [`Endpoint`]s themselves.
pub enum Itself {}

struct SyncFunction<F, Arguments>(F, PhantomData<fn(Arguments)>);

struct AsyncFunction<F, Arguments>(Arc<F>, SpareId, PhantomData<fn(Arguments)>);

impl<E: Endpoint> Handler<(), Itself> for E {
    fn into_endpoint(self) -> Arc<dyn Endpoint> {
        Arc::new(self)
    }
}

macro_rules! handlers {
    ($($argument:ident)*) => {
        impl<F, R, $($argument),*> Shape<($($argument,)*), Plain> for F
        where
            F: Fn($($argument),*) -> R,
            R: Unpin,
        {
        }

        impl<F, R, $($argument),*> Shape<($($argument,)*), Async> for F
        where
            F: AsyncFn($($argument),*) -> R,
        {
        }

        impl<F, R, $($argument),*> Handler<($($argument,)*), Plain> for F
        where
            F: Fn($($argument),*) -> R + Send + Sync + 'static,
            R: Respond + Unpin,
            $($argument: Extract + 'static,)*
        {
            fn into_endpoint(self) -> Arc<dyn Endpoint> {
                Arc::new(SyncFunction(self, PhantomData))
            }
        }

        impl<F, R, $($argument),*> Handler<($($argument,)*), Async> for F
        where
            F: AsyncFn($($argument),*) -> R + Send + Sync + 'static,
            R: Respond + 'static,
            $($argument: ExtractAsync,)*
        {
            fn into_endpoint(self) -> Arc<dyn Endpoint> {
                Arc::new(AsyncFunction(Arc::new(self), SpareId::new(), PhantomData))
            }
        }

        #[allow(non_snake_case, unused_variables)]
        impl<F, R, $($argument),*> Endpoint for SyncFunction<F, ($($argument,)*)>
        where
            F: Fn($($argument),*) -> R + Send + Sync + 'static,
            R: Respond,
            $($argument: Extract + 'static,)*
        {
            fn body_use(&self) -> BodyUse {
                most([$($argument::BODY),*])
            }

            fn check(&self, route: &RouteCheck<'_>) -> Result<(), String> {
                one_body(&[$(($argument::BODY, std::any::type_name::<$argument>())),*])?;
                $($argument::check(route)?;)*
                Ok(())
            }

            #[inline]
            fn call(&self, context: &mut Context<'_>, response: &mut Response) -> Reply {
                $(let $argument = match $argument::extract(context) {
                    Ok(argument) => argument,
                    Err(problem) => return now(problem, response),
                };)*
                now((self.0)($($argument),*), response)
            }
        }

        #[allow(non_snake_case, unused_variables)]
        impl<F, R, $($argument),*> Endpoint for AsyncFunction<F, ($($argument,)*)>
        where
            F: AsyncFn($($argument),*) -> R + Send + Sync + 'static,
            R: Respond + 'static,
            $($argument: ExtractAsync,)*
        {
            fn body_use(&self) -> BodyUse {
                most([$($argument::BODY),*])
            }

            fn check(&self, route: &RouteCheck<'_>) -> Result<(), String> {
                one_body(&[$(($argument::BODY, std::any::type_name::<$argument>())),*])?;
                $($argument::check(route)?;)*
                Ok(())
            }

            fn call(&self, context: &mut Context<'_>, response: &mut Response) -> Reply {
                $(let $argument = $argument::extract_async(context);)*
                let function = self.0.clone();
                let future = async move {
                    $(let $argument = $argument.await?;)*
                    Ok::<R, Problem>(function($($argument),*).await)
                };
                later_unless_ready(self.1, context, response, future)
            }
        }
    };
}

handlers!();
handlers!(A);
handlers!(A B);
handlers!(A B C);
handlers!(A B C D);
handlers!(A B C D E);
handlers!(A B C D E G);
handlers!(A B C D E G H);
handlers!(A B C D E G H I);

#[inline]
fn now(reply: impl Respond, response: &mut Response) -> Reply {
    reply.respond(response);
    Reply::Now
}

pub(crate) fn most<const N: usize>(uses: [BodyUse; N]) -> BodyUse {
    uses.into_iter().max().unwrap_or(BodyUse::None)
}

/// # Errors
/// Two of these arguments take the body: every request would fail.
pub(crate) fn one_body(arguments: &[(BodyUse, &str)]) -> Result<(), String> {
    let mut taking = arguments.iter().filter(|(body_use, _)| *body_use > BodyUse::None).map(|(_, name)| name);
    match (taking.next(), taking.next()) {
        (Some(first), Some(second)) => Err(format!(
            "`{first}` and `{second}` both take the request body, which can be read once: only one argument may take it"
        )),
        _ => Ok(()),
    }
}
