//! WebSockets: connections that have left HTTP and stay in the lane.
//!
//! ```text
//! UpgradeOffer::of(head) ──> accept: 101, Body::Take ──> Socket::open ──> guest ── ready ──> Reader ──> handler
//!                                                                    ^                              │
//!                                                                    └──────── Socket::send <───────┘
//! ```
//!
//! No task and no future: the handler is called in the turn in which a message has arrived. `wire::websocket` knows
//! frames; this module acts on them, and adds compression, for which `wire` has no compressor.

mod deflate;
mod handlers;
mod incoming;
mod sender;
mod socket;

use std::time::Duration;

use flatout_wire::Status;
use flatout_wire::websocket::{MessageLimits, UpgradeOffer};

use crate::exchange::Worker;
use crate::service::{Body, Response};

pub use deflate::{compress, decompress};
pub use handlers::SocketHandlers;
pub use sender::SocketSender;
pub use socket::{Message, Socket};

/// The limits and settings of a WebSocket.
///
/// ```
/// use std::time::Duration;
/// use flatout_engine::websocket::WebSocketPlan;
///
/// let mut plan = WebSocketPlan { heartbeat: Duration::from_secs(60), ..WebSocketPlan::default() };
/// plan.limits.message_bytes_max = 64 << 10;
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WebSocketPlan {
    /// Limits of the input.
    pub limits: MessageLimits,
    /// Unsent bytes above which nothing more is read from the client.
    pub unsent_bytes_full: usize,
    /// Unsent bytes above which the connection is closed: its client does not read. Over HTTP/2, each stream that is a
    /// WebSocket has this limit, and a connection has up to [`Limits::streams_max`](crate::Limits::streams_max) of them.
    pub unsent_bytes_max: usize,
    /// A client that is silent for this long is sent a ping, and is disconnected if it stays silent for as long
    /// again.
    pub heartbeat: Duration,
    /// Whether compression is negotiated with clients that offer it.
    pub compression: bool,
}

impl Default for WebSocketPlan {
    fn default() -> Self {
        WebSocketPlan {
            limits: MessageLimits::default(),
            unsent_bytes_full: 256 << 10,
            unsent_bytes_max: 16 << 20,
            heartbeat: Duration::from_secs(30),
            compression: true,
        }
    }
}

/// Responds to a WebSocket request, or refuses it: writes the whole response. The handlers are called on the worker's thread.
pub fn upgrade(
    asked: Result<UpgradeOffer, flatout_wire::websocket::UpgradeRefusal>,
    plan: &WebSocketPlan,
    worker: &Worker,
    handlers: SocketHandlers,
    response: &mut Response,
) {
    let mut asked = match asked {
        Ok(asked) => asked,
        Err(refusal) => return refuse(refusal, response),
    };
    if !plan.compression {
        asked.deflate = None;
    }
    accept(&asked, response);
    let (worker, plan, deflate) = (worker.clone(), *plan, asked.deflate);
    response.set_body(Body::Take(Box::new(move |taken| {
        Socket::open(taken, &worker, plan, deflate, handlers);
        Box::pin(std::future::ready(()))
    })));
}

/// Writes the head of an accepting response; the body has to be a [`Body::Take`].
pub fn accept(asked: &UpgradeOffer, response: &mut Response) {
    response.set_status(Status::SWITCHING_PROTOCOLS);
    response.header("Upgrade", "websocket");
    if let Some(accept) = &asked.accept {
        response.header("Sec-WebSocket-Accept", accept);
    }
    if let Some(deflate) = asked.deflate {
        response.header("Sec-WebSocket-Extensions", deflate.to_string());
    }
}

/// Writes a refusing response.
pub fn refuse(refusal: flatout_wire::websocket::UpgradeRefusal, response: &mut Response) {
    response.set_status(refusal.status());
    if refusal == flatout_wire::websocket::UpgradeRefusal::Version {
        response.header("Sec-WebSocket-Version", "13");
    }
    response.header("Content-Type", "text/plain; charset=utf-8");
    let body = response.buffer();
    body.extend_from_slice(refusal.reason().as_bytes());
    body.push(b'\n');
}
