//! What attackers, slow peers and bad timing can do to the engine, with one test for each.

#[path = "support/attempts.rs"]
mod attempts;
mod support;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use attempts::attempts;
use bytes::Bytes;
use flatout_engine::{
    Begun, Body, BodyPlan, Ended, ExchangeKey, FileRange, GuestEvent, GuestKey, Guests, Lane, Limits,
    Mailbox, Outcome, Prepared, Push, Reply, Request, RequestBody, Response, Service, Worker,
};
use flatout_wire::Head;
use support::{Paths, Running, body_of, get, last, read_until, rest};

/// What the service of these tests reports.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Seen {
    Began(String),
    Dropped,
    Ended { path: String, outcome: Outcome, sent: u64 },
}

/// Reports that it was dropped.
struct Bell(Sender<Seen>);

impl Drop for Bell {
    fn drop(&mut self) {
        let _ = self.0.send(Seen::Dropped);
    }
}

struct Hostile {
    worker: Worker,
    paths: Paths,
    seen: Sender<Seen>,
    pushers: Rc<Pushers>,
    count: Cell<usize>,
    opened: Arc<Mutex<Receiver<()>>>,
}

const FILE_BYTES: u64 = 24 << 20;

/// Time limit of waits that end at once where nothing is wrong.
const TIME_MAX: Duration = Duration::from_secs(30);

impl Service for Hostile {
    fn prepare(&self, _: &Head<'_>, path: &[u8], _: u16) -> Prepared {
        match path.starts_with(b"/stream") {
            true => BodyPlan::Stream { bytes_max: None },
            false if path == b"/none" => BodyPlan::None,
            false => BodyPlan::Whole { bytes_max: None },
        }
        .into()
    }

