//! The floor: a server that reads without parsing and writes a constant. No server on this kernel costs less.
//!
//! `floor ADDRESS`: one thread, epoll edge-triggered. It counts the requests of one read by their empty lines and
//! sends the JSON answer so many times.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::io::Write;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{self, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nServer: flatout\r\nDate: Fri, 20 Nov 2026 12:00:00 GMT\r\n\
    Content-Type: application/json\r\nContent-Length: 27\r\n\r\n{\"message\":\"Hello, World!\"}";

const EVENTS_MAX: usize = 256;
const PIPELINED_MAX: usize = 512;
const LISTENER: u64 = u64::MAX;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address: SocketAddr = std::env::args().nth(1).ok_or("usage: floor ADDRESS")?.parse()?;
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let listener = net::socket_with(net::AddressFamily::INET, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&listener, true)?;
    sockopt::set_tcp_nodelay(&listener, true)?;
    net::bind(&listener, &address)?;
    net::listen(&listener, 4096)?;
    let address = SocketAddr::try_from(net::getsockname(&listener)?)?;
    writeln!(std::io::stderr(), "floor: listening on http://{address}")?;

    let set = epoll::create(CreateFlags::CLOEXEC)?;
    epoll::add(&set, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
    let answers = ANSWER.repeat(PIPELINED_MAX);
    let mut sockets: HashMap<u64, OwnedFd> = HashMap::new();
    let mut events = Vec::with_capacity(EVENTS_MAX);
    let mut buffer = vec![0; 64 << 10];
    loop {
        events.clear();
        match epoll::wait(&set, rustix::buffer::spare_capacity(&mut events), None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in &events {
            let token = event.data.u64();
            if token == LISTENER {
                while let Ok(socket) = net::accept_with(&listener, flags) {
                    let token = socket.as_raw_fd() as u64;
                    let wanted = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
                    epoll::add(&set, &socket, EventData::new_u64(token), wanted)?;
                    sockets.insert(token, socket);
                }
                continue;
            }
            let Some(socket) = sockets.get(&token) else { continue };
            if !{ event.flags }.contains(EventFlags::IN) {
                continue;
            }
            match net::recv(socket, &mut buffer[..], RecvFlags::empty()) {
                Ok((0, _)) => drop(sockets.remove(&token)),
                Ok((read, _)) => {
                    let bytes = &buffer[..read];
                    // One request a read is the usual case, and is not searched for.
                    let count =
                        if read < 256 { 1 } else { bytes.windows(4).filter(|at| at == b"\r\n\r\n").count() };
                    let count = count.clamp(1, PIPELINED_MAX);
                    let _ = net::send(socket, &answers[..count * ANSWER.len()], SendFlags::NOSIGNAL);
                }
                Err(Errno::AGAIN) => {}
                Err(_) => drop(sockets.remove(&token)),
            }
        }
    }
}
