//! A non-blocking Unix socket, and how many bytes a peer sends or receives at once.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

/// What became of a try to receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Received {
    /// This many bytes were appended.
    Bytes(usize),
    /// There is nothing now.
    Nothing,
    /// The other side sends nothing more.
    End,
    /// The other side has reset the connection.
    Reset,
}

/// What became of a try to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent {
    /// This many bytes were taken.
    Bytes(usize),
    /// There is no room now.
    Full,
    /// The other side reads nothing more.
    Broken,
}

#[derive(Debug)]
pub(crate) struct Socket(UnixStream);

impl Socket {
    /// # Panics
    /// The system refuses what a simulation needs.
    pub(crate) fn new(stream: UnixStream) -> Socket {
        stream.set_nonblocking(true).expect("a socket that does not block");
        Socket(stream)
    }

    /// Receives at most `bytes_max` bytes behind those in `into`.
    pub(crate) fn receive(&mut self, into: &mut Vec<u8>, bytes_max: usize) -> Received {
        let start = into.len();
        into.resize(start + bytes_max, 0);
        let result = self.0.read(&mut into[start..]);
        into.truncate(start + result.as_ref().copied().unwrap_or(0));
        match result {
            Ok(0) => Received::End,
            Ok(bytes) => Received::Bytes(bytes),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Received::Nothing,
            Err(_) => Received::Reset,
        }
    }

    /// Sends some of these bytes.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> Sent {
        match self.0.write(bytes) {
            Ok(count) => Sent::Bytes(count),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Sent::Full,
            Err(_) => Sent::Broken,
        }
    }

    /// Sends nothing more.
    pub(crate) fn close_write(&mut self) {
        // The other side may be gone.
        let _ = self.0.shutdown(Shutdown::Write);
    }
}

/// What one step of a peer did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Did {
    Nothing,
    Something,
    Ended,
}

/// Draws how many of so many bytes are sent at once.
pub(crate) fn draw_piece(random: &mut fastrand::Rng, bytes: usize) -> usize {
    let most = match random.u8(..4) {
        0 => 1,
        1 => random.usize(1..=100),
        2 => random.usize(1..=20_000),
        _ => bytes,
    };
    most.min(bytes)
}

/// Draws how many bytes are received at most.
pub(crate) fn draw_room(random: &mut fastrand::Rng) -> usize {
    if random.u8(..4) == 0 { random.usize(1..=500) } else { 65_536 }
}
