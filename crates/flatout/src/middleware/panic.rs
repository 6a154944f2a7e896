//! A page for handlers that panic.

use std::any::Any;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Poll;

use flatout_engine::{Reply, Response};
use flatout_wire::Status;

use super::{Inner, Middleware};
use crate::{Context, Respond};

/// Responds with a custom page when a handler panics, instead of the engine's short text. The status is 500 unless the
/// page sets another error, and the connection is closed. `make` gets the panic message, which is also printed on stderr;
/// do not show it to the client.
///
/// ```
/// use flatout::middleware::PanicPage;
/// use flatout::{App, Html, test::Client};
///
/// fn broken() -> &'static str {
///     panic!("a defect")
/// }
/// let app = App::new().with(PanicPage::new(|_| Html("<h1>We are sorry</h1>"))).get("/", broken);
/// let answer = Client::new(app)?.get("/").send();
/// assert_eq!((answer.status().code(), answer.text()), (500, "<h1>We are sorry</h1>"));
/// # Ok::<(), flatout::Error>(())
/// ```
#[derive(Clone)]
pub struct PanicPage(Arc<WritePage>);

/// Writes the response for a panic with this message.
type WritePage = dyn Fn(&str, &mut Response) + Send + Sync;

impl PanicPage {
    /// A page.
    pub fn new<R: Respond>(make: impl Fn(&str) -> R + Send + Sync + 'static) -> PanicPage {
        PanicPage(Arc::new(move |message, response| make(message).respond(response)))
    }

    fn respond(&self, panic: &(dyn Any + Send), response: &mut Response) {
        let message = panic.downcast_ref::<&str>().copied();
        let message = message.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("?");
        flatout_engine::report(
            flatout_engine::Severity::Error,
            format_args!("a handler panicked: {message}"),
        );
        *response = Response::new();
        (self.0)(message, response);
        if response.status().code() < 500 {
            response.set_status(Status::INTERNAL_SERVER_ERROR);
        }
        response.close();
    }
}

impl Middleware for PanicPage {
    fn call<'a>(&self, inner: Inner<'a>, context: &mut Context<'a>, response: &mut Response) -> Reply {
        match catch_unwind(AssertUnwindSafe(|| inner.call(context, response))) {
            Ok(Reply::Later(mut future)) => {
                let page = self.clone();
                Reply::Later(Box::pin(poll_fn(move |context| {
                    match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
                        Ok(polled) => polled,
                        Err(panic) => {
                            let mut response = Response::new();
                            page.respond(&*panic, &mut response);
                            Poll::Ready(response)
                        }
                    }
                })))
            }
            Ok(reply) => reply,
            Err(panic) => {
                self.respond(&*panic, response);
                Reply::Now
            }
        }
    }
}
