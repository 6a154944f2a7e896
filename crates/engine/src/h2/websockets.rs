//! HTTP/2 streams that become WebSockets (RFC 8441), and other streams that leave HTTP.
//!
//! ```text
//! client <── DATA ──> stream <── exchange <── outbox, intake ──> guest: the owner after the takeover
//! ```
//!
//! A service sees a request for a WebSocket as in HTTP/1, and responds with 101 and a takeover as in HTTP/1.
//! The 101 is sent as 200. Other responses with 101 or 2xx, which a client would take for acceptance, are
//! replaced by a refusal.

use flatout_lane::slab::Key;
use flatout_wire::Status;
use flatout_wire::h2::StreamId;

use super::{Session, UNREAD_BYTES_MAX};
use crate::exchange::{Exchange, Intake};
use crate::service::{Body, Response};
use crate::serving::{Refusal, Serving, Trailers, refused};

/// The service does not support WebSockets and has served the request as a plain GET.
const NO_WEBSOCKET: Refusal =
    Refusal { status: Status::NOT_IMPLEMENTED, reason: "there is no WebSocket at this path" };

/// Opens the exchange of a request for a WebSocket. Data of the stream waits there, limited by the
/// stream's window.
pub(super) fn open_websocket(
    serving: &mut Serving,
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
    serving.lane.open(exchange)
}

impl Session {
    /// Converts the response to a request for a WebSocket to HTTP/2 (RFC 8441 section 5). Other responses are
    /// not changed.
    pub(super) fn convert_websocket_response(&mut self, id: StreamId, response: &mut Response) {
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

    /// Called when the end of a response was framed. Returns whether the stream stays open: a WebSocket stays
    /// open until its owner has left and its client has ended it too. A browser would report a reset stream
    /// as an unclean close.
    pub(super) fn stays_open(&mut self, id: StreamId) -> bool {
        let is_awaited = self.machine.awaits_content(id);
        let Some(stream) = self.stream(id).filter(|stream| stream.is_websocket) else { return false };
        stream.has_ended = true;
        is_awaited || !stream.owner_has_left
    }

    /// The owner has left a stream. Returns whether the stream has ended.
    pub(super) fn note_owner_left(&mut self, id: StreamId) -> bool {
        let is_awaited = self.machine.awaits_content(id);
        let Some(stream) = self.stream(id) else { return false };
        stream.owner_has_left = true;
        stream.has_ended && !is_awaited
    }

    /// Whether a stream waits only for the client to end it.
    pub(super) fn is_lingering(&mut self, id: StreamId) -> bool {
        self.stream(id).is_some_and(|stream| stream.owner_has_left && stream.has_ended)
    }

    /// Streams that only wait for the client's end, and did so when the rate was last checked.
    pub(super) fn overdue_lingerers(&mut self) -> Vec<StreamId> {
        let lingering = self
            .streams
            .iter_mut()
            .filter(|(_, stream)| stream.skips || (stream.owner_has_left && stream.has_ended));
        lingering
            .filter_map(|(id, stream)| std::mem::replace(&mut stream.has_lingered, true).then_some(*id))
            .collect()
    }
}
