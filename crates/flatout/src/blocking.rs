//! Handlers that block: they run on a bounded number of separate threads.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};

use flatout_engine::{Reply, Response};
use flatout_wire::Status;
use tokio::sync::Semaphore;

use crate::extract::{BodyUse, Extract};
use crate::handler::{Endpoint, Plain, Shape, most, one_body};
use crate::ready::{SpareId, later_unless_ready};
use crate::{Context, Problem, Respond, RouteCheck};

/// Threads of the process that run blocking handlers at the same time.
const THREADS_MAX: usize = 64;

/// Requests that wait for one of them; further ones get 503.
const WAITING_MAX: usize = 256;

static THREADS: Semaphore = Semaphore::const_new(THREADS_MAX);
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// A sync handler that blocks: a driver without async, a long computation. It runs on another thread, so that the worker
/// can serve other connections. Its arguments and its result must be `Send`.
///
/// A process runs 64 of them at the same time, and 256 wait; further requests get 503. A handler that was started runs to
/// its end, even if its client disconnects or the server drains.
///
/// ```
/// use flatout::{App, Path, blocking, test::Client};
///
/// let slow = |Path(number): Path<u64>| {
///     std::thread::sleep(std::time::Duration::from_millis(1));
///     format!("{}", number * 2)
/// };
/// let client = Client::new(App::new().get("/twice/{number}", blocking(slow)))?;
/// assert_eq!(client.get("/twice/21").send().text(), "42");
/// # Ok::<(), flatout::Error>(())
/// ```
pub fn blocking<Arguments, F>(function: F) -> BlockingEndpoint
where
    F: Shape<Arguments, Plain> + Blocking<Arguments> + Clone,
    Arguments: Send + 'static,
{
    BlockingEndpoint(Box::new(BlockingFunction { function, spare: SpareId::new(), arguments: PhantomData }))
}

/// A blocking handler, made by [`blocking`]. It does not name the function, so the compiler reports a wrong one once.
///
/// ```
/// use flatout::{App, BlockingEndpoint, blocking, test::Client};
///
/// let report: BlockingEndpoint = blocking(|| "done");
/// assert_eq!(Client::new(App::new().get("/report", report))?.get("/report").send().text(), "done");
/// # Ok::<(), flatout::Error>(())
/// ```
pub struct BlockingEndpoint(Box<dyn Endpoint>);

impl Endpoint for BlockingEndpoint {
    fn body_use(&self) -> BodyUse {
        self.0.body_use()
    }

    fn check(&self, route: &RouteCheck<'_>) -> Result<(), String> {
        self.0.check(route)
    }

    fn call(&self, context: &mut Context<'_>, response: &mut Response) -> Reply {
        self.0.call(context, response)
    }
}

/// A sync function of up to eight arguments that may run on another thread.
///
/// ```
/// use flatout::{App, Path, blocking, test::Client};
///
/// /// Implements it: a sync function of arguments that are `Send`.
/// fn report(Path(year): Path<u16>) -> String {
///     format!("the report of {year}")
/// }
///
/// let client = Client::new(App::new().get("/reports/{year}", blocking(report)))?;
/// assert_eq!(client.get("/reports/2024").send().text(), "the report of 2024");
/// # Ok::<(), flatout::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "this is not a blocking handler",
    label = "`blocking` takes a sync function: leave out `async` or `blocking`",
    note = "a blocking handler is a sync function whose arguments are `Extract` and `Send`, and whose result is `Respond` and `Send`"
)]
pub trait Blocking<Arguments>: Shape<Arguments, Plain> + Send + Sync + 'static {
    /// What it returns.
    type Reply: Respond + Send + 'static;

    /// How the body has to be read.
    fn body_use() -> BodyUse;

    /// Checks its arguments against its route, when the application starts.
    ///
    /// # Errors
    /// Why every request would fail.
    #[doc(hidden)]
    fn check(route: &RouteCheck<'_>) -> Result<(), String>;

    /// Makes its arguments.
    ///
    /// # Errors
    /// The problem that the client gets instead.
    fn arguments(context: &mut Context<'_>) -> Result<Arguments, Problem>;

    /// Calls it.
    fn run(&self, arguments: Arguments) -> Self::Reply;
}

struct BlockingFunction<F, Arguments> {
    function: F,
    spare: SpareId,
    arguments: PhantomData<fn(Arguments)>,
}

impl<F, Arguments> Endpoint for BlockingFunction<F, Arguments>
where
    F: Blocking<Arguments> + Clone,
    Arguments: Send + 'static,
{
    fn body_use(&self) -> BodyUse {
        F::body_use()
    }

    fn check(&self, route: &RouteCheck<'_>) -> Result<(), String> {
        F::check(route)
    }

    fn call(&self, context: &mut Context<'_>, response: &mut Response) -> Reply {
        let arguments = match F::arguments(context) {
            Ok(arguments) => arguments,
            Err(problem) => {
                problem.respond(response);
                return Reply::Now;
            }
        };
        let function = self.function.clone();
        later_unless_ready(self.spare, context, response, async move {
            let thread = {
                let _place = Waiting::begin()?;
                THREADS.acquire().await.map_err(|_| unavailable())?
            };
            let run = move || {
                // Until the function has ended, even if no request waits for it any more.
                let _thread = thread;
                function.run(arguments)
            };
            match tokio::task::spawn_blocking(run).await {
                Ok(reply) => Ok(reply),
                // Like a panic of any other handler.
                Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                Err(_) => Err(unavailable()),
            }
        })
    }
}

/// A place in the queue.
struct Waiting;

impl Waiting {
    fn begin() -> Result<Waiting, Problem> {
        let waiting = WAITING.fetch_add(1, Ordering::Relaxed);
        // Made before the check, so that it is always released.
        let place = Waiting;
        if waiting >= WAITING_MAX { Err(unavailable()) } else { Ok(place) }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        WAITING.fetch_sub(1, Ordering::Relaxed);
    }
}

fn unavailable() -> Problem {
    Problem::new(Status::SERVICE_UNAVAILABLE).header("Retry-After", "1")
}

macro_rules! blocking {
    ($($argument:ident)*) => {
        #[allow(non_snake_case, unused_variables)]
        impl<F, R, $($argument),*> Blocking<($($argument,)*)> for F
        where
            F: Fn($($argument),*) -> R + Send + Sync + 'static,
            R: Respond + Unpin + Send + 'static,
            $($argument: Extract + Send + 'static,)*
        {
            type Reply = R;

            fn body_use() -> BodyUse {
                most([$($argument::BODY),*])
            }

            fn check(route: &RouteCheck<'_>) -> Result<(), String> {
                one_body(&[$(($argument::BODY, std::any::type_name::<$argument>())),*])?;
                $($argument::check(route)?;)*
                Ok(())
            }

            fn arguments(context: &mut Context<'_>) -> Result<($($argument,)*), Problem> {
                $(let $argument = $argument::extract(context)?;)*
                Ok(($($argument,)*))
            }

            fn run(&self, ($($argument,)*): ($($argument,)*)) -> R {
                self($($argument),*)
            }
        }
    };
}

blocking!();
blocking!(A);
blocking!(A B);
blocking!(A B C);
blocking!(A B C D);
blocking!(A B C D E);
blocking!(A B C D E G);
blocking!(A B C D E G H);
blocking!(A B C D E G H I);
