//! A request as a service sees it.

use std::net::SocketAddr;

use flatout_wire::Head;

use super::key::ExchangeKey;
use super::stream::BodyStream;
use crate::secured::Secured;

/// One request: borrowed from the worker's read buffer for the duration of the call.
pub struct Request<'a> {
    /// Method, target, version and fields.
    pub head: Head<'a>,
    /// The decoded path in the service's normal form ([`Service::path_form`](crate::Service::path_form)); `*` for
    /// `OPTIONS *`.
    pub path: &'a [u8],
    /// The body, read as [`Service::body`](crate::Service::body) planned.
    pub body: RequestBody<'a>,
    /// The client's address; `None` on a Unix socket.
    pub peer: Option<SocketAddr>,
    /// Facts about its TLS connection; `None` without TLS.
    pub tls: Option<Tls<'a>>,
    /// The number of its connection's listener ([`Listen::number`](crate::Listen::number)).
    pub listener: u16,
    pub(crate) parking: Option<&'a dyn Park>,
}

/// The TLS connection of a request.
#[derive(Debug, Clone, Copy)]
pub struct Tls<'a>(Known<'a>);

#[derive(Debug, Clone, Copy)]
enum Known<'a> {
    Connection(&'a Secured),
    /// Nothing but whether it was early data.
    Early(bool),
}

impl<'a> Tls<'a> {
    /// One of which nothing is known, for tests of services, and for requests that were parked.
    pub const UNKNOWN: Tls<'static> = Tls(Known::Early(false));

    /// The same for a request that is [early](Tls::is_early).
    pub const EARLY: Tls<'static> = Tls(Known::Early(true));

    #[inline]
    pub(crate) fn of(secured: &'a Secured) -> Tls<'a> {
        Tls(Known::Connection(secured))
    }

    /// Whether the request arrived before the end of the handshake (early data, which a plan must enable) and
    /// so could be a replay by an attacker (RFC 8470). After the handshake this returns `false`.
    pub fn is_early(&self) -> bool {
        match self.0 {
            Known::Connection(secured) => secured.with(|channel| channel.is_early()).unwrap_or(false),
            Known::Early(is_early) => is_early,
        }
    }

    fn connection(&self) -> Option<&'a Secured> {
        match self.0 {
            Known::Connection(secured) => Some(secured),
            Known::Early(_) => None,
        }
    }

    /// Version and cipher suite, such as `TLSv1.3` and `TLS_AES_128_GCM_SHA256`.
    pub fn cipher(&self) -> Option<(&'static str, String)> {
        self.connection()?.with(|channel| channel.cipher()).flatten()
    }

    /// The number of the rules that the client had to follow ([`Acceptor::rules`](crate::tls::Acceptor::rules)); `None` if the
    /// connection is not known any more.
    pub fn rules(&self) -> Option<u16> {
        self.connection()?.with(|channel| channel.rules()).flatten()
    }

    /// The client's certificate (DER), if it was requested and presented.
    pub fn client_certificate(&self) -> Option<Vec<u8>> {
        self.connection()?.with(|channel| channel.peer_certificate().map(<[u8]>::to_vec)).flatten()
    }
}

/// Creates an exchange for the current request.
pub(crate) trait Park {
    fn park(&self) -> ExchangeKey;
}

impl Park for ExchangeKey {
    fn park(&self) -> ExchangeKey {
        *self
    }
}

impl<'a> Request<'a> {
    /// A request without a connection, for tests of services.
    pub fn detached(head: Head<'a>, path: &'a [u8], body: RequestBody<'a>) -> Request<'a> {
        Request { head, path, body, peer: None, tls: None, listener: 0, parking: None }
    }

    /// The key of this request's exchange, which is created now. With it the response can be sent later
    /// ([`Reply::Parked`](crate::Reply::Parked)), or an interim response before. The key of a detached request
    /// matches nothing.
    pub fn park(&self) -> ExchangeKey {
        self.parking.map_or_else(ExchangeKey::none, |parking| parking.park())
    }
}

/// The body of a request.
pub enum RequestBody<'a> {
    /// All of it; empty where there was none.
    Whole {
        /// The decoded bytes.
        bytes: &'a [u8],
        /// The trailer fields of a chunked body.
        trailers: &'a [(Vec<u8>, Vec<u8>)],
    },
    /// Still being received.
    Stream(BodyStream),
}

impl RequestBody<'_> {
    /// No body.
    pub const NONE: RequestBody<'static> = RequestBody::Whole { bytes: &[], trailers: &[] };
}
