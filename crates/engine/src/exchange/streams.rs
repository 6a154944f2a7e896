//! HTTP/2 streams that have left HTTP, as guests. A stream has the same interface as a socket, so that owners
//! of guests need not distinguish them.
//!
//! ```text
//! send ──> outbox ──> frames, as windows allow             Room ──> the socket can be written
//! receive <── intake <── DATA; credit for what was taken   Body ──> it can be read       Gone ──> it hung up
//! ```

use std::io;
use std::rc::Rc;

use bytes::Bytes;
use flatout_lane::poll::Ready;
use flatout_lane::slab::Key;
use flatout_lane::socket::Moved;

use super::entry::Outgoing;
use super::guest::{Guest, GuestEvent, GuestKey, GuestTransport, Guests, StreamLink};
use super::intake::Intake;
use super::lane::Lane;
use crate::service::{Carrier, CarrierKind, ExchangeKey};

impl Lane {
    /// Registers a connection that has left HTTP with the lane, as [`Lane::register`] does. A stream of
    /// HTTP/2 needs no descriptor. The owner of a stream is first called with [`GuestEvent::Again`], because
    /// data may have arrived already.
    ///
    /// # Errors
    /// As [`Lane::register`]; the stream is gone.
    pub fn enter(&self, carrier: Carrier, owner: Rc<dyn Guests>, tag: u64) -> io::Result<GuestKey> {
        let stream = match carrier.0 {
            CarrierKind::Socket(socket) => return self.register(socket, owner, tag),
            CarrierKind::Stream(stream) => stream,
        };
        let key = stream.keep().filter(|key| self.is_open(*key)).ok_or(io::ErrorKind::NotConnected)?;
        let link = GuestTransport::Stream(StreamLink::new(key));
        let guest = GuestKey(self.0.guests.borrow_mut().insert(Guest { link, owner, tag, deadline: None }));
        self.attach(key, guest);
        self.call_again(guest);
        Ok(guest)
    }

    /// The owner leaves a stream.
    pub(crate) fn leave(&self, key: ExchangeKey) {
        self.detach(key);
        self.send_item(key, Outgoing::Abandon);
    }

    /// Sends up to `bytes` bytes, as many as there is room for. `piece` returns that many.
    pub(super) fn send_to(
        &self,
        key: ExchangeKey,
        bytes: usize,
        piece: impl FnOnce(usize) -> Bytes,
    ) -> Moved {
        let mut exchanges = self.0.exchanges.borrow_mut();
        let Some(exchange) = exchanges.get_mut(key.0) else { return Moved::Broken };
        let count = exchange.room_bytes().min(bytes);
        exchange.was_refused |= count < bytes;
        if count == 0 {
            return if bytes == 0 { Moved::Bytes(0) } else { Moved::WouldBlock };
        }
        exchange.enqueue(Outgoing::Data(piece(count)));
        self.list(key.0, exchange);
        Moved::Bytes(count)
    }

    /// Receives from the request's content. If the request has none, it would always block.
    pub(super) fn receive_from(&self, guest: GuestKey, key: ExchangeKey, buffer: &mut [u8]) -> Moved {
        let mut exchanges = self.0.exchanges.borrow_mut();
        let Some(exchange) = exchanges.get_mut(key.0) else { return Moved::Broken };
        let Some(pulled) = exchange.intake.as_mut().and_then(Intake::pulled) else {
            return Moved::WouldBlock;
        };
        let (moved, goes_on) = pulled.receive(buffer);
        let has_end_behind = matches!(moved, Moved::Bytes(1..)) && pulled.is_at_end();
        if goes_on {
            exchange.reads_on = true;
            self.list(key.0, exchange);
        }
        if has_end_behind {
            // The end has no separate event.
            self.call_again(guest);
        }
        moved
    }

    /// Converts an event of a stream into the event of a socket.
    pub(super) fn as_of_socket(&self, guest: Key, stream: ExchangeKey, event: GuestEvent) -> GuestEvent {
        let token = guest.to_u64();
        let is_at_end = || {
            self.with(stream.0, |exchange| {
                exchange.intake.as_mut().and_then(Intake::pulled).is_some_and(|pulled| pulled.is_at_end())
            })
        };
        match event {
            GuestEvent::Room(_) => GuestEvent::Socket(Ready::to_write(token)),
            GuestEvent::Body(_) | GuestEvent::Again if is_at_end() == Some(true) => {
                GuestEvent::Socket(Ready::end(token))
            }
            GuestEvent::Body(_) => GuestEvent::Socket(Ready::to_read(token)),
            GuestEvent::Gone(_) => GuestEvent::Socket(Ready::gone(token)),
            event => event,
        }
    }
}
