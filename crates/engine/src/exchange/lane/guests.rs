//! Sockets of services in the worker's lane.

use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use flatout_lane::clock;
use flatout_lane::poll::{Ready, Token};
use flatout_lane::slab::Key;
use flatout_lane::socket::Moved;
use flatout_tls::{Channel, Shake};

use super::Lane;
use crate::exchange::entry::Outgoing;
use crate::exchange::guest::{Guest, GuestEvent, GuestKey, GuestTransport, Guests};
use crate::exchange::intake::Intake;
use crate::exchange::pipes::PooledPipe;
use crate::service::ExchangeKey;
use crate::transport::Transport;

impl Lane {
    /// Attaches a guest: it is notified when the exchange has room again, when there is body data to pull or a client
    /// that waits for someone to want its body, also if that was so before, and when the exchange has ended. Returns
    /// whether the exchange still exists.
    pub fn attach(&self, key: ExchangeKey, guest: GuestKey) -> bool {
        let mut exchanges = self.0.exchanges.borrow_mut();
        let Some(exchange) = exchanges.get_mut(key.0) else { return false };
        exchange.guest = Some(guest);
        // Nothing else reports data that came while the request waited, or whose notice another guest got.
        if let Some(pulled) = exchange.intake.as_mut().and_then(Intake::pulled)
            && (pulled.is_news_to_another() || pulled.awaits_pull())
        {
            self.0.again.borrow_mut().push((guest.0, GuestEvent::Body(key)));
        }
        true
    }

    /// Undoes [`Lane::attach`]: for a guest that is done with the exchange before it ends.
    pub fn detach(&self, key: ExchangeKey) {
        self.with(key.0, |exchange| exchange.guest = None);
    }

    /// Puts a socket into the lane; it must be non-blocking. `owner` is called with `tag` when it is ready, and at
    /// first for its current readiness. Costs one system call.
    ///
    /// # Errors
    /// The kernel's: no memory, or too many watches.
    pub fn register(&self, socket: OwnedFd, owner: Rc<dyn Guests>, tag: u64) -> io::Result<GuestKey> {
        self.add_guest(Transport::plain(socket), owner, tag)
    }

    /// The same with a TLS socket. Its owner is first called when the handshake has ended; [`Lane::outcome`] reports
    /// the result. Until then nothing can be sent.
    ///
    /// # Errors
    /// As [`Lane::register`].
    pub fn register_tls(&self, channel: Channel, owner: Rc<dyn Guests>, tag: u64) -> io::Result<GuestKey> {
        self.add_guest(Transport::tls(channel), owner, tag)
    }

    /// Adds a guest without a socket, which hears only of the exchange that it is [attached](Lane::attach) to, and what it asks
    /// for itself: to be [called again](Lane::call_again), a deadline. No system call.
    pub fn register_observer(&self, owner: Rc<dyn Guests>, tag: u64) -> GuestKey {
        let guest = Guest { link: GuestTransport::None, owner, tag, deadline: None };
        GuestKey(self.0.guests.borrow_mut().insert(guest))
    }

    pub(crate) fn add_guest(
        &self,
        transport: Transport,
        owner: Rc<dyn Guests>,
        tag: u64,
    ) -> io::Result<GuestKey> {
        let mut guests = self.0.guests.borrow_mut();
        let key =
            guests.insert(Guest { link: GuestTransport::Socket(transport), owner, tag, deadline: None });
        let added = match guests.get_mut(key).and_then(|guest| guest.link.transport()) {
            Some(transport) => transport.watch(&self.0.set, Token::Guest(key)),
            None => Ok(()),
        };
        if let Err(error) = added {
            let removed = guests.remove(key);
            drop(guests);
            drop(removed);
            return Err(error);
        }
        Ok(GuestKey(key))
    }

    /// Gives a guest to another owner, which is called with this tag from now on.
    pub fn give(&self, guest: GuestKey, owner: Rc<dyn Guests>, tag: u64) {
        let mut owner = owner;
        if let Some(guest) = self.0.guests.borrow_mut().get_mut(guest.0) {
            std::mem::swap(&mut guest.owner, &mut owner);
            guest.tag = tag;
        }
        // Outside of the borrow: dropping the owner may call the lane.
        drop(owner);
    }

    /// Closes a guest's socket. Data already sent to a stream still reaches its client. The key is invalid
    /// from now on.
    pub fn remove(&self, guest: GuestKey) {
        let removed = self.0.guests.borrow_mut().remove(guest.0);
        if let Some(Guest { link: GuestTransport::Stream(stream), .. }) = &removed {
            self.leave(stream.key());
        }
        // Outside of the borrow: an owner's own end may come by.
        drop(removed);
    }

