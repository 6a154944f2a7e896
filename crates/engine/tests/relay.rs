//! Pulled bodies, and bodies pushed from a service's own socket, both through pipes if they are large.

mod support;

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use bytes::{Buf, Bytes};
use flatout_engine::{
    Body, BodyPlan, ExchangeKey, GuestEvent, GuestKey, Guests, Lane, Limits, Moved, PIPE_BYTES, PooledPipe,
    Prepared, Pull, Push, Reply, Request, Response, Service, Worker,
};
use flatout_wire::{Framing, Head};
use support::Running;

/// More than twice what the sockets in between can buffer.
const BODY_BYTES_MAX: usize = 256 << 20;

/// Sends each request's body to an echo server, and responds with the result.
struct Relay {
    links: Rc<Links>,
    echo: SocketAddr,
}

struct Links {
    lane: Lane,
    all: RefCell<HashMap<GuestKey, Link>>,
}

/// One request and its connection to the other server.
struct Link {
    exchange: ExchangeKey,
    /// Pulled but not sent yet.
    out: Option<Pull>,
    /// Received but not pushed yet.
    back: Option<PooledPipe>,
    /// Bytes still to be received.
    left: u64,
}

impl Service for Relay {
    fn prepare(&self, _: &Head<'_>, _: &[u8], _: u16) -> Prepared {
        BodyPlan::Pull { bytes_max: Some(BODY_BYTES_MAX as u64) }.into()
    }

    fn call(&self, request: Request<'_>, response: &mut Response) -> Reply {
        let Framing::Length(left) = request.head.framing else { return Reply::Now };
        let lane = &self.links.lane;
        let socket = TcpStream::connect(self.echo).unwrap();
        socket.set_nonblocking(true).unwrap();
        let guest = lane.register(OwnedFd::from(socket), self.links.clone(), 0).unwrap();
        let exchange = request.park();
        lane.attach(exchange, guest);
        self.links.all.borrow_mut().insert(guest, Link { exchange, out: None, back: None, left });
        response.set_body(Body::Pushed).declare_length(left);
        Reply::Now
    }
}

impl Guests for Links {
    fn ready(&self, guest: GuestKey, _: u64, event: GuestEvent) {
        let mut links = self.all.borrow_mut();
        let Some(link) = links.get_mut(&guest) else { return };
        if let GuestEvent::Gone(_) = event {
            links.remove(&guest);
            drop(links);
            return self.lane.remove(guest);
        }
        self.there(guest, link);
        self.back(guest, link);
    }
}

impl Links {
    fn there(&self, guest: GuestKey, link: &mut Link) {
        loop {
            match link.out.take().unwrap_or_else(|| self.lane.pull(link.exchange)) {
                Pull::Data(mut bytes) => {
                    let Moved::Bytes(sent) = self.lane.send(guest, &bytes) else {
                        link.out = Some(Pull::Data(bytes));
                        return;
                    };
                    bytes.advance(sent);
                    link.out = (!bytes.is_empty()).then_some(Pull::Data(bytes));
                }
                Pull::Pipe(mut pipe) => {
                    let sent = self.lane.send_pipe(guest, &mut pipe);
                    let is_full = sent == Moved::WouldBlock;
                    link.out = (pipe.bytes() > 0).then_some(Pull::Pipe(pipe));
                    if is_full {
                        return;
                    }
                }
                Pull::End(_) => return self.lane.shut_down(guest),
                Pull::Fault(_) => {
                    self.lane.cut(link.exchange);
                    return;
                }
                Pull::Later | Pull::Gone => return,
            }
        }
    }

    fn back(&self, guest: GuestKey, link: &mut Link) {
        while link.left > 0 && self.lane.has_room(link.exchange) {
            // Alternate between the two ways.
            let count = if link.left.is_multiple_of(2) {
                let mut pipe = link.back.take().unwrap_or_else(|| self.lane.pipe().unwrap());
                let moved = self.lane.fill_pipe(guest, &mut pipe, PIPE_BYTES);
                let Moved::Bytes(count @ 1..) = moved else { return };
                assert!(matches!(self.lane.push_pipe(link.exchange, pipe), Ok(Push::Accepted)));
                count
            } else {
                let mut buffer = self.lane.buffer();
                let Moved::Bytes(count @ 1..) = self.lane.receive(guest, &mut buffer) else { return };
                let bytes = Bytes::copy_from_slice(&buffer[..count]);
                assert_eq!(self.lane.push(link.exchange, bytes), Push::Accepted);
                count
            };
            link.left -= count as u64;
            if link.left == 0 {
                self.lane.end(link.exchange, b"");
            }
        }
    }
}

