//! Sends requests over HTTP/1 connections.

use bytes::Bytes;
use flatout_engine::{Moved, Pull, bug};
use flatout_lane::clock;
use flatout_wire::field::write_line;
use flatout_wire::proxy_protocol;

use crate::connection::{ConnectionProtocol, Flushed, Out, UpstreamConnection};
use crate::failure::{Failure, error_text};
use crate::receiver::Receiver;
use crate::request::job::{Job, Pulled};
use crate::request::trailers::request_trailers;
use crate::upstream::LiveUpstream;
use crate::worker::ProxyWorker;
use crate::worker::state::State;

/// Pieces of a body up to this size are copied together with their framing.
const COPY_BYTES_MAX: usize = 16 << 10;

/// The time, for upstreams whose responses are measured.
pub(crate) fn measured_now(upstream: &LiveUpstream) -> u64 {
    if upstream.plan.is_measured() { clock::nanoseconds() } else { 0 }
}

impl ProxyWorker {
    /// Looks at the outcome of an attempt to connect. Returns whether there is a connection.
    pub(crate) fn connected(&self, state: &mut State, at: usize) -> bool {
        let Some(connection) = state.table.known(at) else { return false };
        if connection.is_full && !connection.is_read_closed {
            // The event was for something else.
            return false;
        }
        if let Err(error) = self.lane.outcome(connection.guest) {
            self.not_connected(state, at, Failure::NotConnected, Some(&error_text(&error)));
            return false;
        }
        connection.is_connecting = false;
        let Some(job) = state.take_job(at) else {
            bug!("a connection was opened for no request");
            self.close(state, at);
            return false;
        };
        let is_passthrough = job.receiver.is_passthrough();
        if let Some(back) = self.begin(state, at, job) {
            self.dispatch(state, back);
            return false;
        }
        // A tunnel has no response to read.
        !is_passthrough
    }

    /// Sends a request over a connection. Returns the request if the connection turns out to be closed before
    /// anything was sent.
    pub(crate) fn begin(&self, state: &mut State, at: usize, mut job: Box<Job>) -> Option<Box<Job>> {
        let Some(connection) = state.table.known(at) else { return Some(job) };
        let upstream = self.upstreams.at(connection.server_id.upstream);
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
        if let Receiver::Passthrough(passthrough) = &mut job.receiver {
            if let Some(passthrough) = passthrough.take() {
                self.join_client(state, at, job, *passthrough);
            }
            return None;
        }
        job.sent_ns = measured_now(upstream);
        if upstream.plan.protocol.is_cgi() {
            return self.begin_cgi(state, at, job);
        }
        let server_id = connection.server_id;
        let bytes = &mut state.scratch;
        bytes.clear();
        if let Some(version) = upstream.plan.send_proxy_protocol {
            proxy_protocol::write(version, job.peer, bytes);
        }
        bytes.extend_from_slice(&job.head);
        if job.names_server {
            let group = state.groups.at(server_id.upstream);
            let name = group.shares.server(server_id.server).map_or("", |server| &server.name);
            write_line(b"Host", name.as_bytes(), bytes);
        }
        connection.machine.request(job.sent, job.length, bytes);
        if job.pulled == Pulled::Not && job.length.is_some() {
            // The length is the body's own, so neither call can fail.
            let _ = connection.machine.data(job.body.len(), bytes);
            bytes.extend_from_slice(&job.body);
            let _ = connection.machine.end(b"", bytes);
        }
        let flushed = connection.send(&self.lane, bytes);
        if connection.has_sent_nothing(flushed, bytes.len()) {
            self.close(state, at);
            job.wants_new = true;
            return Some(job);
        }
        if let Some(exchange) = job.receiver.exchange() {
            self.lane.attach(exchange, connection.guest);
        }
        if job.stored.is_some() {
            // No event of the client's exchange reports a body that is in a file.
            self.lane.call_again(connection.guest);
        }
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
    pub(crate) fn has_closed(&self, connection: &UpstreamConnection) -> bool {
        let mut byte = [0];
        !matches!(self.lane.receive(connection.guest, &mut byte), Moved::WouldBlock)
    }

    /// Moves data in both directions.
    pub(crate) fn pump(&self, state: &mut State, at: usize) {
        if state.table.find(at).is_none_or(|connection| connection.is_connecting || !connection.is_http1()) {
            return self.pump_other(state, at);
        }
        if !self.send_body(state, at) {
            return self.receive_last(state, at);
        }
        self.receive(state, at);
    }

    /// The same for a connection that is not open yet, or is not HTTP/1.
    #[cold]
    fn pump_other(&self, state: &mut State, at: usize) {
        let is_open = |connection: &mut UpstreamConnection| {
            matches!(connection.protocol, ConnectionProtocol::Cgi(_)) && !connection.is_connecting
        };
        if state.table.find(at).is_some_and(is_open) {
            self.pump_cgi(state, at);
        }
    }

    /// The server accepts no more, but it may have responded before it closed, and no event may have reported that yet.
    #[cold]
    fn receive_last(&self, state: &mut State, at: usize) {
        let Some(connection) = state.table.known(at) else { return };
        let guest = connection.guest;
        connection.is_readable = true;
        self.receive(state, at);
        // A response that has begun goes on: the server may have closed for reading only.
        let has_nothing = |connection: &mut UpstreamConnection| {
            let is_waiting = connection.job.as_ref().is_some_and(|job| !job.is_answered);
            connection.guest == guest && is_waiting && connection.held.is_empty()
        };
        if state.table.find(at).is_some_and(has_nothing) {
            self.broken(state, at);
        }
    }

    /// The body does not have the length that its head declares, which the engine has checked. Returns `true`: nothing is
    /// left to be sent.
    #[cold]
    fn misframed(&self, state: &mut State, at: usize) -> bool {
        bug!("a request body has another length than its head declares");
        self.end_job_of(state, at, Failure::BadBody);
        true
    }

    /// Sends queued bytes, and newly arrived parts of the request's body. Returns whether the connection still
    /// accepts data.
    fn send_body(&self, state: &mut State, at: usize) -> bool {
        let State { table, scratch, .. } = state;
        let Some(connection) = table.known(at) else { return true };
        let upstream = self.upstreams.at(connection.server_id.upstream);
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
            let exchange = job.receiver.exchange();
            let piece = match job.pull(&self.lane, exchange, connection.guest) {
                Ok(piece) => piece,
                Err(failure) => {
                    self.end_job_of(state, at, failure);
                    return true;
                }
            };
            if !matches!(piece, Pull::Later | Pull::Gone) {
                job.pulled = Pulled::Begun;
                job.has_client_sent = true;
            }
            scratch.clear();
            match piece {
                Pull::Data(bytes) => {
                    let Ok(behind) = connection.machine.data(bytes.len(), scratch) else {
                        return self.misframed(state, at);
                    };
                    push(connection, scratch, Out::Bytes(bytes), behind);
                }
                Pull::Pipe(pipe) => {
                    let Ok(behind) = connection.machine.data(pipe.bytes(), scratch) else {
                        return self.misframed(state, at);
                    };
                    push(connection, scratch, Out::Pipe(pipe), behind);
                }
                Pull::End(trailers) => {
                    job.pulled = Pulled::Whole;
                    if connection.machine.end(&request_trailers(&trailers, &job.trailers), scratch).is_err() {
                        return self.misframed(state, at);
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
