//! An API server of Kubernetes that has only objects: lists, watches, single objects, statuses. It checks nothing.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::Folder;

/// An API server on a port of its own.
pub struct ApiServer {
    /// Its port.
    pub port: u16,
    state: Arc<ApiState>,
}

#[derive(Default)]
struct ApiState {
    inner: Mutex<ApiObjects>,
    is_away: AtomicBool,
    is_silent: AtomicBool,
    /// How often `is_silent` was set. Connections from before the last time get no more data.
    lives: AtomicUsize,
}

/// A connection, and the value of `lives` when it was accepted.
struct ApiConnection<'s> {
    stream: TcpStream,
    life: usize,
    state: &'s ApiState,
}

#[derive(Default)]
struct ApiObjects {
    /// By the path of their list without namespaces, such as `/api/v1/services`; then by namespace and name.
    objects: BTreeMap<String, BTreeMap<String, Value>>,
    watchers: Vec<(String, Sender<String>)>,
    /// All events so far, with their version and list: a watch begins behind the version that its client has.
    events: Vec<(u64, String, String)>,
    /// Events up to this version are forgotten.
    forgotten: u64,
    connections: Vec<TcpStream>,
    version: u64,
    /// Statuses that were written.
    patches: usize,
    /// Watches that were refused because they needed events that were forgotten.
    refusals: usize,
}

impl ApiServer {
    /// Starts one without objects.
    pub fn start() -> ApiServer {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("its address").port();
        let state: Arc<ApiState> = Arc::default();
        let shared = state.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if shared.is_away.load(Ordering::Relaxed) {
                    continue;
                }
                let shared = shared.clone();
                shared.inner.lock().unwrap().connections.extend(stream.try_clone());
                let life = shared.lives.load(Ordering::Relaxed);
                std::thread::spawn(move || serve(ApiConnection { stream, life, state: &shared }));
            }
        });
        ApiServer { port, state }
    }

    /// A file for `KUBECONFIG`.
    pub fn config(&self, folder: &Folder) -> std::path::PathBuf {
        let port = self.port;
        folder.write(
            "kubeconfig",
            format!(
                "apiVersion: v1\nkind: Config\nclusters: [{{name: c, cluster: {{server: 'http://127.0.0.1:{port}'}}}}]\n\
                 users: [{{name: u, user: {{}}}}]\ncontexts: [{{name: x, context: {{cluster: c, user: u}}}}]\ncurrent-context: x\n"
            ),
        );
        folder.0.join("kubeconfig")
    }

    /// Adds or replaces an object of a list, such as `/api/v1/services`.
    pub fn put(&self, list: &str, object: Value) {
        self.state.inner.lock().unwrap().put(list, object);
    }

    /// Removes an object.
    pub fn remove(&self, list: &str, namespace: &str, name: &str) {
        let mut inner = self.state.inner.lock().unwrap();
        let removed = inner.objects.get_mut(list).and_then(|all| all.remove(&format!("{namespace}/{name}")));
        if let Some(mut object) = removed {
            inner.version += 1;
            object["metadata"]["resourceVersion"] = json!(inner.version.to_string());
            inner.publish(list, "DELETED", &object);
        }
    }

    /// An object.
    pub fn object(&self, list: &str, namespace: &str, name: &str) -> Option<Value> {
        let inner = self.state.inner.lock().unwrap();
        inner.objects.get(list)?.get(&format!("{namespace}/{name}")).cloned()
    }

    /// All objects of a list.
    pub fn objects(&self, list: &str) -> Vec<Value> {
        let inner = self.state.inner.lock().unwrap();
        inner.objects.get(list).map(|all| all.values().cloned().collect()).unwrap_or_default()
    }

    /// How many statuses were written.
    pub fn patches(&self) -> usize {
        self.state.inner.lock().unwrap().patches
    }

    /// How many watches were refused, because they needed events that are forgotten.
    pub fn refusals(&self) -> usize {
        self.state.inner.lock().unwrap().refusals
    }

    /// Forgets all events so far, as an API server does after minutes: a watch that would need them is refused (410).
    pub fn forget_events(&self) {
        let mut inner = self.state.inner.lock().unwrap();
        inner.events.clear();
        inner.forgotten = inner.version;
    }

    /// Stops sending, as if its machine had failed: connections stay open. When it sends again, old connections still get nothing.
    pub fn set_silent(&self, is_silent: bool) {
        self.state.is_silent.store(is_silent, Ordering::Relaxed);
        self.state.lives.fetch_add(1, Ordering::Relaxed);
    }

    /// Closes all connections, and every new one at once, or serves again.
    pub fn set_away(&self, is_away: bool) {
        self.state.is_away.store(is_away, Ordering::Relaxed);
        let mut inner = self.state.inner.lock().unwrap();
        inner.watchers.clear();
        for stream in inner.connections.drain(..) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

impl ApiObjects {
    fn put(&mut self, list: &str, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let key = key_of(&object);
        let former = self.objects.entry(list.to_owned()).or_default().insert(key, object.clone());
        self.publish(list, if former.is_some() { "MODIFIED" } else { "ADDED" }, &object);
        object
    }

    /// A write by a client: 409 if the object is there already, or is another version than the client has read.
    fn write(&mut self, list: &str, namespace: &str, mut object: Value, is_new: bool) -> (u16, Value) {
        if !namespace.is_empty() {
            object["metadata"]["namespace"] = json!(namespace);
        }
        let key = key_of(&object);
        let known = self.objects.get(list).and_then(|all| all.get(&key));
        let version = |object: &Value| object.pointer("/metadata/resourceVersion").cloned();
        let is_stale =
            known.is_some_and(|known| version(&object).is_some_and(|it| Some(it) != version(known)));
        if is_stale || (is_new && known.is_some()) {
            return (409, failure("Conflict", 409));
        }
        (if is_new { 201 } else { 200 }, self.put(list, object))
    }

    fn publish(&mut self, list: &str, event: &str, object: &Value) {
        let line = format!("{}\n", json!({"type": event, "object": object}));
        self.events.push((self.version, list.to_owned(), line.clone()));
        self.watchers.retain(|(watched, sender)| watched != list || sender.send(line.clone()).is_ok());
    }
}

/// The namespace and name of an object.
fn key_of(object: &Value) -> String {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    format!("{}/{}", text("/metadata/namespace"), text("/metadata/name"))
}

fn failure(reason: &str, code: u16) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": reason, "code": code})
}

