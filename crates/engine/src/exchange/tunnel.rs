//! A tunnel between two guests: bytes in both directions, small amounts by copying, the rest through pipes.

use bytes::{Buf, Bytes};
use flatout_lane::poll::Ready;
use flatout_lane::socket::Moved;

use super::guest::GuestKey;
use super::lane::Lane;
use super::pipes::{PIPE_BYTES, PooledPipe};

/// Moves in one direction before others get their turn.
const MOVES_PER_CALL: usize = 8;

/// Two guests that are joined until both have closed their sides (RFC 9110, section 9.3.6).
pub struct Tunnel {
    first: Direction,
    second: Direction,
}

/// What was received from one end of a tunnel before it was made, and what is known of its socket.
#[derive(Debug, Default)]
pub struct TunnelEnd {
    /// Bytes for the other end.
    pub received: Bytes,
    /// There may be more to receive.
    pub is_readable: bool,
    /// Its end of stream is behind the readable bytes.
    pub is_read_closed: bool,
}

/// The result of moving bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TunnelProgress {
    /// It waits for one of its ends.
    Waits,
    /// There is more to move than its turn allows: it has to be called again.
    More,
    /// Both ends are done, or one is broken.
    Over,
}

/// One direction.
struct Direction {
    from: GuestKey,
    to: GuestKey,
    /// Received bytes that were not sent; initially those that arrived before the tunnel was made.
    held: Bytes,
    /// Bytes received by `splice` that were not sent; `None` if there are none.
    pipe: Option<PooledPipe>,
    is_readable: bool,
    /// The last receive filled the lane's buffer, so more may follow.
    is_large: bool,
    /// The sender's end of stream is behind the readable bytes.
    is_read_closed: bool,
    /// The sender has closed its side.
    has_ended: bool,
    /// The receiver accepts no more for now.
    is_full: bool,
    /// EOF was passed to the receiver.
    is_over: bool,
    /// Bytes that the receiver's socket has accepted.
    moved_bytes: u64,
}

impl Tunnel {
    /// Joins two guests.
    pub fn new(first: (GuestKey, TunnelEnd), second: (GuestKey, TunnelEnd)) -> Tunnel {
        let ((first, of_first), (second, of_second)) = (first, second);
        Tunnel {
            first: Direction::new(first, second, of_first),
            second: Direction::new(second, first, of_second),
        }
    }

    /// The first guest.
    pub fn first(&self) -> GuestKey {
        self.first.from
    }

    /// Bytes that were passed on so far: from the first guest to the second, and back.
    pub fn moved_bytes(&self) -> (u64, u64) {
        (self.first.moved_bytes, self.second.moved_bytes)
    }

    /// The second guest.
    pub fn second(&self) -> GuestKey {
        self.second.from
    }

    /// An event of the socket of the first guest, or of the second; without one the guest was called again. Then moves bytes.
    pub fn ready(&mut self, lane: &Lane, is_first: bool, ready: Option<Ready>) -> TunnelProgress {
        let (from, to) = match is_first {
            true => (&mut self.first, &mut self.second),
            false => (&mut self.second, &mut self.first),
        };
        match ready {
            Some(ready) => {
                from.is_read_closed |= ready.read_closed() || ready.hung_up();
                from.is_readable |= ready.readable() || from.is_read_closed;
                to.is_full &= !ready.writable();
                // All that it sent was passed on, and it receives nothing more.
                if ready.hung_up() && from.is_over {
                    return TunnelProgress::Over;
                }
            }
            // No event reports the end of stream that TLS holds.
            None => from.is_readable = true,
        }
        self.go(lane)
    }

    /// Moves bytes in both directions.
    pub fn go(&mut self, lane: &Lane) -> TunnelProgress {
        let moved = [self.first.go(lane), self.second.go(lane)];
        if self.first.is_over && self.second.is_over || moved.contains(&TunnelProgress::Over) {
            return TunnelProgress::Over;
        }
        match moved.contains(&TunnelProgress::More) {
            true => TunnelProgress::More,
            false => TunnelProgress::Waits,
        }
    }
}

