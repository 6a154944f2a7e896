//! Results of handlers.

mod attachment;
mod conditional;
mod negotiate;
mod sse;
mod stream;

use std::borrow::Cow;
use std::convert::Infallible;

use bytes::Bytes;
use flatout_engine::{Body, Response};
use flatout_wire::Status;
use serde::Serialize;

use crate::{Json, Problem};

pub use attachment::Attachment;
pub use conditional::{Conditional, Conditions, Validators};
pub use negotiate::{Accept, Choice};
pub use sse::{Event, LastEventId, Sse};
pub use stream::Streaming;

/// A result of a handler. The response is initially empty, with status 200.
///
/// ```
/// use flatout::{App, Respond, Response, Status, test::Client};
///
/// struct Teapot;
///
/// impl Respond for Teapot {
///     fn respond(self, response: &mut Response) {
///         response.set_status(Status::from_code(418).unwrap_or(Status::BAD_REQUEST)).header("Tea", "green");
///     }
/// }
///
/// let client = Client::new(App::new().get("/", || Teapot))?;
/// assert_eq!(client.get("/").send().status().code(), 418);
/// # Ok::<(), flatout::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a response",
    label = "`Respond` is not implemented for it",
    note = "handlers return text, bytes, `Json<T>`, `Html<T>`, `Status`, `(Status, T)`, `Option<T>`, `Result<T, E>`, …, or your own type that implements `Respond`",
    note = "for errors, return `Result<T, Problem>` and implement `From<YourError> for Problem`, so that `?` converts them; `Problem::new(Status)` makes one"
)]
pub trait Respond {
    /// Writes status, fields and body.
    fn respond(self, response: &mut Response);
}

/// HTML text.
///
/// ```
/// use flatout::{App, Html, test::Client};
///
/// let client = Client::new(App::new().get("/", || Html("<p>Hello")))?;
/// assert_eq!(client.get("/").send().header("Content-Type"), Some("text/html; charset=utf-8"));
/// # Ok::<(), flatout::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Html<T>(pub T);

/// A redirect.
///
/// ```
/// use flatout::{App, Redirect, Status, test::Client};
///
/// let app = App::new()
///     .post("/items", || Redirect::to("/items/7"))
///     .get("/beta", || Redirect::temporary("/"))
///     .get("/old", || Redirect::permanent("/new"));
/// let client = Client::new(app)?;
/// let made = client.post("/items").send();
/// assert_eq!((made.status(), made.header("Location")), (Status::SEE_OTHER, Some("/items/7")));
/// assert_eq!(client.get("/beta").send().status(), Status::TEMPORARY_REDIRECT);
/// assert_eq!(client.get("/old").send().status(), Status::PERMANENT_REDIRECT);
/// # Ok::<(), flatout::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redirect {
    status: Status,
    location: String,
}

impl Redirect {
    /// 303: the result of a POST is at this URL.
    pub fn to(location: impl Into<String>) -> Redirect {
        Redirect { status: Status::SEE_OTHER, location: location.into() }
    }

    /// 307: temporary redirect; method and body are kept.
    pub fn temporary(location: impl Into<String>) -> Redirect {
        Redirect { status: Status::TEMPORARY_REDIRECT, location: location.into() }
    }

    /// 308: permanent redirect; method and body are kept.
    pub fn permanent(location: impl Into<String>) -> Redirect {
        Redirect { status: Status::PERMANENT_REDIRECT, location: location.into() }
    }
}

impl Respond for Redirect {
    fn respond(self, response: &mut Response) {
        response.set_status(self.status).header("Location", self.location);
    }
}

impl<T: Serialize> Respond for Json<T> {
    #[inline]
    fn respond(self, response: &mut Response) {
        response.encoded_fields(b"Content-Type: application/json\r\n");
        if serde_json::to_writer(response.buffer(), &self.0).is_err() {
            // A map whose keys are not strings, or a `Serialize` that fails: a bug in the application.
            response.reset();
            Problem::new(Status::INTERNAL_SERVER_ERROR).respond(response);
        }
    }
}

impl Respond for &'static str {
    #[inline]
    fn respond(self, response: &mut Response) {
        response.encoded_fields(TEXT).set_body(Body::Static(self.as_bytes()));
    }
}

impl Respond for String {
    fn respond(self, response: &mut Response) {
        response.encoded_fields(TEXT).set_body(Body::Shared(self.into()));
    }
}

impl Respond for Cow<'static, str> {
    fn respond(self, response: &mut Response) {
        match self {
            Cow::Borrowed(text) => text.respond(response),
            Cow::Owned(text) => text.respond(response),
        }
    }
}

impl Respond for &'static [u8] {
    fn respond(self, response: &mut Response) {
        response.encoded_fields(BYTES).set_body(Body::Static(self));
    }
}

impl Respond for Vec<u8> {
    fn respond(self, response: &mut Response) {
        Bytes::from(self).respond(response);
    }
}

impl Respond for Bytes {
    fn respond(self, response: &mut Response) {
        response.encoded_fields(BYTES).set_body(Body::Shared(self));
    }
}

impl<T: Into<Bytes>> Respond for Html<T> {
    fn respond(self, response: &mut Response) {
        let fields = b"Content-Type: text/html; charset=utf-8\r\n";
        response.encoded_fields(fields).set_body(Body::Shared(self.0.into()));
    }
}

/// No content, 204.
impl Respond for () {
    fn respond(self, response: &mut Response) {
        response.set_status(Status::NO_CONTENT);
    }
}

impl Respond for Status {
    fn respond(self, response: &mut Response) {
        response.set_status(self);
    }
}

/// Any body, such as a stream that is produced while it is sent.
impl Respond for Body {
    fn respond(self, response: &mut Response) {
        response.set_body(self);
    }
}

/// A response built by hand.
impl Respond for Response {
    fn respond(self, response: &mut Response) {
        *response = self;
    }
}

/// The second element with another status.
impl<T: Respond> Respond for (Status, T) {
    fn respond(self, response: &mut Response) {
        self.1.respond(response);
        response.set_status(self.0);
    }
}

/// The second element with more fields.
impl<const N: usize, T: Respond> Respond for ([(&str, &str); N], T) {
    fn respond(self, response: &mut Response) {
        self.1.respond(response);
        for (name, value) in self.0 {
            response.remove_header(name).header(name, value);
        }
    }
}

/// The third element with a different status and more fields.
impl<const N: usize, T: Respond> Respond for (Status, [(&str, &str); N], T) {
    fn respond(self, response: &mut Response) {
        let (status, fields, body) = self;
        (status, (fields, body)).respond(response);
    }
}

/// 404 for `None`.
impl<T: Respond> Respond for Option<T> {
    fn respond(self, response: &mut Response) {
        match self {
            Some(found) => found.respond(response),
            None => Problem::new(Status::NOT_FOUND).respond(response),
        }
    }
}

impl<T: Respond, E: Respond> Respond for std::result::Result<T, E> {
    #[inline]
    fn respond(self, response: &mut Response) {
        match self {
            Ok(good) => good.respond(response),
            Err(bad) => bad.respond(response),
        }
    }
}

impl Respond for Infallible {
    fn respond(self, _: &mut Response) {
        match self {}
    }
}

const TEXT: &[u8] = b"Content-Type: text/plain; charset=utf-8\r\n";
const BYTES: &[u8] = b"Content-Type: application/octet-stream\r\n";
