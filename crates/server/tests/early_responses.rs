//! Servers that respond without reading the body of a request, and close: the send breaks, but the response is there.

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flatout_engine::{Address as Bound, Plan, Prepared, Reply, Request, Response, Service, start};
use flatout_proxy::{Address, Forward, Protocol, Proxy, Resolver, Server, Upstream};
use flatout_wire::Head;
use flatout_wire::target::PathForm;
use support::{All, get, read_until};

const TIME_MAX: Duration = Duration::from_secs(60);

const H1: &[u8] = b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 3\r\n\r\nbig";
const H2_SETTINGS: &[u8] = b"\0\0\0\x04\0\0\0\0\0";
/// `:status: 413` and the content, on stream 1.
const H2: &[u8] = b"\0\0\x05\x01\x04\0\0\0\x01\x08\x03413\0\0\x03\0\x01\0\0\0\x01big";

/// A proxy whose worker stops at requests for `/hold`.
struct Holding {
    all: All,
    reached: Sender<()>,
    goes_on: Arc<Mutex<Receiver<()>>>,
}

impl Service for Holding {
    fn prepare(&self, head: &Head<'_>, path: &[u8], listener: u16) -> Prepared {
        self.all.prepare(head, path, listener)
    }

    fn path_form(&self) -> PathForm {
        self.all.path_form()
    }

    fn call(&self, request: Request<'_>, response: &mut Response) -> Reply {
        if request.path != b"/hold" {
            return self.all.call(request, response);
        }
        self.reached.send(()).unwrap();
        self.goes_on.lock().unwrap().recv_timeout(TIME_MAX).unwrap();
        Reply::Now
    }
}

/// A server for one request: it reads the head, and responds and closes when it is told to.
#[derive(Clone, Copy)]
struct Script {
    protocol: Protocol,
    /// Sent before the head is read.
    first: &'static [u8],
    response: &'static [u8],
}

const OVER_H1: Script = Script { protocol: Protocol::Http1, first: b"", response: H1 };
const OVER_H2: Script =
    Script { protocol: Protocol::H2c { streams_max: 8 }, first: H2_SETTINGS, response: H2 };

impl Script {
    fn read_head(self, stream: &mut UnixStream) {
        match self.protocol {
            Protocol::Http1 => drop(read_until(stream, "\r\n\r\n")),
            _ => {
                stream.read_exact(&mut [0; 24]).unwrap();
                let mut head = [0; 9];
                while head[3] != 1 {
                    stream.read_exact(&mut head).unwrap();
                    stream
                        .read_exact(&mut vec![0; usize::from(head[1]) << 8 | usize::from(head[2])])
                        .unwrap();
                }
            }
        }
    }
}

/// Sends a request whose server responds and closes after the worker has fetched its events, and before it sends more of
/// the body. Returns the response to the client, and the number of connections that the server got.
fn respond_between_two_sends(method: &str, script: Script) -> (String, usize) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let listener = UnixListener::bind(&path).unwrap();
    let (has_read, head_read) = channel();
    let (closes, may_close) = channel::<()>();
    let (has_closed, closed) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            stream.write_all(script.first).unwrap();
            script.read_head(&mut stream);
            has_read.send(()).unwrap();
            may_close.recv_timeout(TIME_MAX).unwrap();
            stream.write_all(script.response).unwrap();
            drop(stream);
            has_closed.send(()).unwrap();
        }
    });

    let upstream =
        Upstream { protocol: script.protocol, ..Upstream::new("t", vec![Server::new(Address::Unix(path))]) };
    let proxy = Proxy::open(vec![upstream], &Resolver::System).unwrap();
    let (reached, is_reached) = channel();
    let (release, goes_on) = channel();
    let goes_on = Arc::new(Mutex::new(goes_on));
    let plan = Plan { listen: vec!["127.0.0.1:0".parse().unwrap()], workers: Some(1), ..Plan::default() };
    let server = start(plan, move |worker| {
        let all = All { proxy_worker: proxy.worker(&worker), forward: Forward::to(0) };
        Box::new(Holding { all, reached: reached.clone(), goes_on: goes_on.clone() })
    })
    .unwrap();
    let Some(Bound::Tcp(address)) = server.addresses().first().cloned() else { panic!("no address") };
    let connect = || {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(TIME_MAX)).unwrap();
        stream
    };
    let hold = |stream: &mut TcpStream| stream.write_all(get("/hold").as_bytes()).unwrap();
    let wait = |what: &Receiver<()>| what.recv_timeout(TIME_MAX).unwrap();

    // Both are accepted and served once, so that the worker gets their next bytes in one look at its events.
    let (mut first, mut second) = (connect(), connect());
    for stream in [&mut first, &mut second] {
        hold(stream);
        wait(&is_reached);
        release.send(()).unwrap();
        read_until(stream, "\r\n\r\n");
    }
    let mut client = connect();
    write!(client, "{method} / HTTP/1.1\r\nHost: t\r\nContent-Length: 4000000\r\n\r\nstart").unwrap();
    wait(&head_read);
    hold(&mut first);
    wait(&is_reached);
    client.write_all(&[b'x'; 50_000]).unwrap();
    hold(&mut second);
    release.send(()).unwrap();
    // The worker knows of the client's bytes, and of nothing from the server.
    wait(&is_reached);
    closes.send(()).unwrap();
    wait(&closed);
    release.send(()).unwrap();

    let head = read_until(&mut client, "\r\n\r\n");
    let mut content = vec![0; 3];
    client.read_exact(&mut content).unwrap();
    let response = head + std::str::from_utf8(&content).unwrap();
    drop((client, first, second));
    server.handle().stop();
    server.wait().unwrap();
    (response, 1 + head_read.try_iter().count())
}

#[test]
fn a_response_is_delivered_although_sending_more_of_the_request_breaks() {
    for script in [OVER_H1, OVER_H2] {
        for method in ["POST", "PUT"] {
            let (response, connections) = respond_between_two_sends(method, script);
            assert!(response.starts_with("HTTP/1.1 413 ") && response.ends_with("\r\n\r\nbig"), "{response}");
            assert_eq!(connections, 1, "{method} is sent once");
        }
    }
}

#[test]
fn a_server_that_closes_without_a_response_gets_a_partly_sent_request_once() {
    for script in [OVER_H1, OVER_H2] {
        for method in ["POST", "PUT"] {
            let (response, connections) =
                respond_between_two_sends(method, Script { response: b"", ..script });
            assert!(response.starts_with("HTTP/1.1 502 "), "{response}");
            assert_eq!(connections, 1, "{method} is sent once");
        }
    }
}
