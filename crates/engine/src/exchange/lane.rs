//! The worker's interface for its services.

use std::cell::{Cell, RefCell, RefMut};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use flatout_lane::clock;
use flatout_lane::poll::{Ready, Set, Token};
use flatout_lane::slab::{Key, Slab};
use flatout_lane::socket::Moved;
use flatout_tls::{Channel, Shake};
use flatout_wire::Status;
use flatout_wire::h1::Trailers;

use super::entry::{Exchange, Outgoing};
use super::guest::{Guest, GuestEvent, GuestKey, GuestTransport, Guests};
use super::intake::{Intake, Memory};
use super::permits::Permits;
use super::pipes::{Pipes, PooledPipe};
use crate::plan::Limits;
use crate::service::{BodyFault, BoxError, ConnectionPermit, ExchangeKey, Filter, Response, Takeover};
use crate::transport::Transport;

/// Bytes of the buffer that all guests of a worker share.
const BUFFER_BYTES: usize = 64 << 10;

/// Sent responses that are kept to reuse their memory.
const RESPONSES_KEPT: usize = 64;

/// The worker's lane, for everything that runs on its thread: its service, its guests, its tasks. Cheap to clone.
/// Nothing is sent at once: the worker handles it before its turn ends.
#[derive(Clone)]
pub struct Lane(pub(super) Rc<Inner>);

pub(super) struct Inner {
    pub(super) exchanges: RefCell<Slab<Exchange>>,
    /// Exchanges to attend to; each is listed once.
    listed: RefCell<VecDeque<Key>>,
    pub(super) guests: RefCell<Slab<Guest>>,
    buffer: RefCell<Box<[u8]>>,
    pipes: Pipes,
    /// Sent responses, kept to reuse their memory.
    #[expect(clippy::vec_box, reason = "they come and go in their boxes")]
    responses: RefCell<Vec<Box<Response>>>,
    /// When the turn started.
    now: Cell<clock::Ticks>,
    /// Guests to call in the next turn, and with what.
    again: RefCell<Vec<(Key, GuestEvent)>>,
    permits: Rc<Permits>,
    /// Memory of all collected request bodies of the server, and its limit.
    bodies: RefCell<(Arc<AtomicU64>, u64)>,
    /// The server's limit for one request body.
    body_bytes_max: Cell<u64>,
    set: Set,
}

/// Memory for a request body, released when it is dropped.
pub struct BodyMemory(Memory);

impl BodyMemory {
    /// Takes this many bytes more. Returns whether the server had them.
    pub fn grow(&mut self, bytes: u64) -> bool {
        self.0.grow(bytes)
    }
}

/// The result of pushing a piece of a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Push {
    /// It will be sent.
    Accepted,
    /// It was not accepted: too much waits to be sent. An attached guest is notified when there is room.
    Full(Bytes),
    /// The exchange has ended.
    Gone,
}

/// The result of pulling a request's body.
#[derive(Debug)]
pub enum Pull {
    /// A piece of it.
    Data(Bytes),
    /// A piece of it in a pipe, which was not copied to user space.
    Pipe(PooledPipe),
    /// Its end, with the trailer fields of a chunked one.
    End(Trailers),
    /// It failed.
    Fault(BodyFault),
    /// Nothing yet. An attached guest is notified when there is data.
    Later,
    /// The exchange has ended, or its body cannot be pulled.
    Gone,
}

impl Lane {
    pub(crate) fn new(set: Set) -> Lane {
        Lane(Rc::new(Inner {
            exchanges: RefCell::default(),
            listed: RefCell::default(),
            guests: RefCell::default(),
            buffer: RefCell::new(Box::default()),
            pipes: Pipes::default(),
            responses: RefCell::default(),
            now: Cell::new(clock::now().ticks),
            again: RefCell::default(),
            permits: Rc::default(),
            bodies: RefCell::new((Arc::default(), u64::MAX)),
            body_bytes_max: Cell::new(u64::MAX),
            set,
        }))
    }

    /// Responds to a parked request. Returns whether it still exists. A second response is ignored.
    pub fn answer(&self, key: ExchangeKey, response: impl Into<Box<Response>>) -> bool {
        let mut response = response.into();
        // Data pushed before the response is encoded passes through it too.
        if let Some(filter) = response.take_filter() {
            self.set_filter(key.0, filter);
        }
        self.send_item(key, Outgoing::Answer(response))
    }

    /// Filters everything that is pushed to an exchange. The filter of a second response is ignored, like the
    /// response.
    pub(crate) fn set_filter(&self, key: Key, filter: Box<dyn Filter>) {
        let refused = self.with(key, |exchange| match exchange.filter {
            None => exchange.filter.replace(filter),
            Some(_) => Some(filter),
        });
        // Outside of the borrow: it belongs to a service.
        drop(refused);
    }

