//! Scripted servers, also with TLS and HTTP/2.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use flatout_load::{ClientPlan, ErrorKind, Outcome, Plan, Remote, Request, Security, run};
use flatout_wire::Status;
use flatout_wire::h2::hpack::encode_status;
use flatout_wire::h2::{Code, Connection, Event, Limits, Room, StreamId};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::ServerSessionMemoryCache;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use tempfile::TempDir;

/// Time limit of every wait in a test.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A good response.
pub(crate) const GOOD: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

/// A server that runs the script for each connection, on a thread of its own, until the test's process ends.
pub(crate) fn serve(script: impl Fn(TcpStream, u64) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let script = Arc::new(script);
    thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let (script, stream) = (script.clone(), stream.unwrap());
            thread::spawn(move || {
                stream.set_nodelay(true).unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                script(stream, number as u64);
            });
        }
    });
    address
}

/// Reads one request without a body; false at the end of the connection.
pub(crate) fn request(stream: &mut impl Read) -> bool {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            _ => return false,
        }
    }
    true
}

/// Three connections that send `GET /`.
pub(crate) fn plan(address: SocketAddr) -> Plan {
    let request = Request::get(&address.to_string(), "/");
    let mut plan = Plan::new(Remote::Tcp(address), vec![request]);
    plan.connections = 3;
    plan.duration = PATIENCE;
    plan
}

pub(crate) fn go(plan: &Plan) -> Outcome {
    let begun = Instant::now();
    let outcome = run(plan, &AtomicBool::new(false), &mut |_| {}).unwrap();
    assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
    outcome
}

/// The error of a plan that cannot be measured.
pub(crate) fn refused(plan: &Plan) -> String {
    run(plan, &AtomicBool::new(false), &mut |_| {}).unwrap_err().to_string()
}

/// This many requests failed with this error, and none with another.
#[track_caller]
pub(crate) fn failed(outcome: &Outcome, kind: ErrorKind, count: u64) {
    assert_eq!((outcome.errors.of(kind), outcome.errors.sum()), (count, count), "{:?}", outcome.errors);
}

/// A CA that has signed a certificate for `localhost` and 127.0.0.1.
pub(crate) struct Authority {
    folder: TempDir,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl Authority {
    pub(crate) fn new() -> Authority {
        let folder = TempDir::new().unwrap();
        let mut params = CertificateParams::new([]).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, folder.path().display().to_string());
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        std::fs::write(folder.path().join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        let issuer = Issuer::new(params, key);
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &issuer).unwrap();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        Authority { folder, chain: vec![certificate.der().clone()], key }
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// A client that trusts it.
    pub(crate) fn trusted(&self) -> Security {
        let client = ClientPlan { authorities: Some(self.file()), ..ClientPlan::default() };
        Security { name: "127.0.0.1".to_owned(), client }
    }

    /// A TLS server with this certificate and these ALPN protocols, which runs the script for each connection.
    pub(crate) fn serve(
        &self,
        protocols: &[&str],
        script: impl Fn(&mut Secured, u64) + Send + Sync + 'static,
    ) -> SocketAddr {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(self.chain.clone(), self.key.clone_key())
            .unwrap();
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        config.session_storage = ServerSessionMemoryCache::new(4096);
        let config = Arc::new(config);
        serve(move |stream, number| {
            let session = ServerConnection::new(config.clone()).unwrap();
            script(&mut StreamOwned::new(session, stream), number);
        })
    }
}

/// The server's end of a TLS connection.
pub(crate) type Secured = StreamOwned<ServerConnection, TcpStream>;

/// The server's end of an HTTP/2 connection.
pub(crate) struct Peer<'s, S> {
    pub(crate) stream: &'s mut S,
    machine: Connection,
    room: Room,
    came: Vec<u8>,
    pub(crate) out: Vec<u8>,
    /// Bytes of content received.
    pub(crate) content_bytes: usize,
}

impl<'s, S: Read + Write> Peer<'s, S> {
    pub(crate) fn new(stream: &'s mut S, limits: Limits) -> Peer<'s, S> {
        let mut out = Vec::new();
        let machine = Connection::server(limits, &mut out);
        Peer { stream, machine, room: Room::default(), came: Vec::new(), out, content_bytes: 0 }
    }

    /// The requests that were completed since the last call, at least one; `None` at the end of the connection.
    pub(crate) fn requests(&mut self) -> Option<Vec<StreamId>> {
        let mut buffer = vec![0; 64 << 10];
        loop {
            self.flush()?;
            let count = self.stream.read(&mut buffer).ok().filter(|count| *count > 0)?;
            self.came.extend_from_slice(&buffer[..count]);
            let (mut at, mut whole) = (0, Vec::new());
            loop {
                let (used, event) =
                    self.machine.receive(&self.came[at..], &mut self.room, &mut self.out).ok()?;
                at += used;
                match event {
                    Event::NeedMore => break,
                    Event::Request { stream, is_whole: true, .. } | Event::End { stream, .. } => {
                        whole.push(stream)
                    }
                    Event::Data { stream, bytes } => {
                        self.content_bytes += bytes.len();
                        self.machine.consumed(stream, bytes.len(), &mut self.out);
                    }
                    Event::Reset { stream, .. } => self.machine.release(stream, &mut self.out),
                    _ => {}
                }
            }
            self.came.drain(..at);
            if !whole.is_empty() {
                return Some(whole);
            }
        }
    }

    /// Collects requests until there are this many.
    pub(crate) fn gather(&mut self, count: usize) -> Option<Vec<StreamId>> {
        let mut all = Vec::new();
        while all.len() < count {
            all.extend(self.requests()?);
        }
        Some(all)
    }

    pub(crate) fn respond(&mut self, id: StreamId, status: Status, body: &[u8]) {
        let length = Some(body.len() as u64);
        let encode = |out: &mut Vec<u8>| encode_status(status, out);
        if self.machine.respond(id, length, body.is_empty(), encode, &mut self.out) {
            let mut rest = body;
            while !rest.is_empty() {
                let (now, later) = rest.split_at(self.machine.room(id).min(rest.len()));
                assert!(!now.is_empty(), "the client's windows are as large as they can be");
                let ends = later.is_empty();
                assert!(self.machine.content(id, now.len(), later.len(), ends, &mut self.out));
                self.out.extend_from_slice(now);
                rest = later;
            }
        }
        self.machine.release(id, &mut self.out);
    }

    pub(crate) fn reset(&mut self, id: StreamId) {
        self.machine.reset(id, Code::REFUSED_STREAM, &mut self.out);
        self.machine.release(id, &mut self.out);
    }

    /// Sends pending output; `None` if the client has closed.
    pub(crate) fn flush(&mut self) -> Option<()> {
        let out = std::mem::take(&mut self.out);
        self.stream.write_all(&out).and_then(|()| self.stream.flush()).ok()
    }
}

/// Responds to each request with 200 and `hello`.
pub(crate) fn greet(stream: &mut (impl Read + Write), mut each: impl FnMut(usize)) {
    let mut peer = Peer::new(stream, Limits { streams_max: 1000, ..Limits::default() });
    while let Some(requests) = peer.requests() {
        each(requests.len());
        requests.into_iter().for_each(|id| peer.respond(id, Status::OK, b"hello"));
        if peer.flush().is_none() {
            return;
        }
    }
}
