//! The server's side of a connection.

mod request;
mod response;

pub use response::write_status_line;

use super::incoming::Incoming;
use super::outgoing::Outgoing;
use crate::chunk::ChunkFault;
use crate::{Head, Method, Status, Version, head};

/// Bytes of an unread request body that are skipped to reach the next request; beyond that the connection ends.
pub const DISCARD_BYTES_MAX: u32 = 256 << 10;

/// The state of one connection, for its server: 24 bytes.
#[derive(Debug, Default)]
pub struct Server {
    state: ServerState,
}

/// The state of the connection. Calls change it like this (`!`: a fault; the refusal that follows, if a response is still due, is
/// the last response):
///
/// | state | head | body | respond | data | end | switch | give_up |
/// |---|---|---|---|---|---|---|---|
/// | Idle | Idle, Receiving, Awaiting, !Awaiting | | | | | | Awaiting |
/// | Receiving | | Receiving, Awaiting, !Awaiting | Both, Responding | | | | Awaiting |
/// | Awaiting | | | Responding | | | Switched | Awaiting |
/// | Both | | Both, Responding, !Responding | | Both, !Closed | Idle, Reading, Skipping, Closed, !Closed | | Responding |
/// | Responding | | | | Responding, !Closed | Idle, Closed, !Closed | | Responding |
/// | Reading | | Reading, Idle, Closed, !Closed | | | | | Closed |
/// | Skipping | | Skipping, Idle, !Closed | | | | | Closed |
/// | Closed | | | | !Closed | !Closed | | Closed |
/// | Switched | | | | | | | Switched |
///
/// `whole_body` takes Receiving to Awaiting, `skip_rest` Reading to Skipping or Closed, `close` any state to Closed; `proceed`,
/// `inform` and `keep_body` leave the state.
#[derive(Debug, Default)]
enum ServerState {
    /// No request.
    #[default]
    Idle,
    /// A request's head was returned; its body is being received.
    Receiving { body: Incoming, asked: RequestSummary, is_kept: bool },
    /// The request is complete, and waits for its response.
    Awaiting { asked: RequestSummary },
    /// The response has started, and the request's body is still being received.
    Both(Box<Overlap>),
    /// The response has started, and the request is complete.
    Responding { body: Outgoing, asked: RequestSummary },
    /// The response has ended, and the rest of the request's body is still being received.
    Reading { body: Incoming, keep_alive: bool },
    /// The response has ended; the rest of the request's body is skipped, to reach the next request.
    Skipping { body: Incoming, bytes_left: u32 },
    /// The last response has ended: nothing more is parsed as HTTP.
    Closed,
    /// Another protocol follows.
    Switched,
}

/// Receiving a request while its response is being sent: rare, and boxed to keep the state small.
#[derive(Debug)]
struct Overlap {
    incoming: Incoming,
    outgoing: Outgoing,
    asked: RequestSummary,
    /// See [`Server::keep_body`].
    is_kept: bool,
}

/// What has to be known of a request to respond to it, even after the request itself was dropped.
#[derive(Debug, Clone, Copy)]
struct RequestSummary {
    version: Version,
    is_head: bool,
    is_connect: bool,
    keep_alive: bool,
    /// The client waits for `100 Continue`, which was not sent yet.
    waits: bool,
}

/// The next step of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wants {
    /// The head of a request: [`Server::head`].
    Head,
    /// More of a request's body: [`Server::body`].
    Body,
    /// A response, or more of it.
    Answer,
    /// Nothing: the connection has ended.
    Nothing,
}

/// The state after a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// The next request.
    Request,
    /// The rest of this request's body, which was [kept](Server::keep_body).
    Body,
    /// The rest of this request's body, to be skipped before the next request.
    Skip,
    /// The end of the connection.
    Close,
}

/// Why a request is refused: the status and one line for the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// The status.
    pub status: Status,
    /// One line for the client's developer, without any of the client's text.
    pub reason: &'static str,
}

impl Refusal {
    /// A body over a limit.
    pub const BODY_TOO_LARGE: Refusal =
        Refusal { status: Status::CONTENT_TOO_LARGE, reason: "the request body is too large" };
}

