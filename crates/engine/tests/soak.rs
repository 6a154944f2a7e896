//! Many clients with random behaviour for a few seconds: every response is complete and in order, every request is
//! reported once, and nothing is left at the end. `FLATOUT_SOAK_SEED` repeats a run, `FLATOUT_SOAK_SECONDS` makes it
//! longer.

mod support;

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use flatout_engine::{
    Begun, Body, BodyPlan, BodyStream, BoxError, DetachedConnection, Ended, ExchangeKey, FileRange, Lane,
    Limits, Mailbox, Prepared, Push, Reply, Request, RequestBody, Response, Service, Worker,
};
use flatout_wire::{Head, Status};
use http_body::Frame;
use support::{Paths, Running};

/// Connections at a time.
const CLIENTS: u64 = 24;

/// Requests of one connection.
const REQUESTS_MAX: u64 = 12;

const FILE_BYTES: u64 = 5 << 20;

/// How often a request reached the service, and how often it was reported.
#[derive(Default)]
struct Counts {
    called: HashMap<String, u32>,
    ended: HashMap<String, u32>,
}

struct Soak {
    worker: Worker,
    paths: Paths,
    counts: Arc<Mutex<Counts>>,
    elsewhere: Sender<(Mailbox, ExchangeKey, u64, usize)>,
    file: Arc<std::fs::File>,
}

/// The body of a response, of this length and unique to this request.
fn body(id: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|at| b'a' + ((id + at / 7) % 26) as u8).collect()
}

fn whole(id: u64, bytes: usize) -> Response {
    let mut response = Response::new();
    response.set_body(Body::Shared(body(id, bytes).into()));
    response
}

impl Service for Soak {
    fn prepare(&self, _: &Head<'_>, path: &[u8], _: u16) -> Prepared {
        match path {
            path if path.starts_with(b"/echo/") => BodyPlan::Stream { bytes_max: None },
            path if path.starts_with(b"/skip/") => BodyPlan::None,
            _ => BodyPlan::Whole { bytes_max: None },
        }
        .into()
    }

    fn call(&self, mut request: Request<'_>, response: &mut Response) -> Reply {
        let path = String::from_utf8(request.path.to_vec()).unwrap();
        *self.counts.lock().unwrap().called.entry(path.clone()).or_default() += 1;
        let parts: Vec<&str> = path.split('/').collect();
        let (kind, id, bytes): (_, u64, usize) =
            (parts[1], parts[2].parse().unwrap(), parts[3].parse().unwrap());
        let lane = self.worker.lane.clone();
        let sent = std::mem::replace(&mut request.body, RequestBody::NONE);
        match kind {
            "later" => Reply::Later(Box::pin(async move {
                if id % 3 > 0 {
                    tokio::time::sleep(Duration::from_micros(id % 3000)).await;
                }
                whole(id, bytes)
            })),
            "parked" => {
                self.elsewhere.send((self.worker.mailbox.clone(), request.park(), id, bytes)).unwrap();
                Reply::Parked
            }
            "pushed" => {
                if id % 2 == 0 {
                    response.declare_length(bytes as u64);
                }
                response.set_body(Body::Pushed);
                tokio::task::spawn_local(push(lane, request.park(), id, bytes));
                Reply::Now
            }
            "stream" => {
                response
                    .set_body(Body::Stream(Box::pin(Pieces { bytes: body(id, bytes).into(), polls: id })));
                Reply::Now
            }
            "file" | "late-file" => {
                let modified = self.file.metadata().unwrap().modified().unwrap();
                let range = FileRange {
                    file: self.file.clone(),
                    offset: 0,
                    bytes: bytes as u64,
                    modified,
                    witness: None,
                };
                if kind == "file" {
                    response.set_body(Body::File(range));
                    return Reply::Now;
                }
                Reply::Later(Box::pin(async move {
                    let mut response = Response::new();
                    response.set_body(Body::File(range));
                    response
                }))
            }
            "echo" => {
                let RequestBody::Stream(stream) = sent else { return Reply::Now };
                response.set_body(Body::Stream(Box::pin(Echo(stream))));
                Reply::Now
            }
            // Without the panic hook and its output.
            "panic" => std::panic::resume_unwind(Box::new("on purpose")),
            "leave" => Reply::Leave(Box::new(move |taken| Box::pin(say_goodbye(taken, id)))),
            "hint" => {
                response.hint("Link", "</a.css>").trailer("X-Trailer", "t");
                response.set_body(Body::Shared(body(id, bytes).into()));
                Reply::Now
            }
            "inform" => {
                let key = request.park();
                tokio::task::spawn_local(async move {
                    lane.inform(key, Status::EARLY_HINTS, b"Link: </b.css>\r\n");
                    tokio::task::yield_now().await;
                    lane.answer(key, whole(id, bytes));
                });
                Reply::Parked
            }
            _ => {
                if let RequestBody::Whole { bytes: sent, .. } = sent {
                    assert!(sent.is_empty() || sent == body(id, sent.len()), "another body than was sent");
                }
                response.buffer().extend_from_slice(&body(id, bytes));
                Reply::Now
            }
        }
    }

