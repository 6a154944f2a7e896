//! HTTP/2 with prior knowledge over real sockets: all kinds of responses.

mod support;

use std::cell::Cell;
use std::io::{Read, Write};
use std::rc::Rc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use flatout_engine::{
    Begun, Body, BodyPlan, Ended, FileRange, GuestEvent, GuestKey, Guests, Lane, Limits, Outcome, Part,
    Prepared, Pull, Push, Reply, Request, RequestBody, Response, Service, Worker,
};
use flatout_wire::h2::{Code, Limits as MachineLimits, PREFACE};
use flatout_wire::{Head, Method, Status};
use support::h2::H2Client;
use support::{Paths, Running, body_of, last};

#[derive(Debug, Clone, PartialEq, Eq)]
enum Seen {
    Dropped,
    Gone,
    Ended { path: String, status: Option<u16>, outcome: Outcome, received: u64, sent: u64 },
}

/// Time limit of waits that end at once where nothing is wrong.
const TIME_MAX: Duration = Duration::from_secs(30);

struct Streams {
    worker: Worker,
    paths: Paths,
    seen: Sender<Seen>,
    puller: Rc<Puller>,
}

struct Bell(Sender<Seen>);

impl Drop for Bell {
    fn drop(&mut self) {
        let _ = self.0.send(Seen::Dropped);
    }
}

/// Pulls bodies of requests and pushes them back.
struct Puller {
    lane: Lane,
    seen: Sender<Seen>,
    key: Cell<Option<flatout_engine::ExchangeKey>>,
    rest: Cell<Option<Bytes>>,
}

impl Puller {
    fn go_on(&self) {
        let Some(key) = self.key.get() else { return };
        if let Some(rest) = self.rest.take()
            && let Push::Full(rest) = self.lane.push(key, rest)
        {
            return self.rest.set(Some(rest));
        }
        loop {
            match self.lane.pull(key) {
                Pull::Data(bytes) => {
                    if let Push::Full(rest) = self.lane.push(key, bytes) {
                        return self.rest.set(Some(rest));
                    }
                }
                Pull::End(_) => {
                    self.lane.end(key, b"X-Pulled: yes\r\n");
                    return;
                }
                Pull::Pipe(_) => panic!("a stream's content cannot be in a pipe"),
                Pull::Fault(_) | Pull::Later | Pull::Gone => return,
            }
        }
    }
}

impl Guests for Puller {
    fn ready(&self, _: GuestKey, _: u64, event: GuestEvent) {
        match event {
            GuestEvent::Gone(_) => drop(self.seen.send(Seen::Gone)),
            _ => self.go_on(),
        }
    }
}

fn streams(worker: Worker, seen: &Sender<Seen>) -> Box<dyn Service> {
    let puller = Rc::new(Puller {
        lane: worker.lane.clone(),
        seen: seen.clone(),
        key: Cell::default(),
        rest: Cell::default(),
    });
    Box::new(Streams { worker, paths: Paths::default(), seen: seen.clone(), puller })
}

fn much() -> Bytes {
    (0..1_000_000u32).map(|at| (at * 7 % 251) as u8).collect()
}

fn file() -> FileRange {
    // One for all tests of this program, which run at the same time.
    static FILE: LazyLock<Arc<std::fs::File>> = LazyLock::new(|| {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&much()).unwrap();
        file.into()
    });
    let modified = FILE.metadata().unwrap().modified().unwrap();
    FileRange { file: FILE.clone(), offset: 0, bytes: 1_000_000, modified, witness: None }
}

impl Service for Streams {
    fn prepare(&self, _: &Head<'_>, path: &[u8], _: u16) -> Prepared {
        match path {
            b"/none" => BodyPlan::None,
            b"/stream" => BodyPlan::Stream { bytes_max: None },
            b"/pull" => BodyPlan::Pull { bytes_max: None },
            b"/small" => BodyPlan::Whole { bytes_max: Some(10) },
            _ => BodyPlan::Whole { bytes_max: None },
        }
        .into()
    }

