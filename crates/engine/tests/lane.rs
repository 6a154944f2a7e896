//! The engine from outside, over real sockets: everything that takes more than one turn.

use std::future::{Future, poll_fn};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

#[path = "support/attempts.rs"]
mod attempts;
mod support;

use attempts::attempts;
use bytes::Bytes;
use flatout_engine::{
    Body, BodyPlan, DetachedConnection, FileRange, Filter, Limits, Prepared, Reply, Request, RequestBody,
    Response, Service,
};
use flatout_wire::{Head, Status};
use http_body::{Body as _, Frame};
use support::{Running, body_of, get, last, read_until, rest};

const BIG_BYTES: usize = 8 << 20;

/// Time limit of waits that end at once where nothing is wrong.
const TIME_MAX: Duration = Duration::from_secs(30);

struct Routes {
    /// What `/held` waits for.
    goes_on: Arc<AtomicBool>,
}

impl Service for Routes {
    fn prepare(&self, _head: &Head<'_>, path: &[u8], _: u16) -> Prepared {
        if path.starts_with(b"/stream") {
            BodyPlan::Stream { bytes_max: Some(64 << 20) }
        } else if path == b"/unread" {
            BodyPlan::None
        } else {
            BodyPlan::Whole { bytes_max: None }
        }
        .into()
    }

    fn call(&self, request: Request<'_>, response: &mut Response) -> Reply {
        match (request.path, request.body) {
            (b"/slow", _) => later(async {
                tokio::time::sleep(Duration::from_millis(50)).await;
                text("slow")
            }),
            (b"/unread", _) => later(async {
                tokio::time::sleep(Duration::from_millis(1500)).await;
                text("unread")
            }),
            (b"/held", _) => {
                let goes_on = self.goes_on.clone();
                later(async move {
                    while !goes_on.load(Ordering::SeqCst) {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                    text("held")
                })
            }
            (b"/late-big", _) => {
                let pause = Duration::from_millis(number(&request.head));
                later(async move {
                    tokio::time::sleep(pause).await;
                    let mut response = Response::new();
                    response.set_body(Body::Shared(Bytes::from(vec![b'x'; BIG_BYTES])));
                    response
                })
            }
            (b"/busy", _) => {
                std::thread::sleep(Duration::from_micros(number(&request.head)));
                Reply::Now
            }
            (b"/never", _) => later(std::future::pending()),
            (b"/panic", _) => panic!("on purpose"),
            (b"/panic-later", _) => later(async { panic!("on purpose, later") }),
            (b"/big", _) => {
                response.set_body(Body::Shared(Bytes::from(vec![b'x'; BIG_BYTES])));
                Reply::Now
            }
            (b"/count", _) => {
                response.set_body(Body::Stream(Box::pin(Count { left: 1000, exact: false })));
                Reply::Now
            }
            (b"/count-exact", _) => {
                response.set_body(Body::Stream(Box::pin(Count { left: 1000, exact: true })));
                Reply::Now
            }
            (b"/filtered", _) => {
                response.set_body(Body::Stream(Box::pin(Count { left: 1000, exact: true })));
                response.set_filter(Box::new(Twice));
                Reply::Now
            }
            (b"/filtered-large", _) => {
                response.set_body(Body::Stream(Box::pin(Once(Some(Bytes::from(vec![b'x'; 150 << 10]))))));
                response.set_filter(Box::new(Lengths));
                Reply::Now
            }
            (b"/filtered-later", _) => later(async {
                let mut response = Response::new();
                response.set_body(Body::Stream(Box::pin(Count { left: 1000, exact: true })));
                response.set_filter(Box::new(Twice));
                response
            }),
            (b"/file", _) => {
                let bytes = 3 * BIG_BYTES as u64;
                let file = Arc::new(zeros(bytes));
                let modified = file.metadata().unwrap().modified().unwrap();
                let range = FileRange { file, offset: 0, bytes, modified, witness: None };
                response.set_body(Body::File(range));
                Reply::Now
            }
            (b"/stream/echo", RequestBody::Stream(stream)) => {
                response.set_body(Body::Stream(Box::pin(Boxed(stream))));
                Reply::Now
            }
            (b"/stream/sip", RequestBody::Stream(stream)) => {
                let pause =
                    request.head.query().and_then(|query| std::str::from_utf8(query).ok()?.parse().ok());
                later(sip(stream, Duration::from_millis(pause.unwrap_or(0))))
            }
            (b"/stream/ignore", _) => {
                response.buffer().extend_from_slice(b"ignored");
                Reply::Now
            }
            (b"/panic-body", _) => {
                response.set_body(Body::Stream(Box::pin(Unmeasurable)));
                Reply::Now
            }
            (b"/panic-body-later", _) => later(async {
                let mut response = Response::new();
                response.set_body(Body::Stream(Box::pin(Unmeasurable)));
                response
            }),
            (b"/endless", _) => {
                response.set_body(Body::Stream(Box::pin(Count { left: usize::MAX, exact: false })));
                Reply::Now
            }
            (b"/take-panic", _) => {
                response.set_status(Status::SWITCHING_PROTOCOLS);
                response.set_body(Body::Take(Box::new(|_| Box::pin(async { panic!("on purpose, taken") }))));
                Reply::Now
            }
            (b"/take", _) => {
                response.set_status(Status::SWITCHING_PROTOCOLS).header("Upgrade", "shout");
                response.set_body(Body::Take(Box::new(|taken| Box::pin(shout(taken)))));
                Reply::Now
            }
            (_, RequestBody::Whole { bytes, trailers }) => {
                response.buffer().extend_from_slice(bytes);
                for (name, value) in trailers {
                    response.header(&String::from_utf8_lossy(name), value);
                }
                Reply::Now
            }
            _ => Reply::Now,
        }
    }
}

/// Sends each piece twice, and `.` at the end.
struct Twice;

impl Filter for Twice {
    fn piece(&mut self, bytes: Bytes) -> Result<Bytes, Box<dyn std::error::Error + Send + Sync>> {
        Ok([&bytes[..], &bytes].concat().into())
    }

