//! Arguments that are neither path, query nor body.

use std::net::SocketAddr;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;

use flatout_engine::say;
use flatout_wire::{Method, Status};
use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::sync::watch;

use super::Extract;
use crate::{Context, Problem, RouteCheck};

/// A value given to [`App::state`](crate::App::state), shared by all workers.
///
/// ```
/// use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
/// use flatout::{App, State, test::Client};
///
/// let app = App::new()
///     .state(AtomicU32::new(0))
///     .post("/count", |State(count): State<AtomicU32>| (count.fetch_add(1, Relaxed) + 1).to_string());
/// let client = Client::new(app)?;
/// client.post("/count").send();
/// assert_eq!(client.post("/count").send().text(), "2");
/// # Ok::<(), flatout::Error>(())
/// ```
#[derive(Debug)]
pub struct State<T>(pub Arc<T>);

/// A value that this worker made with [`App::local`](crate::App::local). No other thread uses it, so it needs no lock.
///
/// ```
/// use std::cell::RefCell;
/// use flatout::{App, Local, Path, test::Client};
///
/// /// What each worker remembers for itself.
/// type Seen = RefCell<Vec<String>>;
///
/// let app = App::new().local(Seen::default).get("/{name}", |Local(seen): Local<Seen>, Path(name): Path<String>| {
///     seen.borrow_mut().push(name);
///     seen.borrow().join(", ")
/// });
/// let client = Client::new(app)?;
/// client.get("/ada").send();
/// assert_eq!(client.get("/bob").send().text(), "ada, bob");
/// # Ok::<(), flatout::Error>(())
/// ```
#[derive(Debug)]
pub struct Local<T>(pub Rc<T>);

/// All header fields.
///
/// ```
/// use flatout::{App, Headers, test::Client};
///
/// let app = App::new().get("/", |Headers(headers): Headers| headers.contains_key("dnt").to_string());
/// assert_eq!(Client::new(app)?.get("/").header("DNT", "1").send().text(), "true");
/// # Ok::<(), flatout::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Headers(pub HeaderMap);

/// The client's address; `None` on a Unix socket.
///
/// ```
/// use flatout::{App, Peer, test::Client};
///
/// let app = App::new().get("/", |Peer(peer): Peer| peer.map(|peer| peer.ip().to_string()));
/// assert_eq!(Client::over_socket(app)?.get("/").send().text(), "127.0.0.1");
/// # Ok::<(), flatout::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer(pub Option<SocketAddr>);

/// Notifies long-running handlers that the server is draining.
///
/// ```
/// use std::time::Duration;
/// use flatout::{App, Shutdown, test::Client};
///
/// let app = App::new()
///     .get("/state", |shutdown: Shutdown| if shutdown.has_begun() { "stopping" } else { "serving" })
///     .get("/news", async |mut shutdown: Shutdown| {
///         tokio::select! {
///             () = tokio::time::sleep(Duration::from_secs(60)) => "no news",
///             () = shutdown.begun() => "the server stops",
///         }
///     });
/// let client = Client::new(app)?;
/// assert_eq!(client.get("/state").send().text(), "serving");
/// client.drain();
/// assert_eq!(client.get("/news").send().text(), "the server stops");
/// # Ok::<(), flatout::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Shutdown(watch::Receiver<bool>);

impl Shutdown {
    pub(crate) fn of(context: &Context<'_>) -> Shutdown {
        Shutdown(context.local.draining.clone())
    }

    /// Ready once draining has begun.
    pub async fn begun(&mut self) {
        // A server that no longer exists has drained.
        let _ = self.0.wait_for(|draining| *draining).await;
    }

    /// Whether draining has begun.
    pub fn has_begun(&self) -> bool {
        *self.0.borrow()
    }
}

impl From<watch::Receiver<bool>> for Shutdown {
    fn from(draining: watch::Receiver<bool>) -> Shutdown {
        Shutdown(draining)
    }
}

impl Extract for Shutdown {
    fn extract(context: &mut Context<'_>) -> Result<Self, Problem> {
        Ok(Shutdown::of(context))
    }
}

impl<T: Send + Sync + 'static> Extract for State<T> {
    fn extract(context: &mut Context<'_>) -> Result<Self, Problem> {
        context.state().map(State).ok_or_else(|| missing::<T>("state"))
    }

    fn check(route: &RouteCheck<'_>) -> Result<(), String> {
        if route.has_state::<T>() { Ok(()) } else { Err(not_given::<T>("State", "state(value)")) }
    }
}

impl<T: 'static> Extract for Local<T> {
    fn extract(context: &mut Context<'_>) -> Result<Self, Problem> {
        context.local().map(Local).ok_or_else(|| missing::<T>("local"))
    }

    fn check(route: &RouteCheck<'_>) -> Result<(), String> {
        if route.has_local::<T>() { Ok(()) } else { Err(not_given::<T>("Local", "local(|| value)")) }
    }
}

impl Extract for Headers {
    fn extract(context: &mut Context<'_>) -> Result<Self, Problem> {
        Ok(Headers(header_map(context)))
    }
}

/// The same as [`Headers`], under its name in the `http` crate.
impl Extract for HeaderMap {
    fn extract(context: &mut Context<'_>) -> Result<Self, Problem> {
        Ok(header_map(context))
    }
}

impl Extract for Peer {
    fn extract(context: &mut Context<'_>) -> Result<Self, Problem> {
        Ok(Peer(context.request.peer))
    }
}

impl Extract for Method {
    fn extract(context: &mut Context<'_>) -> Result<Self, Problem> {
        Ok(context.request.head.method)
    }
}

impl<T> Deref for State<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> Deref for Local<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// The fields as a map; the parser has already checked them.
pub(crate) fn header_map(context: &Context<'_>) -> HeaderMap {
    let pairs = context.request.head.fields().filter_map(|(name, value)| {
        Some((HeaderName::from_bytes(name).ok()?, HeaderValue::from_bytes(value).ok()?))
    });
    let mut map = HeaderMap::new();
    for (name, value) in pairs {
        map.append(name, value);
    }
    // The authority of an absolute target replaces Host (RFC 9112 section 3.2.2).
    if let Ok(authority) = HeaderValue::from_bytes(context.request.head.authority())
        && !authority.is_empty()
    {
        map.insert(http::header::HOST, authority);
    }
    map
}

/// A bug in the application that the check at the start cannot see, in an extractor that uses this one: reported on stderr
/// and not to the client.
fn missing<T>(what: &str) -> Problem {
    let name = std::any::type_name::<T>();
    say(format_args!("a handler needs {what} `{name}`, which was not given to App::{what}"));
    Problem::new(Status::INTERNAL_SERVER_ERROR)
}

/// The message at the start.
fn not_given<T>(what: &str, call: &str) -> String {
    let name = std::any::type_name::<T>();
    format!("`{what}<{name}>` is missing: add `.{call}` with a `{name}` to the application or one around it")
}