    fn call(&self, request: Request<'_>, response: &mut Response) -> Reply {
        let lane = self.worker.lane.clone();
        assert_eq!(request.head.authority(), b"t");
        response.header("X-Version", format!("{:?}", request.head.version));
        match request.path {
            b"/much" => drop(response.set_body(Body::Shared(much()))),
            b"/static" => drop(response.set_body(Body::Static(b"static"))),
            b"/empty" => {}
            b"/204" => drop(response.set_status(Status::NO_CONTENT)),
            b"/file" => drop(response.set_body(Body::File(file()))),
            b"/parts" => {
                let parts = vec![Part::Bytes(much()), Part::File(file()), Part::Bytes("end".into())];
                response.set_body(Body::Parts(parts));
            }
            b"/trailers" => {
                response.hint("Link", "</a.css>").trailer("X-Sum", "7").buffer().extend_from_slice(b"hi");
            }
            b"/panic" => panic!("a handler's defect"),
            b"/later" => {
                let bell = Bell(self.seen.clone());
                return Reply::Later(Box::pin(async move {
                    let _bell = bell;
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    text("later")
                }));
            }
            b"/never" => {
                let bell = Bell(self.seen.clone());
                return Reply::Later(Box::pin(async move {
                    let _bell = bell;
                    std::future::pending().await
                }));
            }
            b"/parked" => {
                let (key, mailbox) = (request.park(), self.worker.mailbox.clone());
                std::thread::spawn(move || {
                    mailbox.run(move |lane| assert!(lane.answer(key, text("from another thread")))).unwrap();
                });
                return Reply::Parked;
            }
            b"/pushed" => {
                let key = request.park();
                response.set_body(Body::Pushed).trailer("X-First", "1");
                tokio::task::spawn_local(async move {
                    for _ in 0..100 {
                        let mut piece = Bytes::from(vec![b'p'; 10_000]);
                        while let Push::Full(rest) = lane.push(key, piece) {
                            piece = rest;
                            tokio::time::sleep(Duration::from_millis(1)).await;
                        }
                    }
                    lane.end(key, b"X-Last: 2\r\n");
                });
            }
            b"/take" => {
                response.set_body(Body::Take(Box::new(|taken| {
                    Box::pin(async move {
                        assert!(taken.peer.is_some() && taken.read.is_empty());
                        let mut stream =
                            std::os::unix::net::UnixStream::from(taken.carrier.into_socket().unwrap());
                        stream.set_nonblocking(false).unwrap();
                        // More than a socket buffer holds: write on another thread, because this one has to read it.
                        std::thread::spawn(move || stream.write_all(&much()).is_ok());
                    })
                })));
            }
            b"/upgrade" => {
                response.set_status(Status::SWITCHING_PROTOCOLS);
                response.set_body(Body::Take(Box::new(|_| Box::pin(std::future::ready(())))));
            }
            b"/leave" => return Reply::Leave(Box::new(|_| Box::pin(std::future::ready(())))),
            b"/cut" => {
                let key = request.park();
                response.set_body(Body::Pushed);
                tokio::task::spawn_local(async move {
                    lane.push(key, Bytes::from_static(b"half"));
                    lane.cut(key);
                });
            }
            b"/pull" => {
                let key = request.park();
                let (socket, _) = std::os::unix::net::UnixStream::pair().unwrap();
                socket.set_nonblocking(true).unwrap();
                let guest = lane.register(socket.into(), self.puller.clone(), 0).unwrap();
                lane.attach(key, guest);
                self.puller.key.set(Some(key));
                let mut answer = Response::new();
                answer.set_body(Body::Pushed);
                lane.answer(key, answer);
                self.puller.go_on();
                return Reply::Parked;
            }
            b"/stream" => {
                let RequestBody::Stream(stream) = request.body else { return Reply::Now };
                response
                    .set_body(Body::Stream(Box::pin(http_body_util::BodyExt::map_err(stream, Into::into))));
            }
            _ => {
                let RequestBody::Whole { bytes, trailers } = request.body else { panic!("not whole") };
                let said = format!("{} bytes, {} trailers", bytes.len(), trailers.len());
                response
                    .header("X-Body", said)
                    .header("X-Cookie", request.head.field("cookie").unwrap_or(b"-"));
                response.buffer().extend_from_slice(request.path);
            }
        }
        Reply::Now
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
        let status = ended.status.map(|status| status.code());
        let (received, sent) = (ended.received_bytes, ended.sent_bytes);
        let _ = self.seen.send(Seen::Ended { path, status, outcome: ended.outcome, received, sent });
    }
}

