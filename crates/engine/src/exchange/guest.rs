//! Sockets of services in the worker's lane: upstream connections, subscribers, and HTTP/2 streams that have
//! left HTTP.
//!
//! A guest is an entry with a socket and its owner, registered once, edge-triggered. The owner is called in the turn
//! in which the socket became ready, without a task and without the runtime.

use std::rc::Rc;

use flatout_lane::clock::Ticks;
use flatout_lane::poll::Ready;
use flatout_lane::slab::Key;

use crate::service::ExchangeKey;
use crate::transport::Transport;

/// Identifies one guest on its worker. After its removal it matches nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GuestKey(pub(crate) Key);

/// Owns guests.
pub trait Guests {
    /// Called with an event of a guest; `tag` is the one it was registered with. Runs on the worker's thread, within
    /// its turn: blocking here blocks every connection of the worker. A panic removes the guest.
    ///
    /// Readiness is edge-triggered: it comes again only after a receive or send has found nothing more to move.
    fn ready(&self, guest: GuestKey, tag: u64, event: GuestEvent);
}

/// An event of a guest.
#[derive(Debug, Clone, Copy)]
pub enum GuestEvent {
    /// Its socket can be read or written, or has failed.
    Socket(Ready),
    /// An attached exchange has room for more of its body.
    Room(ExchangeKey),
    /// There is body data to [pull](crate::Lane::pull) from an attached exchange. Reported again only after a pull
    /// has found nothing.
    Body(ExchangeKey),
    /// An attached exchange has ended: sent, or its client is gone.
    Gone(ExchangeKey),
    /// It asked to be [called again](crate::Lane::call_again).
    Again,
    /// The time set by [`Lane::set_deadline`](crate::Lane::set_deadline) has passed.
    Deadline,
    /// The server drains: owners of client connections say goodbye. Reported once, to existing guests.
    Draining,
}

/// A guest's entry.
pub(crate) struct Guest {
    pub(crate) link: GuestTransport,
    pub(crate) owner: Rc<dyn Guests>,
    pub(crate) tag: u64,
    pub(crate) deadline: Option<Ticks>,
}

/// A quiet subscriber is a guest and little else.
const _: () = assert!(size_of::<Guest>() <= 48);

/// What a guest's bytes go over.
pub(crate) enum GuestTransport {
    Socket(Transport),
    Stream(StreamLink),
    /// Nothing: the guest only hears of its exchange.
    None,
}

/// An HTTP/2 stream, by the key of its exchange. The guest sends the response's content, and receives the
/// request's content if that is pulled.
#[derive(Clone, Copy)]
pub(crate) struct StreamLink([u32; 2]);

impl StreamLink {
    pub(crate) fn new(key: ExchangeKey) -> StreamLink {
        let bits = key.0.to_u64();
        // In halves, because a key by itself would make every guest longer.
        StreamLink([(bits >> 32) as u32, bits as u32])
    }

    pub(crate) fn key(self) -> ExchangeKey {
        let StreamLink([high, low]) = self;
        ExchangeKey(Key::from_u64(u64::from(high) << 32 | u64::from(low)))
    }
}

impl GuestTransport {
    /// The socket, where it is one.
    pub(crate) fn transport(&mut self) -> Option<&mut Transport> {
        match self {
            GuestTransport::Socket(transport) => Some(transport),
            GuestTransport::Stream(_) | GuestTransport::None => None,
        }
    }
}
