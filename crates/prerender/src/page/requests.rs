//! The requests of a page: each pauses until we have fetched it, or refused it.

use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use serde_json::{Value, json};

use super::result::FailedRequest;
use crate::browser::{Devtools, DevtoolsFault, text};
use crate::origins::AllowedOrigin;
use crate::walls::{FetchFault, Fetched, Fetcher, PageRequest, PausedRequest, Ruling, judge};

/// Largest body of a request of a page.
const REQUEST_BODY_BYTES_MAX: usize = 1 << 20;

/// One transparent pixel.
const PIXEL: &str = "R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7";

/// Fields of responses that a browser must not see: they are of the connection to us.
const OF_CONNECTION: [&str; 6] =
    ["connection", "content-encoding", "content-length", "keep-alive", "trailer", "transfer-encoding"];

/// What became of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Settled {
    /// The page has a response, or an error that it would also have elsewhere.
    Done,
    /// The same, with a status that says so.
    Failed(FailedRequest),
    /// The page's own site could not be reached.
    Lost,
}

/// A request that a page waits for.
pub(crate) struct Paused {
    /// The session of the page, or of its frame or worker.
    pub(crate) session: String,
    pub(crate) id: String,
    pub(crate) url: String,
    pub(crate) kind: String,
    pub(crate) frame: String,
    method: String,
    fields: HeaderMap,
    body: Bytes,
}

impl Paused {
    /// Reads `Fetch.requestPaused`.
    pub(crate) fn of(session: String, params: &Value) -> Paused {
        let request = params.get("request").unwrap_or(&Value::Null);
        let mut fields = HeaderMap::new();
        for (name, value) in request.get("headers").and_then(Value::as_object).into_iter().flatten() {
            let name = HeaderName::from_bytes(name.as_bytes());
            let value = HeaderValue::from_str(value.as_str().unwrap_or_default());
            if let (Ok(name), Ok(value)) = (name, value) {
                fields.append(name, value);
            }
        }
        Paused {
            session,
            id: text(params, "requestId").to_owned(),
            url: text(request, "url").to_owned(),
            kind: text(params, "resourceType").to_owned(),
            frame: text(params, "frameId").to_owned(),
            method: text(request, "method").to_owned(),
            fields,
            body: body_of(request),
        }
    }

    /// `shows_pictures`: pictures of the page's own site and of allowed origins are fetched.
    pub(crate) fn ruling(&self, fetcher: &Fetcher, allow: &[AllowedOrigin], shows_pictures: bool) -> Ruling {
        if self.body.len() > REQUEST_BODY_BYTES_MAX {
            return Ruling::Refuse("body");
        }
        let request =
            PausedRequest { url: &self.url, method: &self.method, kind: &self.kind, shows_pictures };
        judge(&request, fetcher.page(), allow)
    }

    /// Carries out a ruling.
    pub(crate) async fn settle(self, ruling: Ruling, devtools: Devtools, fetcher: Arc<Fetcher>) -> Settled {
        // A command that fails is of a page that has ended, which shows otherwise.
        let _ = match ruling {
            Ruling::Fetch(to) => {
                let method = Method::from_bytes(self.method.as_bytes()).unwrap_or_default();
                let request = PageRequest { to, method, fields: self.fields, body: self.body };
                match fetcher.fetch(request).await {
                    Ok(fetched) => {
                        let is_sent = fulfill(&devtools, &self.session, &self.id, &fetched).await;
                        if fetched.status >= 400 {
                            return Settled::Failed(FailedRequest {
                                url: self.url,
                                reason: fetched.status.to_string(),
                                is_walled: false,
                            });
                        }
                        is_sent
                    }
                    Err(fault) => {
                        let _ = refuse(&devtools, &self.session, &self.id).await;
                        return match fault {
                            FetchFault::Unreachable(_) => Settled::Lost,
                            _ => Settled::Done,
                        };
                    }
                }
            }
            Ruling::Picture => {
                let picture = json!({
                    "requestId": self.id, "responseCode": 200, "body": PIXEL,
                    "responseHeaders": [
                        { "name": "Content-Type", "value": "image/gif" },
                        { "name": "Access-Control-Allow-Origin", "value": "*" },
                    ],
                });
                devtools.send(&self.session, "Fetch.fulfillRequest", picture).await
            }
            Ruling::Refuse(_) => refuse(&devtools, &self.session, &self.id).await,
        };
        Settled::Done
    }
}

/// The parts of a request's body: `postDataEntries` has them as they are sent.
fn body_of(request: &Value) -> Bytes {
    let entries = request.get("postDataEntries").and_then(Value::as_array);
    let parts =
        entries.into_iter().flatten().filter_map(|entry| BASE64_STANDARD.decode(text(entry, "bytes")).ok());
    let body: Vec<u8> = parts.flatten().collect();
    match body.is_empty() {
        true => Bytes::from(text(request, "postData").to_owned()),
        false => body.into(),
    }
}

/// Gives a page the response to its request.
pub(crate) async fn fulfill(
    devtools: &Devtools,
    session: &str,
    request: &str,
    fetched: &Fetched,
) -> Result<(), DevtoolsFault> {
    let fields = fetched.fields.iter().filter(|(name, _)| !OF_CONNECTION.contains(&name.as_str()));
    let fields: Vec<Value> = fields
        .map(|(name, value)| json!({ "name": name.as_str(), "value": String::from_utf8_lossy(value.as_bytes()) }))
        .collect();
    let params = json!({
        "requestId": request, "responseCode": fetched.status, "responseHeaders": fields,
        "body": BASE64_STANDARD.encode(&fetched.body),
    });
    devtools.send(session, "Fetch.fulfillRequest", params).await
}

/// Makes a request fail in its page.
pub(crate) async fn refuse(devtools: &Devtools, session: &str, request: &str) -> Result<(), DevtoolsFault> {
    let params = json!({ "requestId": request, "errorReason": "BlockedByClient" });
    devtools.send(session, "Fetch.failRequest", params).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_read_as_they_are_sent() {
        let entries =
            json!({ "postDataEntries": [{ "bytes": "YQ==" }, { "bytes": "Yg==" }], "postData": "x" });
        assert_eq!(body_of(&entries), "ab");
        assert_eq!(body_of(&json!({ "postData": "x" })), "x");
        assert_eq!(body_of(&json!({})), "");
    }
}
