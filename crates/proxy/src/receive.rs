//! Receives an upstream response and passes it to the client.

use bytes::Bytes;
use flatout_engine::{Body, GuestKey, Lane, Moved, PIPE_BYTES, Response};
use flatout_wire::Status;
use flatout_wire::answer::{ResponseFraming, parse_fields};
use flatout_wire::field::Field;
use flatout_wire::h1::{AnswerEvent, Client, Piece};

use super::connection::UpstreamConnection;
use super::job::Job;
use super::request::was_asked;
use super::response::{FIELDS_MAX, HEAD_BYTES_MAX, Received, trailer_lines};
use super::sticky;
use super::upstream::LiveUpstream;
use super::waiter::{PendingDecisions, Waiter};
use super::watch::Watch;
use super::worker::{ProxyWorker, State};
use flatout_gateway::ResponseOrigin;

/// Reads of one connection before others get their turn.
const READS_PER_CALL: usize = 8;

/// From this size on, the rest of a body is received into its own memory, or goes through a pipe.
const PASSED_BYTES_MIN: u64 = 64 << 10;

/// The result of reading from a server.
enum ReadOutcome {
    /// The response continues, or the client has to read the data so far first.
    More,
    /// The response is complete.
    Whole,
    /// The response is malformed or incomplete.
    Bad,
    /// The connection switches to another protocol.
    Switch(Box<Response>),
    /// Our own response has replaced it; the rest is discarded.
    Replaced,
}

impl ProxyWorker {
    /// Receives what a server has sent, while its client has room for it.
    pub(super) fn receive(&self, state: &mut State, at: usize) {
        for _ in 0..READS_PER_CALL {
            let State { table, fields, decisions, .. } = &mut *state;
            let Some(connection) = table.get(at) else { return };
            let Some(job) = &connection.job else {
                // Unexpected bytes, EOF, or a TLS record without data.
                if connection.is_readable && self.has_closed(connection) {
                    return self.close(state, at);
                }
                connection.is_readable = false;
                return;
            };
            if job.is_answered && !job.waiter.has_room(&self.lane) {
                return;
            }
            if !connection.is_readable && connection.held.is_empty() {
                return;
            }
            if job.is_answered
                && let Some(outcome) = self.pass(connection, decisions)
            {
                match outcome {
                    ReadOutcome::More if connection.is_readable => continue,
                    ReadOutcome::More => return,
                    outcome => return self.apply_outcome(state, at, outcome),
                }
            }
            let mut buffer = self.lane.buffer();
            let held = connection.held.len();
            let Some(room) = buffer.get_mut(held..) else { return };
            let received = if connection.is_readable {
                self.lane.receive(connection.guest, room)
            } else {
                Moved::WouldBlock
            };
            let end = match received {
                Moved::Bytes(0) => {
                    drop(buffer);
                    return self.ended(state, at);
                }
                // A broken connection does not complete a response, not even one delimited by EOF.
                Moved::Broken => {
                    drop(buffer);
                    return self.broken(state, at);
                }
                Moved::Bytes(count) => {
                    connection.is_readable = count == room.len() || connection.is_read_closed;
                    held + count
                }
                Moved::WouldBlock => {
                    connection.is_readable = false;
                    if held == 0 {
                        return;
                    }
                    held
                }
            };
            if let Some(start) = buffer.get_mut(..held) {
                start.copy_from_slice(&connection.held);
                connection.held.clear();
            }
            let Some(upstream) = self.upstreams.get(connection.server_id.upstream) else { return };
            self.lane.set_deadline(connection.guest, Some(upstream.plan.read_time_max));
            let bytes = buffer.get(..end).unwrap_or_default();
            let guest = connection.guest;
            let watch = &self.watch;
            let (used, outcome) =
                ResponseReader { lane: &self.lane, guest, upstream, watch, fields, decisions }
                    .consume(connection, bytes);
            if let Some(rest) = bytes.get(used..).filter(|rest| !rest.is_empty()) {
                connection.held.extend_from_slice(rest);
            }
            drop(buffer);
            match outcome {
                ReadOutcome::More if received == Moved::WouldBlock => return,
                ReadOutcome::More => {}
                outcome => return self.apply_outcome(state, at, outcome),
            }
        }
        // There may be more data without another edge: let others run first, then call this one again.
        if let Some(connection) = state.table.get(at) {
            self.lane.call_again(connection.guest);
        }
    }

