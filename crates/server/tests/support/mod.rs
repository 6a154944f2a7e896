//! A proxy for one test, and scripted upstreams.
#![allow(dead_code, unused_imports, reason = "each test file uses a part of it")]

#[path = "../../../engine/tests/support/client.rs"]
mod client;

pub(crate) mod cached;
pub(crate) mod h2;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub(crate) use client::{body_of, get, last, read_until, rest};
use flatout_engine::{
    Address, Handle, Limits, Plan, Prepared, Reply, Request, Response, Server, Service, start,
};
use flatout_proxy::{self as proxy, Figures, Forward, Proxy, ProxyWorker, Resolver, Upstream, Watch};
use flatout_site::{Client, Edits, Finish, Forwarded, Forwarding, ResponseOrigin};
use flatout_wire::Head;
use flatout_wire::target::PathForm;

/// Forwards everything.
pub(crate) struct All {
    pub(crate) proxy_worker: Rc<ProxyWorker>,
    pub(crate) forward: Forward,
}

struct Nothing;

impl Finish for Nothing {
    fn finish(&self, _: &mut Response, _: ResponseOrigin) {}
}

impl Service for All {
    fn prepare(&self, head: &Head<'_>, _: &[u8], _: u16) -> Prepared {
        self.proxy_worker.body(&self.forward, head, Some(64 << 20)).into()
    }

    fn path_form(&self) -> PathForm {
        PathForm::Forward
    }

    fn call(&self, request: Request<'_>, response: &mut Response) -> Reply {
        let client = Client {
            address: request.peer.map(|peer| peer.ip()),
            is_https: false,
            is_early: false,
            is_from_proxy: false,
        };
        let what = Forwarded {
            forward: &self.forward,
            target: request.head.target(),
            client,
            edits: Edits::default(),
            finish: Rc::new(Nothing),
            caching: None,
        };
        self.proxy_worker.forward(request, what, response)
    }
}

/// A running proxy; it ends with its test.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) handle: Handle,
    pub(crate) figures: Figures,
    pub(crate) proxy: Proxy,
    server: Option<Server>,
}

impl Running {
    pub(crate) fn to(upstream: Upstream) -> Running {
        Running::with(upstream, Forward::to(0), Limits::default())
    }

    pub(crate) fn with(upstream: Upstream, forward: Forward, limits: Limits) -> Running {
        Running::resolving(upstream, forward, limits, &Resolver::System)
    }

    pub(crate) fn resolving(
        upstream: Upstream,
        forward: Forward,
        limits: Limits,
        resolver: &Resolver,
    ) -> Running {
        let plan = Plan {
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            workers: Some(1),
            limits,
            ..Plan::default()
        };
        let proxy = Proxy::open(vec![upstream], resolver).unwrap();
        let figures = Figures::default();
        let (counted, opened) = (figures.clone(), proxy.clone());
        let server = start(plan, move |worker| {
            let watch = Watch { notes: None, figures: Some(counted.clone()) };
            Box::new(All { proxy_worker: opened.watched_worker(&worker, watch), forward: forward.clone() })
        })
        .unwrap();
        let Some(Address::Tcp(address)) = server.addresses().first().cloned() else { panic!("no address") };
        Running { address, handle: server.handle(), figures, proxy, server: Some(server) }
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    /// Sends `bytes` and reads until the proxy closes.
    pub(crate) fn all(&self, bytes: impl AsRef<[u8]>) -> String {
        let mut stream = self.connect();
        stream.write_all(bytes.as_ref()).unwrap();
        rest(&mut stream)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.handle.stop();
        if let Some(server) = self.server.take() {
            server.wait().unwrap();
        }
    }
}

/// Reads a request with its body, undecoded.
pub(crate) fn read_request(stream: &mut TcpStream) -> Option<String> {
    let mut bytes = Vec::new();
    let mut byte = [0];
    while !bytes.ends_with(b"\r\n\r\n") {
        if stream.read(&mut byte).ok()? == 0 {
            return None;
        }
        bytes.push(byte[0]);
    }
    let head = String::from_utf8(bytes.clone()).unwrap();
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
    if let Some(length) = length {
        let mut body = vec![0; length.parse().unwrap()];
        stream.read_exact(&mut body).ok()?;
        bytes.extend_from_slice(&body);
    } else if head.contains("Transfer-Encoding: chunked") {
        let is_whole = |bytes: &[u8]| {
            bytes.ends_with(b"\r\n\r\n")
                && (bytes.ends_with(b"0\r\n\r\n") || bytes.windows(5).any(|at| at == b"\r\n0\r\n"))
        };
        while !is_whole(&bytes) {
            stream.read_exact(&mut byte).ok()?;
            bytes.push(byte[0]);
        }
    }
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// An upstream: `act` is called for each connection, with the number of earlier connections, on its own thread.
pub(crate) fn upstream(act: impl Fn(usize, TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let act = std::sync::Arc::new(act);
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let Ok(stream) = stream else { return };
            let act = act.clone();
            std::thread::spawn(move || act(number, stream));
        }
    });
    address
}

/// An upstream that records requests, and responds to each one that is complete.
pub(crate) fn recording() -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let kept = asked.clone();
    let address = upstream(move |_, mut stream| {
        while let Some(request) = read_request(&mut stream) {
            kept.lock().unwrap().push(request);
            if stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").is_err() {
                return;
            }
        }
    });
    (address, asked)
}

/// An upstream that sends this response to every request, and reports the requests.
pub(crate) fn answering(answer: &'static str) -> (SocketAddr, Receiver<String>) {
    let (sender, asked) = channel();
    let sender = std::sync::Mutex::new(sender);
    let address = upstream(move |_, mut stream| {
        let sender = sender.lock().unwrap().clone();
        while let Some(request) = read_request(&mut stream) {
            let _ = sender.send(request);
            if stream.write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    });
    (address, asked)
}

pub(crate) fn one(address: SocketAddr) -> Upstream {
    Upstream::new("t", vec![proxy::Server::new(proxy::Address::Socket(address))])
}
