//! One connection to a server of an upstream.

pub(crate) mod cgi;
pub(crate) mod cgi_session;
pub(crate) mod fastcgi;
pub(crate) mod h1;
pub(crate) mod h2;
pub(crate) mod response;

use std::collections::VecDeque;
use std::rc::Rc;

use bytes::{Buf, Bytes};
use flatout_engine::{ConnectionPermit, GuestKey, Lane, Moved, PooledPipe, Ready, Tunnel};
use flatout_wire::h1::Client;

use crate::connection::cgi_session::CgiSession;
use crate::connection::h2::Session;
use crate::request::job::Job;
use crate::server::ServerSlot;
use crate::table::ServerId;
use crate::worker::passthrough::PassthroughEnding;

/// A connection and its state.
pub(crate) struct UpstreamConnection {
    pub(crate) guest: GuestKey,
    pub(crate) server_id: ServerId,
    /// The server's address, for logs.
    pub(crate) address: Rc<str>,
    /// What it carries.
    pub(crate) protocol: ConnectionProtocol,
    /// The HTTP/1 state machine.
    pub(crate) machine: Client,
    /// The attempt to connect is still in progress.
    pub(crate) is_connecting: bool,
    /// Large parts of bodies go through a pipe. Not from a Unix socket, where a pipe carries only small pieces and
    /// costs more than a copy, and not with TLS, which has to pass through the program.
    pub(crate) is_piped: bool,
    /// Requests that it carried before.
    pub(crate) uses: u32,
    /// The current request; `None` while idle.
    pub(crate) job: Option<Box<Job>>,
    /// Bytes of the request not sent yet.
    pub(crate) out: VecDeque<Out>,
    /// The socket accepts no more for now; an event will report when it does.
    pub(crate) is_full: bool,
    /// Bytes received but not used yet.
    pub(crate) held: Vec<u8>,
    /// The socket may have data: an edge was reported, and no short read has happened since.
    pub(crate) is_readable: bool,
    /// The server has closed its side; reads continue until they report EOF.
    pub(crate) is_read_closed: bool,
    /// Content of responses that was passed on piece by piece, over all of them.
    pub(crate) forwarded_bytes: u64,
    /// It is on the list of those whose clients may be slow.
    pub(crate) is_behind: bool,
    /// Its place at a server with a limit, once it has switched to another protocol and has no request.
    pub(crate) slot: Option<ServerSlot>,
}

/// What a connection carries.
pub(crate) enum ConnectionProtocol {
    /// One request at a time, with `machine`, `job` and `out`, which the others do not use.
    Http1,
    /// The same over FastCGI, SCGI or uwsgi: `held` has the response as HTTP/1.
    Cgi(Box<CgiSession>),
    /// Many requests at once.
    Http2(Box<Session>),
    /// The server has switched to another protocol; it waits for the client's connection.
    Switching,
    /// It is joined to the client's connection.
    Tunnel(Box<ClientTunnel>),
}

/// The tunnel from a client's connection, its first end, to an upstream's.
pub(crate) struct ClientTunnel {
    pub(crate) tunnel: Tunnel,
    /// Counts the client's connection for as long as the tunnel lives.
    pub(crate) _permit: ConnectionPermit,
    /// What to call at its end, if the connection was passed on as it is.
    pub(crate) ending: Option<PassthroughEnding>,
}

impl ClientTunnel {
    /// The client's end.
    pub(crate) fn client(&self) -> GuestKey {
        self.tunnel.first()
    }
}

/// A piece of a request that waits for the socket.
pub(crate) enum Out {
    Bytes(Bytes),
    Pipe(PooledPipe),
}

/// The result of an attempt to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flushed {
    All,
    /// The socket accepts no more.
    Full,
    Broken,
}

