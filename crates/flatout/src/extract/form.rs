//! HTML forms, as an argument and as a result.

use std::ops::Deref;

use flatout_engine::{Body, Response};
use flatout_wire::{Method, Status};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::body::{essence, whole};
use super::fault::fields;
use super::{BodyUse, Extract};
use crate::{Context, Problem, Respond};

/// Maximum fields of one form. A form with a million names would cost far more than its bytes.
const FIELDS_MAX: usize = 1000;

/// A form (`application/x-www-form-urlencoded`), read into a struct by name; a name that occurs several times fills a
/// `Vec`. For GET and HEAD it is read from the query. As a result it is the body of the response.
///
/// # Errors
/// 415 for another content type, 413 for more than 1000 fields, 422 with the invalid field.
///
/// ```
/// use flatout::{App, Form, test::Client};
///
/// #[derive(serde::Deserialize)]
/// struct Login { name: String }
///
/// let client = Client::new(App::new().post("/login", |Form(login): Form<Login>| login.name))?;
/// let call = client.post("/login").header("Content-Type", "application/x-www-form-urlencoded");
/// assert_eq!(call.body("name=Ada+L").send().text(), "Ada L");
/// # Ok::<(), flatout::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Form<T>(pub T);

impl<T> Deref for Form<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: DeserializeOwned> Extract for Form<T> {
    const BODY: BodyUse = BodyUse::Whole;

    fn extract(context: &mut Context<'_>) -> Result<Self, Problem> {
        let bytes = if matches!(context.method(), Method::Get | Method::Head) {
            context.query().unwrap_or_default().as_bytes()
        } else {
            let kind = context.header("content-type").map(essence).unwrap_or_default();
            if kind != b"application/x-www-form-urlencoded" {
                let detail = "the request body must be application/x-www-form-urlencoded";
                return Err(Problem::new(Status::UNSUPPORTED_MEDIA_TYPE).detail(detail));
            }
            whole(context)?
        };
        if bytes.iter().filter(|&&byte| byte == b'&').count() >= FIELDS_MAX {
            let detail = format!("the form has more than {FIELDS_MAX} fields");
            return Err(Problem::new(Status::CONTENT_TOO_LARGE).detail(detail));
        }
        fields(bytes).map(Form).map_err(|message| {
            Problem::new(Status::UNPROCESSABLE_CONTENT).detail(format!("the form: {message}"))
        })
    }
}

impl<T: Serialize> Respond for Form<T> {
    fn respond(self, response: &mut Response) {
        match serde_html_form::to_string(&self.0) {
            Ok(text) => {
                response.encoded_fields(b"Content-Type: application/x-www-form-urlencoded\r\n");
                response.set_body(Body::Shared(text.into()));
            }
            // A type that cannot be a form: a bug in the application.
            Err(_) => Problem::new(Status::INTERNAL_SERVER_ERROR).respond(response),
        }
    }
}
