//! What the engine asks of whoever answers requests, and what it gives them for it.

mod body;
mod ended;
mod key;
mod request;
mod response;
mod stream;

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;

use flatout_wire::Head;
use flatout_wire::target::PathForm;

pub(crate) use body::Carried;
pub use body::{Body, BoxBody, BoxError, Carrier, FileRange, Filter, Part, Seat, Taken, Takeover, Witness};
pub use ended::{Begun, Ended, Outcome};
pub use key::ExchangeKey;
pub(crate) use request::Parking;
pub use request::{Request, RequestBody, Tls};
pub(crate) use response::BUFFER_BYTES_KEPT;
pub use response::Response;
pub use stream::{BodyFault, BodyStream};
pub(crate) use stream::{BodySender, STREAM_BYTES_MAX, stream, stream_with};

/// Answers requests on one worker. Each worker has its own, made on its thread: no `Send`, no locks.
pub trait Service {
    /// How the body that follows this head is to be read. Asked only when a body follows; `path` is the
    /// normal form, as in [`Request::path`].
    fn body(&self, head: &Head<'_>, path: &[u8]) -> BodyPlan {
        let _ = (head, path);
        BodyPlan::Whole { bytes_max: None }
    }

    /// Answers one request: writes `response` (it comes empty, status 200) and returns [`Reply::Now`], or
    /// says how the response will come.
    ///
    /// Runs on the worker's thread, inside its runtime's `LocalSet`; what blocks here blocks every connection
    /// of the worker. A panic answers 500 and closes this connection only. Tasks may be spawned from here, or from other
    /// tasks; another thread that wants something of the worker says so by its [`Mailbox`](crate::Mailbox), because a
    /// worker without tasks does not look at its runtime.
    fn call(&self, request: Request<'_>, response: &mut Response) -> Reply;

    /// Whether a peer is believed about whose connection it is, where that is said by the PROXY protocol
    /// ([`Plan::proxy_protocol`](crate::Plan::proxy_protocol)). Asked once for each connection of such a listener; one whose
    /// peer is not believed is closed. By default nobody is.
    fn believes_proxy(&self, peer: Option<SocketAddr>) -> bool {
        let _ = peer;
        false
    }

    /// The normal form of the paths that this service gets. A request whose path has no such form gets 400. Called once, when the
    /// worker starts.
    fn path_form(&self) -> PathForm {
        PathForm::Strict
    }

    /// Whether [`Service::ended`] is to be called. Asked once, when the worker starts.
    fn wants_ended(&self) -> bool {
        false
    }

    /// Whether [`Service::begun`] is to be called. Asked once, when the worker starts, and only where
    /// [`Service::wants_ended`].
    fn wants_begun(&self) -> bool {
        false
    }

    /// The head of a request was read, or what came was refused: before [`Service::body`] and [`Service::call`]. What is
    /// returned comes back as [`Ended::mark`]; 0 is what it is where nobody was asked.
    fn begun(&self, begun: &Begun<'_>) -> u64 {
        let _ = begun;
        0
    }

    /// A request is over, one way or another; also one that the parser refused. Called once for each.
    fn ended(&self, ended: &Ended) {
        let _ = ended;
    }
}

/// A boxed service is one, so that it can be wrapped.
impl<S: Service + ?Sized> Service for Box<S> {
    fn body(&self, head: &Head<'_>, path: &[u8]) -> BodyPlan {
        (**self).body(head, path)
    }

    #[inline]
    fn call(&self, request: Request<'_>, response: &mut Response) -> Reply {
        (**self).call(request, response)
    }

    fn believes_proxy(&self, peer: Option<SocketAddr>) -> bool {
        (**self).believes_proxy(peer)
    }

    fn path_form(&self) -> PathForm {
        (**self).path_form()
    }

    fn wants_ended(&self) -> bool {
        (**self).wants_ended()
    }

    fn wants_begun(&self) -> bool {
        (**self).wants_begun()
    }

    fn begun(&self, begun: &Begun<'_>) -> u64 {
        (**self).begun(begun)
    }

    fn ended(&self, ended: &Ended) {
        (**self).ended(ended);
    }
}

/// How the engine reads a request body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyPlan {
    /// Not at all: [`Service::call`] comes at once, without a body. What of it is small is skipped behind the response;
    /// where more is to come, the response is the connection's last.
    None,
    /// Collected first; [`Service::call`] comes when it is whole. Over `bytes_max` (`None`: the server's
    /// limit) the answer is 413 and the service is not called.
    Whole {
        /// Bytes, decoded.
        bytes_max: Option<u64>,
    },
    /// [`Service::call`] comes at once, with a [`BodyStream`](crate::BodyStream); the peer is held back while nobody reads it.
    Stream {
        /// Bytes, decoded; `None` is the server's limit. Over it the stream ends in an error.
        bytes_max: Option<u64>,
    },
    /// [`Service::call`] comes at once, with an empty body in the request. A guest pulls the body by the exchange's key
    /// ([`Lane::pull`](crate::Lane::pull)) and is called when more has arrived. For bodies that are sent on to another socket: most of a
    /// large one can get there without being copied through the program.
    Pull {
        /// Bytes, decoded; `None` is the server's limit. Over it the body ends in a fault.
        bytes_max: Option<u64>,
    },
}

/// When the response comes.
pub enum Reply {
    /// The response was written: it stays in the lane.
    Now,
    /// A future makes it, on this worker's runtime; the connection waits parked in the lane. Dropped unfinished
    /// if the client goes away.
    Later(Pin<Box<dyn Future<Output = Response>>>),
    /// It comes by the exchange's key ([`Request::park`]), from this worker ([`Lane::answer`](crate::Lane::answer)) or from any thread
    /// ([`Mailbox::run`](crate::Mailbox::run)), without a future and without a task. If nobody answers, the request waits until its client
    /// goes away.
    Parked,
    /// The connection leaves the lane with the request unanswered: what takes it over gets the request's bytes again, as
    /// the first of [`Taken::read`], and answers by itself.
    Leave(Takeover),
}
