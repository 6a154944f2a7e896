//! Moves the bytes of one connection. Code above it does not use descriptors.
//!
//! Chosen when a connection is accepted or registered; kernel TLS could become another variant.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use flatout_lane::pipe::Pipe;
use flatout_lane::poll::{Set, Token};
use flatout_lane::socket::{self, Moved};
use flatout_tls::{Channel, Shake};

use crate::secured::Secured;
use crate::service::FileRange;

/// One connection's transport.
#[derive(Debug)]
pub(crate) enum Transport {
    /// A socket, TCP or Unix, without encryption.
    Plain(OwnedFd),
    /// TLS over such a socket.
    Tls(Secured),
}

/// A connection's entry has no room for more.
const _: () = assert!(size_of::<Transport>() <= 8);

impl Transport {
    pub(crate) fn plain(socket: OwnedFd) -> Transport {
        Transport::Plain(socket)
    }

    pub(crate) fn tls(channel: Channel) -> Transport {
        Transport::Tls(Secured::new(channel))
    }

    /// What is encrypted, if it is.
    #[inline]
    pub(crate) fn secured(&self) -> Option<&Secured> {
        match self {
            Transport::Plain(_) => None,
            Transport::Tls(secured) => Some(secured),
        }
    }

    /// Whether its handshake has ended since the last call.
    #[inline]
    pub(crate) fn has_handshaken(&mut self) -> bool {
        match self {
            Transport::Plain(_) => false,
            Transport::Tls(secured) => secured.with(Channel::has_opened).unwrap_or(false),
        }
    }

    /// Whether the peer has selected HTTP/2 in its handshake (ALPN).
    pub(crate) fn selected_h2(&self) -> bool {
        let chosen = |secured: &Secured| secured.with(|channel| channel.protocol() == Some(b"h2"));
        self.secured().and_then(chosen).unwrap_or(false)
    }

    /// Continues a handshake in progress. Returns whether bytes can be sent.
    #[inline]
    pub(crate) fn shake(&mut self) -> Shake {
        match self {
            Transport::Plain(_) => Shake::Done,
            Transport::Tls(secured) => secured.with(|channel| channel.shake()).unwrap_or(Shake::Failed),
        }
    }

    /// Whether a handshake is in progress.
    #[inline]
    pub(crate) fn is_handshaking(&self) -> bool {
        match self {
            Transport::Plain(_) => false,
            Transport::Tls(secured) => secured.with(|channel| !channel.is_open()).unwrap_or(false),
        }
    }

    /// Whether the peer's end follows the received bytes, without an event for it.
    #[inline]
    pub(crate) fn holds_end(&self) -> bool {
        match self {
            Transport::Plain(_) => false,
            Transport::Tls(secured) => secured.with(|channel| channel.holds_end()).unwrap_or(true),
        }
    }

    /// Whether the transport itself has bytes that wait for the socket's room.
    pub(crate) fn wants_room(&self) -> bool {
        match self {
            Transport::Plain(_) => false,
            Transport::Tls(secured) => secured.with(|channel| channel.wants_room()).unwrap_or(false),
        }
    }

    /// Whether bytes can go through a pipe without being copied to user space.
    #[inline]
    pub(crate) fn has_pipe(&self) -> bool {
        matches!(self, Transport::Plain(_))
    }

    /// Registers it in a set, edge-triggered, for both directions, until it is dropped.
    pub(crate) fn watch(&self, set: &Set, token: Token) -> io::Result<()> {
        match self {
            Transport::Plain(socket) => set.add_connection(socket.as_fd(), token.to_u64()),
            Transport::Tls(secured) => {
                let watched = secured.with(|channel| set.add_connection(channel.socket(), token.to_u64()));
                watched.unwrap_or_else(|| Err(io::ErrorKind::NotConnected.into()))
            }
        }
    }

    /// Removes it from the set, for a socket that stays open.
    pub(crate) fn unwatch(&self, set: &Set) {
        // It was registered, so an error would be a bug; an event for its key would match nothing.
        let _ = match self {
            Transport::Plain(socket) => set.remove(socket.as_fd()).ok(),
            Transport::Tls(secured) => secured.with(|channel| set.remove(channel.socket()).ok()).flatten(),
        };
    }

    /// The result of a connection attempt, including the handshake.
    pub(crate) fn outcome(&self) -> io::Result<()> {
        match self {
            Transport::Plain(socket) => flatout_lane::connect::outcome(socket.as_fd()),
            Transport::Tls(secured) => {
                let outcome = secured.with(|channel| match channel.fault() {
                    Some(fault) => Err(io::Error::other(fault.clone())),
                    None => flatout_lane::connect::outcome(channel.socket()),
                });
                outcome.unwrap_or_else(|| Err(io::ErrorKind::NotConnected.into()))
            }
        }
    }

