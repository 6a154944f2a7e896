//! A socket as the crate `h2` uses it: a step moves a few pieces, of drawn sizes, and nobody is woken; whoever owns the connection polls it
//! again.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::frames::Window;
use crate::socket::{Received, Sent, Socket};
use crate::trace::{Actor, Event};
use crate::world::Shared;

/// Receives and sends of one step: at first, and of a connection on which much has come already.
const MOVES_PER_STEP: u8 = 3;
const MOVES_LATER: u8 = 32;

/// The socket, and what is drawn for it.
pub(crate) struct Wire {
    pub(crate) socket: Socket,
    pub(crate) random: fastrand::Rng,
    /// Moves that are left to this step.
    pub(crate) moves_left: u8,
    pub(crate) is_silent: bool,
    pub(crate) is_deaf: bool,
    /// The other side sends nothing more.
    has_ended: bool,
    pub(crate) events: Vec<Event>,
    /// Bytes that were received before.
    pub(crate) first: Vec<u8>,
    /// Of the connection, in the direction in which this end sends.
    pub(crate) window: Window,
}

impl Wire {
    /// Draws how much the next step moves.
    pub(crate) fn draw_moves(&mut self, random: &mut fastrand::Rng) {
        self.moves_left = if self.socket.is_long() { MOVES_LATER } else { random.u8(1..=MOVES_PER_STEP) };
    }

    /// Whether all that was sent so far is on its way, and nothing waits to be received.
    pub(crate) fn is_through(&self) -> bool {
        !self.is_silent
            && !self.is_deaf
            && self.socket.is_plain()
            && !self.socket.is_full()
            && !self.has_ended
    }

    /// Reports what has happened since the last call. Returns whether anything has.
    pub(crate) fn report(&mut self, shared: &mut Shared<'_>, actor: Actor) -> bool {
        let events = std::mem::take(&mut self.events);
        let did = !events.is_empty();
        events.into_iter().for_each(|event| shared.event(actor, event));
        did
    }
}

impl Wire {
    /// `first` is what an upstream has received already: nothing for a client.
    pub(crate) fn new(socket: Socket, first: Vec<u8>, random: &mut fastrand::Rng) -> Rc<RefCell<Wire>> {
        let wire = Wire {
            socket,
            random: random.fork(),
            moves_left: 0,
            is_silent: false,
            is_deaf: false,
            has_ended: false,
            events: Vec::new(),
            window: Window::new(first.is_empty()),
            first,
        };
        Rc::new(RefCell::new(wire))
    }
}

/// The connection as the crate `h2` uses it.
pub(crate) struct Carrier(pub(crate) Rc<RefCell<Wire>>);

impl AsyncRead for Carrier {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut wire = self.0.borrow_mut();
        let wire = &mut *wire;
        if wire.moves_left == 0 || wire.is_deaf {
            return Poll::Pending;
        }
        if !wire.first.is_empty() {
            let count = wire.first.len().min(into.remaining());
            into.put_slice(&wire.first[..count]);
            wire.first.drain(..count);
            return Poll::Ready(Ok(()));
        }
        let room = wire.socket.draw_room(&mut wire.random);
        // A buffer that is nearly full would take a record of TLS byte by byte.
        let most = if wire.socket.is_plain() { room.min(into.remaining()) } else { room };
        let mut bytes = Vec::new();
        let received = wire.socket.receive(&mut bytes, most);
        wire.has_ended |= matches!(received, Received::End | Received::Reset);
        let event = match received {
            Received::Nothing => return Poll::Pending,
            Received::Bytes(count) => Event::Received(count),
            Received::End => Event::Closed,
            Received::Reset => Event::Reset,
        };
        wire.events.push(event);
        wire.moves_left -= 1;
        wire.window.received(&bytes);
        // TLS gives whole records.
        let rest = bytes.split_off(bytes.len().min(into.remaining()));
        wire.first = rest;
        if bytes.is_empty() && matches!(received, Received::Bytes(_)) {
            return Poll::Pending;
        }
        into.put_slice(&bytes);
        Poll::Ready(match received {
            Received::Reset => Err(io::ErrorKind::ConnectionReset.into()),
            _ => Ok(()),
        })
    }
}

impl AsyncWrite for Carrier {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut wire = self.0.borrow_mut();
        let wire = &mut *wire;
        if wire.moves_left == 0 || wire.is_silent {
            return Poll::Pending;
        }
        let count = wire.socket.draw_piece(&mut wire.random, bytes.len());
        match wire.socket.send(&bytes[..count]) {
            Sent::Full => Poll::Pending,
            // `h2` would not read any more, and responses that have come before the end would be lost.
            Sent::Broken if !wire.has_ended => {
                wire.moves_left -= 1;
                Poll::Ready(Ok(bytes.len()))
            }
            Sent::Broken => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            // Something else was sent: the handshake, or what was encrypted before.
            Sent::Bytes(0) => {
                wire.events.push(Event::Sent(0));
                wire.moves_left -= 1;
                Poll::Pending
            }
            Sent::Bytes(count) => {
                wire.window.sent(&bytes[..count]);
                wire.events.push(Event::Sent(count));
                wire.moves_left -= 1;
                Poll::Ready(Ok(count))
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.borrow_mut().socket.close_write();
        Poll::Ready(Ok(()))
    }
}
