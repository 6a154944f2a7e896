//! Server-Sent Events.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use flatout_engine::{Body, BoxError, Response};
use flatout_wire::Status;
use futures_core::Stream;
use http_body::Frame;
use pin_project_lite::pin_project;
use tokio::time::{Instant, Sleep, sleep};

use super::Respond;
use crate::extract::Extract;
use crate::{Problem, Shutdown};

/// Time of silence after which a comment is sent, so that proxies do not close the connection.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// A stream of events (`text/event-stream`), with a comment after 15 seconds of silence.
///
/// A client that reconnects sends the last id that it has seen: [`LastEventId`]. A stream delays draining unless it ends
/// by itself: see [`Sse::until`].
///
/// ```
/// use flatout::{App, Event, Sse, test::Client};
///
/// let events = || futures_util::stream::iter([Event::data("one").id("1"), Event::data("two\nlines")]);
/// let client = Client::new(App::new().get("/", move || Sse::new(events())))?;
/// assert_eq!(client.get("/").send().text(), "id: 1\ndata: one\n\ndata: two\ndata: lines\n\n");
/// # Ok::<(), flatout::Error>(())
/// ```
pub struct Sse<S> {
    stream: S,
    keep_alive: Option<Duration>,
    end: Option<Pin<Box<dyn Future<Output = ()>>>>,
}

/// The stream is boxed before it is polled.
impl<S> Unpin for Sse<S> {}

/// One event.
///
/// ```
/// use std::time::Duration;
/// use flatout::{App, Event, Sse, test::Client};
///
/// let quotes = || {
///     let quote = Event::json(&[42, 43]).map(|event| event.event("quote").id("7").retry(Duration::from_secs(2)));
///     Sse::new(futures_util::stream::iter([Event::comment("quotes"), quote.unwrap_or_default()]))
/// };
/// let client = Client::new(App::new().get("/", quotes))?;
/// let expected = ": quotes\n\nretry: 2000\nid: 7\nevent: quote\ndata: [42,43]\n\n";
/// assert_eq!(client.get("/").send().text(), expected);
/// # Ok::<(), flatout::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Event(String);

/// The id of the last event that a reconnecting client has seen: the field `Last-Event-ID`.
///
/// ```
/// use flatout::{App, Event, LastEventId, Sse, test::Client};
///
/// let ticks = |LastEventId(last): LastEventId| {
///     let first = last.and_then(|id| id.parse().ok()).map_or(1, |last: u32| last + 1);
///     let event = |n: u32| Event::data("tick").id(n.to_string());
///     Sse::new(futures_util::stream::iter((first..first + 10).map(event)))
/// };
/// let client = Client::new(App::new().get("/ticks", ticks))?;
/// let events = client.get("/ticks").header("Last-Event-ID", "41").events(1);
/// assert_eq!(events[0].id.as_deref(), Some("42"));
/// # Ok::<(), flatout::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastEventId(pub Option<String>);

impl Event {
    /// An event with this data, which may contain several lines.
    pub fn data(text: impl AsRef<str>) -> Event {
        Event::default().lines("data", text.as_ref())
    }

    /// An event whose data is JSON.
    ///
    /// # Errors
    /// The value cannot be serialized as JSON.
    pub fn json(value: &impl serde::Serialize) -> serde_json::Result<Event> {
        Ok(Event::data(serde_json::to_string(value)?))
    }

    /// A comment, which clients ignore.
    pub fn comment(text: impl AsRef<str>) -> Event {
        Event::default().lines("", text.as_ref())
    }

    /// Its type; the default is `message`. Only the first line is used.
    pub fn event(self, name: impl AsRef<str>) -> Event {
        self.first_line("event", name.as_ref())
    }

    /// Its id, with which a client can resume. Only the first line is used; an id with a NUL is left out, because clients
    /// ignore it.
    pub fn id(self, id: impl AsRef<str>) -> Event {
        let id = id.as_ref();
        if id.contains('\0') { self } else { self.first_line("id", id) }
    }

