//! A limit on how long a handler may wait.

use std::time::Duration;

use flatout_engine::{Reply, Response};
use flatout_wire::Status;

use super::{Inner, Middleware};
use crate::{Context, Problem, Respond};

/// Answers 503 where a handler has not answered in time, and drops it. One that does not wait costs nothing: no timer is
/// set. Neither the time that the request body takes to come is counted, nor that of a body that is streamed.
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

    /// Answers with this status instead of 503.
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
