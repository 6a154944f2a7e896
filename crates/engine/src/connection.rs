//! One connection: the state that the worker keeps between turns.
//!
//! An idle connection is this entry and nothing else: no buffer, no task, no exchange.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::num::NonZeroU16;

use flatout_lane::clock::Ticks;
use flatout_lane::slab::Key;
use flatout_wire::h1;

use crate::h2::Session;
use crate::output::{Pace, Queue};
use crate::record::{Origin, Record};
use crate::service::{SendRate, Takeover, Tls};
use crate::transport::Transport;

/// A connection in the lane.
pub(crate) struct Connection {
    pub(crate) transport: Transport,
    /// When to check it again.
    pub(crate) deadline: Ticks,
    /// Requests that it may still send.
    pub(crate) requests_left: u32,
    /// The number of its listener.
    pub(crate) listener: u16,
    /// What is still discarded before it is closed, after its last response; in units of
    /// `LINGER_UNIT_BYTES`.
    pub(crate) lingering: Option<NonZeroU16>,
    /// The socket may have bytes: there was an edge, and no short read since.
    pub(crate) readable: bool,
    /// The peer has closed its side; reads continue until they return the end.
    pub(crate) read_closed: bool,
    /// The client has announced that it sends nothing after the current request, which was completely read.
    pub(crate) client_closes: bool,
    /// It is on the worker's list of connections with more work.
    pub(crate) is_scheduled: bool,
    /// The HTTP/1 state machine.
    pub(crate) machine: h1::Server,
    /// The current request, unless it was answered at once.
    pub(crate) exchange: Option<Key>,
    /// Pending work; `None` while idle.
    pub(crate) work: Option<Box<Work>>,
    pub(crate) peer: Peer,
}

/// An idle connection must cost next to nothing: with its slot it takes 96 bytes.
const _: () = assert!(size_of::<Connection>() <= 88);

/// The pending work of a connection, or what it waits for.
#[derive(Default)]
pub(crate) struct Work {
    /// Received bytes that were not consumed.
    pub(crate) held: Vec<u8>,
    /// They are the start of a head, parsed so far.
    pub(crate) is_head_part: bool,
    /// The HTTP/2 session, if any; the HTTP/1 state machine is then closed.
    pub(crate) h2: Option<Box<Session>>,
    /// What the socket has not accepted.
    pub(crate) queue: Queue,
    /// Bytes received from or accepted by the kernel since the rate was last checked.
    pub(crate) moved_bytes: u64,
    /// When that was.
    pub(crate) judged_at: Ticks,
    /// Bytes that the peer had not acknowledged when the rate was last checked; `None` before the first check.
    pub(crate) unacknowledged_bytes: Option<u64>,
    /// Its request's body waits for memory.
    pub(crate) is_starved: bool,
    /// How much of the current response may be sent, if that is limited. Of HTTP/1: streams of HTTP/2 have their own.
    pub(crate) pace: Option<Box<Pace>>,
    /// It has something to send that its rate does not allow yet; the next tick continues.
    pub(crate) is_held_back: bool,
    /// The file that it sends is being read into memory.
    pub(crate) is_warming: bool,
    /// The body of the current response was cut: when everything was sent, the connection is aborted.
    pub(crate) is_cut: bool,
    /// Who gets the socket when everything was sent.
    pub(crate) takeover: Option<Takeover>,
    /// The request in hand, for [`Service::ended`](crate::Service::ended). Boxed, as is what few need: an idle connection of HTTP/2 keeps
    /// its work.
    pub(crate) open: Option<Box<Record>>,
    /// Requests whose responses are not wholly sent.
    pub(crate) unsent: Vec<Record>,
    /// A PROXY protocol header is to come first: nobody knows yet whose connection it is.
    pub(crate) proxy: Option<Box<PendingProxy>>,
    /// Its ClientHello is to come first: nobody knows yet whether TLS ends here.
    pub(crate) awaits_hello: bool,
    /// The code that takes over the decrypted stream after the handshake.
    pub(crate) inside: Option<Takeover>,
}

/// A connection made by a proxy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PendingProxy {
    /// The proxy.
    pub(crate) peer: Peer,
    /// Its header says who the client is; otherwise that is the proxy.
    pub(crate) is_trusted: bool,
    /// TLS follows the header.
    pub(crate) is_secure: bool,
    /// The name in the ClientHello after it decides who gets the connection.
    pub(crate) passes_tls: bool,
}

impl Connection {
    pub(crate) fn new(
        transport: Transport,
        peer: Option<SocketAddr>,
        listener: u16,
        deadline: Ticks,
        requests: u32,
    ) -> Connection {
        Connection {
            transport,
            deadline,
            requests_left: requests,
            listener,
            lingering: None,
            readable: false,
            read_closed: false,
            client_closes: false,
            is_scheduled: false,
            machine: h1::Server::default(),
            exchange: None,
            work: None,
            peer: Peer::of(peer),
        }
    }