    fn wants_ended(&self) -> bool {
        true
    }

    fn wants_begun(&self) -> bool {
        true
    }

    fn begun(&self, begun: &Begun<'_>) -> u64 {
        self.paths.keep(begun)
    }

    fn ended(&self, ended: &Ended) {
        let path = self.paths.of(ended.mark);
        *self.counts.lock().unwrap().ended.entry(path).or_default() += 1;
    }
}

async fn push(lane: Lane, key: ExchangeKey, id: u64, bytes: usize) {
    let all = Bytes::from(body(id, bytes));
    let mut at = 0;
    while at < bytes {
        let mut piece = all.slice(at..bytes.min(at + 1 + (id as usize * 131) % 70_000));
        at += piece.len();
        while let Push::Full(back) = lane.push(key, piece) {
            piece = back;
            tokio::time::sleep(Duration::from_micros(300)).await;
        }
        if id.is_multiple_of(5) {
            tokio::task::yield_now().await;
        }
    }
    lane.end(key, b"");
}

async fn say_goodbye(taken: DetachedConnection, id: u64) {
    assert!(taken.read.starts_with(b"GET /leave/"), "{:?}", taken.read);
    let socket =
        tokio::net::TcpStream::from_std(TcpStream::from(taken.carrier.into_socket().unwrap())).unwrap();
    let _ = socket.writable().await;
    let _ = socket.try_write(format!("left {id}").as_bytes());
}

/// A body in pieces, some of which are delayed.
struct Pieces {
    bytes: Bytes,
    polls: u64,
}

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.polls += 1;
        if self.polls.is_multiple_of(3) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let count = self.bytes.len().min((self.polls as usize * 977) % 50_000 + 1);
        if self.bytes.is_empty() {
            return Poll::Ready(None);
        }
        let piece = self.bytes.split_to(count);
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }
}

struct Echo(BodyStream);

impl http_body::Body for Echo {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Pin::new(&mut self.0).poll_frame(context).map_err(Into::into)
    }
}

/// A small, fast and portable random number generator.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// The expected response to a request.
struct Expected {
    path: String,
    id: u64,
    bytes: usize,
    is_head: bool,
}

const KINDS: [&str; 12] = [
    "now",
    "now",
    "later",
    "parked",
    "pushed",
    "stream",
    "file",
    "late-file",
    "echo",
    "skip",
    "hint",
    "inform",
];

static IDS: AtomicU64 = AtomicU64::new(1);

/// Generates a request and adds its bytes to `out`.
fn ask(random: &mut Random, is_last: bool, out: &mut Vec<u8>) -> Expected {
    let id = IDS.fetch_add(1, Ordering::Relaxed);
    let kind = match is_last {
        true if random.chance(5) => "panic",
        true if random.chance(10) => "leave",
        _ => KINDS[random.below(KINDS.len() as u64) as usize],
    };
    let bytes = match (random.below(20), kind) {
        (0, "file" | "late-file") => FILE_BYTES as usize,
        (0, _) => random.below(1_500_000) as usize,
        (1..4, _) => random.below(60_000) as usize,
        _ => random.below(400) as usize,
    };
    let path = format!("/{kind}/{id}/{bytes}");
    let sent_bytes = match kind {
        "echo" => bytes,
        "now" | "later" if random.chance(30) => {
            let most = if random.chance(10) { 300_000 } else { 6_000 };
            random.below(most) as usize
        }
        "skip" => random.below(3_000) as usize,
        _ => 0,
    };
    let is_head = sent_bytes == 0 && kind == "now" && random.chance(10);
    let method = match (is_head, sent_bytes > 0) {
        (true, _) => "HEAD",
        (false, true) => "POST",
        (false, false) => "GET",
    };
    let close = if is_last && kind != "leave" { "Connection: close\r\n" } else { "" };
    out.extend_from_slice(format!("{method} {path} HTTP/1.1\r\nHost: t\r\n{close}").as_bytes());
    let sent = body(id, sent_bytes);
    if sent_bytes > 0 && random.chance(50) {
        out.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
        for piece in sent.chunks(1 + random.below(20_000) as usize) {
            out.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
            out.extend_from_slice(piece);
            out.extend_from_slice(b"\r\n");
        }
        out.extend_from_slice(b"0\r\n\r\n");
    } else if sent_bytes > 0 {
        out.extend_from_slice(format!("Content-Length: {sent_bytes}\r\n\r\n").as_bytes());
        out.extend_from_slice(&sent);
    } else {
        out.extend_from_slice(b"\r\n");
    }
    let bytes = if kind == "echo" { sent_bytes } else { bytes };
    Expected { path, id, bytes, is_head }
}