/// Serves the requests of a connection.
fn serve(mut connection: ApiConnection<'_>) {
    let Ok(reading) = connection.stream.try_clone() else { return };
    let mut reader = BufReader::new(reading);
    while let Some((method, target, body)) = request(&mut reader) {
        connection.wait();
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        let (list, namespace, name) = parts(path);
        if method == "GET" && name.is_none() && query.contains("watch=") {
            return watch(connection, &list, query);
        }
        let is_status = path.ends_with("/status");
        let (status, value) = respond(&method, &list, (&namespace, name), is_status, body, connection.state);
        let text = value.to_string();
        let head = format!(
            "HTTP/1.1 {status} x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            text.len()
        );
        if connection.send(&(head + &text)).is_err() {
            return;
        }
    }
}

fn request(reader: &mut BufReader<TcpStream>) -> Option<(String, String, Value)> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
    let mut words = line.split_whitespace().map(str::to_owned);
    let (method, target) = (words.next()?, words.next()?);
    let mut bytes = 0;
    loop {
        let mut field = String::new();
        reader.read_line(&mut field).ok().filter(|read| *read > 0)?;
        if field.trim().is_empty() {
            break;
        }
        if let Some((_, length)) =
            field.split_once(':').filter(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        {
            bytes = length.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; bytes];
    reader.read_exact(&mut body).ok()?;
    Some((method, target, serde_json::from_slice(&body).unwrap_or_default()))
}

impl ApiConnection<'_> {
    /// Never returns if the server is silent, or has been since the connection was made.
    fn wait(&self) {
        let ApiState { is_silent, lives, .. } = self.state;
        while is_silent.load(Ordering::Relaxed) || self.life != lives.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_secs(1));
        }
    }

    fn send(&mut self, text: &str) -> io::Result<()> {
        self.wait();
        self.stream.write_all(text.as_bytes())
    }
}

