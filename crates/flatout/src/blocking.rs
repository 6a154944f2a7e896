//! Handlers that block: they run on threads of their own, a bounded number of them.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};

use flatout_engine::{Reply, Response};
use flatout_wire::Status;
use tokio::sync::Semaphore;

use crate::extract::{BodyUse, Extract};
use crate::handler::{Endpoint, Plain, Shape, most};
use crate::ready::{SpareId, later_unless_ready};
use crate::{Context, Problem, Respond};

/// Threads of the whole process that run blocking handlers at a time.
const THREADS_MAX: usize = 64;

/// Requests that wait for one of them; further ones are answered 503.
const WAITING_MAX: usize = 256;

static THREADS: Semaphore = Semaphore::const_new(THREADS_MAX);
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// A sync handler that blocks: a driver without async, a long computation. It runs on a thread of its own, so that the
/// worker goes on with other connections. Its arguments and its result are `Send`.
///
/// 64 of them run at a time in a process, and 256 wait; further requests are answered 503. One that has begun runs to its
/// end, also when its client is gone or the server drains.
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
pub fn blocking<Arguments, F>(function: F) -> impl Endpoint
where
    F: Shape<Arguments, Plain> + Blocking<Arguments> + Clone,
    Arguments: Send + 'static,
{
    BlockingFunction { function, spare: SpareId::new(), arguments: PhantomData }
}

/// A sync function of up to eight arguments that may run on another thread.
#[diagnostic::on_unimplemented(
    message = "this is not a blocking handler",
    note = "a blocking handler is a sync function whose arguments are `Extract` and `Send`, and whose result is `Respond` and `Send`"
)]
pub trait Blocking<Arguments>: Send + Sync + 'static {
    /// What it returns.
    type Reply: Respond + Send + 'static;

    /// How it needs the body to be read.
    fn body_use() -> BodyUse;

    /// Makes its arguments.
    ///
    /// # Errors
    /// The problem that the client is answered with instead.
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
                // Until the function has ended, whether anybody waits for it or not.
                let _thread = thread;
                function.run(arguments)
            };
            match tokio::task::spawn_blocking(run).await {
                Ok(reply) => Ok(reply),
                // As a panic of any other handler.
                Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                Err(_) => Err(unavailable()),
            }
        })
    }
}

/// A place among those who wait.
struct Waiting;

impl Waiting {
    fn begin() -> Result<Waiting, Problem> {
        let waiting = WAITING.fetch_add(1, Ordering::Relaxed);
        // Made before it is judged, so that it is counted out in any case.
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
            R: Respond + Send + 'static,
            $($argument: Extract + Send + 'static,)*
        {
            type Reply = R;

            fn body_use() -> BodyUse {
                most([$($argument::BODY),*])
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
