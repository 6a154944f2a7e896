//! Response bodies.

use std::any::Any;
use std::fmt;
use std::fs::{File, Metadata};
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;

use super::ExchangeKey;
use crate::exchange::{Lane, bridge};

/// Any error of a body that is produced while it is sent.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Any streamed body.
pub type BoxBody = Pin<Box<dyn http_body::Body<Data = Bytes, Error = BoxError>>>;

/// The body of a response.
#[derive(Default)]
pub enum Body {
    /// Nothing, `Content-Length: 0`.
    #[default]
    Empty,
    /// What was written to [`Response::buffer`](crate::Response::buffer).
    Buffered,
    /// Bytes that live as long as the program.
    Static(&'static [u8]),
    /// Shared bytes; large ones are sent without copying.
    Shared(Bytes),
    /// A range of a file, sent by the kernel.
    File(FileRange),
    /// Several pieces in order.
    Parts(Vec<Part>),
    /// Produced while it is sent, chunked unless its size hint is exact or a length was declared. An error aborts the
    /// connection, so that the client sees a short body and never a clean end.
    Stream(BoxBody),
    /// Pushed by the exchange's key ([`Lane::push`](crate::Lane::push)), chunked unless a length was declared.
    Pushed,
    /// What follows is not HTTP: the socket leaves the lane once the head is sent (WebSocket, tunnels). A stream of
    /// HTTP/2 leaves by itself.
    Take(Takeover),
}

/// A piece of [`Body::Parts`].
pub enum Part {
    /// Bytes in memory.
    Bytes(Bytes),
    /// A range of a file.
    File(FileRange),
}

/// `bytes` bytes of a file from `offset` on. If the file turns out to be shorter, the connection is aborted. The same
/// happens if it was written to meanwhile, unless its witness says that the promised bytes are unchanged: no client
/// gets a mix of two versions.
#[derive(Debug, Clone)]
pub struct FileRange {
    /// The open file.
    pub file: Arc<File>,
    /// Where the range starts.
    pub offset: u64,
    /// Its length.
    pub bytes: u64,
    /// Modification time of the promised version; checked again before the last bytes are sent.
    pub modified: SystemTime,
    /// Called if the file was written to meanwhile; `None`: every write aborts.
    pub witness: Option<Arc<dyn Witness>>,
}

/// Can recognise a promised version of a file in a later one.
pub trait Witness: fmt::Debug + Send + Sync {
    /// Whether all bytes of the promised version are unchanged, as in a log that has grown. Runs on the worker: a few
    /// reads of data that was just sent.
    fn is_unchanged(&self, file: &File, now: &Metadata) -> bool;
}

impl FileRange {
    /// Whether the file still has the promised version. Costs one system call, and more only if it was written to.
    pub fn is_current(&self) -> bool {
        let Ok(now) = self.file.metadata() else { return false };
        now.modified().is_ok_and(|modified| modified == self.modified)
            || self.witness.as_ref().is_some_and(|witness| witness.is_unchanged(&self.file, &now))
    }
}

/// Changes a body while it is sent, for example by compressing it. Runs on the worker.
pub trait Filter {
    /// Takes a piece, and returns what to send now, possibly nothing.
    ///
    /// # Errors
    /// The body cannot be completed: the connection is aborted.
    fn piece(&mut self, bytes: Bytes) -> Result<Bytes, BoxError>;

    /// The body is complete: returns what is still to be sent.
    ///
    /// # Errors
    /// As [`Filter::piece`].
    fn end(&mut self) -> Result<Bytes, BoxError>;
}

/// Two filters, one after the other.
pub(super) struct FilterChain {
    pub(super) first: Box<dyn Filter>,
    pub(super) second: Box<dyn Filter>,
}

impl Filter for FilterChain {
    fn piece(&mut self, bytes: Bytes) -> Result<Bytes, BoxError> {
        let bytes = self.first.piece(bytes)?;
        if bytes.is_empty() { Ok(bytes) } else { self.second.piece(bytes) }
    }

    fn end(&mut self) -> Result<Bytes, BoxError> {
        let last = self.first.end()?;
        let piece = if last.is_empty() { last } else { self.second.piece(last)? };
        let end = self.second.end()?;
        Ok(match (piece.is_empty(), end.is_empty()) {
            (true, _) => end,
            (_, true) => piece,
            _ => [piece, end].concat().into(),
        })
    }
}

/// Runs a connection that has left HTTP, on the worker's runtime.
pub type Takeover = Box<dyn FnOnce(DetachedConnection) -> Pin<Box<dyn Future<Output = ()>>>>;

/// A connection that has left the lane.
pub struct DetachedConnection {
    /// What its bytes go over from now on.
    pub carrier: Carrier,
    /// What the client sent after its request head.
    pub read: Bytes,
    /// The client's address; `None` on a Unix socket.
    pub peer: Option<SocketAddr>,
    /// It is the client's own socket. Otherwise a worker stands between, which encrypts or frames.
    pub is_direct: bool,
    /// Counts the connection among the server's, until it is dropped and the takeover's future has ended: code that
    /// keeps the socket longer than that future keeps this too.
    pub permit: ConnectionPermit,
}

/// What carries the bytes of a connection that has left HTTP: a socket, or a stream of HTTP/2. A guest of the lane takes either as it is
/// ([`Lane::enter`]); other code asks for a socket. Dropped, it closes.
pub struct Carrier(pub(crate) CarrierKind);

pub(crate) enum CarrierKind {
    Socket(OwnedFd),
    Stream(DetachedStream),
}

/// A stream whose response is content that its guest sends, to the end.
pub(crate) struct DetachedStream {
    lane: Lane,
    /// `None` once a guest has it.
    key: Option<ExchangeKey>,
}

impl Carrier {
    pub(crate) fn stream(lane: &Lane, key: ExchangeKey) -> Carrier {
        Carrier(CarrierKind::Stream(DetachedStream { lane: lane.clone(), key: Some(key) }))
    }

    /// The connection as a non-blocking socket. Where it is a stream, that is one end of a socket pair, and a guest moves bytes between
    /// the two: two descriptors and a copy of each byte.
    ///
    /// # Errors
    /// The kernel's: no descriptors, no memory. The stream is gone.
    pub fn into_socket(self) -> io::Result<OwnedFd> {
        match self.0 {
            CarrierKind::Socket(socket) => Ok(socket),
            CarrierKind::Stream(stream) => {
                let lane = stream.lane.clone();
                bridge(&lane, Rc::new(()), |lane, owner, tag| {
                    lane.enter(Carrier(CarrierKind::Stream(stream)), owner, tag)
                })
            }
        }
    }
}

impl From<OwnedFd> for Carrier {
    fn from(socket: OwnedFd) -> Carrier {
        Carrier(CarrierKind::Socket(socket))
    }
}

impl DetachedStream {
    /// Its key, for a guest that closes it from now on.
    pub(crate) fn keep(mut self) -> Option<ExchangeKey> {
        self.key.take()
    }
}

impl Drop for DetachedStream {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.lane.leave(key);
        }
    }
}

/// Counts a connection that has left the lane, for as long as it lives.
pub struct ConnectionPermit(
    #[expect(dead_code, reason = "it is there to be dropped")] pub(crate) Rc<dyn Any>,
);

impl ConnectionPermit {
    /// A permit without effect, for tests of takeovers.
    pub fn none() -> ConnectionPermit {
        ConnectionPermit(Rc::new(()))
    }
}
