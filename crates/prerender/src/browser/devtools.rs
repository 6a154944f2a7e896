//! Commands to a browser and events from it, in the DevTools protocol: JSON messages that end with a zero byte, over two pipes.
//!
//! Source: <https://chromedevtools.github.io/devtools-protocol/>, version 1.3.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

/// Time limit of a command.
const COMMAND_TIME_MAX: Duration = Duration::from_secs(15);

/// The largest message from a browser; larger ones are skipped.
const MESSAGE_BYTES_MAX: usize = 128 << 20;

/// Events that wait for one page. A page that causes more ends.
const EVENTS_MAX: usize = 4096;

/// Commands that wait for the pipe.
const COMMANDS_MAX: usize = 256;

/// Why a command has no result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DevtoolsFault {
    /// The browser has ended.
    Closed,
    /// The browser refused it, in its words.
    Refused(String),
    /// No result in time.
    Late,
}

/// An event of a page, or of one of its workers and frames.
pub(crate) struct DevtoolsEvent {
    pub(crate) session: String,
    pub(crate) method: String,
    pub(crate) params: Value,
}

/// The conversation with one browser. Clones share it.
#[derive(Clone)]
pub(crate) struct Devtools {
    next: Arc<AtomicU64>,
    writer: mpsc::Sender<Vec<u8>>,
    routes: Arc<Mutex<Routes>>,
}

type CommandResult = Result<Value, DevtoolsFault>;

/// Who waits for what.
#[derive(Default)]
struct Routes {
    commands: HashMap<u64, oneshot::Sender<CommandResult>>,
    sessions: HashMap<String, mpsc::Sender<DevtoolsEvent>>,
    is_closed: bool,
}

/// Removes a command that nobody waits for any more.
struct Registration<'a>(&'a Devtools, u64);

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        self.0.routes().commands.remove(&self.1);
    }
}

impl Devtools {
    /// Begins the conversation. It ends when the browser closes its pipe.
    pub(crate) fn begin(input: Sender, output: Receiver) -> Devtools {
        let (writer, commands) = mpsc::channel(COMMANDS_MAX);
        let devtools = Devtools { next: Arc::default(), writer, routes: Arc::default() };
        tokio::spawn(write_commands(input, commands));
        tokio::spawn(read_messages(output, devtools.routes.clone()));
        devtools
    }

    fn routes(&self) -> MutexGuard<'_, Routes> {
        lock(&self.routes)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.routes().is_closed
    }

    /// Sends a command and waits for its result. An empty session is the browser itself.
    pub(crate) async fn command(&self, session: &str, method: &str, params: Value) -> CommandResult {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (done, result) = oneshot::channel();
        {
            let mut routes = self.routes();
            if routes.is_closed {
                return Err(DevtoolsFault::Closed);
            }
            routes.commands.insert(id, done);
        }
        let _registration = Registration(self, id);
        let exchange = async {
            self.write(id, session, method, params).await?;
            result.await.unwrap_or(Err(DevtoolsFault::Closed))
        };
        timeout(COMMAND_TIME_MAX, exchange).await.unwrap_or(Err(DevtoolsFault::Late))
    }

    /// Sends a command whose result is not needed.
    pub(crate) async fn send(&self, session: &str, method: &str, params: Value) -> Result<(), DevtoolsFault> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        timeout(COMMAND_TIME_MAX, self.write(id, session, method, params))
            .await
            .unwrap_or(Err(DevtoolsFault::Late))
    }

    async fn write(&self, id: u64, session: &str, method: &str, params: Value) -> Result<(), DevtoolsFault> {
        let mut message = json!({ "id": id, "method": method, "params": params });
        if !session.is_empty() {
            message["sessionId"] = session.into();
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.writer.send(bytes).await.map_err(|_| DevtoolsFault::Closed)
    }

    /// The events of a session, from now on.
    pub(crate) fn events(&self, session: &str) -> mpsc::Receiver<DevtoolsEvent> {
        let (sender, receiver) = mpsc::channel(EVENTS_MAX);
        self.routes().sessions.insert(session.to_owned(), sender);
        receiver
    }

    /// Sends the events of a session to where those of another one go: a worker's or a frame's to its page.
    pub(crate) fn join(&self, session: &str, page: &str) {
        let mut routes = self.routes();
        if let Some(sender) = routes.sessions.get(page).cloned() {
            routes.sessions.insert(session.to_owned(), sender);
        }
    }

    /// Ends the events of a page and of all that belongs to it.
    pub(crate) fn leave(&self, page: &str) {
        let mut routes = self.routes();
        if let Some(ended) = routes.sessions.remove(page) {
            routes.sessions.retain(|_, sender| !sender.same_channel(&ended));
        }
    }
}