    /// How long the client waits before it reconnects.
    pub fn retry(self, time: Duration) -> Event {
        self.first_line("retry", &time.as_millis().to_string())
    }

    /// Fields stand before the data.
    fn first_line(mut self, field: &str, value: &str) -> Event {
        let line = value.split(['\r', '\n']).next().unwrap_or_default();
        self.0.insert_str(0, &format!("{field}: {line}\n"));
        self
    }

    fn lines(mut self, field: &str, text: &str) -> Event {
        // CR alone ends a line as well; the rest must not become a field.
        for line in text.replace("\r\n", "\n").split(['\r', '\n']) {
            self.0.push_str(&format!("{field}: {line}\n"));
        }
        self
    }

    fn encoded(mut self) -> Bytes {
        self.0.push('\n');
        self.0.into()
    }
}

impl<S: Stream<Item = Event>> Sse<S> {
    /// These events.
    pub fn new(stream: S) -> Sse<S> {
        Sse { stream, keep_alive: Some(KEEP_ALIVE), end: None }
    }

    /// Sends a comment after this time of silence; `None` sends none.
    pub fn keep_alive(mut self, time: Option<Duration>) -> Sse<S> {
        self.keep_alive = time;
        self
    }

    /// Ends the stream when the server drains, so that clients reconnect to the next server.
    ///
    /// ```
    /// use std::time::Duration;
    /// use flatout::{App, Event, Shutdown, Sse, test::Client};
    ///
    /// let news = |shutdown: Shutdown| {
    ///     let silence = futures_util::stream::pending::<Event>();
    ///     Sse::new(silence).keep_alive(Some(Duration::from_secs(30))).until(shutdown)
    /// };
    /// let client = Client::new(App::new().get("/news", news))?;
    /// client.drain();
    /// assert_eq!(client.get("/news").send().text(), "");
    /// # Ok::<(), flatout::Error>(())
    /// ```
    pub fn until(mut self, mut shutdown: Shutdown) -> Sse<S> {
        self.end = Some(Box::pin(async move { shutdown.begun().await }));
        self
    }
}

pin_project! {
    struct Events<S> {
        #[pin]
        stream: S,
        keep_alive: Option<Duration>,
        silence: Option<Pin<Box<Sleep>>>,
        end: Option<Pin<Box<dyn Future<Output = ()>>>>,
    }
}

impl<S: Stream<Item = Event>> http_body::Body for Events<S> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.project();
        if this.end.as_mut().is_some_and(|end| end.as_mut().poll(context).is_ready()) {
            // Not polled again.
            *this.end = None;
            return Poll::Ready(None);
        }
        if let Poll::Ready(event) = this.stream.poll_next(context) {
            *this.silence = None;
            return Poll::Ready(event.map(|event| Ok(Frame::data(event.encoded()))));
        }
        let Some(time) = *this.keep_alive else { return Poll::Pending };
        let silence = this.silence.get_or_insert_with(|| Box::pin(sleep(time)));
        if silence.as_mut().poll(context).is_pending() {
            return Poll::Pending;
        }
        silence.as_mut().reset(Instant::now() + time);
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b":\n\n")))))
    }
}

impl<S: Stream<Item = Event> + 'static> Respond for Sse<S> {
    fn respond(self, response: &mut Response) {
        let Sse { stream, keep_alive, end } = self;
        response.encoded_fields(b"Content-Type: text/event-stream\r\nCache-Control: no-store\r\n");
        response.set_body(Body::Stream(Box::pin(Events { stream, keep_alive, silence: None, end })));
    }
}

impl Extract for LastEventId {
    fn extract(context: &mut crate::Context<'_>) -> Result<Self, Problem> {
        let sent = context.header("last-event-id").map(std::str::from_utf8).transpose();
        let refused = |_| Problem::new(Status::BAD_REQUEST).detail("Last-Event-ID is not UTF-8");
        Ok(LastEventId(sent.map_err(refused)?.map(str::to_owned)))
    }
}