    /// Moves a large part of a response's body without looking at it. `None` if it has to be received into the lane's
    /// buffer.
    fn pass(
        &self,
        connection: &mut UpstreamConnection,
        decisions: &mut PendingDecisions,
    ) -> Option<ReadOutcome> {
        let plain = connection.machine.plain_bytes();
        if plain < PASSED_BYTES_MIN || !connection.held.is_empty() {
            return None;
        }
        let job = connection.job.as_mut()?;
        if job.waiter.is_rule() {
            return None;
        }
        let is_piped =
            connection.is_piped && job.waiter.exchange().is_some_and(|key| self.lane.takes_pipes(key));
        let most = usize::try_from(plain).map_or(PIPE_BYTES, |plain| plain.min(PIPE_BYTES));
        let moved = match is_piped {
            true => {
                let mut pipe = self.lane.pipe().ok()?;
                let moved = self.lane.fill_pipe(connection.guest, &mut pipe, most);
                if matches!(moved, Moved::Bytes(1..)) {
                    job.waiter.push_pipe(&self.lane, pipe);
                }
                moved
            }
            false => {
                let mut piece = vec![0; most];
                let moved = self.lane.receive(connection.guest, &mut piece);
                if let Moved::Bytes(count @ 1..) = moved {
                    connection.is_readable = count == most || connection.is_read_closed;
                    job.waiter.push(&self.lane, fitted(piece, count));
                }
                moved
            }
        };
        match moved {
            Moved::Broken => Some(ReadOutcome::Bad),
            Moved::Bytes(0) => match connection.machine.finish() {
                Ok(true) => {
                    job.waiter.end(&self.lane, b"", decisions);
                    Some(ReadOutcome::Whole)
                }
                Ok(false) | Err(_) => Some(ReadOutcome::Bad),
            },
            Moved::WouldBlock => {
                connection.is_readable = false;
                Some(ReadOutcome::More)
            }
            Moved::Bytes(count) => {
                connection.machine.passed(count as u64);
                if connection.machine.plain_bytes() > 0 {
                    return Some(ReadOutcome::More);
                }
                let end = connection.machine.body(&[], &mut Vec::new());
                let is_whole = matches!(end, Ok((_, Piece::End)));
                if is_whole {
                    job.waiter.end(&self.lane, b"", decisions);
                }
                Some(if is_whole { ReadOutcome::Whole } else { ReadOutcome::Bad })
            }
        }
    }

    /// Acts on the result of a read.
    fn apply_outcome(&self, state: &mut State, at: usize, outcome: ReadOutcome) {
        match outcome {
            ReadOutcome::More => {}
            ReadOutcome::Whole => self.complete(state, at),
            ReadOutcome::Bad => self.failed(state, at),
            ReadOutcome::Replaced => self.close(state, at),
            ReadOutcome::Switch(response) => self.switch(state, at, response),
        }
    }

    /// The server has closed its side (EOF).
    fn ended(&self, state: &mut State, at: usize) {
        let Some(connection) = state.table.get(at) else { return };
        connection.is_readable = false;
        connection.is_read_closed = true;
        let was_answered = connection.job.as_ref().is_some_and(|job| job.is_answered);
        match connection.machine.finish() {
            Ok(true) if was_answered => {
                if let Some(job) = &mut connection.job {
                    job.waiter.end(&self.lane, b"", &mut state.decisions);
                }
                self.complete(state, at);
            }
            _ => self.broken(state, at),
        }
    }
}

/// Writes the head of a final response.
#[inline]
pub(super) fn write_response(
    received: &Received<'_>,
    job: &mut Job,
    upstream: &LiveUpstream,
    server: usize,
    watch: &Watch,
    response: &mut Response,
) {
    received.write(job.via.as_deref(), job.sent.is_head, response);
    // No sticky cookie in a response that may be stored.
    if job.stuck_to != Some(server) && !matches!(job.waiter, Waiter::Sink(_)) {
        sticky::set(upstream, server, response);
    }
    if job.waiter.exchange().is_some() {
        job.trail.answered(watch, received.status, response);
    }
}

/// The first `count` bytes of a piece. A short piece is copied into its own memory, because queued data is counted by
/// its length.
fn fitted(mut piece: Vec<u8>, count: usize) -> Bytes {
    if count < piece.len() / 2 {
        return Bytes::copy_from_slice(piece.get(..count).unwrap_or_default());
    }
    piece.truncate(count);
    piece.into()
}

/// What reading a response needs besides its connection.
struct ResponseReader<'a> {
    lane: &'a Lane,
    guest: GuestKey,
    upstream: &'a LiveUpstream,
    watch: &'a Watch,
    fields: &'a mut Vec<Field>,
    decisions: &'a mut PendingDecisions,
}

