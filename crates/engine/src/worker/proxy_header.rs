//! Connections that start with a PROXY protocol header: a proxy announces their client.
//!
//! The header is peeked at in the socket, and only its own bytes are consumed: the rest is left for the next reader.
//! Connections of other listeners are not affected: a connection that waits for a header has pending work, and so is
//! not at rest.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::Ordering;

use flatout_lane::clock;
use flatout_lane::slab::Key;
use flatout_lane::socket::Moved;
use flatout_wire::proxy_protocol::{self, BINARY_BYTES_MAX, Header};

use super::WorkerLoop;
use crate::bug;
use crate::connection::{Connection, Peer, PendingProxy};
use crate::listeners::Start;
use crate::plan::{PROXY_HEADER_TIME_MAX, ProxyHeader};
use crate::service::{Announced, Outcome};
use crate::transport::Transport;

/// Why nothing of what a connection starts with can be looked at.
pub(super) enum NoStart {
    /// It has not arrived yet: new data causes a new edge.
    Awaited,
    /// The client is gone.
    Gone,
}

impl Connection {
    /// What has arrived of what a connection starts with. It stays in the socket.
    pub(super) fn peek_start<'b>(&mut self, buffer: &'b mut [u8]) -> Result<&'b [u8], NoStart> {
        match self.transport.peek(buffer) {
            Moved::Bytes(bytes) if bytes > 0 => Ok(buffer.get(..bytes).unwrap_or_default()),
            Moved::WouldBlock if !self.read_closed => {
                self.readable = false;
                Err(NoStart::Awaited)
            }
            Moved::Bytes(_) | Moved::WouldBlock | Moved::Broken => Err(NoStart::Gone),
        }
    }
}

impl WorkerLoop {
    /// Whether to accept a connection of such a listener; otherwise it has to be closed.
    pub(super) fn admits_proxy(&self, peer: Option<SocketAddr>, listener: u16) -> bool {
        let is_believed = self.serving.believes_proxy(peer, listener);
        if !is_believed {
            self.count_refused(
                peer,
                "it is not a trusted proxy, and this listener expects the PROXY protocol",
            );
        }
        is_believed
    }

    /// Makes a new connection wait for its header.
    pub(super) fn await_proxy_header(
        &self,
        connection: &mut Connection,
        peer: Option<SocketAddr>,
        Start { is_secure, passes_tls, proxy_header, .. }: Start,
    ) {
        let pending = PendingProxy {
            peer: Peer::of(peer),
            is_trusted: proxy_header == ProxyHeader::Trusted,
            is_secure,
            passes_tls,
        };
        connection.work().proxy = Some(Box::new(pending));
        connection.deadline = self.serving.now.ticks + clock::ticks(PROXY_HEADER_TIME_MAX);
    }

    /// Reads what a connection starts with, if it waits for that: a PROXY protocol header, a ClientHello, a handshake whose inside is
    /// not for this server. Returns whether the connection can be served now.
    pub(super) fn read_start(&mut self, key: Key) -> bool {
        let Some(connection) = self.connections.get_mut(key) else { return false };
        let Some(work) = connection.work.as_ref() else { return true };
        match (work.proxy.as_deref().copied(), work.awaits_hello) {
            (Some(proxy), _) => self.read_proxy_header(key, proxy),
            (None, true) => self.read_hello(key),
            (None, false) if work.inside.is_some() => self.take_inside(key),
            (None, false) => true,
        }
    }

    fn read_proxy_header(&mut self, key: Key, proxy: PendingProxy) -> bool {
        let Some(connection) = self.connections.get_mut(key) else { return false };
        let mut buffer = [0; BINARY_BYTES_MAX];
        let peeked = match connection.peek_start(&mut buffer) {
            Ok(peeked) => peeked,
            Err(NoStart::Awaited) => return false,
            Err(NoStart::Gone) => {
                self.close(key, Outcome::ClientGone);
                return false;
            }
        };
        match proxy_protocol::parse(peeked) {
            Ok(Some(header)) => self.begin_as(key, proxy, header),
            Ok(None) if !connection.read_closed => {
                // New data causes a new edge.
                connection.readable = false;
                false
            }
            Ok(None) => self.refuse_proxy(key, "its PROXY header is incomplete"),
            Err(fault) => self.refuse_proxy(key, fault.reason()),
        }
    }

    /// Closes a connection with an invalid header, without a response. Always returns `false`.
    pub(super) fn refuse_proxy(&mut self, key: Key, reason: &str) -> bool {
        let connection = self.connections.get_mut(key);
        let proxy = connection.and_then(|connection| connection.work.as_ref()?.proxy.as_deref().copied());
        self.count_refused(proxy.and_then(|proxy| proxy.peer.address()), reason);
        self.close(key, Outcome::Refused);
        false
    }

    /// Begins to serve the connection, as that of the client in its header if that is trusted. Otherwise its peer is the client, and was
    /// counted when it was accepted.
    fn begin_as(&mut self, key: Key, proxy: PendingProxy, header: Header) -> bool {
        let peer = proxy.peer.address();
        let client = header.source.or(peer);
        let Some(connection) = self.connections.get_mut(key) else { return false };
        let mut taken = [0; BINARY_BYTES_MAX];
        let taken = taken.get_mut(..header.bytes).unwrap_or_default();
        let is_taken = connection.transport.receive(taken) == Moved::Bytes(header.bytes);
        if !is_taken || proxy.is_trusted && !self.shared.admit_address(client) {
            self.close(key, Outcome::ClientGone);
            return false;
        }
        if proxy.is_trusted {
            connection.peer = Peer::of(client);
        }
        connection.work().proxy = None;
        let announced = Announced { source: header.source, target: header.target, peer };
        self.serving.lane.announce(key, Rc::new(announced));
        if proxy.passes_tls {
            connection.await_hello(self.serving.handshake_deadline());
            return self.read_hello(key);
        }
        connection.deadline = self.serving.idle_deadline();
        if proxy.is_secure {
            self.begin_tls(key);
        }
        !proxy.is_secure
    }

    /// Starts TLS after what was read: bytes that have already arrived cause an event for the connection's new entry, which is returned.
    pub(super) fn begin_tls(&mut self, key: Key) -> Option<Key> {
        let connection = self.connections.remove(key)?;
        let announced = self.serving.lane.forget_announced(key);
        connection.transport.unwatch(self.poll.set());
        let (peer, listener) = (connection.peer.address(), connection.listener);
        let channel = match (connection.transport, &self.acceptor) {
            // It fails without memory.
            (Transport::Plain(socket), Some(acceptor)) => {
                acceptor.accept(socket, listener).ok().map(|mut channel| {
                    channel.set_plaintext_reply(super::accept::PLAINTEXT_REPLY);
                    channel
                })
            }
            _ => {
                bug!("TLS begins on a connection that has it already, or without certificates");
                None
            }
        };
        let Some(channel) = channel else {
            self.shared.release(peer.map(crate::shared::Prefix::of));
            self.connection_ended();
            return None;
        };
        let deadline = self.serving.handshake_deadline();
        let secure = Connection::new(
            Transport::tls(channel),
            peer,
            listener,
            deadline,
            self.serving.bounds.requests_max,
        );
        let key = self.enter(secure)?;
        if let Some(announced) = announced {
            self.serving.lane.announce(key, announced);
        }
        Some(key)
    }

    fn count_refused(&self, proxy: Option<SocketAddr>, reason: &str) {
        self.stats.proxy_refused.fetch_add(1, Ordering::Relaxed);
        self.shared.complain_of_proxy(proxy, reason);
    }
}
