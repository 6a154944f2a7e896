//! The socket of an open connection: plain or TLS.

use std::os::fd::{AsFd, OwnedFd};

use flatout_lane::socket::{self, Moved};
use flatout_tls::Channel;

/// A socket to receive from and to send to.
#[derive(Debug)]
pub(crate) enum Socket {
    Plain(OwnedFd),
    Secured(Box<Channel>),
}

impl Socket {
    /// As [`socket::recv`].
    #[inline(always)]
    pub(crate) fn receive(&mut self, buffer: &mut [u8]) -> Moved {
        match self {
            Socket::Plain(socket) => socket::recv(socket.as_fd(), buffer),
            Socket::Secured(channel) => channel.receive(buffer),
        }
    }

    /// As [`socket::send`]. Bytes that were not sent have to be offered again, unchanged.
    #[inline(always)]
    pub(crate) fn send(&mut self, bytes: &[u8]) -> Moved {
        match self {
            Socket::Plain(socket) => socket::send(socket.as_fd(), bytes),
            Socket::Secured(channel) => channel.send(bytes),
        }
    }

    /// Whether TLS holds the end of the connection although the last receive was short. No event reports it.
    #[inline(always)]
    pub(crate) fn holds_end(&self) -> bool {
        match self {
            Socket::Plain(_) => false,
            Socket::Secured(channel) => channel.holds_end(),
        }
    }

    /// Whether TLS holds bytes that wait for room in the socket; sending nothing flushes them.
    pub(crate) fn wants_room(&self) -> bool {
        match self {
            Socket::Plain(_) => false,
            Socket::Secured(channel) => channel.wants_room(),
        }
    }

    /// Sends `close_notify`, before the socket is closed.
    pub(crate) fn end(&mut self) {
        if let Socket::Secured(channel) = self {
            channel.end();
        }
    }
}
