//! Conditional requests: no body if the client already has it.

use std::time::{SystemTime, UNIX_EPOCH};

use flatout_engine::Response;
use flatout_wire::condition::{Decision, evaluate};
use flatout_wire::head::{HeadLimits, parse};
use flatout_wire::{Status, date};

use super::Respond;
use crate::extract::Extract;
use crate::{Context, Problem};

/// Heads that were parsed before are within the server's limits.
const HEAD_LIMITS: HeadLimits =
    HeadLimits { head_bytes_max: usize::MAX, target_bytes_max: usize::MAX, fields_max: usize::MAX };

/// The conditions of a request (`If-None-Match`, `If-Modified-Since`, `If-Match`, `If-Unmodified-Since`; RFC 9110 section
/// 13): an argument with which a handler responds with 304 without making the body.
///
/// Costs one comparison per field name; the head of a request with conditions is copied.
///
/// ```
/// use flatout::{App, Conditions, Validators, Status, test::Client};
///
/// let page = |conditions: Conditions| conditions.respond(Validators::etag("v7"), || "the page");
/// let client = Client::new(App::new().get("/", page))?;
/// let first = client.get("/").send();
/// assert_eq!((first.text(), first.header("ETag")), ("the page", Some("\"v7\"")));
/// let again = client.get("/").header("If-None-Match", "\"v7\"").send();
/// assert_eq!((again.status(), again.text()), (Status::NOT_MODIFIED, ""));
/// # Ok::<(), flatout::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Conditions {
    /// The head of a request with conditions.
    head: Option<Vec<u8>>,
}

/// Validators of a resource: an entity tag, a modification time, or both.
///
/// ```
/// use std::time::{Duration, UNIX_EPOCH};
/// use flatout::{App, Conditions, Status, Validators, test::Client};
///
/// let changed = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
/// let app = App::new()
///     .get("/page", move |conditions: Conditions| {
///         conditions.respond(Validators::weak_etag("7").and_modified(changed), || "the page")
///     })
///     .get("/log", move |conditions: Conditions| {
///         conditions.respond(Validators::modified(changed), || "the log")
///     });
/// let client = Client::new(app)?;
/// assert_eq!(client.get("/page").send().header("ETag"), Some("W/\"7\""));
/// let known = client.get("/log").header("If-Modified-Since", "Tue, 14 Nov 2023 22:13:20 GMT").send();
/// assert_eq!(known.status(), Status::NOT_MODIFIED);
/// # Ok::<(), flatout::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Validators {
    etag: Option<String>,
    modified_s: Option<u64>,
}

/// The result of [`Conditions::respond`].
///
/// ```
/// use flatout::{App, Conditional, Conditions, Json, Validators, test::Client};
///
/// fn prices(conditions: Conditions) -> Conditional<Json<[u32; 2]>> {
///     conditions.respond(Validators::etag("v1"), || Json([30, 50]))
/// }
///
/// let client = Client::new(App::new().get("/prices", prices))?;
/// assert_eq!(client.get("/prices").send().text(), "[30,50]");
/// # Ok::<(), flatout::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Conditional<T> {
    validators: Validators,
    decided: Evaluation<T>,
}

#[derive(Debug, Clone)]
enum Evaluation<T> {
    Whole(T),
    NotModified,
    Failed,
}

impl Validators {
    /// A strong entity tag: representations with the same tag are identical, byte for byte. `tag` is given without
    /// quotes; an invalid tag is left out.
    pub fn etag(tag: impl AsRef<str>) -> Validators {
        Validators { etag: quoted("", tag.as_ref()), modified_s: None }
    }

    /// A weak entity tag: representations with the same tag are equivalent.
    pub fn weak_etag(tag: impl AsRef<str>) -> Validators {
        Validators { etag: quoted("W/", tag.as_ref()), modified_s: None }
    }

    /// The modification time, in whole seconds.
    pub fn modified(time: SystemTime) -> Validators {
        Validators::default().and_modified(time)
    }

    /// Adds a modification time to the entity tag.
    pub fn and_modified(mut self, time: SystemTime) -> Validators {
        self.modified_s = time.duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs());
        self
    }

    fn write(&self, response: &mut Response) {
        if let Some(etag) = &self.etag {
            response.header("ETag", etag);
        }
        if let Some(seconds) = self.modified_s {
            response.header("Last-Modified", date::format(seconds));
        }
    }
}

/// RFC 9110 section 8.8.3; only ASCII, which all clients send back unchanged.
fn quoted(prefix: &str, tag: &str) -> Option<String> {
    let is_tag = tag.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"');
    is_tag.then(|| format!("{prefix}\"{tag}\""))
}

impl Conditions {
    /// The result of `make`, with the validators; or 304 or 412, if the request's conditions require that.
    pub fn respond<T: Respond>(self, validators: Validators, make: impl FnOnce() -> T) -> Conditional<T> {
        let decided = match self.decide(&validators) {
            Decision::Proceed => Evaluation::Whole(make()),
            Decision::NotModified => Evaluation::NotModified,
            Decision::Failed => Evaluation::Failed,
        };
        Conditional { validators, decided }
    }

    /// Checks the conditions. Call it before changing the resource, so that no other change is lost.
    ///
    /// ```
    /// use flatout::{App, Conditions, Decision, Problem, Status, Validators, test::Client};
    ///
    /// let app = App::new().put("/note", |conditions: Conditions, text: String| {
    ///     match conditions.decide(&Validators::etag("v7")) {
    ///         Decision::Proceed => Ok(format!("stored {text}")),
    ///         _ => Err(Problem::new(Status::PRECONDITION_FAILED)),
    ///     }
    /// });
    /// let client = Client::new(app)?;
    /// let put = |etag| client.put("/note").header("If-Match", etag).body("new").send().status();
    /// assert_eq!([put("\"v7\""), put("\"v6\"")], [Status::OK, Status::PRECONDITION_FAILED]);
    /// # Ok::<(), flatout::Error>(())
    /// ```
    pub fn decide(&self, validators: &Validators) -> Decision {
        let Some(bytes) = &self.head else { return Decision::Proceed };
        let mut fields = Vec::new();
        match parse(bytes, &mut fields, &HEAD_LIMITS) {
            Ok(Some(head)) => {
                let etag = validators.etag.as_deref().unwrap_or_default().as_bytes();
                evaluate(&head, etag, validators.modified_s)
            }
            // It was parsed before.
            _ => Decision::Proceed,
        }
    }
}

impl Extract for Conditions {
    fn extract(context: &mut Context<'_>) -> Result<Self, Problem> {
        let is_condition = |name: &[u8]| {
            name.len() > 7 && name.get(..3).is_some_and(|start| start.eq_ignore_ascii_case(b"if-"))
        };
        let has_some = context.head().fields().any(|(name, _)| is_condition(name));
        Ok(Conditions { head: has_some.then(|| context.head().bytes().to_vec()) })
    }
}

impl<T: Respond> Respond for Conditional<T> {
    fn respond(self, response: &mut Response) {
        match self.decided {
            Evaluation::Whole(whole) => {
                whole.respond(response);
                // The validators are those of a success.
                if response.status().code() < 300 {
                    self.validators.write(response);
                }
            }
            Evaluation::NotModified => {
                response.set_status(Status::NOT_MODIFIED);
                self.validators.write(response);
            }
            Evaluation::Failed => Problem::new(Status::PRECONDITION_FAILED).respond(response),
        }
    }
}
