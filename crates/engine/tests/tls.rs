//! TLS in the lane: handshakes and their time limit, announced ends, slow readers, and connections that leave HTTP.

#[path = "support/attempts.rs"]
mod attempts;
mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use flatout_engine::{
    Address, Body, BodyPlan, DetachedConnection, FileRange, Limits, Listen, Plan, Prepared, Reply, Request,
    RequestBody, Response, Service, start,
};
use flatout_wire::Head;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use support::secure::{Certified, secured};
use support::{get, last};

const BIG_BYTES: usize = 6 << 20;

static BIG: LazyLock<Vec<u8>> =
    LazyLock::new(|| (0..BIG_BYTES).map(|at| (at * 31 + at / 251) as u8).collect());

struct Pages(std::path::PathBuf);

impl Service for Pages {
    fn prepare(&self, _: &Head<'_>, _: &[u8], _: u16) -> Prepared {
        BodyPlan::Whole { bytes_max: None }.into()
    }

    fn call(&self, request: Request<'_>, response: &mut Response) -> Reply {
        match request.path {
            b"/big" => drop(response.set_body(Body::Static(BIG.as_slice()))),
            b"/file" => {
                let file = std::fs::File::open(&self.0).unwrap();
                let metadata = file.metadata().unwrap();
                response.set_body(Body::File(FileRange {
                    file: Arc::new(file),
                    offset: 0,
                    bytes: metadata.len(),
                    modified: metadata.modified().unwrap(),
                    witness: None,
                }));
            }
            b"/echo" => {
                let RequestBody::Whole { bytes, .. } = request.body else { return Reply::Now };
                response.set_body(Body::Shared(Bytes::copy_from_slice(bytes)));
            }
            b"/cipher" => {
                let cipher = request.tls.and_then(|tls| tls.cipher());
                response.buffer().extend_from_slice(format!("{cipher:?}").as_bytes());
            }
            b"/cut" => {
                let cut: Box<dyn std::error::Error + Send + Sync> = "cut".into();
                let body = breaking_body(cut);
                response.set_body(Body::Stream(body));
            }
            b"/take" => {
                response.set_body(Body::Take(Box::new(|taken| Box::pin(shout(taken)))));
            }
            _ => response.buffer().extend_from_slice(b"hello"),
        }
        Reply::Now
    }
}

/// A body that fails.
fn breaking_body(error: flatout_engine::BoxError) -> flatout_engine::BoxBody {
    struct Breaks(Option<flatout_engine::BoxError>);
    impl http_body::Body for Breaks {
        type Data = Bytes;
        type Error = flatout_engine::BoxError;
        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
            std::task::Poll::Ready(self.0.take().map(Err))
        }
    }
    Box::pin(Breaks(Some(error)))
}