fn echo_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            std::thread::spawn(move || {
                let mut buffer = vec![0; 100_000];
                while let Ok(count @ 1..) = stream.read(&mut buffer) {
                    if stream.write_all(&buffer[..count]).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

fn relay() -> Running {
    let echo = echo_server();
    Running::serving(Limits::default(), move |worker: Worker| {
        let links = Rc::new(Links { lane: worker.lane, all: RefCell::default() });
        Box::new(Relay { links, echo })
    })
}

/// Bytes without repetitions.
fn sample(bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

fn head(bytes: usize, last: bool) -> String {
    let close = if last { "Connection: close\r\n" } else { "" };
    format!("POST / HTTP/1.1\r\nHost: t\r\n{close}Content-Length: {bytes}\r\n\r\n")
}

fn send(stream: &TcpStream, bytes: Vec<u8>) -> std::thread::JoinHandle<()> {
    let mut stream = stream.try_clone().unwrap();
    std::thread::spawn(move || stream.write_all(&bytes).unwrap())
}

fn response(stream: &mut TcpStream, bytes: usize) -> Vec<u8> {
    let head = support::read_until(stream, "\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    let mut body = vec![0; bytes];
    stream.read_exact(&mut body).unwrap();
    body
}

#[test]
fn bodies_of_every_size_are_relayed() {
    let server = relay();
    let mut stream = server.connect();
    for bytes in [1, 4_096, 65_535, 65_536, 65_537, 131_072, 300_001, 9_000_000, 5] {
        let body = sample(bytes);
        let sender = send(&stream, [head(bytes, false).into_bytes(), body.clone()].concat());
        assert!(response(&mut stream, bytes) == body, "{bytes} bytes come back as they were");
        sender.join().unwrap();
    }
}

#[test]
fn pipelined_bodies_are_not_mixed() {
    let server = relay();
    let mut stream = server.connect();
    let sizes = [200_000, 1, 500_000, 70_000];
    let all = sizes.iter().flat_map(|&bytes| [head(bytes, false).into_bytes(), sample(bytes)].concat());
    let sender = send(&stream, all.collect());
    for bytes in sizes {
        assert!(response(&mut stream, bytes) == sample(bytes), "{bytes} bytes");
    }
    sender.join().unwrap();
}

#[test]
fn slow_reader_holds_back_its_sender() {
    let server = relay();
    let stream = server.connect_with_small_buffer();
    let mut sender = stream.try_clone().unwrap();
    sender.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    sender.write_all(head(BODY_BYTES_MAX, true).as_bytes()).unwrap();
    let piece = sample(1 << 20);
    let mut taken = 0;
    while let Ok(count) = sender.write(&piece)
        && taken < BODY_BYTES_MAX
    {
        taken += count;
    }
    // The kernel buffers up to 36 MiB for the three connections, unless the host is configured otherwise.
    assert!(taken < BODY_BYTES_MAX / 2, "{taken} bytes were taken, and nobody reads them");
}

#[test]
fn closed_client_frees_its_pipes() {
    let server = relay();
    for _ in 0..50 {
        let mut stream = server.connect();
        stream.write_all(head(1 << 20, true).as_bytes()).unwrap();
        stream.write_all(&sample(300_000)).unwrap();
        drop(stream);
    }
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    for _ in 0..600 {
        if descriptors() < 120 {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(descriptors() < 120, "{} descriptors are left", descriptors());
}

#[test]
fn aborted_body_is_not_complete() {
    let server = relay();
    let mut stream = server.connect();
    stream.write_all(head(200_000, true).as_bytes()).unwrap();
    stream.write_all(&sample(100_000)).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut back = Vec::new();
    let _ = stream.read_to_end(&mut back);
    assert!(back.len() < 200_000, "{}", back.len());
    // Too large: refused before any of it is forwarded.
    let answer = server.all(head(BODY_BYTES_MAX + 1, true));
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    assert!(server.all("GET / HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 200 "));
}
