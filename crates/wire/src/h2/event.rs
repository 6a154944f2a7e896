//! The results of receiving bytes.

use super::frame::Code;
use super::head::AnswerHead;
use crate::h1::Trailers;
use crate::{Head, head};

/// The id of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(pub(super) u32);

impl StreamId {
    /// Its number in frames.
    pub fn number(self) -> u32 {
        self.0
    }
}

/// The result of receiving bytes.
#[derive(Debug)]
pub enum Event<'b> {
    /// A frame is incomplete: call again with the same bytes and more.
    NeedMore,
    /// A frame of the connection itself was handled. More frames may follow in the bytes.
    Handled,
    /// A request (server).
    Request {
        /// Its stream, which the application holds until it is [released](super::Connection::release).
        stream: StreamId,
        /// Its head; `Framing::Chunked` means a body whose length is not known.
        head: Head<'b>,
        /// It requests a WebSocket by an extended CONNECT (RFC 8441); the head is that of the same request in
        /// HTTP/1. The stream's data is not a request body.
        is_websocket: bool,
        /// Nothing follows the head.
        is_whole: bool,
    },
    /// A well-formed request that exceeds a limit, or that is not supported (server). It has to be responded to, and
    /// the application holds the stream as for a request.
    Refused {
        /// Its stream.
        stream: StreamId,
        /// The error.
        fault: head::Fault,
    },
    /// An interim response; the final one follows (client).
    Interim {
        /// Of which stream.
        stream: StreamId,
        /// Its head.
        head: AnswerHead<'b>,
    },
    /// A response (client).
    Answer {
        /// Of which stream.
        stream: StreamId,
        /// Its head.
        head: AnswerHead<'b>,
        /// Nothing follows the head.
        is_whole: bool,
    },
    /// A piece of a body. The application has to call [`Connection::consumed`](super::Connection::consumed) when it
    /// was processed.
    Data {
        /// Of which stream.
        stream: StreamId,
        /// A part of the received bytes.
        bytes: &'b [u8],
    },
    /// The end of a body.
    End {
        /// Of which stream.
        stream: StreamId,
        /// Its trailer fields.
        trailers: Trailers,
    },
    /// A stream was reset by the peer, or because of the peer's fault. The application has to
    /// [`Connection::release`](super::Connection::release) it.
    Reset {
        /// Which stream.
        stream: StreamId,
        /// Why.
        code: Code,
    },
    /// More may be sent, on one stream or on all.
    Room {
        /// The stream; `None` means all.
        stream: Option<StreamId>,
    },
    /// The peer accepts no new streams; it has not processed those after `last`.
    GoAway {
        /// The last stream that it may have processed.
        last: StreamId,
        /// Why.
        code: Code,
    },
}

/// Why a connection has ended. GOAWAY was written, and nothing after it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionFault {
    /// The code sent to the peer.
    pub code: Code,
    /// A line for the peer's developer.
    pub reason: &'static str,
}

impl ConnectionFault {
    pub(super) const TOO_MANY_RESETS: ConnectionFault = ConnectionFault::calm("too many streams were reset");
    pub(super) const TOO_MANY_FRAMES: ConnectionFault =
        ConnectionFault::calm("too many frames without content");

    pub(super) const fn protocol(reason: &'static str) -> ConnectionFault {
        ConnectionFault { code: Code::PROTOCOL_ERROR, reason }
    }

    pub(super) const fn size(reason: &'static str) -> ConnectionFault {
        ConnectionFault { code: Code::FRAME_SIZE_ERROR, reason }
    }

    pub(super) const fn calm(reason: &'static str) -> ConnectionFault {
        ConnectionFault { code: Code::ENHANCE_YOUR_CALM, reason }
    }
}
