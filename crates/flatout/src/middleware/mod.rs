//! Middleware. [`App::with`](crate::App::with) takes these and your own types that implement [`Middleware`];
//! [`App::around`](crate::App::around) takes async functions, [`App::layer`](crate::App::layer) any `tower::Layer`.
//! There are three because each does what the others cannot: only `with` costs no copy and no allocation where the handler
//! responds at once, only `around` can await before and after the handler without a type of your own, and only `layer` takes
//! the middleware that exists for tower. All three become a [`Middleware`] in one chain.
//!
//! ```text
//! request ──> with, around, layer ──> before ──> nested application: the same ──> handler
//!             in order of registration  in order                                     │
//! response <─ the same, backwards <───── after <── nested application: the same <────┘
//! ```
//!
//! The middleware that was registered first is outermost: it sees the request first and the response last. It runs around
//! all routes of its application, including those registered before it, and around 404, 405 and the automatic response to
//! OPTIONS.
//!
//! ```
//! use std::time::Duration;
//! use flatout::middleware::{RequestIds, Timeout};
//! use flatout::{App, test::Client};
//!
//! let app = App::new()
//!     .with(RequestIds::new())
//!     .with(Timeout::new(Duration::from_millis(10)))
//!     .get("/slow", async || {
//!         tokio::time::sleep(Duration::from_secs(60)).await;
//!         "never"
//!     });
//! let answer = Client::new(app)?.get("/slow").send();
//! assert_eq!(answer.status().code(), 503);
//! assert!(answer.header("X-Request-Id").is_some());
//! # Ok::<(), flatout::Error>(())
//! ```

mod around;
mod auth;
#[cfg(feature = "compression")]
mod compression;
mod cors;
mod layer;
mod layer_body;
pub(crate) mod owned;
mod panic;
mod rate;
mod request_id;
mod timeout;
#[cfg(feature = "tracing")]
mod tracing;

use flatout_engine::{Reply, Response};

use crate::Context;

pub use crate::chain::Inner;
pub use around::{Around, Next};
pub use auth::{BasicAuth, BasicUser, BearerAuth};
#[cfg(feature = "compression")]
pub use compression::Compression;
pub use cors::Cors;
pub use layer::InnerService;
pub(crate) use layer::layered;
pub use layer_body::InnerBody;
pub use panic::PanicPage;
pub use rate::RateLimit;
pub use request_id::{RequestId, RequestIds};
pub use timeout::Timeout;
#[cfg(feature = "tracing")]
pub use tracing::Tracing;

/// Adds a name to `Vary`, unless it is there.
pub(crate) fn vary(response: &mut Response, name: &str) {
    let is_there = response.fields().any(|(field, value)| {
        field.eq_ignore_ascii_case(b"vary")
            && value
                .split(|&byte| byte == b',')
                .map(<[u8]>::trim_ascii)
                .any(|known| known == b"*" || known.eq_ignore_ascii_case(name.as_bytes()))
    });
    if !is_there {
        response.header("Vary", name);
    }
}

/// Middleware that runs on the worker without its own future: the cheapest kind.
///
/// ```
/// use flatout::engine::{Reply, Response};
/// use flatout::middleware::{Inner, Middleware};
/// use flatout::{App, Context, test::Client};
///
/// /// Responds with the requested path.
/// struct Echo;
///
/// impl Middleware for Echo {
///     fn call<'a>(&self, inner: Inner<'a>, context: &mut Context<'a>, response: &mut Response) -> Reply {
///         let path = context.path().to_owned();
///         inner.call_then(context, response, move |response| {
///             response.header("X-Path", path);
///         })
///     }
/// }
///
/// let client = Client::new(App::new().with(Echo).get("/a", || "a"))?;
/// assert_eq!(client.get("/a").send().header("X-Path"), Some("/a"));
/// # Ok::<(), flatout::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not middleware",
    label = "`Middleware` is not implemented for it",
    note = "`App::with` takes middleware of `flatout::middleware` and your own types that implement `Middleware`",
    note = "use `App::around` for an async function, and `App::layer` for a `tower::Layer`"
)]
pub trait Middleware: Send + Sync + 'static {
    /// Handles one request, usually by calling `inner`.
    fn call<'a>(&self, inner: Inner<'a>, context: &mut Context<'a>, response: &mut Response) -> Reply;

    /// Whether it reads or changes request bodies: then they come to it, and not directly to the handler.
    #[doc(hidden)]
    fn reads_body(&self) -> bool {
        false
    }

    /// Checks its configuration; called once, when the application starts.
    ///
    /// # Errors
    /// The reason why it cannot work.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }
}
