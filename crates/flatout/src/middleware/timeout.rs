//! A limit on how long a handler may wait.

use std::time::Duration;

use flatout_engine::{Reply, Response};
use flatout_wire::Status;

use super::{Inner, Middleware};
use crate::{Context, Problem, Respond};

/// Responds with 503 if a handler takes too long, and drops it. Handlers that do not wait need no timer. The time to
/// receive the request body is not included, nor the time to stream the response body.
///
/// ```
/// use std::time::Duration;
/// use flatout::middleware::Timeout;
/// use flatout::{App, Status, test::Client};
///
/// let app = App::new()
///     .with(Timeout::new(Duration::from_millis(5)).status(Status::GATEWAY_TIMEOUT))
///     .get("/", async || {
///         tokio::time::sleep(Duration::from_secs(60)).await;
///         "too late"
///     });
/// assert_eq!(Client::new(app)?.get("/").send().status(), Status::GATEWAY_TIMEOUT);
/// # Ok::<(), flatout::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Timeout {
    time: Duration,
    status: Status,
}

impl Timeout {
    /// A limit.
    pub fn new(time: Duration) -> Timeout {
        Timeout { time, status: Status::SERVICE_UNAVAILABLE }
    }

    /// Responds with this status instead of 503.
    pub fn status(mut self, status: Status) -> Timeout {
        self.status = status;
        self
    }
}

impl Middleware for Timeout {
    fn call<'a>(&self, inner: Inner<'a>, context: &mut Context<'a>, response: &mut Response) -> Reply {
        let Timeout { time, status } = *self;
        match inner.call(context, response) {
            Reply::Later(future) => Reply::Later(Box::pin(async move {
                match tokio::time::timeout(time, future).await {
                    Ok(response) => response,
                    Err(_) => {
                        let mut response = Response::new();
                        let detail = format!("no response within {time:?}");
                        Problem::new(status).detail(detail).respond(&mut response);
                        response
                    }
                }
            })),
            reply => reply,
        }
    }
}
