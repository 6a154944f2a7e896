//! Questions to an auth service.

use flatout_engine::Response;
use flatout_wire::Head;

use super::Client;

/// A query to an auth service.
pub struct AuthQuery<'a> {
    /// The index of the auth service among the upstreams.
    pub upstream: usize,
    /// Request fields sent to it; empty means all but those of the connection and of the body.
    pub request_fields: &'a [String],
    /// Fields of its 2xx response that replace the request's fields of these names.
    pub response_fields: &'a [String],
    /// The target of the request to it.
    pub target: &'a [u8],
    /// The request that it is about.
    pub head: &'a Head<'a>,
    /// The client.
    pub client: Client,
}

/// The decision of an auth service.
pub enum AuthDecision {
    /// The request is allowed. The fields are those of the response that the route selects
    /// ([`AuthQuery::response_fields`]).
    Allowed(Vec<(String, Vec<u8>)>),
    /// The request is refused with this response.
    Refused(Box<Response>),
}
