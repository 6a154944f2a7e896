//! New connections, and their listeners.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use flatout_lane::clock;
use flatout_lane::listener::refuse_new;
use flatout_lane::poll::Token;
use flatout_lane::slab::Key;
use flatout_lane::socket::{self, Accepted};

use super::WorkerLoop;
use crate::bug;
use crate::connection::Connection;
use crate::listeners::{Listener, ListenersChange, NewLimits, Start};
use crate::plan::ProxyHeader;
use crate::service::Outcome;
use crate::shared::Prefix;
use crate::transport::Transport;

/// Connections accepted from one listener before existing ones get their turn.
const ACCEPTS_PER_TURN: usize = 64;

/// The response to HTTP without TLS on a port that has TLS, written without a request: its head may be incomplete.
pub(super) const PLAINTEXT_REPLY: &[u8] = b"HTTP/1.1 400 Bad Request\r\n\
    Content-Type: text/plain; charset=utf-8\r\nContent-Length: 69\r\nConnection: close\r\n\r\n\
    this port uses TLS: the request was sent as plain HTTP; use https://\n";

/// How long a removed listener still accepts pending connections: started handshakes complete within a round trip,
/// and established connections must not be reset.
pub(crate) const LISTENER_CLOSE_TIME: Duration = Duration::from_secs(1);

impl WorkerLoop {
    /// Accepts from all listeners.
    pub(super) fn accept_all(&mut self) {
        for index in 0..self.listeners.len() {
            if let Some(listener) = self.listeners.get(index) {
                self.accept(listener.id);
            }
        }
    }

    pub(super) fn accept(&mut self, id: u32) {
        let Some(index) = self.listeners.iter().position(|listener| listener.id == id) else { return };
        for _ in 0..ACCEPTS_PER_TURN {
            let Some(listener) = self.listeners.get(index) else { return };
            if self.paused {
                return;
            }
            if !self.shared.has_room() {
                return self.pause_accepting();
            }
            let start = listener.start;
            match socket::accept(listener.socket.as_fd()) {
                Accepted::Connection(socket, peer) => self.admit(socket, peer, start),
                Accepted::Empty => return,
                Accepted::Aborted => {}
                Accepted::Exhausted(error) => {
                    self.shared.complain(&error);
                    return self.pause_accepting();
                }
            }
        }
        // More may be waiting, and no event reports it: the outer set reports a listener that becomes ready, not one
        // that still is.
        self.accept_again = true;
    }

    fn admit(&mut self, socket: OwnedFd, peer: Option<SocketAddr>, start: Start) {
        let Start { is_secure, proxy_header, passes_tls, number, .. } = start;
        let has_proxy_header = proxy_header != ProxyHeader::None;
        if proxy_header == ProxyHeader::Trusted && !self.admits_proxy(peer, number) {
            return;
        }
        // A trusted header will say whose address counts.
        let client = peer.filter(|_| proxy_header != ProxyHeader::Trusted);
        if !self.shared.admit(client) {
            return;
        }
        self.accepted_count += 1;
        let (transport, deadline) = match is_secure && !has_proxy_header && !passes_tls {
            false => (Transport::plain(socket), self.serving.idle_deadline()),
            true => match self.acceptor.as_ref().map(|acceptor| acceptor.accept(socket, number)) {
                Some(Ok(mut channel)) => {
                    channel.set_plaintext_reply(PLAINTEXT_REPLY);
                    (Transport::tls(channel), self.serving.handshake_deadline())
                }
                // The plan was checked when it was opened, so this is out of memory or a bug. Never serve it without TLS.
                Some(Err(_)) | None => return self.shared.release(client.map(Prefix::of)),
            },
        };
        let mut connection =
            Connection::new(transport, client, number, deadline, self.serving.bounds.requests_max);
        if has_proxy_header {
            self.await_proxy_header(&mut connection, peer, start);
        } else if passes_tls {
            connection.await_hello(self.serving.handshake_deadline());
        }
        self.enter(connection);
    }

