//! The interface between sites and the proxy. The proxy implements it; a test has one of its own.

use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use flatout_engine::{BodyPlan, Reply, Request, Response};
use flatout_wire::Head;
use flatout_wire::accept::Coding;

use super::plan::ForwardAuth;
use crate::{cache, proxy};

/// Forwards requests, on one worker.
pub trait Forwarding {
    /// How the body behind this head is to be read; `bytes_max` is the route's limit, `None` the server's.
    fn body(&self, to: &proxy::Forward, head: &Head<'_>, bytes_max: Option<u64>) -> BodyPlan;

    /// Sends a request to its upstream. `request.path` is the path in its normal form after all rewrites.
    ///
    /// The response may come at once, later, or by the request's key ([`Request::park`]). Whichever way,
    /// [`Finish::finish`] is called on it before it is given to the engine, and `what.finish` is kept until then.
    fn forward(&self, request: Request<'_>, what: Forwarded<'_>, response: &mut Response) -> Reply;

    /// Responds at once to a request that is byte for byte like an earlier one ([`Caching::repeats`]). Returns
    /// whether it did.
    fn repeat(&self, _request: &Request<'_>, _response: &mut Response) -> bool {
        false
    }

    /// Asks an authority whether a request may go on; `then` is called with what it says, on this worker, at once or later.
    /// Where it is dropped uncalled, the authority could not be asked.
    fn ask(&self, question: Question<'_>, then: Box<dyn FnOnce(Opinion)>);
}

/// What is forwarded, and how. Everything that the route's rules changed is in it already.
pub struct Forwarded<'a> {
    /// The route's settings.
    pub forward: &'a proxy::Forward,
    /// Path and query for the upstream: as the client sent them, rewritten, or in the normal form.
    pub target: &'a [u8],
    /// Who asks.
    pub client: Client,
    /// What becomes of the request's fields.
    pub edits: Edits<'a>,
    /// What is still to be done to the response.
    pub finish: Rc<dyn Finish>,
    /// How the response is cached, if it is.
    pub caching: Option<Caching<'a>>,
}

/// How the response to a request is cached.
#[derive(Debug, Clone, Copy)]
pub struct Caching<'a> {
    /// The route's settings.
    pub rules: &'a Arc<cache::Rules>,
    /// The operator's key, filled in; `None` is the usual one.
    pub key: Option<&'a [u8]>,
    /// `Authorization` is in that key: whoever sends the same gets the same.
    pub names_authorization: bool,
    /// The route's rules depend on nothing but the request head: identical heads get the same response.
    pub repeats: bool,
    /// The cache does not answer this request.
    pub is_bypassed: bool,
    /// The response is not stored.
    pub is_unstored: bool,
}

/// The client, as given by trusted proxies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Client {
    /// The client's address; `None` on a Unix socket whose word about it is not trusted.
    pub address: Option<IpAddr>,
    /// Whether the client used https.
    pub is_https: bool,
    /// Whether the request came as early data of TLS: it may have been sent by somebody who has recorded it (RFC 8470).
    pub is_early: bool,
    /// Whether the peer of the connection is a trusted proxy: only then are its `X-Forwarded-*` and `Forwarded` passed on,
    /// with our line added. Everybody else's are replaced.
    pub is_from_proxy: bool,
}

/// Changes of a request's fields.
#[derive(Debug, Clone, Copy, Default)]
pub struct Edits<'a> {
    /// Names of fields that are left out, in lower case.
    pub dropped: &'a [String],
    /// More of them.
    pub dropped_too: &'a [String],
    /// And more, of whoever is between the site and the proxy.
    pub left_out: &'a [&'a [u8]],
    /// Field lines that are added, each ended by CRLF. No control byte is in them, and none of the fields of the
    /// connection or of framing.
    pub lines: &'a [u8],
}

impl Edits<'_> {
    /// Whether the client's field of this name is left out. `_` and `-` are the same: to applications behind CGI, WSGI and
    /// the like `X_Real_IP` is `X-Real-IP`.
    pub fn drops(&self, name: &[u8]) -> bool {
        self.dropped.iter().chain(self.dropped_too).any(|dropped| is_alike(name, dropped.as_bytes()))
            || self.left_out.iter().any(|dropped| is_alike(name, dropped))
    }
}

fn is_alike(name: &[u8], dropped: &[u8]) -> bool {
    let alike = |(&a, &b): (&u8, &u8)| a.eq_ignore_ascii_case(&b) || (a == b'_' && b == b'-');
    name.len() == dropped.len() && name.iter().zip(dropped).all(alike)
}

/// The rest of a route's rules: fields of the response, CORS, error pages. Dropping it gives back what the request held,
/// such as its place in a limit of requests under way.
pub trait Finish {
    /// Changes a response before it is sent. Where it replaces the body of an upstream's response, such as by an error
    /// page, the body is no [`Body::Pushed`](flatout_engine::Body::Pushed) any more, and the upstream's is not wanted.
    fn finish(&self, response: &mut Response, by: MadeBy);

    /// The same for an upstream's response that is stored, perhaps in compressed forms too.
    fn finish_stored(&self, response: &mut Response, _stored: &dyn Stored) {
        self.finish(response, MadeBy::Upstream);
    }
}

/// A stored response.
pub trait Stored {
    /// Its body in a coding, if it is stored in that form. `plain` is the body of the response that is to be sent.
    fn compressed(&self, coding: Coding, plain: &[u8]) -> Option<Bytes>;
}

/// Where a response comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MadeBy {
    /// From an upstream.
    Upstream,
    /// From this server: a refusal, a file, 502.
    Here,
}

/// A question for an authority.
pub struct Question<'a> {
    /// The route's settings.
    pub authority: &'a ForwardAuth,
    /// The target to ask it for.
    pub target: &'a [u8],
    /// The request that it is about.
    pub head: &'a Head<'a>,
    /// Who asks.
    pub client: Client,
}

/// What an authority said.
pub enum Opinion {
    /// The request may go on. The fields of the response that the route selects ([`ForwardAuth::response_fields`]).
    Allowed(Vec<(String, Vec<u8>)>),
    /// It may not: this is the response.
    Refused(Box<Response>),
}
