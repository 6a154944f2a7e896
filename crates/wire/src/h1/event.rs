//! A client's requests and the events of its responses.

use crate::Method;
use crate::answer::{self, Answer};
use crate::chunk::ChunkFault;

/// What must be known of a request to read its response.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sent {
    /// HEAD: no body follows, whatever the head says.
    pub is_head: bool,
    /// CONNECT: a 2xx is followed by the tunnel.
    pub is_connect: bool,
    /// It asks for another protocol: 101 may be the response.
    pub is_upgrade: bool,
}

/// What the head of a response came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerEvent {
    /// It goes on: call again with the same bytes and more.
    NeedMore,
    /// An interim response; the real one follows.
    Interim(Answer),
    /// The response: its body follows by [`Client::body`](super::Client::body), also where it is empty.
    Head(Answer),
    /// 101, or 2xx to CONNECT: what follows the head is another protocol.
    Switch(Answer),
}

/// Why a server's response is of no use. The connection is not to be used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientFault {
    /// The head is malformed.
    Head(answer::Fault),
    /// The chunked coding is malformed.
    Chunk(ChunkFault),
    /// Interim responses without end.
    Interims,
    /// An unrequested 101; or 101 or a tunnel before the request was sent completely, or with more requests pending.
    Switch,
    /// The server closed before its response was whole.
    Cut,
    /// The server closed before it said anything, were it only the start of a head: the request may not have been seen.
    Silent,
    /// Unexpected bytes.
    Unasked,
}

impl Sent {
    /// Of a request with this method.
    pub fn of(method: Method, is_upgrade: bool) -> Sent {
        Sent { is_head: method == Method::Head, is_connect: method == Method::Connect, is_upgrade }
    }
}
