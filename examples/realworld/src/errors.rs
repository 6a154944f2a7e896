//! Errors as the specification wants them: `{"errors": {"title": ["can't be blank"]}}`.
//!
//! They are problem documents with the member `errors`: handlers and extractors use [`Problem`] and `?` as anywhere.

use flatout::{Answered, Json, Problem, Response, Status};
use serde_json::json;

/// An error about one member.
pub fn of(status: Status, what: &str, message: &str) -> Problem {
    Problem::new(status).member("errors", json!({ what: [message] }))
}

/// 404.
pub fn not_found(what: &str) -> Problem {
    of(Status::NOT_FOUND, what, "not found")
}

/// 403.
pub fn forbidden(what: &str) -> Problem {
    of(Status::FORBIDDEN, what, "forbidden")
}

/// A required value, which must not be empty.
pub fn required(value: Option<String>, name: &str) -> Result<String, Problem> {
    value.filter(|value| !value.trim().is_empty()).ok_or_else(|| blank(name))
}

/// 422.
pub fn blank(name: &str) -> Problem {
    of(Status::UNPROCESSABLE_CONTENT, name, "can't be blank")
}

/// The longest name, title, tag or address.
pub const LINE_CHARS_MAX: usize = 255;

/// # Errors
/// 422 for more than [`LINE_CHARS_MAX`].
pub fn short(value: String, name: &str) -> Result<String, Problem> {
    // PostgreSQL stores no zero byte.
    if value.chars().count() > LINE_CHARS_MAX || value.contains('\0') {
        return Err(of(Status::UNPROCESSABLE_CONTENT, name, "is too long, or has a zero byte"));
    }
    Ok(value)
}

/// # Errors
/// 422 for a zero byte, which PostgreSQL does not store.
pub fn text(value: String, name: &str) -> Result<String, Problem> {
    if value.contains('\0') {
        return Err(of(Status::UNPROCESSABLE_CONTENT, name, "has a zero byte"));
    }
    Ok(value)
}

/// The body, or the error. The message does not repeat invalid values: they may be passwords.
pub fn body<T>(body: Result<Json<T>, Problem>) -> Result<T, Problem> {
    match body {
        Ok(Json(body)) => Ok(body),
        Err(problem) => Err(of(problem.status(), "body", "is not what is wanted here")),
    }
}

/// The specification knows one content type.
pub fn as_json(_: &Answered<'_>, response: &mut Response) {
    if response.field("content-type") == Some(b"application/problem+json") {
        response.remove_header("Content-Type").header("Content-Type", "application/json");
    }
}
