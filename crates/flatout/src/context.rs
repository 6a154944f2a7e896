//! What extractors and middleware see of a request.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use flatout_engine::RequestBody;
use flatout_wire::{Head, Method, Status};
use matchit::Params;
use tokio::sync::watch;

use crate::Problem;

/// One request while its handler is found and its arguments are made.
pub struct Context<'a> {
    pub(crate) head: Head<'a>,
    pub(crate) path: &'a str,
    pub(crate) params: Params<'a, 'a>,
    pub(crate) body: Option<RequestBody<'a>>,
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) shared: &'a Shared,
    pub(crate) local: &'a Local,
}

/// What all workers share: made once, never changed.
#[derive(Default)]
pub(crate) struct Shared {
    pub(crate) states: HashMap<TypeId, Arc<dyn Any + Send + Sync>>,
}

/// What belongs to one worker.
pub(crate) struct Local {
    pub(crate) values: HashMap<TypeId, Rc<dyn Any>>,
    pub(crate) draining: watch::Receiver<bool>,
}

impl<'a> Context<'a> {
    /// The method; HEAD stays HEAD, though the handler of GET answers it.
    pub fn method(&self) -> Method {
        self.head.method
    }

    /// The decoded path in its normal form.
    pub fn path(&self) -> &'a str {
        self.path
    }

    /// What follows the `?`, as it was sent.
    pub fn query(&self) -> Option<&'a str> {
        // The parser lets only visible ASCII pass.
        self.head.query().and_then(|query| std::str::from_utf8(query).ok())
    }

    /// The value of the first field of this name; of `Host`, what the target's own authority makes of it.
    pub fn header(&self, name: &str) -> Option<&'a [u8]> {
        let sent = self.head.field(name);
        if name.eq_ignore_ascii_case("host") { sent.map(|_| self.head.authority()) } else { sent }
    }

    /// The whole head.
    pub fn head(&self) -> &Head<'a> {
        &self.head
    }

    /// The value of a `{name}` in the route.
    pub fn param(&self, name: &str) -> Option<&str> {
        self.params.get(name)
    }

    /// The client's address; `None` on a Unix socket.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.peer
    }

    /// The value that [`App::state`](crate::App::state) was given, by its type.
    pub fn state<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        self.shared.states.get(&TypeId::of::<T>())?.clone().downcast().ok()
    }

    /// The value that this worker made with [`App::local`](crate::App::local), by its type.
    pub fn local<T: 'static>(&self) -> Option<Rc<T>> {
        self.local.values.get(&TypeId::of::<T>())?.clone().downcast().ok()
    }

    /// Takes the body; only one extractor can have it.
    pub(crate) fn take_body(&mut self) -> Result<RequestBody<'a>, Problem> {
        self.body.take().ok_or_else(|| {
            Problem::new(Status::INTERNAL_SERVER_ERROR).detail("a handler reads its request body twice")
        })
    }
}
