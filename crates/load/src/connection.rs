//! One connection of a thread: a table entry of at most [`CONNECTION_BYTES_MAX`] bytes. It owns a buffer only while a
//! response head or a request is incomplete.

use std::os::fd::OwnedFd;

use flatout_tls::Channel;

use crate::answers::Reader;
use crate::socket::Socket;
use crate::streams::Session;

/// Memory per connection in this process, not counting the kernel, TLS and HTTP/2.
pub(crate) const CONNECTION_BYTES_MAX: usize = 300;

const _: () = assert!(size_of::<Connection>() <= CONNECTION_BYTES_MAX);

/// An entry in a thread's table. It stays in place while its sockets come and go.
#[derive(Debug, Default)]
pub(crate) struct Connection {
    pub(crate) state: State,
    /// The number of its current socket, so that events of earlier ones are ignored.
    pub(crate) generation: u32,
    /// Requests without a response so far.
    pub(crate) in_flight: u32,
    /// Which request of the mix they are.
    pub(crate) kind: u32,
    /// Start of their latency.
    pub(crate) due_ns: u64,
    /// When the requests were sent, or the connection attempt started.
    pub(crate) since_ns: u64,
    pub(crate) reader: Reader,
    /// The part of the requests that the socket has not accepted.
    pub(crate) unsent: Vec<u8>,
    /// The HTTP/2 session, if there is one. Its streams have their own times.
    pub(crate) session: Option<Box<Session>>,
    /// It is in the thread's queue (HTTP/2).
    pub(crate) is_queued: bool,
}

#[derive(Debug)]
pub(crate) enum State {
    /// No socket; the next attempt starts at this time.
    Resting { until_ns: u64 },
    /// Connecting.
    Connecting(OwnedFd),
    /// In the TLS handshake.
    Shaking(Box<Channel>),
    /// Connected.
    Open(Socket),
    /// The server has announced that it closes. It closes first, so that TIME_WAIT does not occupy our port.
    Ending(Socket),
}

impl Default for State {
    fn default() -> Self {
        State::Resting { until_ns: 0 }
    }
}

impl Connection {
    /// Drops the socket and its state.
    pub(crate) fn close(&mut self, until_ns: u64) {
        if let State::Open(socket) = &mut self.state {
            socket.end();
        }
        self.state = State::Resting { until_ns };
        self.generation = self.generation.wrapping_add(1);
        self.in_flight = 0;
        self.reader.reset();
        self.unsent = Vec::new();
        self.session = None;
    }

    /// Open, without a pending request.
    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.state, State::Open(_)) && self.in_flight == 0
    }

    /// Its socket and its HTTP/2 session.
    #[inline]
    pub(crate) fn multiplexed(&mut self) -> Option<(&mut Socket, &mut Session)> {
        match (&mut self.state, &mut self.session) {
            (State::Open(socket), Some(session)) => Some((socket, session)),
            _ => None,
        }
    }

    /// Still connecting, or in the TLS handshake.
    pub(crate) fn is_beginning(&self) -> bool {
        matches!(self.state, State::Connecting(_) | State::Shaking(_))
    }

    /// The epoll token of the socket at index `at` of the table.
    pub(crate) fn token(&self, at: usize) -> u64 {
        u64::from(self.generation) << 32 | at as u64
    }
}

/// The table index and generation of a token.
#[inline]
pub(crate) fn place(token: u64) -> (usize, u32) {
    (token as u32 as usize, (token >> 32) as u32)
}
