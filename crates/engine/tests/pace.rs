//! Responses whose rate is limited. Times are lower bounds: a response that is not limited takes none of them.

mod support;

use std::io::{Read, Write};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use flatout_engine::{
    Body, Ended, FileRange, Limits, Outcome, Part, Push, Reply, Request, Response, SendRate, Service, Worker,
};
use support::h2::H2Client;
use support::{Running, body_of, get, last, read_until, rest};

/// The rate of all but `/fast`, `/after` and `/much`; a tick allows an eighth.
const BYTES_PER_S: u64 = 8000;

/// The size of these bodies.
const BODY_BYTES: usize = 7500;

/// What they need at least: the first share is there at once, and the first tick may be.
const TIME_MIN: Duration = Duration::from_millis(6 * 125);

struct Paced {
    worker: Worker,
    seen: Sender<Outcome>,
}

fn bytes(count: usize) -> Bytes {
    (0..count).map(|at| b'a' + (at % 23) as u8).collect()
}

fn file() -> FileRange {
    static FILE: LazyLock<Arc<std::fs::File>> = LazyLock::new(|| {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes(BODY_BYTES)).unwrap();
        file.into()
    });
    let modified = FILE.metadata().unwrap().modified().unwrap();
    FileRange { file: FILE.clone(), offset: 0, bytes: BODY_BYTES as u64, modified, witness: None }
}

impl Service for Paced {
    fn call(&self, request: Request<'_>, response: &mut Response) -> Reply {
        response.set_rate_limit(SendRate::new(BYTES_PER_S, 0));
        let body = bytes(BODY_BYTES);
        match request.head.path() {
            b"/buffer" => response.buffer().extend_from_slice(&body),
            b"/shared" => drop(response.set_body(Body::Shared(body))),
            b"/file" => drop(response.set_body(Body::File(file()))),
            b"/parts" => {
                let parts = vec![Part::Bytes(body.slice(..2500)), Part::Bytes(body.slice(2500..))];
                response.set_body(Body::Parts(parts)).trailer("X-End", "1");
            }
            b"/pushed" => {
                let key = request.park();
                for piece in [body.slice(..10), body.slice(10..)] {
                    assert!(matches!(self.worker.lane.push(key, piece), Push::Accepted));
                }
                self.worker.lane.end(key, b"");
                response.set_body(Body::Pushed);
            }
            b"/small" => drop(response.set_body(Body::Shared(body.slice(..1900)))),
            b"/after" => {
                response.set_rate_limit(SendRate::new(1, 20_000)).set_body(Body::Shared(body));
            }
            b"/much" => {
                let much = SendRate::new(4 << 20, 0);
                response.set_rate_limit(much).set_body(Body::Shared(bytes(64 << 20)));
            }
            b"/slow" => {
                response.set_rate_limit(SendRate::new(200, 0)).set_body(Body::Shared(body.slice(..500)));
            }
            _ => {
                response.set_rate_limit(SendRate::new(0, 0)).set_body(Body::Shared(body));
            }
        }
        Reply::Now
    }

    fn wants_ended(&self) -> bool {
        true
    }

    fn ended(&self, ended: &Ended) {
        let _ = self.seen.send(ended.outcome);
    }
}

fn paced(worker: Worker, seen: &Sender<Outcome>) -> Box<dyn Service> {
    Box::new(Paced { worker, seen: seen.clone() })
}

fn plain(limits: Limits) -> (Running, std::sync::mpsc::Receiver<Outcome>) {
    let (seen, all_seen) = channel();
    (Running::serving(limits, move |worker| paced(worker, &seen)), all_seen)
}

fn over_tls(protocol: &'static [u8]) -> Running {
    let seen = channel().0;
    Running::over_tls(&[protocol], move |worker| paced(worker, &seen))
}

const FORMS: [&str; 5] = ["/buffer", "/shared", "/file", "/parts", "/pushed"];

/// Requests each form on a connection of its own, all at the same time.
fn h1_forms(server: &Running) {
    std::thread::scope(|scope| {
        for path in FORMS {
            scope.spawn(move || {
                let began = Instant::now();
                let text = server.all(last(path));
                assert!(began.elapsed() >= TIME_MIN, "{path} {:?}", began.elapsed());
                let is_chunked = text.contains("Transfer-Encoding: chunked");
                let letters: String = body_of(&text).chars().filter(char::is_ascii_lowercase).collect();
                match is_chunked {
                    // Sizes of chunks have letters too.
                    true => assert!(letters.len() >= BODY_BYTES && text.contains("\r\n0\r\n"), "{path}"),
                    false => assert_eq!(letters.as_bytes(), bytes(BODY_BYTES), "{path}"),
                }
            });
        }
    });
}

#[test]
fn every_form_is_limited_over_http1() {
    h1_forms(&plain(Limits::default()).0);
}

#[test]
fn every_form_is_limited_over_tls() {
    h1_forms(&over_tls(b"http/1.1"));
}

