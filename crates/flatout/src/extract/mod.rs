//! Arguments of handlers.

mod body;
mod client;
#[cfg(feature = "cookies")]
mod cookies;
mod extension;
mod fault;
mod form;
mod hints;
#[cfg(feature = "multipart")]
mod multipart;
mod param;
mod param_check;
mod parts;
mod query;
mod target;
#[cfg(feature = "garde")]
mod validated;

use crate::{Context, Problem, RouteCheck};

pub use body::{Json, Streamed};
pub use client::ClientIp;
pub(crate) use client::Network;
#[cfg(feature = "proxy")]
pub(crate) use client::{is_from_proxy, is_https};
#[cfg(feature = "cookies")]
pub use cookies::{Cookies, PrivateCookies, SignedCookies};
pub use extension::Extension;
pub use form::Form;
pub use hints::EarlyHints;
#[cfg(feature = "multipart")]
pub use multipart::{Multipart, Part};
pub use param::Path;
pub(crate) use parts::header_map;
pub use parts::{Headers, Local, Peer, Shutdown, State};
pub use query::Query;
pub use target::Host;
#[cfg(feature = "garde")]
pub use validated::Validated;

/// An argument of a handler, made from its request.
///
/// ```
/// use flatout::{App, Context, Extract, Problem, Status, test::Client};
///
/// struct Token(String);
///
/// impl Extract for Token {
///     fn extract(context: &mut Context<'_>) -> Result<Token, Problem> {
///         let token = context.header("x-token").ok_or(Problem::new(Status::UNAUTHORIZED))?;
///         Ok(Token(String::from_utf8_lossy(token).into_owned()))
///     }
/// }
///
/// let client = Client::new(App::new().get("/", |Token(token): Token| token))?;
/// assert_eq!(client.get("/").header("X-Token", "7").send().text(), "7");
/// # Ok::<(), flatout::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an argument of a handler",
    label = "`Extract` is not implemented for it",
    note = "arguments are made from the request: `Path<T>`, `Query<T>`, `Json<T>`, `State<T>`, `String`, …, or your own type that implements `Extract`",
    note = "a type that implements `ExtractAsync` can be an argument of an async handler only"
)]
pub trait Extract: Sized {
    /// How the body has to be read. Of several arguments of one handler, one may have it.
    const BODY: BodyUse = BodyUse::None;

    /// Makes it.
    ///
    /// # Errors
    /// The problem that the client gets instead.
    fn extract(context: &mut Context<'_>) -> Result<Self, Problem>;

    /// Checks a route whose handler has this argument, when the application starts. By default, nothing is checked. An
    /// extractor that uses another may call its check.
    ///
    /// # Errors
    /// Why every request would fail, with the names of the types.
    fn check(route: &RouteCheck<'_>) -> Result<(), String> {
        let _ = route;
        Ok(())
    }
}

/// An argument of an async handler that may wait while it is made, such as a user from a database. Every [`Extract`]
/// implements this too.
///
/// The arguments are started in their order, each taking what it needs from the request, and then awaited in the same
/// order.
///
/// ```
/// use flatout::{App, Context, ExtractAsync, Problem, Status, test::Client};
///
/// struct User { name: String }
///
/// impl ExtractAsync for User {
///     fn extract_async(
///         context: &mut Context<'_>,
///     ) -> impl Future<Output = Result<User, Problem>> + use<> {
///         // The request is gone once this function returns: what is needed of it is copied.
///         let token = context.header("authorization").map(<[u8]>::to_vec);
///         async move {
///             let token = token.ok_or(Problem::new(Status::UNAUTHORIZED))?;
///             tokio::task::yield_now().await; // a query, in real life
///             Ok(User { name: String::from_utf8_lossy(&token).into_owned() })
///         }
///     }
/// }
///
/// let client = Client::new(App::new().get("/me", async |user: User| user.name))?;
/// assert_eq!(client.get("/me").header("Authorization", "ada").send().text(), "ada");
/// assert_eq!(client.get("/me").send().status(), Status::UNAUTHORIZED);
/// # Ok::<(), flatout::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an argument of an async handler",
    label = "neither `Extract` nor `ExtractAsync` is implemented for it",
    note = "arguments are made from the request: `Path<T>`, `Query<T>`, `Json<T>`, `State<T>`, `String`, …, or your own type that implements `Extract` or `ExtractAsync`"
)]
pub trait ExtractAsync: Sized + 'static {
    /// How the body has to be read. Of several arguments of one handler, one may have it.
    const BODY: BodyUse = BodyUse::None;

    /// Takes what it needs from the request, and makes the argument. The future does not borrow the request, so that the
    /// worker can continue meanwhile.
    ///
    /// # Errors
    /// The problem that the client gets instead.
    fn extract_async(
        context: &mut Context<'_>,
    ) -> impl Future<Output = Result<Self, Problem>> + 'static + use<Self>;

    /// Checks a route whose handler has this argument, when the application starts. By default, nothing is checked. An
    /// extractor that uses another may call its check.
    ///
    /// # Errors
    /// Why every request would fail, with the names of the types.
    fn check(route: &RouteCheck<'_>) -> Result<(), String> {
        let _ = route;
        Ok(())
    }
}

impl<T: Extract + 'static> ExtractAsync for T {
    const BODY: BodyUse = T::BODY;

    fn extract_async(
        context: &mut Context<'_>,
    ) -> impl Future<Output = Result<Self, Problem>> + 'static + use<T> {
        std::future::ready(T::extract(context))
    }

    fn check(route: &RouteCheck<'_>) -> Result<(), String> {
        T::check(route)
    }
}

/// How an extractor needs the body to be read.
///
/// ```
/// use flatout::{App, BodyUse, Context, Extract, Problem, test::Client};
///
/// /// The lines of the body.
/// struct Lines(Vec<String>);
///
/// impl Extract for Lines {
///     const BODY: BodyUse = BodyUse::Whole;
///
///     fn extract(context: &mut Context<'_>) -> Result<Lines, Problem> {
///         let text = String::extract(context)?;
///         Ok(Lines(text.lines().map(str::to_owned).collect()))
///     }
/// }
///
/// let app = App::new().post("/count", |Lines(lines): Lines| lines.len().to_string());
/// assert_eq!(Client::new(app)?.post("/count").body("one\ntwo").send().text(), "2");
/// # Ok::<(), flatout::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum BodyUse {
    /// Not at all: the body is skipped.
    None,
    /// Completely, before the handler is called.
    Whole,
    /// While the handler runs.
    Stream,
}

/// `None` if the argument could not be made.
impl<T: Extract> Extract for Option<T> {
    const BODY: BodyUse = T::BODY;

    fn extract(context: &mut Context<'_>) -> Result<Self, Problem> {
        Ok(T::extract(context).ok())
    }
}

/// Passes the error to the handler.
impl<T: Extract> Extract for Result<T, Problem> {
    const BODY: BodyUse = T::BODY;

    fn extract(context: &mut Context<'_>) -> Result<Self, Problem> {
        Ok(T::extract(context))
    }
}
