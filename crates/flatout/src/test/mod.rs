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

mod cookies;
mod direct;
mod events;
mod form;
mod socket;
mod websocket;

use std::cell::RefCell;
use std::fmt::Write;

use bytes::Bytes;
use flatout_wire::Status;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{App, Result};
use cookies::Jar;
use direct::Direct;
use events::EventReader;
use socket::TestServer;

pub use events::ServerEvent;
pub use form::MultipartForm;
pub use websocket::{ServerMessage, WebSocket};

/// Calls an application: one worker in this thread, whose state is kept from call to call, or a server over a socket.
///
/// ```
/// use flatout::{App, Headers, Method, Status, test::Client};
///
/// fn app() -> App {
///     App::new()
///         .get("/login", || ([("Set-Cookie", "user=ada; Path=/")], "welcome"))
///         .any("/me", |method: Method, Headers(headers): Headers| {
///             format!("{} {:?}", method.name(), headers.get("cookie"))
///         })
/// }
///
/// // The same test in this thread and over a socket.
/// for client in [Client::new(app())?, Client::over_socket(app())?] {
///     let client = client.keep_cookies();
///     client.get("/login").send();
///     assert_eq!(client.patch("/me").send().text(), "PATCH Some(\"user=ada\")");
///     for call in [client.post("/me"), client.put("/me"), client.delete("/me"), client.call("PURGE", "/me")] {
///         assert_eq!(call.send().status(), Status::OK);
///     }
/// }
/// # Ok::<(), flatout::Error>(())
/// ```
pub struct Client {
    transport: Transport,
    jar: Option<RefCell<Jar>>,
}

enum Transport {
    Direct(Direct),
    Socket(Box<TestServer>),
}

/// A request under construction.
///
/// ```
/// use flatout::test::{Call, Client};
/// use flatout::{App, Headers, Json};
///
/// /// What all calls of a test have in common.
/// fn as_ada(call: Call<'_>) -> Call<'_> {
///     call.header("Authorization", "ada")
/// }
///
/// let app = App::new()
///     .post("/text", |Headers(headers): Headers, text: String| format!("{:?}: {text}", headers["authorization"]))
///     .post("/sum", |Json(numbers): Json<Vec<u32>>| Json(numbers.iter().sum::<u32>()));
/// let client = Client::new(app)?;
/// assert_eq!(as_ada(client.post("/text")).body("hello").send().text(), "\"ada\": hello");
/// assert_eq!(client.post("/sum").json(&[1, 2, 3]).send().text(), "6");
/// # Ok::<(), flatout::Error>(())
/// ```
pub struct Call<'c> {
    client: &'c Client,
    path: String,
    head: String,
    body: Vec<u8>,
}

/// The response.
///
/// ```
/// use flatout::test::Client;
/// use flatout::{App, Json, Response};
///
/// let app = App::new().get("/", || Json(["a", "b"])).get("/links", || {
///     let mut response = Response::new();
///     response.header("Link", "</a>").header("Link", "</b>").buffer().extend_from_slice(b"links");
///     response
/// });
/// let client = Client::new(app)?;
/// let answer = client.get("/").send();
/// assert_eq!((answer.status().code(), answer.header("Content-Type")), (200, Some("application/json")));
/// assert_eq!(answer.json::<Vec<String>>(), ["a", "b"]);
/// let links = client.get("/links").send();
/// assert_eq!(links.all("Link").collect::<Vec<_>>(), ["</a>", "</b>"]);
/// assert_eq!(links.bytes(), b"links");
/// # Ok::<(), flatout::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Answer {
    status: Status,
    fields: Vec<u8>,
    body: Bytes,
}

impl Client {
    /// A client of this application, without a socket. `on_start` functions have run; `background` and `on_stop`
    /// functions do not run.
    ///
    /// # Errors
    /// Conflicting routes, invalid middleware, a failed `on_start` function.
    pub fn new(app: App) -> Result<Client> {
        Ok(Client { transport: Transport::Direct(Direct::new(app)?), jar: None })
    }

