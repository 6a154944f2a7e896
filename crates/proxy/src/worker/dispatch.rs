//! Sends a request to an upstream: chooses the server and the connection, and writes the bytes.

use std::io::ErrorKind;

use flatout_lane::connect;
use flatout_lane::connect::Remote;

use crate::connection::UpstreamConnection;
use crate::failure::{Failure, error_text};
use crate::request::job::Job;
use crate::select::balance::with_tried;
use crate::table::ServerId;
use crate::worker::ProxyWorker;
use crate::worker::state::State;

impl ProxyWorker {
    /// Finds a server and a connection for a request.
    pub(crate) fn dispatch(&self, state: &mut State, mut job: Box<Job>) {
        let upstream = self.upstreams.at(job.upstream);
        let streams_max = upstream.plan.protocol.streams_max();
        loop {
            let group = state.groups.at_mut(job.upstream);
            let chosen = group.shares.choose(upstream, job.hash, job.tried, job.stuck_to);
            let Some(at) = chosen else {
                group.counts.up(|counts| &counts.no_server);
                self.log(Failure::NoServer, job.upstream, None, Some(&job), None);
                return self.refuse(state, job, Failure::NoServer);
            };
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
            let (server, pool) = (upstream.servers.at(at), group.pools.at_mut(at));
            if !job.wants_new
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
            if pool.open >= upstream.plan.connections_max {
                return self.enqueue(state, job);
            }
            job.tried = with_tried(job.tried, at);
            if upstream.servers.len() > 1 && !server.try_again(&upstream.plan.passive) {
                continue;
            }
            let Some(owner) = self.owner() else { return };
            let remote = server.remote();
            let address = match &remote {
                // Log which of the name's addresses it is.
                Some(remote) if self.watch.notes.is_some() && server.dns_name().is_some() => {
                    remote.to_string().into()
                }
                _ => pool.address.clone(),
            };
            job.trail.begin(&self.watch, &address);
            let socket = match &remote {
                Some(remote) => connect::begin(remote, None),
                None => Err(ErrorKind::AddrNotAvailable.into()),
            };
            let tag = state.table.next() as u64;
            let guest = socket.and_then(|socket| match server.secure(socket)? {
                Ok(channel) => self.lane.register_tls(channel, owner, tag),
                Err(socket) => self.lane.register(socket, owner, tag),
            });
            let guest = match guest {
                Ok(guest) => guest,
                Err(error) => {
                    server.failed(&upstream.plan.passive);
                    job.trail.failed(Failure::NotConnected.status());
                    pool.counts.up(|counts| &counts.failures);
                    let why = match remote {
                        Some(_) => error_text(&error),
                        None => "its name has no address".to_owned(),
                    };
                    self.log(Failure::NotConnected, job.upstream, Some(&address), Some(&job), Some(&why));
                    if job.retries_left == 0 {
                        return self.refuse(state, job, Failure::NotConnected);
                    }
                    job.retries_left -= 1;
                    pool.counts.up(|counts| &counts.retries);
                    // A single server is tried again.
                    job.tried = if upstream.servers.len() == 1 { 0 } else { job.tried };
                    continue;
                }
            };
            pool.open += 1;
            pool.counts.up(|counts| &counts.open);
            let is_tcp = matches!(remote.as_deref(), Some(Remote::Tcp(_)));
            // A Unix socket connects at once or fails; a TLS handshake comes after that.
            let is_connecting = is_tcp || server.is_secure();
            let is_piped = is_tcp && !server.is_secure();
            let connection = state.table.insert(UpstreamConnection::new(
                guest,
                server_id,
                address,
                is_connecting,
                is_piped,
            ));
            if let Some(streams_max) = streams_max {
                return self.open_shared(state, connection, streams_max, job);
            }
            if is_connecting {
                if let Some(exchange) = job.receiver.exchange() {
                    self.lane.attach(exchange, guest);
                }
                self.lane.set_deadline(guest, Some(upstream.plan.connect_time_max));
                return state.give_job(connection, job);
            }
            match self.begin(state, connection, job) {
                Some(back) => job = back,
                None => return,
            }
        }
    }
}