    /// Takes a guest's socket out of the lane, such as for another process. `None`, and the guest stays, where it is encrypted or a
    /// stream: then there is more to it than a socket. One system call.
    pub fn take(&self, guest: GuestKey) -> Option<OwnedFd> {
        let mut guests = self.0.guests.borrow_mut();
        guests.get_mut(guest.0)?.link.transport().filter(|transport| transport.has_pipe())?;
        let Guest { link, owner, .. } = guests.remove(guest.0)?;
        drop(guests);
        // Outside of the borrow: dropping the owner may call the lane.
        drop(owner);
        let GuestTransport::Socket(transport) = link else { return None };
        // Another process may keep the socket open: then closing it here would not remove it from epoll.
        transport.unwatch(&self.0.set);
        match transport {
            Transport::Plain(socket) => Some(socket),
            Transport::Tls(_) => None,
        }
    }

    /// Calls the guest's owner again with [`GuestEvent::Again`](super::GuestEvent::Again), after everything that is
    /// ready now: for one that has used up its turn.
    pub fn call_again(&self, guest: GuestKey) {
        self.0.again.borrow_mut().push((guest.0, GuestEvent::Again));
    }

    /// Calls the guest's owner when this much time has passed, within a second; `None` removes the deadline.
    pub fn set_deadline(&self, guest: GuestKey, time: Option<Duration>) {
        if let Some(guest) = self.0.guests.borrow_mut().get_mut(guest.0) {
            guest.deadline = time.map(|time| self.0.now.get() + clock::ticks(time));
        }
    }

