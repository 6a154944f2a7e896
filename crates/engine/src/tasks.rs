//! What runs beside the lane, on the same thread: futures that make responses, bodies that are produced while
//! they are sent, connections that have left HTTP.
//!
//! A task never holds the worker across an `await`: it comes by, hands over what it has, and leaves.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Weak;
use std::task::Poll;

use bytes::Bytes;
use flatout_lane::slab::Key;
use flatout_wire::Status;
use http_body::Frame;
use tokio::task::{AbortHandle, spawn_local, yield_now};

use crate::response::{BoxBody, BoxError, Response};
use crate::serving::Serving;
use crate::worker::Worker;

/// The answer to a request whose handler panicked: the last of its connection.
pub(crate) fn panicked() -> Response {
    let mut response = Response::with_status(Status::INTERNAL_SERVER_ERROR);
    response.header("Content-Type", "text/plain; charset=utf-8").close();
    response.buffer().extend_from_slice(b"the request could not be answered\n");
    response
}

/// Runs a future that makes a response, and answers with it.
pub(crate) fn spawn_response(
    worker: Weak<RefCell<Worker>>,
    key: Key,
    future: Pin<Box<dyn Future<Output = Response>>>,
) -> AbortHandle {
    let task = spawn_local(async move {
        let response = guarded(future).await.unwrap_or_else(panicked);
        if let Some(worker) = worker.upgrade() {
            worker.borrow_mut().with(key, |serving, connection| serving.answer(key, connection, response));
        }
    });
    task.abort_handle()
}

/// Runs a body and sends what it yields, no faster than the client reads it.
pub(crate) fn spawn_body(worker: Weak<RefCell<Worker>>, key: Key, body: BoxBody) -> AbortHandle {
    spawn_local(run_body(worker, key, body)).abort_handle()
}

/// Frames of one body before other tasks and the lane have their turn: one that is always ready would never wait.
const FRAMES_PER_TURN: usize = 32;

async fn run_body(worker: Weak<RefCell<Worker>>, key: Key, mut body: BoxBody) {
    let mut trailers = None;
    for count in 1.. {
        if count % FRAMES_PER_TURN == 0 {
            yield_now().await;
        }
        let frame = next_frame(&worker, key, &mut body).await;
        let Some(worker) = worker.upgrade() else { return };
        match frame {
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) if data.is_empty() => continue,
                Ok(data) => {
                    let send =
                        |serving: &mut Serving, connection: &mut _| serving.body_data(connection, data);
                    if !worker.borrow_mut().with(key, send) {
                        return;
                    }
                }
                Err(frame) => trailers = frame.into_trailers().ok(),
            },
            None => {
                let end =
                    |serving: &mut Serving, connection: &mut _| serving.body_end(key, connection, trailers);
                worker.borrow_mut().with(key, end);
                return;
            }
            Some(Err(_)) => {
                worker.borrow_mut().with(key, |serving, connection| serving.body_cut(connection));
                return;
            }
        }
        poll_fn(|context| worker.borrow_mut().poll_room(key, context)).await;
    }
}

/// The next frame of a body; before it waits for one, what it has yielded so far is sent.
async fn next_frame(
    worker: &Weak<RefCell<Worker>>,
    key: Key,
    body: &mut BoxBody,
) -> Option<Result<Frame<Bytes>, BoxError>> {
    poll_fn(|context| {
        let polled = catch_unwind(AssertUnwindSafe(|| body.as_mut().poll_frame(context)));
        let polled = polled.unwrap_or_else(|_| Poll::Ready(Some(Err("the body panicked".into()))));
        if let (Poll::Pending, Some(worker)) = (&polled, worker.upgrade()) {
            worker.borrow_mut().with(key, |serving, connection| serving.body_flush(key, connection));
        }
        polled
    })
    .await
}

/// The future's output, or `None` if it panicked.
async fn guarded<T>(mut future: Pin<Box<dyn Future<Output = T>>>) -> Option<T> {
    poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
        Ok(poll) => poll.map(Some),
        Err(_) => Poll::Ready(None),
    })
    .await
}
