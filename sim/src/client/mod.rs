//! A client: some connections one after the other, with some requests each, sent in drawn pieces at drawn times.

mod h1;
mod h2;
mod request;

use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::reduce::Reduction;
use crate::scene::{listen_path, secure_path};
use crate::secure::Tls;
use crate::socket::{Did, Socket};
use crate::trace::{Actor, Event};
use crate::world::Shared;

/// Requests of a connection, and connections of a client.
const REQUESTS_MAX: usize = 5;
const CONNECTIONS_MAX: usize = 3;

/// The server skips this much of a body that nobody wants, to keep the connection.
const DISCARDED_BYTES_MAX: usize = 256 << 10;

/// The longest pause of a client that keeps the rules, and that between two of its connections: responses become stale meanwhile.
const PAUSE_MS_MAX: u64 = 2_000;
const AWAY_MS_MAX: u64 = 20_000;

pub(crate) struct Client {
    number: usize,
    random: fastrand::Rng,
    connections_left: usize,
    /// Requests of a connection.
    requests_max: usize,
    connection: Option<Connection>,
    /// It has been away since its last connection.
    has_been_away: bool,
    wakes_at_ns: u64,
}

/// A connection, and what speaks on it.
enum Connection {
    Http1(Box<h1::Connection>),
    Http2(Box<h2::Connection>),
}

/// Connects to the server, with TLS or without.
pub(crate) fn connect(
    folder: &Path,
    is_http2: bool,
    random: &mut fastrand::Rng,
    shared: &mut Shared<'_>,
    actor: Actor,
) -> Result<Socket, String> {
    // Stored responses are those of one scheme.
    let has_one_scheme = shared.scene.shares_resources;
    let secure = shared.secure.as_ref().filter(|_| has_one_scheme || random.bool());
    let config = secure.map(|secure| secure.config(is_http2));
    let path = if config.is_some() { secure_path(folder) } else { listen_path(folder) };
    let stream = UnixStream::connect(path).map_err(|error| format!("cannot connect: {error}"))?;
    shared.event(actor, Event::Open);
    let socket = Socket::new(stream);
    Ok(match config {
        Some(config) => socket.secured(Tls::new(config, random.fork())),
        None => socket,
    })
}

impl Client {
    pub(crate) fn new(number: usize, reduction: &Reduction, mut random: fastrand::Rng) -> Client {
        let connections = random.usize(1..=CONNECTIONS_MAX);
        let is_left = reduction.clients.as_ref().is_none_or(|clients| clients.contains(&number));
        let connections_left =
            if is_left { connections.min(reduction.connections.unwrap_or(connections)) } else { 0 };
        let requests_max = reduction.requests.unwrap_or(REQUESTS_MAX);
        Client {
            number,
            random,
            connections_left,
            requests_max,
            connection: None,
            has_been_away: false,
            wakes_at_ns: 0,
        }
    }

    /// Whether it has all its responses. Its last connection may be open.
    pub(crate) fn is_done(&self) -> bool {
        let is_resting = self.connection.as_ref().is_none_or(|connection| match connection {
            Connection::Http1(connection) => connection.is_resting(),
            Connection::Http2(connection) => connection.is_resting(),
        });
        is_resting && self.connections_left == 0
    }

    /// Whether its last connection is closed.
    pub(crate) fn is_gone(&self) -> bool {
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
        if self.is_gone() || shared.now_ns < self.wakes_at_ns {
            return Ok(false);
        }
        let (actor, random) = (Actor::Client(self.number), &mut self.random);
        let Some(connection) = &mut self.connection else {
            if !std::mem::replace(&mut self.has_been_away, true) && random.u8(..4) == 0 {
                let pause_ms = random.u64(1..=AWAY_MS_MAX);
                shared.event(actor, Event::Pause(pause_ms));
                self.wakes_at_ns = shared.now_ns + pause_ms * 1_000_000;
                return Ok(true);
            }
            self.has_been_away = false;
            self.connections_left -= 1;
            let most = self.requests_max;
            let is_http2 = random.u8(..3) == 0;
            let socket = connect(folder, is_http2, random, shared, actor)?;
            self.connection = Some(match is_http2 {
                true => Connection::Http2(Box::new(h2::Connection::new(socket, most, random, shared))),
                false => Connection::Http1(Box::new(h1::Connection::new(socket, most, random, shared))),
            });
            if self.connections_left == 0 && random.u8(..4) == 0 {
                match &mut self.connection {
                    Some(Connection::Http1(connection)) => connection.rest(),
                    Some(Connection::Http2(connection)) => connection.rest(),
                    None => {}
                }
            }
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
