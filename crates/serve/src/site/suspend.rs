//! Suspended requests, which continue where they were: after a delay, a password check, a response of an auth
//! service, or when a permit is free.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use flatout_engine::{BodyStream, ExchangeKey, Reply, Request, RequestBody, Response, Tls};
use flatout_wire::head::parse_kept;
use flatout_wire::{Framing, Status};
use tokio::sync::oneshot;

use super::answer::{Answers, Progress, Refusal, Step};
use super::concurrency::Permit;
use super::fields::push_line;
use super::forward::Opinion;
use super::rate::Waits;

/// What a request waits for.
pub(crate) enum Waiting {
    /// The check of this name's password; if it is wrong, this challenge is sent.
    Password(oneshot::Receiver<bool>, Vec<u8>, String),
    Opinion(oneshot::Receiver<Opinion>),
    /// A delay to an even rate.
    Pace(Waits),
    Room(oneshot::Receiver<Permit>, Duration),
}

/// A request with its own memory.
struct Kept {
    head: Vec<u8>,
    framing: Framing,
    path: Vec<u8>,
    body: Body,
    peer: Option<SocketAddr>,
    is_tls: bool,
    is_early: bool,
    key: ExchangeKey,
}

enum Body {
    Whole { bytes: Vec<u8>, trailers: Vec<(Vec<u8>, Vec<u8>)> },
    Stream(BodyStream),
}

/// Suspends a request until its event, then continues it. When the client disconnects, the future is dropped, which
/// releases what the request held.
pub(crate) fn suspend(
    answers: Rc<Answers>,
    request: Request<'_>,
    progress: Progress,
    waiting: Waiting,
) -> Reply {
    let kept = Kept {
        key: request.park(),
        head: request.head.bytes().to_vec(),
        framing: request.head.framing,
        path: request.path.to_vec(),
        peer: request.peer,
        is_tls: request.tls.is_some(),
        is_early: request.tls.is_some_and(|tls| tls.is_early()),
        body: match request.body {
            RequestBody::Whole { bytes, trailers } => {
                Body::Whole { bytes: bytes.to_vec(), trailers: trailers.to_vec() }
            }
            RequestBody::Stream(stream) => Body::Stream(stream),
        },
    };
    Reply::Later(Box::pin(async move {
        let mut progress = progress;
        waiting.over(&mut progress).await;
        let (signal, silence) = oneshot::channel();
        progress.needs.signal = Some(signal);
        let mut response = Response::new();
        match go_on(&answers, kept, progress, &mut response) {
            Reply::Now => response,
            Reply::Later(future) => future.await,
            Reply::Parked => {
                // The response comes by key. The response of this future is discarded, unless the forwarder gave up
                // without one.
                let _ = silence.await;
                Response::with_status(Status::BAD_GATEWAY)
            }
            // The request's bytes no longer belong to the connection.
            Reply::Leave(_) => Response::with_status(Status::INTERNAL_SERVER_ERROR),
        }
    }))
}

fn go_on(answers: &Rc<Answers>, kept: Kept, progress: Progress, response: &mut Response) -> Reply {
    let mut fields = Vec::new();
    let Some(head) = parse_kept(&kept.head, &mut fields, Some(kept.framing)) else {
        response.set_status(Status::INTERNAL_SERVER_ERROR);
        return Reply::Now;
    };
    let body = match kept.body {
        Body::Whole { ref bytes, ref trailers } => RequestBody::Whole { bytes, trailers },
        Body::Stream(stream) => RequestBody::Stream(stream),
    };
    let mut request = Request::resumed(head, &kept.path, body, kept.peer, &kept.key);
    // Early requests are still treated as early, although the handshake may be complete by now.
    request.tls = kept.is_tls.then_some(if kept.is_early { Tls::EARLY } else { Tls::UNKNOWN });
    Answers::go_on(answers, request, progress, response)
}

impl Waiting {
    /// Waits, and stores the result in `progress`.
    async fn over(self, progress: &mut Progress) {
        match self {
            Waiting::Password(answered, name, challenge) => match answered.await {
                Ok(true) => {
                    progress.identity.user = name;
                    progress.at = Step::Authority;
                }
                Ok(false) => progress.refusal = Some(Refusal::Password(challenge)),
                Err(_) => progress.refusal = Some(Refusal::Busy),
            },
            Waiting::Opinion(said) => match said.await {
                Ok(Opinion::Allowed(fields)) => {
                    for (name, value) in &fields {
                        push_line(name.as_bytes(), value, &mut progress.authority_lines);
                    }
                    progress.at = Step::Room(0);
                }
                Ok(Opinion::Refused(response)) => progress.refusal = Some(Refusal::Response(response)),
                Err(_) => progress.refusal = Some(Refusal::Status(Status::BAD_GATEWAY)),
            },
            Waiting::Pace(waits) => tokio::time::sleep(waits.time).await,
            Waiting::Room(permit, time_max) => match tokio::time::timeout(time_max, permit).await {
                Ok(Ok(permit)) => progress.enter(permit),
                Ok(Err(_)) | Err(_) => progress.refusal = Some(Refusal::Busy),
            },
        }
    }
}
