//! Connections that start with a PROXY protocol header, over real sockets.

#[path = "support/attempts.rs"]
mod attempts;
mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use flatout_engine::{
    Address, Limits, Listen, PROXY_HEADER_TIME_MAX, Plan, ProxyHeader, Reply, Request, Response, Server,
    Service, start,
};
use flatout_wire::proxy_protocol::{ProxyVersion, write};
use support::{read_until, rest};

/// Responds with the client's address; trusts everybody or nobody.
struct Who {
    believes: bool,
}

impl Service for Who {
    fn believes_proxy(&self, peer: Option<SocketAddr>, _: u16) -> bool {
        assert!(peer.is_some_and(|peer| peer.ip().is_loopback()), "the proxy is asked about: {peer:?}");
        self.believes
    }

    fn call(&self, request: Request<'_>, response: &mut Response) -> Reply {
        let peer = request.peer.map_or("nobody".to_owned(), |peer| peer.to_string());
        let text = match request.announced() {
            Some(announced) if !self.believes => {
                format!("[{peer}] {:?} {:?}", announced.source, announced.target)
            }
            _ => format!("[{peer}]"),
        };
        response.buffer().extend_from_slice(text.as_bytes());
        Reply::Now
    }
}

struct Running {
    server: Option<Server>,
    address: SocketAddr,
}

impl Running {
    fn new(believes: bool, limits: Limits) -> Running {
        Running::with(ProxyHeader::Trusted, believes, limits)
    }

