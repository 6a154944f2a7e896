//! The floor: a server that reads without parsing and writes a constant response. No server on this kernel costs
//! less.
//!
//! `floor ADDRESS [--staged N]`: one thread, epoll edge-triggered. It counts the requests in each read by their empty
//! lines and sends the JSON response as many times. Bare, it reads from a socket and writes to it before the next
//! one. Staged, it reads from up to N ready sockets and then writes to all of them: code stays in the cache, and the
//! client is woken less often. Each is the limit for servers of the same design.
//!
//! `floor ADDRESS --push PER_S BYTES` is the floor of servers that push: see `push.rs`.
#![forbid(unsafe_code)]

mod push;

use std::collections::HashMap;
use std::io::Write;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{self, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nServer: flatout\r\nDate: Fri, 20 Nov 2026 12:00:00 GMT\r\n\
    Content-Type: application/json\r\nContent-Length: 27\r\n\r\n{\"message\":\"Hello, World!\"}";

const EVENTS_MAX: usize = 256;
const PIPELINED_MAX: usize = 512;
const LISTENER: u64 = u64::MAX;
const SOCKET_FLAGS: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);

/// Bytes of a read of the bare floor.
const READ_BYTES: usize = 64 << 10;

/// The maximum number of sockets of a stage, and the read size for each of them: clients send less at a time.
const STAGED_MAX: usize = 64;
const SLICE_BYTES: usize = 4 << 10;
const BUFFER_BYTES: usize = STAGED_MAX * SLICE_BYTES;

type Failure = Box<dyn std::error::Error>;

struct Floor {
    listener: OwnedFd,
    set: OwnedFd,
    sockets: HashMap<u64, OwnedFd>,
    buffer: Vec<u8>,
    answers: Vec<u8>,
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let usage = "usage: floor ADDRESS [--staged N | --push PER_S BYTES], N from 1 to 64";
    let (address, staged) = match arguments[..] {
        [address] => (address, None),
        [address, "--staged", count] => (address, Some(count.parse()?)),
        [address, "--push", per_s, bytes] => {
            return push::run(address.parse()?, per_s.parse()?, bytes.parse()?);
        }
        _ => return Err(usage.into()),
    };
    if staged.is_some_and(|count| count == 0 || count > STAGED_MAX) {
        return Err(usage.into());
    }
    let mut floor = Floor::listen(address.parse()?)?;
    let mut events = Vec::with_capacity(EVENTS_MAX);
    loop {
        events.clear();
        match epoll::wait(&floor.set, rustix::buffer::spare_capacity(&mut events), None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        match staged {
            None => floor.serve_each(&events)?,
            Some(count) => events.chunks(count).try_for_each(|stage| floor.serve_stage(stage))?,
        }
    }
}

impl Floor {
    fn listen(address: SocketAddr) -> Result<Floor, Failure> {
        let (listener, set) = listen(address)?;
        let answers = ANSWER.repeat(PIPELINED_MAX);
        Ok(Floor { listener, set, sockets: HashMap::new(), buffer: vec![0; BUFFER_BYTES], answers })
    }

    fn accept(&mut self) -> Result<(), Errno> {
        while let Ok(socket) = net::accept_with(&self.listener, SOCKET_FLAGS) {
            let token = socket.as_raw_fd() as u64;
            let wanted = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
            epoll::add(&self.set, &socket, EventData::new_u64(token), wanted)?;
            self.sockets.insert(token, socket);
        }
        Ok(())
    }

    fn serve_each(&mut self, events: &[Event]) -> Result<(), Errno> {
        for event in events {
            let token = event.data.u64();
            if token == LISTENER {
                self.accept()?;
                continue;
            }
            let Some(socket) = self.sockets.get(&token) else { continue };
            if !{ event.flags }.contains(EventFlags::IN) {
                continue;
            }
            match receive(socket, &mut self.buffer[..READ_BYTES]) {
                Some(0) => {}
                Some(count) => send(socket, &self.answers, count),
                None => drop(self.sockets.remove(&token)),
            }
        }
        Ok(())
    }

    fn serve_stage(&mut self, events: &[Event]) -> Result<(), Errno> {
        let mut stage: [Option<(&OwnedFd, usize)>; STAGED_MAX] = [None; STAGED_MAX];
        let mut gone = Vec::new();
        let mut accept = false;
        let slices = self.buffer.chunks_mut(SLICE_BYTES);
        for ((event, slice), place) in events.iter().zip(slices).zip(&mut stage) {
            let token = event.data.u64();
            accept |= token == LISTENER;
            let Some(socket) = self.sockets.get(&token) else { continue };
            if !{ event.flags }.contains(EventFlags::IN) {
                continue;
            }
            match receive(socket, slice) {
                Some(count) => *place = Some((socket, count)),
                None => gone.push(token),
            }
        }
        for (socket, count) in stage.into_iter().flatten() {
            send(socket, &self.answers, count);
        }
        for token in gone {
            self.sockets.remove(&token);
        }
        if accept { self.accept() } else { Ok(()) }
    }
}

/// A listener, and an epoll set that contains it.
fn listen(address: SocketAddr) -> Result<(OwnedFd, OwnedFd), Failure> {
    let listener = net::socket_with(net::AddressFamily::INET, SocketType::STREAM, SOCKET_FLAGS, None)?;
    sockopt::set_socket_reuseaddr(&listener, true)?;
    sockopt::set_tcp_nodelay(&listener, true)?;
    net::bind(&listener, &address)?;
    net::listen(&listener, 4096)?;
    let address = SocketAddr::try_from(net::getsockname(&listener)?)?;
    writeln!(std::io::stderr(), "floor: listening on http://{address}")?;
    let set = epoll::create(CreateFlags::CLOEXEC)?;
    epoll::add(&set, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
    Ok((listener, set))
}

/// The number of requests received; `None` when the client has disconnected.
fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> Option<usize> {
    match net::recv(socket, &mut *buffer, RecvFlags::empty()) {
        Ok((0, _)) => None,
        // One request per read is the usual case, which needs no search.
        Ok((read, _)) if read < 256 => Some(1),
        Ok((read, _)) => {
            let count = buffer[..read].windows(4).filter(|at| at == b"\r\n\r\n").count();
            Some(count.clamp(1, PIPELINED_MAX))
        }
        Err(Errno::AGAIN) => Some(0),
        Err(_) => None,
    }
}

fn send(socket: &OwnedFd, answers: &[u8], count: usize) {
    let _ = net::send(socket, &answers[..count * ANSWER.len()], SendFlags::NOSIGNAL);
}