    /// Passes something through the exchange's filter; `None` without a filter.
    fn filtered(
        &self,
        key: ExchangeKey,
        act: impl FnOnce(&mut dyn Filter) -> Result<Bytes, BoxError>,
    ) -> Option<Result<Bytes, BoxError>> {
        let mut filter = self.with(key.0, |exchange| exchange.filter.take()).flatten()?;
        let made = act(&mut *filter);
        self.set_filter(key.0, filter);
        Some(made)
    }

    /// Whether what is pushed to this exchange passes through a filter.
    pub(crate) fn is_filtered(&self, key: ExchangeKey) -> bool {
        self.with(key.0, |exchange| exchange.filter.is_some()).unwrap_or(false)
    }

    /// Whether a body may go through a pipe to this exchange: its bytes are not changed, and there are no frames
    /// between them, as in HTTP/2.
    pub fn takes_pipes(&self, key: ExchangeKey) -> bool {
        self.with(key.0, |exchange| exchange.filter.is_none() && exchange.stream().is_none()).unwrap_or(true)
    }

    /// An empty response, reusing the memory of a sent one if possible: for services that respond by key often.
    pub fn response(&self) -> Box<Response> {
        self.0.responses.borrow_mut().pop().unwrap_or_default()
    }

    /// Keeps a response's memory for [`Lane::response`].
    pub(crate) fn give_back(&self, mut response: Box<Response>) {
        response.reset();
        let mut kept = self.0.responses.borrow_mut();
        if kept.len() < RESPONSES_KEPT {
            kept.push(response);
        }
    }

    /// Sends an interim response, such as 103; `fields` are complete field lines, trusted. Returns whether the
    /// exchange still exists. It is not sent to HTTP/1.0 clients, nor to a client for which too much is already
    /// waiting.
    pub fn inform(&self, key: ExchangeKey, status: Status, fields: &[u8]) -> bool {
        match self.with(key.0, |exchange| exchange.has_room()) {
            Some(true) => self.send_item(key, Outgoing::Inform(status, fields.to_vec())),
            has_room => has_room.is_some(),
        }
    }

    /// Adds a piece to the body of a response with [`Body::Pushed`](crate::Body::Pushed).
    pub fn push(&self, key: ExchangeKey, bytes: Bytes) -> Push {
        let mut exchanges = self.0.exchanges.borrow_mut();
        let Some(exchange) = exchanges.get_mut(key.0) else { return Push::Gone };
        if !exchange.has_room() {
            exchange.was_refused = true;
            return Push::Full(bytes);
        }
        if bytes.is_empty() {
            return Push::Accepted;
        }
        if exchange.filter.is_none() {
            exchange.enqueue(Outgoing::Data(bytes));
            self.list(key.0, exchange);
            return Push::Accepted;
        }
        drop(exchanges);
        match self.filtered(key, |filter| filter.piece(bytes)) {
            Some(Ok(bytes)) => self.enqueue_data(key, bytes),
            Some(Err(_)) => drop(self.cut(key)),
            None => {}
        }
        Push::Accepted
    }

    fn enqueue_data(&self, key: ExchangeKey, bytes: Bytes) {
        if !bytes.is_empty() {
            self.send_item(key, Outgoing::Data(bytes));
        }
    }

    /// The same with the content of a pipe; a pipe that was not accepted is returned.
    ///
    /// # Errors
    /// Too much waits to be sent, as in [`Push::Full`].
    pub fn push_pipe(&self, key: ExchangeKey, pipe: PooledPipe) -> Result<Push, PooledPipe> {
        let mut exchanges = self.0.exchanges.borrow_mut();
        let Some(exchange) = exchanges.get_mut(key.0) else { return Ok(Push::Gone) };
        if !exchange.has_room() {
            exchange.was_refused = true;
            return Err(pipe);
        }
        if pipe.bytes() > 0 {
            exchange.enqueue(Outgoing::Pipe(pipe));
            self.list(key.0, exchange);
        }
        Ok(Push::Accepted)
    }

    /// Whether [`Lane::push`] would accept something now; if not, an attached guest is notified when there is room.
    pub fn has_room(&self, key: ExchangeKey) -> bool {
        let mut exchanges = self.0.exchanges.borrow_mut();
        exchanges.get_mut(key.0).is_none_or(|exchange| {
            exchange.was_refused |= !exchange.has_room();
            exchange.has_room()
        })
    }

    /// Asks for a notice to the attached guest when the client has taken more, also if there is room now.
    pub fn tell_of_room(&self, key: ExchangeKey) {
        self.with(key.0, |exchange| exchange.was_refused = true);
    }

