//! Sends a request to an upstream: chooses the server and the connection, and writes the bytes.

use std::io::{self, ErrorKind};
use std::net::IpAddr;

use flatout_engine::GuestKey;
use flatout_lane::connect;
use flatout_lane::connect::Remote;

use crate::connection::cgi_session::CgiSession;
use crate::connection::{ConnectionProtocol, UpstreamConnection};
use crate::failure::{Failure, error_text};
use crate::plan::Balance;
use crate::request::job::Job;
use crate::select::balance::{with_tried, without_tried};
use crate::server::LiveServer;
use crate::table::ServerId;
use crate::worker::ProxyWorker;
use crate::worker::named::{NOT_NAMED, NamedChoice};
use crate::worker::state::State;

impl ProxyWorker {
    /// Finds a server and a connection for a request.
    pub(crate) fn dispatch(&self, state: &mut State, mut job: Box<Job>) {
        job.rewind();
        let upstream = self.upstreams.at(job.upstream);
        let streams_max = upstream.plan.protocol.streams_max();
        // Servers that have no room for a connection now.
        let mut full = 0;
        loop {
            // Before another server is chosen, the place at the last one is free.
            job.slot = None;
            let group = state.groups.at_mut(job.upstream);
            let chosen = group.shares.choose(&upstream.plan, job.hash, job.tried | full, job.stuck_to);
            if full != 0 && !chosen.is_some_and(|at| group.shares.takes_over(at)) {
                return self.enqueue(state, job);
            }
            let Some(at) = chosen else {
                match self.named_server(state, &mut job) {
                    None => {}
                    Some(NamedChoice::Known(at)) => {
                        job.stuck_to = Some(at);
                        job.tried = without_tried(job.tried, at);
                        continue;
                    }
                    Some(NamedChoice::Later) => return self.enqueue(state, job),
                    Some(NamedChoice::Refused) => {
                        self.log(Failure::NoServer, job.upstream, None, Some(&job), Some(NOT_NAMED));
                        return self.refuse(state, job, Failure::NoServer);
                    }
                }
                let group = state.groups.at_mut(job.upstream);
                if self.finds_servers(group, upstream) {
                    // Places of servers that have left may be theirs.
                    (job.tried, job.stuck_to) = (0, None);
                    continue;
                }
                if group.shares.is_at_limit(job.tried) {
                    return self.enqueue(state, job);
                }
                group.counts.up(|counts| &counts.no_server);
                let failure = if upstream.is_empty() { Failure::Empty } else { Failure::NoServer };
                self.log(failure, job.upstream, None, Some(&job), None);
                return self.refuse(state, job, failure);
            };
            match group.shares.server(at).map(|server| server.take_slot()) {
                Some(Ok(slot)) => job.slot = slot,
                // Another worker was faster.
                _ => continue,
            }
            let server_id = ServerId { upstream: job.upstream, server: at };
            if streams_max.is_some()
                && let Some(connection) = group.shared_connection(at)
            {
                match self.join(state, connection, job) {
                    Some(back) => job = back,
                    None => return,
                }
                continue;
            }
            let pool = group.pools.at_mut(at);
            if !job.wants_new
                && !job.receiver.is_passthrough()
                && let Some(connection) = pool.idle.pop()
            {
                pool.counts.down(|counts| &counts.idle);
                match self.begin(state, connection, job) {
                    // It had been closed; the server saw nothing of the request.
                    Some(back) => job = back,
                    None => return,
                }
                continue;
            }
            if pool.open >= upstream.plan.connections_max
                && let Some(&idle) = pool.idle.first()
            {
                // It needs a new connection, and this one would rest as long as it waits.
                self.close(state, idle);
                continue;
            }
            if pool.open >= upstream.plan.connections_max {
                let others = with_tried(full, at);
                let is_bound = matches!(upstream.plan.balance, Balance::Hash(_)) || job.stuck_to == Some(at);
                if is_bound || others == full {
                    return self.enqueue(state, job);
                }
                full = others;
                continue;
            }
            job.tried = with_tried(job.tried, at);
            let is_single = group.shares.active().len() == 1;
            let Some(server) = group.shares.server(at) else { continue };
            if !is_single && !server.try_again(&upstream.plan.passive) {
                continue;
            }
            match self.connect(state, server_id, job) {
                Some(back) => job = back,
                None => return,
            }
        }
    }

