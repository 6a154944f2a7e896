//! Encrypted connections and HTTP/2 streams that leave HTTP: the new owner gets a plain socket, and the
//! worker encrypts or frames its data.
//!
//! ```text
//! client ── TLS or HTTP/2 ── outer guest │ inner guest ── socket pair ── the new owner
//! ```

use std::any::Any;
use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::rc::Rc;

use flatout_lane::socket::Moved;

use super::guest::{GuestEvent, GuestKey, Guests};
use super::lane::Lane;
use crate::transport::Transport;

/// Moves in one direction before others get their turn.
const MOVES_PER_CALL: usize = 8;

/// Guests' tags: the client's connection, and our end of the pair.
const OUTER: u64 = 0;
const INNER: u64 = 1;

/// Connects an encrypted connection to a plain socket, which is returned. `permit` is held while the two are connected.
///
/// # Errors
/// The kernel's: no descriptors, no memory.
pub(crate) fn relay(lane: &Lane, transport: Transport, permit: Rc<dyn Any>) -> io::Result<OwnedFd> {
    bridge(lane, permit, |lane, owner, tag| lane.add_guest(transport, owner, tag))
}

/// The same with whatever `enter` puts into the lane.
///
/// # Errors
/// As [`relay`], and those of `enter`.
pub(crate) fn bridge(
    lane: &Lane,
    permit: Rc<dyn Any>,
    enter: impl FnOnce(&Lane, Rc<dyn Guests>, u64) -> io::Result<GuestKey>,
) -> io::Result<OwnedFd> {
    let (inner, outside) = UnixStream::pair()?;
    inner.set_nonblocking(true)?;
    outside.set_nonblocking(true)?;
    let relay = Rc::new(Relay { lane: lane.clone(), state: RefCell::default() });
    let outer = enter(lane, relay.clone(), OUTER)?;
    let inner = lane.register(inner.into(), relay.clone(), INNER).inspect_err(|_| lane.remove(outer))?;
    // Data that the client has already sent may have been read with the request, and is in the transport.
    let inward = Way { is_readable: true, ..Way::new(outer, inner) };
    let ways = Ways { inward, outward: Way::new(inner, outer), _permit: permit };
    *relay.state.borrow_mut() = Some(ways);
    lane.call_again(outer);
    Ok(outside.into())
}

struct Relay {
    lane: Lane,
    /// `None` after the end.
    state: RefCell<Option<Ways>>,
}

struct Ways {
    inward: Way,
    outward: Way,
    _permit: Rc<dyn Any>,
}

/// One direction.
struct Way {
    from: GuestKey,
    to: GuestKey,
    /// Received bytes that were not sent, at most a buffer full.
    held: Vec<u8>,
    is_readable: bool,
    /// The sender has closed its side.
    has_ended: bool,
    /// The receiver accepts no more for now.
    is_full: bool,
    /// The receiver was notified of the end.
    is_over: bool,
}

/// The result of moving bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RelayProgress {
    Waits,
    More,
    Broken,
}

impl Way {
    fn new(from: GuestKey, to: GuestKey) -> Way {
        Way {
            from,
            to,
            held: Vec::new(),
            is_readable: false,
            has_ended: false,
            is_full: false,
            is_over: false,
        }
    }

    fn go(&mut self, lane: &Lane) -> RelayProgress {
        for _ in 0..MOVES_PER_CALL {
            if self.is_over || (self.is_full && !self.held.is_empty()) {
                return RelayProgress::Waits;
            }
            if !self.held.is_empty() {
                let held = std::mem::take(&mut self.held);
                if !self.send(lane, &held) {
                    return RelayProgress::Broken;
                }
            } else if self.has_ended {
                lane.shut_down(self.to);
                self.is_over = true;
            } else if self.is_readable {
                let mut buffer = lane.buffer();
                match lane.receive(self.from, &mut buffer) {
                    Moved::Bytes(0) => self.has_ended = true,
                    Moved::Bytes(count) => {
                        if !self.send(lane, buffer.get(..count).unwrap_or_default()) {
                            return RelayProgress::Broken;
                        }
                    }
                    Moved::WouldBlock => self.is_readable = false,
                    Moved::Broken => return RelayProgress::Broken,
                }
            } else {
                return RelayProgress::Waits;
            }
        }
        RelayProgress::More
    }

    /// Sends bytes, and holds what is not accepted. Returns whether the receiver is still open.
    fn send(&mut self, lane: &Lane, bytes: &[u8]) -> bool {
        let sent = match lane.send(self.to, bytes) {
            Moved::Bytes(sent) => sent,
            Moved::WouldBlock => 0,
            Moved::Broken => return false,
        };
        self.held = bytes.get(sent..).unwrap_or_default().to_vec();
        self.is_full = !self.held.is_empty();
        true
    }
}

impl Guests for Relay {
    fn ready(&self, _: GuestKey, tag: u64, event: GuestEvent) {
        let mut state = self.state.borrow_mut();
        let Some(ways) = state.as_mut() else { return };
        let (from, to) = match tag {
            OUTER => (&mut ways.inward, &mut ways.outward),
            _ => (&mut ways.outward, &mut ways.inward),
        };
        let mut is_gone = false;
        if let GuestEvent::Socket(ready) = event {
            from.is_readable |= ready.readable() || ready.hung_up();
            to.is_full &= !ready.writable();
            is_gone = ready.hung_up();
        }
        let moved = [ways.inward.go(&self.lane), ways.outward.go(&self.lane)];
        // One side is closed in both directions, and all that it sent was passed on.
        let is_left = is_gone && if tag == OUTER { ways.inward.is_over } else { ways.outward.is_over };
        let is_over = ways.inward.is_over && ways.outward.is_over;
        if is_over || is_left || moved.contains(&RelayProgress::Broken) {
            self.lane.remove(ways.inward.from);
            self.lane.remove(ways.inward.to);
            *state = None;
        } else if moved.contains(&RelayProgress::More) {
            self.lane.call_again(ways.inward.from);
        }
    }
}