    /// Memory of the response that the client has not taken.
    pub fn unsent_bytes(&self, key: ExchangeKey) -> usize {
        let unsent = self.with(key.0, |exchange| exchange.outbox_bytes() + exchange.unsent_bytes);
        unsent.map_or(0, |unsent| usize::try_from(unsent).unwrap_or(usize::MAX))
    }

    /// The client's connection: requests with the same number share it. `None` if the exchange has ended.
    pub fn connection(&self, key: ExchangeKey) -> Option<u64> {
        self.with(key.0, |exchange| exchange.connection.to_u64())
    }

    /// Whether the request still waits for its response.
    pub fn is_open(&self, key: ExchangeKey) -> bool {
        self.with(key.0, |_| ()).is_some()
    }

    /// An empty pipe of this worker.
    ///
    /// # Errors
    /// The kernel's: no descriptors, or no memory.
    pub fn pipe(&self) -> io::Result<PooledPipe> {
        self.0.pipes.take()
    }

    /// Takes the next piece of a request's body that was planned to be [pulled](crate::BodyPlan::Pull).
    pub fn pull(&self, key: ExchangeKey) -> Pull {
        let mut exchanges = self.0.exchanges.borrow_mut();
        let Some(exchange) = exchanges.get_mut(key.0) else { return Pull::Gone };
        let Some(pulled) = exchange.intake.as_mut().and_then(Intake::pulled) else { return Pull::Gone };
        let (piece, goes_on) = pulled.next();
        if goes_on {
            exchange.reads_on = true;
            self.list(key.0, exchange);
        }
        piece
    }

    /// Ends such a body; `trailers` are complete field lines, trusted. Returns whether the exchange still exists.
    pub fn end(&self, key: ExchangeKey, trailers: &[u8]) -> bool {
        match self.filtered(key, |filter| filter.end()) {
            Some(Ok(bytes)) => self.enqueue_data(key, bytes),
            Some(Err(_)) => return self.cut(key),
            None => {}
        }
        self.send_item(key, Outgoing::End(trailers.to_vec()))
    }

    /// Aborts such a body: the client sees that it is incomplete.
    pub fn cut(&self, key: ExchangeKey) -> bool {
        self.send_item(key, Outgoing::Cut)
    }

    /// Takes the connection of a parked request without a body out of the lane, as
    /// [`Reply::Leave`](crate::Reply::Leave) does. `head` is the request's head, which the code that takes over gets again.
    /// A stream of HTTP/2 cannot leave, and is reset. Returns whether the exchange still exists.
    pub fn take_over(&self, key: ExchangeKey, head: &[u8], takeover: Takeover) -> bool {
        self.send_item(key, Outgoing::Leave(takeover, head.to_vec()))
    }

    /// Reserves memory for a request body that is collected by a service, from that of all bodies
    /// ([`Limits::bodies_memory_max`](crate::Limits::bodies_memory_max)).
    pub fn body_memory(&self) -> BodyMemory {
        let (all, bytes_max) = &*self.0.bodies.borrow();
        BodyMemory(Memory::none(all.clone(), *bytes_max))
    }

    /// The server's limit for one request body ([`Limits::body_bytes_max`](crate::Limits::body_bytes_max)), as it is now.
    pub fn body_bytes_max(&self) -> u64 {
        self.0.body_bytes_max.get()
    }

    /// Sets the limits of request bodies, and the memory of all.
    pub(crate) fn set_body_limits(&self, all: Arc<AtomicU64>, limits: &Limits) {
        *self.0.bodies.borrow_mut() = (all, limits.bodies_memory_max);
        self.0.body_bytes_max.set(limits.body_bytes_max);
    }

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

    /// Whether a request's body is [pulled](crate::BodyPlan::Pull), or was: then it is not part of the request.
    pub fn is_pulled(&self, key: ExchangeKey) -> bool {
        let is_pulled = |exchange: &mut Exchange| exchange.intake.as_mut().and_then(Intake::pulled).is_some();
        self.with(key.0, is_pulled).unwrap_or(false)
    }

    /// The time since the head of a request arrived, within an eighth of a second.
    pub fn age(&self, key: ExchangeKey) -> Duration {
        let began = self.with(key.0, |exchange| exchange.began);
        began.map_or(Duration::ZERO, |began| clock::TICK * self.0.now.get().saturating_sub(began))
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

    /// A permit for a connection that another process has accepted: while the permit exists, the connection counts among
    /// this server's. It does not count towards the limit per client address.
    pub fn seat(&self) -> ConnectionPermit {
        self.0.permits.issue_inherited()
    }

    /// The permits of this worker.
    pub(crate) fn permits(&self) -> &Rc<Permits> {
        &self.0.permits
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
            None => Err(io::ErrorKind::NotConnected.into()),
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
            None => return Moved::Broken,
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
            None => return Moved::Broken,
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
            None => return Moved::Broken,
        };
        self.send_to(stream.key(), bytes.len(), |count| bytes.slice(..count))
    }