/// The number of a parameter of a watch.
fn parameter(query: &str, name: &str) -> Option<u64> {
    let values = query.split('&').filter_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    values.filter_map(|value| value.parse().ok()).next_back()
}

/// The path of the list without its namespace, the namespace, and the name of an object.
fn parts(path: &str) -> (String, String, Option<String>) {
    let mut segments: Vec<&str> = path.trim_matches('/').split('/').filter(|it| *it != "status").collect();
    let start = if segments.first() == Some(&"api") { 2 } else { 3 };
    let mut namespace = String::new();
    if segments.get(start) == Some(&"namespaces") && segments.len() > start + 2 {
        segments[start + 1].clone_into(&mut namespace);
        segments.drain(start..start + 2);
    }
    let name = segments.get(start + 1).map(|name| (*name).to_owned());
    segments.truncate(start + 1);
    (format!("/{}", segments.join("/")), namespace, name)
}

fn respond(
    method: &str,
    list: &str,
    (namespace, name): (&str, Option<String>),
    is_status: bool,
    body: Value,
    state: &ApiState,
) -> (u16, Value) {
    let mut inner = state.inner.lock().unwrap();
    let known =
        name.as_ref().and_then(|name| inner.objects.get(list)?.get(&format!("{namespace}/{name}")).cloned());
    let missing = || (404, failure("NotFound", 404));
    match (method, name) {
        ("GET", None) => {
            let items: Vec<Value> =
                inner.objects.get(list).map(|all| all.values().cloned().collect()).unwrap_or_default();
            (
                200,
                json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": inner.version.to_string()}, "items": items}),
            )
        }
        ("GET", Some(_)) => known.map_or_else(missing, |object| (200, object)),
        ("POST", None) => inner.write(list, namespace, body, true),
        ("PUT", Some(_)) => inner.write(list, namespace, body, false),
        ("PATCH", Some(_)) if is_status => match known {
            Some(mut object) => {
                object["status"] = body["status"].clone();
                inner.patches += 1;
                (200, inner.put(list, object))
            }
            None => missing(),
        },
        _ => (405, failure("MethodNotAllowed", 405)),
    }
}

/// Sends all changes of a list since a version until the connection ends, or the time that the client has given.
fn watch(mut connection: ApiConnection<'_>, list: &str, query: &str) {
    let since = parameter(query, "resourceVersion").unwrap_or_default();
    let end = Instant::now() + Duration::from_secs(parameter(query, "timeoutSeconds").unwrap_or(600));
    let (sender, events) = channel();
    {
        let mut inner = connection.state.inner.lock().unwrap();
        if since < inner.forgotten {
            inner.refusals += 1;
            let line = format!("{}\n", json!({"type": "ERROR", "object": failure("Expired", 410)}));
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{line}",
                line.len()
            );
            drop(inner);
            let _ = connection.send(&head);
            // The state has a copy of it.
            let _ = connection.stream.shutdown(std::net::Shutdown::Both);
            return;
        }
        let missed = inner.events.iter().filter(|(version, changed, _)| *version > since && changed == list);
        missed.for_each(|(_, _, line)| sender.send(line.clone()).expect("a receiver"));
        inner.watchers.push((list.to_owned(), sender));
    }
    if connection
        .send("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        .is_err()
    {
        return;
    }
    // It ends also when the server goes away: that drops the sender.
    while let Ok(line) = events.recv_timeout(end.saturating_duration_since(Instant::now())) {
        if connection.send(&format!("{:x}\r\n{line}\r\n", line.len())).is_err() {
            return;
        }
    }
    let _ = connection.send("0\r\n\r\n");
}
