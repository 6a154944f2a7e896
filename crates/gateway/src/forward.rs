//! Requests for an upstream.

use std::rc::Rc;
use std::time::Duration;

use flatout_engine::{BodyPlan, ExchangeKey, Reply, Request, Response};
use flatout_wire::Head;
use tokio::sync::oneshot;

use super::{AuthDecision, AuthQuery, Caching, Client, Edits, Finish};

/// Forwards requests, on one worker.
pub trait Forwarding {
    /// How the body after this head is to be read; `bytes_max` is the route's limit, `None` the server's.
    fn body(&self, to: &Forward, head: &Head<'_>, bytes_max: Option<u64>) -> BodyPlan;

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

    /// The time that is left to a request until its limit as a whole (`request-time`), if it has one.
    fn time_left(&self, _to: &Forward, _key: ExchangeKey) -> Option<Duration> {
        None
    }

    /// Asks an auth service whether a request is allowed; its decision is sent to `then`, now or later. If `then` is
    /// dropped, the auth service could not be asked. If its receiver is, nobody waits for the decision any more.
    fn ask(&self, query: AuthQuery<'_>, then: oneshot::Sender<AuthDecision>);
}

/// How the requests of one route are forwarded.
#[derive(Debug, Clone, PartialEq)]
pub struct Forward {
    /// The index of the upstream in the plan.
    pub upstream: usize,
    /// The value of `Host`.
    pub host: Host,
    /// Whether `X-Forwarded-For`, `-Proto` and `-Host` are sent.
    pub x_forwarded: bool,
    /// Whether `Forwarded` (RFC 7239) is sent.
    pub forwarded: bool,
    /// Our name in `Via`, in both directions; `None` sends none.
    pub via: Option<String>,
    /// Which bodies of requests are collected before the upstream is contacted.
    pub buffer_requests: BufferRequests,
    /// Bytes of each response that a file may take while its client is slower than the upstream; 0: the upstream waits.
    pub buffer_response_bytes: u64,
    /// The trailer fields of requests that are passed on, in lower case; others are dropped.
    pub request_trailers: Vec<String>,
    /// Whether the upstream gets the path in its normal form instead of as the client sent it.
    pub normal_path: bool,
    /// The protocols in `Upgrade` that are forwarded, in lower case, or [`Forward::ANY_UPGRADE`]; the connection becomes a tunnel if the upstream
    /// agrees. No rule sees what is in a tunnel, so protocols that carry requests, such as `h2c`, let clients past the
    /// rules. Requests with a body, and those whose response may be stored, are never upgraded.
    pub upgrade: Vec<String>,
    /// Whether fields with `_` in their names are forwarded. Some applications take `X_User` for `X-User`.
    pub underscores: bool,
    /// Which [private fields](crate::private) of responses are followed. Others are removed.
    pub private: TrustedFields,
    /// Where copies of requests go. Nobody waits for their responses, which are dropped.
    pub mirrors: Vec<Mirror>,
    /// The server that the request names, such as `http://10.0.0.7:8000`, of an upstream whose servers are named so.
    pub server: Option<String>,
}

/// An upstream that gets copies of requests. Those with a body that is not collected before the request is forwarded, and those that
/// change the protocol, are not copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mirror {
    /// The index of the upstream in the plan.
    pub upstream: usize,
    /// The share of requests that is copied: so many,
    pub numerator: u32,
    /// of so many.
    pub denominator: u32,
}

/// The private fields of an upstream that a route follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TrustedFields {
    /// `X-Accel-Redirect`, `X-Accel-Expires`, `X-Accel-Charset` and `X-Accel-Limit-Rate`.
    pub accel: bool,
    /// `X-Sendfile`.
    pub sendfile: bool,
}

impl TrustedFields {
    /// Whether the proxy removes the field of this name. Those that it leaves are for a cache and for the route's [`Finish`], which
    /// removes them.
    #[inline]
    pub fn removes(self, name: &[u8]) -> bool {
        use crate::private::{EXPIRES, LIMIT_RATE, REDIRECT, SENDFILE, is_private};

        let is = |this: &str| name.eq_ignore_ascii_case(this.as_bytes());
        let is_accel = || is(REDIRECT) || is(EXPIRES) || is(LIMIT_RATE);
        let is_followed = || (self.accel && is_accel()) || (self.sendfile && is(SENDFILE));
        is_private(name) && !is_followed()
    }

    /// Whether any is followed.
    pub fn any(self) -> bool {
        self.accel || self.sendfile
    }
}

/// Which bodies of requests are collected before the upstream is contacted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BufferRequests {
    /// None: the head is sent at once.
    None,
    /// Short ones, which are sent together with their head.
    Short,
    /// All.
    All,
}

/// The value of `Host` for an upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Host {
    /// The client's.
    Kept,
    /// The server's address.
    Upstream,
    /// This one.
    Set(String),
}

impl Forward {
    /// Bytes of each response that a file may take, by default.
    pub const BUFFER_RESPONSE_BYTES: u64 = 1 << 30;

    /// In [`Forward::upgrade`], it stands for all protocols but those that carry requests.
    pub const ANY_UPGRADE: &str = "*";

    /// To this upstream with default settings.
    pub fn to(upstream: usize) -> Forward {
        Forward {
            upstream,
            host: Host::Kept,
            x_forwarded: true,
            forwarded: false,
            via: None,
            buffer_requests: BufferRequests::Short,
            buffer_response_bytes: Forward::BUFFER_RESPONSE_BYTES,
            request_trailers: Vec::new(),
            normal_path: false,
            upgrade: vec!["websocket".to_owned()],
            underscores: false,
            private: TrustedFields::default(),
            mirrors: Vec::new(),
            server: None,
        }
    }
}

/// What is forwarded, and how. All request rules of the route have been applied.
pub struct Forwarded<'a> {
    /// The route's settings.
    pub forward: &'a Forward,
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
