//! Streams that become WebSockets (RFC 8441), and others whose response leaves HTTP.
//!
//! ```text
//! client <── DATA ──> stream <── exchange <── outbox, intake ──> guest: whoever has taken it over
//! ```
//!
//! A service sees the request for a WebSocket as HTTP/1 has it, and responds with 101 and a takeover, as it does there. Here the 101 becomes
//! 200, and a response that would look like an agreement, and is none, becomes a refusal.

use flatout_lane::slab::Key;
use flatout_wire::Status;
use flatout_wire::h1::{Refusal, Trailers};
use flatout_wire::h2::StreamId;

use super::{Session, UNREAD_BYTES_MAX};
use crate::exchange::{Exchange, Intake};
use crate::h1::Serving;
use crate::h1::answering::refused;
use crate::service::{Body, Response};

/// A service that does not know WebSockets has served the request as one for a page.
const NO_WEBSOCKET: Refusal =
    Refusal { status: Status::NOT_IMPLEMENTED, reason: "there is no WebSocket at this path" };

impl Serving {
    /// Opens the exchange of a request for a WebSocket: what comes on the stream waits there, as far as its window goes.
    pub(super) fn open_websocket(
        &mut self,
        key: Key,
        session: &mut Session,
        id: StreamId,
        is_whole: bool,
    ) -> Key {
        let mut exchange = Exchange::called(key).of_stream(id);
        exchange.intake = Some(Intake::pull_with(u64::MAX, UNREAD_BYTES_MAX));
        if is_whole {
            exchange.end_body(Trailers::new());
        }
        session.websockets += 1;
        session.enter(id).is_websocket = true;
        self.lane.open(exchange)
    }
}

impl Session {
    /// Makes the response to a request for a WebSocket one of HTTP/2 (RFC 8441 section 5). Others stay as they are.
    pub(super) fn fit_websocket(&mut self, id: StreamId, response: &mut Response) {
        let Some(stream) = self.stream(id).filter(|stream| stream.is_websocket) else { return };
        if response.status() == Status::SWITCHING_PROTOCOLS && matches!(response.body(), Body::Take(_)) {
            response.set_status(Status::OK).remove_header("sec-websocket-accept");
            return;
        }
        stream.is_websocket = false;
        self.websockets -= 1;
        if matches!(response.status().code(), 101 | 200..300) {
            *response = refused(NO_WEBSOCKET);
        }
    }

    /// The end of a response was framed. A WebSocket stays until whoever has it lets go and its client has ended too: to a browser, a stream
    /// that is reset was not closed cleanly.
    pub(super) fn has_stayed(&mut self, id: StreamId) -> bool {
        let is_awaited = self.machine.awaits_content(id);
        let Some(stream) = self.stream(id).filter(|stream| stream.is_websocket) else { return false };
        stream.has_ended = true;
        is_awaited || !stream.is_left
    }

    /// Whoever took a stream over has let go of it. Returns whether it is over.
    pub(super) fn was_left(&mut self, id: StreamId) -> bool {
        let is_awaited = self.machine.awaits_content(id);
        let Some(stream) = self.stream(id) else { return false };
        stream.is_left = true;
        stream.has_ended && !is_awaited
    }

    /// Whether nothing but the client's end was awaited of a stream.
    pub(super) fn is_lingering(&mut self, id: StreamId) -> bool {
        self.stream(id).is_some_and(|stream| stream.is_left && stream.has_ended)
    }

    /// WebSockets whose client has not ended since the rate was judged last.
    pub(super) fn lingered(&mut self) -> Vec<StreamId> {
        let lingering = self.streams.iter_mut().filter(|(_, stream)| stream.is_left && stream.has_ended);
        lingering
            .filter_map(|(id, stream)| std::mem::replace(&mut stream.has_lingered, true).then_some(*id))
            .collect()
    }
}
