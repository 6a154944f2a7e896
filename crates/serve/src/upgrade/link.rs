//! The connection between the two processes: notes, each in as many packets as needed.

use std::fmt;
use std::io::{self, ErrorKind};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use flatout_lane::passing::{PACKET_BYTES_MAX, Passing};

use super::format::{Malformed, NOTE_BYTES_MAX, Note};

/// The first byte of a packet: whether more of its note follows.
const LAST: u8 = 0;
const MORE: u8 = 1;

/// One end of the connection.
pub(super) struct Link {
    passing: Passing,
    buffer: Vec<u8>,
}

/// Why nothing was received.
#[derive(Debug)]
pub(super) enum Lost {
    /// The other process has closed its end.
    Gone,
    /// The other process was silent for too long.
    Late,
    /// It sent something that is not a note, or not the expected one.
    Malformed,
    /// This process has no room for the descriptors; the note is lost, and they are closed.
    NoRoom,
    System(io::Error),
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lost::Gone => f.write_str("it has ended"),
            Lost::Late => f.write_str("it did not respond in time"),
            Lost::Malformed => f.write_str("it does not follow the protocol"),
            Lost::NoRoom => f.write_str("there are too many open files"),
            Lost::System(error) => error.fmt(f),
        }
    }
}

impl From<Malformed> for Lost {
    fn from(_: Malformed) -> Lost {
        Lost::Malformed
    }
}

impl From<io::Error> for Lost {
    fn from(error: io::Error) -> Lost {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Lost::Late,
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => Lost::Gone,
            ErrorKind::InvalidData => Lost::NoRoom,
            _ => Lost::System(error),
        }
    }
}

impl Link {
    pub(super) fn new(passing: Passing) -> Link {
        Link { passing, buffer: vec![0; PACKET_BYTES_MAX] }
    }

    /// Sets how long the other process may take for a step.
    pub(super) fn set_patience(&self, time: Option<Duration>) -> Result<(), Lost> {
        Ok(self.passing.set_patience(time)?)
    }

    pub(super) fn send(&self, note: &Note<'_>, descriptors: &[BorrowedFd<'_>]) -> Result<(), Lost> {
        let bytes = note.encode()?;
        if bytes.len() > NOTE_BYTES_MAX {
            return Err(Lost::Malformed);
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
    pub(super) fn receive(&mut self) -> Result<(Note<'static>, Vec<OwnedFd>), Lost> {
        let (mut bytes, mut descriptors) = (Vec::new(), Vec::new());
        loop {
            let (length, came) = self.passing.receive(&mut self.buffer)?;
            if !(came.is_empty() || bytes.is_empty()) {
                // Only the first packet of a note has any.
                return Err(Lost::Malformed);
            }
            descriptors.extend(came);
            let (kind, piece) = match self.buffer.get(..length).and_then(<[u8]>::split_first) {
                Some((kind, piece)) => (*kind, piece),
                None => return Err(Lost::Gone),
            };
            if bytes.len() + piece.len() > NOTE_BYTES_MAX {
                return Err(Lost::Malformed);
            }
            bytes.extend_from_slice(piece);
            match kind {
                LAST => break,
                MORE => {}
                _ => return Err(Lost::Malformed),
            }
        }
        Ok((Note::decode(&bytes, descriptors.len())?, descriptors))
    }
}
