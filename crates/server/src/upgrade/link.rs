//! The connection between the two processes: notes, each in as many packets as needed.

use std::fmt;
use std::io::{self, ErrorKind};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use flatout_lane::descriptors::{PACKET_BYTES_MAX, SeqpacketSocket};

use super::format::{Malformed, NOTE_BYTES_MAX, Note};

/// The first byte of a packet: whether more of its note follows.
const LAST: u8 = 0;
const MORE: u8 = 1;

/// How often a process that waits checks whether it is to end.
const STOP_LOOK: Duration = Duration::from_millis(50);

/// One end of the connection.
pub(super) struct Link {
    passing: SeqpacketSocket,
    buffer: Vec<u8>,
}

/// Why nothing was received.
#[derive(Debug)]
pub(super) enum LinkError {
    /// The other process has closed its end.
    Gone,
    /// The other process was silent for too long.
    Late,
    /// It sent something that is not a note, or not the expected one.
    Malformed,
    /// This process has no room for the descriptors; the note is lost, and they are closed.
    NoRoom,
    /// This process is to end.
    Stopping,
    System(io::Error),
}

impl fmt::Display for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkError::Gone => f.write_str("it has ended"),
            LinkError::Late => f.write_str("it did not respond in time"),
            LinkError::Malformed => f.write_str("it does not follow the protocol"),
            LinkError::NoRoom => f.write_str("there are too many open files"),
            LinkError::Stopping => f.write_str("this server is to stop"),
            LinkError::System(error) => error.fmt(f),
        }
    }
}

impl From<Malformed> for LinkError {
    fn from(_: Malformed) -> LinkError {
        LinkError::Malformed
    }
}

impl From<io::Error> for LinkError {
    fn from(error: io::Error) -> LinkError {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => LinkError::Late,
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => LinkError::Gone,
            ErrorKind::InvalidData => LinkError::NoRoom,
            _ => LinkError::System(error),
        }
    }
}

impl Link {
    pub(super) fn new(passing: SeqpacketSocket) -> Link {
        Link { passing, buffer: vec![0; PACKET_BYTES_MAX] }
    }

    /// Sets how long the other process may take for a step.
    pub(super) fn set_patience(&self, time: Option<Duration>) -> Result<(), LinkError> {
        Ok(self.passing.set_patience(time)?)
    }

    /// The next note, if it comes in time; gives up as soon as `is_stopping`.
    pub(super) fn receive_unless(
        &mut self,
        is_stopping: impl Fn() -> bool,
        time_max: Duration,
    ) -> Result<Note<'static>, LinkError> {
        let began = Instant::now();
        while !self.passing.wait(STOP_LOOK)? {
            if is_stopping() {
                return Err(LinkError::Stopping);
            }
            if began.elapsed() >= time_max {
                return Err(LinkError::Late);
            }
        }
        Ok(self.receive()?.0)
    }

    pub(super) fn send(&self, note: &Note<'_>, descriptors: &[BorrowedFd<'_>]) -> Result<(), LinkError> {
        let bytes = note.encode()?;
        if bytes.len() > NOTE_BYTES_MAX {
            return Err(LinkError::Malformed);
        }
        let mut packet = Vec::with_capacity(bytes.len().min(PACKET_BYTES_MAX - 1) + 1);
        let mut pieces = bytes.chunks(PACKET_BYTES_MAX - 1).peekable();
        let mut descriptors = descriptors;
        while let Some(piece) = pieces.next() {
            packet.clear();
            packet.push(if pieces.peek().is_some() { MORE } else { LAST });
            packet.extend_from_slice(piece);
            self.passing.send(&packet, std::mem::take(&mut descriptors))?;
        }
        Ok(())
    }

    /// The next note, with its descriptors.
    pub(super) fn receive(&mut self) -> Result<(Note<'static>, Vec<OwnedFd>), LinkError> {
        let (mut bytes, mut descriptors) = (Vec::new(), Vec::new());
        loop {
            let (length, came) = self.passing.receive(&mut self.buffer)?;
            if !(came.is_empty() || bytes.is_empty()) {
                // Only the first packet of a note has any.
                return Err(LinkError::Malformed);
            }
            descriptors.extend(came);
            let (kind, piece) = match self.buffer.get(..length).and_then(<[u8]>::split_first) {
                Some((kind, piece)) => (*kind, piece),
                None => return Err(LinkError::Gone),
            };
            if bytes.len() + piece.len() > NOTE_BYTES_MAX {
                return Err(LinkError::Malformed);
            }
            bytes.extend_from_slice(piece);
            match kind {
                LAST => break,
                MORE => {}
                _ => return Err(LinkError::Malformed),
            }
        }
        Ok((Note::decode(&bytes, descriptors.len())?, descriptors))
    }
}
