//! A request that outlives its turn, for middleware that waits before it calls the rest of the chain.

use std::net::SocketAddr;
use std::rc::Rc;

use bytes::Bytes;
use flatout_engine::{BodyStream, Reply, Request, RequestBody, Response, say};
use flatout_wire::Status;
use flatout_wire::head::parse_kept;
use http::Extensions;

use crate::chain::Rest;
use crate::scope::WorkerLocal;
use crate::{Context, Problem, Respond};

/// Everything a handler can use of a request, without its connection.
pub(super) struct Owned {
    pub(super) head: Vec<u8>,
    pub(super) path: String,
    pub(super) body: OwnedBody,
    pub(super) peer: Option<SocketAddr>,
    pub(super) extensions: Extensions,
    pub(super) local: Rc<WorkerLocal>,
}

pub(super) enum OwnedBody {
    Whole(Bytes, Vec<(Vec<u8>, Vec<u8>)>),
    Stream(BodyStream),
}

impl Owned {
    /// Copies the head and the available part of the body.
    pub(super) fn of(context: &mut Context<'_>) -> Owned {
        Owned {
            head: context.head().bytes().to_vec(),
            path: context.path().to_owned(),
            body: OwnedBody::of(std::mem::replace(&mut context.request.body, RequestBody::NONE)),
            peer: context.peer(),
            extensions: std::mem::take(&mut context.extensions),
            local: context.local.own(),
        }
    }

    /// Runs the rest of the chain. The request no longer has a connection: a handler that needs one responds with 501.
    pub(super) fn call(self, rest: &Rest, response: &mut Response) -> Reply {
        let Owned { head, path, body, peer, extensions, local } = self;
        let mut fields = Vec::new();
        let Some(head) = parse_kept(&head, &mut fields, None) else {
            say(format_args!("middleware produced an invalid request head"));
            Problem::new(Status::INTERNAL_SERVER_ERROR).respond(response);
            return Reply::Now;
        };
        let (whole, trailers, stream) = match body {
            OwnedBody::Whole(bytes, trailers) => (bytes, trailers, None),
            OwnedBody::Stream(stream) => (Bytes::new(), Vec::new(), Some(stream)),
        };
        let body = match stream {
            Some(stream) => RequestBody::Stream(stream),
            None => RequestBody::Whole { bytes: &whole, trailers: &trailers },
        };
        let mut request = Request::detached(head, path.as_bytes(), body);
        request.peer = peer;
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
            Reply::Parked | Reply::Leave(_) => {
                say(format_args!(
                    "a handler takes over its connection, which is not possible in middleware that waits"
                ));
                *response = Response::new();
                let detail = "the connection cannot be taken over here";
                Problem::new(Status::NOT_IMPLEMENTED).detail(detail).respond(response);
                Reply::Now
            }
        }
    }
}

impl OwnedBody {
    fn of(body: RequestBody<'_>) -> OwnedBody {
        match body {
            RequestBody::Whole { bytes, trailers } => {
                OwnedBody::Whole(Bytes::copy_from_slice(bytes), trailers.to_vec())
            }
            RequestBody::Stream(stream) => OwnedBody::Stream(stream),
        }
    }
}