    fn end(&mut self) -> Result<Bytes, Box<dyn std::error::Error + Send + Sync>> {
        Ok(Bytes::from_static(b"."))
    }
}

/// Sends the length of each piece.
struct Lengths;

impl Filter for Lengths {
    fn piece(&mut self, bytes: Bytes) -> Result<Bytes, Box<dyn std::error::Error + Send + Sync>> {
        Ok(format!("{:06}", bytes.len()).into())
    }

    fn end(&mut self) -> Result<Bytes, Box<dyn std::error::Error + Send + Sync>> {
        Ok(Bytes::new())
    }
}

/// Yields one frame.
struct Once(Option<Bytes>);

impl http_body::Body for Once {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Poll::Ready(self.0.take().map(|bytes| Ok(Frame::data(bytes))))
    }
}

/// A file without a name, of so many bytes.
fn zeros(bytes: u64) -> std::fs::File {
    let file = tempfile::tempfile().unwrap();
    file.set_len(bytes).unwrap();
    file
}

/// The query, which is a number.
fn number(head: &Head<'_>) -> u64 {
    std::str::from_utf8(head.query().unwrap_or_default()).unwrap().parse().unwrap()
}

fn later(future: impl Future<Output = Response> + 'static) -> Reply {
    Reply::Later(Box::pin(future))
}

fn text(text: &str) -> Response {
    let mut response = Response::new();
    response.buffer().extend_from_slice(text.as_bytes());
    response
}

/// Reads a body with a pause after each frame, and responds with its length.
async fn sip(mut stream: flatout_engine::BodyStream, pause: Duration) -> Response {
    let mut bytes = 0;
    while let Some(frame) = poll_fn(|context| Pin::new(&mut stream).poll_frame(context)).await {
        match frame {
            Ok(frame) => bytes += frame.data_ref().map_or(0, Bytes::len),
            Err(fault) => return text(&format!("{fault} after {bytes}")),
        }
        tokio::time::sleep(pause).await;
    }
    text(&format!("{bytes} bytes"))
}

/// Panics in `size_hint`.
struct Unmeasurable;

impl http_body::Body for Unmeasurable {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Poll::Ready(None)
    }

    fn size_hint(&self) -> http_body::SizeHint {
        panic!("on purpose, the length")
    }
}

/// Yields `left` frames of five bytes, and then one of none.
struct Count {
    left: usize,
    exact: bool,
}

impl http_body::Body for Count {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        self.left -= 1;
        Poll::Ready(Some(Ok(Frame::data(Bytes::from(format!("{:04}\n", self.left))))))
    }

    fn size_hint(&self) -> http_body::SizeHint {
        if self.exact { http_body::SizeHint::with_exact(self.left as u64 * 5) } else { Default::default() }
    }
}

/// A request body as a response body.
struct Boxed(flatout_engine::BodyStream);

impl http_body::Body for Boxed {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Pin::new(&mut self.0).poll_frame(context).map_err(Into::into)
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.0.size_hint()
    }
}

