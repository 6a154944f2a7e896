//! A client: some connections one after the other, with some requests each, sent in drawn pieces at drawn times.

mod h1;
mod h2;
mod passed;
mod request;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::net::UnixStream;
use std::path::Path;

pub(crate) use passed::NUMBER_BYTES;

use crate::reduce::Reduction;
use crate::scene::{Scene, listen_path, passed_path, proxied_path, secure_path};
use crate::secure::Tls;
use crate::socket::{Did, Socket};
use crate::trace::{Actor, Event};
use crate::world::Shared;

/// Requests of a connection: usually, where it lasts longer, where their heads are the same, and where they are uploads that nobody wants.
/// Connections of a client.
const REQUESTS_MAX: usize = 5;
const REQUESTS_LONG: usize = 40;
const REPEATED_MAX: usize = 12;
const UNWANTED_MIN: usize = 4;
const UNWANTED_MAX: usize = 30;
const CONNECTIONS_MAX: usize = 3;

/// The server skips this much of a body that nobody wants, to keep the connection.
const DISCARDED_BYTES_MAX: usize = 256 << 10;

/// One in so many connections reads slowly.
const SLOW_CONNECTIONS: u8 = 6;

/// A connection that reads slowly pauses at one of so many steps.
const SLOW_STEPS: u8 = 8;

/// Pauses of such a connection of HTTP/2, which has many steps: they end long before a drain does.
const SLOW_PAUSES_MAX: u8 = 40;

/// The longest pauses of a client that keeps the rules: anywhere, between two requests with the same head, and between two of its
/// connections. Responses become stale meanwhile.
const PAUSE_MS_MAX: u64 = 2_000;
const POLL_PAUSE_MS_MAX: u64 = 8_000;
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
    /// The server passes it on without decrypting it.
    Passed(Box<passed::Connection>),
}

/// Draws how many requests a connection has.
fn draw_count(random: &mut fastrand::Rng) -> usize {
    let most = if random.u8(..3) == 0 { REQUESTS_LONG } else { REQUESTS_MAX };
    random.usize(1..=most)
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
    let is_proxied = config.is_none() && shared.scene.has_proxy_header && random.bool();
    let path = match config {
        Some(_) => secure_path(folder),
        None if is_proxied => proxied_path(folder),
        None => listen_path(folder),
    };
    let stream = UnixStream::connect(path).map_err(|error| format!("cannot connect: {error}"))?;
    shared.event(actor, Event::Open);
    let socket = Socket::new(stream);
    Ok(match config {
        Some(config) => socket.secured(Tls::new(config, random.fork())),
        None if is_proxied => proxied(socket, random),
        None => socket,
    })
}

/// Announces a client to the server, as a proxy in front of it does.
fn proxied(socket: Socket, random: &mut fastrand::Rng) -> Socket {
    let address: Option<IpAddr> = match random.u8(..4) {
        0 => None,
        1 => Some(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, random.u16(1..)).into()),
        _ => Some(Ipv4Addr::new(192, 0, 2, random.u8(1..)).into()),
    };
    let head = if random.bool() { text_header(address) } else { binary_header(address) };
    socket.announcing(head, address)
}

/// Version 1 of the PROXY protocol.
fn text_header(address: Option<IpAddr>) -> Vec<u8> {
    let line = match address {
        None => "PROXY UNKNOWN\r\n".to_owned(),
        Some(address @ IpAddr::V4(_)) => format!("PROXY TCP4 {address} 198.51.100.1 4711 80\r\n"),
        Some(address @ IpAddr::V6(_)) => format!("PROXY TCP6 {address} 2001:db8::1 4711 80\r\n"),
    };
    line.into_bytes()
}