    /// The result of a guest's connection attempt, once its socket is writable or has failed. One system call.
    ///
    /// # Errors
    /// Why there is no connection.
    pub fn outcome(&self, guest: GuestKey) -> io::Result<()> {
        match self.0.guests.borrow_mut().get_mut(guest.0).map(|guest| &guest.link) {
            Some(GuestTransport::Socket(transport)) => transport.outcome(),
            Some(GuestTransport::Stream(_)) => Ok(()),
            Some(GuestTransport::None) | None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Receives from a guest's socket. One system call.
    pub fn receive(&self, guest: GuestKey, buffer: &mut [u8]) -> Moved {
        let stream = match self.0.guests.borrow_mut().get_mut(guest.0).map(|guest| &mut guest.link) {
            Some(GuestTransport::Socket(transport)) => {
                let moved = transport.receive(buffer);
                self.note_end(guest, transport, moved);
                return moved;
            }
            Some(GuestTransport::Stream(stream)) => *stream,
            Some(GuestTransport::None) | None => return Moved::Broken,
        };
        self.receive_from(guest, stream.key(), buffer)
    }

    /// Whether bytes go through a pipe without passing through the program: not where they are encrypted or framed.
    pub fn has_pipe(&self, guest: GuestKey) -> bool {
        let mut guests = self.0.guests.borrow_mut();
        let transport = guests.get_mut(guest.0).and_then(|guest| guest.link.transport());
        transport.is_some_and(|transport| transport.has_pipe())
    }

    /// The protocol negotiated with a guest's TLS peer (ALPN).
    pub fn protocol(&self, guest: GuestKey) -> Option<Vec<u8>> {
        let mut guests = self.0.guests.borrow_mut();
        let protocol = |channel: &mut Channel| channel.protocol().map(<[u8]>::to_vec);
        guests.get_mut(guest.0)?.link.transport()?.secured()?.with(protocol).flatten()
    }

    /// Sends to a guest's socket. One system call.
    pub fn send(&self, guest: GuestKey, bytes: &[u8]) -> Moved {
        let stream = match self.0.guests.borrow_mut().get_mut(guest.0).map(|guest| &mut guest.link) {
            Some(GuestTransport::Socket(transport)) => return transport.send(bytes),
            Some(GuestTransport::Stream(stream)) => *stream,
            Some(GuestTransport::None) | None => return Moved::Broken,
        };
        self.send_to(stream.key(), bytes.len(), |count| {
            Bytes::copy_from_slice(bytes.get(..count).unwrap_or_default())
        })
    }

    /// The same with bytes that others are sent too: a stream keeps what waits without a copy.
    pub fn send_shared(&self, guest: GuestKey, bytes: &Bytes) -> Moved {
        let stream = match self.0.guests.borrow_mut().get_mut(guest.0).map(|guest| &mut guest.link) {
            Some(GuestTransport::Socket(transport)) => return transport.send(bytes),
            Some(GuestTransport::Stream(stream)) => *stream,
            Some(GuestTransport::None) | None => return Moved::Broken,
        };
        self.send_to(stream.key(), bytes.len(), |count| bytes.slice(..count))
    }

    /// Sends slices to a guest's socket. One system call.
    pub fn send_slices(&self, guest: GuestKey, slices: &[IoSlice<'_>]) -> Moved {
        let stream = match self.0.guests.borrow_mut().get_mut(guest.0).map(|guest| &mut guest.link) {
            Some(GuestTransport::Socket(transport)) => return transport.send_slices(slices, false),
            Some(GuestTransport::Stream(stream)) => *stream,
            Some(GuestTransport::None) | None => return Moved::Broken,
        };
        let whole = Bytes::from(slices.iter().map(|slice| &**slice).collect::<Vec<&[u8]>>().concat());
        self.send_to(stream.key(), whole.len(), |count| whole.slice(..count))
    }

    /// Receives from a guest's socket into a pipe, by `splice` where it can be. One system call. A stream has no way to do that.
    pub fn fill_pipe(&self, guest: GuestKey, pipe: &mut PooledPipe, bytes: usize) -> Moved {
        let Some(pipe) = pipe.pipe() else { return Moved::Broken };
        self.with_guest(guest, |transport| {
            let moved = transport.fill_pipe(pipe, bytes);
            self.note_end(guest, transport, moved);
            moved
        })
    }

    /// Sends the contents of a pipe to a guest's socket, by `splice` if possible. One system call. Not
    /// supported for streams.
    pub fn send_pipe(&self, guest: GuestKey, pipe: &mut PooledPipe) -> Moved {
        let Some(pipe) = pipe.pipe() else { return Moved::Broken };
        self.with_guest(guest, |transport| transport.send_pipe(pipe, usize::MAX, false))
    }

    /// Shuts down the sending side of a guest's socket.
    pub fn shut_down(&self, guest: GuestKey) {
        let stream = match self.0.guests.borrow_mut().get_mut(guest.0).map(|guest| &mut guest.link) {
            Some(GuestTransport::Socket(transport)) => return transport.shut_down(),
            Some(GuestTransport::Stream(stream)) => *stream,
            Some(GuestTransport::None) | None => return,
        };
        self.send_item(stream.key(), Outgoing::End(Vec::new()));
    }

    /// Ends the connection of a guest if its peer acknowledges nothing for this time (`TCP_USER_TIMEOUT`).
    /// One system call.
    pub fn give_up_after(&self, guest: GuestKey, time: Duration) {
        let stream = match self.0.guests.borrow_mut().get_mut(guest.0).map(|guest| &mut guest.link) {
            Some(GuestTransport::Socket(transport)) => return transport.give_up_after(time),
            Some(GuestTransport::Stream(stream)) => *stream,
            Some(GuestTransport::None) | None => return,
        };
        self.send_item(stream.key(), Outgoing::GiveUpAfter(time));
    }

    /// No event reports an end that was already received: the guest's owner is called for it after everything that is
    /// ready now.
    #[inline]
    fn note_end(&self, guest: GuestKey, transport: &Transport, moved: Moved) {
        if transport.holds_end() && matches!(moved, Moved::Bytes(1..)) {
            self.call_again(guest);
        }
    }

    fn with_guest(&self, guest: GuestKey, act: impl FnOnce(&mut Transport) -> Moved) -> Moved {
        match self.0.guests.borrow_mut().get_mut(guest.0).and_then(|guest| guest.link.transport()) {
            Some(transport) => act(transport),
            None => Moved::Broken,
        }
    }

    /// Whom to call for a guest, and with what. `None` if the event only concerns its handshake.
    pub(crate) fn owner(&self, key: Key, event: GuestEvent) -> Option<(Rc<dyn Guests>, u64, GuestEvent)> {
        let mut guests = self.0.guests.borrow_mut();
        let guest = guests.get_mut(key)?;
        let event = match (&mut guest.link, event) {
            // Of a connection that was not made, the kernel knows why.
            (GuestTransport::Socket(transport), GuestEvent::Socket(ready))
                if transport.is_handshaking() && !ready.broken() =>
            {
                match transport.shake() {
                    Shake::GoesOn => return None,
                    // Whatever this event was, there may be data to read now, and there is room to send.
                    Shake::Done | Shake::Failed => GuestEvent::Socket(ready.and_all()),
                }
            }
            (GuestTransport::Socket(transport), GuestEvent::Again) if transport.holds_end() => {
                GuestEvent::Socket(Ready::end(key.to_u64()))
            }
            (GuestTransport::Stream(stream), event) => self.as_of_socket(key, stream.key(), event),
            (_, event) => event,
        };
        Some((guest.owner.clone(), guest.tag, event))
    }

    /// Guests in one of `slices` slices of the table whose deadline has passed; each is returned once.
    pub(crate) fn overdue(&self, now: clock::Ticks, slice: usize, slices: usize, into: &mut Vec<Key>) {
        let mut guests = self.0.guests.borrow_mut();
        let mut cursor = guests.slice(slice, slices);
        while let Some((key, guest)) = cursor.next(&guests) {
            if guest.deadline.is_some_and(|deadline| deadline <= now) {
                into.push(key);
                if let Some(guest) = guests.get_mut(key) {
                    guest.deadline = None;
                }
            }
        }
    }

    /// Guests to call, and with what.
    pub(crate) fn take_again(&self) -> Vec<(Key, GuestEvent)> {
        self.0.again.take()
    }

    /// Whether there are any.
    pub(crate) fn has_again(&self) -> bool {
        !self.0.again.borrow().is_empty()
    }

    /// All guests.
    pub(crate) fn guests(&self) -> Vec<Key> {
        self.0.guests.borrow().iter().map(|(key, _)| key).collect()
    }

    /// How many guests there are.
    pub(crate) fn guests_count(&self) -> usize {
        self.0.guests.borrow().len()
    }
}
