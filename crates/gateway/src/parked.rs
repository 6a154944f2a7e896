//! Requests that a task passes on to others, who respond by the key of the exchange.

use std::rc::Rc;

use flatout_engine::{ExchangeKey, Reply, Response};
use flatout_wire::Status;
use tokio::sync::oneshot;

use super::finish::{Finish, Redirection, ResponseOrigin, Stored};

/// Ends when nobody can respond to a request any more, because its [`Finish`] was dropped.
pub type Abandoned = oneshot::Receiver<()>;

/// The rules for a response, with a signal when they are dropped.
struct SignallingFinish {
    inner: Rc<dyn Finish>,
    _signal: oneshot::Sender<()>,
}

impl Finish for SignallingFinish {
    fn finish(&self, response: &mut Response, by: ResponseOrigin) {
        self.inner.finish(response, by);
    }

    fn finish_stored(&self, response: &mut Response, stored: &dyn Stored) {
        self.inner.finish_stored(response, stored);
    }

    fn redirect(&self, held: Rc<dyn Finish>, exchange: ExchangeKey, response: &mut Response) -> Redirection {
        self.inner.redirect(held, exchange, response)
    }
}

/// The same rules, for a request that a task passes on. Whoever responds holds them until then.
pub fn signalling(finish: Rc<dyn Finish>) -> (Rc<dyn Finish>, Abandoned) {
    let (signal, abandoned) = oneshot::channel();
    (Rc::new(SignallingFinish { inner: finish, _signal: signal }), abandoned)
}

/// The response of a task that has passed its request on, with this result; `response` is what was written for [`Reply::Now`]. If the
/// request is parked, the response comes by key, and this one is discarded, unless the request was abandoned: then it is 502.
pub async fn complete(reply: Reply, response: Response, abandoned: Abandoned) -> Response {
    match reply {
        Reply::Now => response,
        Reply::Later(future) => future.await,
        Reply::Parked => {
            let _ = abandoned.await;
            Response::with_status(Status::BAD_GATEWAY)
        }
        // The request's bytes no longer belong to the connection.
        Reply::Leave(_) => Response::with_status(Status::INTERNAL_SERVER_ERROR),
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    struct NoRules;

    impl Finish for NoRules {
        fn finish(&self, _: &mut Response, _: ResponseOrigin) {}
    }

    #[test]
    fn an_abandoned_request_is_answered_with_502() {
        let (finish, abandoned) = signalling(Rc::new(NoRules));
        let mut task = pin!(complete(Reply::Parked, Response::new(), abandoned));
        let mut context = Context::from_waker(Waker::noop());
        let other = finish.clone();
        drop(finish);
        assert!(task.as_mut().poll(&mut context).is_pending(), "someone may still respond");
        drop(other);
        let Poll::Ready(response) = task.poll(&mut context) else { panic!("the client waits forever") };
        assert_eq!(response.status(), Status::BAD_GATEWAY);
    }

    #[test]
    fn a_response_that_is_ready_is_sent() {
        let (_finish, abandoned) = signalling(Rc::new(NoRules));
        let task = pin!(complete(Reply::Now, Response::with_status(Status::NOT_FOUND), abandoned));
        let mut context = Context::from_waker(Waker::noop());
        let Poll::Ready(response) = task.poll(&mut context) else { panic!("it is ready") };
        assert_eq!(response.status(), Status::NOT_FOUND);
    }
}