async fn shout(taken: DetachedConnection) {
    let socket = std::net::TcpStream::from(taken.carrier.into_socket().unwrap());
    let Ok(socket) = tokio::net::TcpStream::from_std(socket) else { return };
    let mut heard = taken.read.to_vec();
    loop {
        while !heard.is_empty() {
            socket.writable().await.unwrap();
            if let Ok(sent) = socket.try_write(&heard.to_ascii_uppercase()) {
                heard.drain(..sent);
            }
        }
        socket.readable().await.unwrap();
        let mut buffer = [0; 64];
        match socket.try_read(&mut buffer) {
            Ok(0) => return,
            Ok(read) => heard.extend_from_slice(&buffer[..read]),
            Err(_) => {}
        }
    }
}

fn serving(limits: Limits) -> Running {
    serving_held(limits, Arc::default())
}

/// A server whose `/held` is served once `goes_on` is set.
fn serving_held(limits: Limits, goes_on: Arc<AtomicBool>) -> Running {
    Running::serving(limits, move |_| Box::new(Routes { goes_on: goes_on.clone() }))
}

#[test]
fn pipelined_responses_keep_their_order() {
    let server = serving(Limits::default());
    let post =
        |body: &str| format!("POST /a HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let sent =
        [post("one"), get("/slow"), post("two"), get("/slow"), get("/count"), post("three"), last("/slow")];
    let answer = server.all(sent.concat());
    let at =
        |needle: &str, from: usize| from + answer[from..].find(needle).unwrap_or_else(|| panic!("{needle}"));
    let one = at("\r\n\r\none", 0);
    let slow = at("\r\n\r\nslow", one);
    let two = at("\r\n\r\ntwo", slow);
    let slow = at("\r\n\r\nslow", two);
    let count = at("0999\n", slow);
    let three = at("\r\n\r\nthree", count);
    at("Connection: close\r\n\r\nslow", three);
    assert_eq!(answer.matches("HTTP/1.1 200 OK").count(), 7);
}

#[test]
fn streamed_body_is_chunked_or_has_a_length() {
    let server = serving(Limits::default());
    let answer = server.all(last("/count"));
    assert!(answer.contains("Transfer-Encoding: chunked\r\n"));
    let body = body_of(&answer);
    assert!(body.starts_with("5\r\n0999\n\r\n") && body.ends_with("5\r\n0000\n\r\n0\r\n\r\n"));
    let answer = server.all(last("/count-exact"));
    assert!(answer.contains("Content-Length: 5000\r\n") && !answer.contains("chunked"));
    assert_eq!(body_of(&answer).len(), 5000);
    let answer = server.all("GET /count HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    assert!(answer.contains("Connection: close\r\n") && !answer.contains("Content-Length"));
    assert_eq!(body_of(&answer).len(), 5000);
}

/// Its length is not that of the stream.
#[test]
fn streamed_body_passes_its_filter() {
    let server = serving(Limits::default());
    for path in ["/filtered", "/filtered-later"] {
        let answer = server.all(last(path));
        assert!(answer.contains("Transfer-Encoding: chunked\r\n") && !answer.contains("Content-Length"));
        let body = body_of(&answer);
        assert!(body.starts_with("a\r\n0999\n0999\n\r\n"), "{body}");
        assert!(body.ends_with("a\r\n0000\n0000\n\r\n1\r\n.\r\n0\r\n\r\n"), "{body}");
    }
}

/// Compressing a large frame at once would delay other requests.
#[test]
fn large_frame_is_filtered_in_pieces() {
    let answer = serving(Limits::default()).all(last("/filtered-large"));
    let pieces = "6\r\n065536\r\n6\r\n065536\r\n6\r\n022528\r\n0\r\n\r\n";
    assert_eq!(body_of(&answer), pieces);
}

#[test]
fn request_body_streams_through() {
    let server = serving(Limits::default());
    let mut stream = server.connect();
    stream.write_all(b"POST /stream/echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap();
    stream.write_all(b"5\r\nhello\r\n").unwrap();
    assert!(read_until(&mut stream, "5\r\nhello\r\n").contains("Transfer-Encoding: chunked"));
    stream.write_all(b"3\r\nyou\r\n0\r\nX-Sum: 8\r\n\r\n").unwrap();
    assert_eq!(read_until(&mut stream, "\r\n\r\n"), "3\r\nyou\r\n0\r\nx-sum: 8\r\n\r\n");
    stream.write_all(last("/slow").as_bytes()).unwrap();
    assert!(rest(&mut stream).ends_with("slow"));
}

#[test]
fn large_bodies_stream_with_backpressure() {
    let server = serving(Limits::default());
    let mut stream = server.connect();
    let mut sender = stream.try_clone().unwrap();
    let sent = std::thread::spawn(move || {
        let head =
            "POST /stream/echo HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: 33554432\r\n\r\n";
        sender.write_all(head.as_bytes()).unwrap();
        let piece: Vec<u8> = (0..1 << 20).map(|at: u32| (at % 251) as u8).collect();
        for _ in 0..32 {
            sender.write_all(&piece).unwrap();
        }
    });
    let head = read_until(&mut stream, "\r\n\r\n");
    assert!(head.contains("Content-Length: 33554432"), "{head}");
    let mut body = Vec::new();
    stream.read_to_end(&mut body).unwrap();
    sent.join().unwrap();
    assert_eq!(body.len(), 32 << 20);
    let piece: Vec<u8> = (0..1 << 20).map(|at: u32| (at % 251) as u8).collect();
    assert!(body.chunks(1 << 20).all(|chunk| chunk == piece));
}

#[test]
fn slow_body_reader_does_not_disconnect_the_client() {
    let limits = Limits { rate_window: Duration::from_secs(1), rate_min_bytes_per_s: 1, ..Limits::default() };
    let server = serving(limits);
    std::thread::scope(|scope| {
        // A pause per frame, and a body that takes several windows.
        for (pause_ms, bytes) in [(700, 400 << 10), (100, 4 << 20), (10, 24 << 20)] {
            let mut stream = server.connect();
            stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            scope.spawn(move || {
                let head = format!(
                    "POST /stream/sip?{pause_ms} HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: {bytes}\r\n\r\n"
                );
                stream.write_all(head.as_bytes()).unwrap();
                let sent = stream.write_all(&vec![b'x'; bytes]);
                assert!(sent.is_ok(), "{pause_ms} ms a frame: {sent:?}");
                let answer = rest(&mut stream);
                assert_eq!(body_of(&answer), format!("{bytes} bytes"), "{pause_ms} ms a frame");
            });
        }
    });
}

#[test]
fn unread_body_is_skipped_or_closes_the_connection() {
    let server = serving(Limits::default());
    let post = |bytes: usize| {
        let body = "x".repeat(bytes);
        format!("POST /stream/ignore HTTP/1.1\r\nHost: t\r\nContent-Length: {bytes}\r\n\r\n{body}")
    };
    let answer = server.all(post(100_000) + &last("/slow"));
    assert_eq!(answer.matches("HTTP/1.1 200 OK").count(), 2, "{answer}");
    let answer = server.all(post(600_000) + &last("/slow"));
    assert!(answer.contains("Connection: close"), "{answer}");
    assert_eq!(answer.matches("HTTP/1.1 200 OK").count(), 1, "{answer}");
}

#[test]
fn bodies_split_anywhere_are_complete() {
    let server = serving(Limits::default());
    let requests = [
        "POST /a HTTP/1.1\r\nHost: t\r\nContent-Length: 11\r\n\r\nhello world".to_owned(),
        "POST /b HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n6;x=\"y\"\r\nhello \r\n5\r\nworld\r\n0\r\nX-T: v\r\n\r\n"
            .to_owned(),
        "POST /stream/echo HTTP/1.1\r\nHost: t\r\nContent-Length: 11\r\n\r\nhello world".to_owned(),
        last("/end"),
    ];
    let bytes = requests.concat().into_bytes();
    for cut in 1..bytes.len() {
        let mut stream = server.connect();
        stream.set_nodelay(true).unwrap();
        stream.write_all(&bytes[..cut]).unwrap();
        // A pause at some of the cuts makes sure that the halves come apart.
        if cut % 8 == 0 {
            std::thread::sleep(Duration::from_millis(2));
        }
        stream.write_all(&bytes[cut..]).unwrap();
        let answer = rest(&mut stream);
        assert_eq!(answer.matches("HTTP/1.1 200 OK").count(), 4, "cut at {cut}: {answer}");
        assert_eq!(answer.matches("\r\n\r\nhello world").count(), 3, "cut at {cut}: {answer}");
        assert!(answer.contains("x-t: v") || answer.contains("X-T: v"), "cut at {cut}: {answer}");
    }
}

#[test]
fn panic_closes_one_connection() {
    let server = serving(Limits::default());
    let mut other = server.connect();
    other.write_all(get("/slow").as_bytes()).unwrap();
    for path in ["/panic", "/panic-later", "/panic-body", "/panic-body-later"] {
        let answer = server.all(get(path) + &get("/slow"));
        assert!(answer.starts_with("HTTP/1.1 500 "), "{answer}");
        assert_eq!(answer.matches("HTTP/1.1").count(), 1, "{answer}");
    }
    assert!(read_until(&mut other, "slow").starts_with("HTTP/1.1 200 "));
}

#[test]
fn large_response_waits_for_a_slow_reader() {
    let server = serving(Limits::default());
    let mut stream = server.connect();
    stream.write_all((get("/big") + &last("/slow")).as_bytes()).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let answer = rest(&mut stream);
    assert_eq!(answer.matches('x').count(), BIG_BYTES);
    assert!(answer.ends_with("slow"));
}

#[test]
fn queued_response_precedes_the_next() {
    let server = serving(Limits::default());
    for first in ["/big", "/count"] {
        for (head, body) in [
            ("Content-Length: 10", "56789"),
            ("Transfer-Encoding: chunked", "5\r\n56789\r\n0\r\n\r\n"),
            ("Transfer-Encoding: chunked", "bad\n"),
        ] {
            let mut stream = server.connect();
            let start = if head.starts_with('C') { "01234" } else { "5\r\n01234\r\n" };
            let posted = format!("POST /a HTTP/1.1\r\nHost: t\r\n{head}\r\n\r\n{start}");
            stream.write_all((get(first) + &posted).as_bytes()).unwrap();
            std::thread::sleep(Duration::from_millis(100));
            stream.write_all((body.to_owned() + &last("/end")).as_bytes()).unwrap();
            std::thread::sleep(Duration::from_millis(100));
            let answer = rest(&mut stream);
            let good = !body.starts_with("bad");
            if first == "/big" {
                let first_body = body_of(&answer);
                assert!(first_body.len() > BIG_BYTES, "{head}");
                assert!(
                    first_body[..BIG_BYTES].bytes().all(|byte| byte == b'x'),
                    "{head}: other bytes in its midst"
                );
                let next = if good { "HTTP/1.1 200 OK" } else { "HTTP/1.1 400 " };
                assert!(first_body[BIG_BYTES..].starts_with(next), "{head} {body}");
            }
            assert_eq!(answer.contains("0123456789"), good, "{head} {body}");
        }
    }
    let limits = Limits { rate_window: Duration::from_secs(1), ..Limits::default() };
    let server = serving(limits);
    // If a client neither sends its body nor reads the response, it is cut, never with a 408 in the middle of the
    // response.
    let mut stream = server.connect();
    let posted = "POST /a HTTP/1.1\r\nHost: t\r\nContent-Length: 10\r\n\r\n01234";
    stream.write_all((get("/big") + posted).as_bytes()).unwrap();
    // Two windows; the sweep notices each within a second.
    std::thread::sleep(Duration::from_millis(4500));
    let mut taken = Vec::new();
    let _ = stream.read_to_end(&mut taken);
    // If the kernel has accepted the complete response unread, a 408 may follow its last byte.
    let first_bytes = taken.windows(4).position(|at| at == b"\r\n\r\n").unwrap() + 4;
    let answer_bytes = &taken[first_bytes..taken.len().min(first_bytes + BIG_BYTES)];
    assert!(answer_bytes.iter().all(|&byte| byte == b'x'), "other bytes in its midst");
    let behind = &taken[first_bytes + answer_bytes.len()..];
    assert!(behind.is_empty() || behind.starts_with(b"HTTP/1.1 408 "));
}

#[test]
fn always_ready_body_does_not_starve_others() {
    let server = serving(Limits::default());
    let mut greedy = server.connect();
    greedy.write_all(get("/endless").as_bytes()).unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let ends = is_over.clone();
    let reader = std::thread::spawn(move || {
        let mut buffer = vec![0; 1 << 20];
        while !ends.load(Ordering::SeqCst) && greedy.read(&mut buffer).unwrap() > 0 {}
    });
    // Without a turn they would be served after the reader's end, which is after theirs.
    for _ in 0..20 {
        assert!(server.all(last("/slow")).ends_with("slow"));
    }
    is_over.store(true, Ordering::SeqCst);
    reader.join().unwrap();
    let began = Instant::now();
    assert!(server.all(last("/slow")).ends_with("slow"));
    while server.handle.figures().connections > 0 {
        assert!(began.elapsed() < TIME_MAX, "the endless body goes on for nobody");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn large_file_continues_in_a_busy_lane() {
    let server = serving(Limits::default());
    let stop = AtomicBool::new(false);
    // More connections than events per poll of the lane, each with its next request ready at every poll.
    let mut crowd: Vec<TcpStream> = (0..600).map(|_| server.connect()).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let request = get("/busy?1");
            let mut buffer = [0; 4096];
            for stream in &mut crowd {
                stream.set_nonblocking(true).unwrap();
                stream.write_all(request.as_bytes()).unwrap();
            }
            while !stop.load(Ordering::Relaxed) {
                for stream in &mut crowd {
                    if stream.read(&mut buffer).is_ok() {
                        stream.write_all(request.as_bytes()).unwrap();
                    }
                }
            }
        });
        std::thread::sleep(Duration::from_millis(500));
        let mut stream = server.connect();
        let began = Instant::now();
        stream.write_all(last("/file").as_bytes()).unwrap();
        let mut taken = 0;
        let mut buffer = vec![0; 1 << 20];
        while let Ok(read @ 1..) = stream.read(&mut buffer) {
            taken += read;
            if began.elapsed() > 2 * TIME_MAX {
                break;
            }
        }
        stop.store(true, Ordering::Relaxed);
        assert!(taken > 3 * BIG_BYTES, "stopped at {taken} bytes after {:?}", began.elapsed());
    });
}

#[test]
fn pipelined_large_responses_wait_for_the_socket() {
    let server = serving(Limits::default());
    let resident_kib = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap().to_owned();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    let before = resident_kib();
    let mut stream = server.connect();
    stream.write_all(get("/big").repeat(200).as_bytes()).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let grown = resident_kib().saturating_sub(before);
    assert!(grown < 400 << 10, "{grown} KiB for one connection");
}

#[test]
fn panicking_takeover_is_uncounted() {
    let server = serving(Limits::default());
    for _ in 0..5 {
        server.all(get("/take-panic"));
    }
    let began = Instant::now();
    while server.handle.figures().connections > 0 {
        assert!(began.elapsed() < TIME_MAX);
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn half_closed_client_gets_its_response() {
    let server = serving(Limits { half_close: true, ..Limits::default() });
    let mut stream = server.connect();
    stream.write_all((get("/slow") + &get("/big")).as_bytes()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let answer = rest(&mut stream);
    assert_eq!(answer.matches("HTTP/1.1 200 OK").count(), 2);
    assert_eq!(answer.matches('x').count(), BIG_BYTES);
}

#[test]
fn takeover_gets_the_socket() {
    let server = serving(Limits::default());
    let mut stream = server.connect();
    stream.write_all((get("/take") + "early").as_bytes()).unwrap();
    assert!(read_until(&mut stream, "\r\n\r\n").contains("Connection: Upgrade"));
    stream.write_all(b" and late").unwrap();
    assert_eq!(read_until(&mut stream, "LATE"), "EARLY AND LATE");
}

#[test]
fn deadlines_are_enforced() {
    attempts(short_deadlines);
}

fn short_deadlines() {
    if support::is_encrypted() {
        return;
    }
    let limits = Limits {
        head_time_max: Duration::from_millis(500),
        idle_time_max: Duration::from_millis(500),
        rate_window: Duration::from_secs(1),
        ..Limits::default()
    };
    let server = serving(limits);
    // Those that are not set are ten seconds and more.
    let within = |began: Instant| assert!(began.elapsed() < Duration::from_secs(9), "{:?}", began.elapsed());

    let began = Instant::now();
    assert_eq!(rest(&mut server.connect()), "");
    within(began);

    let began = Instant::now();
    let mut stream = server.connect();
    for byte in "GET / HTTP/1.1\r\nHost: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa".bytes() {
        if stream.write_all(&[byte]).is_err() {
            break;
        }
        std::thread::sleep(Duration::from_millis(40));
    }
    assert!(rest(&mut stream).starts_with("HTTP/1.1 408 "));
    within(began);

    let began = Instant::now();
    let answer = server.all("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 10\r\n\r\nabc");
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    within(began);
    // Figures are updated once per sweep.
    while server.handle.figures().connections > 0 {
        std::thread::sleep(Duration::from_millis(20));
        within(began);
    }

    let began = Instant::now();
    let mut stream = server.connect();
    stream.write_all(get("/big").as_bytes()).unwrap();
    while server.handle.figures().connections == 0 {
        std::thread::sleep(Duration::from_millis(20));
        within(began);
    }
    while server.handle.figures().connections > 0 {
        std::thread::sleep(Duration::from_millis(20));
        within(began);
    }
    let mut taken = Vec::new();
    let cut = stream.read_to_end(&mut taken);
    assert!(
        taken.len() < BIG_BYTES && (cut.is_ok() || cut.unwrap_err().kind() == ErrorKind::ConnectionReset)
    );
}

#[test]
fn reader_above_the_minimum_rate_is_not_disconnected() {
    attempts(a_steady_reader_above_the_rate);
}

fn a_steady_reader_above_the_rate() {
    if support::is_encrypted() {
        return;
    }
    // On loopback the window opens by 64 KiB at a time: at this pace about once a second.
    let limits =
        Limits { rate_window: Duration::from_secs(3), rate_min_bytes_per_s: 1000, ..Limits::default() };
    let server = serving(limits);
    let mut stream = server.connect_with_small_buffer();
    stream.write_all(last("/big").as_bytes()).unwrap();
    let mut buffer = [0; 6000];
    let began = Instant::now();
    let mut taken = 0;
    while began.elapsed() < Duration::from_secs(11) {
        // On a busy host it wakes up late, and has to catch up.
        while taken < began.elapsed().as_millis() as usize * 60 {
            taken += stream.read(&mut buffer).unwrap();
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(taken > 100_000);
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    assert!(taken + rest.len() > BIG_BYTES, "it was cut: {} bytes came", taken + rest.len());
}

#[test]
fn reader_rate_counts_from_response_start() {
    attempts(readers_of_late_answers);
}

fn readers_of_late_answers() {
    if support::is_encrypted() {
        return;
    }
    let limits =
        Limits { rate_window: Duration::from_secs(1), rate_min_bytes_per_s: 1000, ..Limits::default() };
    let server = serving(limits);
    std::thread::scope(|scope| {
        // Handlers that take longer than a window, so that one response starts just before the next ends.
        for pause_ms in (1000..2000).step_by(200) {
            let mut stream = server.connect_with_small_buffer();
            scope.spawn(move || {
                stream.write_all(last(&format!("/late-big?{pause_ms}")).as_bytes()).unwrap();
                let mut piece = vec![0; 20_000];
                let began = Instant::now();
                let mut taken = 0;
                while began.elapsed() < Duration::from_millis(3500) {
                    taken += stream.read(&mut piece).unwrap();
                    std::thread::sleep(Duration::from_millis(50));
                }
                let mut rest = Vec::new();
                let end = stream.read_to_end(&mut rest);
                taken += rest.len();
                assert!(taken > BIG_BYTES, "after {pause_ms} ms it was cut at {taken} bytes: {end:?}");
            });
        }
    });
}

#[test]
fn client_of_an_unread_body_is_not_slow() {
    let limits =
        Limits { rate_window: Duration::from_millis(500), rate_min_bytes_per_s: 1000, ..Limits::default() };
    let server = serving(limits);
    let head = "POST /unread HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: 5000\r\n\r\n";
    let answer = server.all(head.to_owned() + &"x".repeat(5000));
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("unread"), "{answer}");
}

#[test]
fn closed_connection_drops_its_future() {
    let server = serving(Limits::default());
    let mut stream = server.connect();
    stream.write_all(get("/never").as_bytes()).unwrap();
    let until = |count: usize| {
        let began = Instant::now();
        while server.handle.figures().connections != count {
            assert!(began.elapsed() < TIME_MAX);
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    until(1);
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    drop(stream);
    until(0);
}

#[test]
fn resets_free_all_state() {
    let server = serving(Limits::default());
    let post = |path: &str, framing: &str| format!("POST {path} HTTP/1.1\r\nHost: t\r\n{framing}\r\n\r\n");
    let sent = [
        get("/never"),
        get("/late-big?20"),
        get("/big"),
        get("/endless"),
        get("/file"),
        get("/panic-later") + &get("/slow"),
        post("/a", "Content-Length: 10") + "half",
        post("/stream/sip?1", "Content-Length: 10") + "half",
        post("/stream/echo", "Transfer-Encoding: chunked") + "5\r\nhello\r\n",
        post("/stream/echo", "Transfer-Encoding: chunked") + "5;x=",
        post("/stream/ignore", "Expect: 100-continue\r\nContent-Length: 10"),
        post("/a", "Transfer-Encoding: chunked") + "0\r\nX-T: ",
    ];
    for pause in [0, 1, 30].map(Duration::from_millis) {
        for bytes in &sent {
            let mut stream = server.connect();
            stream.write_all(bytes.as_bytes()).unwrap();
            std::thread::sleep(pause);
            rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
        }
    }
    assert!(server.all(last("/slow")).ends_with("slow"));
    let began = Instant::now();
    while server.handle.figures().connections > 0 {
        assert!(began.elapsed() < TIME_MAX, "{:?}", server.handle.figures());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn drain_serves_received_requests() {
    if support::is_encrypted() {
        return;
    }
    let goes_on = Arc::new(AtomicBool::new(false));
    let server = serving_held(Limits::default(), goes_on.clone());
    let mut idle = server.connect();
    let mut busy = server.connect();
    busy.write_all((get("/slow") + &get("/held") + &get("/b")).as_bytes()).unwrap();
    let mut partial = server.connect();
    partial.write_all(b"GET / HTTP/1.1\r\n").unwrap();
    read_until(&mut busy, "\r\n\r\n");
    server.handle.drain();
    assert_eq!(rest(&mut idle), "");
    goes_on.store(true, Ordering::SeqCst);
    let answers = rest(&mut busy);
    assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), 2);
    assert_eq!(answers.matches("Connection: close").count(), 1);
    partial.write_all(b"Host: t\r\n\r\n").unwrap();
    let answer = rest(&mut partial);
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("Connection: close"), "{answer}");
    assert!(TcpStream::connect(server.address).is_err());
}

/// The client of a new connection does not expect it to be closed, as that of a connection between two requests does.
#[test]
fn drain_serves_first_request_of_new_connection() {
    // The client has a second for it.
    attempts(a_first_request_while_draining);
}

fn a_first_request_while_draining() {
    if support::is_encrypted() {
        return;
    }
    let server = serving(Limits::default());
    let (mut old, mut new, mut silent) = (server.connect(), server.connect(), server.connect());
    old.write_all(get("/slow").as_bytes()).unwrap();
    read_until(&mut old, "\r\n\r\nslow");
    while server.handle.figures().connections < 3 {
        std::thread::yield_now();
    }
    server.handle.drain();
    assert_eq!(rest(&mut old), "");
    new.write_all(get("/slow").as_bytes()).unwrap();
    let response = rest(&mut new);
    assert!(
        response.starts_with("HTTP/1.1 200 ") && response.contains("\r\nConnection: close\r\n"),
        "{response}"
    );
    assert_eq!(rest(&mut silent), "");
}

/// The slots of closed connections are vacant, and may be anywhere in the table.
#[test]
fn drain_closes_idle_connections_after_closed_slots() {
    if support::is_encrypted() {
        return;
    }
    let goes_on = Arc::new(AtomicBool::new(false));
    let server = serving_held(Limits::default(), goes_on.clone());
    let mut connections: Vec<Option<TcpStream>> = (0..600)
        .map(|_| {
            let mut connection = server.connect();
            connection.write_all(get("/busy?0").as_bytes()).unwrap();
            read_until(&mut connection, "\r\n\r\n");
            Some(connection)
        })
        .collect();
    // The first, one in the middle, and a whole chunk of the table.
    let closed: Vec<usize> = [0, 3, 100].into_iter().chain(256..512).collect();
    for at in &closed {
        connections[*at] = None;
    }
    while server.handle.figures().connections > 600 - closed.len() {
        std::thread::yield_now();
    }
    // The server does not end, because a request is being handled.
    let mut busy = server.connect();
    busy.write_all((get("/busy?0") + &get("/held")).as_bytes()).unwrap();
    read_until(&mut busy, "\r\n\r\n");
    let began = Instant::now();
    server.handle.drain();
    for connection in connections.iter_mut().flatten() {
        assert_eq!(rest(connection), "");
    }
    assert!(began.elapsed() < Duration::from_secs(20), "open until the drain's own deadline");
    goes_on.store(true, Ordering::SeqCst);
    assert!(rest(&mut busy).starts_with("HTTP/1.1 200 OK"));
}

#[test]
fn drain_serves_the_accept_queue() {
    // The relay client may not have connected all of them when the drain starts.
    if support::is_encrypted() {
        return;
    }
    let server = serving(Limits::default());
    // While the worker is blocked, the kernel accepts connections, and they send their requests.
    let mut holding = server.connect();
    holding.write_all(get("/busy?300000").as_bytes()).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    let mut waiting: Vec<TcpStream> = (0..900).map(|_| server.connect()).collect();
    for stream in &mut waiting {
        stream.write_all(get("/a").as_bytes()).unwrap();
    }
    server.handle.drain();
    let mut bytes = Vec::new();
    let answered = waiting.iter_mut().filter_map(|stream| {
        bytes.clear();
        stream.read_to_end(&mut bytes).ok().filter(|_| bytes.starts_with(b"HTTP/1.1 200 OK"))
    });
    assert_eq!(answered.count(), 900);
}

#[test]
fn drain_closes_connection_after_skipped_body() {
    let server = serving(Limits::default());
    let mut stream = server.connect();
    let head = "POST /stream/ignore HTTP/1.1\r\nHost: t\r\nContent-Length: 10\r\n\r\n";
    stream.write_all((head.to_owned() + "01234").as_bytes()).unwrap();
    read_until(&mut stream, "ignored");
    server.handle.drain();
    std::thread::sleep(Duration::from_millis(50));
    stream.write_all(b"56789").unwrap();
    let began = Instant::now();
    assert_eq!(rest(&mut stream), "");
    assert!(began.elapsed() < Duration::from_secs(10), "open until the drain's own deadline");
}

#[test]
fn requests_per_connection_are_limited() {
    let server = serving(Limits { requests_per_connection_max: Some(2), ..Limits::default() });
    let answer = server.all(get("/a") + &get("/b") + &get("/c"));
    assert_eq!(answer.matches("HTTP/1.1 200 OK").count(), 2);
    assert!(answer.trim_end().ends_with("Connection: close"));
}
