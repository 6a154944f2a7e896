//! Calls the service.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use flatout_lane::slab::Key;
use flatout_wire::target::{self, PathForm};
use flatout_wire::{Head, Method};

use crate::exchange::{Exchange, Lane, panicked};
use crate::service::{Announced, ExchangeKey, Park, Reply, Request, Response, Service};

/// Calls the service; a panic becomes the response 500, the connection's last. If it replies that the response comes
/// later, anything but its note is discarded: the next request must find the response empty. The request is
/// assembled in the argument's place, so that its 168 bytes are not moved again.
#[inline]
pub(crate) fn call<'a>(
    service: &dyn Service,
    request: impl FnOnce() -> Request<'a>,
    response: &mut Response,
) -> Reply {
    let called = catch_unwind(AssertUnwindSafe(|| {
        let reply = service.call(request(), response);
        match reply {
            Reply::Now => {}
            Reply::Leave(_) | Reply::Later(_) | Reply::Parked => {
                // The note is for the record of a request that ends without a response.
                let note = response.note();
                response.reset();
                response.set_note(note);
            }
        }
        reply
    }));
    match called {
        Ok(reply) => reply,
        Err(_) => {
            *response = panicked();
            Reply::Now
        }
    }
}

/// Creates the exchange of the current request, if its service asks for it.
pub(crate) struct Parker<'a> {
    pub(crate) lane: &'a Lane,
    pub(crate) connection: Key,
    pub(crate) exchange: Cell<Option<Key>>,
}

impl Park for Parker<'_> {
    fn park(&self) -> ExchangeKey {
        let key = self.exchange.get().unwrap_or_else(|| self.lane.open(Exchange::called(self.connection)));
        self.exchange.set(Some(key));
        ExchangeKey(key)
    }

    fn announced(&self) -> Option<Rc<Announced>> {
        self.lane.announced(self.connection)
    }

    fn connection(&self) -> u64 {
        self.connection.to_u64()
    }
}

/// The path for routing: see [`target`].
#[inline]
pub(crate) fn normal_path<'a>(head: &Head<'a>, form: PathForm, scratch: &'a mut Vec<u8>) -> Option<&'a [u8]> {
    // Nearly all paths are in this form already.
    if form == PathForm::Strict && !head.path_needs_care {
        return Some(head.path());
    }
    normal_path_with_care(head, form, scratch)
}

fn normal_path_with_care<'a>(head: &Head<'a>, form: PathForm, scratch: &'a mut Vec<u8>) -> Option<&'a [u8]> {
    let path = head.path();
    let is_plain =
        || !head.path_needs_care && path.first() == Some(&b'/') && !target::has_empty_segment(path);
    if form == PathForm::Forward && is_plain() {
        return Some(path);
    }
    if matches!(head.method, Method::Connect) || path == b"*" {
        return Some(path);
    }
    match form {
        PathForm::Strict => target::normal_path(path, scratch).ok(),
        PathForm::Forward => target::forward_path(path, scratch).ok(),
    }
}