/// Data from the server, read at random speed.
struct Incoming<'a> {
    stream: &'a TcpStream,
    random: Random,
    is_slow: bool,
    /// The path of the request whose response is read.
    path: String,
    bytes: Vec<u8>,
    at: usize,
}

impl Incoming<'_> {
    fn more(&mut self) {
        self.bytes.drain(..self.at);
        self.at = 0;
        if self.is_slow && self.random.chance(20) {
            std::thread::sleep(Duration::from_micros(self.random.below(2_000)));
        }
        let mut buffer = vec![0; if self.is_slow { 20_000 } else { 1 << 18 }];
        let read = self.stream.read(&mut buffer).unwrap_or_else(|error| panic!("{error} in {}", self.path));
        let behind = &self.bytes[self.bytes.len().saturating_sub(300)..];
        assert!(read > 0, "closed in {} behind {:?}", self.path, String::from_utf8_lossy(behind));
        self.bytes.extend_from_slice(&buffer[..read]);
    }

    fn line(&mut self) -> String {
        loop {
            let rest = &self.bytes[self.at..];
            if let Some(end) = rest.windows(2).position(|two| two == b"\r\n") {
                let line = String::from_utf8(rest[..end].to_vec()).unwrap();
                self.at += end + 2;
                return line;
            }
            self.more();
        }
    }

    fn exactly(&mut self, bytes: usize) -> Vec<u8> {
        while self.bytes.len() - self.at < bytes {
            self.more();
        }
        self.at += bytes;
        self.bytes[self.at - bytes..self.at].to_vec()
    }

    /// Reads a response, which must be the expected one.
    fn check(&mut self, expected: &Expected) {
        if expected.path.starts_with("/leave/") {
            let goodbye = format!("left {}", expected.id);
            assert_eq!(self.exactly(goodbye.len()), goodbye.as_bytes());
            return;
        }
        let mut status = self.line();
        while status.starts_with("HTTP/1.1 1") {
            while !self.line().is_empty() {}
            status = self.line();
        }
        let is_panic = expected.path.starts_with("/panic/");
        assert!(
            status.starts_with(if is_panic { "HTTP/1.1 500" } else { "HTTP/1.1 200" }),
            "{status} {}",
            expected.path
        );
        let (mut length, mut is_chunked) = (None, false);
        loop {
            let line = self.line().to_lowercase();
            match line.split_once(": ") {
                Some(("content-length", value)) => length = Some(value.parse::<usize>().unwrap()),
                Some(("transfer-encoding", _)) => is_chunked = true,
                Some(_) => {}
                None if line.is_empty() => break,
                None => panic!("no field: {line}"),
            }
        }
        let mut taken = Vec::new();
        if expected.is_head {
            return;
        }
        if is_chunked {
            loop {
                let bytes = usize::from_str_radix(&self.line(), 16).unwrap();
                if bytes == 0 {
                    while !self.line().is_empty() {}
                    break;
                }
                taken.extend_from_slice(&self.exactly(bytes));
                assert_eq!(self.line(), "");
            }
        } else {
            taken = self.exactly(length.unwrap());
        }
        if !is_panic {
            let is_file = expected.path.contains("file/");
            let wanted = if is_file { vec![0; expected.bytes] } else { body(expected.id, expected.bytes) };
            assert_eq!(taken.len(), wanted.len(), "{}", expected.path);
            assert!(taken == wanted, "{} has another body", expected.path);
        }
    }
}

