//! A request that outlives its turn, for middleware that waits before it calls the rest of the chain.

use std::future::pending;
use std::net::SocketAddr;
use std::rc::Rc;

use bytes::Bytes;
use flatout_engine::{BodyMemory, BodyStream, ExchangeKey, Reply, Request, RequestBody, Response, Tls, say};
use flatout_wire::h1::Trailers;
use flatout_wire::head::parse_kept;
use flatout_wire::{Framing, Status};
use http::Extensions;

use crate::chain::Rest;
use crate::scope::WorkerLocal;
use crate::{Context, Problem, Respond};

/// Everything a handler can use of a request.
pub(crate) struct Owned {
    pub(super) head: Vec<u8>,
    /// `None`: as the head has it.
    pub(super) framing: Option<Framing>,
    pub(super) path: String,
    pub(crate) body: OwnedBody,
    pub(super) link: Link,
    pub(super) extensions: Extensions,
    pub(crate) local: Rc<WorkerLocal>,
}

/// What a request that outlives its turn knows of its connection.
#[derive(Clone, Copy)]
pub(crate) struct Link {
    /// Of its exchange.
    key: ExchangeKey,
    pub(super) peer: Option<SocketAddr>,
    pub(super) listener: u16,
    tls: Option<Tls<'static>>,
}

pub(crate) enum OwnedBody {
    /// Its bytes, trailers, and memory.
    Whole(Bytes, Trailers, Option<BodyMemory>),
    Stream(BodyStream),
}

impl Link {
    /// Keeps the request's exchange.
    pub(super) fn of(context: &Context<'_>) -> Link {
        let tls = context.request.tls.map(|tls| if tls.is_early() { Tls::EARLY } else { Tls::UNKNOWN });
        Link { key: context.request.park(), peer: context.peer(), listener: context.request.listener, tls }
    }
}

impl Owned {
    /// Copies the head and the available part of the body.
    pub(crate) fn of(context: &mut Context<'_>) -> Owned {
        Owned {
            head: context.head().bytes().to_vec(),
            // A head of HTTP/2 does not tell.
            framing: Some(context.head().framing),
            path: context.path().to_owned(),
            body: OwnedBody::of(std::mem::replace(&mut context.request.body, RequestBody::NONE)),
            link: Link::of(context),
            extensions: std::mem::take(&mut context.extensions),
            local: context.local.own(),
        }
    }

    /// Runs the rest of the chain. A handler that responds by the key of its exchange, or takes its connection over, does so:
    /// then what this returns never ends, and middleware does not see the response. Without a server it gets 501.
    pub(crate) fn call(self, rest: &Rest, response: &mut Response) -> Reply {
        let Owned { head: head_bytes, framing, path, body, link, extensions, local } = self;
        let mut fields = Vec::new();
        let framing = match &body {
            // It was collected, whatever its framing was.
            OwnedBody::Whole(bytes, _, Some(_)) if bytes.is_empty() => Some(Framing::None),
            OwnedBody::Whole(bytes, _, Some(_)) => Some(Framing::Length(bytes.len() as u64)),
            _ => framing,
        };
        let Some(head) = parse_kept(&head_bytes, &mut fields, framing) else {
            say(format_args!("middleware produced an invalid request head"));
            Problem::new(Status::INTERNAL_SERVER_ERROR).respond(response);
            return Reply::Now;
        };
        // The memory is released when the handler has taken its arguments, as that of other requests.
        let (whole, trailers, _memory, stream) = match body {
            OwnedBody::Whole(bytes, trailers, memory) => (bytes, trailers, memory, None),
            OwnedBody::Stream(stream) => (Bytes::new(), Vec::new(), None, Some(stream)),
        };
        let body = match stream {
            Some(stream) => RequestBody::Stream(stream),
            None => RequestBody::Whole { bytes: &whole, trailers: &trailers },
        };
        let mut request = Request::resumed(head, path.as_bytes(), body, link.peer, link.listener, &link.key);
        request.tls = link.tls;
        let routes = local.routes.clone();
        let mut context = Context {
            request,
            body_is_taken: false,
            extensions,
            path: &path,
            path_form: routes.path_form(),
            params: routes.params(head.method, &path),
            place: rest.place(),
            local: &local,
        };
        match rest.call(&mut context, response) {
            reply @ (Reply::Now | Reply::Later(_)) => reply,
            reply => match (reply, local.lane().filter(|lane| lane.is_open(link.key))) {
                (Reply::Leave(takeover), Some(lane)) => {
                    lane.take_over(link.key, &head_bytes, takeover);
                    Reply::Later(Box::pin(pending()))
                }
                (_, Some(_)) => Reply::Later(Box::pin(pending())),
                (_, None) => {
                    *response = Response::new();
                    let detail = "this handler needs a connection: test it over a socket";
                    Problem::new(Status::NOT_IMPLEMENTED).detail(detail).respond(response);
                    Reply::Now
                }
            },
        }
    }
}

impl OwnedBody {
    fn of(body: RequestBody<'_>) -> OwnedBody {
        match body {
            RequestBody::Whole { bytes, trailers } => {
                OwnedBody::Whole(Bytes::copy_from_slice(bytes), trailers.to_vec(), None)
            }
            RequestBody::Stream(stream) => OwnedBody::Stream(stream),
        }
    }
}