    /// Where its requests come from.
    #[inline]
    pub(crate) fn origin(&self) -> Origin<'_> {
        let tls = self.transport.secured().map(Tls::of);
        Origin { peer: self.peer, tls, listener: self.listener }
    }

    /// Whether the client is not known yet: nothing may be parsed as a request.
    pub(crate) fn awaits_proxy_header(&self) -> bool {
        self.work.as_ref().is_some_and(|work| work.proxy.is_some())
    }

    /// It waits for its ClientHello until `deadline`.
    pub(crate) fn await_hello(&mut self, deadline: Ticks) {
        self.work().awaits_hello = true;
        self.deadline = deadline;
    }

    /// Whether its ClientHello has to arrive before it is known who gets the connection.
    pub(crate) fn awaits_hello(&self) -> bool {
        self.work.as_ref().is_some_and(|work| work.awaits_hello)
    }

    /// Whether what is inside its TLS is for someone else, after the handshake: nothing of it is a request.
    pub(crate) fn awaits_inside(&self) -> bool {
        self.work.as_ref().is_some_and(|work| work.inside.is_some())
    }

    pub(crate) fn work(&mut self) -> &mut Work {
        self.work.get_or_insert_default()
    }

    /// Whether bytes wait for the socket.
    #[inline]
    pub(crate) fn is_sending(&self) -> bool {
        self.work.as_ref().is_some_and(|work| !work.queue.is_empty())
    }

    /// Whether the rate of its response is limited.
    #[inline]
    pub(crate) fn is_paced(&self) -> bool {
        self.work.as_ref().is_some_and(|work| work.pace.is_some())
    }

    /// A response begins, whose rate is limited, or is not after one whose rate was.
    #[cold]
    pub(crate) fn set_pace(&mut self, limit: Option<SendRate>, now: Ticks) {
        self.work().pace = limit.map(|limit| Box::new(Pace::new(limit, now)));
    }

    /// Whether its response was cut.
    pub(crate) fn is_cut(&self) -> bool {
        self.work.as_ref().is_some_and(|work| work.is_cut)
    }

    /// Whether there are received bytes that were not consumed.
    #[inline]
    pub(crate) fn is_holding(&self) -> bool {
        self.work.as_ref().is_some_and(|work| !work.held.is_empty())
    }

    /// Whether these are the start of a head: there is nothing to do until more arrives.
    #[inline]
    pub(crate) fn holds_head_part(&self) -> bool {
        self.work.as_ref().is_some_and(|work| work.is_head_part)
    }

    /// Whether it has no work and only waits for a request.
    #[inline]
    pub(crate) fn is_at_rest(&self) -> bool {
        self.machine.is_idle() && self.work.is_none() && self.exchange.is_none() && self.lingering.is_none()
    }

    /// Its HTTP/2 session, if any.
    pub(crate) fn session(&self) -> Option<&Session> {
        self.work.as_ref()?.h2.as_deref()
    }

    /// Whether a stream of it has switched to another protocol. A connection of HTTP/1 that has is no longer in the table.
    pub(crate) fn carries_tunnel(&self) -> bool {
        self.session().is_some_and(Session::has_websockets)
    }

    #[inline]
    pub(crate) fn is_h2(&self) -> bool {
        self.session().is_some()
    }

    pub(crate) fn take_session(&mut self) -> Option<Box<Session>> {
        self.work.as_mut()?.h2.take()
    }

    /// Releases what only a busy connection needs.
    #[inline]
    pub(crate) fn rest(&mut self) {
        if let Some(work) = &self.work
            && self.machine.is_idle()
            && self.exchange.is_none()
            && work.held.is_empty()
            && work.queue.is_empty()
            && work.takeover.is_none()
            && work.open.is_none()
            && work.unsent.is_empty()
            && work.proxy.is_none()
            && !work.awaits_hello
            && work.inside.is_none()
        {
            self.work = None;
        }
    }
}

/// A client's address in 24 bytes; `SocketAddr` takes 32.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer {
    ip: [u8; 16],
    scope: u32,
    port: u16,
    kind: PeerKind,
}

#[derive(Debug, Clone, Copy)]
enum PeerKind {
    Unix,
    V4,
    V6,
}

impl Peer {
    pub(crate) fn of(address: Option<SocketAddr>) -> Peer {
        let none = Peer { ip: [0; 16], scope: 0, port: 0, kind: PeerKind::Unix };
        match address {
            None => none,
            Some(SocketAddr::V4(v4)) => {
                Peer { ip: v4.ip().to_ipv6_mapped().octets(), port: v4.port(), kind: PeerKind::V4, ..none }
            }
            Some(SocketAddr::V6(v6)) => {
                Peer { ip: v6.ip().octets(), scope: v6.scope_id(), port: v6.port(), kind: PeerKind::V6 }
            }
        }
    }

    /// The address; `None` on a Unix socket. Without the flow label of IPv6, which is never needed.
    #[inline]
    pub(crate) fn address(self) -> Option<SocketAddr> {
        let ip = Ipv6Addr::from(self.ip);
        match self.kind {
            PeerKind::Unix => None,
            PeerKind::V4 => {
                let [.., a, b, c, d] = self.ip;
                Some(SocketAddr::new(IpAddr::from([a, b, c, d]), self.port))
            }
            PeerKind::V6 => Some(SocketAddrV6::new(ip, self.port, 0, self.scope).into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_round_trip() {
        for text in ["1.2.3.4:80", "[::1]:65535", "[fe80::1%7]:1", "[::ffff:1.2.3.4]:9"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(Peer::of(Some(address)).address(), Some(address));
        }
        assert_eq!(Peer::of(None).address(), None);
    }
}
