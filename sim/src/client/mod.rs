//! A client: some connections one after the other, with some requests each, sent in drawn pieces at drawn times.

mod h1;
mod h2;
mod request;

use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::socket::{Did, Socket};
use crate::trace::{Actor, Event};
use crate::world::Shared;

/// Requests of a connection, and connections of a client.
const REQUESTS_MAX: usize = 5;
const CONNECTIONS_MAX: usize = 3;

/// The server skips this much of a body that nobody wants, to keep the connection.
const DISCARDED_BYTES_MAX: usize = 256 << 10;

/// The longest pause of a client that keeps the rules.
const PAUSE_MS_MAX: u64 = 2_000;

pub(crate) struct Client {
    number: usize,
    random: fastrand::Rng,
    connections_left: usize,
    connection: Option<Connection>,
    wakes_at_ns: u64,
}

/// A connection, and what speaks on it.
enum Connection {
    Http1(Box<h1::Connection>),
    Http2(Box<h2::Connection>),
}

impl Client {
    pub(crate) fn new(number: usize, mut random: fastrand::Rng) -> Client {
        let connections_left = random.usize(1..=CONNECTIONS_MAX);
        Client { number, random, connections_left, connection: None, wakes_at_ns: 0 }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.connection.is_none() && self.connections_left == 0
    }

    /// When it goes on by itself.
    pub(crate) fn wakes_at_ns(&self) -> Option<u64> {
        let gives_up_at_ns = self.connection.as_ref().and_then(|connection| match connection {
            Connection::Http1(connection) => connection.gives_up_at_ns(),
            Connection::Http2(connection) => connection.gives_up_at_ns(),
        });
        let next = gives_up_at_ns.map_or(self.wakes_at_ns, |at| at.max(self.wakes_at_ns));
        (!self.is_done()).then_some(next)
    }

    /// What it waits for, for a message.
    pub(crate) fn waits_for(&self) -> Option<String> {
        let waits_for = match self.connection.as_ref()? {
            Connection::Http1(connection) => connection.waits_for(),
            Connection::Http2(connection) => connection.waits_for(),
        };
        Some(format!("client {} waits for {}", self.number, waits_for?))
    }

    /// Does one thing. Returns whether there was one.
    pub(crate) fn step(&mut self, folder: &Path, shared: &mut Shared<'_>) -> Result<bool, String> {
        if self.is_done() || shared.now_ns < self.wakes_at_ns {
            return Ok(false);
        }
        let (actor, random) = (Actor::Client(self.number), &mut self.random);
        let Some(connection) = &mut self.connection else {
            self.connections_left -= 1;
            let stream = UnixStream::connect(crate::scene::listen_path(folder))
                .map_err(|error| format!("cannot connect: {error}"))?;
            shared.event(actor, Event::Open);
            self.connection = Some(match random.u8(..3) {
                0 => Connection::Http2(Box::new(h2::Connection::new(Socket::new(stream), random, shared))),
                _ => Connection::Http1(Box::new(h1::Connection::new(Socket::new(stream), random, shared))),
            });
            return Ok(true);
        };
        let wakes_at_ns = &mut self.wakes_at_ns;
        let did = match connection {
            Connection::Http1(connection) => connection.step(random, shared, actor, wakes_at_ns)?,
            Connection::Http2(connection) => connection.step(random, shared, actor, wakes_at_ns)?,
        };
        if did == Did::Ended {
            self.connection = None;
        }
        Ok(did != Did::Nothing)
    }
}