    fn call(&self, mut request: Request<'_>, response: &mut Response) -> Reply {
        let lane = self.worker.lane.clone();
        let query =
            request.head.query().and_then(|query| std::str::from_utf8(query).ok()).unwrap_or_default();
        let number: u64 = query.parse().unwrap_or_default();
        let _ = self.seen.send(Seen::Began(String::from_utf8_lossy(request.path).into_owned()));
        let body = std::mem::replace(&mut request.body, RequestBody::NONE);
        match (request.path, body) {
            (b"/block", _) => {
                let _ = self.opened.lock().unwrap().recv_timeout(TIME_MAX);
                Reply::Now
            }
            (b"/none", _) => {
                std::thread::sleep(Duration::from_millis(30));
                response.buffer().extend_from_slice(request.path);
                Reply::Now
            }
            (b"/busy", _) => {
                std::thread::sleep(Duration::from_micros(100));
                self.count.set(self.count.get() + 1);
                response.buffer().extend_from_slice(self.count.get().to_string().as_bytes());
                Reply::Now
            }
            (b"/later", _) => Reply::Later(Box::pin(async { text("later") })),
            (b"/later-dirty", _) => {
                response.header("X-Secret", "of another client").close();
                response.buffer().extend_from_slice(b"secret");
                Reply::Later(Box::pin(async { text("later") }))
            }
            (b"/stream/never", body) => {
                let kept = (Bell(self.seen.clone()), body_stream(body));
                Reply::Later(Box::pin(async move {
                    let _kept = kept;
                    std::future::pending().await
                }))
            }
            (b"/stream/length", body) => {
                let stream = body_stream(body);
                Reply::Later(Box::pin(async move { text(&length(stream).await.to_string()) }))
            }
            (b"/waits", _) => {
                let bell = Bell(self.seen.clone());
                Reply::Later(Box::pin(async move {
                    let _bell = bell;
                    std::future::pending().await
                }))
            }
            (b"/late-file", _) => Reply::Later(Box::pin(async {
                let mut response = Response::new();
                response.set_body(zeros(FILE_BYTES));
                response
            })),
            (b"/in-two", _) => {
                // The last byte and the end of the body are received in two turns.
                let key = request.park();
                response.set_body(Body::Pushed).declare_length(5);
                tokio::task::spawn_local(async move {
                    lane.push(key, Bytes::from_static(b"hello"));
                    tokio::time::sleep(Duration::from_millis(30)).await;
                    lane.end(key, b"");
                });
                Reply::Now
            }
            (b"/pushed-by-guest", _) => {
                self.pushers.begin(request.park(), number);
                response.set_body(Body::Pushed);
                Reply::Now
            }
            (b"/tiny", _) => {
                let key = request.park();
                let taken =
                    (0..300_000).take_while(|_| lane.push(key, Bytes::from_static(b"t")) == Push::Accepted);
                response.header("X-Taken", taken.count().to_string()).set_body(Body::Pushed);
                lane.end(key, b"");
                Reply::Now
            }
            (b"/informs", _) => {
                let key = request.park();
                for _ in 0..100_000 {
                    lane.inform(
                        key,
                        flatout_wire::Status::EARLY_HINTS,
                        &[b"X-Hint: ", &[b'h'; 90][..], b"\r\n"].concat(),
                    );
                }
                lane.answer(key, text("informed"));
                Reply::Parked
            }
            (b"/drops", _) => {
                let key = request.park();
                response.set_body(Body::Pushed);
                tokio::task::spawn_local(async move {
                    for _ in 0..number {
                        lane.push(key, Bytes::from_static(&[b'd'; 500]));
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                    lane.end(key, b"");
                });
                Reply::Now
            }
            (_, RequestBody::Whole { bytes, .. }) => {
                response.buffer().extend_from_slice(request.path);
                response.buffer().extend_from_slice(bytes);
                Reply::Now
            }
            _ => Reply::Now,
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
        let _ = self.seen.send(Seen::Ended { path, outcome: ended.outcome, sent: ended.sent_bytes });
    }
}

fn text(text: &str) -> Response {
    let mut response = Response::new();
    response.buffer().extend_from_slice(text.as_bytes());
    response
}

fn body_stream(body: RequestBody<'_>) -> flatout_engine::BodyStream {
    match body {
        RequestBody::Stream(stream) => stream,
        RequestBody::Whole { bytes, .. } => flatout_engine::BodyStream::whole(Bytes::copy_from_slice(bytes)),
    }
}

async fn length(mut stream: flatout_engine::BodyStream) -> usize {
    let mut bytes = 0;
    while let Some(Ok(frame)) =
        std::future::poll_fn(|context| http_body::Body::poll_frame(std::pin::Pin::new(&mut stream), context))
            .await
    {
        bytes += frame.data_ref().map_or(0, Bytes::len);
    }
    bytes
}

/// A file without a name, of so many bytes.
fn zeros(bytes: u64) -> Body {
    let file = Arc::new(tempfile::tempfile().unwrap());
    file.set_len(bytes).unwrap();
    let modified = file.metadata().unwrap().modified().unwrap();
    Body::File(FileRange { file, offset: 0, bytes, modified, witness: None })
}

/// Guests that push into bodies only when there is room.
struct Pushers {
    lane: Lane,
    /// For each: its exchange, the bytes left to push, and the other end of its socket.
    left: RefCell<HashMap<GuestKey, (ExchangeKey, u64, UnixStream)>>,
}

impl Pushers {
    fn begin(self: &Rc<Self>, key: ExchangeKey, bytes: u64) {
        let (ours, other) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let guest = self.lane.register(OwnedFd::from(ours), self.clone(), 0).unwrap();
        assert!(self.lane.attach(key, guest));
        self.left.borrow_mut().insert(guest, (key, bytes, other));
        self.push(guest);
    }

    fn push(&self, guest: GuestKey) {
        let mut left = self.left.borrow_mut();
        let Some((key, left, _)) = left.get_mut(&guest) else { return };
        while *left > 0 {
            let piece = Bytes::from_static(&[b'p'; 10_000]);
            match self.lane.push(*key, piece) {
                Push::Accepted => *left = left.saturating_sub(10_000),
                Push::Full(_) | Push::Gone => return,
            }
        }
        self.lane.end(*key, b"");
    }
}

impl Guests for Pushers {
    fn ready(&self, guest: GuestKey, _: u64, event: GuestEvent) {
        match event {
            GuestEvent::Room(_) => self.push(guest),
            GuestEvent::Gone(_) => {
                self.left.borrow_mut().remove(&guest);
                self.lane.remove(guest);
            }
            GuestEvent::Socket(_)
            | GuestEvent::Body(_)
            | GuestEvent::Again
            | GuestEvent::Deadline
            | GuestEvent::Draining => {}
        }
    }
}

struct Test {
    server: Option<Running>,
    seen: Receiver<Seen>,
    mailbox: Mailbox,
    /// Lets the worker go on that `/block` blocks.
    open: Sender<()>,
}

impl Test {
    fn with(limits: Limits) -> Test {
        let (sender, seen) = channel();
        let (mailboxes, mailbox) = channel();
        let both = Mutex::new((sender, mailboxes));
        let (open, opened) = channel();
        let opened = Arc::new(Mutex::new(opened));
        let server = Running::serving(limits, move |worker| {
            let (seen, mailboxes) = both.lock().unwrap().clone();
            mailboxes.send(worker.mailbox.clone()).unwrap();
            let pushers = Rc::new(Pushers { lane: worker.lane.clone(), left: RefCell::default() });
            let (paths, count, opened) = (Paths::default(), Cell::new(0), opened.clone());
            Box::new(Hostile { worker, paths, seen, pushers, count, opened })
        });
        Test { server: Some(server), seen, mailbox: mailbox.recv().unwrap(), open }
    }

    fn new() -> Test {
        Test::with(Limits::default())
    }

    fn server(&self) -> &Running {
        self.server.as_ref().unwrap()
    }

    fn connect(&self) -> TcpStream {
        self.server().connect()
    }

    /// The next event, except starts of requests.
    fn next(&self) -> Seen {
        loop {
            match self.seen.recv_timeout(TIME_MAX).expect("something happens") {
                Seen::Began(_) => {}
                seen => return seen,
            }
        }
    }

    fn ended(&self) -> (String, Outcome) {
        match self.next() {
            Seen::Ended { path, outcome, .. } => (path, outcome),
            other => panic!("{other:?} instead of an end"),
        }
    }

    fn until_begun(&self, path: &str) {
        while self.seen.recv_timeout(TIME_MAX).unwrap() != Seen::Began(path.to_owned()) {}
    }

    /// CPU time of the worker.
    fn cpu_time(&self) -> Duration {
        let (sender, time) = channel();
        self.mailbox.run(move |_| sender.send(flatout_lane::clock::thread_cpu()).unwrap()).unwrap();
        time.recv().unwrap()
    }

    /// Blocks the worker until `open` is sent to.
    fn block(&self) -> TcpStream {
        let mut stream = self.connect();
        stream.write_all(get("/block").as_bytes()).unwrap();
        self.until_begun("/block");
        stream
    }
}

#[test]
fn requests_of_clients_are_never_mixed() {
    let test = Test::new();
    let (mut attacker, mut victim) = (test.connect(), test.connect());
    // The worker knows both before it is blocked; their requests arrive while it is.
    for stream in [&mut attacker, &mut victim] {
        stream.write_all(get("/hello").as_bytes()).unwrap();
        read_until(stream, "/hello");
    }
    let _blocked = test.block();
    let evil = get("/evil/forged");
    let mut flood = b"no request\r\n\r\n".to_vec();
    while flood.len() < 60_000 {
        flood.extend_from_slice(evil.as_bytes());
    }
    attacker.write_all(&flood).unwrap();
    victim.write_all(get("/innocent").as_bytes()).unwrap();
    test.open.send(()).unwrap();
    let answer = read_until(&mut victim, "\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("Content-Length: 9\r\n"), "{answer}");
    let mut body = [0; 9];
    victim.read_exact(&mut body).unwrap();
    assert_eq!(&body, b"/innocent");
}

#[test]
fn slow_head_is_refused_at_its_deadline() {
    let limits = Limits { head_time_max: Duration::from_secs(1), ..Limits::default() };
    let test = Test::with(limits);
    let mut stream = test.connect();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: t\r\nX-Slow: ").unwrap();
    let began = Instant::now();
    let mut writer = stream.try_clone().unwrap();
    let dribble = std::thread::spawn(move || {
        while began.elapsed() < Duration::from_secs(20) && writer.write_all(b"x").is_ok() {
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    assert!(read_until(&mut stream, "\r\n\r\n").starts_with("HTTP/1.1 408 "));
    assert!(began.elapsed() < Duration::from_secs(9), "{:?}", began.elapsed());
    drop(stream);
    dribble.join().unwrap();
}

#[test]
fn worker_serves_after_all_connections_expire() {
    if support::is_encrypted() {
        return;
    }
    // Longer than it takes to connect all of them and to ask.
    let limits = Limits { idle_time_max: Duration::from_secs(6), ..Limits::default() };
    let test = Test::with(limits);
    let mut crowd: Vec<TcpStream> = (0..1024).map(|_| test.connect()).collect();
    for stream in &mut crowd {
        stream.write_all(get("/hello").as_bytes()).unwrap();
        read_until(stream, "/hello");
    }
    // The table is full; the next connection gets the slot of the first.
    drop(crowd.remove(0));
    while test.server().handle.figures().connections == 1024 {
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut next = test.connect();
    next.write_all(get("/hello").as_bytes()).unwrap();
    read_until(&mut next, "/hello");
    for stream in &mut crowd {
        stream.set_read_timeout(Some(TIME_MAX)).unwrap();
        assert_eq!(rest(stream), "", "it is closed when it was idle for too long");
    }
    // They do not close their side: the worker closes all of them within one or two sweeps.
    let began = Instant::now();
    while test.server().handle.figures().connections > 0 {
        assert!(began.elapsed() < TIME_MAX, "the worker goes on");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(test.server().all(last("/hello")).ends_with("/hello"));
}

#[test]
fn deferred_responses_are_sent_without_delay() {
    let test = Test::new();
    let began = Instant::now();
    let answer = test.server().all(get("/later").repeat(249) + &last("/later"));
    assert_eq!(answer.matches("\r\n\r\nlater").count(), 250);
    // With a delayed acknowledgement (40 ms) for each it takes ten seconds.
    assert!(began.elapsed() < Duration::from_secs(5), "{:?} for 250 responses", began.elapsed());
}

#[test]
fn response_written_before_later_is_discarded() {
    let test = Test::new();
    assert!(test.server().all(last("/later-dirty")).ends_with("\r\n\r\nlater"));
    let mut stream = test.connect();
    stream.write_all(get("/hello").as_bytes()).unwrap();
    let answer = read_until(&mut stream, "/hello");
    assert!(!answer.to_lowercase().contains("secret") && !answer.contains("close"), "{answer}");
}

#[test]
fn guest_is_notified_of_room_after_a_full_push() {
    let test = Test::new();
    for megabytes in [1, 4, 16] {
        let bytes = megabytes * 1_000_000;
        let answer = test.server().all(last(&format!("/pushed-by-guest?{bytes}")));
        assert_eq!(body_of(&answer).matches('p').count(), bytes);
    }
}

#[test]
fn deferred_file_is_sent_completely() {
    let test = Test::new();
    let mut stream = test.connect();
    let mut buffer = vec![0; 1 << 20];
    // The buffers of both sides grow with each file, until the kernel accepts more than one turn's share at a time.
    for _ in 0..8 {
        stream.write_all(get("/late-file").as_bytes()).unwrap();
        read_until(&mut stream, "\r\n\r\n");
        let mut left = FILE_BYTES;
        while left > 0 {
            let read = stream.read(&mut buffer[..(left as usize).min(1 << 20)]).expect("the file goes on");
            assert!(read > 0);
            left -= read as u64;
        }
        // Time for the windows to open.
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn open_requests_are_reported_at_stop() {
    let mut test = Test::new();
    let mut stream = test.connect();
    stream.write_all(get("/waits").as_bytes()).unwrap();
    test.until_begun("/waits");
    drop(test.server.take());
    let seen = [test.next(), test.next()];
    assert!(seen.contains(&Seen::Dropped), "{seen:?}");
    assert!(
        seen.iter().any(|seen| matches!(seen, Seen::Ended { outcome: Outcome::Stopped, .. })),
        "{seen:?}"
    );
}

#[test]
fn response_with_empty_end_is_reported() {
    let test = Test::new();
    let answer = test.server().all(last("/in-two"));
    assert!(answer.ends_with("\r\n\r\nhello"));
    let Seen::Ended { path, outcome, sent } = test.next() else { panic!("not an end") };
    assert_eq!((path.as_str(), outcome, sent), ("/in-two", Outcome::Sent, answer.len() as u64));
    assert_eq!(test.server().all(last("/hello")).matches("/hello").count(), 1);
    assert_eq!(test.ended(), ("/hello".to_owned(), Outcome::Sent));
}

#[test]
fn pushed_body_bytes_are_counted() {
    let test = Test::new();
    let answer = test.server().all(last("/pushed-by-guest?50000"));
    let Seen::Ended { sent, .. } = test.next() else { panic!("not an end") };
    assert_eq!(sent, answer.len() as u64);
}

#[test]
fn undelivered_response_is_not_reported_as_sent() {
    if support::is_encrypted() {
        return;
    }
    let test = Test::new();
    let mut stream = test.connect();
    stream.write_all(b"POST /block HTTP/1.1\r\nHost: t\r\nContent-Length: 10\r\n\r\n01234").unwrap();
    std::thread::sleep(Duration::from_millis(50));
    stream.write_all(b"56789").unwrap();
    test.until_begun("/block");
    // Reset the connection while the service still works.
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    drop(stream);
    test.open.send(()).unwrap();
    assert_eq!(test.ended(), ("/block".to_owned(), Outcome::ClientGone));
}

#[test]
fn body_waiting_for_memory_uses_no_cpu() {
    let limits = Limits { bodies_memory_max: 1 << 20, body_bytes_max: 1 << 20, ..Limits::default() };
    let test = Test::with(limits);
    let head = |bytes| format!("POST /whole HTTP/1.1\r\nHost: t\r\nContent-Length: {bytes}\r\n\r\n");
    let mut holder = test.connect();
    holder.write_all((head(1_000_000) + &"x".repeat(999_000)).as_bytes()).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    let mut waiting = test.connect();
    let mut writer = waiting.try_clone().unwrap();
    let sent = head(900_000) + &"y".repeat(900_000);
    let writer = std::thread::spawn(move || writer.write_all(sent.as_bytes()));
    std::thread::sleep(Duration::from_millis(300));
    let before = test.cpu_time();
    std::thread::sleep(Duration::from_secs(1));
    let cost = test.cpu_time() - before;
    assert!(cost < Duration::from_millis(300), "{cost:?} of CPU time in one second of waiting");
    holder.write_all(&[b'x'; 1000]).unwrap();
    read_until(&mut holder, "\r\n\r\n");
    assert!(read_until(&mut waiting, "\r\n\r\n").starts_with("HTTP/1.1 200 "));
    writer.join().unwrap().unwrap();
}

#[test]
fn empty_body_ends() {
    let test = Test::new();
    for framing in ["Content-Length: 0\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"] {
        let mut stream = test.connect();
        stream.write_all(format!("POST /stream/length HTTP/1.1\r\nHost: t\r\n{framing}").as_bytes()).unwrap();
        assert!(read_until(&mut stream, "\r\n\r\n").contains("Content-Length: 1\r\n"));
    }
}

#[test]
fn reset_ends_request_with_unread_body() {
    if support::is_encrypted() {
        return;
    }
    let test = Test::new();
    let mut stream = test.connect();
    stream.write_all(b"POST /stream/never HTTP/1.1\r\nHost: t\r\nContent-Length: 7000000\r\n\r\n").unwrap();
    stream.set_nonblocking(true).unwrap();
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(500) {
        let _ = stream.write(&[b'x'; 100_000]);
        std::thread::sleep(Duration::from_millis(1));
    }
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    drop(stream);
    let seen = [test.next(), test.next()];
    assert!(seen.contains(&Seen::Dropped), "{seen:?}");
}

#[test]
fn client_sending_many_pieces_gets_no_extra_turns() {
    let test = Test::new();
    let (mut pieces, mut whole) = (test.connect(), test.connect());
    pieces.set_nodelay(true).unwrap();
    let (request, count) = (get("/busy"), 600);
    pieces.write_all(request.repeat(20_000).as_bytes()).unwrap();
    let mut writer = pieces.try_clone().unwrap();
    let writer = std::thread::spawn(move || {
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(8) && writer.write_all(get("/busy").as_bytes()).is_ok() {
            std::thread::sleep(Duration::from_micros(300));
        }
    });
    // Its responses have to be read, otherwise it waits for room.
    let reader = std::thread::spawn(move || {
        let mut buffer = vec![0; 1 << 16];
        while pieces.read(&mut buffer).is_ok_and(|read| read > 0) {}
    });
    std::thread::sleep(Duration::from_millis(300));
    whole.write_all((request.repeat(count - 1) + &last("/busy")).as_bytes()).unwrap();
    let answers = rest(&mut whole);
    let numbers: Vec<usize> = answers
        .split("\r\n\r\n")
        .skip(1)
        .map(|part| part.split("HTTP/1.1").next().unwrap().parse().unwrap())
        .collect();
    assert_eq!(numbers.len(), count);
    let (first, last) = (numbers[0], numbers[count - 1]);
    assert!(
        last - first < 4 * count,
        "{} requests were served while {count} of another client were",
        last - first
    );
    drop(test);
    reader.join().unwrap();
    writer.join().unwrap();
}

#[test]
fn slow_steady_reader_is_not_disconnected() {
    attempts(small_pieces_are_read_steadily);
}

fn small_pieces_are_read_steadily() {
    let limits =
        Limits { rate_window: Duration::from_millis(250), rate_min_bytes_per_s: 20_000, ..Limits::default() };
    let test = Test::with(limits);
    let mut stream = test.server().connect_with_small_buffer();
    stream.write_all(last("/drops?4000").as_bytes()).unwrap();
    let mut buffer = vec![0; 2000];
    let mut taken = Vec::new();
    let began = Instant::now();
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => taken.extend_from_slice(&buffer[..read]),
            Err(error) => panic!("{error} after {:?} and {} bytes", began.elapsed(), taken.len()),
        }
        std::thread::sleep(Duration::from_millis(4));
    }
    assert!(taken.ends_with(b"0\r\n\r\n"), "cut after {:?} and {} bytes", began.elapsed(), taken.len());
}

#[test]
fn guests_and_jobs_end_with_the_worker() {
    let mut test = Test::new();
    let (ours, mut other) = UnixStream::pair().unwrap();
    let (done, registered) = channel();
    let run = test.mailbox.run(move |lane| {
        /// Keeps the lane that keeps it: a reference cycle.
        struct Keeper(#[allow(dead_code, reason = "it is only kept")] Lane);
        impl Guests for Keeper {
            fn ready(&self, _: GuestKey, _: u64, _: GuestEvent) {}
        }
        ours.set_nonblocking(true).unwrap();
        lane.register(OwnedFd::from(ours), Rc::new(Keeper(lane.clone())), 0).unwrap();
        done.send(()).unwrap();
    });
    run.unwrap();
    registered.recv().unwrap();
    drop(test.server.take());
    other.set_read_timeout(Some(TIME_MAX)).unwrap();
    assert_eq!(other.read(&mut [0; 8]).unwrap(), 0, "the socket is closed");
    let (sender, seen) = channel();
    let bell = Bell(sender);
    let _ = test.mailbox.run(move |_| drop(bell));
    assert_eq!(seen.try_recv(), Ok(Seen::Dropped), "a job that nobody runs is not kept");
}

/// A job that takes a whole turn leaves others for the next one, in which the wake-up for further jobs comes too.
#[test]
fn jobs_that_come_while_others_wait_are_run() {
    let test = Test::new();
    let mailbox = test.mailbox.clone();
    let (begins, has_begun) = channel();
    let (goes_on, waits) = channel::<()>();
    let held = mailbox.run(move |_| {
        begins.send(()).unwrap();
        waits.recv_timeout(TIME_MAX).unwrap();
    });
    held.unwrap();
    has_begun.recv_timeout(TIME_MAX).unwrap();
    // These two are taken together.
    let (done, is_done) = channel();
    let later = mailbox.clone();
    let long = mailbox.run(move |_| {
        later.run(move |_| done.send(()).unwrap()).unwrap();
        std::thread::sleep(Duration::from_millis(5));
    });
    long.unwrap();
    mailbox.run(|_| ()).unwrap();
    goes_on.send(()).unwrap();
    is_done.recv_timeout(TIME_MAX).expect("the last job is run");
}

#[test]
fn half_closed_clients_get_their_responses() {
    let test = Test::with(Limits { half_close: true, ..Limits::default() });
    for path in ["/hello", "/later", "/in-two", "/pushed-by-guest?3000000"] {
        let mut stream = test.connect();
        stream.write_all(get(path).repeat(3).as_bytes()).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert_eq!(answer.matches("HTTP/1.1 200 ").count(), 3, "{path}");
    }
}

#[test]
fn unread_body_does_not_reset_the_last_response() {
    let test = Test::new();
    for _ in 0..20 {
        let mut stream = test.connect();
        let head = "POST /none HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: 3\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        // The body arrives while the service works: it is unread in the kernel when the response is sent.
        test.until_begun("/none");
        stream.write_all(b"abc").unwrap();
        assert!(rest(&mut stream).ends_with("\r\n\r\n/none"));
    }
}

#[test]
fn outbox_is_bounded_for_small_pieces() {
    let test = Test::new();
    let answer = test.server().all(last("/tiny"));
    let taken: usize =
        answer.split("X-Taken: ").nth(1).unwrap().split("\r\n").next().unwrap().parse().unwrap();
    assert!((1_000..20_000).contains(&taken), "{taken} pieces of a byte wait");
    let answer = test.server().all(last("/informs"));
    assert!(answer.matches("HTTP/1.1 103 ").count() < 5_000 && answer.ends_with("informed"));
}