impl UpstreamConnection {
    pub(crate) fn new(
        guest: GuestKey,
        server_id: ServerId,
        address: Rc<str>,
        is_connecting: bool,
        is_piped: bool,
    ) -> UpstreamConnection {
        UpstreamConnection {
            guest,
            server_id,
            address,
            machine: Client::default(),
            is_connecting,
            is_piped,
            uses: 0,
            job: None,
            protocol: ConnectionProtocol::Http1,
            out: VecDeque::new(),
            is_full: is_connecting,
            held: Vec::new(),
            is_readable: false,
            is_read_closed: false,
            forwarded_bytes: 0,
            is_behind: false,
            slot: None,
        }
    }

    /// Remembers what an event of the socket reports.
    #[inline]
    pub(crate) fn note(&mut self, ready: Ready) {
        self.is_full &= !ready.writable();
        self.is_read_closed |= ready.read_closed() || ready.hung_up();
        self.is_readable |= ready.readable() || ready.hung_up();
    }

    pub(crate) fn session(&mut self) -> Option<&mut Session> {
        match &mut self.protocol {
            ConnectionProtocol::Http2(session) => Some(session),
            _ => None,
        }
    }

    pub(crate) fn tunnel(&mut self) -> Option<&mut ClientTunnel> {
        match &mut self.protocol {
            ConnectionProtocol::Tunnel(tunnel) => Some(tunnel),
            _ => None,
        }
    }

    pub(crate) fn is_http1(&self) -> bool {
        matches!(self.protocol, ConnectionProtocol::Http1)
    }

    /// Sends bytes, after those already queued.
    pub(crate) fn send(&mut self, lane: &Lane, bytes: &[u8]) -> Flushed {
        if !self.out.is_empty() || self.is_full {
            self.out.push_back(Out::Bytes(Bytes::copy_from_slice(bytes)));
            return Flushed::Full;
        }
        let sent = match lane.send(self.guest, bytes) {
            Moved::Bytes(sent) => sent,
            Moved::WouldBlock => 0,
            Moved::Broken => return Flushed::Broken,
        };
        match bytes.get(sent..).filter(|rest| !rest.is_empty()) {
            None => Flushed::All,
            Some(rest) => {
                self.out.push_back(Out::Bytes(Bytes::copy_from_slice(rest)));
                self.is_full = true;
                Flushed::Full
            }
        }
    }

    /// Queued bytes, without those in pipes.
    pub(crate) fn unsent_bytes(&self) -> usize {
        let bytes = |out: &Out| if let Out::Bytes(bytes) = out { bytes.len() } else { 0 };
        self.out.iter().map(bytes).sum()
    }

    /// Whether the server has seen nothing of a request with this head, which was just sent over a connection that has had others: it has
    /// responded to an earlier one before it has read all of that one's body. Nothing that comes now is a response to the new one.
    pub(crate) fn has_sent_nothing(&self, flushed: Flushed, head_bytes: usize) -> bool {
        self.uses > 0 && flushed == Flushed::Full && self.unsent_bytes() == head_bytes
    }

    /// Sends queued bytes.
    pub(crate) fn flush(&mut self, lane: &Lane) -> Flushed {
        while let Some(front) = self.out.front_mut() {
            if self.is_full {
                return Flushed::Full;
            }
            let (moved, is_done) = match front {
                Out::Bytes(bytes) => {
                    let moved = lane.send(self.guest, bytes);
                    if let Moved::Bytes(sent) = moved {
                        bytes.advance(sent);
                        self.is_full = !bytes.is_empty();
                    }
                    (moved, bytes.is_empty())
                }
                Out::Pipe(pipe) => (lane.send_pipe(self.guest, pipe), pipe.bytes() == 0),
            };
            match moved {
                Moved::Bytes(_) if is_done => drop(self.out.pop_front()),
                Moved::Bytes(_) => {}
                Moved::WouldBlock => self.is_full = true,
                Moved::Broken => return Flushed::Broken,
            }
        }
        Flushed::All
    }

    /// Whether it can carry the next request: the response has ended, the request was sent completely, and nothing
    /// followed the response.
    pub(crate) fn is_reusable(&self) -> bool {
        self.machine.is_idle() && self.out.is_empty() && self.held.is_empty() && !self.is_read_closed
    }
}
