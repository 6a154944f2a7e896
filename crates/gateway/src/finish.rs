//! The rules for a response.

use std::rc::Rc;

use bytes::Bytes;
use flatout_engine::{ExchangeKey, Response};
use flatout_wire::accept::Coding;

/// The remaining rules of a route: response fields, CORS, error pages. Dropping it releases what the request held,
/// such as its concurrency permit.
pub trait Finish {
    /// Changes a response before it is sent. If it replaces the body of an upstream's response, for example with an
    /// error page, the body is no longer a [`Body::Pushed`](flatout_engine::Body::Pushed), and the upstream's body is
    /// not wanted.
    fn finish(&self, response: &mut Response, by: ResponseOrigin);

    /// The same for a stored upstream response, which may also exist in compressed forms.
    fn finish_stored(&self, response: &mut Response, _stored: &dyn Stored) {
        self.finish(response, ResponseOrigin::Upstream);
    }

    /// Follows an upstream that leaves its response to another route ([`private`](crate::private)), before `finish`. `held` is whoever the
    /// caller has asked, around this one: it is kept until the other route has responded.
    fn redirect(
        &self,
        _held: Rc<dyn Finish>,
        _exchange: ExchangeKey,
        _response: &mut Response,
    ) -> Redirection {
        Redirection::Nowhere
    }
}

/// Where an upstream leaves its response to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Redirection {
    /// The response is its own.
    Nowhere,
    /// Another route responds to the exchange, later. Nothing of this response is used.
    Taken,
    /// A place that does not exist: the response was replaced by an error of this server.
    Refused,
}

/// A stored response. A trait although only `cache` implements it, because `site` must not know how responses are stored.
pub trait Stored {
    /// Its body in a coding, if that form is stored. `plain` is the body of the response to be sent.
    fn compressed(&self, coding: Coding, plain: &[u8]) -> Option<Bytes>;
}

/// The origin of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResponseOrigin {
    /// From an upstream.
    Upstream,
    /// From this server: a refusal, a file, 502.
    Here,
}
