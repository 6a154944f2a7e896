//! Request bodies through every combination of client, guard, upstream, framing and time of arrival: each request gets
//! the echo of its complete body.

#[path = "../../engine/tests/support/h2.rs"]
#[allow(dead_code, reason = "a part of it is used")]
mod client_h2;
#[path = "../../engine/tests/support/secure.rs"]
#[allow(dead_code, reason = "a part of it is used")]
mod secure;
mod support;

use std::collections::HashSet;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use client_h2::H2Client;
use flatout_engine::{Address as Bound, Plan, Server, start};
use flatout_proxy::{Forward, Protocol, Proxy, Resolver, Upstream, Watch};
use flatout_push::{Hub, Limits};
use flatout_server::live::{Live, Opened};
use flatout_site as site;
use flatout_site::plan::{
    Action, BasicAuth, Concurrency, ConcurrencyUse, ForwardAuth, Host, Limited, PathMatch, Rate, RateUse,
    Route, Rules, Site, Template, User,
};
use flatout_wire::Method;
use h2::server::Builder;
use secure::{Certified, encrypting};
use support::h2::{h2c, read_content, respond, serving};
use support::{answering, one, upstream};

/// A request without a response after this time is lost.
const TIME_MAX: Duration = Duration::from_secs(30);

/// What holds a request back before it reaches its upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Guard {
    None,
    /// The first check of a password.
    Password,
    ForwardAuth,
    /// A delay to an even rate.
    Rate,
    /// The queue of a concurrency limit.
    Queue,
    /// The queue for the only connection to the upstream.
    Connection,
}

const GUARDS: [Guard; 6] =
    [Guard::None, Guard::Password, Guard::ForwardAuth, Guard::Rate, Guard::Queue, Guard::Connection];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum To {
    /// HTTP/1, a new connection for each request.
    Fresh,
    /// HTTP/1, over a connection that has carried others.
    Reused,
    H2c,
}

const TOS: [To; 3] = [To::Fresh, To::Reused, To::H2c];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Framing {
    /// There is no body.
    Absent,
    Length(usize),
    /// Chunked, or HTTP/2 without a content-length.
    Unknown(usize),
}

const FRAMINGS: [Framing; 5] = [
    Framing::Absent,
    Framing::Length(5),
    Framing::Length(100_000),
    Framing::Unknown(5),
    Framing::Unknown(40_000),
];

/// When the body arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Arrival {
    WithHead,
    /// After the head was read.
    AfterHead,
    /// In three parts, the first with the head.
    Segments,
    /// After the guard has let the request pass, where a guard can be told to.
    Late,
}

const ARRIVALS: [Arrival; 4] = [Arrival::WithHead, Arrival::AfterHead, Arrival::Segments, Arrival::Late];

/// The version of HTTP that a client uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    Http1,
    Http2,
}

/// The length of the interval between requests that a rate limit allows.
const PACE: Duration = Duration::from_millis(30);

/// Users, each for one request: a password is remembered after its first check.
const USERS: usize = 4000;

/// A server for all guards and upstreams; it ends with its test.
struct Running {
    server: Option<Server>,
    /// For HTTP/1 and HTTP/2.
    addresses: [SocketAddr; 2],
    users: AtomicUsize,
    seen: Seen,
}

/// The targets of requests whose heads an upstream has read.
type Seen = Arc<Mutex<HashSet<String>>>;

fn path_of(guard: Guard, to: To) -> String {
    format!("/{guard:?}/{to:?}")
}

/// An HTTP/1 upstream that responds with the body of each request.
fn echoing(seen: Seen) -> SocketAddr {
    upstream(move |_, stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut writer = stream;
        while let Some(body) = read_body(&mut reader, &seen) {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
            if writer.write_all(&[head.as_bytes(), &body].concat()).is_err() {
                return;
            }
        }
    })
}

fn read_line(reader: &mut impl BufRead) -> Option<String> {
    let mut line = String::new();
    (reader.read_line(&mut line).ok()? > 0).then(|| line.trim_end().to_owned())
}