/// Echoes everything in upper case.
async fn shout(taken: DetachedConnection) {
    let _permit = taken.permit;
    let stream =
        tokio::net::UnixStream::from_std(UnixStream::from(taken.carrier.into_socket().unwrap())).unwrap();
    let mut bytes = taken.read.to_vec();
    loop {
        let mut shouted = &bytes.to_ascii_uppercase()[..];
        while !shouted.is_empty() {
            stream.writable().await.unwrap();
            match stream.try_write(shouted) {
                Ok(written) => shouted = &shouted[written..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
        stream.readable().await.unwrap();
        bytes.resize(10_000, 0);
        let read = stream.try_read(&mut bytes);
        bytes.truncate(*read.as_ref().unwrap_or(&0));
        match read {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}

struct Test {
    certified: Certified,
    server: Option<flatout_engine::Server>,
    address: std::net::SocketAddr,
    plain: std::net::SocketAddr,
    config: Arc<ClientConfig>,
}

type Stream = StreamOwned<ClientConnection, TcpStream>;

fn plan(certified: &Certified, limits: Limits) -> Plan {
    let secure: Listen = "127.0.0.1:0".parse().unwrap();
    let plain = Listen { is_plain: true, ..secure.clone() };
    let tls = Some(certified.acceptor());
    Plan { listen: vec![secure, plain], tls, workers: Some(1), limits, ..Plan::default() }
}

impl Test {
    fn new(limits: Limits) -> Test {
        let certified = Certified::new();
        let file = certified.path().join("file");
        std::fs::write(&file, &*BIG).unwrap();
        let server = start(plan(&certified, limits), move |_| Box::new(Pages(file.clone()))).unwrap();
        let [Address::Tcp(address), Address::Tcp(plain)] = server.addresses() else { panic!("no address") };
        let (address, plain) = (*address, *plain);
        let config = certified.client(&[&TLS13, &TLS12]);
        Test { certified, server: Some(server), address, plain, config }
    }

    fn server(&self) -> &flatout_engine::Server {
        self.server.as_ref().unwrap()
    }

    fn connect(&self) -> Stream {
        secured(self.raw(), &self.config)
    }

    fn raw(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    /// Sends a request, and reads until the server has announced its end.
    fn all(&self, bytes: impl AsRef<[u8]>) -> Vec<u8> {
        let mut stream = self.connect();
        stream.write_all(bytes.as_ref()).unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        all
    }

    /// A ClientHello.
    fn hello(&self) -> Vec<u8> {
        let mut session =
            ClientConnection::new(self.config.clone(), "localhost".try_into().unwrap()).unwrap();
        let mut hello = Vec::new();
        session.write_tls(&mut hello).unwrap();
        hello
    }
}

impl Drop for Test {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.handle().stop();
            server.wait().unwrap();
        }
    }
}

/// Reads one response of known length.
fn read_answer(stream: &mut impl Read, ends: &str) -> String {
    let mut bytes = Vec::new();
    while !bytes.ends_with(ends.as_bytes()) {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        bytes.push(byte[0]);
    }
    String::from_utf8(bytes).unwrap()
}

fn body_of(answer: &[u8]) -> &[u8] {
    let at = answer.windows(4).position(|window| window == b"\r\n\r\n").unwrap();
    &answer[at + 4..]
}

#[test]
fn both_versions_serve_and_send_close_notify() {
    let mut test = Test::new(Limits::default());
    for (version, name) in [(&TLS13, "TLSv1.3"), (&TLS12, "TLSv1.2")] {
        test.config = test.certified.client(&[version]);
        let answer = test.all(get("/hello") + &get("/hello") + &last("/cipher"));
        let answer = String::from_utf8(answer).unwrap();
        assert_eq!(answer.matches("hello").count(), 2);
        assert!(answer.contains(name), "{answer}");
        assert!(body_of(&test.all(last("/big"))) == *BIG);
        assert!(body_of(&test.all(last("/file"))) == *BIG);
    }
    let mut plain = TcpStream::connect(test.plain).unwrap();
    plain.write_all(last("/cipher").as_bytes()).unwrap();
    let mut answer = String::new();
    plain.read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with("None"), "{answer}");
}

#[test]
fn bodies_are_complete_in_both_directions() {
    let test = Test::new(Limits::default());
    let head =
        format!("POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: {BIG_BYTES}\r\nConnection: close\r\n\r\n");
    assert!(body_of(&test.all([head.as_bytes(), &BIG].concat())) == *BIG);
}

#[test]
fn aborted_body_is_not_complete() {
    let test = Test::new(Limits::default());
    let mut stream = test.connect();
    stream.write_all(b"GET /cut HTTP/1.0\r\n\r\n").unwrap();
    let mut all = Vec::new();
    assert_eq!(stream.read_to_end(&mut all).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    assert!(all.starts_with(b"HTTP/1.1 200"));
}

#[test]
fn handshake_has_its_own_deadline() {
    attempts::attempts(a_time_for_handshakes);
}

fn a_time_for_handshakes() {
    let second = Duration::from_secs(1);
    let limits = Limits { handshake_time_max: second, idle_time_max: 4 * second, ..Limits::default() };
    let test = Test::new(limits);
    let hello = test.hello();
    let mut done = test.connect();
    // Only the handshake, without a request.
    while done.conn.is_handshaking() {
        done.conn.complete_io(&mut done.sock).unwrap();
    }
    let began = Instant::now();
    let mut slow: Vec<TcpStream> = (0..3).map(|_| test.raw()).collect();
    slow[1].write_all(&hello[..hello.len() / 2]).unwrap();
    slow[2].write_all(&hello).unwrap();
    for stream in &mut slow {
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        let passed = began.elapsed();
        assert!(passed > second / 2 && passed < 4 * second, "closed after {passed:?}");
    }
    while began.elapsed() < 5 * second / 2 {
        std::thread::yield_now();
    }
    done.write_all(get("/hello").as_bytes()).unwrap();
    assert!(
        read_answer(&mut done, "hello").starts_with("HTTP/1.1 200"),
        "an idle connection has its own time"
    );
}

#[test]
fn deadline_of_handshakes_is_changed_by_a_reload() {
    let test = Test::new(Limits { handshake_time_max: Duration::from_secs(3600), ..Limits::default() });
    let limits = Limits { handshake_time_max: Duration::from_secs(1), ..Limits::default() };
    drop(test.server().handle().prepare(plan(&test.certified, limits)).unwrap().commit());
    // The worker may still have to read the change when the first one comes.
    let is_kept = |stream: TcpStream| {
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        (&stream).read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    };
    assert!((0..6).any(|_| !is_kept(test.raw())));
}

#[test]
fn half_open_handshakes_do_not_starve_others() {
    // All of them are there when the last one has come.
    let test = Test::new(Limits { handshake_time_max: Duration::from_secs(60), ..Limits::default() });
    let hello = test.hello();
    let mut half: Vec<TcpStream> = Vec::new();
    for at in 0..1000 {
        let mut stream = test.raw();
        stream.write_all(&hello[..at % hello.len()]).unwrap();
        half.push(stream);
    }
    for _ in 0..20 {
        assert!(test.all(last("/hello")).ends_with(b"hello"));
    }
    while test.server().handle().figures().connections < 1000 {
        std::thread::yield_now();
    }
    drop(half);
    while test.server().handle().figures().connections > 0 {
        std::thread::yield_now();
    }
}

#[test]
fn invalid_or_old_tls_gets_an_alert() {
    let test = Test::new(Limits::default());
    let mut old = vec![22, 3, 1, 0, 45, 1, 0, 0, 41, 3, 2];
    old.extend_from_slice(&[7; 32]);
    old.extend_from_slice(&[0, 0, 2, 0xc0, 0x13, 1, 0]);
    let invalid = [22, 9, 9, 0, 2, 1, 1];
    for (sent, alerts) in [(&invalid[..], 0..=255), (&old[..], 40..=70)] {
        let mut stream = test.raw();
        stream.write_all(sent).unwrap();
        let mut back = Vec::new();
        let _ = stream.read_to_end(&mut back);
        assert_eq!(back[..2], [21, 3], "{back:?}");
        assert!(back.last().is_some_and(|alert| alerts.contains(alert)), "{back:?}");
    }
    let mut plain = test.raw();
    plain.write_all(get("/").as_bytes()).unwrap();
    let mut back = String::new();
    let _ = plain.read_to_string(&mut back);
    assert!(back.starts_with("HTTP/1.1 400 ") && back.contains("this port uses TLS"), "{back}");
    assert!(test.all(last("/hello")).ends_with(b"hello"));
}

#[test]
fn client_closing_after_its_last_request_is_served() {
    let test = Test::new(Limits { half_close: true, ..Limits::default() });
    let mut stream = test.connect();
    stream.write_all(get("/hello").as_bytes()).unwrap();
    stream.conn.send_close_notify();
    stream.flush().unwrap();
    stream.sock.shutdown(std::net::Shutdown::Write).unwrap();
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    assert!(all.ends_with(b"hello"));
    // A client that only sends close_notify and leaves its socket open is closed too.
    let mut stream = test.connect();
    stream.write_all(get("/hello").as_bytes()).unwrap();
    stream.conn.send_close_notify();
    stream.flush().unwrap();
    let mut all = Vec::new();
    let _ = stream.read_to_end(&mut all);
    assert!(all.ends_with(b"hello"));
}

#[test]
fn drain_closes_idle_connections_and_handshakes() {
    let mut test = Test::new(Limits::default());
    let mut idle = test.connect();
    idle.write_all(get("/hello").as_bytes()).unwrap();
    read_answer(&mut idle, "hello");
    let half = test.raw();
    while test.server().handle().figures().connections < 2 {
        std::thread::yield_now();
    }
    test.server().handle().drain();
    let mut rest = Vec::new();
    idle.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty());
    drop((idle, half));
    let began = Instant::now();
    test.server.take().unwrap().wait().unwrap();
    assert!(began.elapsed() < Duration::from_secs(10), "it does not wait for its limit");
}

/// Its first request has a second, as that of any new connection.
#[test]
fn handshake_during_drain_gets_the_short_deadline() {
    let test = Test::new(Limits::default());
    let mut silent = test.connect();
    silent.conn.write_tls(&mut silent.sock).unwrap();
    while test.server().handle().figures().connections < 1 {
        std::thread::yield_now();
    }
    test.server().handle().drain();
    // On a slow machine, the second may pass before.
    let _ = silent.conn.complete_io(&mut silent.sock);
    let timed_out = [ErrorKind::WouldBlock, ErrorKind::TimedOut];
    let ended = silent.read_to_end(&mut Vec::new());
    assert!(!ended.as_ref().is_err_and(|error| timed_out.contains(&error.kind())), "{ended:?}");
}

#[test]
fn takeover_keeps_tls() {
    let test = Test::new(Limits::default());
    let mut stream = test.connect();
    stream.write_all(&[get("/take").as_bytes(), b"early "].concat()).unwrap();
    read_answer(&mut stream, "EARLY ");
    for round in 0..50 {
        stream.write_all(b"hello there").unwrap();
        assert_eq!(read_answer(&mut stream, "THERE"), "HELLO THERE", "round {round}");
    }
    // More than all buffers hold, without reading meanwhile.
    let bytes = vec![b'x'; 200_000];
    stream.write_all(&bytes).unwrap();
    let mut back = vec![0; bytes.len()];
    stream.read_exact(&mut back).unwrap();
    assert!(back.iter().all(|&byte| byte == b'X'));
    stream.conn.send_close_notify();
    stream.flush().unwrap();
    stream.sock.shutdown(std::net::Shutdown::Write).unwrap();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty(), "and ends as it should");
    while test.server().handle().figures().connections > 0 {
        std::thread::yield_now();
    }
}

#[test]
fn reader_above_the_minimum_rate_is_not_disconnected() {
    attempts::attempts(a_steady_reader_above_the_rate);
}

fn a_steady_reader_above_the_rate() {
    let limits =
        Limits { rate_window: Duration::from_secs(3), rate_min_bytes_per_s: 1000, ..Limits::default() };
    let test = Test::new(limits);
    use rustix::net::{AddressFamily, SocketType, connect, socket, sockopt};
    let small = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    sockopt::set_socket_recv_buffer_size(&small, 100_000).unwrap();
    connect(&small, &test.address).unwrap();
    let mut stream = secured(TcpStream::from(small), &test.config);
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
fn client_that_reads_nothing_is_disconnected() {
    attempts::attempts(a_client_that_takes_nothing);
}

fn a_client_that_takes_nothing() {
    let limits =
        Limits { rate_window: Duration::from_secs(1), rate_min_bytes_per_s: 1000, ..Limits::default() };
    let test = Test::new(limits);
    let mut stream = test.connect();
    stream.write_all(last("/big").as_bytes()).unwrap();
    let began = Instant::now();
    while test.server().handle().figures().connections == 0 {
        std::thread::yield_now();
    }
    while test.server().handle().figures().connections > 0 {
        assert!(began.elapsed() < Duration::from_secs(8));
        std::thread::yield_now();
    }
    let mut all = Vec::new();
    assert!(stream.read_to_end(&mut all).is_err() && all.len() < BIG_BYTES);
}
