//! Early data (0-RTT): requests sent with the ClientHello, over HTTP/1 and HTTP/2, and how a service sees
//! them.

mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use flatout_engine::{Address, BodyPlan, Limits, Plan, Prepared, Reply, Request, Response, Service, start};
use flatout_wire::Head;
use flatout_wire::h2::PREFACE;
use rustls::version::TLS13;
use rustls::{ClientConfig, ClientConnection};
use support::get;
use support::secure::Certified;

/// Responds with whether the request was early when the service was called.
struct Says;

impl Service for Says {
    fn prepare(&self, _: &Head<'_>, _: &[u8], _: u16) -> Prepared {
        BodyPlan::Whole { bytes_max: None }.into()
    }

    fn call(&self, request: Request<'_>, response: &mut Response) -> Reply {
        let is_early = request.tls.is_some_and(|tls| tls.is_early());
        response.buffer().extend_from_slice(if is_early { b"<early>" } else { b"<known>" });
        Reply::Now
    }
}

struct Test {
    _certified: Certified,
    server: Option<flatout_engine::Server>,
    address: SocketAddr,
    config: Arc<ClientConfig>,
}

impl Test {
    fn new(protocol: &[u8], limits: Limits) -> Test {
        let certified = Certified::new();
        let plan = Plan {
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            tls: Some(certified.accepting(true)),
            workers: Some(1),
            limits,
            ..Plan::default()
        };
        let server = start(plan, |_| Box::new(Says)).unwrap();
        let [Address::Tcp(address)] = server.addresses() else { panic!("no address") };
        let address = *address;
        let mut config = ClientConfig::clone(&certified.client(&[&TLS13]));
        config.alpn_protocols = vec![protocol.to_vec()];
        config.enable_early_data = true;
        Test { _certified: certified, server: Some(server), address, config: Arc::new(config) }
    }

    /// A connection that has sent these bytes with its hello, if it may, and nothing else.
    fn connect(&self, early: &[u8]) -> Client {
        let mut session =
            ClientConnection::new(self.config.clone(), "localhost".try_into().unwrap()).unwrap();
        if !early.is_empty() {
            session.early_data().expect("a ticket allows it").write_all(early).unwrap();
        }
        let socket = TcpStream::connect(self.address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let mut client = Client { session, socket, plain: Vec::new() };
        client.send();
        client
    }

    /// A first connection, for its tickets: a request, and its response.
    fn meet(&self, request: &[u8]) {
        let mut client = self.connect(b"");
        while client.session.is_handshaking() {
            client.receive();
            client.send();
        }
        client.session.writer().write_all(request).unwrap();
        client.send();
        client.read_until(b"<known>");
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

struct Client {
    session: ClientConnection,
    socket: TcpStream,
    plain: Vec<u8>,
}

impl Client {
    fn send(&mut self) {
        while self.session.wants_write() {
            self.session.write_tls(&mut self.socket).unwrap();
        }
    }

    /// Receives, and sends nothing.
    fn receive(&mut self) {
        assert_ne!(self.session.read_tls(&mut self.socket).unwrap(), 0, "closed");
        self.session.process_new_packets().unwrap();
        let _ = self.session.reader().read_to_end(&mut self.plain);
    }

    fn read_until(&mut self, what: &[u8]) {
        while !self.plain.windows(what.len()).any(|window| window == what) {
            self.receive();
        }
        self.plain.clear();
    }
}

#[test]
fn requests_are_served_during_the_handshake() {
    let test = Test::new(b"http/1.1", Limits::default());
    let request = get("/");
    test.meet(request.as_bytes());
    let mut client = test.connect((request.clone() + &request).as_bytes());
    client.read_until(b"<early>");
    client.session.writer().write_all(request.as_bytes()).unwrap();
    client.send();
    client.read_until(b"<known>");
    assert!(client.session.is_early_data_accepted());
}

#[test]
fn request_with_body_after_handshake_is_not_early() {
    let test = Test::new(b"http/1.1", Limits::default());
    test.meet(get("/").as_bytes());
    let mut client = test.connect(b"POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 4\r\n\r\nbo");
    while client.session.is_handshaking() {
        client.receive();
        client.send();
    }
    client.session.writer().write_all(b"dy").unwrap();
    client.send();
    client.read_until(b"<known>");
}

#[test]
fn http2_streams_are_served_during_the_handshake() {
    let test = Test::new(b"h2", Limits::default());
    // Settings, and the head of a GET for `/` of `a`, by the static table.
    let begin = [&PREFACE[..], &[0, 0, 0, 4, 0, 0, 0, 0, 0]].concat();
    let head = |stream| [&[0, 0, 6, 1, 5, 0, 0, 0, stream][..], &[0x82, 0x87, 0x84, 0x41, 1, b'a']].concat();
    test.meet(&[&begin[..], &head(1)].concat());
    let mut client = test.connect(&[&begin[..], &head(1)].concat());
    client.read_until(b"<early>");
    client.session.writer().write_all(&head(3)).unwrap();
    client.send();
    client.read_until(b"<known>");
}

#[test]
fn unfinished_handshake_is_closed_at_idle_timeout() {
    let limits = Limits { idle_time_max: Duration::from_secs(4), ..Limits::default() };
    let test = Test::new(b"http/1.1", limits);
    test.meet(get("/").as_bytes());
    let mut client = test.connect(get("/").as_bytes());
    client.read_until(b"<early>");
    let mut rest = Vec::new();
    client.socket.read_to_end(&mut rest).unwrap();
    assert!(rest.len() < 100, "an alert at most");
}
