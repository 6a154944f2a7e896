//! The engine's rooms from the outside: parked exchanges, pushed bodies, guests, the completion hook, budgets, limits.

#[path = "support/attempts.rs"]
mod attempts;
mod support;

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use attempts::attempts;
use bytes::Bytes;
use flatout_engine::{
    Begun, Body, BodyPlan, DetachedConnection, Ended, ExchangeKey, GuestEvent, GuestKey, Guests, Lane,
    Limits, Moved, Outcome, Prepared, Push, Reply, Request, RequestBody, Response, Service, Worker,
};
use flatout_wire::{Head, Status};
use support::{Paths, Running, body_of, get, last, read_until, rest};

/// Events that services report to the test.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Seen {
    Dropped,
    Gone,
    Held,
    Ended { path: String, status: Option<u16>, outcome: Outcome, received: u64, sent: u64, note: u64 },
}

struct Rooms {
    worker: Worker,
    paths: Paths,
    seen: Sender<Seen>,
    upstream: Rc<Echo>,
    count: AtomicUsize,
    script: Arc<Script>,
}

/// How a test and its service keep step.
struct Script {
    /// Requests that have begun.
    begun: AtomicUsize,
    /// What is slow may end.
    goes_on: AtomicBool,
    /// Lets the worker go on that is held.
    opened: Mutex<Receiver<()>>,
}

impl Script {
    fn hold(&self, seen: &Sender<Seen>) {
        let _ = seen.send(Seen::Held);
        let _ = self.opened.lock().unwrap().recv_timeout(TIME_MAX);
    }

