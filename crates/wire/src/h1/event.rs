//! A client's requests and the events of its responses.

use crate::Method;
use crate::answer::{self, Answer};
use crate::chunk::ChunkFault;

/// What has to be known of a request to parse its response.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sent {
    /// HEAD: no body follows, whatever the head says.
    pub is_head: bool,
    /// CONNECT: a 2xx is followed by the tunnel.
    pub is_connect: bool,
    /// It requests an upgrade: 101 may be the response.
    pub is_upgrade: bool,
}

/// The result of parsing a response head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerEvent {
    /// It is incomplete: call again with the same bytes and more.
    NeedMore,
    /// An interim response; the final one follows.
    Interim(Answer),
    /// The final response: its body follows by [`Client::body`](super::Client::body), even if it is empty.
    Head(Answer),
    /// 101, or 2xx to CONNECT: another protocol follows the head.
    Switch(Answer),
}

/// Why a server's response is not usable. The connection must not be reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientFault {
    /// The head is malformed.
    Head(answer::ResponseFault),
    /// The chunked coding is malformed.
    Chunk(ChunkFault),
    /// Too many interim responses.
    Interims,
    /// An unrequested 101; or 101 or a tunnel before the request was sent completely, or with more requests pending.
    Switch,
    /// The server closed before its response was complete.
    Cut,
    /// The server closed before it sent anything, not even the start of a head: the request may not have been
    /// processed.
    Silent,
    /// Unexpected bytes.
    Unasked,
}

impl Sent {
    /// For a request with this method.
    pub fn of(method: Method, is_upgrade: bool) -> Sent {
        Sent { is_head: method == Method::Head, is_connect: method == Method::Connect, is_upgrade }
    }
}
