//! The floor of pushing: every subscriber gets the same bytes with a bare `send` in a loop. No server that pushes
//! costs less.
//!
//! A client that sends anything becomes a subscriber: its response is an endless stream of Server-Sent Events. A
//! message contains its number and the time when the loop started.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{Timespec, epoll::Event};
use rustix::io::Errno;
use rustix::net::{self, RecvFlags, SendFlags};

use crate::{EVENTS_MAX, Failure, LISTENER, SOCKET_FLAGS, listen};

const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\nServer: floor\r\nContent-Type: text/event-stream\r\n\r\n";

/// The approximate size of a message besides its padding.
const NUMBERS_BYTES: usize = 50;

struct Push {
    listener: OwnedFd,
    set: OwnedFd,
    /// Indexed by token; messages are sent in this order.
    connections: Vec<Option<Connection>>,
    pause: Duration,
    message_bytes: usize,
    number: u64,
}

struct Connection {
    socket: OwnedFd,
    is_subscriber: bool,
}

/// Sends a message of `message_bytes` to all subscribers `per_s` times a second.
pub(crate) fn run(address: SocketAddr, per_s: f64, message_bytes: usize) -> Result<(), Failure> {
    let (listener, set) = listen(address)?;
    let pause = Duration::try_from_secs_f64(1.0 / per_s)?;
    let mut push = Push { listener, set, connections: Vec::new(), pause, message_bytes, number: 0 };
    let mut events = Vec::with_capacity(EVENTS_MAX);
    let mut due = Instant::now() + push.pause;
    loop {
        events.clear();
        let left = Timespec::try_from(due.saturating_duration_since(Instant::now()))?;
        match epoll::wait(&push.set, rustix::buffer::spare_capacity(&mut events), Some(&left)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        push.serve(&events)?;
        if Instant::now() >= due {
            push.send_all()?;
            due += push.pause;
        }
    }
}

impl Push {
    fn serve(&mut self, events: &[Event]) -> Result<(), Errno> {
        for event in events {
            let token = event.data.u64();
            if token == LISTENER {
                self.accept()?;
                continue;
            }
            let Some(place) = self.connections.get_mut(token as usize) else { continue };
            let Some(connection) = place else { continue };
            if !{ event.flags }.contains(EventFlags::IN) {
                continue;
            }
            match net::recv(&connection.socket, &mut [0u8; 4096], RecvFlags::empty()) {
                Ok((0, _)) => *place = None,
                Ok(_) => {
                    let _ = net::send(&connection.socket, HEAD, SendFlags::NOSIGNAL);
                    connection.is_subscriber = true;
                }
                Err(Errno::AGAIN) => {}
                Err(_) => *place = None,
            }
        }
        Ok(())
    }

    fn accept(&mut self) -> Result<(), Errno> {
        while let Ok(socket) = net::accept_with(&self.listener, SOCKET_FLAGS) {
            let token = socket.as_raw_fd() as usize;
            let wanted = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
            epoll::add(&self.set, &socket, EventData::new_u64(token as u64), wanted)?;
            if self.connections.len() <= token {
                self.connections.resize_with(token + 1, || None);
            }
            if let Some(place) = self.connections.get_mut(token) {
                *place = Some(Connection { socket, is_subscriber: false });
            }
        }
        Ok(())
    }

    fn send_all(&mut self) -> Result<(), Failure> {
        self.number += 1;
        let at = SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros();
        let pad = "x".repeat(self.message_bytes.saturating_sub(NUMBERS_BYTES));
        let number = self.number;
        let message = format!("id: 0-{number}\ndata: {{\"seq\":{number},\"at\":{at},\"pad\":\"{pad}\"}}\n\n");
        for connection in self.connections.iter().flatten().filter(|it| it.is_subscriber) {
            let _ = net::send(&connection.socket, message.as_bytes(), SendFlags::NOSIGNAL);
        }
        Ok(())
    }
}
