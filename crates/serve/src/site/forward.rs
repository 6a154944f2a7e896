//! The interface between sites and the proxy. The proxy implements it; tests have their own implementation.

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
    /// How the body after this head is to be read; `bytes_max` is the route's limit, `None` the server's.
    fn body(&self, to: &proxy::Forward, head: &Head<'_>, bytes_max: Option<u64>) -> BodyPlan;

    /// Sends a request to its upstream. `request.path` is the path in its normal form after all rewrites.
    ///
    /// The response may come at once, later, or by the request's key ([`Request::park`]). In each case
    /// [`Finish::finish`] is called on it before the engine gets it, and `what.finish` is kept until then.
    fn forward(&self, request: Request<'_>, what: Forwarded<'_>, response: &mut Response) -> Reply;

    /// Responds at once to a request that is byte for byte like an earlier one ([`Caching::repeats`]). Returns
    /// whether it did.
    fn repeat(&self, _request: &Request<'_>, _response: &mut Response) -> bool {
        false
    }

    /// Asks an auth service whether a request is allowed; `then` is called with its opinion, on this worker, now or
    /// later. If `then` is dropped without a call, the auth service could not be asked.
    fn ask(&self, question: Question<'_>, then: Box<dyn FnOnce(Opinion)>);
}

/// What is forwarded, and how. All request rules of the route have been applied.
pub struct Forwarded<'a> {
    /// The route's settings.
    pub forward: &'a proxy::Forward,
    /// Path and query for the upstream: as the client sent them, rewritten, or in the normal form.
    pub target: &'a [u8],
    /// The client.
    pub client: Client,
    /// Changes of the request's fields.
    pub edits: Edits<'a>,
    /// The rules for the response.
    pub finish: Rc<dyn Finish>,
    /// How the response is cached, if it is.
    pub caching: Option<Caching<'a>>,
}

/// How the response to a request is cached.
#[derive(Debug, Clone, Copy)]
pub struct Caching<'a> {
    /// The route's settings.
    pub rules: &'a Arc<cache::Rules>,
    /// The operator's key, rendered; `None` is the default key.
    pub key: Option<&'a [u8]>,
    /// `Authorization` is part of the key, so only clients that send the same value share responses.
    pub names_authorization: bool,
    /// The route's rules depend on nothing but the request head: identical heads get the same response.
    pub repeats: bool,
    /// The cache does not answer this request.
    pub is_bypassed: bool,
    /// The response is not stored.
    pub is_unstored: bool,
}

/// The client, according to trusted proxies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Client {
    /// The client's address; `None` on a Unix socket whose information about it is not trusted.
    pub address: Option<IpAddr>,
    /// Whether the client used https.
    pub is_https: bool,
    /// Whether the request arrived as early data of TLS: it could be a replay (RFC 8470).
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
    /// More such names.
    pub dropped_too: &'a [String],
    /// More such names, from code between the site and the proxy.
    pub left_out: &'a [&'a [u8]],
    /// Field lines to add, each ended by CRLF. They contain no control bytes, and no fields of the connection or of
    /// framing.
    pub lines: &'a [u8],
}

impl Edits<'_> {
    /// Whether the client's field of this name is removed. `_` and `-` are equal: applications behind CGI, WSGI and
    /// the like see `X_Real_IP` as `X-Real-IP`.
    pub fn drops(&self, name: &[u8]) -> bool {
        self.dropped.iter().chain(self.dropped_too).any(|dropped| is_alike(name, dropped.as_bytes()))
            || self.left_out.iter().any(|dropped| is_alike(name, dropped))
    }
}

fn is_alike(name: &[u8], dropped: &[u8]) -> bool {
    let alike = |(&a, &b): (&u8, &u8)| a.eq_ignore_ascii_case(&b) || (a == b'_' && b == b'-');
    name.len() == dropped.len() && name.iter().zip(dropped).all(alike)
}

/// The remaining rules of a route: response fields, CORS, error pages. Dropping it releases what the request held,
/// such as its concurrency permit.
pub trait Finish {
    /// Changes a response before it is sent. If it replaces the body of an upstream's response, for example with an
    /// error page, the body is no longer a [`Body::Pushed`](flatout_engine::Body::Pushed), and the upstream's body is
    /// not wanted.
    fn finish(&self, response: &mut Response, by: MadeBy);

    /// The same for a stored upstream response, which may also exist in compressed forms.
    fn finish_stored(&self, response: &mut Response, _stored: &dyn Stored) {
        self.finish(response, MadeBy::Upstream);
    }
}

/// A stored response.
pub trait Stored {
    /// Its body in a coding, if that form is stored. `plain` is the body of the response to be sent.
    fn compressed(&self, coding: Coding, plain: &[u8]) -> Option<Bytes>;
}

/// The origin of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MadeBy {
    /// From an upstream.
    Upstream,
    /// From this server: a refusal, a file, 502.
    Here,
}

/// A question to an auth service.
pub struct Question<'a> {
    /// The route's settings.
    pub authority: &'a ForwardAuth,
    /// The target of the request to it.
    pub target: &'a [u8],
    /// The request that it is about.
    pub head: &'a Head<'a>,
    /// The client.
    pub client: Client,
}

/// The decision of an auth service.
pub enum Opinion {
    /// The request is allowed. The fields are those of the response that the route selects
    /// ([`ForwardAuth::response_fields`]).
    Allowed(Vec<(String, Vec<u8>)>),
    /// The request is refused with this response.
    Refused(Box<Response>),
}
