//! A request that outlives its turn, for middleware that waits before it calls the rest of the chain.

use std::future::pending;
use std::rc::Rc;

use flatout_engine::{OwnedRequest, Reply, RequestBody, Response, say};
use flatout_wire::Status;
use http::Extensions;

use crate::chain::Rest;
use crate::scope::WorkerLocal;
use crate::{Context, Problem, Respond};

/// Everything a handler can use of a request.
pub(crate) struct Owned {
    pub(crate) request: OwnedRequest,
    pub(super) extensions: Extensions,
    pub(crate) local: Rc<WorkerLocal>,
}

impl Owned {
    /// Copies the head and the available part of the body.
    pub(crate) fn of(context: &mut Context<'_>) -> Owned {
        let body = std::mem::replace(&mut context.request.body, RequestBody::NONE);
        let copied = OwnedRequest::without_body(&context.request);
        let path = context.path().as_bytes().to_vec();
        Owned {
            request: OwnedRequest { body: body.into(), path, ..copied },
            extensions: std::mem::take(&mut context.extensions),
            local: context.local.own(),
        }
    }

    /// Runs the rest of the chain. A handler that responds by the key of its exchange, or takes its connection over, does so:
    /// then what this returns never ends, and middleware does not see the response. Without a server it gets 501.
    pub(crate) fn call(self, rest: &Rest, response: &mut Response) -> Reply {
        let Owned { request, extensions, local } = self;
        // It was a text when the request came.
        let path = String::from_utf8_lossy(&request.path).into_owned();
        let key = request.origin.key();
        let called = request.resume(|request| {
            let (head, routes) = (request.head, local.routes.clone());
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
            match rest.call(&mut context, &mut *response) {
                reply @ (Reply::Now | Reply::Later(_)) => reply,
                reply => match (reply, local.lane().filter(|lane| lane.is_open(key))) {
                    (Reply::Leave(takeover), Some(lane)) => {
                        lane.take_over(key, head.bytes(), takeover);
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
        });
        called.unwrap_or_else(|| {
            say(format_args!("middleware produced an invalid request head"));
            Problem::new(Status::INTERNAL_SERVER_ERROR).respond(response);
            Reply::Now
        })
    }
}