fn text(body: &'static str) -> Response {
    let mut response = Response::new();
    response.set_body(Body::Static(body.as_bytes()));
    response
}

fn serving(limits: Limits) -> (Running, Receiver<Seen>) {
    let (seen, heard) = channel();
    let running = Running::serving(limits, move |worker| streams(worker, &seen));
    (running, heard)
}

fn ended(heard: &Receiver<Seen>, of: &str) -> Seen {
    loop {
        match heard.recv_timeout(TIME_MAX).expect("it ends") {
            seen @ Seen::Ended { .. } if matches!(&seen, Seen::Ended { path, .. } if path == of) => {
                return seen;
            }
            _ => {}
        }
    }
}

#[test]
fn every_kind_of_response_is_sent() {
    let (running, heard) = serving(Limits::default());
    let mut client = H2Client::new(running.connect());
    let much = much();
    let asked = [
        ("/static", b"static".to_vec()),
        ("/empty", Vec::new()),
        ("/204", Vec::new()),
        ("/echo", b"/echo".to_vec()),
        ("/later", b"later".to_vec()),
        ("/parked", b"from another thread".to_vec()),
        ("/much", much.to_vec()),
        ("/file", much.to_vec()),
        ("/parts", [&much[..], &much, b"end"].concat()),
        ("/pushed", vec![b'p'; 1_000_000]),
        ("/take", much.to_vec()),
    ];
    // All at once, and then one after another.
    let streams: Vec<_> = asked.iter().map(|(path, _)| client.get(path)).collect();
    for (stream, (path, body)) in streams.into_iter().zip(&asked) {
        let got = client.finish(stream);
        assert_eq!(got.status, if *path == "/204" { 204 } else { 200 });
        assert!(got.body == *body, "{path}: {} bytes", got.body.len());
        assert_eq!(got.field("server"), Some("flatout"));
        let is_by_key = matches!(*path, "/later" | "/parked");
        assert_eq!(got.field("x-version"), (!is_by_key).then_some("Http2"));
        assert!(got.field("date").is_some());
        let length = body.len().to_string();
        let expected = (!matches!(*path, "/204" | "/pushed" | "/take")).then_some(length.as_str());
        assert_eq!(got.field("content-length"), expected, "{path}");
    }
    for (path, body) in &asked {
        let stream = client.get(path);
        assert!(client.finish(stream).body == *body, "{path}");
    }
    let stream = client.ask(Method::Head, "/much", &[], None);
    let got = client.finish(stream);
    assert_eq!((got.field("content-length"), got.body.len()), (Some("1000000"), 0));
    match ended(&heard, "/much") {
        Seen::Ended { status, outcome, sent, .. } => {
            assert_eq!((status, outcome), (Some(200), Outcome::Sent));
            // 62 frames at the least.
            assert!((1_000_000 + 62 * 9..1_010_000).contains(&sent), "{sent}");
        }
        seen => panic!("{seen:?}"),
    }
}

