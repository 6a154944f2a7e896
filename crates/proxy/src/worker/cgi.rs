//! Requests and responses over connections of FastCGI, SCGI and uwsgi. They are those of HTTP/1 in another form: one at a time.

use flatout_engine::{Moved, Pull, Severity, report};
use flatout_wire::h1::Length;

use crate::connection::h1::{ReadOutcome, ResponseReader};
use crate::connection::{ConnectionProtocol, Flushed, UpstreamConnection};
use crate::failure::{Failure, Throttle};
use crate::request::cgi::{write_body_end, write_body_part, write_request};
use crate::request::job::{Job, Pulled};
use crate::worker::ProxyWorker;
use crate::worker::state::State;

/// Reads of one connection before others get their turn.
const READS_PER_CALL: usize = 8;

/// Decoded bytes that wait for the client, before nothing more is read.
const WAITING_BYTES_MAX: usize = 128 << 10;

impl ProxyWorker {
    /// Sends a request over a connection that is known to be open. Returns it if the connection cannot be used.
    #[cold]
    pub(crate) fn begin_cgi(&self, state: &mut State, at: usize, mut job: Box<Job>) -> Option<Box<Job>> {
        let State { table, scratch: bytes, .. } = &mut *state;
        let Some(connection) = table.known(at) else { return Some(job) };
        let (server_id, guest) = (connection.server_id, connection.guest);
        let plan = &self.upstreams.at(server_id.upstream).plan;
        // The machine notes the end of the body: the connection is not reused before.
        let length = (job.pulled != Pulled::Not).then_some(Length::Unknown);
        connection.machine.request(job.sent, length, bytes);
        bytes.clear();
        let written = write_request(&job, plan, bytes);
        if let Err((failure, why)) = written {
            self.log(failure, server_id.upstream, None, Some(&job), Some(why));
            self.close(state, at);
            self.end_with(state, job, failure);
            self.dequeue(state, server_id.upstream);
            return None;
        }
        let flushed = connection.send(&self.lane, bytes);
        if connection.has_sent_nothing(flushed, bytes.len()) {
            self.close(state, at);
            job.wants_new = true;
            return Some(job);
        }
        if let ConnectionProtocol::Cgi(session) = &mut connection.protocol {
            session.begin(job.sent.is_head);
        }
        if let Some(exchange) = job.receiver.exchange() {
            self.lane.attach(exchange, guest);
        }
        if job.stored.is_some() {
            // No event of the client's exchange reports a body that is in a file.
            self.lane.call_again(guest);
        }
        let time_max = if connection.out.is_empty() { plan.read_time_max } else { plan.send_time_max };
        self.lane.set_deadline(guest, Some(time_max));
        connection.uses += 1;
        state.give_job(at, job);
        state.counts_of(server_id).up(|counts| &counts.requests);
        if flushed == Flushed::Broken {
            self.broken(state, at);
        }
        None
    }

    /// Moves data in both directions.
    #[cold]
    pub(crate) fn pump_cgi(&self, state: &mut State, at: usize) {
        if !self.send_cgi_body(state, at) {
            return;
        }
        for _ in 0..READS_PER_CALL {
            if !self.receive_cgi(state, at) {
                return;
            }
        }
        if let Some(connection) = state.table.find(at) {
            self.lane.call_again(connection.guest);
        }
    }

    /// Sends what waits, and newly arrived parts of the request's body. Returns whether the request goes on.
    fn send_cgi_body(&self, state: &mut State, at: usize) -> bool {
        let State { table, scratch, .. } = &mut *state;
        let Some(connection) = table.known(at) else { return false };
        let plan = &self.upstreams.at(connection.server_id.upstream).plan;
        if !connection.out.is_empty() && !connection.is_full {
            let flushed = connection.flush(&self.lane);
            accepts_no_more(connection, flushed);
            self.lane.set_deadline(connection.guest, Some(plan.read_time_max));
        }
        while connection.out.is_empty() && !connection.is_full && !connection.is_read_closed {
            let Some(job) = connection.job.as_mut() else { return true };
            if !matches!(job.pulled, Pulled::Waiting | Pulled::Begun) || connection.machine.is_closed() {
                return true;
            }
            let exchange = job.receiver.exchange();
            let piece = job.pull(&self.lane, exchange, connection.guest);
            if !matches!(piece, Ok(Pull::Later | Pull::Gone)) {
                job.pulled = Pulled::Begun;
                job.has_client_sent = true;
            }
            scratch.clear();
            let failure = match piece {
                Ok(Pull::Data(bytes)) => {
                    write_body_part(&bytes, plan.protocol, scratch);
                    None
                }
                // Records have heads, so the bytes cannot be spliced. A pipe has no more than 64 KiB.
                Ok(Pull::Pipe(mut pipe)) => match pipe.take_bytes() {
                    Some(bytes) => {
                        write_body_part(&bytes, plan.protocol, scratch);
                        None
                    }
                    None => Some(Failure::BadBody),
                },
                Ok(Pull::End(_)) => {
                    job.pulled = Pulled::Whole;
                    // The length is not known to the machine, so this cannot fail.
                    let _ = connection.machine.end(b"", scratch);
                    scratch.clear();
                    write_body_end(plan.protocol, scratch);
                    None
                }
                Ok(Pull::Later | Pull::Gone) => return true,
                // The engine has refused the rest of the body, and so the request.
                Ok(Pull::Fault(fault)) => Some(fault.into()),
                Err(failure) => Some(failure),
            };
            if let Some(failure) = failure {
                self.end_job_of(state, at, failure);
                return false;
            }
            let flushed =
                if scratch.is_empty() { Flushed::All } else { connection.send(&self.lane, scratch) };
            accepts_no_more(connection, flushed);
            let time_max = if connection.out.is_empty() { plan.read_time_max } else { plan.send_time_max };
            self.lane.set_deadline(connection.guest, Some(time_max));
        }
        true
    }