    fn wait_until_it_goes_on(&self) {
        while !self.goes_on.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Time limit of waits that end at once where nothing is wrong.
const TIME_MAX: Duration = Duration::from_secs(30);

/// Reports when it is dropped.
struct Bell(Sender<Seen>);

impl Drop for Bell {
    fn drop(&mut self) {
        let _ = self.0.send(Seen::Dropped);
    }
}

impl Service for Rooms {
    fn prepare(&self, _: &Head<'_>, path: &[u8], _: u16) -> Prepared {
        match path {
            path if path.starts_with(b"/none") => BodyPlan::None,
            b"/stream" | b"/leave-stream" => BodyPlan::Stream { bytes_max: None },
            _ => BodyPlan::Whole { bytes_max: None },
        }
        .into()
    }

    fn call(&self, request: Request<'_>, response: &mut Response) -> Reply {
        let lane = self.worker.lane.clone();
        match request.path {
            b"/parked" => {
                let key = request.park();
                assert_eq!(key, request.park(), "one request has one exchange");
                // From this worker, later in the same turn.
                tokio::task::spawn_local(async move {
                    lane.inform(key, Status::EARLY_HINTS, b"Link: </a.css>\r\n");
                    assert!(lane.answer(key, text("parked")));
                    // A second response has no receiver.
                    lane.answer(key, text("twice"));
                });
                Reply::Parked
            }
            b"/elsewhere" => {
                let (key, mailbox) = (request.park(), self.worker.mailbox.clone());
                std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_millis(20));
                    mailbox.run(move |lane| assert!(lane.answer(key, text("from another thread")))).unwrap();
                });
                Reply::Parked
            }
            b"/elsewhere-slowly" => {
                let (key, mailbox) = (request.park(), self.worker.mailbox.clone());
                let script = self.script.clone();
                std::thread::spawn(move || {
                    script.wait_until_it_goes_on();
                    mailbox.run(move |lane| assert!(lane.answer(key, text("from another thread")))).unwrap();
                });
                Reply::Parked
            }
            b"/forgotten" => {
                request.park();
                let seen = self.seen.clone();
                tokio::task::spawn_local(async move {
                    let _bell = Bell(seen);
                    std::future::pending::<()>().await;
                });
                Reply::Parked
            }
            b"/waits" => {
                let bell = Bell(self.seen.clone());
                Reply::Later(Box::pin(async move {
                    let _bell = bell;
                    std::future::pending().await
                }))
            }
            b"/slowly" => {
                let script = self.script.clone();
                Reply::Later(Box::pin(async move {
                    while !script.goes_on.load(Ordering::SeqCst) {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                    text("slowly")
                }))
            }
            b"/pushed" => {
                let key = request.park();
                response.set_body(Body::Pushed);
                tokio::task::spawn_local(push_all(lane, key, 64));
                Reply::Now
            }
            b"/pushed-exactly" => {
                let key = request.park();
                response.set_body(Body::Pushed).declare_length(64 * PIECE_BYTES as u64);
                tokio::task::spawn_local(push_all(lane, key, 64));
                Reply::Now
            }
            b"/pushed-short" => {
                let key = request.park();
                response.set_body(Body::Pushed).declare_length(1 << 30);
                tokio::task::spawn_local(push_all(lane, key, 1));
                Reply::Now
            }
            b"/broken" => {
                let key = request.park();
                response.set_body(Body::Pushed);
                tokio::task::spawn_local(async move {
                    push_pieces(&lane, key, 64).await;
                    lane.cut(key);
                });
                Reply::Now
            }
            b"/mailbox" => {
                for _ in 0..4_000 {
                    self.worker.mailbox.run(|_| std::thread::sleep(Duration::from_micros(50))).unwrap();
                }
                let done = self.seen.clone();
                self.worker.mailbox.run(move |_| drop(done.send(Seen::Gone))).unwrap();
                self.script.hold(&self.seen);
                Reply::Now
            }
            b"/held" => {
                self.script.hold(&self.seen);
                Reply::Now
            }
            b"/upstream" => self.upstream.ask(request.park(), request.head.query().unwrap_or_default()),
            b"/none-slowly" => Reply::Later(Box::pin(async {
                tokio::time::sleep(Duration::from_millis(500)).await;
                text("slowly")
            })),
            b"/noted" => {
                response.set_note(7).buffer().extend_from_slice(b"0123456789");
                Reply::Now
            }
            b"/busy" => {
                std::thread::sleep(Duration::from_micros(100));
                let at = self.count.fetch_add(1, Ordering::Relaxed);
                response.buffer().extend_from_slice(at.to_string().as_bytes());
                Reply::Now
            }
            b"/leave" | b"/leave-stream" => Reply::Leave(Box::new(|taken| Box::pin(repeat(taken)))),
            b"/big" => {
                response.set_body(Body::Shared(Bytes::from(vec![b'x'; 8 << 20])));
                Reply::Now
            }
            _ => {
                if let RequestBody::Whole { bytes, .. } = request.body {
                    response.buffer().extend_from_slice(bytes);
                }
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
        self.script.begun.fetch_add(1, Ordering::SeqCst);
        self.paths.keep(begun)
    }

    fn ended(&self, ended: &Ended) {
        let first = ended.first_byte_ns.unwrap_or(ended.began_ns);
        assert!(ended.began_ns <= first && first <= ended.ended_ns, "{ended:?}");
        let _ = self.seen.send(Seen::Ended {
            path: self.paths.of(ended.mark),
            status: ended.status.map(Status::code),
            outcome: ended.outcome,
            received: ended.received_bytes,
            sent: ended.sent_bytes,
            note: ended.note,
        });
    }
}

const PIECE_BYTES: usize = 50_000;

/// Pushes this many pieces into a body, and ends it.
async fn push_all(lane: Lane, key: ExchangeKey, pieces: usize) {
    push_pieces(&lane, key, pieces).await;
    lane.end(key, b"X-Pieces: all\r\n");
}

/// Pushes this many pieces into a body, no faster than they are sent.
async fn push_pieces(lane: &Lane, key: ExchangeKey, pieces: usize) {
    for _ in 0..pieces {
        let mut piece = Bytes::from(vec![b'p'; PIECE_BYTES]);
        loop {
            match lane.push(key, piece) {
                Push::Accepted => break,
                Push::Full(back) => piece = back,
                Push::Gone => return,
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// Echoes the data received before the takeover and after it.
async fn repeat(taken: DetachedConnection) {
    let socket =
        tokio::net::TcpStream::from_std(TcpStream::from(taken.carrier.into_socket().unwrap())).unwrap();
    socket.writable().await.unwrap();
    socket.try_write(&taken.read).unwrap();
    let mut buffer = [0; 4096];
    loop {
        socket.readable().await.unwrap();
        match socket.try_read(&mut buffer) {
            Ok(0) => return,
            Ok(read) => drop(socket.try_write(&buffer[..read])),
            Err(_) => {}
        }
    }
}

fn text(text: &str) -> Response {
    let mut response = Response::new();
    response.buffer().extend_from_slice(text.as_bytes());
    response
}

/// A service's upstream in the lane: one connection for each request, to an echo server.
struct Echo {
    address: std::net::SocketAddr,
    lane: Lane,
    waiting: RefCell<HashMap<GuestKey, ExchangeKey>>,
    seen: Sender<Seen>,
}

impl Echo {
    fn ask(self: &Rc<Self>, key: ExchangeKey, question: &[u8]) -> Reply {
        let lane = &self.lane;
        let socket = TcpStream::connect(self.address).unwrap();
        socket.set_nonblocking(true).unwrap();
        let guest = lane.register(OwnedFd::from(socket), self.clone(), 42).unwrap();
        assert!(lane.attach(key, guest));
        assert_eq!(lane.send(guest, question), Moved::Bytes(question.len()));
        self.waiting.borrow_mut().insert(guest, key);
        Reply::Parked
    }
}

impl Guests for Echo {
    fn ready(&self, guest: GuestKey, tag: u64, event: GuestEvent) {
        let lane = &self.lane;
        assert_eq!(tag, 42);
        match event {
            GuestEvent::Socket(ready) if ready.readable() => {
                let mut buffer = lane.buffer();
                if let Moved::Bytes(count @ 1..) = lane.receive(guest, &mut buffer) {
                    let key = self.waiting.borrow()[&guest];
                    let mut response = Response::new();
                    response.buffer().extend_from_slice(&buffer[..count]);
                    lane.answer(key, response);
                }
            }
            GuestEvent::Socket(_) | GuestEvent::Room(_) | GuestEvent::Body(_) | GuestEvent::Again => {}
            GuestEvent::Gone(key) => {
                assert_eq!(self.waiting.borrow_mut().remove(&guest), Some(key));
                lane.remove(guest);
                let _ = self.seen.send(Seen::Gone);
            }
            GuestEvent::Deadline | GuestEvent::Draining => {}
        }
    }
}

/// An echo server, except for `silent`; `slow` waits for the script.
fn echo_server(script: Arc<Script>) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let script = script.clone();
            std::thread::spawn(move || {
                let mut buffer = [0; 4096];
                while let Ok(count @ 1..) = stream.read(&mut buffer) {
                    if buffer[..count] == *b"slow" {
                        script.wait_until_it_goes_on();
                    }
                    if buffer[..count] != *b"silent" && stream.write_all(&buffer[..count]).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

struct Test {
    server: Running,
    seen: Receiver<Seen>,
    script: Arc<Script>,
    open: Sender<()>,
}

impl Test {
    fn with(limits: Limits) -> Test {
        let (sender, seen) = channel();
        let sender = Mutex::new(sender);
        let (open, opened) = channel();
        let opened = Mutex::new(opened);
        let script = Arc::new(Script { begun: AtomicUsize::new(0), goes_on: AtomicBool::new(false), opened });
        let (address, shared) = (echo_server(script.clone()), script.clone());
        let server = Running::serving(limits, move |worker| {
            let seen = sender.lock().unwrap().clone();
            let upstream = Rc::new(Echo {
                address,
                lane: worker.lane.clone(),
                waiting: RefCell::default(),
                seen: seen.clone(),
            });
            let (paths, count, script) = (Paths::default(), AtomicUsize::new(0), shared.clone());
            Box::new(Rooms { worker, paths, seen, upstream, count, script })
        });
        Test { server, seen, script, open }
    }

    fn new() -> Test {
        Test::with(Limits::default())
    }

    fn next(&self) -> Seen {
        self.seen.recv_timeout(TIME_MAX).expect("something happens")
    }

    /// Waits until so many requests have begun.
    fn has_begun(&self, count: usize) {
        let deadline = Instant::now() + TIME_MAX;
        while self.script.begun.load(Ordering::SeqCst) < count {
            assert!(Instant::now() < deadline, "{count} requests have not begun");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// What was sent is at the server now, also where a client in between encrypts it.
    fn has_arrived() {
        if support::is_encrypted() {
            std::thread::sleep(Duration::from_millis(500));
        }
    }

    fn ended(&self) -> (String, Option<u16>, Outcome) {
        match self.next() {
            Seen::Ended { path, status, outcome, .. } => (path, status, outcome),
            other => panic!("{other:?} instead of an end"),
        }
    }
}

#[test]
fn parked_request_is_answered_by_key() {
    let test = Test::new();
    let answer = test.server.all(get("/parked") + &last("/parked"));
    assert_eq!(answer.matches("HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n").count(), 2, "{answer}");
    assert_eq!(answer.matches("\r\n\r\nparked").count(), 2, "{answer}");
    let answer = test.server.all(last("/elsewhere"));
    assert!(answer.ends_with("\r\n\r\nfrom another thread"), "{answer}");
}

#[test]
fn body_is_pushed_by_key() {
    let test = Test::new();
    let bytes = 64 * PIECE_BYTES;
    let answer = test.server.all(last("/pushed"));
    assert!(answer.contains("Transfer-Encoding: chunked\r\n"));
    assert!(answer.ends_with("0\r\nX-Pieces: all\r\n\r\n") && body_of(&answer).matches('p').count() == bytes);
    let answer = test.server.all(last("/pushed-exactly"));
    assert!(answer.contains(&format!("Content-Length: {bytes}\r\n")), "{}", &answer[..200]);
    assert_eq!(body_of(&answer).len(), bytes);
    // Shorter than declared: the connection is cut, and never ends cleanly so that another response could follow.
    let mut stream = test.server.connect();
    stream.write_all((get("/pushed-short") + &get("/noted")).as_bytes()).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert!(!String::from_utf8_lossy(&answer).contains("0123456789"));
}

#[test]
fn pushed_body_waits_for_a_slow_reader() {
    let test = Test::new();
    let mut stream = test.server.connect_with_small_buffer();
    stream.write_all(last("/pushed").as_bytes()).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(rest(&mut stream).matches('p').count(), 64 * PIECE_BYTES);
}

#[test]
fn aborted_body_is_sent_as_far_as_received() {
    let test = Test::new();
    let mut stream = test.server.connect_with_small_buffer();
    stream.write_all((get("/noted") + &get("/broken") + &get("/noted")).as_bytes()).unwrap();
    // The client reads nothing until the body was cut.
    std::thread::sleep(Duration::from_millis(300));
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let answer = String::from_utf8(answer).unwrap();
    assert_eq!(answer.matches('p').count(), 64 * PIECE_BYTES, "all that was pushed");
    assert!(!answer.ends_with("0\r\n\r\n"), "and no clean end");
    assert_eq!(answer.matches("0123456789").count(), 1, "nor anything behind it");
    assert_eq!(test.ended(), ("/noted".to_owned(), Some(200), Outcome::Sent));
    assert_eq!(test.ended(), ("/broken".to_owned(), Some(200), Outcome::Failed));
}

#[test]
fn full_mailbox_does_not_starve_clients() {
    attempts(clients_beside_a_full_mailbox);
}

fn clients_beside_a_full_mailbox() {
    let test = Test::new();
    let (mut filling, mut other) = (test.server.connect(), test.server.connect());
    // A fifth of a second of jobs, and the other client's request is there before the first of them.
    filling.write_all(last("/mailbox").as_bytes()).unwrap();
    assert_eq!(test.next(), Seen::Held);
    other.write_all(last("/noted").as_bytes()).unwrap();
    Test::has_arrived();
    test.open.send(()).unwrap();
    rest(&mut filling);
    assert_eq!(test.ended(), ("/mailbox".to_owned(), Some(200), Outcome::Sent));
    let answer = rest(&mut other);
    assert!(answer.ends_with("0123456789"), "{answer}");
    assert_eq!(test.ended(), ("/noted".to_owned(), Some(200), Outcome::Sent), "before the last job");
    assert_eq!(test.next(), Seen::Gone, "and all jobs are done");
}

#[test]
fn drain_waits_for_open_requests() {
    if support::is_encrypted() {
        return;
    }
    let mut test = Test::new();
    let mut waiting = Vec::new();
    for path in ["/slowly", "/elsewhere-slowly", "/upstream?slow"] {
        let mut stream = test.server.connect();
        stream.write_all(get(path).as_bytes()).unwrap();
        waiting.push(stream);
    }
    let mut taken = test.server.connect();
    taken.write_all(get("/leave").as_bytes()).unwrap();
    assert_eq!(read_until(&mut taken, "\r\n\r\n"), get("/leave"));
    let mut idle: Vec<TcpStream> = (0..500).map(|_| test.server.connect()).collect();
    idle[0].write_all(get("/noted").as_bytes()).unwrap();
    read_until(&mut idle[0], "0123456789");
    test.has_begun(5);
    test.server.handle.drain();
    for mut stream in idle {
        assert_eq!(rest(&mut stream), "", "an idle connection is closed");
    }
    test.script.goes_on.store(true, Ordering::SeqCst);
    for mut stream in waiting {
        let answer = rest(&mut stream);
        assert!(answer.contains("HTTP/1.1 200 OK") && answer.contains("Connection: close"), "{answer}");
    }
    // A connection that has left HTTP keeps its slot until it ends.
    taken.write_all(b"still here").unwrap();
    assert_eq!(read_until(&mut taken, "still here"), "still here");
    drop(taken);
    let began = Instant::now();
    test.server.wait();
    assert!(began.elapsed() < Duration::from_secs(10), "it does not wait for its limit");
}

#[test]
fn guest_makes_the_response() {
    let test = Test::new();
    let mut stream = test.server.connect();
    for question in ["one", "two", "three"] {
        stream.write_all(get(&format!("/upstream?{question}")).as_bytes()).unwrap();
        read_until(&mut stream, &format!("\r\n\r\n{question}"));
        let seen = [test.next(), test.next()];
        assert!(seen.contains(&Seen::Gone), "{seen:?}");
    }
}

#[test]
fn closed_client_closes_its_upstream() {
    let test = Test::new();
    let mut stream = test.server.connect();
    stream.write_all(get("/upstream?silent").as_bytes()).unwrap();
    test.has_begun(1);
    drop(stream);
    let seen = [test.next(), test.next()];
    assert!(seen.contains(&Seen::Gone), "{seen:?}");
}

#[test]
fn half_closed_client_is_dropped_unless_enabled() {
    let test = Test::new();
    let mut stream = test.server.connect();
    stream.write_all(get("/waits").as_bytes()).unwrap();
    test.has_begun(1);
    // Not reset: the server only sees EOF from the client.
    stream.shutdown(Shutdown::Write).unwrap();
    assert!([test.next(), test.next()].contains(&Seen::Dropped), "the future is dropped");
    assert_eq!(rest(&mut stream), "");

    let test = Test::with(Limits { half_close: true, ..Limits::default() });
    let mut stream = test.server.connect();
    stream.write_all(get("/slowly").as_bytes()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    // Time for its end to come before the response.
    std::thread::sleep(Duration::from_millis(300));
    test.script.goes_on.store(true, Ordering::SeqCst);
    assert!(rest(&mut stream).ends_with("slowly"));
}

#[test]
fn every_request_is_reported_once() {
    let test = Test::with(Limits { requests_per_connection_max: Some(3), ..Limits::default() });
    let sent = "POST /noted HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\n\r\nhello";
    let answer = test.server.all(sent.to_owned() + "GET / HTTP/1.1\r\nBad Name: t\r\n\r\n");
    let first = answer.find("HTTP/1.1 400").unwrap() as u64;
    let reported = test.next();
    let Seen::Ended { path, status, outcome, received, sent: bytes, note } = reported else {
        panic!("{reported:?}")
    };
    assert_eq!((path.as_str(), status, outcome, note), ("/noted", Some(200), Outcome::Sent, 7));
    assert_eq!((received, bytes), (sent.len() as u64, first));
    assert_eq!(test.ended(), (String::new(), Some(400), Outcome::Refused));

    // Pipelined, streamed, collected, too large, gone.
    test.server.all(get("/noted") + &get("/pushed") + &last("/parked"));
    for path in ["/noted", "/pushed", "/parked"] {
        assert_eq!(test.ended(), (path.to_owned(), Some(200), Outcome::Sent));
    }
    test.server.all("POST /whole HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n3\r\nabc\r\n0\r\n\r\n");
    assert_eq!(test.ended(), ("/whole".to_owned(), Some(200), Outcome::Sent));
    test.server.all("POST /large HTTP/1.1\r\nHost: t\r\nContent-Length: 99999999\r\n\r\n");
    assert_eq!(test.ended(), ("/large".to_owned(), Some(413), Outcome::Refused));
    let mut stream = test.server.connect();
    stream.write_all(get("/big").as_bytes()).unwrap();
    read_until(&mut stream, "\r\n\r\n");
    drop(stream);
    assert_eq!(test.ended(), ("/big".to_owned(), Some(200), Outcome::ClientGone));
    test.server.all(get("/pushed-short"));
    assert_eq!(test.ended(), ("/pushed-short".to_owned(), Some(200), Outcome::Failed));
    let mut stream = test.server.connect();
    stream.write_all(get("/leave").as_bytes()).unwrap();
    read_until(&mut stream, "\r\n\r\n");
    assert_eq!(test.ended(), ("/leave".to_owned(), None, Outcome::Taken));
}

#[test]
fn takeover_gets_all_received_bytes() {
    let test = Test::new();
    for sent in [
        get("/leave") + "and more",
        "POST /leave-stream HTTP/1.1\r\nHost: t\r\nContent-Length: 8\r\n\r\nand more".to_owned(),
        "POST /leave HTTP/1.1\r\nHost: t\r\nContent-Length: 8\r\n\r\nand more".to_owned(),
    ] {
        let mut stream = test.server.connect();
        stream.write_all(sent.as_bytes()).unwrap();
        assert_eq!(read_until(&mut stream, "and more"), sent);
        stream.write_all(b"then").unwrap();
        assert_eq!(read_until(&mut stream, "then"), "then");
    }
    // A collected body arrives as if it came in one piece.
    let mut stream = test.server.connect();
    let head = "POST /leave HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n";
    stream.write_all((head.to_owned() + "3\r\nand\r\n5\r\n more\r\n0\r\n\r\n").as_bytes()).unwrap();
    assert_eq!(read_until(&mut stream, "0\r\n\r\n"), head.to_owned() + "8\r\nand more\r\n0\r\n\r\n");
}

#[test]
fn service_without_bodies_responds_at_once() {
    let test = Test::new();
    let unfinished = "POST /none HTTP/1.1\r\nHost: t\r\nContent-Length: 8000000\r\n\r\nabc";
    let began = Instant::now();
    let mut stream = test.server.connect();
    stream.write_all(unfinished.as_bytes()).unwrap();
    let answer = read_until(&mut stream, "\r\n\r\n");
    assert!(answer.contains("Connection: close"), "what is left is too much to be skipped: {answer}");
    assert!(began.elapsed() < Duration::from_secs(9), "a slow body has ten seconds");
    // A small body is skipped, and the next request served.
    let answer = test
        .server
        .all("POST /none HTTP/1.1\r\nHost: t\r\nContent-Length: 3\r\n\r\nabc".to_owned() + &last("/noted"));
    assert_eq!(answer.matches("HTTP/1.1 200 OK").count(), 2, "{answer}");
    // After a response to a client that waits for 100, it is unclear what follows.
    let waits = "POST /none HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n";
    let answer = test.server.all(waits);
    assert!(answer.contains("Connection: close") && !answer.contains("100 Continue"), "{answer}");
}

#[test]
fn unwanted_body_is_not_read_before_the_response() {
    let test = Test::new();
    let mut stream = test.server.connect();
    let head = "POST /none-slowly HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    stream.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
    let chunk = format!("100000\r\n{}\r\n", "x".repeat(1 << 20));
    let mut sent = 0;
    while sent < 256 && stream.write_all(chunk.as_bytes()).is_ok() {
        sent += 1;
    }
    assert!(sent < 64, "{sent} MiB were read for nobody");
}

#[test]
fn collected_bodies_share_one_limit() {
    let limits = Limits { bodies_memory_max: 1 << 20, body_bytes_max: 1 << 20, ..Limits::default() };
    let test = Test::with(limits);
    let head = "POST /whole HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: 700000\r\n\r\n";
    let half = "x".repeat(650_000);
    let mut first = test.server.connect();
    first.write_all((head.to_owned() + &half).as_bytes()).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    // The second has to wait, and is served once the first has released memory.
    let mut second = test.server.connect();
    let writer = {
        let (mut second, sent) = (second.try_clone().unwrap(), head.to_owned() + &"y".repeat(700_000));
        std::thread::spawn(move || second.write_all(sent.as_bytes()))
    };
    std::thread::sleep(Duration::from_millis(500));
    first.write_all("x".repeat(50_000).as_bytes()).unwrap();
    assert_eq!(body_of(&rest(&mut first)).len(), 700_000);
    assert_eq!(body_of(&rest(&mut second)).len(), 700_000);
    writer.join().unwrap().unwrap();
    // A third, behind one that does not progress, gets 503 and Retry-After.
    let mut holder = test.server.connect();
    holder.write_all((head.to_owned() + &half).as_bytes()).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    // On a slow machine it may come before the server has read what the other holds.
    let mut answers = (0..5).map(|_| {
        let mut third = test.server.connect();
        third.set_read_timeout(Some(TIME_MAX)).unwrap();
        let mut sender = third.try_clone().unwrap();
        let sent = head.to_owned() + &"z".repeat(700_000);
        let writer = std::thread::spawn(move || drop(sender.write_all(sent.as_bytes())));
        let answer = read_until(&mut third, "\r\n\r\n");
        drop(third);
        writer.join().unwrap();
        answer
    });
    let answer = answers.find(|answer| answer.starts_with("HTTP/1.1 503 ")).expect("one that has no room");
    assert!(answer.contains("Retry-After: "), "{answer}");
    // Small requests, which need almost no memory, continue.
    assert!(test.server.all(last("/noted")).starts_with("HTTP/1.1 200 "));
}

#[test]
fn endless_pipelining_does_not_starve_others() {
    attempts(others_beside_one_who_pipelines);
}

fn others_beside_one_who_pipelines() {
    let test = Test::new();
    let (mut greedy, mut other) = (test.server.connect(), test.server.connect());
    // 2 400 requests of a tenth of a millisecond: a quarter of a second if all of them are served.
    greedy.write_all((get("/held") + &get("/busy").repeat(2400)).as_bytes()).unwrap();
    assert_eq!(test.next(), Seen::Held);
    other.write_all(last("/busy").as_bytes()).unwrap();
    Test::has_arrived();
    test.open.send(()).unwrap();
    let answer = rest(&mut other);
    let at: usize = body_of(&answer).parse().unwrap();
    assert!(at < 2400, "served behind all of the others");
    let mut buffer = vec![0; 1 << 16];
    let mut answers = 0;
    while answers < 2401 {
        let count = greedy.read(&mut buffer).unwrap();
        assert!(count > 0, "{answers} answers");
        answers += buffer[..count].windows(8).filter(|at| at == b"HTTP/1.1").count();
    }
}

/// A file that was written and is not in memory any more, as far as the kernel lets go of it.
fn cold_file(bytes: usize) -> std::fs::File {
    let mut file = tempfile::tempfile().unwrap();
    let piece: Vec<u8> = (0..1 << 20).map(|at: u32| (at % 251) as u8).collect();
    for _ in 0..bytes >> 20 {
        file.write_all(&piece).unwrap();
    }
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    file
}

#[test]
fn uncached_file_is_read_by_reader_threads() {
    let file = Arc::new(cold_file(24 << 20));
    let test = Running::serving(Limits::default(), move |_| Box::new(Cold(file.clone())));
    let mut streams: Vec<TcpStream> = (0..3).map(|_| test.connect()).collect();
    for stream in &mut streams {
        stream.write_all(last("/cold").as_bytes()).unwrap();
    }
    for stream in &mut streams {
        read_until(stream, "\r\n\r\n");
        let mut body = Vec::new();
        stream.read_to_end(&mut body).unwrap();
        assert_eq!(body.len(), 24 << 20);
        assert!(
            body.chunks(1 << 20)
                .all(|piece| piece.iter().enumerate().all(|(at, &byte)| byte == (at % 251) as u8))
        );
    }
    // Threads have names, and a reader exists only if somebody had to wait for a disk.
    let names = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let mut names = names.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    assert!(names.any(|name| name.starts_with("flatout-read")), "the worker has read it itself");
}

struct Cold(Arc<std::fs::File>);

impl Service for Cold {
    fn call(&self, _: Request<'_>, response: &mut Response) -> Reply {
        let found = self.0.metadata().unwrap();
        response.set_body(Body::File(flatout_engine::FileRange {
            file: self.0.clone(),
            offset: 0,
            bytes: found.len(),
            modified: found.modified().unwrap(),
            witness: None,
        }));
        Reply::Now
    }
}

#[test]
fn late_data_does_not_reset_the_last_response() {
    let limits = Limits { requests_per_connection_max: Some(1), ..Limits::default() };
    let test = Test::with(limits);
    for _ in 0..50 {
        let mut stream = test.server.connect();
        stream.write_all(get("/noted").as_bytes()).unwrap();
        // The response was received; data that arrives after the server's close must not destroy it.
        std::thread::sleep(Duration::from_millis(5));
        let _ = stream.write_all(get("/noted").as_bytes());
        std::thread::sleep(Duration::from_millis(5));
        let answer = rest(&mut stream);
        assert!(answer.ends_with("0123456789"), "{answer:?}");
    }
}

#[test]
fn rates_use_elapsed_time() {
    attempts(a_slow_upload_and_a_fast_one);
}

fn a_slow_upload_and_a_fast_one() {
    let limits =
        Limits { rate_window: Duration::from_millis(300), rate_min_bytes_per_s: 10_000, ..Limits::default() };
    let test = Arc::new(Test::with(limits).server);
    let upload = |bytes_per_100_ms: usize| {
        let test = test.clone();
        std::thread::spawn(move || {
            let mut stream = test.connect();
            stream.write_all(b"POST /whole HTTP/1.1\r\nHost: t\r\nContent-Length: 1000000\r\n\r\n").unwrap();
            let began = Instant::now();
            let piece = vec![b'x'; bytes_per_100_ms];
            while began.elapsed() < Duration::from_millis(3500) && stream.write_all(&piece).is_ok() {
                std::thread::sleep(Duration::from_millis(100));
            }
            stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
            let mut answer = [0; 12];
            stream.read_exact(&mut answer).is_ok().then(|| String::from_utf8_lossy(&answer).into_owned())
        })
    };
    let (slow, fast) = (upload(500), upload(20_000));
    assert_eq!(slow.join().unwrap().as_deref(), Some("HTTP/1.1 408"));
    assert_eq!(fast.join().unwrap(), None, "it goes on");
}