    /// Opens a connection to a server for a request. Returns the request if another attempt may be made.
    fn connect(&self, state: &mut State, server_id: ServerId, mut job: Box<Job>) -> Option<Box<Job>> {
        let upstream = self.upstreams.at(server_id.upstream);
        let Some(server) = state.server(server_id).cloned() else { return Some(job) };
        let remote = server.remote();
        let address = match &remote {
            // Log which of the name's addresses it is.
            Some(remote) if self.watch.wanted_notes().is_some() && server.dns_name().is_some() => {
                remote.to_string().into()
            }
            _ => state.pool(server_id).address.clone(),
        };
        job.trail.begin(&self.watch, &address);
        // A client whose connection is passed on has TLS of its own, whatever this server is for requests.
        let is_secure = server.is_secure() && !job.receiver.is_passthrough();
        let at = state.table.next() as u64;
        let source = upstream.plan.source;
        let guest = match self.open_socket(&server, is_secure, (remote.as_deref(), source), at) {
            Ok(guest) => guest,
            Err(error) => {
                let why = match remote {
                    Some(_) => error_text(&error),
                    None => "its name has no address".to_owned(),
                };
                self.log(Failure::NotConnected, job.upstream, Some(&address), Some(&job), Some(&why));
                return self.not_opened_socket(state, server_id, job);
            }
        };
        let pool = state.pool(server_id);
        pool.open += 1;
        pool.counts.up(|counts| &counts.open);
        let is_tcp = matches!(remote.as_deref(), Some(Remote::Tcp(_)));
        // A Unix socket connects at once or fails; a TLS handshake comes after that.
        let is_connecting = is_tcp || is_secure;
        let is_piped = is_tcp && !is_secure;
        let mut connection = UpstreamConnection::new(guest, server_id, address, is_connecting, is_piped);
        if let Some(session) = CgiSession::of(upstream.plan.protocol) {
            connection.protocol = ConnectionProtocol::Cgi(Box::new(session));
        }
        let at = state.table.insert(connection);
        if let Some(streams_max) = upstream.plan.protocol.streams_max() {
            self.open_shared(state, at, streams_max, job);
            return None;
        }
        if is_connecting {
            if let Some(exchange) = job.receiver.exchange() {
                self.lane.attach(exchange, guest);
            }
            self.lane.set_deadline(guest, Some(upstream.plan.connect_time_max));
            state.give_job(at, job);
            return None;
        }
        self.begin(state, at, job)
    }

    /// Starts to connect to a server; `tag` marks the events of the connection.
    fn open_socket(
        &self,
        server: &LiveServer,
        is_secure: bool,
        (remote, source): (Option<&Remote>, Option<IpAddr>),
        tag: u64,
    ) -> io::Result<GuestKey> {
        let owner = self.owner().ok_or(ErrorKind::Interrupted)?;
        let remote = remote.ok_or(ErrorKind::AddrNotAvailable)?;
        let is_usable = |source: &IpAddr| match remote {
            Remote::Tcp(address) => address.is_ipv4() == source.is_ipv4(),
            Remote::Unix(_) => false,
        };
        let socket = connect::begin(remote, source.filter(is_usable))?;
        if !is_secure {
            return self.lane.register(socket, owner, tag);
        }
        match server.secure(socket)? {
            Ok(channel) => self.lane.register_tls(channel, owner, tag),
            Err(socket) => self.lane.register(socket, owner, tag),
        }
    }

    /// There is no socket for a request. Returns the request if it may be tried again.
    #[cold]
    fn not_opened_socket(
        &self,
        state: &mut State,
        server_id: ServerId,
        mut job: Box<Job>,
    ) -> Option<Box<Job>> {
        let upstream = self.upstreams.at(server_id.upstream);
        self.count_failure(state, server_id);
        job.trail.failed(Failure::NotConnected.status());
        if job.retries_left == 0 || !upstream.plan.retry_on.has(Failure::NotConnected) {
            self.refuse(state, job, Failure::NotConnected);
            return None;
        }
        job.retry();
        state.counts_of(server_id).up(|counts| &counts.retries);
        // A single server is tried again.
        if state.groups.at(server_id.upstream).shares.active().len() == 1 {
            job.tried = 0;
        }
        Some(job)
    }
}
