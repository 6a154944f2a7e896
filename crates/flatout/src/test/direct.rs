//! Calls of one worker in this thread.

use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use flatout_engine::{
    Body, BodyPlan, BodyStream, FileRange, Part, Reply, Request, RequestBody, Response, Service,
};
use flatout_wire::Status;
use flatout_wire::head::{HeadLimits, parse};
use flatout_wire::target::{self, PathForm};
use http_body::Body as _;
use http_body_util::BodyExt;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::LocalSet;

use super::{Answer, check_length};
use crate::lifetime::Lifetime;
use crate::routes::{Routes, RoutesService};
use crate::{App, Result};

/// One worker of an application.
pub(super) struct Direct {
    service: RoutesService,
    runtime: Runtime,
    draining: watch::Sender<bool>,
}

impl Direct {
    pub(super) fn new(mut app: App) -> Result<Direct> {
        if let Some(fault) = app.fault.take() {
            return Err(fault);
        }
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| {
                crate::Error::Server(flatout_engine::Error::System("a runtime".to_owned(), error))
            })?;
        let mut lifetime = std::mem::take(&mut app.lifetime);
        lifetime.open()?;
        LocalSet::new().block_on(&runtime, Lifetime::start(lifetime.starts))?;
        let (draining, receiver) = watch::channel(false);
        let service = Arc::new(Routes::of(app)?).service(receiver, None);
        Ok(Direct { service, runtime, draining })
    }

    pub(super) fn drain(&self) {
        self.draining.send_replace(true);
    }

    pub(super) fn send(&self, head: &str, body: &[u8]) -> Answer {
        LocalSet::new().block_on(&self.runtime, async {
            let mut response = respond(&self.service, head, body).await;
            let body = response.take_body();
            let is_streamed = matches!(body, Body::Stream(_));
            let length = length_of(&response, &body);
            let body = collect(body).await;
            if head.starts_with("HEAD ") || response.status().is_bodyless() {
                return answer(&response, Bytes::new());
            }
            // Of a body in memory, a server sends the length that it has.
            if let Some(length) = length.filter(|_| is_streamed || body.is_empty()) {
                check_length(length, body.len() as u64);
            }
            answer(&response, body)
        })
    }

    /// Passes the body on piece by piece, until `take` has enough.
    pub(super) fn read(&self, head: &str, body: &[u8], take: &mut dyn FnMut(&[u8]) -> bool) -> Answer {
        LocalSet::new().block_on(&self.runtime, async {
            let mut response = respond(&self.service, head, body).await;
            match response.take_body() {
                Body::Stream(mut body) => {
                    while let Some(frame) = body.frame().await {
                        let frame = frame.expect("the body does not fail");
                        if frame.data_ref().is_some_and(|data| take(data)) {
                            break;
                        }
                    }
                }
                body => drop(take(&collect(body).await)),
            }
            answer(&response, Bytes::new())
        })
    }
}

async fn respond(service: &RoutesService, head: &str, body: &[u8]) -> Response {
    let mut fields = Vec::new();
    let head = parse(head.as_bytes(), &mut fields, &HeadLimits::default());
    let head = head.expect("the request is well-formed").expect("the request is whole");
    let mut scratch = Vec::new();
    let path = match service.path_form() {
        PathForm::Strict => target::normal_path(head.path(), &mut scratch),
        PathForm::Forward => target::forward_path(head.path(), &mut scratch),
    };
    let path = path.expect("the path has a normal form");
    let streams = !body.is_empty() && matches!(service.prepare(&head, path, 0).body, BodyPlan::Stream { .. });
    let body = match streams {
        true => RequestBody::Stream(BodyStream::whole(Bytes::copy_from_slice(body))),
        false => RequestBody::Whole { bytes: body, trailers: &[] },
    };
    let mut response = Response::new();
    if let Reply::Later(future) = service.call(Request::detached(head, path, body), &mut response) {
        response = future.await;
    }
    // As a server does: a client takes 1xx for an interim response.
    if response.status().code() < 200 && !matches!(response.body(), Body::Take(_)) {
        response.set_status(Status::INTERNAL_SERVER_ERROR).set_body(Body::Empty);
    }
    response
}

/// The length that a server would announce, if it is not that of the body itself.
fn length_of(response: &Response, body: &Body) -> Option<u64> {
    match body {
        Body::Stream(body) => body.size_hint().exact().or(response.declared_length()),
        _ => response.declared_length(),
    }
}

fn answer(response: &Response, body: Bytes) -> Answer {
    let mut fields = Vec::new();
    response.write_fields(&mut fields);
    Answer { status: response.status(), fields, body }
}

async fn collect(body: Body) -> Bytes {
    match body {
        Body::Shared(bytes) => bytes,
        Body::Static(bytes) => Bytes::from_static(bytes),
        Body::Stream(body) => body.collect().await.expect("the body does not fail").to_bytes(),
        Body::File(range) => read(&range),
        Body::Parts(parts) => {
            let bytes = parts.iter().flat_map(|part| match part {
                Part::Bytes(bytes) => bytes.clone(),
                Part::File(range) => read(range),
            });
            bytes.collect()
        }
        Body::Empty | Body::Buffered | Body::Pushed | Body::Take(_) => Bytes::new(),
    }
}

fn read(range: &FileRange) -> Bytes {
    let mut bytes = vec![0; usize::try_from(range.bytes).expect("a file that fits memory")];
    range.file.read_exact_at(&mut bytes, range.offset).expect("the file is as long as promised");
    bytes.into()
}
