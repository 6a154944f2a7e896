//! A name for each request, by which logs of several programs are held together.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flatout_engine::{Reply, Response};
use flatout_wire::Status;

use super::{Inner, Middleware};
use crate::extract::Extract;
use crate::{Context, Problem};

/// The longest name that is taken from a client.
const ID_BYTES_MAX: usize = 64;

/// Names each request in `X-Request-Id`: by the name that it came with, if that is short and harmless, or else by a random
/// one of 128 bits. Handlers have it as the argument [`RequestId`], and the response repeats it.
pub struct RequestIds {
    name: &'static str,
    from_client: bool,
    count: AtomicU64,
    keys: [RandomState; 2],
}

/// The name of this request: an argument of handlers inside of [`RequestIds`].
///
/// # Errors
/// 500 where there is no [`RequestIds`] around the handler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestId(pub Arc<str>);

impl RequestIds {
    /// Names in `X-Request-Id`.
    pub fn new() -> RequestIds {
        let keys = [RandomState::new(), RandomState::new()];
        RequestIds { name: "X-Request-Id", from_client: true, count: AtomicU64::new(0), keys }
    }

    /// Another field.
    pub fn field(mut self, name: &'static str) -> RequestIds {
        self.name = name;
        self
    }

    /// Makes a name for every request, whatever it came with.
    pub fn always_new(mut self) -> RequestIds {
        self.from_client = false;
        self
    }

    fn id(&self, context: &Context<'_>) -> Arc<str> {
        let sent = context.header(self.name).filter(|_| self.from_client).and_then(harmless);
        match sent {
            Some(sent) => sent.into(),
            None => {
                // Keyed hashes of a counter: nobody who knows some of them knows the next.
                let count = self.count.fetch_add(1, Ordering::Relaxed);
                let [first, second] = self.keys.each_ref().map(|key| key.hash_one(count));
                format!("{first:016x}{second:016x}").into()
            }
        }
    }
}

/// What can stand in any log.
fn harmless(id: &[u8]) -> Option<&str> {
    let is_harmless = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~+/=:".contains(byte);
    let is_id = (1..=ID_BYTES_MAX).contains(&id.len()) && id.iter().all(is_harmless);
    std::str::from_utf8(id).ok().filter(|_| is_id)
}

impl Default for RequestIds {
    fn default() -> Self {
        RequestIds::new()
    }
}

impl Middleware for RequestIds {
    fn call<'a>(&self, inner: Inner<'a>, context: &mut Context<'a>, response: &mut Response) -> Reply {
        let (id, name) = (self.id(context), self.name);
        context.extensions_mut().insert(RequestId(id.clone()));
        inner.call_then(context, response, move |response| {
            response.remove_header(name).header(name, &*id);
        })
    }
}

impl Extract for RequestId {
    fn extract(context: &mut Context<'_>) -> Result<Self, Problem> {
        context.extensions().get::<RequestId>().cloned().ok_or_else(|| {
            flatout_engine::say(format_args!(
                "a handler needs a `RequestId`, but the middleware `RequestIds` is missing"
            ));
            Problem::new(Status::INTERNAL_SERVER_ERROR)
        })
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
