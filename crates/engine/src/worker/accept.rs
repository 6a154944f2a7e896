//! New connections.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use flatout_lane::poll::Token;
use flatout_lane::socket::{self, Accepted};

use super::Worker;
use crate::connection::Connection;
use crate::service::Outcome;
use crate::shared::Prefix;
use crate::transport::Transport;

/// Connections accepted from one listener before those that exist have their turn.
const ACCEPTS_PER_TURN: usize = 64;

impl Worker {
    pub(super) fn accept(&mut self, index: usize) {
        for _ in 0..ACCEPTS_PER_TURN {
            let Some(listener) = self.listeners.get(index) else { return };
            if self.paused {
                return;
            }
            if !self.shared.has_room() {
                return self.pause_accepting();
            }
            let is_secure = listener.is_secure;
            match socket::accept(listener.socket.as_fd()) {
                Accepted::Connection(socket, peer) => self.admit(socket, peer, is_secure),
                Accepted::Empty => return,
                Accepted::Aborted => {}
                Accepted::Exhausted(error) => {
                    self.shared.complain(&error);
                    return self.pause_accepting();
                }
            }
        }
        // More may wait, and of that nobody tells: the outer set hears of a listener that becomes ready, not of one
        // that still is.
        self.accept_again = true;
    }

    fn admit(&mut self, socket: OwnedFd, peer: Option<SocketAddr>, is_secure: bool) {
        if !self.shared.admit(peer) {
            return;
        }
        self.accepted_count += 1;
        let (transport, deadline) = match self.acceptor.as_ref().filter(|_| is_secure) {
            None => (Transport::plain(socket), self.serving.idle_deadline()),
            Some(acceptor) => match acceptor.accept(socket) {
                Ok(channel) => (Transport::tls(channel), self.serving.handshake_deadline()),
                // What it begins with was checked when it was opened, so this is out of memory or a defect.
                Err(_) => return self.shared.release(peer.map(Prefix::of)),
            },
        };
        let connection = Connection::new(transport, peer, deadline, self.requests_max);
        let key = self.connections.insert(connection);
        let Some(connection) = self.connections.get_mut(key) else { return };
        if connection.transport.watch(self.poll.set(), Token::Client(key)).is_err() {
            // ENOMEM or ENOSPC (epoll(7): max_user_watches): this connection cannot be served.
            self.close(key, Outcome::Stopped);
        }
    }

    pub(super) fn start_accepting(&mut self) -> io::Result<()> {
        self.paused = false;
        for (index, listener) in self.listeners.iter().enumerate() {
            self.poll.set().add_listener(listener.socket.as_fd(), Token::Listener(index as u32).to_u64())?;
        }
        Ok(())
    }

    /// Leaves new connections in the kernel's backlog, until one ends or the next sweep looks again.
    pub(super) fn pause_accepting(&mut self) {
        self.paused = true;
        for listener in &self.listeners {
            let _ = self.poll.set().remove(listener.socket.as_fd());
        }
    }

    pub(super) fn resume_accepting(&mut self) {
        if self.paused && self.shared.has_room() && self.start_accepting().is_err() {
            self.pause_accepting();
        }
    }
}