/// Reads a request, and returns its decoded body.
fn read_body(reader: &mut impl BufRead, seen: &Seen) -> Option<Vec<u8>> {
    let mut head = String::new();
    while !head.ends_with("\n\n") {
        let line = read_line(reader)?;
        head.push_str(&line);
        head.push('\n');
    }
    seen.lock().unwrap().extend(head.split(' ').nth(1).map(str::to_owned));
    let body = read_content_of(&head, reader)?;
    if head.contains("silent") {
        // Until the connection is closed.
        reader.read_exact(&mut [0]).ok()?;
    }
    Some(body)
}

/// Reads the content after this head.
fn read_content_of(head: &str, reader: &mut impl BufRead) -> Option<Vec<u8>> {
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")?.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body).ok()?;
    while head.contains("Transfer-Encoding: chunked") {
        let mut chunk = vec![0; usize::from_str_radix(&read_line(reader)?, 16).unwrap()];
        reader.read_exact(&mut chunk).ok()?;
        read_line(reader)?;
        if chunk.is_empty() {
            break;
        }
        body.extend(chunk);
    }
    Some(body)
}

fn echoing_h2(seen: Seen) -> SocketAddr {
    let served = serving(Builder::new(), None, move |mut asked| {
        seen.lock().unwrap().extend(asked.request.uri().path_and_query().map(ToString::to_string));
        async move {
            if asked.request.uri().query() == Some("silent") {
                std::future::pending::<()>().await;
            }
            if let Some((body, _)) = read_content(asked.request.body_mut()).await {
                respond(&mut asked.respond, 200, body);
            }
        }
    });
    served.address
}

/// The rules of a guard; limits are appended to the plan.
fn rules(guard: Guard, to: To, users: &[User], plan: &mut site::Plan) -> Rules {
    let name = path_of(guard, to);
    let mut rules = Rules::default();
    match guard {
        Guard::None | Guard::Connection => {}
        Guard::Password => {
            rules.basic_auth =
                Some(BasicAuth { realm: "t".to_owned(), users: users.to_vec(), user_file: None });
        }
        Guard::ForwardAuth => {
            rules.forward_auth = Some(ForwardAuth {
                upstream: 0,
                target: Template::text("/"),
                request_fields: Vec::new(),
                response_fields: Vec::new(),
                sign_in: None,
            });
        }
        Guard::Rate => {
            rules.rates.push(RateUse {
                rate: plan.rates.len(),
                burst: 1000,
                delay: Some(0),
                status: 429,
                fields: false,
                is_dry_run: false,
            });
            plan.rates.push(Rate { name, key: Limited::Everyone, requests: 1, window: PACE, keys_max: 16 });
        }
        Guard::Queue => {
            rules.concurrency.push(ConcurrencyUse { limit: plan.concurrency.len(), is_dry_run: false });
            plan.concurrency.push(Concurrency {
                name,
                key: Limited::Everyone,
                requests_max: 1,
                queue_max: 10,
                queue_time_max: 2 * TIME_MAX,
                keys_max: 1,
                status: 503,
            });
        }
    }
    rules
}

impl Running {
    fn new(certified: Option<&Certified>, request_time_max: Option<Duration>) -> Running {
        let seen = Seen::default();
        let (echo, echo_h2) = (echoing(seen.clone()), echoing_h2(seen.clone()));
        let auth = answering("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").0;
        let hash = bcrypt::hash("secret", 4).unwrap();
        let users: Vec<User> =
            (0..USERS).map(|at| User { name: format!("u{at}"), hash: hash.clone() }).collect();
        let mut upstreams = vec![Upstream { name: "auth".to_owned(), ..one(auth) }];
        let mut routes = vec![Route::new(
            PathMatch::Exact("/ping".to_owned()),
            Action::Respond { status: 200, content_type: String::new(), body: Template::text("pong") },
        )];
        let mut plan = site::Plan::default();
        for guard in GUARDS {
            for to in TOS {
                let name = path_of(guard, to);
                let mut upstream = match to {
                    To::Fresh => Upstream { idle_max: 0, ..one(echo) },
                    To::Reused => one(echo),
                    To::H2c => h2c(echo_h2),
                };
                if guard == Guard::Connection {
                    upstream.connections_max = 1;
                    upstream.queue_time_max = 2 * TIME_MAX;
                    if to == To::H2c {
                        upstream.protocol = Protocol::H2c { streams_max: 1 };
                    }
                }
                upstream.request_time_max = request_time_max;
                let rules = rules(guard, to, &users, &mut plan);
                let forward = Action::Proxy(Forward::to(upstreams.len()));
                routes.push(Route { rules, ..Route::new(PathMatch::prefix(&name), forward) });
                upstreams.push(Upstream { name, ..upstream });
            }
        }
        plan.upstreams = upstreams.clone();
        plan.sites = vec![Site { hosts: vec![Host::Any], routes, ..Site::default() }.into()];
        let sites = site::open(&plan).unwrap();
        let proxy = Proxy::open(upstreams, &Resolver::System).unwrap();
        let live = Live::new(Opened {
            sites,
            proxy,
            hub: Hub::new(Limits::default()),
            cache: None,
            prerender: None,
        });
        let engine = Plan {
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            workers: Some(1),
            tls: certified.map(Certified::acceptor),
            ..Plan::default()
        };
        let server = start(engine, move |worker| live.service(&worker, Watch::default())).unwrap();
        let Some(Bound::Tcp(address)) = server.addresses().first().cloned() else { panic!("no address") };
        let addresses = match certified {
            None => [address; 2],
            Some(certified) => {
                let plain = certified.client(rustls::ALL_VERSIONS);
                let mut h2 = (*plain).clone();
                h2.alpn_protocols = vec![b"h2".to_vec()];
                [encrypting(address, plain), encrypting(address, h2.into())]
            }
        };
        Running { server: Some(server), addresses, users: AtomicUsize::new(0), seen }
    }