/// Version 2: a signature, version and command, the family, the length, the addresses, the ports.
fn binary_header(address: Option<IpAddr>) -> Vec<u8> {
    let mut out = b"\r\n\r\n\0\r\nQUIT\n".to_vec();
    match address {
        None => out.extend_from_slice(&[0x20, 0, 0, 0]),
        Some(IpAddr::V4(address)) => {
            out.extend_from_slice(&[0x21, 0x11, 0, 12]);
            out.extend_from_slice(&[address.octets(), [198, 51, 100, 1]].concat());
            out.extend_from_slice(&[0x12, 0x34, 0, 80]);
        }
        Some(IpAddr::V6(address)) => {
            out.extend_from_slice(&[0x21, 0x21, 0, 36]);
            out.extend_from_slice(&[address.octets(), Ipv6Addr::LOCALHOST.octets()].concat());
            out.extend_from_slice(&[0x12, 0x34, 0, 80]);
        }
    }
    out
}

impl Client {
    pub(crate) fn new(
        number: usize,
        scene: &Scene,
        reduction: &Reduction,
        mut random: fastrand::Rng,
    ) -> Client {
        // A crash ends some of them.
        let most = if scene.crashes > 0 { 3 * CONNECTIONS_MAX } else { CONNECTIONS_MAX };
        let connections = random.usize(1..=most);
        let is_left = reduction.clients.as_ref().is_none_or(|clients| clients.contains(&number));
        let connections_left =
            if is_left { connections.min(reduction.connections.unwrap_or(connections)) } else { 0 };
        let requests_max = reduction.requests.unwrap_or(usize::MAX);
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
            Connection::Passed(_) => false,
        });
        is_resting && self.connections_left == 0
    }

    /// Checks what must be true when everybody has done everything.
    pub(crate) fn check_at_rest(&self) -> Result<(), String> {
        let Some(Connection::Http2(connection)) = &self.connection else { return Ok(()) };
        connection.check_at_rest().map_err(|message| format!("client {}: {message}", self.number))
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
            Connection::Passed(_) => None,
        });
        let next = gives_up_at_ns.map_or(self.wakes_at_ns, |at| at.max(self.wakes_at_ns));
        (!self.is_done()).then_some(next)
    }

    /// What it waits for, for a message.
    pub(crate) fn waits_for(&self) -> Option<String> {
        let waits_for = match self.connection.as_ref()? {
            Connection::Http1(connection) => connection.waits_for(),
            Connection::Http2(connection) => connection.waits_for(),
            Connection::Passed(connection) => Some(connection.waits_for()),
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
                self.wakes_at_ns = shared.pause(actor, pause_ms);
                return Ok(true);
            }
            self.has_been_away = false;
            self.connections_left -= 1;
            if shared.scene.passes_tls && random.u8(..6) == 0 {
                let stream = UnixStream::connect(passed_path(folder));
                let stream = stream.map_err(|error| format!("cannot connect: {error}"))?;
                shared.event(actor, Event::Open);
                let connection = passed::Connection::new(Socket::new(stream), random, shared);
                self.connection = Some(Connection::Passed(Box::new(connection)));
                return Ok(true);
            }
            let most = self.requests_max;
            let is_http2 = random.u8(..3) == 0;
            let socket = connect(folder, is_http2, random, shared, actor)?;
            self.connection = Some(match is_http2 {
                true => Connection::Http2(Box::new(h2::Connection::new(socket, most, random, shared))),
                false => Connection::Http1(Box::new(h1::Connection::new(socket, most, random, shared))),
            });
            // Windows are compared when connections are idle, so more of them stay open over HTTP/2.
            if self.connections_left == 0 && random.u8(..if is_http2 { 2 } else { 4 }) == 0 {
                match &mut self.connection {
                    Some(Connection::Http1(connection)) => connection.rest(),
                    Some(Connection::Http2(connection)) => connection.rest(),
                    Some(Connection::Passed(_)) | None => {}
                }
            }
            return Ok(true);
        };
        let wakes_at_ns = &mut self.wakes_at_ns;
        let did = match connection {
            Connection::Http1(connection) => connection.step(random, shared, actor, wakes_at_ns)?,
            Connection::Http2(connection) => connection.step(random, shared, actor, wakes_at_ns)?,
            Connection::Passed(connection) => connection.step(random, shared, actor, wakes_at_ns)?,
        };
        if did == Did::Ended {
            self.connection = None;
        }
        Ok(did != Did::Nothing)
    }
}
