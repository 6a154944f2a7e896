//! Errors as problem details (RFC 9457).

use std::fmt;

use flatout_engine::Response;
use flatout_wire::Status;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::Respond;

/// An error as the client sees it: `application/problem+json` with `type`, `title`, `status`, `detail` and further
/// members.
///
/// Convert your own error with `impl From<MyError> for Problem` and `?`, or implement [`Respond`] for it.
///
/// ```
/// use flatout::{Problem, Status};
/// let problem = Problem::new(Status::CONFLICT).detail("the name is taken").member("name", "ada");
/// # assert_eq!(problem.status(), Status::CONFLICT);
/// ```
///
/// The response with all members:
///
/// ```
/// use flatout::{App, Problem, Status, test::Client};
///
/// fn buy() -> Problem {
///     Problem::new(Status::FORBIDDEN)
///         .kind("https://shop.example/problems/out-of-credit")
///         .title("You do not have enough credit")
///         .detail("your balance is 30, but that costs 50")
///         .member("balance", 30)
///         .header("Retry-After", "3600")
/// }
///
/// let answer = Client::new(App::new().post("/buy", buy))?.post("/buy").send();
/// let document: serde_json::Value = answer.json();
/// assert_eq!(answer.header("Retry-After"), Some("3600"));
/// assert_eq!(document["balance"], 30);
/// assert_eq!(document["type"], "https://shop.example/problems/out-of-credit");
/// # Ok::<(), flatout::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    // Boxed, so that the result of an extractor is small in the normal case.
    details: Box<Details>,
}

#[derive(Debug, Clone, PartialEq)]
struct Details {
    status: Status,
    kind: Option<String>,
    title: Option<String>,
    detail: Option<String>,
    members: Map<String, Value>,
    fields: Vec<(&'static str, String)>,
}

impl Problem {
    /// A problem with this status; its title is the reason phrase of the status.
    pub fn new(status: Status) -> Problem {
        let members = Map::new();
        let details = Details { status, kind: None, title: None, detail: None, members, fields: Vec::new() };
        Problem { details: Box::new(details) }
    }

    /// The status.
    pub fn status(&self) -> Status {
        self.details.status
    }

    /// A URI that identifies the kind of problem (`type`), for programs.
    pub fn kind(mut self, uri: impl Into<String>) -> Problem {
        self.details.kind = Some(uri.into());
        self
    }

    /// The kind of problem, for people.
    pub fn title(mut self, title: impl Into<String>) -> Problem {
        self.details.title = Some(title.into());
        self
    }

    /// What went wrong in this case, for people.
    pub fn detail(mut self, detail: impl Into<String>) -> Problem {
        self.details.detail = Some(detail.into());
        self
    }

    /// An additional member. A value that cannot be serialized as JSON is left out.
    pub fn member(mut self, name: &str, value: impl Serialize) -> Problem {
        if let Ok(value) = serde_json::to_value(value) {
            self.details.members.insert(name.to_owned(), value);
        }
        self
    }

    /// A header field of the response, such as `Retry-After`.
    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Problem {
        self.details.fields.push((name, value.into()));
        self
    }
}

impl Respond for Problem {
    fn respond(self, response: &mut Response) {
        let Details { status, kind, title, detail, mut members, fields } = *self.details;
        members.insert("type".to_owned(), kind.unwrap_or_else(|| "about:blank".to_owned()).into());
        members.insert("title".to_owned(), title.unwrap_or_else(|| status.reason().to_owned()).into());
        members.insert("status".to_owned(), status.code().into());
        if let Some(detail) = detail {
            members.insert("detail".to_owned(), detail.into());
        }
        response.set_status(status).encoded_fields(b"Content-Type: application/problem+json\r\n");
        for (name, value) in fields {
            response.header(name, value);
        }
        // A map of values always serialises.
        let _ = serde_json::to_writer(response.buffer(), &members);
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Details { status, detail, .. } = &*self.details;
        write!(f, "{} {}", status.code(), status.reason())?;
        detail.as_ref().map_or(Ok(()), |detail| write!(f, ": {detail}"))
    }
}

impl std::error::Error for Problem {}
