//! The interface between the engine and the code that handles requests.

mod body;
mod collect;
mod ended;
mod id;
mod key;
mod owned;
mod request;
mod response;
mod stream;
mod ticket;

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;

use flatout_wire::Head;
use flatout_wire::target::PathForm;

pub(crate) use body::CarrierKind;
pub use body::{
    Body, BoxBody, BoxError, Carrier, ConnectionPermit, DetachedConnection, FileRange, Filter, Part,
    Takeover, Witness,
};
pub use collect::{Collected, collect};
pub use ended::{Begun, Ended, Outcome};
pub(crate) use id::{first_number, is_request_id};
pub use id::{request_random, sent_request_id, write_request_id};
pub use key::ExchangeKey;
pub use owned::{OwnedBody, OwnedRequest, RequestOrigin};
pub(crate) use request::Park;
pub use request::{Announced, Request, RequestBody, Tls};
pub(crate) use response::BUFFER_BYTES_KEPT;
pub(crate) use response::PushedRules;
pub use response::{Response, SendRate};
pub use stream::{BodyFault, BodyStream};
pub(crate) use stream::{BodySender, STREAM_BYTES_MAX, stream, stream_with};
pub use ticket::{Prepared, Ticket};

/// Handles requests on one worker. Each worker has its own, made on its thread: no `Send`, no locks.
pub trait Service {
    /// Decides about a request whose body follows: how the body is read, and what [`Service::call`] gets back as
    /// [`Request::ticket`]. Called once for such a request, and for no other; `path` is the normal form, as in
    /// [`Request::path`], and `listener` is [`Request::listener`].
    fn prepare(&self, head: &Head<'_>, path: &[u8], listener: u16) -> Prepared {
        let _ = (head, path, listener);
        BodyPlan::Whole { bytes_max: None }.into()
    }

    /// Handles one request: writes `response` (initially empty, status 200) and returns [`Reply::Now`], or returns
    /// how the response will come.
    ///
    /// Runs on the worker's thread, inside its runtime's `LocalSet`; blocking here blocks every connection of the
    /// worker. A panic sends 500 and closes only this connection. Tasks may be spawned from here, or from other
    /// tasks. Other threads use the worker's [`Mailbox`](crate::Mailbox), because a worker without tasks does not
    /// poll its runtime.
    fn call(&self, request: Request<'_>, response: &mut Response) -> Reply;

    /// Whether to trust a peer that announces a connection's client by the PROXY protocol
    /// ([`Listen::proxy_header`](crate::Listen::proxy_header)). Called once for each connection of such a
    /// listener, with its number; connections of untrusted peers are closed. By default nobody is trusted.
    fn believes_proxy(&self, peer: Option<SocketAddr>, listener: u16) -> bool {
        let _ = (peer, listener);
        false
    }

    /// Who gets a connection of a listener that [passes TLS on](crate::Listen::passes_tls), by the name in its ClientHello. Called once
    /// for each such connection; `name` is in lower case, and `None` if the client requests none. By default TLS ends here.
    fn route_tls(&self, name: Option<&str>, peer: Option<SocketAddr>, listener: u16) -> TlsRoute {
        let _ = (name, peer, listener);
        TlsRoute::Terminate
    }

    /// The normal form of paths for this service. A request whose path has no such form gets 400. Called once, when
    /// the worker starts.
    fn path_form(&self) -> PathForm {
        PathForm::Strict
    }

    /// Whether to call [`Service::ended`]. Called once, when the worker starts.
    fn wants_ended(&self) -> bool {
        false
    }

    /// Whether to call [`Service::begun`]. Called once, when the worker starts, and only if [`Service::wants_ended`].
    fn wants_begun(&self) -> bool {
        false
    }

    /// The head of a request was parsed, or input was rejected: called before [`Service::prepare`] and
    /// [`Service::call`]. The returned value comes back as [`Ended::mark`]; it is 0 if this was not called.
    fn begun(&self, begun: &Begun<'_>) -> u64 {
        let _ = begun;
        0
    }

    /// A request has ended in any way, including one that the parser rejected. Called once for each.
    fn ended(&self, ended: &Ended) {
        let _ = ended;
    }
}

/// A boxed service is a service, so that it can be wrapped.
impl<S: Service + ?Sized> Service for Box<S> {
    fn prepare(&self, head: &Head<'_>, path: &[u8], listener: u16) -> Prepared {
        (**self).prepare(head, path, listener)
    }

    #[inline]
    fn call(&self, request: Request<'_>, response: &mut Response) -> Reply {
        (**self).call(request, response)
    }

    fn believes_proxy(&self, peer: Option<SocketAddr>, listener: u16) -> bool {
        (**self).believes_proxy(peer, listener)
    }

    fn route_tls(&self, name: Option<&str>, peer: Option<SocketAddr>, listener: u16) -> TlsRoute {
        (**self).route_tls(name, peer, listener)
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

/// Who gets a connection with TLS.
pub enum TlsRoute {
    /// This server: the handshake begins.
    Terminate,
    /// Nobody: it is closed.
    Refuse,
    /// This code, with the connection as it is: nothing was read from it.
    Take(Takeover),
    /// This code, with what is inside TLS, which ends here: it gets the connection after the handshake.
    TakeInside(Takeover),
}

/// How the engine reads a request body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyPlan {
    /// Not at all: [`Service::call`] is called at once, without a body. A small rest is skipped after the response;
    /// if more is to come, the response is the connection's last.
    None,
    /// As `None`, however long it is: the service refuses the request. A declared length above the server's limit gets
    /// the engine's 413 with every other plan that sets no limit of its own.
    Refused,
    /// Collected first; [`Service::call`] is called when it is complete. Above `bytes_max` (`None`: the server's
    /// limit) the response is 413 and the service is not called.
    Whole {
        /// Bytes, decoded.
        bytes_max: Option<u64>,
    },
    /// [`Service::call`] is called at once, with a [`BodyStream`](crate::BodyStream); the peer is held back while
    /// nobody reads it.
    Stream {
        /// Bytes, decoded; `None` is the server's limit. Above it the stream ends with an error.
        bytes_max: Option<u64>,
    },
    /// [`Service::call`] is called at once, with an empty body in the request. A guest pulls the body by the
    /// exchange's key ([`Lane::pull`](crate::Lane::pull)) and is called when more has arrived. For bodies that are
    /// forwarded to another socket: most of a large one can get there without being copied to user space.
    Pull {
        /// Bytes, decoded; `None` is the server's limit. Above it the body ends with a fault.
        bytes_max: Option<u64>,
    },
}

/// When the response comes.
pub enum Reply {
    /// The response was written: the request stays in the lane.
    Now,
    /// A future makes it, on this worker's runtime; the connection waits parked in the lane. The future is dropped if
    /// the client disconnects.
    Later(Pin<Box<dyn Future<Output = Response>>>),
    /// It is sent by the exchange's key ([`Request::park`]), from this worker ([`Lane::answer`](crate::Lane::answer))
    /// or from any thread ([`Mailbox::run`](crate::Mailbox::run)), without a future or a task. Without a response,
    /// the request waits until its client disconnects.
    Parked,
    /// The connection leaves the lane without a response: the code that takes it over gets the request's bytes again,
    /// at the start of [`DetachedConnection::read`], and responds itself.
    Leave(Takeover),
}
