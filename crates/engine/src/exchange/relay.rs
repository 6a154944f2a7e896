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

use super::guest::{GuestEvent, GuestKey, Guests};
use super::lane::Lane;
use super::tunnel::{Tunnel, TunnelEnd, TunnelProgress};
use crate::transport::Transport;

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
    let end = TunnelEnd { is_readable: true, ..TunnelEnd::default() };
    let tunnel = Tunnel::new((outer, end), (inner, TunnelEnd::default()));
    *relay.state.borrow_mut() = Some((tunnel, permit));
    lane.call_again(outer);
    Ok(outside.into())
}

struct Relay {
    lane: Lane,
    /// The tunnel, and the permit of the client's connection; `None` after the end.
    state: RefCell<Option<(Tunnel, Rc<dyn Any>)>>,
}

impl Guests for Relay {
    fn ready(&self, _: GuestKey, tag: u64, event: GuestEvent) {
        let mut state = self.state.borrow_mut();
        let Some((tunnel, _)) = state.as_mut() else { return };
        let progress = match event {
            GuestEvent::Socket(ready) => tunnel.ready(&self.lane, tag == OUTER, Some(ready)),
            GuestEvent::Again => tunnel.ready(&self.lane, tag == OUTER, None),
            _ => tunnel.go(&self.lane),
        };
        match progress {
            TunnelProgress::Waits => {}
            TunnelProgress::More => self.lane.call_again(tunnel.first()),
            TunnelProgress::Over => {
                self.lane.remove(tunnel.first());
                self.lane.remove(tunnel.second());
                *state = None;
            }
        }
    }
}
