//! The worker's interface for its services.

mod figures;
mod guests;
mod responses;

use std::cell::{Cell, RefCell, RefMut};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use bytes::Bytes;
use flatout_lane::clock;
use flatout_lane::poll::Set;
use flatout_lane::slab::{Key, Slab};
use flatout_wire::h1::Trailers;

use super::entry::{Exchange, Outgoing};
use super::guest::{Guest, GuestEvent, GuestKey};
use super::intake::Memory;
use super::mailbox::Mailbox;
use super::permits::Permits;
use super::pipes::{Pipes, PooledPipe};
use crate::plan::Limits;
use crate::service::{Announced, BodyFault, ConnectionPermit, ExchangeKey, Response};

/// Bytes of the buffer that all guests of a worker share.
const BUFFER_BYTES: usize = 64 << 10;

/// Sent responses that are kept to reuse their memory.
const RESPONSES_POOLED_MAX: usize = 64;

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
    /// Each further reference is a [`WorkerHold`].
    holds: Rc<()>,
    /// Memory of all collected request bodies of the server, and its limit.
    bodies: RefCell<(Arc<AtomicU64>, u64)>,
    /// The server's limit for one request body.
    body_bytes_max: Cell<u64>,
    /// The addresses in PROXY protocol headers; as many as there are connections with one.
    announced: RefCell<HashMap<Key, Rc<Announced>>>,
    /// The mailboxes of all workers.
    workers: Arc<[Mailbox]>,
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

/// Keeps a draining worker until this is dropped or the time of the drain is over: requests of other workers wait for something that
/// this one does.
pub struct WorkerHold(#[expect(dead_code, reason = "it is counted")] Rc<()>);

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
    pub(crate) fn new(set: Set, workers: Arc<[Mailbox]>) -> Lane {
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
            holds: Rc::default(),
            bodies: RefCell::new((Arc::default(), u64::MAX)),
            body_bytes_max: Cell::new(u64::MAX),
            announced: RefCell::default(),
            workers,
            set,
        }))
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

    /// The time since the head of a request arrived, within an eighth of a second.
    pub fn age(&self, key: ExchangeKey) -> Duration {
        let began = self.with(key.0, |exchange| exchange.began);
        began.map_or(Duration::ZERO, |began| clock::TICK * self.0.now.get().saturating_sub(began))
    }

    /// A permit for a connection that another process has accepted: while the permit exists, the connection counts among
    /// this server's. It does not count towards the limit per client address.
    pub fn connection_permit(&self) -> ConnectionPermit {
        self.0.permits.issue_inherited()
    }

    /// The addresses in a connection's PROXY protocol header.
    pub(crate) fn announced(&self, connection: Key) -> Option<Rc<Announced>> {
        self.0.announced.borrow().get(&connection).cloned()
    }

    pub(crate) fn announce(&self, connection: Key, announced: Rc<Announced>) {
        self.0.announced.borrow_mut().insert(connection, announced);
    }

    /// A connection ends, or gets another key.
    pub(crate) fn forget_announced(&self, connection: Key) -> Option<Rc<Announced>> {
        let mut announced = self.0.announced.borrow_mut();
        // Every connection ends here, few have such a header: `remove` would hash the key even if there is none.
        if announced.is_empty() {
            return None;
        }
        announced.remove(&connection)
    }

    /// Keeps this worker while it drains, although it may have no connection.
    pub fn hold_worker(&self) -> WorkerHold {
        WorkerHold(self.0.holds.clone())
    }

    /// Whether something keeps this worker while it drains.
    pub(crate) fn is_held(&self) -> bool {
        Rc::strong_count(&self.0.holds) > 1
    }

    /// The permits of this worker.
    pub(crate) fn permits(&self) -> &Rc<Permits> {
        &self.0.permits
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
}