#[test]
fn interim_responses_trailers_panics_and_aborted_bodies() {
    let (running, heard) = serving(Limits::default());
    let mut client = H2Client::new(running.connect());
    let stream = client.get("/trailers");
    let got = client.finish(stream);
    assert_eq!((got.interims, got.status, &got.body[..]), (vec![103], 200, &b"hi"[..]));
    assert_eq!(got.trailers, [("x-sum".to_owned(), "7".to_owned())]);
    let stream = client.get("/pushed");
    let trailers = client.finish(stream).trailers;
    assert_eq!(trailers, [("x-first".to_owned(), "1".to_owned()), ("x-last".to_owned(), "2".to_owned())]);
    let stream = client.get("/panic");
    assert_eq!(client.finish(stream).status, 500);
    let stream = client.get("/cut");
    let got = client.finish(stream);
    assert_eq!((got.status, got.reset, got.is_over), (200, Some(Code::INTERNAL_ERROR), false));
    assert!(matches!(ended(&heard, "/cut"), Seen::Ended { outcome: Outcome::Failed, .. }));
    // A stream cannot be upgraded or taken over.
    for (path, code) in [("/upgrade", Code::INTERNAL_ERROR), ("/leave", Code::CANCEL)] {
        let stream = client.get(path);
        assert_eq!(client.finish(stream).reset, Some(code), "{path}");
    }
    // The connection continues.
    let stream = client.get("/..%2f");
    assert_eq!(client.finish(stream).status, 400);
    let stream = client.ask(Method::Get, "/c", &[("cookie", "a=1"), ("cookie", "b=2")], None);
    assert_eq!(client.finish(stream).field("x-cookie"), Some("a=1; b=2"));
}

#[test]
fn request_bodies_follow_the_body_plan() {
    let (running, heard) = serving(Limits::default());
    let mut client = H2Client::new(running.connect());
    let much = much();
    for (path, body) in [("/whole", &much[..10]), ("/whole", &much[..]), ("/whole", b"")] {
        let stream = client.ask(Method::Post, path, &[], Some(body));
        let got = client.finish(stream);
        assert_eq!(got.field("x-body"), Some(format!("{} bytes, 0 trailers", body.len()).as_str()));
    }
    assert!(matches!(ended(&heard, "/whole"), Seen::Ended { received: 10.., .. }));
    for path in ["/stream", "/pull"] {
        for body in [&much[..], &much[..1], b""] {
            let stream = client.ask(Method::Put, path, &[("expect", "100-continue")], Some(body));
            let got = client.finish(stream);
            assert!(got.is_over && got.body == body, "{path}: {} of {}", got.body.len(), body.len());
            // It has begun to send its body.
            assert!(matches!(got.interims[..], [] | [100]), "{:?}", got.interims);
        }
    }
    // The response is complete and the request body is not needed: the server asks the client to stop sending it.
    let stream = client.ask(Method::Post, "/none", &[], Some(&much));
    assert_eq!(client.finish(stream).status, 200);
    let stream = client.ask(Method::Post, "/small", &[], Some(&much));
    assert_eq!(client.finish(stream).status, 413);
    let stream = client.ask(Method::Post, "/small", &[("content-length", "11")], Some(&much[..11]));
    assert_eq!(client.finish(stream).status, 413);
    let stream = client.get("/alive");
    assert_eq!(client.finish(stream).body, b"/alive");
}

#[test]
fn client_that_does_not_read_uses_bounded_memory() {
    let (running, _heard) = serving(Limits { rate_min_bytes_per_s: 0, ..Limits::default() });
    // The window lets no content through, so the producer is held back.
    let limits = MachineLimits { stream_window: 1, streams_max: 1000, ..MachineLimits::default() };
    let mut client = H2Client::with(running.connect(), limits);
    client.consumes = false;
    let streams: Vec<_> = (0..100).map(|_| client.get("/pushed")).collect();
    client.until(|client| streams.iter().all(|stream| client.got[stream].body.len() == 1));
    // Other connections are served, and this one's other streams.
    assert_eq!(body_of(&running.all(last("/other"))), "/other");
    let stream = client.get("/empty");
    assert_eq!(client.finish(stream).status, 200);
    // A client that reads in the end gets everything.
    client.consumes = true;
    client.machine.set_waiting(streams[0], false);
    streams.iter().for_each(|stream| client.machine.consumed(*stream, 1, &mut client.out));
    drop(client);
    let mut client = H2Client::new(running.connect());
    let stream = client.get("/pushed");
    assert_eq!(client.finish(stream).body.len(), 1_000_000);
}