    /// Adds a connection; `None` if it cannot be served.
    pub(super) fn enter(&mut self, connection: Connection) -> Option<Key> {
        let key = self.connections.insert(connection);
        let Some(connection) = self.connections.get_mut(key) else {
            bug!("a connection was removed while it was added");
            return None;
        };
        if connection.transport.watch(self.poll.set(), Token::Client(key)).is_err() {
            // ENOMEM or ENOSPC (epoll(7): max_user_watches): this connection cannot be served.
            self.close(key, Outcome::Stopped);
            return None;
        }
        Some(key)
    }

    pub(super) fn start_accepting(&mut self) -> io::Result<()> {
        self.paused = false;
        self.listeners.iter().try_for_each(|listener| self.watch_listener(listener))
    }

    fn watch_listener(&self, listener: &Listener) -> io::Result<()> {
        self.poll.set().add_listener(listener.socket.as_fd(), Token::Listener(listener.id).to_u64())
    }

    /// Leaves new connections in the kernel's backlog, until one ends or until the next sweep.
    pub(super) fn pause_accepting(&mut self) {
        self.paused = true;
        for listener in &self.listeners {
            let _ = self.poll.set().remove(listener.socket.as_fd());
        }
    }

    /// Closes the listeners whose connections are not accepted while the worker drains.
    pub(super) fn close_for_drain(&mut self) {
        for listener in self.listeners.extract_if(.., |listener| !listener.start.is_internal) {
            let _ = self.poll.set().remove(listener.socket.as_fd());
        }
    }

    pub(super) fn resume_accepting(&mut self) {
        if self.paused && self.shared.has_room() && self.start_accepting().is_err() {
            self.pause_accepting();
        }
    }

    /// Changes the listeners. Those of a draining worker do not change.
    pub(super) fn change_listeners(&mut self, change: ListenersChange) {
        if self.drain_deadline.is_some() {
            return;
        }
        for listener in &mut self.listeners {
            change.alter(listener);
            if change.removed.contains(&listener.id) {
                // If this fails, it is closed nevertheless.
                let _ = refuse_new(listener.socket.as_fd());
                listener.closes_at = Some(self.serving.now.ticks + clock::ticks(LISTENER_CLOSE_TIME));
            }
        }
        let mut is_watched = true;
        for listener in change.added {
            is_watched &= self.paused || self.watch_listener(&listener).is_ok();
            self.listeners.push(listener);
        }
        if !is_watched {
            // The next sweep tries again.
            self.pause_accepting();
        }
    }

    /// Copies of the sockets of listeners that are not being removed.
    pub(super) fn listening_sockets(&self) -> io::Result<Vec<(u32, OwnedFd)>> {
        let staying = self.listeners.iter().filter(|listener| listener.closes_at.is_none());
        staying.map(|listener| Ok((listener.id, listener.socket.try_clone()?))).collect()
    }

    pub(super) fn is_closing_listeners(&self) -> bool {
        self.listeners.iter().any(|listener| listener.closes_at.is_some())
    }

    /// Closes removed listeners, when their time is over and pending connections were accepted.
    pub(super) fn close_listeners(&mut self) {
        if !self.is_closing_listeners() {
            return;
        }
        let now = self.serving.now.ticks;
        let is_due = |listener: &Listener| listener.closes_at.is_some_and(|at| at <= now);
        let due: Vec<u32> = self.listeners.iter().filter(|it| is_due(it)).map(|it| it.id).collect();
        for id in due {
            let more_elsewhere = std::mem::take(&mut self.accept_again);
            self.accept(id);
            // If there is no room, its pending connections wait like all others.
            let is_empty = !std::mem::replace(&mut self.accept_again, more_elsewhere) && !self.paused;
            let at = self.listeners.iter().position(|listener| listener.id == id);
            if let (true, Some(at)) = (is_empty, at) {
                let listener = self.listeners.swap_remove(at);
                // Other workers may have the same socket: closing it alone would leave it in this epoll set.
                let _ = self.poll.set().remove(listener.socket.as_fd());
            }
        }
    }

    /// Applies new limits to connections. Deadlines that are already set stay.
    pub(super) fn set_limits(&mut self, new: NewLimits) {
        self.serving.set_limits(new.limits, new.server_name.as_deref());
        self.resume_accepting();
    }
}