    /// Sends slices to a guest's socket. One system call.
    pub fn send_slices(&self, guest: GuestKey, slices: &[IoSlice<'_>]) -> Moved {
        let stream = match self.0.guests.borrow_mut().get_mut(guest.0).map(|guest| &mut guest.link) {
            Some(GuestTransport::Socket(transport)) => return transport.send_slices(slices, false),
            Some(GuestTransport::Stream(stream)) => *stream,
            None => return Moved::Broken,
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
        self.with_guest(guest, |transport| transport.send_pipe(pipe, false))
    }

    /// Shuts down the sending side of a guest's socket.
    pub fn shut_down(&self, guest: GuestKey) {
        let stream = match self.0.guests.borrow_mut().get_mut(guest.0).map(|guest| &mut guest.link) {
            Some(GuestTransport::Socket(transport)) => return transport.shut_down(),
            Some(GuestTransport::Stream(stream)) => *stream,
            None => return,
        };
        self.send_item(stream.key(), Outgoing::End(Vec::new()));
    }

    /// Ends the connection of a guest if its peer acknowledges nothing for this time (`TCP_USER_TIMEOUT`).
    /// One system call.
    pub fn give_up_after(&self, guest: GuestKey, time: Duration) {
        let stream = match self.0.guests.borrow_mut().get_mut(guest.0).map(|guest| &mut guest.link) {
            Some(GuestTransport::Socket(transport)) => return transport.give_up_after(time),
            Some(GuestTransport::Stream(stream)) => *stream,
            None => return,
        };
        self.send_item(stream.key(), Outgoing::GiveUpAfter(time));
    }

    /// A receive buffer that all guests of this worker share; its content is undefined.
    ///
    /// # Panics
    /// If it is already borrowed.
    pub fn buffer(&self) -> RefMut<'_, [u8]> {
        RefMut::map(self.0.buffer.borrow_mut(), |buffer| {
            if buffer.is_empty() {
                *buffer = vec![0; BUFFER_BYTES].into_boxed_slice();
            }
            &mut **buffer
        })
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

    pub(super) fn send_item(&self, key: ExchangeKey, item: Outgoing) -> bool {
        let mut exchanges = self.0.exchanges.borrow_mut();
        let Some(exchange) = exchanges.get_mut(key.0) else { return false };
        exchange.enqueue(item);
        self.list(key.0, exchange);
        true
    }

    pub(super) fn list(&self, key: Key, exchange: &mut Exchange) {
        if !std::mem::replace(&mut exchange.is_listed, true) {
            self.0.listed.borrow_mut().push_back(key);
        }
    }

    /// Creates an exchange for a request of this connection.
    pub(crate) fn open(&self, mut exchange: Exchange) -> Key {
        exchange.began = self.0.now.get();
        self.0.exchanges.borrow_mut().insert(exchange)
    }

    /// Ends an exchange; an attached guest is notified by its key.
    pub(crate) fn close(&self, key: Key) -> Option<GuestKey> {
        let removed = self.0.exchanges.borrow_mut().remove(key)?;
        removed.guest
    }

    /// Accesses an exchange; no service code may be called or dropped meanwhile.
    pub(crate) fn with<T>(&self, key: Key, act: impl FnOnce(&mut Exchange) -> T) -> Option<T> {
        self.0.exchanges.borrow_mut().get_mut(key).map(act)
    }

    /// Whether any exchange waits for the worker.
    pub(crate) fn has_listed(&self) -> bool {
        !self.0.listed.borrow().is_empty()
    }

    /// The exchange that has waited longest for the worker; it may be listed again from now on.
    pub(crate) fn next_listed(&self) -> Option<Key> {
        let key = self.0.listed.borrow_mut().pop_front()?;
        self.with(key, |exchange| exchange.is_listed = false);
        Some(key)
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

    /// Drops everything: the worker has ended. Tasks and guests may hold the lane, and must not be held by it.
    pub(crate) fn clear(&self) {
        let guests = self.0.guests.take();
        let exchanges = self.0.exchanges.take();
        drop((guests, exchanges));
    }

    /// A turn starts.
    #[inline]
    pub(crate) fn set_now(&self, now: clock::Ticks) {
        self.0.now.set(now);
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

    /// Ready when the exchange has room, or has ended.
    pub(crate) fn poll_room(&self, key: ExchangeKey, context: &mut Context<'_>) -> Poll<()> {
        let mut exchanges = self.0.exchanges.borrow_mut();
        match exchanges.get_mut(key.0) {
            Some(exchange) if !exchange.has_room() => {
                exchange.room = Some(context.waker().clone());
                Poll::Pending
            }
            _ => Poll::Ready(()),
        }
    }
}