#[test]
fn client_without_a_window_is_measured_from_then_on() {
    let limits =
        Limits { rate_window: Duration::from_secs(1), rate_min_bytes_per_s: 100_000, ..Limits::default() };
    let (running, _heard) = serving(limits);
    let limits = MachineLimits { stream_window: 10_000, ..MachineLimits::default() };
    let mut client = H2Client::with(running.connect(), limits);
    client.consumes = false;
    let stream = client.get("/pushed");
    client.until(|client| client.got[&stream].body.len() == 10_000);
    // Longer than until its rate is judged first, and shorter than until that happens again.
    std::thread::sleep(Duration::from_millis(1500));
    client.consumes = true;
    client.machine.set_waiting(stream, false);
    client.machine.consumed(stream, 10_000, &mut client.out);
    assert_eq!(client.finish(stream).body.len(), 1_000_000);
}

#[test]
fn stream_reset_stops_the_response_task() {
    let (running, heard) = serving(Limits::default());
    let mut client = H2Client::new(running.connect());
    let (never, parked) = (client.get("/never"), client.ask(Method::Put, "/pull", &[], Some(&much())));
    client.until(|client| client.got[&parked].status == 200);
    for stream in [never, parked] {
        client.machine.release(stream, &mut client.out);
    }
    let stream = client.get("/alive");
    assert_eq!(client.finish(stream).status, 200);
    let mut seen: Vec<Seen> = Vec::new();
    while seen.len() < 5 {
        seen.push(heard.recv_timeout(TIME_MAX).unwrap());
    }
    assert!(seen.contains(&Seen::Dropped) && seen.contains(&Seen::Gone), "{seen:?}");
    let gone = |of: &str| {
        let is = |seen: &&Seen| matches!(seen, Seen::Ended { path, outcome: Outcome::ClientGone, .. } if path == of);
        seen.iter().find(is).is_some()
    };
    assert!(gone("/never") && gone("/pull"), "{seen:?}");
}

#[test]
fn connection_close_ends_all_streams() {
    let (running, heard) = serving(Limits::default());
    let mut client = H2Client::new(running.connect());
    client.get("/never");
    let stream = client.get("/alive");
    client.finish(stream);
    drop(client);
    assert!(matches!(ended(&heard, "/never"), Seen::Ended { outcome: Outcome::ClientGone, .. }));
}

#[test]
fn connection_close_behind_a_part_of_a_frame_ends_all_streams() {
    let (running, heard) = serving(Limits::default());
    // The part and the end have to arrive together, which is so for most of the clients.
    for _ in 0..20 {
        let mut client = H2Client::new(running.connect());
        client.get("/never");
        let stream = client.get("/alive");
        client.finish(stream);
        client.socket.write_all(&[0]).unwrap();
        client.socket.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(matches!(ended(&heard, "/never"), Seen::Ended { outcome: Outcome::ClientGone, .. }));
    }
}

#[test]
fn drain_completes_open_streams() {
    let (mut running, _heard) = serving(Limits::default());
    let mut client = H2Client::new(running.connect());
    let mut idle = H2Client::new(running.connect());
    let first = idle.get("/alive");
    idle.finish(first);
    let streams: Vec<_> = ["/later", "/pushed", "/much"].iter().map(|path| client.get(path)).collect();
    client.until(|client| client.got.values().any(|got| got.status == 200));
    running.handle.drain();
    for stream in &streams {
        assert!(client.finish(*stream).is_over);
    }
    client.close();
    idle.close();
    assert_eq!(client.goaways, [(i32::MAX as u32, Code::NO_ERROR), (5, Code::NO_ERROR)]);
    assert_eq!(idle.goaways.last(), Some(&(1, Code::NO_ERROR)));
    running.wait();
}