    fn connect(&self, version: Version) -> TcpStream {
        let stream = TcpStream::connect(self.addresses[usize::from(version == Version::Http2)]).unwrap();
        stream.set_read_timeout(Some(TIME_MAX)).unwrap();
        stream.set_write_timeout(Some(TIME_MAX)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    /// Waits until an upstream has read the head of a request.
    fn wait_for(&self, target: &str) {
        let began = Instant::now();
        while !self.seen.lock().unwrap().contains(target) {
            assert!(began.elapsed() < TIME_MAX, "{target} does not reach its upstream");
            std::thread::yield_now();
        }
    }

    /// The credentials of a user who was not seen before.
    fn stranger(&self) -> String {
        use base64::Engine;
        let name = format!("u{}:secret", self.users.fetch_add(1, Ordering::Relaxed));
        format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(name))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let server = self.server.take().unwrap();
        server.handle().stop();
        server.wait().unwrap();
    }
}

/// A request of one client in progress.
enum Asking {
    Http1 { stream: TcpStream, is_chunked: bool },
    Http2 { client: Box<H2Client>, stream: flatout_wire::h2::StreamId },
}

impl Asking {
    /// Starts a request, and sends its head with the first part of its body, in one write.
    fn begin(
        running: &Running,
        version: Version,
        path: &str,
        framing: Framing,
        authorization: &str,
        first: &[u8],
    ) -> Asking {
        let stream = running.connect(version);
        let (method, length) = match framing {
            Framing::Absent => (Method::Get, None),
            Framing::Length(bytes) => (Method::Post, Some(bytes.to_string())),
            Framing::Unknown(_) => (Method::Post, None),
        };
        match version {
            Version::Http1 => {
                let mut head = format!(
                    "{} {path} HTTP/1.1\r\nHost: t\r\nAuthorization: {authorization}\r\n",
                    method.name()
                );
                if let Some(length) = length {
                    write!(head, "Content-Length: {length}\r\n").unwrap();
                }
                let is_chunked = matches!(framing, Framing::Unknown(_));
                head.push_str(if is_chunked { "Transfer-Encoding: chunked\r\n\r\n" } else { "\r\n" });
                let mut asking = Asking::Http1 { stream, is_chunked };
                asking.write(head.as_bytes(), first);
                asking
            }
            Version::Http2 => {
                let mut client = Box::new(H2Client::new(stream));
                let mut fields = vec![("authorization", authorization)];
                fields.extend(length.as_deref().map(|length| ("content-length", length)));
                let stream = match framing {
                    Framing::Absent => client.ask(method, path, &fields, None),
                    _ => client.begin(method, path, &fields),
                };
                let mut asking = Asking::Http2 { client, stream };
                asking.write(b"", first);
                asking
            }
        }
    }

