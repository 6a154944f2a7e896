//! An id for each request, which connects the logs of several programs.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flatout_engine::{Reply, Response};
use flatout_wire::Status;

use super::{Inner, Middleware};
use crate::extract::Extract;
use crate::{Context, Problem};

/// The longest id that is accepted from a client.
const ID_BYTES_MAX: usize = 64;

/// Gives each request an id in `X-Request-Id`: the one sent by the client, if it is short and harmless, otherwise 128
/// random bits. Handlers get it as the argument [`RequestId`], and the response repeats it.
///
/// ```
/// use flatout::middleware::RequestIds;
/// use flatout::{App, test::Client};
///
/// let app = App::new().with(RequestIds::new()).get("/", || "hello");
/// let answer = Client::new(app)?.get("/").header("X-Request-Id", "from-the-proxy").send();
/// assert_eq!(answer.header("X-Request-Id"), Some("from-the-proxy"));
/// // In another field, and not chosen by clients:
/// App::new().with(RequestIds::new().field("X-Correlation-Id").always_new());
/// # Ok::<(), flatout::Error>(())
/// ```
pub struct RequestIds {
    name: &'static str,
    from_client: bool,
    count: AtomicU64,
    keys: [RandomState; 2],
}

/// The id of this request: an argument of handlers inside [`RequestIds`].
///
/// # Errors
/// 500 if there is no [`RequestIds`] around the handler.
///
/// ```
/// use flatout::middleware::{RequestId, RequestIds};
/// use flatout::{App, test::Client};
///
/// let app = App::new().with(RequestIds::new()).get("/", |id: RequestId| format!("you are {id}"));
/// let answer = Client::new(app)?.get("/").header("X-Request-Id", "7").send();
/// assert_eq!(answer.text(), "you are 7");
/// # Ok::<(), flatout::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestId(pub Arc<str>);

impl RequestIds {
    /// Ids in `X-Request-Id`.
    pub fn new() -> RequestIds {
        let keys = [RandomState::new(), RandomState::new()];
        RequestIds { name: "X-Request-Id", from_client: true, count: AtomicU64::new(0), keys }
    }

    /// Another field.
    pub fn field(mut self, name: &'static str) -> RequestIds {
        self.name = name;
        self
    }

    /// Makes a new id for every request, even if the client sent one.
    pub fn always_new(mut self) -> RequestIds {
        self.from_client = false;
        self
    }

    fn id(&self, context: &Context<'_>) -> Arc<str> {
        let sent = context.header(self.name).filter(|_| self.from_client).and_then(harmless);
        match sent {
            Some(sent) => sent.into(),
            None => {
                // Keyed hashes of a counter, so that the next id cannot be predicted.
                let count = self.count.fetch_add(1, Ordering::Relaxed);
                let [first, second] = self.keys.each_ref().map(|key| key.hash_one(count));
                format!("{first:016x}{second:016x}").into()
            }
        }
    }
}

/// Characters that are safe in any log.
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
