//! Connections of clients that are passed on as they are, to a server of an upstream. Nothing of them is parsed.
//!
//! ```text
//! client ── carry ──> Job with a Passthrough for receiver ── dispatch: server, queue, retries ──> connected ── join_client ──> Tunnel
//! ```
//!
//! For the upstream it is one long request: it counts among the requests in progress of its server, and among its connections.

use flatout_engine::{DetachedConnection, Outcome, Tunnel, TunnelEnd, bug};
use flatout_wire::Status;
use flatout_wire::proxy_protocol;

use crate::connection::{ClientTunnel, ConnectionProtocol};
use crate::hash::hash;
use crate::plan::{Balance, Key};
use crate::receiver::Receiver;
use crate::request::job::Job;
use crate::worker::ProxyWorker;
use crate::worker::state::State;
use crate::worker::tunnel::CLIENT_SIDE;

/// A client's connection that is to be passed on.
pub struct Passthrough {
    /// The connection. Nothing was read from it, or what was read is in it.
    pub client: DetachedConnection,
    /// Called at its end, however it ends.
    pub ending: PassthroughEnding,
}

/// Reports how a connection ended: exactly once, also if this is dropped.
pub struct PassthroughEnding {
    then: Option<Box<dyn FnOnce(PassthroughEnd)>>,
    /// The attempts at servers, for logs.
    note: u64,
}

/// How a connection that was passed on has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PassthroughEnd {
    /// 200 if it got to a server; otherwise the status that a request would have got.
    pub status: Status,
    /// How it ended.
    pub outcome: Outcome,
    /// Bytes from the client to the server.
    pub received_bytes: u64,
    /// Bytes from the server to the client.
    pub sent_bytes: u64,
    /// The note of its attempts.
    pub note: u64,
}

impl PassthroughEnding {
    /// Calls `then`.
    pub fn new(then: impl FnOnce(PassthroughEnd) + 'static) -> PassthroughEnding {
        PassthroughEnding { then: Some(Box::new(then)), note: 0 }
    }

    /// There is no upstream for it.
    pub fn refuse_unresolved(self) {
        self.refuse(Status::INTERNAL_SERVER_ERROR, 0);
    }

    /// It was not connected to a server.
    pub(crate) fn refuse(mut self, status: Status, note: u64) {
        self.note = note;
        self.end(status, Outcome::Failed, (0, 0));
    }

    fn end(&mut self, status: Status, outcome: Outcome, (received_bytes, sent_bytes): (u64, u64)) {
        let note = self.note;
        if let Some(then) = self.then.take() {
            then(PassthroughEnd { status, outcome, received_bytes, sent_bytes, note });
        }
    }
}

impl Drop for PassthroughEnding {
    fn drop(&mut self) {
        self.end(Status::OK, Outcome::Stopped, (0, 0));
    }
}

impl ClientTunnel {
    /// Reports the end of a connection that was passed on as it is.
    pub(crate) fn report_end(&mut self, outcome: Outcome) {
        let moved = self.tunnel.moved_bytes();
        if let Some(mut ending) = self.ending.take() {
            ending.end(Status::OK, outcome, moved);
        }
    }
}

impl ProxyWorker {
    /// Passes a client's connection on to a server of this upstream; `name` is that of the client's ClientHello. If there is no server,
    /// it is closed.
    pub fn carry(&self, upstream: usize, name: &str, passthrough: Passthrough) {
        let Some(upstream_id) = self.upstreams.id(upstream) else {
            return passthrough.ending.refuse(Status::BAD_GATEWAY, 0);
        };
        let upstream = self.upstreams.at(upstream_id);
        let peer = passthrough.client.peer;
        let hash = match &upstream.plan.balance {
            Balance::Hash(Key::Client) => peer.map_or(0, |peer| match peer.ip() {
                std::net::IpAddr::V4(address) => hash(&address.octets()),
                std::net::IpAddr::V6(address) => hash(&address.octets()),
            }),
            Balance::Hash(_) => hash(name.as_bytes()),
            _ => 0,
        };
        // Only logs show it.
        let head = format!("TLS {name} -\r\n").into_bytes();
        let receiver = Receiver::Passthrough(Some(Box::new(passthrough)));
        let job = Job { peer, hash, ..Job::new(upstream_id, upstream.plan.retries_max, receiver, head) };
        self.begin_job(Box::new(job));
    }

    /// A connection for this client is open: joins both.
    pub(crate) fn join_client(
        &self,
        state: &mut State,
        at: usize,
        mut job: Box<Job>,
        passthrough: Passthrough,
    ) {
        let Passthrough { client, mut ending } = passthrough;
        let (Some(connection), Some(me)) = (state.table.known(at), self.owner()) else { return };
        let server_id = connection.server_id;
        let upstream = self.upstreams.at(server_id.upstream);
        let mut received = Vec::new();
        if let Some(version) = upstream.plan.send_proxy_protocol {
            proxy_protocol::write(version, job.peer, &mut received);
        }
        received.extend_from_slice(&client.read);
        let Ok(guest) = self.lane.enter(client.carrier, me, at as u64 | CLIENT_SIDE) else {
            return self.close(state, at);
        };
        let of_client = TunnelEnd { received: received.into(), is_readable: true, is_read_closed: false };
        let of_server = TunnelEnd {
            received: std::mem::take(&mut connection.held).into(),
            is_readable: connection.is_readable,
            is_read_closed: connection.is_read_closed,
        };
        ending.note = job.trail.note_number(&self.watch);
        let mut tunnel = Tunnel::new((guest, of_client), (connection.guest, of_server));
        let progress = tunnel.go(&self.lane);
        let tunnel = ClientTunnel { tunnel, _permit: client.permit, ending: Some(ending) };
        connection.protocol = ConnectionProtocol::Tunnel(Box::new(tunnel));
        connection.uses += 1;
        // It stays the connection's request until its end.
        job.is_answered = true;
        state.give_job(at, job);
        state.counts_of(server_id).up(|counts| &counts.requests);
        if let Some(server) = state.server(server_id) {
            server.succeeded();
        }
        self.tunnel_moved(state, at, progress);
    }

    /// The time in which a tunnel has to move something is over.
    pub(crate) fn tunnel_overdue(&self, state: &mut State, at: usize) {
        match state.table.known(at).and_then(|connection| connection.tunnel()) {
            Some(tunnel) => tunnel.report_end(Outcome::TimedOut),
            None => bug!("a deadline of a tunnel that is none"),
        }
        self.close(state, at);
    }
}