    fn write(&mut self, before: &[u8], part: &[u8]) {
        match self {
            Asking::Http1 { stream, is_chunked } => {
                let mut bytes = before.to_vec();
                if *is_chunked && !part.is_empty() {
                    bytes.extend_from_slice(format!("{:x}\r\n", part.len()).as_bytes());
                    bytes.extend_from_slice(part);
                    bytes.extend_from_slice(b"\r\n");
                } else {
                    bytes.extend_from_slice(part);
                }
                stream.write_all(&bytes).unwrap();
            }
            Asking::Http2 { client, stream } => {
                if !part.is_empty() {
                    client.say(*stream, part);
                }
                client.send();
            }
        }
    }

    fn end(&mut self) {
        match self {
            Asking::Http1 { stream, is_chunked } => {
                if *is_chunked {
                    stream.write_all(b"0\r\n\r\n").unwrap();
                }
            }
            Asking::Http2 { client, stream } => {
                client.end(*stream);
                client.send();
            }
        }
    }

    /// Reads the response: its status and its body.
    fn finish(self) -> Result<(u16, Vec<u8>), String> {
        match self {
            Asking::Http1 { stream, .. } => {
                let mut reader = BufReader::new(stream);
                let mut line = String::new();
                let mut head = String::new();
                while line != "\r\n" {
                    line.clear();
                    match reader.read_line(&mut line) {
                        Ok(1..) => head.push_str(&line),
                        other => return Err(format!("{other:?} after {head:?}")),
                    }
                }
                let status = head.get(9..12).and_then(|status| status.parse().ok());
                let body = read_content_of(&head, &mut reader).ok_or("the body is incomplete")?;
                Ok((status.ok_or(head)?, body))
            }
            Asking::Http2 { mut client, stream } => {
                // A read that takes too long panics.
                let finished = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    let got = client.finish(stream);
                    (got.status, got.body)
                }));
                finished.map_err(|_| "no response".to_owned())
            }
        }
    }
}

/// A request that the worker answers itself: without TLS, it has read then what was sent before.
fn ping(running: &Running) {
    let asking = Asking::begin(running, Version::Http1, "/ping", Framing::Absent, "-", b"");
    assert_eq!(asking.finish().unwrap(), (200, b"pong".to_vec()));
}

/// One request through one combination.
#[derive(Debug, Clone, Copy)]
struct Case {
    version: Version,
    guard: Guard,
    to: To,
    framing: Framing,
    arrival: Arrival,
}

impl Case {
    fn run(&self, running: &Running) -> Result<(), String> {
        let path = path_of(self.guard, self.to);
        if self.to == To::Reused || self.guard == Guard::Rate {
            // An idle connection is left, and the next request has to wait for its turn.
            let first =
                Asking::begin(running, Version::Http1, &path, Framing::Absent, &running.stranger(), b"");
            first.finish().map_err(|why| format!("the request before: {why}"))?;
        }
        // A request whose body is not complete yet has the only place.
        let mut occupant = matches!(self.guard, Guard::Queue | Guard::Connection).then(|| {
            let target = format!("{path}?{}", running.users.fetch_add(1, Ordering::Relaxed));
            let asking = Asking::begin(running, Version::Http1, &target, Framing::Unknown(8), "-", b"occu");
            running.wait_for(&target);
            asking
        });
        let mut leave = || match occupant.take() {
            Some(mut asking) => {
                asking.write(b"", b"pant");
                asking.end();
                asking.finish().map_err(|why| format!("the occupant: {why}"))
            }
            None => Ok((200, Vec::new())),
        };
        let length = match self.framing {
            Framing::Absent => 0,
            Framing::Length(bytes) | Framing::Unknown(bytes) => bytes,
        };
        let body: Vec<u8> = (0..length).map(|at| (at * 7 + at / 251) as u8).collect();
        let (first, rest) = match self.arrival {
            Arrival::WithHead => body.split_at(length),
            Arrival::AfterHead | Arrival::Late => body.split_at(0),
            Arrival::Segments => body.split_at(length / 3),
        };
        let authorization = running.stranger();
        let mut asking = Asking::begin(running, self.version, &path, self.framing, &authorization, first);
        match self.arrival {
            Arrival::WithHead => {}
            Arrival::AfterHead => {
                ping(running);
                asking.write(b"", rest);
            }
            Arrival::Segments => {
                let (second, third) = rest.split_at(rest.len() / 2);
                for part in [second, third] {
                    ping(running);
                    asking.write(b"", part);
                }
            }
            Arrival::Late => {
                ping(running);
                leave()?;
                ping(running);
                asking.write(b"", rest);
            }
        }
        if self.framing != Framing::Absent {
            asking.end();
        }
        ping(running);
        leave()?;
        match asking.finish()? {
            (200, echo) if echo == body => Ok(()),
            (200, echo) => Err(format!("{} of {length} bytes came back", echo.len())),
            (status, text) => Err(format!("{status}: {}", String::from_utf8_lossy(&text))),
        }
    }
}