/// One connection, from start to end.
fn visit(server: std::net::SocketAddr, random: &mut Random) {
    let mut sent = Vec::new();
    let count = 1 + random.below(REQUESTS_MAX);
    let expected: Vec<Expected> = (1..=count).map(|at| ask(random, at == count, &mut sent)).collect();
    let stream = TcpStream::connect(server).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.set_nodelay(true).unwrap();
    let (resets, is_slow, half_closes) = (random.chance(15), random.chance(30), random.chance(25));
    let piece_max = [20, 500, 20_000, 2_000_000][random.below(4) as usize];
    let (mut writing, reading) = (Random(random.next() | 1), Random(random.next() | 1));
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut left = &sent[..];
            if resets {
                left = &left[..writing.below(left.len() as u64 + 1) as usize];
            }
            let mut pieces = 0;
            while !left.is_empty() {
                // Many small pieces first, then the rest: a long body in pieces of a few bytes would take too long.
                let piece = if pieces > 200 { left.len() } else { 1 + writing.below(piece_max) as usize };
                let (now, rest) = left.split_at(piece.min(left.len()));
                if (&stream).write_all(now).is_err() {
                    break;
                }
                left = rest;
                pieces += 1;
                if writing.chance(10) {
                    std::thread::sleep(Duration::from_micros(writing.below(1_000)));
                }
            }
            if half_closes && !resets {
                let _ = stream.shutdown(Shutdown::Write);
            }
        });
        if resets {
            writer.join().unwrap();
            std::thread::sleep(Duration::from_micros(random.below(3_000)));
            if random.chance(50) {
                rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
            }
            return;
        }
        let mut incoming = Incoming {
            stream: &stream,
            random: reading,
            is_slow,
            path: String::new(),
            bytes: Vec::new(),
            at: 0,
        };
        for expected in &expected {
            incoming.path.clone_from(&expected.path);
            incoming.check(expected);
        }
        assert_eq!(incoming.at, incoming.bytes.len(), "nothing stands behind the last response");
        assert_eq!((&stream).read(&mut [0; 8]).unwrap_or(0), 0, "and nothing comes");
    });
}

fn zeros(workers: usize) -> Arc<std::fs::File> {
    let path = std::env::temp_dir().join(format!("flatout-soak-{}-{workers}", std::process::id()));
    let file = std::fs::File::create_new(&path).unwrap();
    file.set_len(FILE_BYTES).unwrap();
    let file = std::fs::File::open(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    Arc::new(file)
}

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn mixed_load_on_one_worker() {
    soak(1);
}

#[test]
fn mixed_load_on_two_workers() {
    soak(2);
}

fn soak(workers: usize) {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let seed = from_environment("FLATOUT_SOAK_SEED").unwrap_or(now.as_nanos() as u64 | 1);
    let seconds = from_environment("FLATOUT_SOAK_SECONDS").unwrap_or(3);
    let _ = writeln!(std::io::stderr(), "FLATOUT_SOAK_SEED={seed}");
    let counts = Arc::new(Mutex::new(Counts::default()));
    let (elsewhere, parked) = channel::<(Mailbox, ExchangeKey, u64, usize)>();
    std::thread::spawn(move || {
        for (mailbox, key, id, bytes) in parked {
            if id % 2 == 0 {
                std::thread::sleep(Duration::from_micros(id % 200));
            }
            let _ = mailbox.run(move |lane| {
                let _ = lane.answer(key, whole(id, bytes));
            });
        }
    });
    let (shared, file, elsewhere) = (counts.clone(), zeros(workers), Mutex::new(elsewhere));
    let server =
        Running::on_workers(workers, Limits { half_close: true, ..Limits::default() }, move |worker| {
            let elsewhere = elsewhere.lock().unwrap().clone();
            Box::new(Soak {
                worker,
                paths: Paths::default(),
                counts: shared.clone(),
                elsewhere,
                file: file.clone(),
            })
        });
    let ends = Instant::now() + Duration::from_secs(seconds);
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let address = server.address;
            scope.spawn(move || {
                let mut random = Random(seed.wrapping_add(client.wrapping_mul(0x9e37_79b9_7f4a_7c15)) | 1);
                while Instant::now() < ends {
                    visit(address, &mut random);
                }
            });
        }
    });
    let left = Instant::now();
    while server.handle.figures().connections > 0 {
        assert!(left.elapsed() < Duration::from_secs(60), "{:?} are left", server.handle.figures());
        std::thread::sleep(Duration::from_millis(20));
    }
    let counts = counts.lock().unwrap();
    for (path, count) in &counts.called {
        assert_eq!((*count, counts.ended.get(path)), (1, Some(&1)), "{path}");
    }
    let _ = writeln!(std::io::stderr(), "{} requests", counts.called.len());
}
