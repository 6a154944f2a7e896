//! What comes of bytes.

use super::frame::Code;
use super::head::AnswerHead;
use crate::h1::Trailers;
use crate::{Head, head};

/// Names one stream of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(pub(super) u32);

impl StreamId {
    /// The number as it stands in frames.
    pub fn number(self) -> u32 {
        self.0
    }
}

/// What bytes came to.
#[derive(Debug)]
pub enum Event<'b> {
    /// A frame goes on: call again with the same bytes and more.
    NeedMore,
    /// A frame came that concerns the connection alone. There may be more in the bytes behind it.
    Handled,
    /// A request (server).
    Request {
        /// Its stream, which is the application's until it is [released](super::Connection::release).
        stream: StreamId,
        /// Its head; `Framing::Chunked` means a body whose length is not known.
        head: Head<'b>,
        /// It asks for a WebSocket by an extended CONNECT (RFC 8441); the head is that of the same request in HTTP/1. What follows on
        /// the stream is no body.
        is_websocket: bool,
        /// Nothing follows the head.
        is_whole: bool,
    },
    /// A request that is well-formed and over a limit, or asks for what nobody does (server). It is to be answered, and the stream is
    /// the application's as with a request.
    Refused {
        /// Its stream.
        stream: StreamId,
        /// What is wrong with it.
        fault: head::Fault,
    },
    /// An interim response; the real one follows (client).
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
    /// A piece of a body. What the application has done with it, it says by [`Connection::consumed`](super::Connection::consumed).
    Data {
        /// Of which stream.
        stream: StreamId,
        /// It lies where the bytes lay.
        bytes: &'b [u8],
    },
    /// A body has come to its end.
    End {
        /// Of which stream.
        stream: StreamId,
        /// Its trailer fields.
        trailers: Trailers,
    },
    /// A stream that was handed out is over before its end, by the peer, or because of what the peer did. The application lets go of it by
    /// [`Connection::release`](super::Connection::release).
    Reset {
        /// Which stream.
        stream: StreamId,
        /// Why.
        code: Code,
    },
    /// More may be sent: of one stream, or of all.
    Room {
        /// Which stream; `None`: all.
        stream: Option<StreamId>,
    },
    /// The peer takes no new streams; what was opened behind `last` it has not looked at.
    GoAway {
        /// The last stream that it may have looked at.
        last: StreamId,
        /// Why.
        code: Code,
    },
}

/// Why a connection is over. GOAWAY was written, and nothing behind it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// What the peer is told.
    pub code: Code,
    /// One line for the peer's developer.
    pub reason: &'static str,
}

impl Fault {
    pub(super) const TOO_MANY_RESETS: Fault = Fault::calm("too many streams were reset");
    pub(super) const TOO_MANY_FRAMES: Fault = Fault::calm("too many frames without content");

    pub(super) const fn protocol(reason: &'static str) -> Fault {
        Fault { code: Code::PROTOCOL_ERROR, reason }
    }

    pub(super) const fn size(reason: &'static str) -> Fault {
        Fault { code: Code::FRAME_SIZE_ERROR, reason }
    }

    pub(super) const fn calm(reason: &'static str) -> Fault {
        Fault { code: Code::ENHANCE_YOUR_CALM, reason }
    }
}