/// All streams share a connection, and each has its own rate: together they take as long as one.
fn h2_forms(server: &Running) {
    let mut client = H2Client::new(server.connect());
    let began = Instant::now();
    let streams = FORMS.map(|path| (path, client.get(path)));
    let fast = client.get("/fast");
    assert_eq!(client.finish(fast).body, bytes(BODY_BYTES));
    assert!(streams.iter().all(|(_, stream)| !client.got[stream].is_over));
    for (path, stream) in streams {
        let got = client.finish(stream);
        assert!(began.elapsed() >= TIME_MIN, "{path} {:?}", began.elapsed());
        assert_eq!((got.status, got.body), (200, bytes(BODY_BYTES).to_vec()), "{path}");
        assert_eq!(got.trailers.len(), usize::from(path == "/parts"));
    }
}

#[test]
fn every_form_is_limited_over_http2() {
    h2_forms(&plain(Limits::default()).0);
}

#[test]
fn every_form_is_limited_over_http2_and_tls() {
    h2_forms(&over_tls(b"h2"));
}

#[test]
fn small_response_of_http2_is_limited() {
    let server = plain(Limits::default()).0;
    let mut client = H2Client::new(server.connect());
    let began = Instant::now();
    for _ in 0..4 {
        let stream = client.get("/small");
        assert_eq!(client.finish(stream).body.len(), 1900);
    }
    // The second share of each comes with a tick, which the next response then has behind it.
    assert!(began.elapsed() >= Duration::from_millis(3 * 125), "{:?}", began.elapsed());
}

#[test]
fn pipelined_responses_are_each_limited_and_the_next_is_not() {
    let server = plain(Limits::default()).0;
    let mut stream = server.connect();
    let began = Instant::now();
    let requests = [get("/small"), get("/small"), get("/small"), get("/small"), last("/fast")];
    stream.write_all(requests.concat().as_bytes()).unwrap();
    let text = rest(&mut stream);
    // The second share of each comes with a tick, which the next response then has behind it.
    assert!(began.elapsed() >= Duration::from_millis(3 * 125), "{:?}", began.elapsed());
    assert_eq!(text.matches("HTTP/1.1 200 OK").count(), 5);
    assert!(text.as_bytes().ends_with(&bytes(BODY_BYTES)));
}

#[test]
fn the_start_of_a_response_is_not_limited() {
    // With a byte per second, the rest would take an hour.
    let (server, _) = plain(Limits::default());
    assert_eq!(body_of(&server.all(last("/after"))).len(), BODY_BYTES);
    let mut client = H2Client::new(server.connect());
    let stream = client.get("/after");
    assert_eq!(client.finish(stream).body.len(), BODY_BYTES);
}

#[test]
fn a_client_that_reads_at_the_limited_rate_is_not_slow() {
    let limits =
        Limits { rate_window: Duration::from_secs(1), rate_min_bytes_per_s: 5000, ..Limits::default() };
    let (server, seen) = plain(limits);
    std::thread::scope(|scope| {
        scope.spawn(|| assert_eq!(body_of(&server.all(last("/slow"))).len(), 500));
        scope.spawn(|| {
            let mut client = H2Client::new(server.connect());
            let stream = client.get("/slow");
            assert_eq!(client.finish(stream).body.len(), 500);
        });
    });
    assert_eq!([seen.recv().unwrap(), seen.recv().unwrap()], [Outcome::Sent; 2]);
}

#[test]
fn a_client_that_takes_nothing_is_closed() {
    let limits =
        Limits { rate_window: Duration::from_secs(1), rate_min_bytes_per_s: 5000, ..Limits::default() };
    let (server, seen) = plain(limits);
    let mut stream = server.connect_with_small_buffer();
    stream.write_all(get("/much").as_bytes()).unwrap();
    read_until(&mut stream, "\r\n\r\n");
    assert_eq!(seen.recv_timeout(Duration::from_secs(60)), Ok(Outcome::TimedOut));
}

#[test]
fn a_client_that_leaves_ends_its_response() {
    let (server, seen) = plain(Limits::default());
    let mut stream = server.connect();
    stream.write_all(get("/much").as_bytes()).unwrap();
    read_until(&mut stream, "\r\n\r\n");
    drop(stream);
    assert_eq!(seen.recv_timeout(Duration::from_secs(60)), Ok(Outcome::ClientGone));
    let mut client = H2Client::new(server.connect());
    let stream = client.get("/much");
    client.until(|client| client.got[&stream].body.len() > 1000);
    drop(client);
    assert_eq!(seen.recv_timeout(Duration::from_secs(60)), Ok(Outcome::ClientGone));
}

#[test]
fn a_drain_lets_a_limited_response_end() {
    let (server, _) = plain(Limits::default());
    let mut stream = server.connect();
    stream.write_all(get("/shared").as_bytes()).unwrap();
    let head = read_until(&mut stream, "\r\n\r\n");
    server.handle.drain();
    let mut body = Vec::new();
    stream.read_to_end(&mut body).unwrap();
    assert_eq!(body, bytes(BODY_BYTES), "{head}");
}