/// The cases of one guard and one upstream.
fn cases(guard: Guard, to: To) -> Vec<Case> {
    let mut cases = Vec::new();
    for version in [Version::Http1, Version::Http2] {
        for framing in FRAMINGS {
            for arrival in ARRIVALS {
                if framing != Framing::Absent || arrival == Arrival::WithHead {
                    cases.push(Case { version, guard, to, framing, arrival });
                }
            }
        }
    }
    cases
}

fn all_bodies_arrive(certified: Option<&Certified>) {
    let running = Running::new(certified, None);
    let (mut lost, mut count) = (Vec::new(), 0);
    let logins = Mutex::new(());
    std::thread::scope(|scope| {
        let (running, logins) = (&running, &logins);
        let pairs = GUARDS.iter().flat_map(|&guard| TOS.iter().map(move |&to| (guard, to)));
        let threads: Vec<_> = pairs
            .map(|(guard, to)| {
                scope.spawn(move || {
                    let cases = cases(guard, to);
                    // An address may have two pending checks of passwords.
                    let _alone = (guard == Guard::Password).then(|| logins.lock().unwrap());
                    let lost = cases
                        .iter()
                        .filter_map(|case| case.run(running).err().map(|why| format!("{case:?}: {why}")));
                    (cases.len(), lost.collect::<Vec<_>>())
                })
            })
            .collect();
        for thread in threads {
            let (cases, more) = thread.join().unwrap();
            count += cases;
            lost.extend(more);
        }
    });
    assert!(lost.is_empty(), "{} of {count} were lost:\n{}", lost.len(), lost.join("\n"));
    assert_eq!(count, 6 * 3 * 2 * 17);
}

#[test]
fn a_request_is_ended_when_its_time_as_a_whole_is_over() {
    let running = Running::new(None, Some(Duration::from_secs(1)));
    let status = |asking: Asking| asking.finish().map(|(status, _)| status);
    std::thread::scope(|scope| {
        let (running, status) = (&running, &status);
        for to in TOS {
            for version in [Version::Http1, Version::Http2] {
                scope.spawn(move || {
                    let begin = |guard, query: &str, framing, first: &[u8]| {
                        let path = format!("{}{query}", path_of(guard, to));
                        Asking::begin(running, version, &path, framing, "-", first)
                    };
                    // The server does not respond.
                    let silent = begin(Guard::None, "?silent", Framing::Absent, b"");
                    assert_eq!(status(silent), Ok(504), "{to:?} {version:?}: a slow server");
                    // The client does not go on.
                    for framing in [Framing::Length(100_000), Framing::Unknown(100)] {
                        let slow = begin(Guard::None, "", framing, b"slow");
                        assert_eq!(status(slow), Ok(504), "{to:?} {version:?}: a slow body");
                    }
                });
            }
            for guard in [Guard::Queue, Guard::Connection] {
                scope.spawn(move || {
                    // Each request takes the place of the one before, as soon as that is over.
                    let waiting = [Version::Http1, Version::Http2, Version::Http1].map(|version| {
                        let path = format!("{}?silent", path_of(guard, to));
                        Asking::begin(running, version, &path, Framing::Absent, "-", b"")
                    });
                    for asking in waiting {
                        assert_eq!(status(asking), Ok(504), "{to:?} {guard:?}: a queue");
                    }
                });
            }
        }
    });
    // Nothing is left of them.
    for guard in GUARDS {
        for to in TOS {
            let case = Case {
                version: Version::Http2,
                guard,
                to,
                framing: Framing::Unknown(5),
                arrival: Arrival::WithHead,
            };
            case.run(&running).unwrap();
        }
    }
}

#[test]
fn every_body_arrives_complete() {
    all_bodies_arrive(None);
}

#[test]
fn every_body_arrives_complete_over_tls() {
    all_bodies_arrive(Some(&Certified::new()));
}
