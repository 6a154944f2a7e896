//! A server with exactly known latencies: it waits before each response, and may stall once on all connections.
//!
//! `waiting ADDRESS DELAY_MS [STALL_AT_MS STALL_MS]`: each response is sent `DELAY_MS` after its request; a response
//! that is due from `STALL_AT_MS` after the first request on is sent when the stall is over. It runs one thread that
//! never sleeps, so a response is late by microseconds, not by the milliseconds of a timer.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// Requests of the load generator are far smaller, and arrive one at a time on a connection.
const REQUEST_BYTES_MAX: usize = 4 << 10;

/// When responses are sent.
struct Schedule {
    delay: Duration,
    /// The start of the stall after the first request, and its duration.
    stall: Option<(Duration, Duration)>,
    first: Option<Instant>,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let usage = "usage: waiting ADDRESS DELAY_MS [STALL_AT_MS STALL_MS]";
    let [address, delay_ms, stall @ ..] = arguments.as_slice() else { return Err(usage.into()) };
    let time = |text: &String| text.parse().map(Duration::from_millis);
    let stall = match stall {
        [] => None,
        [at, time_of] => Some((time(at)?, time(time_of)?)),
        _ => return Err(usage.into()),
    };
    let address: SocketAddr = address.parse()?;
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    writeln!(std::io::stderr(), "waiting: listening on http://{}", listener.local_addr()?)?;
    serve(&listener, Schedule { delay: time(delay_ms)?, stall, first: None })
}

fn serve(listener: &TcpListener, mut schedule: Schedule) -> Result<(), Box<dyn std::error::Error>> {
    let mut connections: Vec<Option<TcpStream>> = Vec::new();
    // In the order in which they are due.
    let mut answers: VecDeque<(Instant, usize)> = VecDeque::new();
    let mut buffer = [0; REQUEST_BYTES_MAX];
    loop {
        match listener.accept() {
            Ok((connection, _)) => {
                connection.set_nonblocking(true)?;
                connection.set_nodelay(true)?;
                connections.push(Some(connection));
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
        for (index, place) in connections.iter_mut().enumerate() {
            let Some(connection) = place else { continue };
            match connection.read(&mut buffer) {
                Ok(1..) => answers.push_back((schedule.due(Instant::now()), index)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Ok(0) | Err(_) => *place = None,
            }
        }
        while answers.front().is_some_and(|(due, _)| *due <= Instant::now()) {
            let Some((_, index)) = answers.pop_front() else { break };
            if let Some(Some(connection)) = connections.get_mut(index) {
                // A closed connection is noticed by the next read.
                let _ = connection.write_all(ANSWER);
            }
        }
    }
}

impl Schedule {
    /// When the response to a request received at `now` is sent.
    fn due(&mut self, now: Instant) -> Instant {
        let due = now + self.delay;
        let first = *self.first.get_or_insert(now);
        match self.stall {
            Some((at, time)) if due >= first + at => due.max(first + at + time),
            _ => due,
        }
    }
}