    /// The same over a real socket: the application is started on a free port, by default with one worker, and drained
    /// when the client is dropped. Each call uses its own connection.
    ///
    /// ```
    /// use flatout::{App, Peer, test::Client};
    ///
    /// let app = App::new().get("/peer", |Peer(peer): Peer| peer.map(|peer| peer.ip().to_string()));
    /// assert_eq!(Client::over_socket(app)?.get("/peer").send().text(), "127.0.0.1");
    /// # Ok::<(), flatout::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`App::start`].
    pub fn over_socket(app: App) -> Result<Client> {
        Ok(Client { transport: Transport::Socket(Box::new(TestServer::new(app)?)), jar: None })
    }

    /// Keeps the cookies that responses set, and sends them as a browser does: by name and path, until they expire.
    pub fn keep_cookies(mut self) -> Client {
        self.jar = Some(RefCell::default());
        self
    }

    /// A GET request.
    pub fn get(&self, target: &str) -> Call<'_> {
        self.call("GET", target)
    }

    /// A POST request.
    pub fn post(&self, target: &str) -> Call<'_> {
        self.call("POST", target)
    }

    /// A PUT request.
    pub fn put(&self, target: &str) -> Call<'_> {
        self.call("PUT", target)
    }

    /// A PATCH request.
    pub fn patch(&self, target: &str) -> Call<'_> {
        self.call("PATCH", target)
    }

    /// A DELETE request.
    pub fn delete(&self, target: &str) -> Call<'_> {
        self.call("DELETE", target)
    }

    /// A request with any method.
    pub fn call(&self, method: &str, target: &str) -> Call<'_> {
        let path = target.split('?').next().unwrap_or_default().to_owned();
        let mut head = format!("{method} {target} HTTP/1.1\r\nHost: test\r\n");
        if let Some(cookies) = self.jar.as_ref().and_then(|jar| jar.borrow().header(&path)) {
            // Writing to a `String` cannot fail.
            let _ = write!(head, "Cookie: {cookies}\r\n");
        }
        Call { client: self, path, head, body: Vec::new() }
    }

    /// Notifies handlers that the server is draining.
    ///
    /// ```
    /// use flatout::{App, Shutdown, test::Client};
    ///
    /// let client = Client::new(App::new().get("/", |shutdown: Shutdown| shutdown.has_begun().to_string()))?;
    /// client.drain();
    /// assert_eq!(client.get("/").send().text(), "true");
    /// # Ok::<(), flatout::Error>(())
    /// ```
    pub fn drain(&self) {
        match &self.transport {
            Transport::Direct(direct) => direct.drain(),
            Transport::Socket(socket) => socket.drain(),
        }
    }

    fn keep(&self, path: &str, answer: &Answer) {
        if let Some(jar) = &self.jar {
            answer.all("set-cookie").for_each(|cookie| jar.borrow_mut().set(path, cookie));
        }
    }
}

impl<'c> Call<'c> {
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
    /// If the value cannot be serialized as JSON.
    pub fn json(self, value: &impl Serialize) -> Self {
        let body = serde_json::to_vec(value).expect("the value is JSON");
        self.header("Content-Type", "application/json").body(body)
    }

    /// Sets the body and its type to a form with files, `multipart/form-data`.
    ///
    /// ```
    /// use flatout::App;
    /// use flatout::test::{Client, MultipartForm};
    ///
    /// let client = Client::new(App::new().post("/", |body: String| body))?;
    /// let answer = client.post("/").form(&MultipartForm::new().text("who", "ada")).send();
    /// assert!(answer.text().contains("name=\"who\"\r\n\r\nada\r\n"));
    /// # Ok::<(), flatout::Error>(())
    /// ```
    pub fn form(self, form: &MultipartForm) -> Self {
        self.header("Content-Type", &form.content_type()).body(form.body())
    }