impl ResponseReader<'_> {
    /// Reads a response. Returns how many bytes were used, and the result.
    fn consume(&mut self, connection: &mut UpstreamConnection, bytes: &[u8]) -> (usize, ReadOutcome) {
        let mut used = 0;
        loop {
            let rest = bytes.get(used..).unwrap_or_default();
            let Some(job) = connection.job.as_deref_mut() else { return (used, ReadOutcome::More) };
            let (taken, outcome) = match job.is_answered {
                false => self.head(&mut connection.machine, job, connection.server_id.server, rest),
                true => self.body(&mut connection.machine, job, rest),
            };
            used += taken;
            if let Some(outcome) = outcome {
                return (used, outcome);
            }
        }
    }

    /// Reads a response's head, also an interim one, and any of its body in the same bytes. `None` means continue.
    fn head(
        &mut self,
        machine: &mut Client,
        job: &mut Job,
        server: usize,
        bytes: &[u8],
    ) -> (usize, Option<ReadOutcome>) {
        let ResponseReader { lane, guest, upstream, watch, fields, decisions } = self;
        let event = machine
            .head(bytes, |bytes, to_head| parse_fields(bytes, to_head, HEAD_BYTES_MAX, FIELDS_MAX, fields));
        let Ok(event) = event else { return (0, Some(ReadOutcome::Bad)) };
        let answer = match event {
            AnswerEvent::NeedMore => return (0, Some(ReadOutcome::More)),
            AnswerEvent::Interim(answer) | AnswerEvent::Head(answer) | AnswerEvent::Switch(answer) => answer,
        };
        let used = answer.head_bytes;
        let received = Received { status: answer.status, version: "1.1", head_bytes: used, bytes, fields };
        match event {
            AnswerEvent::Interim(_) => {
                // We have sent the client a 100 already.
                if answer.status != Status::CONTINUE && !job.waiter.is_rule() {
                    job.waiter.inform(lane, answer.status, &received.interim_lines());
                }
                (used, None)
            }
            AnswerEvent::Switch(_) => {
                if !was_asked(&job.head, received.field_all(b"upgrade")) {
                    return (used, Some(ReadOutcome::Bad));
                }
                if let Some(expected) = &job.accept
                    && !received.field_all(b"sec-websocket-accept").eq([expected.as_bytes()])
                {
                    return (used, Some(ReadOutcome::Bad));
                }
                let mut response = lane.response();
                received.write_switching(&mut response);
                job.trail.answered(watch, answer.status, &mut response);
                (used, Some(ReadOutcome::Switch(response)))
            }
            _ => {
                let mut response = lane.response();
                write_response(&received, job, upstream, server, watch, &mut response);
                job.is_answered = true;
                let rest = bytes.get(used..).unwrap_or_default();
                let whole = machine.whole_body(rest);
                match (&whole, answer.framing) {
                    (Some([]), _) => {}
                    (Some(body), _) => response.buffer().extend_from_slice(body),
                    (None, ResponseFraming::Length(length)) => {
                        response.set_body(Body::Pushed).declare_length(length);
                    }
                    (None, _) => {
                        response.set_body(Body::Pushed);
                    }
                }
                let goes_on = job.waiter.answer(lane, Some(*guest), response, ResponseOrigin::Upstream);
                match whole {
                    Some(body) => {
                        // Other waiters already have the complete response.
                        if job.waiter.is_rule() {
                            job.waiter.end(lane, b"", decisions);
                        }
                        (used + body.len(), Some(ReadOutcome::Whole))
                    }
                    None if goes_on => (used, None),
                    None => (used, Some(ReadOutcome::Replaced)),
                }
            }
        }
    }

    /// Reads a piece of a response's body. `None` means continue.
    fn body(&mut self, machine: &mut Client, job: &mut Job, bytes: &[u8]) -> (usize, Option<ReadOutcome>) {
        let ResponseReader { lane, decisions, .. } = self;
        // The end needs no room, and no later event would report it.
        if !bytes.is_empty() && !job.waiter.has_room(lane) {
            return (0, Some(ReadOutcome::More));
        }
        let mut trailers = Vec::new();
        match machine.body(bytes, &mut trailers) {
            Ok((used, Piece::NeedMore)) => (used, Some(ReadOutcome::More)),
            Ok((used, Piece::Data(data))) => match job.waiter.push(lane, Bytes::copy_from_slice(data)) {
                true => (used, None),
                false => {
                    job.waiter.cut(lane, decisions);
                    (used, Some(ReadOutcome::Replaced))
                }
            },
            Ok((used, Piece::End)) => {
                job.waiter.end(lane, &trailer_lines(&trailers), decisions);
                (used, Some(ReadOutcome::Whole))
            }
            Err(_) => (0, Some(ReadOutcome::Bad)),
        }
    }
}
