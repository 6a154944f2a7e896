//! Upgraded connections: bytes in both directions, small amounts by copying, the rest through pipes.

use bytes::{Buf, Bytes};
use flatout_engine::{ConnectionPermit, GuestKey, Lane, Moved, PIPE_BYTES, PooledPipe};

/// Marks the client's side of a tunnel in a guest's tag.
pub(crate) const CLIENT_SIDE: u64 = 1 << 63;

/// Moves in one direction before others get their turn.
pub(crate) const MOVES_PER_CALL: usize = 8;

/// A client's connection joined to an upstream's.
pub(crate) struct Tunnel {
    pub(crate) client: GuestKey,
    pub(crate) there: Direction,
    pub(crate) back: Direction,
    /// Counts the client's connection for as long as the tunnel lives.
    pub(crate) _seat: ConnectionPermit,
}

/// One direction of a tunnel.
#[derive(Default)]
pub(crate) struct Direction {
    /// Received bytes that were not sent; initially those that arrived before the tunnel was opened.
    pub(crate) held: Bytes,
    /// Bytes received by `splice` that were not sent; `None` if there are none.
    pub(crate) pipe: Option<PooledPipe>,
    pub(crate) is_readable: bool,
    /// The last receive filled the lane's buffer, so more may follow.
    pub(crate) is_large: bool,
    /// The sender's end of stream is behind the readable bytes.
    pub(crate) is_read_closed: bool,
    /// The sender has closed its side.
    pub(crate) has_ended: bool,
    /// The receiver accepts no more for now.
    pub(crate) is_full: bool,
    /// EOF was passed to the receiver.
    pub(crate) is_over: bool,
}

/// The progress of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// It waits for one of its ends.
    Waits,
    /// There is more to move than its turn allows.
    More,
    Broken,
}

impl Direction {
    pub(crate) fn go(&mut self, lane: &Lane, from: GuestKey, to: GuestKey) -> Progress {
        for _ in 0..MOVES_PER_CALL {
            if self.is_over || (self.is_full && self.has_something()) {
                return Progress::Waits;
            }
            let moved = if !self.held.is_empty() {
                let moved = lane.send(to, &self.held);
                if let Moved::Bytes(sent) = moved {
                    self.held.advance(sent);
                }
                moved
            } else if let Some(pipe) = &mut self.pipe {
                let moved = lane.send_pipe(to, pipe);
                if pipe.bytes() == 0 {
                    self.pipe = None;
                }
                moved
            } else if self.has_ended {
                lane.shut_down(to);
                self.is_over = true;
                return Progress::Waits;
            } else if self.is_readable {
                match self.take(lane, from, to) {
                    Progress::More => continue,
                    progress => return progress,
                }
            } else {
                return Progress::Waits;
            };
            match moved {
                Moved::Bytes(_) => {}
                Moved::WouldBlock => self.is_full = true,
                Moved::Broken => return Progress::Broken,
            }
        }
        Progress::More
    }

    fn take(&mut self, lane: &Lane, from: GuestKey, to: GuestKey) -> Progress {
        match self.is_large && lane.has_pipe(from) && lane.has_pipe(to) {
            true => self.take_into_pipe(lane, from),
            false => self.copy(lane, from, to),
        }
    }

    /// Receives and sends at once: two system calls. A pipe takes three, and two descriptors.
    fn copy(&mut self, lane: &Lane, from: GuestKey, to: GuestKey) -> Progress {
        let mut buffer = lane.buffer();
        match lane.receive(from, &mut buffer) {
            Moved::Bytes(0) => self.has_ended = true,
            Moved::Bytes(count) => {
                self.is_large = count == buffer.len();
                // A short read emptied the socket: at most the end of stream can still follow.
                self.is_readable = self.is_large || self.is_read_closed;
                let bytes = buffer.get(..count).unwrap_or_default();
                let sent = match lane.send(to, bytes) {
                    Moved::Bytes(sent) => sent,
                    Moved::WouldBlock => 0,
                    Moved::Broken => return Progress::Broken,
                };
                self.held = Bytes::copy_from_slice(bytes.get(sent..).unwrap_or_default());
            }
            Moved::WouldBlock => {
                self.is_readable = false;
                return Progress::Waits;
            }
            Moved::Broken => return Progress::Broken,
        }
        Progress::More
    }

    fn take_into_pipe(&mut self, lane: &Lane, from: GuestKey) -> Progress {
        let Ok(mut pipe) = lane.pipe() else { return Progress::Broken };
        match lane.fill_pipe(from, &mut pipe, PIPE_BYTES) {
            Moved::Bytes(0) => self.has_ended = true,
            Moved::Bytes(_) => self.pipe = Some(pipe),
            Moved::WouldBlock => {
                self.is_readable = false;
                self.is_large = false;
                return Progress::Waits;
            }
            Moved::Broken => return Progress::Broken,
        }
        Progress::More
    }

    fn has_something(&self) -> bool {
        self.pipe.is_some() || !self.held.is_empty()
    }
}

impl Tunnel {
    /// The client's end.
    pub(crate) fn client(&self) -> GuestKey {
        self.client
    }
}