impl From<head::Fault> for Refusal {
    fn from(fault: head::Fault) -> Refusal {
        Refusal { status: fault.status(), reason: fault.reason() }
    }
}

impl From<ChunkFault> for Refusal {
    fn from(fault: ChunkFault) -> Refusal {
        Refusal { status: fault.status(), reason: fault.reason() }
    }
}

impl RequestSummary {
    #[inline]
    fn of(head: &Head<'_>) -> RequestSummary {
        RequestSummary {
            version: head.version,
            is_head: head.method == Method::Head,
            is_connect: head.method == Method::Connect,
            // After a refused CONNECT it is unclear what follows (RFC 9931): close.
            keep_alive: head.keep_alive && head.method != Method::Connect,
            waits: head.expects_continue,
        }
    }

    /// For something that is not a request, or is not read to its end.
    fn last(self) -> RequestSummary {
        RequestSummary { keep_alive: false, waits: false, ..self }
    }

    /// For something that is not a request, so that nothing is known about the client: the response must suit
    /// HTTP/1.0 as well.
    const NONE: RequestSummary = RequestSummary {
        version: Version::Http10,
        is_head: false,
        is_connect: false,
        keep_alive: false,
        waits: false,
    };
}

impl Server {
    /// The next step.
    #[inline]
    pub fn wants(&self) -> Wants {
        match self.state {
            ServerState::Idle => Wants::Head,
            ServerState::Receiving { .. }
            | ServerState::Both(_)
            | ServerState::Reading { .. }
            | ServerState::Skipping { .. } => Wants::Body,
            ServerState::Awaiting { .. } | ServerState::Responding { .. } => Wants::Answer,
            ServerState::Closed | ServerState::Switched => Wants::Nothing,
        }
    }

    /// Whether a response is due and has not started.
    #[inline]
    pub fn owes_response(&self) -> bool {
        matches!(self.state, ServerState::Receiving { .. } | ServerState::Awaiting { .. })
    }

    /// Whether fields behind the body of the response that is due would reach the client.
    pub fn takes_trailers(&self) -> bool {
        match &self.state {
            ServerState::Receiving { asked, .. } | ServerState::Awaiting { asked } => {
                asked.version != Version::Http10 && !asked.is_head
            }
            _ => true,
        }
    }

    /// Whether a response has started and not ended.
    pub fn is_responding(&self) -> bool {
        matches!(self.state, ServerState::Responding { .. } | ServerState::Both(_))
    }

    /// Whether the response has ended, and the rest of the request's body is still read.
    pub fn is_reading_on(&self) -> bool {
        matches!(self.state, ServerState::Reading { .. })
    }

    /// Whether the client waits for 100, which was not sent.
    pub fn awaits_100(&self) -> bool {
        matches!(self.state, ServerState::Receiving { asked: RequestSummary { waits: true, .. }, .. })
    }

    /// Whether there is no request.
    #[inline]
    pub fn is_idle(&self) -> bool {
        matches!(self.state, ServerState::Idle)
    }

    /// The rest of this request is not read: it is too large or too slow. Its response is the last.
    pub fn give_up(&mut self) {
        self.state = match std::mem::take(&mut self.state) {
            ServerState::Receiving { asked, .. } | ServerState::Awaiting { asked } => {
                ServerState::Awaiting { asked: asked.last() }
            }
            ServerState::Both(both) => {
                ServerState::Responding { body: both.outgoing, asked: both.asked.last() }
            }
            ServerState::Responding { body, asked } => ServerState::Responding { body, asked: asked.last() },
            // Part of a head was received; the rest is not awaited.
            ServerState::Idle => ServerState::Awaiting { asked: RequestSummary::NONE },
            ServerState::Reading { .. } | ServerState::Skipping { .. } | ServerState::Closed => {
                ServerState::Closed
            }
            ServerState::Switched => ServerState::Switched,
        };
    }

    /// A call that the state does not allow: a bug of the caller.
    #[cold]
    fn misused(&mut self, call: &str) {
        debug_assert!(false, "{call} in {:?}", self.state);
        self.state = ServerState::Closed;
    }

    /// Ends the connection.
    pub fn close(&mut self) {
        self.state = ServerState::Closed;
    }
}
