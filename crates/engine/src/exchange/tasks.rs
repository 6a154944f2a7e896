//! Tasks on the worker's thread: futures that make responses, and bodies that are produced while they are sent. A
//! task passes its results to its exchange, by key, and knows nothing else of the engine.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::Poll;

use bytes::Bytes;
use flatout_wire::Status;
use http::HeaderMap;
use http_body::Frame;
use tokio::task::{AbortHandle, spawn_local, yield_now};

use super::lane::{Lane, Push};
use crate::service::{BoxBody, BoxError, ExchangeKey, Response};

/// The response to a request whose handler panicked: the last of its connection.
pub(crate) fn panicked() -> Response {
    let mut response = Response::with_status(Status::INTERNAL_SERVER_ERROR);
    response.header("Content-Type", "text/plain; charset=utf-8").close();
    response.buffer().extend_from_slice(b"the request could not be handled\n");
    response
}

/// Runs a future that makes a response, and responds with it.
pub(crate) fn spawn_response(
    lane: Lane,
    key: ExchangeKey,
    future: Pin<Box<dyn Future<Output = Response>>>,
) -> AbortHandle {
    let task = spawn_local(async move {
        let response = guarded(future).await.unwrap_or_else(panicked);
        lane.answer(key, response);
    });
    task.abort_handle()
}

/// Runs a body and sends its data, no faster than the client reads.
pub(crate) fn spawn_body(lane: Lane, key: ExchangeKey, body: BoxBody) -> AbortHandle {
    spawn_local(run_body(lane, key, body)).abort_handle()
}

/// Frames of one body before other tasks and the lane get their turn: one that is always ready would never yield.
const FRAMES_PER_TURN: usize = 32;

/// Bytes of a body that are passed through a filter before other tasks and the lane get their turn. A compressor takes
/// about a millisecond for them.
const FILTERED_PER_TURN: usize = 64 << 10;

async fn run_body(lane: Lane, key: ExchangeKey, mut body: BoxBody) {
    let mut trailers = Vec::new();
    for count in 1.. {
        if count % FRAMES_PER_TURN == 0 {
            yield_now().await;
        }
        poll_fn(|context| lane.poll_room(key, context)).await;
        match next_frame(&mut body).await {
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => {
                    if push(&lane, key, data).await == Push::Gone {
                        return;
                    }
                }
                Err(frame) => trailers = frame.into_trailers().map(|map| encode(&map)).unwrap_or_default(),
            },
            None => {
                lane.end(key, &trailers);
                return;
            }
            Some(Err(_)) => {
                lane.cut(key);
                return;
            }
        }
    }
}

/// Pushes a frame; through a filter in short pieces, with a turn for others after each.
async fn push(lane: &Lane, key: ExchangeKey, mut data: Bytes) -> Push {
    while lane.is_filtered(key) && !data.is_empty() {
        let piece = data.split_to(data.len().min(FILTERED_PER_TURN));
        if push_piece(lane, key, piece).await == Push::Gone {
            return Push::Gone;
        }
        yield_now().await;
        poll_fn(|context| lane.poll_room(key, context)).await;
    }
    push_piece(lane, key, data).await
}

/// Pushes a piece when there is room. There was room before the body was asked for it, but what was pushed before has grown since: by its
/// framing, and by the head of the response.
async fn push_piece(lane: &Lane, key: ExchangeKey, mut piece: Bytes) -> Push {
    loop {
        match lane.push(key, piece) {
            Push::Full(rest) => piece = rest,
            pushed => return pushed,
        }
        poll_fn(|context| lane.poll_room(key, context)).await;
    }
}

async fn next_frame(body: &mut BoxBody) -> Option<Result<Frame<Bytes>, BoxError>> {
    poll_fn(|context| {
        let polled = catch_unwind(AssertUnwindSafe(|| body.as_mut().poll_frame(context)));
        polled.unwrap_or_else(|_| Poll::Ready(Some(Err("the body panicked".into()))))
    })
    .await
}

fn encode(trailers: &HeaderMap) -> Vec<u8> {
    trailers.iter().fold(Vec::new(), |mut out, (name, value)| {
        for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
            out.extend_from_slice(part);
        }
        out
    })
}

/// The future's output, or `None` if it panicked.
async fn guarded<T>(mut future: Pin<Box<dyn Future<Output = T>>>) -> Option<T> {
    poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
        Ok(poll) => poll.map(Some),
        Err(_) => Poll::Ready(None),
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::pin::pin;
    use std::rc::Rc;
    use std::task::{Context, Waker};

    use flatout_lane::poll::Poll as LanePoll;
    use flatout_lane::slab::Key;

    use super::*;
    use crate::exchange::entry::{Exchange, Outgoing};

    /// A body that has its only frame when it is ready.
    struct Late(Rc<Cell<bool>>, Option<Bytes>);

    impl http_body::Body for Late {
        type Data = Bytes;
        type Error = BoxError;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
            match self.0.get() {
                true => Poll::Ready(self.1.take().map(|bytes| Ok(Frame::data(bytes)))),
                false => Poll::Pending,
            }
        }
    }

    /// What waits to be sent grows by its framing while the body is waited for: the next piece waits too, and the response is not cut.
    #[test]
    fn body_waits_when_the_room_is_used_up_meanwhile() {
        let lane = Lane::new(LanePoll::new().unwrap().set().clone(), Default::default());
        let key = lane.open(Exchange::called(Key::from_u64(1)));
        let is_ready = Rc::new(Cell::new(false));
        let body: BoxBody = Box::pin(Late(is_ready.clone(), Some(Bytes::from_static(b"late"))));
        let mut running = pin!(run_body(lane.clone(), ExchangeKey(key), body));
        let mut context = Context::from_waker(Waker::noop());
        assert!(running.as_mut().poll(&mut context).is_pending());
        lane.with(key, |exchange| exchange.unsent_bytes = u64::MAX / 2);
        is_ready.set(true);
        assert!(running.as_mut().poll(&mut context).is_pending());
        assert!(lane.with(key, Exchange::dequeue).unwrap().is_none(), "nothing was pushed, nor cut");
        lane.with(key, |exchange| exchange.unsent_bytes = 0);
        assert!(running.as_mut().poll(&mut context).is_ready());
        let items: Vec<_> = std::iter::from_fn(|| lane.with(key, Exchange::dequeue).flatten()).collect();
        assert!(matches!(&items[..], [Outgoing::Data(bytes), Outgoing::End(_)] if bytes == "late"));
    }
}
