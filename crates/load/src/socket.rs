//! The socket of a connection that is made: plain, or over TLS.

use std::os::fd::{AsFd, OwnedFd};

use flatout_lane::socket::{self, Moved};
use flatout_tls::Channel;

/// What bytes are received from and sent to.
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

    /// As [`socket::send`]. What was not sent is to be offered again, unchanged.
    #[inline(always)]
    pub(crate) fn send(&mut self, bytes: &[u8]) -> Moved {
        match self {
            Socket::Plain(socket) => socket::send(socket.as_fd(), bytes),
            Socket::Secured(channel) => channel.send(bytes),
        }
    }

    /// Whether the end lies behind what was received last, although that came up short. No event reports it.
    #[inline(always)]
    pub(crate) fn holds_end(&self) -> bool {
        match self {
            Socket::Plain(_) => false,
            Socket::Secured(channel) => channel.holds_end(),
        }
    }

    /// Whether it keeps bytes that wait for room; sending nothing sends them.
    pub(crate) fn wants_room(&self) -> bool {
        match self {
            Socket::Plain(_) => false,
            Socket::Secured(channel) => channel.wants_room(),
        }
    }

    /// Says that nothing more comes, before it is closed.
    pub(crate) fn end(&mut self) {
        if let Socket::Secured(channel) = self {
            channel.end();
        }
    }
}
