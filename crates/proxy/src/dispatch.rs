//! Sends a request to an upstream: chooses the server and the connection, and writes the bytes.

use std::io::ErrorKind;
use std::time::Duration;

use bytes::Bytes;
use flatout_engine::{Moved, Pull};
use flatout_lane::connect::Remote;
use flatout_lane::{clock, connect};
use flatout_wire::field::write_line;
use flatout_wire::proxy_protocol;

use super::balance::with_tried;
use super::connection::{Flushed, Out, ServerId, UpstreamConnection};
use super::failure::{Failure, error_text};
use super::job::{Job, Pulled};
use super::request::request_trailers;
use super::upstream::LiveUpstream;
use super::worker::{Group, ProxyWorker, State};

/// Pieces of a body up to this size are copied together with their framing.
const COPY_BYTES_MAX: usize = 16 << 10;

/// How often a queue is checked for requests that have waited too long.
const QUEUE_LOOK: Duration = Duration::from_millis(100);

impl ProxyWorker {
    /// Finds a server and a connection for a request.
    pub(super) fn dispatch(&self, state: &mut State, mut job: Box<Job>) {
        let Some(upstream) = self.upstreams.get(job.upstream) else { return };
        let streams_max = upstream.plan.protocol.streams_max();
        loop {
            let Some(group) = state.groups.get_mut(job.upstream) else { return };
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
            let (Some(server), Some(pool)) = (upstream.servers.get(at), group.pools.get_mut(at)) else {
                return;
            };
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
                if let Some(exchange) = job.waiter.exchange() {
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

    /// Looks at the outcome of an attempt to connect. Returns whether there is a connection.
    pub(super) fn connected(&self, state: &mut State, at: usize) -> bool {
        let Some(connection) = state.table.get(at) else { return false };
        if connection.is_full && !connection.is_read_closed {
            // The event was for something else.
            return false;
        }
        if let Err(error) = self.lane.outcome(connection.guest) {
            self.not_connected(state, at, Failure::NotConnected, Some(&error_text(&error)));
            return false;
        }
        connection.is_connecting = false;
        let Some(job) = state.take_job(at) else { return false };
        if let Some(back) = self.begin(state, at, job) {
            self.dispatch(state, back);
            return false;
        }
        true
    }

    /// Sends a request over a connection. Returns the request if the connection turns out to be closed before
    /// anything was sent.
    fn begin(&self, state: &mut State, at: usize, mut job: Box<Job>) -> Option<Box<Job>> {
        let Some(connection) = state.table.get(at) else { return Some(job) };
        let Some(upstream) = self.upstreams.get(connection.server_id.upstream) else { return Some(job) };
        // A server that closes while we send may or may not have seen the request. And bytes that nobody has asked for
        // must not become the response to this request. No event may have reported either yet.
        if connection.uses > 0 && self.has_closed(connection) {
            self.close(state, at);
            job.wants_new = true;
            return Some(job);
        }
        if connection.uses > 0 {
            job.trail.begin(&self.watch, &connection.address);
        }
        job.trail.connected();
        let server_id = connection.server_id;
        let bytes = &mut state.scratch;
        bytes.clear();
        if let Some(version) = upstream.plan.send_proxy_protocol {
            proxy_protocol::write(version, job.peer, bytes);
        }
        bytes.extend_from_slice(&job.head);
        if let Some(server) = upstream.servers.get(connection.server_id.server).filter(|_| job.names_server) {
            write_line(b"Host", server.name.as_bytes(), bytes);
        }
        connection.machine.request(job.sent, job.length, bytes);
        if job.pulled == Pulled::Not && job.length.is_some() {
            // The length is the body's own, so neither call can fail.
            let _ = connection.machine.data(job.body.len(), bytes);
            bytes.extend_from_slice(&job.body);
            let _ = connection.machine.end(b"", bytes);
        }
        if let Some(exchange) = job.waiter.exchange() {
            self.lane.attach(exchange, connection.guest);
        }
        let flushed = connection.send(&self.lane, bytes);
        self.await_server(connection, upstream);
        connection.uses += 1;
        state.give_job(at, job);
        state.counts_of(server_id).up(|counts| &counts.requests);
        if flushed == Flushed::Broken {
            self.broken(state, at);
        }
        None
    }

    /// Sets the time in which the server has to accept more, or to respond.
    fn await_server(&self, connection: &UpstreamConnection, upstream: &LiveUpstream) {
        let LiveUpstream { plan, .. } = upstream;
        let time_max = if connection.out.is_empty() { plan.read_time_max } else { plan.send_time_max };
        self.lane.set_deadline(connection.guest, Some(time_max));
    }

    /// Whether an idle connection is unusable: the server has closed it, or has sent what nobody has asked for. As far as
    /// the kernel knows; one system call.
    pub(super) fn has_closed(&self, connection: &UpstreamConnection) -> bool {
        let mut byte = [0];
        !matches!(self.lane.receive(connection.guest, &mut byte), Moved::WouldBlock)
    }

    /// Queues a request until a connection is free.
    fn enqueue(&self, state: &mut State, mut job: Box<Job>) {
        let index = job.upstream;
        let (Some(upstream), Some(group)) = (self.upstreams.get(index), state.groups.get_mut(index)) else {
            return;
        };
        if group.queue.len() >= upstream.plan.queue_max {
            group.counts.up(|counts| &counts.queue_full);
            self.log(Failure::QueueFull, index, None, Some(&job), None);
            return self.refuse(state, job, Failure::QueueFull);
        }
        job.queued_ns.get_or_insert_with(clock::nanoseconds);
        group.queue.push_back(job);
        group.counts.up(|counts| &counts.queued);
        if !std::mem::replace(&mut group.is_watched, true)
            && let Some(me) = self.owner()
        {
            tokio::task::spawn_local(async move {
                loop {
                    tokio::time::sleep(QUEUE_LOOK).await;
                    if !me.expire_queue(index) {
                        return;
                    }
                }
            });
        }
    }

    /// Refuses requests that have waited too long. Returns whether others are still queued.
    fn expire_queue(&self, index: usize) -> bool {
        self.with_state(|state| {
            let Some(upstream) = self.upstreams.get(index) else { return false };
            let time_max_ns = upstream.plan.queue_time_max.as_nanos() as u64;
            let oldest_ns = clock::nanoseconds().saturating_sub(time_max_ns);
            if let Some(group) = state.groups.get_mut(index) {
                let Group { queue, counts, .. } = group;
                queue.retain(|job| {
                    let is_open = job.waiter.is_open(&self.lane);
                    if !is_open {
                        counts.down(|counts| &counts.queued);
                    }
                    is_open
                });
            }
            while let Some(group) = state.groups.get_mut(index) {
                let is_late = group.queue.front().is_some_and(|job| job.queued_ns <= Some(oldest_ns));
                let late = if is_late { group.queue.pop_front() } else { None };
                match late {
                    Some(job) => {
                        group.counts.down(|counts| &counts.queued);
                        group.counts.up(|counts| &counts.queue_time);
                        self.log(Failure::QueueTime, index, None, Some(&job), None);
                        self.refuse(state, job, Failure::QueueTime);
                    }
                    None => {
                        group.is_watched = !group.queue.is_empty();
                        return group.is_watched;
                    }
                }
            }
            false
        })
    }

    /// Dispatches the next queued request, if a server that it may use has room.
    pub(super) fn dequeue(&self, state: &mut State, upstream: usize) {
        while let Some(group) = state.groups.get_mut(upstream) {
            let Some(job) = group.queue.pop_front() else { return };
            group.counts.down(|counts| &counts.queued);
            // Its client may have disconnected meanwhile.
            if job.waiter.is_open(&self.lane) {
                return self.dispatch(state, job);
            }
        }
    }

    /// Moves data in both directions.
    pub(super) fn pump(&self, state: &mut State, at: usize) {
        if state.table.get(at).is_none_or(|connection| connection.is_connecting || connection.is_switching) {
            return;
        }
        if !self.send_body(state, at) {
            return self.receive_last(state, at);
        }
        self.receive(state, at);
    }

    /// The server accepts no more, but it may have responded before it closed, and no event may have reported that yet.
    #[cold]
    fn receive_last(&self, state: &mut State, at: usize) {
        let Some(connection) = state.table.get(at) else { return };
        let guest = connection.guest;
        connection.is_readable = true;
        self.receive(state, at);
        // A response that has begun goes on: the server may have closed for reading only.
        let has_nothing = |connection: &mut UpstreamConnection| {
            let is_waiting = connection.job.as_ref().is_some_and(|job| !job.is_answered);
            connection.guest == guest && is_waiting && connection.held.is_empty()
        };
        if state.table.get(at).is_some_and(has_nothing) {
            self.broken(state, at);
        }
    }

    /// Sends queued bytes, and newly arrived parts of the request's body. Returns whether the connection still
    /// accepts data.
    fn send_body(&self, state: &mut State, at: usize) -> bool {
        let State { table, scratch, .. } = state;
        let Some(connection) = table.get(at) else { return true };
        let Some(upstream) = self.upstreams.get(connection.server_id.upstream) else { return true };
        let waited = !connection.out.is_empty() && !connection.is_full;
        if connection.flush(&self.lane) == Flushed::Broken {
            return false;
        }
        if waited {
            self.await_server(connection, upstream);
        }
        while connection.out.is_empty() && !connection.is_full {
            let Some(job) = connection.job.as_mut() else { return true };
            if !matches!(job.pulled, Pulled::Waiting | Pulled::Begun) || connection.machine.is_closed() {
                return true;
            }
            let piece = job.waiter.exchange().map_or(Pull::Gone, |exchange| self.lane.pull(exchange));
            if !matches!(piece, Pull::Later | Pull::Gone) {
                job.pulled = Pulled::Begun;
                job.has_client_sent = true;
            }
            scratch.clear();
            match piece {
                Pull::Data(bytes) => {
                    let Ok(behind) = connection.machine.data(bytes.len(), scratch) else { return true };
                    push(connection, scratch, Out::Bytes(bytes), behind);
                }
                Pull::Pipe(pipe) => {
                    let Ok(behind) = connection.machine.data(pipe.bytes(), scratch) else { return true };
                    push(connection, scratch, Out::Pipe(pipe), behind);
                }
                Pull::End(trailers) => {
                    job.pulled = Pulled::Whole;
                    if connection.machine.end(&request_trailers(&trailers, &job.trailers), scratch).is_err() {
                        return true;
                    }
                    if !scratch.is_empty() {
                        connection.out.push_back(Out::Bytes(Bytes::copy_from_slice(scratch)));
                    }
                }
                // The engine has refused the rest of the body, and so the request.
                Pull::Fault(fault) => {
                    self.end_job_of(state, at, fault.into());
                    return true;
                }
                Pull::Later | Pull::Gone => return true,
            }
            if connection.flush(&self.lane) == Flushed::Broken {
                return false;
            }
            if !connection.out.is_empty()
                || connection.job.as_ref().is_some_and(|job| job.pulled == Pulled::Whole)
            {
                self.await_server(connection, upstream);
            }
        }
        true
    }
}

/// Queues a piece of a body with its framing. Small pieces are joined with it, since each entry costs a system call.
fn push(connection: &mut UpstreamConnection, before: &[u8], piece: Out, behind: &'static [u8]) {
    if let Out::Bytes(bytes) = &piece
        && !before.is_empty()
        && bytes.len() <= COPY_BYTES_MAX
    {
        return connection.out.push_back(Out::Bytes([before, bytes, behind].concat().into()));
    }
    if !before.is_empty() {
        connection.out.push_back(Out::Bytes(Bytes::copy_from_slice(before)));
    }
    connection.out.push_back(piece);
    if !behind.is_empty() {
        connection.out.push_back(Out::Bytes(Bytes::from_static(behind)));
    }
}
