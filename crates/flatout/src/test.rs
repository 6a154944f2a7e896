//! Calling an application without a socket, for its author's tests.
//!
//! ```
//! use flatout::{App, Status, test::Client};
//!
//! let client = Client::new(App::new().get("/hello", || "hello"))?;
//! let answer = client.get("/hello").send();
//! assert_eq!(answer.status(), Status::OK);
//! assert_eq!(answer.text(), "hello");
//! # Ok::<(), flatout::Error>(())
//! ```

use std::fmt::Write;
use std::os::unix::fs::FileExt;

use bytes::Bytes;
use flatout_engine::{
    Body, BodyPlan, BodyStream, FileRange, Part, Reply, Request, RequestBody, Response, Service,
};
use flatout_wire::Status;
use flatout_wire::head::{HeadLimits, parse};
use flatout_wire::target::{self, PathForm};
use http_body_util::BodyExt;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::LocalSet;

use crate::lifetime::Lifetime;
use crate::routes::{Routes, RoutesService};
use crate::{App, Result};

/// Calls one worker of an application, whose state lives from call to call.
pub struct Client {
    service: RoutesService,
    runtime: Runtime,
    draining: watch::Sender<bool>,
}

/// A request under construction.
pub struct Call<'c> {
    client: &'c Client,
    head: String,
    body: Vec<u8>,
}

/// What came back.
#[derive(Debug, Clone)]
pub struct Answer {
    status: Status,
    fields: Vec<u8>,
    body: Bytes,
}

impl Client {
    /// A client of this application. What runs at its start has run; what runs beside it and at its stop does not.
    ///
    /// # Errors
    /// Routes that contradict each other, middleware that cannot work, a start that failed.
    pub fn new(mut app: App) -> Result<Client> {
        if let Some(fault) = app.fault.take() {
            return Err(fault);
        }
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| {
                crate::Error::Server(flatout_engine::Error::System("a runtime".to_owned(), error))
            })?;
        let mut lifetime = std::mem::take(&mut app.lifetime);
        lifetime.open()?;
        LocalSet::new().block_on(&runtime, Lifetime::start(lifetime.starts))?;
        let (draining, receiver) = watch::channel(false);
        let service = std::sync::Arc::new(Routes::of(app)?).service(receiver, None);
        Ok(Client { service, runtime, draining })
    }

    /// A GET request.
    pub fn get(&self, target: &str) -> Call<'_> {
        self.call("GET", target)
    }

    /// A POST request.
    pub fn post(&self, target: &str) -> Call<'_> {
        self.call("POST", target)
    }

    /// A request with any method.
    pub fn call(&self, method: &str, target: &str) -> Call<'_> {
        Call { client: self, head: format!("{method} {target} HTTP/1.1\r\nHost: test\r\n"), body: Vec::new() }
    }

    /// Tells handlers that the server drains.
    pub fn drain(&self) {
        self.draining.send_replace(true);
    }
}

impl Call<'_> {
    /// Adds a header field.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        // Writing to a `String` cannot fail.
        let _ = write!(self.head, "{name}: {value}\r\n");
        self
    }

    /// Sets the body.
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    /// Sets the body and its type to JSON.
    ///
    /// # Panics
    /// If the value cannot be JSON.
    pub fn json(self, value: &impl Serialize) -> Self {
        let body = serde_json::to_vec(value).expect("the value is JSON");
        self.header("Content-Type", "application/json").body(body)
    }

    /// Sends it and waits for the whole answer.
    ///
    /// # Panics
    /// If the request is malformed, or the answer's body fails.
    pub fn send(mut self) -> Answer {
        if !self.body.is_empty() {
            let length = self.body.len();
            self = self.header("Content-Length", &length.to_string());
        }
        self.head.push_str("\r\n");
        let Client { service, runtime, .. } = self.client;
        LocalSet::new().block_on(runtime, answer(service, &self.head, &self.body))
    }
}

impl Answer {
    /// The status.
    pub fn status(&self) -> Status {
        self.status
    }

    /// The value of the first field of this name.
    pub fn header(&self, name: &str) -> Option<&str> {
        let text = std::str::from_utf8(&self.fields).ok()?;
        text.lines()
            .filter_map(|line| line.split_once(": "))
            .find_map(|(this, value)| this.eq_ignore_ascii_case(name).then_some(value))
    }

    /// The body.
    pub fn bytes(&self) -> &[u8] {
        &self.body
    }

    /// The body as text.
    ///
    /// # Panics
    /// If it is not UTF-8.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("the body is UTF-8")
    }

    /// The body as JSON.
    ///
    /// # Panics
    /// If it is not JSON of this type.
    pub fn json<T: DeserializeOwned>(&self) -> T {
        serde_json::from_slice(&self.body).expect("the body is JSON of this type")
    }
}

async fn answer(service: &RoutesService, head: &str, body: &[u8]) -> Answer {
    let mut fields = Vec::new();
    let head = parse(head.as_bytes(), &mut fields, &HeadLimits::default());
    let head = head.expect("the request is well-formed").expect("the request is whole");
    let mut scratch = Vec::new();
    let path = match service.path_form() {
        PathForm::Strict => target::normal_path(head.path(), &mut scratch),
        PathForm::Forward => target::forward_path(head.path(), &mut scratch),
    };
    let path = path.expect("the path has a normal form");
    let streams = !body.is_empty() && matches!(service.body(&head, path), BodyPlan::Stream { .. });
    let body = match streams {
        true => RequestBody::Stream(BodyStream::whole(Bytes::copy_from_slice(body))),
        false => RequestBody::Whole { bytes: body, trailers: &[] },
    };
    let mut response = Response::new();
    if let Reply::Later(future) = service.call(Request::detached(head, path, body), &mut response) {
        response = future.await;
    }
    let body = collect(response.take_body()).await;
    let mut fields = Vec::new();
    response.write_fields(&mut fields);
    Answer { status: response.status(), fields, body }
}

async fn collect(body: Body) -> Bytes {
    match body {
        Body::Shared(bytes) => bytes,
        Body::Static(bytes) => Bytes::from_static(bytes),
        Body::Stream(body) => body.collect().await.expect("the body does not fail").to_bytes(),
        Body::File(range) => read(&range),
        Body::Parts(parts) => {
            let bytes = parts.iter().flat_map(|part| match part {
                Part::Bytes(bytes) => bytes.clone(),
                Part::File(range) => read(range),
            });
            bytes.collect()
        }
        Body::Empty | Body::Buffered | Body::Pushed | Body::Take(_) => Bytes::new(),
    }
}

fn read(range: &FileRange) -> Bytes {
    let mut bytes = vec![0; usize::try_from(range.bytes).expect("a file that fits memory")];
    range.file.read_exact_at(&mut bytes, range.offset).expect("the file is as long as promised");
    bytes.into()
}
