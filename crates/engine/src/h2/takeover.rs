//! A stream whose response leaves HTTP: the code that takes it over gets a socket, and what it writes there is the content.
//!
//! ```text
//! client <── frames ── stream <── exchange <── guest │ socket pair <── whoever has taken it over
//! ```
//!
//! Nothing is read from the client: its request was complete, or its body is not needed.

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::rc::Rc;

use bytes::Bytes;
use flatout_lane::socket::Moved;
use tokio::task::spawn_local;

use crate::exchange::{GuestEvent, GuestKey, Guests, Lane, Push};
use crate::service::{ExchangeKey, Seat, Taken, Takeover};

/// Moves before others have their turn.
const MOVES_PER_CALL: usize = 8;

/// Bytes of one move.
const MOVE_BYTES: usize = 16 << 10;

/// Runs a takeover with a socket whose content is pushed to the exchange.
///
/// # Errors
/// The kernel's: no descriptors, no memory.
pub(super) fn take_over(
    lane: &Lane,
    key: ExchangeKey,
    peer: Option<SocketAddr>,
    takeover: Takeover,
) -> io::Result<()> {
    let (inner, socket) = UnixStream::pair()?;
    inner.set_nonblocking(true)?;
    socket.set_nonblocking(true)?;
    let relay = Rc::new(Relay { lane: lane.clone(), key, is_readable: Cell::default() });
    let guest = lane.register(inner.into(), relay, 0)?;
    lane.attach(key, guest);
    // The stream's connection is still in the lane, and counts there.
    let taken =
        Taken { socket: socket.into(), read: Bytes::new(), peer, is_direct: false, seat: Seat::none() };
    spawn_local(async move { takeover(taken).await });
    Ok(())
}

struct Relay {
    lane: Lane,
    key: ExchangeKey,
    is_readable: Cell<bool>,
}

impl Relay {
    fn go_on(&self, guest: GuestKey) {
        for _ in 0..MOVES_PER_CALL {
            // What finds no room stays in the socket, so that the writer is held back.
            if !self.is_readable.get() || !self.lane.has_room(self.key) {
                return;
            }
            let piece = {
                let mut buffer = self.lane.buffer();
                let most = buffer.len().min(MOVE_BYTES);
                let room = buffer.get_mut(..most).unwrap_or_default();
                match self.lane.receive(guest, room) {
                    Moved::Bytes(count) => {
                        Some(Bytes::copy_from_slice(room.get(..count).unwrap_or_default()))
                    }
                    Moved::WouldBlock => return self.is_readable.set(false),
                    Moved::Broken => None,
                }
            };
            match piece {
                Some(piece) if !piece.is_empty() => match self.lane.push(self.key, piece) {
                    Push::Taken => {}
                    // The exchange has ended, or another producer has used the room: the content cannot be completed.
                    Push::Full(_) | Push::Gone => return self.end(guest, false),
                },
                piece => return self.end(guest, piece.is_some()),
            }
        }
        self.lane.call_again(guest);
    }

    fn end(&self, guest: GuestKey, is_whole: bool) {
        self.lane.detach(self.key);
        match is_whole {
            true => self.lane.end(self.key, b""),
            false => self.lane.cut(self.key),
        };
        self.lane.remove(guest);
    }
}

impl Guests for Relay {
    fn ready(&self, guest: GuestKey, _: u64, event: GuestEvent) {
        match event {
            GuestEvent::Socket(ready) if ready.readable() || ready.hung_up() => self.is_readable.set(true),
            GuestEvent::Gone(_) => return self.lane.remove(guest),
            // The code that has taken it over is notified of the drain itself.
            _ => {}
        }
        self.go_on(guest);
    }
}
