//! What the engine asks of whoever answers requests.

use std::future::Future;
use std::pin::Pin;

use flatout_wire::Head;
use tokio::sync::watch;

use crate::{Request, Response};

/// Answers requests on one worker. Each worker has its own, made on its thread: no `Send`, no locks.
pub trait Service {
    /// How the body that follows this head is to be read. Asked only when a body follows; `path` is the
    /// normal form, as in [`Request::path`].
    fn body(&self, head: &Head<'_>, path: &[u8]) -> BodyPlan {
        let _ = (head, path);
        BodyPlan::Whole { bytes_max: None }
    }

    /// Answers one request: writes `response` (it comes empty, status 200) and returns [`Reply::Now`], or
    /// returns a future that makes the response.
    ///
    /// Runs on the worker's thread, inside its runtime's `LocalSet`; what blocks here blocks every connection
    /// of the worker. A panic answers 500 and closes this connection only.
    fn call(&self, request: Request<'_>, response: &mut Response) -> Reply;
}

/// How the engine reads a request body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyPlan {
    /// Collected first; [`Service::call`] comes when it is whole. Over `bytes_max` (`None`: the server's
    /// limit) the answer is 413 and the service is not called.
    Whole {
        /// Bytes, decoded.
        bytes_max: Option<u64>,
    },
    /// [`Service::call`] comes at once, with a [`BodyStream`](crate::BodyStream); the peer is held back while nobody reads it.
    Stream {
        /// Bytes, decoded; `None` is the server's limit. Over it the stream ends in an error.
        bytes_max: Option<u64>,
    },
}

/// When the response comes.
pub enum Reply {
    /// The response was written: it stays in the lane.
    Now,
    /// A future makes it, on this worker's runtime; the connection waits parked in the lane. Dropped unfinished
    /// if the client goes away.
    Later(Pin<Box<dyn Future<Output = Response>>>),
}

/// Which worker a service is made for.
#[derive(Debug, Clone)]
pub struct Worker {
    /// 0 to `count` − 1, in CPU order.
    pub index: usize,
    /// How many workers the server has.
    pub count: usize,
    /// Becomes `true` when draining begins.
    pub draining: watch::Receiver<bool>,
}
