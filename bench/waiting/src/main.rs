//! A server with exactly known latencies, or an exactly known capacity. It runs one thread that never sleeps, so a response is late by
//! microseconds, not by the milliseconds of a timer.
//!
//! `waiting ADDRESS DELAY_MS [STALL_AT_MS STALL_MS]`: each response is sent `DELAY_MS` after its request; a response
//! that is due from `STALL_AT_MS` after the first request on is sent when the stall is over.
//!
//! `waiting ADDRESS capacity SERVICE_US AT_ONCE [QUEUE_MAX]`: at most `AT_ONCE` requests are served at a time, each for `SERVICE_US`; others wait
//! in the order in which they came. So it serves `AT_ONCE / SERVICE_US` requests, and no more. If `QUEUE_MAX` wait, a further one gets 503.
#![forbid(unsafe_code)]

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const BUSY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n";

const USAGE: &str = "usage: waiting ADDRESS DELAY_MS [STALL_AT_MS STALL_MS], or waiting ADDRESS capacity SERVICE_US AT_ONCE [QUEUE_MAX]";

/// Requests of the load generator are far smaller, and arrive one at a time on a connection.
const REQUEST_BYTES_MAX: usize = 4 << 10;

/// When responses are sent.
enum Schedule {
    /// A time after their requests.
    Delay {
        delay: Duration,
        /// The start of the stall after the first request, and its duration.
        stall: Option<(Duration, Duration)>,
        first: Option<Instant>,
    },
    /// As servers of a queue have time.
    Capacity {
        service: Duration,
        /// When each place is free again, the earliest first.
        free_at: BinaryHeap<Reverse<Instant>>,
        at_once: usize,
        queue_max: usize,
        /// When the requests in progress and in the queue end, in order.
        ends: VecDeque<Instant>,
    },
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, schedule @ ..] = arguments.as_slice() else { return Err(USAGE.into()) };
    let schedule = Schedule::parse(schedule)?;
    let address: SocketAddr = address.parse()?;
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    writeln!(std::io::stderr(), "waiting: listening on http://{}", listener.local_addr()?)?;
    serve(&listener, schedule)
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
                Ok(1..) => match schedule.due(Instant::now()) {
                    Some(due) => answers.push_back((due, index)),
                    // A closed connection is noticed by the next read.
                    None => drop(connection.write_all(BUSY)),
                },
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Ok(0) | Err(_) => *place = None,
            }
        }
        while answers.front().is_some_and(|(due, _)| *due <= Instant::now()) {
            let Some((_, index)) = answers.pop_front() else { break };
            if let Some(Some(connection)) = connections.get_mut(index) {
                let _ = connection.write_all(ANSWER);
            }
        }
    }
}

impl Schedule {
    fn parse(words: &[String]) -> Result<Schedule, Box<dyn std::error::Error>> {
        let time = |text: &String| text.parse().map(Duration::from_millis);
        let words: Vec<&String> = words.iter().collect();
        match words.as_slice() {
            [kind, service, at_once, queue @ ..] if *kind == "capacity" && queue.len() < 2 => {
                let service = Duration::from_micros(service.parse()?);
                let at_once = at_once.parse()?;
                let queue_max = queue.first().map_or(Ok(usize::MAX), |text| text.parse())?;
                let (free_at, ends) = (BinaryHeap::new(), VecDeque::new());
                Ok(Schedule::Capacity { service, free_at, at_once, queue_max, ends })
            }
            [delay, stall @ ..] => {
                let stall = match stall {
                    [] => None,
                    [at, time_of] => Some((time(at)?, time(time_of)?)),
                    _ => return Err(USAGE.into()),
                };
                Ok(Schedule::Delay { delay: time(delay)?, stall, first: None })
            }
            [] => Err(USAGE.into()),
        }
    }

    /// When the response to a request received at `now` is sent; `None` if the queue is full.
    fn due(&mut self, now: Instant) -> Option<Instant> {
        match self {
            Schedule::Delay { delay, stall, first } => {
                let due = now + *delay;
                let first = *first.get_or_insert(now);
                Some(match stall {
                    Some((at, time)) if due >= first + *at => due.max(first + *at + *time),
                    _ => due,
                })
            }
            Schedule::Capacity { service, free_at, at_once, queue_max, ends } => {
                while ends.front().is_some_and(|end| *end <= now) {
                    ends.pop_front();
                }
                if ends.len().saturating_sub(*at_once) >= *queue_max {
                    return None;
                }
                let begin = match free_at.len() < *at_once {
                    true => now,
                    false => free_at.pop().map_or(now, |Reverse(free)| free.max(now)),
                };
                let end = begin + *service;
                free_at.push(Reverse(end));
                ends.push_back(end);
                Some(end)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(words: &[&str]) -> Schedule {
        Schedule::parse(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn a_capacity_is_never_exceeded() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut two = schedule(&["capacity", "10000", "2"]);
        let dues: Vec<Option<Instant>> = (0..5).map(|_| two.due(start)).collect();
        assert_eq!(dues, [10, 10, 20, 20, 30].map(|ms| Some(at(ms))));
        // After a pause both places are free.
        assert_eq!(
            (two.due(at(100)), two.due(at(100)), two.due(at(101))),
            (Some(at(110)), Some(at(110)), Some(at(120)))
        );
        let mut limited = schedule(&["capacity", "10000", "1", "1"]);
        assert_eq!(
            (limited.due(start), limited.due(start), limited.due(start)),
            (Some(at(10)), Some(at(20)), None)
        );
        assert_eq!(limited.due(at(11)), Some(at(30)));
    }

    #[test]
    fn a_delay_and_a_stall_are_kept() {
        let start = Instant::now();
        let at = |ms: u64| Some(start + Duration::from_millis(ms));
        let mut stalling = schedule(&["10", "50", "1000"]);
        assert_eq!(stalling.due(start), at(10));
        assert_eq!(stalling.due(start + Duration::from_millis(45)), at(1050));
        assert_eq!(stalling.due(start + Duration::from_millis(2000)), at(2010));
        assert!(Schedule::parse(&["capacity".to_owned(), "1".to_owned()]).is_err());
    }
}
