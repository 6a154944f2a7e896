//! A non-blocking Unix socket, and how many bytes a peer sends or receives at once.

use std::cell::{Cell, RefCell};
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::secure::{Decrypted, Tls};

/// Bytes that are received at once, at most.
const ROOM_MAX: usize = 65_536;

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

thread_local! {
    /// How often the server has done something.
    static TURNS: Cell<u64> = const { Cell::new(1) };

    /// Most looks find nothing: no memory is made ready for each.
    static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; ROOM_MAX]);
}

/// The next connection, if there is one. Nearly always there is none, and then `accept` costs four times as much as this look.
pub(crate) fn accept(listener: &UnixListener) -> Option<(UnixStream, SocketAddr)> {
    let mut looked = [PollFd::new(listener, PollFlags::IN)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    let count = poll(&mut looked, Some(&at_once)).unwrap_or(1);
    if count == 0 { None } else { listener.accept().ok() }
}

/// The server has done something: who has found nothing to receive, or no room, looks again.
pub(crate) fn server_did() {
    TURNS.set(TURNS.get() + 1);
}

pub(crate) struct Socket {
    stream: UnixStream,
    tls: Option<Box<Tls>>,
    /// The turn of the server since which there is nothing to receive, and that since which there is no room.
    is_empty_since: u64,
    is_full_since: u64,
}

impl Socket {
    /// # Panics
    /// The system refuses what a simulation needs.
    pub(crate) fn new(stream: UnixStream) -> Socket {
        stream.set_nonblocking(true).expect("a socket that does not block");
        Socket { stream, tls: None, is_empty_since: 0, is_full_since: 0 }
    }

    /// With TLS.
    pub(crate) fn secured(self, tls: Tls) -> Socket {
        Socket { tls: Some(Box::new(tls)), ..self }
    }

    /// Whether what was sent is on its way.
    pub(crate) fn is_plain(&self) -> bool {
        self.tls.is_none()
    }

    /// Receives at most `bytes_max` bytes behind those in `into`.
    ///
    /// With TLS there may be more than `bytes_max`, and none although something has happened.
    pub(crate) fn receive(&mut self, into: &mut Vec<u8>, bytes_max: usize) -> Received {
        let Some(mut tls) = self.tls.take() else { return self.receive_plain(into, bytes_max) };
        if !tls.decrypted.is_empty() {
            let bytes = tls.decrypted.len();
            into.append(&mut tls.decrypted);
            self.tls = Some(tls);
            return Received::Bytes(bytes);
        }
        let has_moved = self.flush(&mut tls);
        let mut encrypted = Vec::new();
        let received = match self.receive_plain(&mut encrypted, bytes_max) {
            Received::Nothing if matches!(has_moved, Sent::Bytes(_)) => Received::Bytes(0),
            Received::Bytes(_) => match tls.decrypt(&encrypted, into) {
                Decrypted::Bytes(bytes) => Received::Bytes(bytes),
                Decrypted::End => Received::End,
                Decrypted::Broken => Received::Reset,
            },
            // Without a word it may be the end of half a response.
            Received::End => match tls.decrypt(&[], into) {
                Decrypted::End => Received::End,
                Decrypted::Bytes(_) | Decrypted::Broken => Received::Reset,
            },
            received => received,
        };
        self.tls = Some(tls);
        received
    }

    /// Sends some of these bytes. With TLS none may be taken although something has happened.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> Sent {
        let Some(mut tls) = self.tls.take() else { return self.send_plain(bytes) };
        let taken = tls.encrypt(bytes);
        let mut flushed = self.flush(&mut tls);
        if taken == 0 && flushed == Sent::Full && tls.is_handshaking() {
            flushed = self.shake_hands(&mut tls);
        }
        self.tls = Some(tls);
        match flushed {
            Sent::Broken => Sent::Broken,
            Sent::Full if taken == 0 => Sent::Full,
            Sent::Full | Sent::Bytes(_) => Sent::Bytes(taken),
        }
    }

    /// Receives the server's part of a handshake, before which nothing can be sent.
    fn shake_hands(&mut self, tls: &mut Tls) -> Sent {
        let mut encrypted = Vec::new();
        match self.receive_plain(&mut encrypted, ROOM_MAX) {
            Received::Nothing => Sent::Full,
            Received::Bytes(_) => {
                let mut decrypted = std::mem::take(&mut tls.decrypted);
                let result = tls.decrypt(&encrypted, &mut decrypted);
                tls.decrypted = decrypted;
                if let Decrypted::Bytes(_) = result { Sent::Bytes(0) } else { Sent::Broken }
            }
            Received::End | Received::Reset => Sent::Broken,
        }
    }

    /// Sends a piece of what is encrypted.
    fn flush(&mut self, tls: &mut Tls) -> Sent {
        let piece = tls.piece();
        if piece.is_empty() {
            return Sent::Full;
        }
        let sent = self.send_plain(piece);
        if let Sent::Bytes(bytes) = sent {
            tls.sent(bytes);
        }
        sent
    }

    fn receive_plain(&mut self, into: &mut Vec<u8>, bytes_max: usize) -> Received {
        if self.is_empty_since == TURNS.get() {
            return Received::Nothing;
        }
        let result = BUFFER.with_borrow_mut(|buffer| {
            let bytes = self.stream.read(&mut buffer[..bytes_max.min(ROOM_MAX)])?;
            into.extend_from_slice(&buffer[..bytes]);
            Ok::<_, std::io::Error>(bytes)
        });
        match result {
            Ok(0) => Received::End,
            Ok(bytes) => Received::Bytes(bytes),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.is_empty_since = TURNS.get();
                Received::Nothing
            }
            Err(_) => Received::Reset,
        }
    }

    fn send_plain(&mut self, bytes: &[u8]) -> Sent {
        if self.is_full_since == TURNS.get() {
            return Sent::Full;
        }
        match self.stream.write(bytes) {
            Ok(count) => Sent::Bytes(count),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.is_full_since = TURNS.get();
                Sent::Full
            }
            Err(_) => Sent::Broken,
        }
    }

    /// The same connection, for another owner.
    ///
    /// # Panics
    /// The system has no descriptor left.
    pub(crate) fn take(&self) -> Socket {
        Socket::new(self.stream.try_clone().expect("a descriptor"))
    }

    /// Sends nothing more.
    pub(crate) fn close_write(&mut self) {
        if let Some(mut tls) = self.tls.take() {
            tls.close();
            let _ = self.flush(&mut tls);
            self.tls = Some(tls);
        }
        // The other side may be gone.
        let _ = self.stream.shutdown(Shutdown::Write);
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
    if random.u8(..4) == 0 { random.usize(1..=500) } else { ROOM_MAX }
}
