//! Connections whose ClientHello is read before it is known who gets them: TLS ends here, or the connection is passed on as it is.
//!
//! The ClientHello is peeked at in the socket and stays there, for whoever gets the connection. Connections of other listeners are not
//! affected: one that waits for a ClientHello has pending work, and so is not at rest.

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};

use flatout_lane::slab::Key;
use flatout_tls::{HELLO_BYTES_MAX, Hello, Shake, read_hello};

use super::WorkerLoop;
use super::accept::PLAINTEXT_REPLY;
use super::proxy_header::NoStart;
use crate::bug;
use crate::service::{Outcome, TlsRoute};
use crate::serving::READ_BYTES;

const _: () = assert!(HELLO_BYTES_MAX <= READ_BYTES);

impl WorkerLoop {
    /// Reads the ClientHello of a connection that waits for it. It is never served in its entry: always returns `false`.
    pub(super) fn read_hello(&mut self, key: Key) -> bool {
        let Some(connection) = self.connections.get_mut(key) else { return false };
        let buffer = self.serving.read.get_mut(..HELLO_BYTES_MAX).unwrap_or_default();
        let peeked = match connection.peek_start(buffer) {
            Ok(peeked) => peeked,
            Err(NoStart::Awaited) => return false,
            Err(NoStart::Gone) => {
                self.close(key, Outcome::ClientGone);
                return false;
            }
        };
        let (peer, listener) = (connection.peer.address(), connection.listener);
        match read_hello(peeked) {
            Ok(Hello::Complete(name)) => self.route_tls(key, name.as_deref(), peer, listener),
            // New data causes a new edge.
            Ok(Hello::Incomplete) if !connection.read_closed => connection.readable = false,
            Ok(Hello::Incomplete) => self.close(key, Outcome::ClientGone),
            // TLS knows what to send for it.
            Err(_) if self.acceptor.is_some() => drop(self.begin_tls(key)),
            Err(_) => {
                let is_text = peeked.first().is_some_and(u8::is_ascii_alphabetic);
                self.refuse_tls(key, if is_text { PLAINTEXT_REPLY } else { b"" });
            }
        }
        false
    }

    fn route_tls(&mut self, key: Key, name: Option<&str>, peer: Option<SocketAddr>, listener: u16) {
        let service = &self.serving.service;
        // Without its decision, a connection must not be taken for one of this server's.
        let route = catch_unwind(AssertUnwindSafe(|| service.route_tls(name, peer, listener)));
        match route.unwrap_or(TlsRoute::Refuse) {
            TlsRoute::Terminate if self.acceptor.is_some() => drop(self.begin_tls(key)),
            TlsRoute::Take(takeover) => self.take(key, takeover),
            TlsRoute::TakeInside(takeover) if self.acceptor.is_some() => {
                let secure = self.begin_tls(key).and_then(|key| self.connections.get_mut(key));
                if let Some(connection) = secure {
                    connection.work().inside = Some(takeover);
                }
            }
            // Without an alert, as if nobody listened: there is no server that could have sent it.
            TlsRoute::Terminate | TlsRoute::TakeInside(_) | TlsRoute::Refuse => self.refuse_tls(key, b""),
        }
    }

    /// Continues the handshake of a connection whose decrypted stream is taken over when the handshake ends. The engine never serves it:
    /// always returns `false`.
    pub(super) fn take_inside(&mut self, key: Key) -> bool {
        let Some(connection) = self.connections.get_mut(key) else { return false };
        match connection.transport.shake() {
            Shake::Done => match connection.work().inside.take() {
                Some(takeover) => self.take(key, takeover),
                None => bug!("a handshake without a takeover"),
            },
            // New data causes a new edge.
            Shake::GoesOn if !connection.read_closed => connection.readable = false,
            Shake::GoesOn | Shake::Failed => self.close(key, Outcome::ClientGone),
        }
        false
    }

    /// Sends the last bytes of a connection, and closes it.
    fn refuse_tls(&mut self, key: Key, last: &[u8]) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        // What is not read would reset the connection, and with it what is sent.
        let buffer = self.serving.read.get_mut(..HELLO_BYTES_MAX).unwrap_or_default();
        let _ = connection.transport.receive(buffer);
        // If the socket has no room for it, the peer does not read anyway.
        if !last.is_empty() {
            let _ = connection.transport.send(last);
        }
        connection.transport.shut_down();
        self.close(key, Outcome::Refused);
    }
}
