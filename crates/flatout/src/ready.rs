//! Futures that are ready when they are first polled: most are, and cost no allocation then.
//!
//! A future that waits has to be boxed, and before it is polled it is unknown whether it will wait. So each worker keeps
//! the box of a handler's last future that was ready, and moves the next future of that handler into it:
//!
//! ```text
//! future ──> spare box ── poll ── ready ──> response; the box is spare again
//!                            └── pending ──> Reply::Later, with the box
//! ```

use std::any::Any;
use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context as TaskContext, Poll, Waker, ready};

use flatout_engine::{Reply, Response};
use pin_project_lite::pin_project;

use crate::{Context, Respond};

/// Names a handler in the [`Spares`] of every worker.
#[derive(Clone, Copy)]
pub(crate) struct SpareId(usize);

/// One worker's spare boxes, by [`SpareId`]: each is an `Option<Pin<Box<Slot<F>>>>`. As many as there are handlers.
#[derive(Default)]
pub(crate) struct Spares(RefCell<Vec<Option<Box<dyn Any>>>>);

pin_project! {
    /// A place for a future.
    struct Slot<F> {
        #[pin]
        future: Option<F>,
    }
}

impl SpareId {
    pub(crate) fn new() -> SpareId {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        SpareId(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

impl Spares {
    #[inline]
    fn take<F: 'static>(&self, id: SpareId) -> Option<Pin<Box<Slot<F>>>> {
        self.0.borrow_mut().get_mut(id.0)?.as_mut()?.downcast_mut::<Option<Pin<Box<Slot<F>>>>>()?.take()
    }

    /// A value of this handler on this worker, made on first use.
    #[cfg(any(feature = "files", feature = "proxy", feature = "push"))]
    pub(crate) fn keep<T: 'static>(&self, id: SpareId, make: impl FnOnce() -> T) -> std::rc::Rc<T> {
        let kept = self
            .0
            .borrow()
            .get(id.0)
            .and_then(Option::as_ref)
            .and_then(|kept| kept.downcast_ref::<std::rc::Rc<T>>().cloned());
        kept.unwrap_or_else(|| {
            let made = std::rc::Rc::new(make());
            first(&mut self.0.borrow_mut(), id, Box::new(made.clone()));
            made
        })
    }

    #[inline]
    fn put<F: 'static>(&self, id: SpareId, slot: Pin<Box<Slot<F>>>) {
        let mut all = self.0.borrow_mut();
        match all.get_mut(id.0).and_then(Option::as_mut).and_then(|kept| kept.downcast_mut()) {
            Some(kept) => *kept = Some(slot),
            None => first(&mut all, id, Box::new(Some(slot))),
        }
    }
}

#[cold]
fn first(all: &mut Vec<Option<Box<dyn Any>>>, id: SpareId, slot: Box<dyn Any>) {
    if all.len() <= id.0 {
        all.resize_with(id.0 + 1, || None);
    }
    all[id.0] = Some(slot);
}

/// Polls the future once, with a waker that does nothing: if it is not ready, the next poll registers its own waker.
#[inline]
pub(crate) fn later_unless_ready<F>(
    id: SpareId,
    context: &Context<'_>,
    response: &mut Response,
    future: F,
) -> Reply
where
    F: Future + 'static,
    F::Output: Respond,
{
    let spares = &context.local.spares;
    let mut slot = match spares.take(id) {
        Some(mut slot) => {
            slot.as_mut().project().future.set(Some(future));
            slot
        }
        None => Box::pin(Slot { future: Some(future) }),
    };
    match slot.as_mut().poll_once(&mut TaskContext::from_waker(Waker::noop())) {
        Poll::Ready(reply) => {
            slot.as_mut().project().future.set(None);
            spares.put(id, slot);
            reply.respond(response);
            Reply::Now
        }
        Poll::Pending => Reply::Later(slot),
    }
}

impl<F: Future> Slot<F> {
    #[inline]
    fn poll_once(self: Pin<&mut Self>, context: &mut TaskContext<'_>) -> Poll<F::Output> {
        match self.project().future.as_pin_mut() {
            Some(future) => future.poll(context),
            // It was ready; polling it again would wait forever.
            None => Poll::Pending,
        }
    }
}

impl<F> Future for Slot<F>
where
    F: Future,
    F::Output: Respond,
{
    type Output = Response;

    fn poll(self: Pin<&mut Self>, context: &mut TaskContext<'_>) -> Poll<Response> {
        let reply = ready!(self.poll_once(context));
        let mut response = Response::new();
        reply.respond(&mut response);
        Poll::Ready(response)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot<F: 'static>(spares: &Spares, id: SpareId, _: &F) -> Option<Pin<Box<Slot<F>>>> {
        spares.take(id)
    }

    #[test]
    fn each_handler_reuses_its_own_box() {
        let (spares, one, other) = (Spares::default(), SpareId::new(), SpareId::new());
        let future = std::future::ready("a");
        assert!(slot(&spares, one, &future).is_none());
        let boxed = Box::pin(Slot { future: Some(std::future::ready("a")) });
        let at = &raw const *boxed;
        spares.put(one, boxed);
        assert!(slot(&spares, other, &future).is_none());
        assert_eq!(slot(&spares, one, &future).map(|spare| &raw const *spare), Some(at));
        assert!(slot(&spares, one, &future).is_none());
    }
}
