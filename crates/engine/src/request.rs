//! A request as a service sees it.

use std::net::SocketAddr;

use flatout_wire::Head;

use crate::BodyStream;

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