/// The slots of closed connections are vacant.
#[test]
fn drain_reaches_connections_after_closed_slots() {
    let (running, _heard) = serving(Limits::default());
    let mut clients: Vec<H2Client> = (0..20)
        .map(|_| {
            let mut client = H2Client::new(running.connect());
            let stream = client.get("/alive");
            client.finish(stream);
            client
        })
        .collect();
    drop(clients.drain(..3));
    while running.handle.figures().connections > 17 {
        std::thread::yield_now();
    }
    let began = Instant::now();
    running.handle.drain();
    for client in &mut clients {
        client.close();
        assert_eq!(client.goaways.last(), Some(&(1, Code::NO_ERROR)));
    }
    assert!(began.elapsed() < Duration::from_secs(20), "open until the drain's own deadline");
}

/// A client that goes on sending frames does not keep its connection longer.
#[test]
fn drain_ignores_frames_without_requests() {
    let (running, _heard) = serving(Limits::default());
    let mut socket = running.connect();
    socket.write_all(&[PREFACE, &[0, 0, 0, 4, 0, 0, 0, 0, 0][..]].concat()).unwrap();
    // The server's SETTINGS.
    socket.read_exact(&mut [0; 9]).unwrap();
    running.handle.drain();
    let mut writer = socket.try_clone().unwrap();
    let pinging = std::thread::spawn(move || {
        let ping = [&[0, 0, 8, 6, 0, 0, 0, 0, 0][..], &[7; 8]].concat();
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(20) && writer.write_all(&ping).is_ok() {
            std::thread::sleep(Duration::from_millis(100));
        }
        began.elapsed()
    });
    let _ = socket.read_to_end(&mut Vec::new());
    drop(socket);
    assert!(pinging.join().unwrap() < Duration::from_secs(15), "it stays as long as it sends frames");
}

#[test]
fn drain_serves_first_request_of_new_connection() {
    // TLS 1.2 ends its handshake before the client has sent anything else. The time for the request is a second: a slow
    // machine may need another attempt.
    let is_served = || {
        let running = Running::over_tls(&[b"h2"], move |worker| streams(worker, &channel().0));
        let mut client = H2Client::new(running.connect());
        while running.handle.figures().connections < 1 {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(100));
        running.handle.drain();
        let stream = client.get("/alive");
        while !client.is_closed && !client.got[&stream].is_over {
            client.turn();
        }
        client.got[&stream].status == 200
    };
    assert!((0..5).any(|_| is_served()));
}

#[test]
fn slow_clients_are_disconnected() {
    let limits = Limits {
        head_time_max: Duration::from_millis(500),
        idle_time_max: Duration::from_secs(3),
        rate_window: Duration::from_secs(1),
        ..Limits::default()
    };
    let (running, heard) = serving(limits);
    // An incomplete preface, no SETTINGS, an endless header block, and nothing at all.
    let block = [PREFACE, &[0, 0, 0, 4, 0, 0, 0, 0, 0][..], &[0, 0, 1, 1, 1, 0, 0, 0, 1, 0x82]].concat();
    for bytes in [&PREFACE[..20], PREFACE, &block, b""] {
        let mut socket = running.connect();
        let began = Instant::now();
        socket.write_all(bytes).unwrap();
        let _ = socket.read_to_end(&mut Vec::new());
        assert!(began.elapsed() < Duration::from_secs(9), "{bytes:?}");
    }
    // A window that is never opened, with pings all the time.
    let limits = MachineLimits { stream_window: 1, ..MachineLimits::default() };
    let mut client = H2Client::with(running.connect(), limits);
    client.consumes = false;
    client.get("/much");
    client.socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    client.send();
    let began = Instant::now();
    let mut buffer = [0; 4096];
    loop {
        match client.socket.read(&mut buffer) {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => break,
            // Nothing was received for a while: send another one.
            Err(_) => drop(client.socket.write_all(&[0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8])),
        }
        assert!(began.elapsed() < TIME_MAX);
    }
    assert!(matches!(ended(&heard, "/much"), Seen::Ended { outcome: Outcome::TimedOut, .. }));
}

