//! Errors as problem details (RFC 9457).

use std::fmt;

use flatout_engine::Response;
use flatout_wire::Status;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::Respond;

/// An error as its client sees it: `application/problem+json` with `type`, `title`, `status`, `detail` and members of
/// one's own.
///
/// An author's error becomes one by `impl From<MyError> for Problem` and `?`, or by [`Respond`] of its own.
///
/// ```
/// use flatout::{Problem, Status};
/// let problem = Problem::new(Status::CONFLICT).detail("the name is taken").member("name", "ada");
/// # assert_eq!(problem.status(), Status::CONFLICT);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    status: Status,
    kind: Option<String>,
    title: Option<String>,
    detail: Option<String>,
    members: Map<String, Value>,
    fields: Vec<(&'static str, String)>,
}

impl Problem {
    /// A problem with this status; its title is the status's own phrase.
    pub fn new(status: Status) -> Problem {
        Problem { status, kind: None, title: None, detail: None, members: Map::new(), fields: Vec::new() }
    }

    /// The status.
    pub fn status(&self) -> Status {
        self.status
    }

    /// A URI that names the kind of problem (`type`), for programs to tell problems apart by.
    pub fn kind(mut self, uri: impl Into<String>) -> Problem {
        self.kind = Some(uri.into());
        self
    }

    /// What kind of problem it is, for people.
    pub fn title(mut self, title: impl Into<String>) -> Problem {
        self.title = Some(title.into());
        self
    }

    /// What went wrong this time, for people.
    pub fn detail(mut self, detail: impl Into<String>) -> Problem {
        self.detail = Some(detail.into());
        self
    }

    /// A member of one's own. One that cannot be JSON is left out.
    pub fn member(mut self, name: &str, value: impl Serialize) -> Problem {
        if let Ok(value) = serde_json::to_value(value) {
            self.members.insert(name.to_owned(), value);
        }
        self
    }

    /// A header field of the answer, such as `Retry-After`.
    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Problem {
        self.fields.push((name, value.into()));
        self
    }
}

impl Respond for Problem {
    fn respond(self, response: &mut Response) {
        let mut members = self.members;
        let title = self.title.unwrap_or_else(|| self.status.reason().to_owned());
        members.insert("type".to_owned(), self.kind.unwrap_or_else(|| "about:blank".to_owned()).into());
        members.insert("title".to_owned(), title.into());
        members.insert("status".to_owned(), self.status.code().into());
        if let Some(detail) = self.detail {
            members.insert("detail".to_owned(), detail.into());
        }
        response.set_status(self.status).encoded_fields(b"Content-Type: application/problem+json\r\n");
        for (name, value) in self.fields {
            response.header(name, value);
        }
        // A map of values always serialises.
        let _ = serde_json::to_writer(response.buffer(), &members);
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.status.code(), self.status.reason())?;
        self.detail.as_ref().map_or(Ok(()), |detail| write!(f, ": {detail}"))
    }
}

impl std::error::Error for Problem {}
