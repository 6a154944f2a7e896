//! A request that outlives its turn: whoever lets it wait keeps all of it.

use std::net::SocketAddr;
use std::rc::Rc;

use bytes::Bytes;
use flatout_wire::Framing;
use flatout_wire::h1::Trailers;
use flatout_wire::head::parse_kept;

use super::request::{Park, TlsFacts};
use super::{
    Announced, BodyFault, BodyStream, Collected, ExchangeKey, Request, RequestBody, Ticket, Tls, collect,
};
use crate::exchange::Lane;

/// A request with memory of its own, whose exchange was created.
pub struct OwnedRequest {
    /// Its head, as it was parsed.
    pub head: Vec<u8>,
    /// The framing of its body; `None`: as the head has it. A head of HTTP/2 does not say.
    pub framing: Option<Framing>,
    /// Its path in the normal form.
    pub path: Vec<u8>,
    /// Its body.
    pub body: OwnedBody,
    /// Where it came from.
    pub origin: RequestOrigin,
    /// The service's note about it.
    pub ticket: Option<Ticket>,
}

/// What a request that waits keeps of its connection and its exchange.
#[derive(Debug, Clone)]
pub struct RequestOrigin {
    key: ExchangeKey,
    peer: Option<SocketAddr>,
    listener: u16,
    number: u64,
    connection: u64,
    tls: Option<Rc<TlsFacts>>,
    announced: Option<Rc<Announced>>,
}

/// The body of a request that waits.
pub enum OwnedBody {
    /// It had arrived with the request.
    Received {
        /// The decoded bytes.
        bytes: Bytes,
        /// The trailer fields of a chunked body.
        trailers: Trailers,
    },
    /// It was collected while the request waited.
    Collected(Collected),
    /// It is still being received.
    Stream(BodyStream),
}

impl OwnedRequest {
    /// Copies a request, and takes its body.
    pub fn of(request: Request<'_>) -> OwnedRequest {
        let copied = OwnedRequest::without_body(&request);
        OwnedRequest { body: request.body.into(), ticket: request.ticket, ..copied }
    }

    /// Copies a request whose body is not needed.
    pub fn without_body(request: &Request<'_>) -> OwnedRequest {
        OwnedRequest {
            head: request.head.kept_bytes(),
            framing: Some(request.head.framing),
            path: request.path.to_vec(),
            body: OwnedBody::none(),
            origin: RequestOrigin::of(request),
            ticket: None,
        }
    }

    /// Copies a request whose body is not needed, and which may get its response before it has an exchange.
    pub fn unparked(request: &Request<'_>) -> OwnedRequest {
        OwnedRequest {
            head: request.head.kept_bytes(),
            framing: Some(Framing::None),
            path: request.path.to_vec(),
            body: OwnedBody::none(),
            origin: RequestOrigin::with_key(request, ExchangeKey::none()),
            ticket: None,
        }
    }

    /// A copy of such a request without its body, with the exchange that it has got.
    pub fn again(&self, key: ExchangeKey) -> OwnedRequest {
        OwnedRequest {
            head: self.head.clone(),
            framing: self.framing,
            path: self.path.clone(),
            body: OwnedBody::none(),
            origin: RequestOrigin { key, ..self.origin.clone() },
            ticket: None,
        }
    }

    /// Passes the request to `act`; code that it is passed to gets its key when it parks the request. `None` if the head
    /// cannot be parsed: it is not one that a request had.
    pub fn resume<T>(self, act: impl FnOnce(Request<'_>) -> T) -> Option<T> {
        let OwnedRequest { head, framing, path, body, origin, ticket } = self;
        let framing = match &body {
            // It has a length now, whatever its framing was.
            OwnedBody::Collected(collected) if collected.bytes.is_empty() => Some(Framing::None),
            OwnedBody::Collected(collected) => Some(Framing::Length(collected.bytes.len() as u64)),
            OwnedBody::Received { .. } | OwnedBody::Stream(_) => framing,
        };
        let call = |body: RequestBody<'_>| {
            origin.call(&head, framing, &path, body, |request| act(Request { ticket, ..request }))
        };
        // Memory of a collected body is released when the request has been handled.
        match body {
            OwnedBody::Collected(ref collected) => {
                call(RequestBody::Whole { bytes: &collected.bytes, trailers: &collected.trailers })
            }
            OwnedBody::Received { ref bytes, ref trailers } => call(RequestBody::Whole { bytes, trailers }),
            OwnedBody::Stream(stream) => call(RequestBody::Stream(stream)),
        }
    }

    /// The same without a body, any number of times.
    pub fn resume_without_body<T>(&self, act: impl FnOnce(Request<'_>) -> T) -> Option<T> {
        self.origin.call(&self.head, self.framing, &self.path, RequestBody::NONE, act)
    }
}

impl RequestOrigin {
    /// Creates the exchange of a request.
    pub fn of(request: &Request<'_>) -> RequestOrigin {
        RequestOrigin::with_key(request, request.park())
    }

    fn with_key(request: &Request<'_>, key: ExchangeKey) -> RequestOrigin {
        RequestOrigin {
            key,
            peer: request.peer,
            listener: request.listener,
            number: request.number,
            connection: request.connection(),
            tls: request.tls.map(|tls| Rc::new(TlsFacts::of(tls))),
            announced: request.announced(),
        }
    }

    /// The key of the exchange.
    pub fn key(&self) -> ExchangeKey {
        self.key
    }

    /// The number of the request.
    pub fn number(&self) -> u64 {
        self.number
    }

    fn call<T>(
        &self,
        head: &[u8],
        framing: Option<Framing>,
        path: &[u8],
        body: RequestBody<'_>,
        act: impl FnOnce(Request<'_>) -> T,
    ) -> Option<T> {
        let RequestOrigin { peer, listener, number, tls, .. } = self;
        let mut fields = Vec::new();
        let head = parse_kept(head, &mut fields, framing)?;
        Some(act(Request {
            head,
            path,
            body,
            peer: *peer,
            tls: tls.as_deref().map(Tls::copy),
            listener: *listener,
            number: *number,
            ticket: None,
            parking: Some(self),
        }))
    }
}

impl Park for RequestOrigin {
    fn park(&self) -> ExchangeKey {
        self.key
    }

    fn announced(&self) -> Option<Rc<Announced>> {
        self.announced.clone()
    }

    fn connection(&self) -> u64 {
        self.connection
    }
}

impl OwnedBody {
    /// No body.
    pub fn none() -> OwnedBody {
        OwnedBody::Received { bytes: Bytes::new(), trailers: Trailers::new() }
    }

    /// Receives all of it, unless it is there: see [`collect`].
    ///
    /// # Errors
    /// It is too large, cannot be read, or there is no memory for it; it is lost then.
    pub async fn collect(&mut self, bytes_max: u64, lane: Option<&Lane>) -> Result<(), BodyFault> {
        *self = match std::mem::replace(self, OwnedBody::none()) {
            OwnedBody::Stream(stream) => OwnedBody::Collected(collect(stream, bytes_max, lane).await?),
            whole => whole,
        };
        Ok(())
    }
}

impl From<RequestBody<'_>> for OwnedBody {
    fn from(body: RequestBody<'_>) -> OwnedBody {
        match body {
            RequestBody::Whole { bytes, trailers } => {
                OwnedBody::Received { bytes: Bytes::copy_from_slice(bytes), trailers: trailers.to_vec() }
            }
            RequestBody::Stream(stream) => OwnedBody::Stream(stream),
        }
    }
}
