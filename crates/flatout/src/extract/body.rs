//! Arguments that are the body.

use std::borrow::Cow;
use std::ops::Deref;

use bytes::Bytes;
use flatout_engine::{BodyStream, RequestBody};
use flatout_wire::Status;
use serde::de::DeserializeOwned;
use serde_json::error::Category;

use super::fault::without_value;
use super::{BodyUse, Extract};
use crate::{Context, Problem};

/// JSON: as an argument the body of the request, as a result the body of the response.
///
/// # Errors
/// 415 unless the content type is `application/json` or ends in `+json`; 400 if the text is not JSON; 422 if it is JSON
/// of another shape. The detail says what was expected and where, and does not repeat the value, which may be a password.
///
/// ```
/// use flatout::{App, Json, test::Client};
///
/// #[derive(serde::Deserialize, serde::Serialize)]
/// struct Item { id: u32 }
///
/// let client = Client::new(App::new().put("/item", |Json(item): Json<Item>| Json(Item { id: item.id + 1 })))?;
/// assert_eq!(client.put("/item").json(&serde_json::json!({"id": 1})).send().text(), r#"{"id":2}"#);
/// let refused = client.put("/item").json(&serde_json::json!({"id": "secret"})).send();
/// assert_eq!(refused.status().code(), 422);
/// assert!(refused.text().contains("expected a whole number") && !refused.text().contains("secret"));
/// # Ok::<(), flatout::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Json<T>(pub T);

/// The body while it arrives: an [`http_body::Body`] that may be read on any thread.
///
/// ```
/// use flatout::{App, Problem, Status, Streamed, test::Client};
/// use http_body_util::BodyExt;
///
/// let app = App::new().post("/count", async |Streamed(mut body): Streamed| {
///     let mut bytes = 0;
///     while let Some(frame) = body.frame().await {
///         let frame = frame.map_err(|fault| Problem::new(Status::BAD_REQUEST).detail(fault.to_string()))?;
///         bytes += frame.data_ref().map_or(0, |data| data.len());
///     }
///     Ok::<_, Problem>(bytes.to_string())
/// });
/// assert_eq!(Client::new(app)?.post("/count").body("hello").send().text(), "5");
/// # Ok::<(), flatout::Error>(())
/// ```
#[derive(Debug)]
pub struct Streamed(pub BodyStream);

impl<T> Deref for Json<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: DeserializeOwned> Extract for Json<T> {
    const BODY: BodyUse = BodyUse::Whole;

    fn extract(context: &mut Context<'_>) -> Result<Self, Problem> {
        if !context.header("content-type").is_some_and(is_json) {
            let detail = "the request body must be application/json";
            return Err(Problem::new(Status::UNSUPPORTED_MEDIA_TYPE).detail(detail));
        }
        serde_json::from_slice(whole(context)?).map(Json).map_err(|error| {
            let status = match error.classify() {
                Category::Data => Status::UNPROCESSABLE_CONTENT,
                Category::Io | Category::Syntax | Category::Eof => Status::BAD_REQUEST,
            };
            Problem::new(status).detail(format!("the request body: {}", without_value(&error)))
        })
    }
}

impl Extract for Vec<u8> {
    const BODY: BodyUse = BodyUse::Whole;

    fn extract(context: &mut Context<'_>) -> Result<Self, Problem> {
        Ok(whole(context)?.to_vec())
    }
}

impl Extract for Bytes {
    const BODY: BodyUse = BodyUse::Whole;

    fn extract(context: &mut Context<'_>) -> Result<Self, Problem> {
        Ok(Bytes::copy_from_slice(whole(context)?))
    }
}

impl Extract for String {
    const BODY: BodyUse = BodyUse::Whole;

    fn extract(context: &mut Context<'_>) -> Result<Self, Problem> {
        String::from_utf8(whole(context)?.to_vec())
            .map_err(|_| Problem::new(Status::BAD_REQUEST).detail("the request body is not UTF-8"))
    }
}

impl Extract for Cow<'static, str> {
    const BODY: BodyUse = BodyUse::Whole;

    fn extract(context: &mut Context<'_>) -> Result<Self, Problem> {
        String::extract(context).map(Cow::Owned)
    }
}

impl Extract for Streamed {
    const BODY: BodyUse = BodyUse::Stream;

    fn extract(context: &mut Context<'_>) -> Result<Self, Problem> {
        Ok(Streamed(match context.take_body()? {
            RequestBody::Stream(stream) => stream,
            RequestBody::Whole { bytes, .. } => BodyStream::whole(Bytes::copy_from_slice(bytes)),
        }))
    }
}

pub(super) fn whole<'a>(context: &mut Context<'a>) -> Result<&'a [u8], Problem> {
    match context.take_body()? {
        RequestBody::Whole { bytes, .. } => Ok(bytes),
        RequestBody::Stream(_) => {
            Err(Problem::new(Status::INTERNAL_SERVER_ERROR).detail("a handler reads its request body twice"))
        }
    }
}

fn is_json(content_type: &[u8]) -> bool {
    let essence = essence(content_type);
    essence == b"application/json" || (essence.starts_with(b"application/") && essence.ends_with(b"+json"))
}

/// A content type without its parameters, in lowercase.
pub(super) fn essence(content_type: &[u8]) -> Vec<u8> {
    content_type.split(|&byte| byte == b';').next().unwrap_or_default().trim_ascii().to_ascii_lowercase()
}
