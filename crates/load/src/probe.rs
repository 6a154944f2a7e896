//! Checks with one connection before the load that the server can be reached and supports the protocol.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use flatout_lane::connect;
use flatout_lane::poll::Poll;
use flatout_lane::socket::Moved;
use flatout_tls::{Connector, Shake};
use flatout_wire::h2::{Connection, Event, Limits, Room};

use crate::handshakes::HTTP2;
use crate::plan::{Error, Plan};
use crate::socket::Socket;

/// Size of the receive buffer: more than one HTTP/2 frame.
const BUFFER_BYTES: usize = 32 << 10;

/// A connection attempt.
struct Probe<'p> {
    plan: &'p Plan,
    poll: Poll,
    deadline: Instant,
}

/// Connects according to the plan, and closes the connection.
///
/// # Errors
/// The server cannot be reached, is not trusted, or does not support HTTP/2.
pub(crate) fn probe(plan: &Plan) -> Result<(), Error> {
    let source = plan.sources.first().copied();
    let refused = |error| Error::Connect(plan.remote.clone(), error);
    let is_http2 = plan.streams.is_some();
    if plan.tls.is_none() && !is_http2 {
        return connect::probe(&plan.remote, source, plan.connect_time_max).map_err(refused);
    }
    let connector =
        plan.tls.as_ref().map(|tls| tls.connector(is_http2, 1)).transpose().map_err(Error::Plan)?;
    let deadline = Instant::now() + plan.connect_time_max;
    let mut probe = Probe { plan, poll: Poll::new().map_err(Error::System)?, deadline };
    let socket = connect::begin(&plan.remote, source).map_err(refused)?;
    probe.poll.add_connection(socket.as_fd(), 0).map_err(Error::System)?;
    probe.wait().and_then(|()| connect::outcome(socket.as_fd())).map_err(refused)?;
    let mut socket = match connector {
        None => Socket::Plain(socket),
        Some(connector) => probe.shake(&connector, socket)?,
    };
    if is_http2 {
        probe.greet(&mut socket)?;
    }
    socket.end();
    Ok(())
}

impl Probe<'_> {
    /// Waits for an event of the socket.
    fn wait(&mut self) -> io::Result<()> {
        loop {
            let left = self.deadline.saturating_duration_since(Instant::now());
            if left == Duration::ZERO {
                return Err(io::ErrorKind::TimedOut.into());
            }
            if self.poll.wait(left)? > 0 {
                return Ok(());
            }
        }
    }

    fn shake(&mut self, connector: &Connector, socket: OwnedFd) -> Result<Socket, Error> {
        let remote = &self.plan.remote;
        let failed = |fault| Error::Handshake(remote.clone(), fault);
        let mut channel = connector.connect(socket).map_err(failed)?;
        loop {
            match (channel.shake(), channel.fault()) {
                (Shake::GoesOn, _) => {
                    self.wait().map_err(|error| Error::Connect(self.plan.remote.clone(), error))?;
                }
                (_, Some(fault)) if fault.is_no_protocol() && self.plan.streams.is_some() => {
                    return Err(self.not_http2("it refuses the protocol `h2` (ALPN)"));
                }
                (_, Some(fault)) => return Err(failed(fault.clone())),
                (_, None) => break,
            }
        }
        match (self.plan.streams, channel.protocol()) {
            (None, _) | (Some(_), Some(HTTP2)) => Ok(Socket::Secured(Box::new(channel))),
            (Some(_), None) => Err(self.not_http2("it chooses no protocol (ALPN)")),
            (Some(_), Some(other)) => {
                Err(self.not_http2(&format!("it chooses `{}` (ALPN)", String::from_utf8_lossy(other))))
            }
        }
    }

    /// Exchanges the first frames.
    fn greet(&mut self, socket: &mut Socket) -> Result<(), Error> {
        let (mut out, mut came) = (Vec::new(), Vec::new());
        let (mut room, mut buffer) = (Room::default(), vec![0; BUFFER_BYTES]);
        let mut machine = Connection::client(Limits::default(), &mut out);
        while !machine.has_begun() {
            match socket.send(&out) {
                Moved::Bytes(sent) => drop(out.drain(..sent)),
                Moved::WouldBlock => {}
                Moved::Broken => return Err(self.not_http2("it closes the connection")),
            }
            match socket.receive(&mut buffer) {
                Moved::Bytes(0) | Moved::Broken => return Err(self.not_http2("it closes the connection")),
                Moved::Bytes(count) => came.extend_from_slice(&buffer[..count]),
                Moved::WouldBlock => {
                    self.wait().map_err(|_| self.not_http2("it does not reply to the preface"))?;
                }
            }
            let mut at = 0;
            loop {
                match machine.receive(&came[at..], &mut room, &mut out) {
                    Ok((_, Event::NeedMore)) => break,
                    Ok((used, _)) => at += used,
                    Err(_) if came.starts_with(b"HTTP/1.") => {
                        return Err(self.not_http2("it replies with HTTP/1"));
                    }
                    Err(fault) => return Err(self.not_http2(fault.reason)),
                }
            }
            came.drain(..at);
        }
        Ok(())
    }

    fn not_http2(&self, why: &str) -> Error {
        Error::NotHttp2(self.plan.remote.clone(), why.to_owned())
    }
}