    /// Receives what there is, once. Returns whether there may be more.
    fn receive_cgi(&self, state: &mut State, at: usize) -> bool {
        let State { table, fields, groups, decisions, .. } = &mut *state;
        let Some(connection) = table.find(at) else { return false };
        let Some(job) = &connection.job else {
            if connection.is_readable && self.has_closed(connection) {
                self.close(state, at);
            } else {
                connection.is_readable = false;
            }
            return false;
        };
        let has_room = !job.is_answered || job.receiver.has_room(&self.lane);
        if !has_room {
            self.wait_for_client(state, at);
            return false;
        }
        let upstream = self.upstreams.at(connection.server_id.upstream);
        let mut received = Moved::WouldBlock;
        if connection.is_readable && connection.held.len() < WAITING_BYTES_MAX {
            let mut buffer = self.lane.buffer();
            received = self.lane.receive(connection.guest, &mut buffer);
            let count = if let Moved::Bytes(count) = received { count } else { 0 };
            connection.is_readable = count == buffer.len() || (count > 0 && connection.is_read_closed);
            let ConnectionProtocol::Cgi(session) = &mut connection.protocol else { return false };
            let bytes = buffer.get(..count).unwrap_or_default();
            let decoded = session.decode(bytes, &mut connection.held);
            if received == Moved::Bytes(0) {
                session.closed(&mut connection.held);
            }
            let is_last = decoded.is_err() || matches!(received, Moved::Bytes(0) | Moved::Broken);
            let messages = session.take_messages(is_last);
            drop(buffer);
            report_messages(&upstream.plan.name, &messages);
            if let Err(why) = decoded {
                self.failed(state, at, Some(&why));
                return false;
            }
            if count > 0 {
                self.lane.set_deadline(connection.guest, Some(upstream.plan.read_time_max));
            }
        }
        let is_over = matches!(received, Moved::Bytes(0) | Moved::Broken);
        let bytes = std::mem::take(&mut connection.held);
        let guest = connection.guest;
        let group = groups.at_mut(connection.server_id.upstream);
        let watch = &self.watch;
        let mut reader =
            ResponseReader { lane: &self.lane, guest, upstream, watch, fields, group, decisions };
        let (used, outcome) = reader.consume(connection, &bytes);
        connection.held.extend_from_slice(bytes.get(used..).unwrap_or_default());
        match outcome {
            // Nothing comes any more, and the client has room: the response is incomplete.
            ReadOutcome::More if is_over && used == 0 => {
                self.broken(state, at);
                false
            }
            ReadOutcome::More => {
                connection.is_readable |= is_over;
                used > 0 || connection.is_readable
            }
            outcome => {
                self.apply_outcome(state, at, outcome);
                false
            }
        }
    }
}

/// The application may have responded before it closed.
fn accepts_no_more(connection: &mut UpstreamConnection, flushed: Flushed) {
    if flushed == Flushed::Broken {
        connection.out.clear();
        connection.is_readable = true;
        connection.is_read_closed = true;
    }
}

/// Logs what an application reports, one line for each of its lines.
fn report_messages(upstream: &str, messages: &[u8]) {
    static THROTTLE: Throttle = Throttle::new();
    for line in String::from_utf8_lossy(messages).lines().filter(|line| !line.trim().is_empty()) {
        let line: String = line.chars().map(|it| if it.is_control() { ' ' } else { it }).collect();
        if THROTTLE.admit_now() {
            report(Severity::Warning, format_args!("upstream {upstream}: application: {line}"));
        }
    }
}