#[test]
fn the_window_for_request_bodies_is_configurable() {
    const BYTES: usize = 200 << 10;
    let unsent_bytes = |limits: Limits| {
        let (running, _heard) = serving(limits);
        let mut client = H2Client::new(running.connect());
        // Its response comes behind the server's SETTINGS.
        let first = client.get("/a");
        client.finish(first);
        let upload = client.upload(Method::Post, "/a", &[]);
        client.say(upload, &[b'x'; BYTES]);
        client.send();
        client.unsent_bytes(upload)
    };
    assert_eq!(unsent_bytes(Limits::default()), BYTES - (64 << 10));
    assert_eq!(unsent_bytes(Limits { stream_window_bytes: 1 << 20, ..Limits::default() }), 0);
}

/// A request soon after another one has the whole window of its own.
#[test]
fn the_rate_of_a_request_is_measured_from_its_beginning() {
    let (running, _heard) = serving(Limits::default());
    let mut client = H2Client::new(running.connect());
    let first = client.get("/a");
    assert_eq!(client.finish(first).status, 200);
    let second = client.upload(Method::Post, "/a", &[]);
    client.send();
    // Longer than a connection without streams keeps its memory, and shorter than the window.
    client.socket.set_read_timeout(Some(Duration::from_millis(1500))).unwrap();
    let mut buffer = [0; 4096];
    while client.socket.read(&mut buffer).is_ok_and(|count| count > 0) {
        assert!(!buffer.windows(8).any(|bytes| bytes == b"too slow"));
    }
    client.socket.set_read_timeout(Some(TIME_MAX)).unwrap();
    client.say(second, b"Hello");
    client.end(second);
    assert_eq!(client.finish(second).status, 200);
}

#[test]
fn preface_after_a_request_is_refused() {
    let (running, _heard) = serving(Limits::default());
    let answers = running.all([&support::get("/a").into_bytes()[..], PREFACE].concat());
    assert!(answers.contains("HTTP/1.1 505 "), "{answers}");
}

#[test]
fn disabled_http2_leaves_http1() {
    let (running, _heard) = serving(Limits { http2: false, ..Limits::default() });
    assert!(running.all(PREFACE).starts_with("HTTP/1.1 505 "));
    assert_eq!(body_of(&running.all(last("/a"))), "/a");
}

/// Over TLS, the handshake decides before the client sends any data, whatever it sends afterwards.
#[test]
fn alpn_selects_the_protocol() {
    let (seen, _heard) = channel();
    let running = Running::over_tls(&[b"h2", b"http/1.1"], move |worker| streams(worker, &seen));
    let mut socket = running.connect();
    let mut first = [0; 9];
    socket.read_exact(&mut first).unwrap();
    assert_eq!(first[3..], [4, 0, 0, 0, 0, 0]);
    socket.write_all(last("/a").as_bytes()).unwrap();
    let mut rest = Vec::new();
    socket.read_to_end(&mut rest).unwrap();
    assert!(rest.windows(9).any(|bytes| bytes[3..] == [7, 0, 0, 0, 0, 0]), "{rest:?}");
    assert!(!rest.windows(5).any(|bytes| bytes == b"HTTP/"));

    let mut client = H2Client::new(running.connect());
    let streams: Vec<_> = ["/much", "/file", "/later", "/take"].iter().map(|path| client.get(path)).collect();
    for stream in &streams {
        assert!(client.finish(*stream).is_over);
    }
    let stream = client.ask(Method::Put, "/stream", &[], Some(&much()));
    assert!(client.finish(stream).body == much());
    running.handle.drain();
    client.close();
    assert_eq!(client.goaways.last(), Some(&(9, Code::NO_ERROR)));
}

#[test]
fn alpn_http1_is_served_as_http1() {
    for protocols in [&[&b"http/1.1"[..]][..], &[]] {
        let (seen, _heard) = channel();
        let running = Running::over_tls(protocols, move |worker| streams(worker, &seen));
        assert_eq!(body_of(&running.all(last("/a"))), "/a");
    }
}
