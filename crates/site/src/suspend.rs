//! Suspended requests, which resume at a step (`steps.rs`): after a delay, a password check, a response of an auth
//! service, or when a permit is free.

use std::future::{Future, pending};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use flatout_engine::{BodyFault, ExchangeKey, Lane, OwnedBody, OwnedRequest, Reply, Request, Response, bug};
use flatout_lane::clock;
use flatout_wire::Status;
use tokio::sync::oneshot;

use super::compiled::Authority;
use super::concurrency::{Gate, Permit};
use super::fields::push_line;
use super::limit_status::LimitStatus;
use super::rate::PaceDelay;
use super::steps::{Progress, Refusal};
use super::worker::SiteWorker;
use flatout_gateway::{Abandoned, AuthDecision, complete};

/// What a suspended request waits for.
pub(crate) enum Event {
    /// The check of this name's password; if it is wrong, this challenge is sent.
    Password(oneshot::Receiver<bool>, Vec<u8>, String),
    AuthDecision(oneshot::Receiver<AuthDecision>, Arc<Authority>),
    /// A delay to an even rate.
    Pace(PaceDelay),
    Permit(oneshot::Receiver<Permit>, Arc<Gate>),
    /// A response, of a folder that cannot give it at once.
    Response(Pin<Box<dyn Future<Output = Response>>>),
    /// The body, for whose client the guards have decided, and its limit.
    Body(Option<Lane>, u64),
}

/// Suspends a request until its event, then resumes it at its step. After `time_max` the response is 504. When the client disconnects,
/// the future is dropped, which releases what the request held.
pub(crate) fn suspend(
    worker: Rc<SiteWorker>,
    request: Request<'_>,
    progress: Progress,
    event: Event,
    time_max: Option<Duration>,
) -> Reply {
    // Its connection is not known to it later.
    progress.identity.noted.tls(request.tls);
    let suspended = OwnedRequest::of(request);
    Reply::Later(Box::pin(async move {
        let (mut progress, mut suspended) = (progress, suspended);
        let is_late = match time_max {
            Some(time_max) => {
                clock::timeout(time_max, event.over(&mut progress, &mut suspended.body)).await.is_err()
            }
            None => {
                event.over(&mut progress, &mut suspended.body).await;
                false
            }
        };
        if is_late {
            progress.refusal = Some(Refusal::Status(Status::GATEWAY_TIMEOUT));
        }
        let (signal, abandoned) = oneshot::channel();
        progress.needs.signal = Some(signal);
        let mut response = Response::new();
        let key = suspended.origin.key();
        let reply = resume(&worker, suspended, progress, &mut response);
        complete_or_leave(&worker, key, reply, response, abandoned).await
    }))
}

/// The response of a request that has waited, or is continued for an upstream. It has not its connection: to close that is left to its
/// exchange.
pub(crate) async fn complete_or_leave(
    worker: &SiteWorker,
    key: ExchangeKey,
    reply: Reply,
    response: Response,
    abandoned: Abandoned,
) -> Response {
    match (reply, &worker.lane) {
        (Reply::Leave(takeover), Some(lane)) => {
            lane.take_over(key, b"", takeover);
            pending().await
        }
        (reply, _) => complete(reply, response, abandoned).await,
    }
}

fn resume(
    worker: &Rc<SiteWorker>,
    suspended: OwnedRequest,
    progress: Progress,
    response: &mut Response,
) -> Reply {
    suspended.resume(|request| worker.run(request, progress, &mut *response)).unwrap_or_else(|| {
        bug!("the head of a suspended request cannot be parsed again");
        response.set_status(Status::INTERNAL_SERVER_ERROR);
        Reply::Now
    })
}

impl Event {
    /// Waits, and stores the result in `progress`; that of a body in `body`.
    async fn over(self, progress: &mut Progress, body: &mut OwnedBody) {
        match self {
            Event::Password(answered, name, challenge) => match answered.await {
                Ok(true) => progress.identity.user = name,
                Ok(false) => progress.refusal = Some(Refusal::Password(challenge)),
                Err(_) => progress.refusal = Some(Refusal::BUSY),
            },
            Event::AuthDecision(decision, authority) => match decision.await {
                Ok(AuthDecision::Allowed(fields)) => {
                    for (name, value) in fields.iter().filter(|(name, _)| authority.adds(name)) {
                        push_line(name.as_bytes(), value, &mut progress.authority_lines);
                    }
                    progress.identity.auth_fields.splice(0..0, fields);
                }
                Ok(AuthDecision::Refused(response)) => {
                    let signs_in = response.status() == Status::UNAUTHORIZED && authority.sign_in.is_some();
                    progress.refusal = Some(match signs_in {
                        true => Refusal::SignIn(authority),
                        false => Refusal::Response(response),
                    });
                }
                Err(_) => progress.refusal = Some(Refusal::Status(Status::BAD_GATEWAY)),
            },
            Event::Body(lane, bytes_max) => {
                if let Err(fault) = body.collect(bytes_max, lane.as_ref()).await {
                    progress.refusal = Some(refusal(fault));
                }
            }
            Event::Response(response) => progress.made = Some(Box::new(response.await)),
            Event::Pace(waits) => clock::sleep(waits.time).await,
            Event::Permit(permit, gate) => match clock::timeout(gate.queue_time_max, permit).await {
                Ok(Ok(permit)) => progress.enter(permit, LimitStatus::Passed),
                Ok(Err(_)) | Err(_) => {
                    progress.turn_away();
                    progress.refusal = Some(Refusal::Busy(gate.status));
                }
            },
        }
    }
}

/// The response to a request whose body cannot be read.
fn refusal(fault: BodyFault) -> Refusal {
    match fault {
        BodyFault::TooLarge => Refusal::Status(Status::CONTENT_TOO_LARGE),
        BodyFault::TooSlow => Refusal::Status(Status::REQUEST_TIMEOUT),
        BodyFault::Starved => Refusal::BUSY,
        _ => Refusal::Status(Status::BAD_REQUEST),
    }
}