impl Direction {
    fn new(from: GuestKey, to: GuestKey, end: TunnelEnd) -> Direction {
        Direction {
            from,
            to,
            held: end.received,
            pipe: None,
            is_readable: end.is_readable,
            is_large: false,
            is_read_closed: end.is_read_closed,
            has_ended: false,
            is_full: false,
            is_over: false,
            moved_bytes: 0,
        }
    }

    /// `Over`: an end is broken.
    fn go(&mut self, lane: &Lane) -> TunnelProgress {
        for _ in 0..MOVES_PER_CALL {
            if self.is_over || (self.is_full && self.has_something()) {
                return TunnelProgress::Waits;
            }
            let moved = if !self.held.is_empty() {
                let moved = lane.send(self.to, &self.held);
                if let Moved::Bytes(sent) = moved {
                    self.held.advance(sent);
                }
                moved
            } else if let Some(pipe) = &mut self.pipe {
                let moved = lane.send_pipe(self.to, pipe);
                if pipe.bytes() == 0 {
                    self.pipe = None;
                }
                moved
            } else if self.has_ended {
                lane.shut_down(self.to);
                self.is_over = true;
                return TunnelProgress::Waits;
            } else if self.is_readable {
                match self.take(lane) {
                    TunnelProgress::More => continue,
                    progress => return progress,
                }
            } else {
                return TunnelProgress::Waits;
            };
            match moved {
                Moved::Bytes(sent) => self.moved_bytes += sent as u64,
                Moved::WouldBlock => self.is_full = true,
                Moved::Broken => return TunnelProgress::Over,
            }
        }
        TunnelProgress::More
    }

    fn take(&mut self, lane: &Lane) -> TunnelProgress {
        match self.is_large && lane.has_pipe(self.from) && lane.has_pipe(self.to) {
            true => self.take_into_pipe(lane),
            false => self.copy(lane),
        }
    }

    /// Receives and sends at once: two system calls. A pipe takes three, and two descriptors.
    fn copy(&mut self, lane: &Lane) -> TunnelProgress {
        let mut buffer = lane.buffer();
        match lane.receive(self.from, &mut buffer) {
            Moved::Bytes(0) => self.has_ended = true,
            Moved::Bytes(count) => {
                self.is_large = count == buffer.len();
                // A short read emptied the socket: at most the end of stream can still follow.
                self.is_readable = self.is_large || self.is_read_closed;
                let bytes = buffer.get(..count).unwrap_or_default();
                let sent = match lane.send(self.to, bytes) {
                    Moved::Bytes(sent) => sent,
                    Moved::WouldBlock => 0,
                    Moved::Broken => return TunnelProgress::Over,
                };
                self.moved_bytes += sent as u64;
                self.held = Bytes::copy_from_slice(bytes.get(sent..).unwrap_or_default());
            }
            Moved::WouldBlock => {
                self.is_readable = false;
                return TunnelProgress::Waits;
            }
            Moved::Broken => return TunnelProgress::Over,
        }
        TunnelProgress::More
    }

    fn take_into_pipe(&mut self, lane: &Lane) -> TunnelProgress {
        let Ok(mut pipe) = lane.pipe() else { return TunnelProgress::Over };
        match lane.fill_pipe(self.from, &mut pipe, PIPE_BYTES) {
            Moved::Bytes(0) => self.has_ended = true,
            Moved::Bytes(_) => self.pipe = Some(pipe),
            Moved::WouldBlock => {
                self.is_readable = false;
                self.is_large = false;
                return TunnelProgress::Waits;
            }
            Moved::Broken => return TunnelProgress::Over,
        }
        TunnelProgress::More
    }

    fn has_something(&self) -> bool {
        self.pipe.is_some() || !self.held.is_empty()
    }
}