    fn with(proxy_header: ProxyHeader, believes: bool, limits: Limits) -> Running {
        let plan = Plan {
            listen: vec![Listen { proxy_header, .."127.0.0.1:0".parse().unwrap() }],
            workers: Some(1),
            limits,
            ..Plan::default()
        };
        let server = start(plan, move |_| Box::new(Who { believes })).unwrap();
        let Some(Address::Tcp(address)) = server.addresses().first().cloned() else { panic!("no address") };
        Running { server: Some(server), address }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    /// Sends these bytes and reads until the server closes.
    fn all(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect();
        let _ = stream.write_all(bytes);
        rest(&mut stream)
    }

    fn refused(&self) -> u64 {
        self.server.as_ref().unwrap().handle().figures().proxy_refused
    }

    fn until_refused(&self, count: u64) {
        let began = Instant::now();
        while self.refused() != count {
            assert!(began.elapsed() < Duration::from_secs(20), "{} instead of {count}", self.refused());
            std::thread::yield_now();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.handle().stop();
            server.wait().unwrap();
        }
    }
}

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";

fn header(version: ProxyVersion, source: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(version, source.parse().ok(), &mut bytes);
    bytes
}

/// Reads until the connection is closed or reset: a reset is fine if there are unread bytes.
fn until_gone(stream: &mut TcpStream) -> String {
    let mut said = Vec::new();
    let _ = stream.read_to_end(&mut said);
    String::from_utf8(said).unwrap()
}

#[test]
fn untrusted_headers_leave_the_client_as_it_is() {
    let running = Running::with(ProxyHeader::Untrusted, false, Limits::default());
    let mut line = b"PROXY TCP4 192.0.2.7 198.51.100.1 4711 443\r\n".to_vec();
    line.extend_from_slice(GET);
    let said = running.all(&line);
    let expected = "] Some(192.0.2.7:4711) Some(198.51.100.1:443)";
    assert!(said.contains("[127.0.0.1:") && said.ends_with(expected), "{said}");
    let said = running.all(&[&b"PROXY UNKNOWN\r\n"[..], GET].concat());
    assert!(said.contains("[127.0.0.1:") && said.ends_with("] None None"), "{said}");
    // A header is not optional.
    let mut stream = running.connect();
    let _ = stream.write_all(GET);
    assert_eq!(until_gone(&mut stream), "");
    running.until_refused(1);
}

#[test]
fn header_sets_the_client_address() {
    let running = Running::new(true, Limits::default());
    for version in [ProxyVersion::V1, ProxyVersion::V2] {
        for source in ["192.0.2.7:4711", "[2001:db8::7]:80"] {
            let said = running.all(&[&header(version, source)[..], GET].concat());
            assert!(said.starts_with("HTTP/1.1 200") && said.ends_with(&format!("[{source}]")), "{said}");
        }
        // LOCAL and UNKNOWN: the proxy itself.
        let said = running.all(&[&header(version, "")[..], GET].concat());
        assert!(said.contains("[127.0.0.1:"), "{said}");
    }
    assert_eq!(running.refused(), 0);
}

#[test]
fn header_may_arrive_byte_by_byte() {
    let running = Running::new(true, Limits::default());
    for version in [ProxyVersion::V1, ProxyVersion::V2] {
        let mut stream = running.connect();
        stream.set_nodelay(true).unwrap();
        for byte in header(version, "192.0.2.7:4711") {
            stream.write_all(&[byte]).unwrap();
        }
        // It applies to all requests of the connection, including pipelined ones.
        for _ in 0..2 {
            stream.write_all(b"GET / HTTP/1.1\r\nHost: t\r\n\r\nGET / HTTP/1.1\r\nHost: t\r\n\r\n").unwrap();
            read_until(&mut stream, "[192.0.2.7:4711]");
        }
        stream.write_all(GET).unwrap();
        assert!(rest(&mut stream).ends_with("[192.0.2.7:4711]"));
    }
}

#[test]
fn invalid_headers_are_closed_without_a_response_and_counted() {
    let running = Running::new(true, Limits::default());
    let cases: [&[u8]; 6] = [
        GET,
        b"PROXY TCP4 192.0.2.7 nowhere 1 2\r\nGET / HTTP/1.1\r\nHost: t\r\n\r\n",
        b"PROXY TCP4 192.0.2.7 192.0.2.8 1 2\nGET / HTTP/1.1\r\nHost: t\r\n\r\n",
        b"\r\n\r\n\0\r\nQUIT\n\x31\x11\0\0",
        b"\r\n\r\n\0\r\nQUIT\n\x21\x11\xff\xff",
        b"\x16\x03\x01\x02\x00\x01\x00",
    ];
    for (count, bytes) in cases.into_iter().enumerate() {
        let mut stream = running.connect();
        let _ = stream.write_all(bytes);
        assert_eq!(until_gone(&mut stream), "", "{bytes:?}");
        running.until_refused(count as u64 + 1);
    }
    // An incomplete header, and none at all, as port health checks do it.
    let mut stream = running.connect();
    stream.write_all(b"PROXY TC").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(until_gone(&mut stream), "");
    running.until_refused(cases.len() as u64 + 1);
    drop(running.connect());
    assert!(running.all(&[&header(ProxyVersion::V1, "192.0.2.7:1")[..], GET].concat()).contains("200 OK"));
    assert_eq!(running.refused(), cases.len() as u64 + 1);
}

#[test]
fn untrusted_peer_is_refused() {
    let running = Running::new(false, Limits::default());
    let mut stream = running.connect();
    let _ = stream.write_all(&[&header(ProxyVersion::V1, "192.0.2.7:4711")[..], GET].concat());
    assert_eq!(until_gone(&mut stream), "");
    running.until_refused(1);
}

#[test]
fn header_has_a_deadline() {
    let limits = Limits { head_time_max: Duration::from_secs(60), ..Limits::default() };
    let running = Running::new(true, limits);
    let began = Instant::now();
    let (mut silent, mut slow) = (running.connect(), running.connect());
    slow.write_all(b"PROXY TCP4 ").unwrap();
    assert_eq!((until_gone(&mut silent), until_gone(&mut slow)), (String::new(), String::new()));
    let took = began.elapsed();
    assert!(took > PROXY_HEADER_TIME_MAX - Duration::from_secs(2), "{took:?}");
    assert!(took < PROXY_HEADER_TIME_MAX + Duration::from_secs(15), "{took:?}");
    running.until_refused(2);
}

/// Behind a proxy all connections have its address: the limit applies to the clients' addresses.
#[test]
fn address_limit_counts_announced_clients() {
    let limits = Limits { connections_per_address_max: Some(1), ..Limits::default() };
    let running = Running::new(true, limits);
    let begin = |source: &str| {
        let mut stream = running.connect();
        stream.write_all(&header(ProxyVersion::V2, source)).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: t\r\n\r\n").unwrap();
        stream
    };
    let (mut first, mut other) = (begin("192.0.2.7:1"), begin("192.0.2.8:1"));
    read_until(&mut first, "[192.0.2.7:1]");
    read_until(&mut other, "[192.0.2.8:1]");
    assert_eq!(until_gone(&mut begin("192.0.2.7:2")), "", "a second one of the same client");
    drop(first);
    // Its slot is free once the server has noticed.
    let began = Instant::now();
    loop {
        let mut stream = begin("192.0.2.7:3");
        let _ = stream.write_all(GET);
        if !until_gone(&mut stream).is_empty() {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(20));
    }
}

/// An untrusted header changes nothing, so the address is known from the start: a client must not hold more connections by sending none.
#[test]
fn address_limit_counts_peers_before_an_untrusted_header() {
    let limits = Limits { connections_per_address_max: Some(2), ..Limits::default() };
    let running = Running::with(ProxyHeader::Untrusted, false, limits);
    let (mut silent, mut slow) = (running.connect(), running.connect());
    slow.write_all(b"PROXY TCP4 ").unwrap();
    let began = Instant::now();
    assert_eq!(until_gone(&mut running.connect()), "", "a third connection of this address");
    assert!(began.elapsed() < PROXY_HEADER_TIME_MAX - Duration::from_secs(2), "{:?}", began.elapsed());
    // Each counts once, whatever its header names.
    let line = b"192.0.2.7 198.51.100.1 4711 443\r\nGET / HTTP/1.1\r\nHost: t\r\n\r\n";
    slow.write_all(line).unwrap();
    read_until(&mut slow, "] Some(192.0.2.7:4711) Some(198.51.100.1:443)");
    silent.write_all(&[&header(ProxyVersion::V1, "192.0.2.8:1")[..], GET].concat()).unwrap();
    assert!(rest(&mut silent).contains("200 OK"));
    // Its place is free once the server has noticed.
    loop {
        let mut stream = running.connect();
        let _ = stream.write_all(&[&header(ProxyVersion::V2, "")[..], GET].concat());
        if until_gone(&mut stream).contains("200 OK") {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(20));
    }
}

#[test]
fn drain_does_not_wait_for_headers() {
    attempts::attempts(a_drain_beside_a_silent_proxy);
}

fn a_drain_beside_a_silent_proxy() {
    let mut running = Running::new(true, Limits::default());
    let mut silent = running.connect();
    let mut asks = running.connect();
    asks.write_all(&[&header(ProxyVersion::V1, "192.0.2.7:4711")[..], GET].concat()).unwrap();
    let server = running.server.take().unwrap();
    let began = Instant::now();
    server.handle().drain();
    assert!(rest(&mut asks).ends_with("[192.0.2.7:4711]"));
    assert_eq!(rest(&mut silent), "");
    server.wait().unwrap();
    assert!(began.elapsed() < PROXY_HEADER_TIME_MAX - Duration::from_secs(1), "{:?}", began.elapsed());
}
