//! How the bytes of one connection come and go. Nothing above it names a descriptor.
//!
//! Chosen when a connection is accepted or registered; TLS and kernel TLS will be further variants.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};

use flatout_lane::pipe::Pipe;
use flatout_lane::poll::{Set, Token};
use flatout_lane::socket::{self, Moved};

use crate::service::FileRange;

/// One connection's way to its peer.
#[derive(Debug)]
pub(crate) enum Transport {
    /// A socket, TCP or Unix, without encryption.
    Plain(OwnedFd),
}

impl Transport {
    pub(crate) fn plain(socket: OwnedFd) -> Transport {
        Transport::Plain(socket)
    }

    /// Has it watched by a set, edge-triggered, for both directions, until it is dropped.
    pub(crate) fn watch(&self, set: &Set, token: Token) -> io::Result<()> {
        match self {
            Transport::Plain(socket) => set.add_connection(socket.as_fd(), token.to_u64()),
        }
    }

    /// Ends the watch, for a socket that stays open, and takes it out.
    pub(crate) fn into_socket(self, set: &Set) -> OwnedFd {
        match self {
            Transport::Plain(socket) => {
                // It was watched, so the one error would be a defect; an event for its key finds nothing.
                let _ = set.remove(socket.as_fd());
                socket
            }
        }
    }

    /// What an attempt to connect came to.
    pub(crate) fn outcome(&self) -> io::Result<()> {
        match self {
            Transport::Plain(socket) => flatout_lane::connect::outcome(socket.as_fd()),
        }
    }

    /// Receives into `buffer`.
    #[inline]
    pub(crate) fn receive(&mut self, buffer: &mut [u8]) -> Moved {
        match self {
            Transport::Plain(socket) => socket::recv(socket.as_fd(), buffer),
        }
    }

    /// Sends `bytes`, or the start of them.
    #[inline]
    pub(crate) fn send(&mut self, bytes: &[u8]) -> Moved {
        match self {
            Transport::Plain(socket) => socket::send(socket.as_fd(), bytes),
        }
    }

    /// Sends the slices, or the start of them; `more` holds back a packet that is not full.
    pub(crate) fn send_slices(&mut self, slices: &[IoSlice<'_>], more: bool) -> Moved {
        match self {
            Transport::Plain(socket) => socket::send_slices(socket.as_fd(), slices, more),
        }
    }

    /// Sends up to `bytes` bytes of the range, without copying them through the process where that can be.
    pub(crate) fn send_file(&mut self, range: &FileRange, bytes: u64) -> Moved {
        match self {
            Transport::Plain(socket) => socket::send_file(socket.as_fd(), &range.file, range.offset, bytes),
        }
    }

    /// Receives up to `bytes` bytes into a pipe, without copying them through the process where that can be.
    pub(crate) fn fill_pipe(&mut self, pipe: &mut Pipe, bytes: usize) -> Moved {
        match self {
            Transport::Plain(socket) => pipe.fill(socket.as_fd(), bytes),
        }
    }

    /// Sends what is in a pipe, without copying it through the process where that can be.
    pub(crate) fn send_pipe(&mut self, pipe: &mut Pipe, more: bool) -> Moved {
        match self {
            Transport::Plain(socket) => pipe.drain(socket.as_fd(), more),
        }
    }

    /// Says that nothing more will be sent.
    pub(crate) fn shut_down(&mut self) {
        match self {
            Transport::Plain(socket) => socket::shutdown_write(socket.as_fd()),
        }
    }

    /// Bytes that were sent and that the peer's kernel has not acknowledged; 0 where nobody knows.
    pub(crate) fn unacknowledged_bytes(&self) -> u64 {
        match self {
            Transport::Plain(socket) => socket::unacknowledged_bytes(socket.as_fd()),
        }
    }
}