    /// Sends it and waits for the complete response.
    ///
    /// # Panics
    /// If the request is malformed, the server cannot be reached, or the response body fails.
    pub fn send(mut self) -> Answer {
        self.finish_head();
        let Call { client, path, head, body } = self;
        let answer = match &client.transport {
            Transport::Direct(direct) => direct.send(&head, &body),
            Transport::Socket(socket) => socket.send(&head, &body),
        };
        client.keep(&path, &answer);
        answer
    }

    /// Sends it, waits for this many Server-Sent Events, and disconnects. Returns fewer if the stream ends earlier.
    ///
    /// ```
    /// use flatout::{App, Event, Sse, test::Client};
    ///
    /// let ticks = || Sse::new(futures_util::stream::iter((1..).map(|n: u32| Event::data(n.to_string()).id(n.to_string()))));
    /// let events = Client::new(App::new().get("/ticks", ticks))?.get("/ticks").events(2);
    /// assert_eq!(events.iter().map(|event| event.data.as_str()).collect::<Vec<_>>(), ["1", "2"]);
    /// assert_eq!(events[1].id.as_deref(), Some("2"));
    /// # Ok::<(), flatout::Error>(())
    /// ```
    ///
    /// # Panics
    /// As [`Call::send`], and if the response is not an event stream.
    pub fn events(mut self, count: usize) -> Vec<ServerEvent> {
        self = self.header("Accept", "text/event-stream");
        self.finish_head();
        let Call { client, path, head, body } = self;
        let mut reader = EventReader::new(count);
        let answer = match &client.transport {
            Transport::Direct(direct) => direct.read(&head, &body, &mut |piece| reader.take(piece)),
            Transport::Socket(socket) => socket.read(&head, &body, &mut |piece| reader.take(piece)),
        };
        let content_type = answer.header("content-type").unwrap_or_default();
        assert!(
            content_type.starts_with("text/event-stream"),
            "expected an event stream, got {content_type}"
        );
        client.keep(&path, &answer);
        reader.events()
    }

    /// Sends it as a WebSocket request, and waits until the WebSocket is open. Needs [`Client::over_socket`].
    ///
    /// ```
    /// use flatout::{App, Message, test::{Client, ServerMessage}};
    ///
    /// let app = App::new().websocket("/echo", |socket, message| socket.send(message));
    /// let client = Client::over_socket(app)?;
    /// let mut socket = client.get("/echo").header("Origin", "https://shop.example").websocket();
    /// socket.send(Message::Text("hello"));
    /// assert_eq!(socket.receive(), ServerMessage::Text("hello".to_owned()));
    /// # Ok::<(), flatout::Error>(())
    /// ```
    ///
    /// # Panics
    /// As [`Call::send`], if the client has no socket, or if the server refuses.
    pub fn websocket(mut self) -> WebSocket<'c> {
        self.head.push_str(&websocket::fields());
        self.finish_head();
        let Call { client, path, head, .. } = self;
        let Transport::Socket(socket) = &client.transport else {
            panic!("a WebSocket needs Client::over_socket")
        };
        let (stream, answer) = socket.open(&head);
        client.keep(&path, &answer);
        WebSocket::new(stream, &answer)
    }

    fn finish_head(&mut self) {
        if !self.body.is_empty() {
            let _ = write!(self.head, "Content-Length: {}\r\n", self.body.len());
        }
        self.head.push_str("\r\n");
    }
}

impl Answer {
    /// The status.
    pub fn status(&self) -> Status {
        self.status
    }

    /// The value of the first field with this name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.all(name).next()
    }

    /// The values of all fields with this name.
    pub fn all<'a, 'n>(&'a self, name: &'n str) -> impl Iterator<Item = &'a str> + use<'a, 'n> {
        let text = std::str::from_utf8(&self.fields).unwrap_or_default();
        text.lines()
            .filter_map(|line| line.split_once(": "))
            .filter(move |(this, _)| this.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
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

/// Fails a test whose response has another length than it announces: a client would wait for the rest, or take what is too
/// much for the next response, so a server aborts the connection.
fn check_length(announced: u64, bytes: u64) {
    assert!(
        bytes == announced,
        "the response announces {announced} bytes and has {bytes}: a server aborts its connection"
    );
}