    /// Receives into `buffer`.
    #[inline]
    pub(crate) fn receive(&mut self, buffer: &mut [u8]) -> Moved {
        match self {
            Transport::Plain(socket) => socket::recv(socket.as_fd(), buffer),
            Transport::Tls(secured) => {
                secured.with(|channel| channel.receive(buffer)).unwrap_or(Moved::Broken)
            }
        }
    }

    /// Copies received bytes into `buffer`, and leaves them for [`Transport::receive`].
    pub(crate) fn peek(&mut self, buffer: &mut [u8]) -> Moved {
        match self {
            Transport::Plain(socket) => socket::peek(socket.as_fd(), buffer),
            // TLS connections are never peeked at.
            Transport::Tls(_) => Moved::Broken,
        }
    }

    /// Sends `bytes`, or a part from their start.
    #[inline]
    pub(crate) fn send(&mut self, bytes: &[u8]) -> Moved {
        match self {
            Transport::Plain(socket) => socket::send(socket.as_fd(), bytes),
            Transport::Tls(secured) => secured.with(|channel| channel.send(bytes)).unwrap_or(Moved::Broken),
        }
    }

    /// Sends the slices, or a part from their start; `more` delays an incomplete packet.
    pub(crate) fn send_slices(&mut self, slices: &[IoSlice<'_>], more: bool) -> Moved {
        match self {
            Transport::Plain(socket) => socket::send_slices(socket.as_fd(), slices, more),
            Transport::Tls(secured) => {
                secured.with(|channel| channel.send_slices(slices, more)).unwrap_or(Moved::Broken)
            }
        }
    }

    /// Sends up to `bytes` bytes of the range, without copying them to user space if possible.
    pub(crate) fn send_file(&mut self, range: &FileRange, bytes: u64) -> Moved {
        match self {
            Transport::Plain(socket) => socket::send_file(socket.as_fd(), &range.file, range.offset, bytes),
            Transport::Tls(secured) => secured
                .with(|channel| channel.send_file(&range.file, range.offset, bytes))
                .unwrap_or(Moved::Broken),
        }
    }

    /// Receives up to `bytes` bytes into a pipe, without copying them to user space if possible.
    pub(crate) fn fill_pipe(&mut self, pipe: &mut Pipe, bytes: usize) -> Moved {
        match self {
            Transport::Plain(socket) => pipe.fill(socket.as_fd(), bytes),
            Transport::Tls(secured) => {
                secured.with(|channel| channel.fill_pipe(pipe, bytes)).unwrap_or(Moved::Broken)
            }
        }
    }

    /// Sends up to `bytes` bytes of the content of a pipe, without copying it to user space if possible.
    pub(crate) fn send_pipe(&mut self, pipe: &mut Pipe, bytes: usize, more: bool) -> Moved {
        match self {
            Transport::Plain(socket) => pipe.drain(socket.as_fd(), bytes, more),
            Transport::Tls(secured) => {
                secured.with(|channel| channel.send_pipe(pipe, bytes, more)).unwrap_or(Moved::Broken)
            }
        }
    }

    /// Shuts down the sending side.
    pub(crate) fn shut_down(&mut self) {
        match self {
            Transport::Plain(socket) => socket::shutdown_write(socket.as_fd()),
            Transport::Tls(secured) => secured.with(Channel::shut_down).unwrap_or_default(),
        }
    }

    /// Lets the kernel end the connection if its peer acknowledges nothing for this time
    /// (`TCP_USER_TIMEOUT`).
    pub(crate) fn give_up_after(&self, time: Duration) {
        match self {
            Transport::Plain(socket) => socket::give_up_after(socket.as_fd(), time),
            Transport::Tls(secured) => {
                secured.with(|channel| socket::give_up_after(channel.socket(), time)).unwrap_or_default();
            }
        }
    }

    /// Says the same where the protocol has a word for it, before the socket is closed.
    pub(crate) fn end(&mut self) {
        match self {
            Transport::Plain(_) => {}
            Transport::Tls(secured) => secured.with(Channel::end).unwrap_or_default(),
        }
    }

    /// Bytes that were sent but not acknowledged by the peer's kernel; 0 if unknown.
    pub(crate) fn unacknowledged_bytes(&self) -> u64 {
        match self {
            Transport::Plain(socket) => socket::unacknowledged_bytes(socket.as_fd()),
            Transport::Tls(secured) => secured.with(|channel| channel.unacknowledged_bytes()).unwrap_or(0),
        }
    }
}
