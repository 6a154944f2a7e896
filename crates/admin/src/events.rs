//! The stream of frames, as Server-Sent Events: one a second, to all clients.

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use flatout_engine::{Body, BoxError, Response};
use http_body::Frame as BodyFrame;
use serde::Serialize;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::MissedTickBehavior;

use super::board::Board;

/// How often a frame is made.
const INTERVAL: Duration = Duration::from_secs(1);

/// Clients at a time.
const CLIENTS_MAX: usize = 32;

/// Frames queued for a slow client; beyond that its stream ends, and the page reconnects.
const FRAMES_WAITING_MAX: usize = 16;

/// The clients of the stream.
#[derive(Clone, Default)]
pub(super) struct Clients(Rc<RefCell<Vec<Sender<Bytes>>>>);

impl Clients {
    /// Turns a response into the stream. `false` if there are too many clients.
    pub(super) fn join(&self, board: &Board, response: &mut Response) -> bool {
        let mut clients = self.0.borrow_mut();
        clients.retain(|client| !client.is_closed());
        if clients.len() >= CLIENTS_MAX {
            return false;
        }
        let (sender, frames) = channel(FRAMES_WAITING_MAX);
        // The channel is new, so it has room.
        let _ = sender.try_send(event("start", &board.start()));
        clients.push(sender);
        response.header("Content-Type", "text/event-stream").header("Cache-Control", "no-store");
        response.set_body(Body::Stream(Box::pin(Stream { frames })));
        true
    }

    /// Sends an event to all clients. It is made only if there are any: with thousands of upstream servers, that takes milliseconds.
    fn send(&self, make: impl FnOnce() -> Bytes) {
        let mut clients = self.0.borrow_mut();
        if !clients.is_empty() {
            let event = make();
            clients.retain(|client| client.try_send(event.clone()).is_ok());
        }
    }
}

/// Samples the server once a second, until the admin listener ends.
pub(super) async fn run(board: Arc<Board>, clients: Clients) {
    let mut clock = tokio::time::interval(INTERVAL);
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first tick is immediate.
    clock.tick().await;
    loop {
        clock.tick().await;
        let frame = board.sample();
        clients.send(|| event("frame", &frame));
    }
}

/// Encodes one event. JSON contains no line feeds.
fn event<T: Serialize>(name: &str, value: &T) -> Bytes {
    let data = serde_json::to_string(value).unwrap_or_default();
    format!("event: {name}\ndata: {data}\n\n").into()
}

/// The body of the stream.
struct Stream {
    frames: Receiver<Bytes>,
}

impl http_body::Body for Stream {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<BodyFrame<Bytes>, BoxError>>> {
        self.frames.poll_recv(context).map(|bytes| bytes.map(|bytes| Ok(BodyFrame::data(bytes))))
    }
}
