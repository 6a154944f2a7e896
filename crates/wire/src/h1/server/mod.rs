//! The server's side of a conversation.

mod reading;
mod writing;

pub use writing::write_status_line;

use super::incoming::Incoming;
use super::outgoing::Outgoing;
use crate::chunk::ChunkFault;
use crate::{Head, Method, Status, Version, head};

/// Bytes of an unread request body that are skipped for the sake of the next request; over it the conversation ends.
pub const DISCARD_BYTES_MAX: u32 = 256 << 10;

/// One connection's conversation, as its server has it: 24 bytes.
#[derive(Debug, Default)]
pub struct Server {
    state: State,
}

/// Where the conversation is. Calls move it so (`!`: a fault; the refusal that follows, if a response is still owed, is
/// the last answer):
///
/// | state | head | body | respond | data | end | switch | give_up |
/// |---|---|---|---|---|---|---|---|
/// | Idle | Idle, Receiving, Awaiting, !Awaiting | | | | | | Awaiting |
/// | Receiving | | Receiving, Awaiting, !Awaiting | Both, Responding | | | | Awaiting |
/// | Awaiting | | | Responding | | | Switched | Awaiting |
/// | Both | | Both, Responding, !Responding | | Both, !Closed | Idle, Skipping, Closed, !Closed | | Responding |
/// | Responding | | | | Responding, !Closed | Idle, Closed, !Closed | | Responding |
/// | Skipping | | Skipping, Idle, !Closed | | | | | Closed |
/// | Closed | | | | !Closed | !Closed | | Closed |
/// | Switched | | | | | | | Switched |
///
/// `whole_body` takes Receiving to Awaiting, `close` any state to Closed; `proceed` and `inform` leave the state.
#[derive(Debug, Default)]
enum State {
    /// No request is in hand.
    #[default]
    Idle,
    /// A request's head was handed out; its body comes.
    Receiving { body: Incoming, asked: Asked },
    /// The request is whole, and waits for its response.
    Awaiting { asked: Asked },
    /// The response has begun, and the request's body still comes.
    Both(Box<Both>),
    /// The response has begun, and the request is whole.
    Responding { body: Outgoing, asked: Asked },
    /// The response has ended; what is left of the request's body is skipped, for the sake of the next request.
    Skipping { body: Incoming, bytes_left: u32 },
    /// The last response was said: nothing more is read as HTTP.
    Closed,
    /// What follows is another protocol.
    Switched,
}

/// A request that is received while its response is sent: rare, and kept apart so that a state is small.
#[derive(Debug)]
struct Both {
    incoming: Incoming,
    outgoing: Outgoing,
    asked: Asked,
}

/// What must be known of a request to answer it, when the request itself may be gone.
#[derive(Debug, Clone, Copy)]
struct Asked {
    version: Version,
    is_head: bool,
    is_connect: bool,
    keep_alive: bool,
    /// The client waits for `100 Continue`, which was not sent yet.
    waits: bool,
}

/// The next step of the conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wants {
    /// The head of a request: [`Server::head`].
    Head,
    /// More of a request's body: [`Server::body`].
    Body,
    /// A response, or more of it.
    Answer,
    /// Nothing: it is over.
    Nothing,
}

/// The state after a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// The next request.
    Request,
    /// The rest of this request's body, to be skipped, and then the next request.
    Skip,
    /// The end of the connection.
    Close,
}

/// Why a request is not served: the status and one line that answer it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// The status.
    pub status: Status,
    /// One line for the client's developer, without anything of what was sent.
    pub reason: &'static str,
}

impl Refusal {
    /// Of a body over a limit.
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

impl Asked {
    #[inline]
    fn of(head: &Head<'_>) -> Asked {
        Asked {
            version: head.version,
            is_head: head.method == Method::Head,
            is_connect: head.method == Method::Connect,
            // A refused CONNECT leaves unclear what follows (RFC 9931): close.
            keep_alive: head.keep_alive && head.method != Method::Connect,
            waits: head.expects_continue,
        }
    }

    /// For what was no request, or is not read to its end.
    fn last(self) -> Asked {
        Asked { keep_alive: false, waits: false, ..self }
    }

    /// Of what was no request, so that nothing is known of who sent it: what it is answered must suit HTTP/1.0 as well.
    const NONE: Asked = Asked {
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
            State::Idle => Wants::Head,
            State::Receiving { .. } | State::Both(_) | State::Skipping { .. } => Wants::Body,
            State::Awaiting { .. } | State::Responding { .. } => Wants::Answer,
            State::Closed | State::Switched => Wants::Nothing,
        }
    }

    /// Whether a response was asked for and has not begun.
    #[inline]
    pub fn owes_response(&self) -> bool {
        matches!(self.state, State::Receiving { .. } | State::Awaiting { .. })
    }

    /// Whether a response has begun and is not over.
    pub fn is_responding(&self) -> bool {
        matches!(self.state, State::Responding { .. } | State::Both(_))
    }

    /// Whether no request is in hand.
    #[inline]
    pub fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle)
    }

    /// Nothing more of this request is read: it is too large, or too slow. Its response is the last.
    pub fn give_up(&mut self) {
        self.state = match std::mem::take(&mut self.state) {
            State::Receiving { asked, .. } | State::Awaiting { asked } => {
                State::Awaiting { asked: asked.last() }
            }
            State::Both(both) => State::Responding { body: both.outgoing, asked: both.asked.last() },
            State::Responding { body, asked } => State::Responding { body, asked: asked.last() },
            // Part of a head has come, and its rest is not waited for.
            State::Idle => State::Awaiting { asked: Asked::NONE },
            State::Skipping { .. } | State::Closed => State::Closed,
            State::Switched => State::Switched,
        };
    }

    /// What the state does not allow: a defect of the caller.
    #[cold]
    fn misused(&mut self, call: &str) {
        debug_assert!(false, "{call} in {:?}", self.state);
        self.state = State::Closed;
    }

    /// Nothing more is said.
    pub fn close(&mut self) {
        self.state = State::Closed;
    }
}