fn lock(routes: &Mutex<Routes>) -> MutexGuard<'_, Routes> {
    routes.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn write_commands(mut input: Sender, mut commands: mpsc::Receiver<Vec<u8>>) {
    while let Some(bytes) = commands.recv().await {
        if input.write_all(&bytes).await.is_err() {
            return;
        }
    }
}

async fn read_messages(mut output: Receiver, routes: Arc<Mutex<Routes>>) {
    let mut framing = Framing::default();
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count) = output.read(&mut buffer).await {
        let Some(bytes) = buffer.get(..count).filter(|bytes| !bytes.is_empty()) else { break };
        framing.split(bytes, |message| {
            if let Ok(message) = serde_json::from_slice(message) {
                deliver(&mut lock(&routes), message);
            }
        });
    }
    let mut routes = lock(&routes);
    routes.is_closed = true;
    // Whoever waits is notified by the end of the channel.
    routes.commands.clear();
    routes.sessions.clear();
}

/// Splits what is read into messages.
#[derive(Default)]
struct Framing {
    partial: Vec<u8>,
    is_skipping: bool,
}

impl Framing {
    fn split(&mut self, bytes: &[u8], mut deliver: impl FnMut(&[u8])) {
        let mut pieces = bytes.split(|&byte| byte == 0).peekable();
        while let Some(piece) = pieces.next() {
            if self.partial.len() + piece.len() > MESSAGE_BYTES_MAX {
                self.is_skipping = true;
                self.partial = Vec::new();
            }
            if !self.is_skipping {
                self.partial.extend_from_slice(piece);
            }
            if pieces.peek().is_some() {
                if !self.is_skipping {
                    deliver(&self.partial);
                }
                (self.partial, self.is_skipping) = (Vec::new(), false);
            }
        }
    }
}

fn deliver(routes: &mut Routes, mut message: Value) {
    if let Some(id) = message.get("id").and_then(Value::as_u64) {
        let Some(done) = routes.commands.remove(&id) else { return };
        let result = match message.get("error") {
            Some(error) => Err(DevtoolsFault::Refused(text(error, "message").to_owned())),
            None => Ok(message.get_mut("result").map(Value::take).unwrap_or_default()),
        };
        // Who has sent it may have given up.
        let _ = done.send(result);
        return;
    }
    let session = text(&message, "sessionId").to_owned();
    let method = text(&message, "method").to_owned();
    let params = message.get_mut("params").map(Value::take).unwrap_or_default();
    if let Some(sender) = routes.sessions.get(&session).cloned()
        && sender.try_send(DevtoolsEvent { session: session.clone(), method, params }).is_err()
    {
        // Its page reads no more, or causes too much: it ends.
        routes.sessions.retain(|_, other| !other.same_channel(&sender));
    }
}

/// A text member of a JSON object; empty if there is none.
pub(crate) fn text<'v>(value: &'v Value, name: &str) -> &'v str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_split_wherever_reads_end() {
        let text = b"one\0two\0\0three\0rest";
        for size in 1..=text.len() {
            let mut framing = Framing::default();
            let mut found = Vec::new();
            for piece in text.chunks(size) {
                framing.split(piece, |message| found.push(String::from_utf8(message.to_vec()).unwrap()));
            }
            assert_eq!(found, ["one", "two", "", "three"], "{size} bytes at a time");
            assert_eq!(framing.partial, b"rest");
        }
    }

    #[test]
    fn messages_that_are_too_large_are_skipped() {
        let mut framing = Framing::default();
        let large = vec![b'x'; MESSAGE_BYTES_MAX / 2 + 1];
        let mut found = 0;
        for _ in 0..3 {
            framing.split(&large, |_| found += 1);
        }
        framing.split(b"\0next\0", |message| {
            assert_eq!(message, b"next");
            found += 1;
        });
        assert_eq!(found, 1);
    }

    #[test]
    fn events_go_to_their_page_until_it_reads_no_more() {
        let mut routes = Routes::default();
        let (sender, mut receiver) = mpsc::channel(2);
        routes.sessions.insert("page".to_owned(), sender.clone());
        routes.sessions.insert("worker".to_owned(), sender);
        let event = |session: &str| json!({ "sessionId": session, "method": "a.b", "params": { "x": 1 } });
        deliver(&mut routes, event("other"));
        deliver(&mut routes, event("worker"));
        deliver(&mut routes, event("page"));
        assert_eq!(receiver.try_recv().unwrap().session, "worker");
        deliver(&mut routes, event("page"));
        assert_eq!(routes.sessions.len(), 2);
        deliver(&mut routes, event("page"));
        assert!(routes.sessions.is_empty(), "too many events end the page");
    }
}
