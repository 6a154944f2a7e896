//! A request as a service sees it.

use std::net::SocketAddr;

use flatout_wire::Head;

use super::key::ExchangeKey;
use super::stream::BodyStream;

/// One request: borrowed from the worker's read buffer for the length of the call.
pub struct Request<'a> {
    /// Method, target, version and fields.
    pub head: Head<'a>,
    /// The decoded path in its normal form ([`flatout_wire::target::normal_path`]); `*` for `OPTIONS *`.
    pub path: &'a [u8],
    /// The body, read as [`Service::body`](crate::Service::body) planned.
    pub body: RequestBody<'a>,
    /// The client's address; `None` on a Unix socket.
    pub peer: Option<SocketAddr>,
    pub(crate) parking: Option<&'a dyn Parking>,
}

/// Makes an exchange for the request that is being served.
pub(crate) trait Parking {
    fn park(&self) -> ExchangeKey;
}

impl<'a> Request<'a> {
    /// A request that came from no connection, for tests of services.
    pub fn detached(head: Head<'a>, path: &'a [u8], body: RequestBody<'a>) -> Request<'a> {
        Request { head, path, body, peer: None, parking: None }
    }

    /// The key of this request's exchange, which is made now: by it the response can be given later
    /// ([`Reply::Parked`](crate::Reply::Parked)), or an interim response while it is made. The key of a detached request
    /// finds nothing.
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
    /// Still on its way.
    Stream(BodyStream),
}

impl RequestBody<'_> {
    /// No body.
    pub const NONE: RequestBody<'static> = RequestBody::Whole { bytes: &[], trailers: &[] };
}
