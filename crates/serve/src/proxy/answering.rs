//! Receives an upstream response and passes it to the client.

use bytes::Bytes;
use flatout_engine::{Body, GuestKey, Lane, Moved, PIPE_BYTES, Response};
use flatout_wire::Status;
use flatout_wire::answer::{Framing, parse_fields};
use flatout_wire::field::Field;
use flatout_wire::h1::{AnswerEvent, Client, Piece};

use super::job::Job;
use super::link::Link;
use super::links::{Links, State};
use super::response::{FIELDS_MAX, HEAD_BYTES_MAX, Received, trailer_lines};
use super::sticky;
use super::upstream::Upstream;
use super::waiter::{Told, Waiter};
use super::watch::Watch;
use crate::site::MadeBy;

/// Reads of one connection before others get their turn.
const READS_PER_CALL: usize = 8;

/// From this size on, the rest of a body is received into its own memory, or goes through a pipe.
const PASSED_BYTES_MIN: u64 = 64 << 10;

/// The result of reading from a server.
enum Came {
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

impl Links {
    /// Receives what a server has sent, while its client has room for it.
    pub(super) fn receive(&self, state: &mut State, at: usize) {
        for _ in 0..READS_PER_CALL {
            let State { table, fields, told, .. } = &mut *state;
            let Some(link) = table.get(at) else { return };
            let Some(job) = &link.job else {
                // Unexpected bytes, EOF, or a TLS record without data.
                if link.is_readable && self.has_closed(link) {
                    return self.close(state, at);
                }
                link.is_readable = false;
                return;
            };
            if job.is_answered && !job.waiter.has_room(&self.lane) {
                return;
            }
            if !link.is_readable && link.held.is_empty() {
                return;
            }
            if job.is_answered
                && let Some(came) = self.pass(link, told)
            {
                match came {
                    Came::More if link.is_readable => continue,
                    Came::More => return,
                    came => return self.came(state, at, came),
                }
            }
            let mut buffer = self.lane.buffer();
            let held = link.held.len();
            let Some(room) = buffer.get_mut(held..) else { return };
            let received =
                if link.is_readable { self.lane.receive(link.guest, room) } else { Moved::WouldBlock };
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
                    link.is_readable = count == room.len() || link.is_read_closed;
                    held + count
                }
                Moved::WouldBlock => {
                    link.is_readable = false;
                    if held == 0 {
                        return;
                    }
                    held
                }
            };
            if let Some(start) = buffer.get_mut(..held) {
                start.copy_from_slice(&link.held);
                link.held.clear();
            }
            let Some(upstream) = self.upstreams.get(link.place.upstream) else { return };
            self.lane.set_deadline(link.guest, Some(upstream.plan.read_time_max));
            let bytes = buffer.get(..end).unwrap_or_default();
            let guest = link.guest;
            let watch = &self.watch;
            let (used, came) =
                Reader { lane: &self.lane, guest, upstream, watch, fields, told }.consume(link, bytes);
            if let Some(rest) = bytes.get(used..).filter(|rest| !rest.is_empty()) {
                link.held.extend_from_slice(rest);
            }
            drop(buffer);
            match came {
                Came::More if received == Moved::WouldBlock => return,
                Came::More => {}
                came => return self.came(state, at, came),
            }
        }
        // There may be more data without another edge: let others run first, then call this one again.
        if let Some(link) = state.table.get(at) {
            self.lane.call_again(link.guest);
        }
    }

    /// Moves a large part of a response's body without looking at it. `None` if it has to be received into the lane's
    /// buffer.
    fn pass(&self, link: &mut Link, told: &mut Told) -> Option<Came> {
        let plain = link.machine.plain_bytes();
        if plain < PASSED_BYTES_MIN || !link.held.is_empty() {
            return None;
        }
        let job = link.job.as_mut()?;
        if job.waiter.is_rule() {
            return None;
        }
        let is_piped = link.is_piped && job.waiter.exchange().is_some_and(|key| self.lane.takes_pipes(key));
        let most = usize::try_from(plain).map_or(PIPE_BYTES, |plain| plain.min(PIPE_BYTES));
        let moved = match is_piped {
            true => {
                let mut pipe = self.lane.pipe().ok()?;
                let moved = self.lane.fill_pipe(link.guest, &mut pipe, most);
                if matches!(moved, Moved::Bytes(1..)) {
                    job.waiter.push_pipe(&self.lane, pipe);
                }
                moved
            }
            false => {
                let mut piece = vec![0; most];
                let moved = self.lane.receive(link.guest, &mut piece);
                if let Moved::Bytes(count @ 1..) = moved {
                    link.is_readable = count == most || link.is_read_closed;
                    job.waiter.push(&self.lane, fitted(piece, count));
                }
                moved
            }
        };
        match moved {
            Moved::Broken => Some(Came::Bad),
            Moved::Bytes(0) => match link.machine.finish() {
                Ok(true) => {
                    job.waiter.end(&self.lane, b"", told);
                    Some(Came::Whole)
                }
                Ok(false) | Err(_) => Some(Came::Bad),
            },
            Moved::WouldBlock => {
                link.is_readable = false;
                Some(Came::More)
            }
            Moved::Bytes(count) => {
                link.machine.passed(count as u64);
                if link.machine.plain_bytes() > 0 {
                    return Some(Came::More);
                }
                let end = link.machine.body(&[], &mut Vec::new());
                let is_whole = matches!(end, Ok((_, Piece::End)));
                if is_whole {
                    job.waiter.end(&self.lane, b"", told);
                }
                Some(if is_whole { Came::Whole } else { Came::Bad })
            }
        }
    }

    /// Acts on the result of a read.
    fn came(&self, state: &mut State, at: usize, came: Came) {
        match came {
            Came::More => {}
            Came::Whole => self.complete(state, at),
            Came::Bad => self.failed(state, at),
            Came::Replaced => self.close(state, at),
            Came::Switch(response) => self.switch(state, at, response),
        }
    }

    /// The server has closed its side (EOF).
    fn ended(&self, state: &mut State, at: usize) {
        let Some(link) = state.table.get(at) else { return };
        link.is_readable = false;
        link.is_read_closed = true;
        let was_answered = link.job.as_ref().is_some_and(|job| job.is_answered);
        match link.machine.finish() {
            Ok(true) if was_answered => {
                if let Some(job) = &mut link.job {
                    job.waiter.end(&self.lane, b"", &mut state.told);
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
    upstream: &Upstream,
    server: usize,
    watch: &Watch,
    response: &mut Response,
) {
    received.write(job.via.as_deref(), job.sent.is_head, response);
    // No sticky cookie in a response that may be stored.
    if job.stuck_to != Some(server) && !matches!(job.waiter, Waiter::Taker(_)) {
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
struct Reader<'a> {
    lane: &'a Lane,
    guest: GuestKey,
    upstream: &'a Upstream,
    watch: &'a Watch,
    fields: &'a mut Vec<Field>,
    told: &'a mut Told,
}

impl Reader<'_> {
    /// Reads a response. Returns how many bytes were used, and the result.
    fn consume(&mut self, link: &mut Link, bytes: &[u8]) -> (usize, Came) {
        let mut used = 0;
        loop {
            let rest = bytes.get(used..).unwrap_or_default();
            let Some(job) = link.job.as_deref_mut() else { return (used, Came::More) };
            let (taken, came) = match job.is_answered {
                false => self.head(&mut link.machine, job, link.place.server, rest),
                true => self.body(&mut link.machine, job, rest),
            };
            used += taken;
            if let Some(came) = came {
                return (used, came);
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
    ) -> (usize, Option<Came>) {
        let Reader { lane, guest, upstream, watch, fields, told } = self;
        let event = machine
            .head(bytes, |bytes, to_head| parse_fields(bytes, to_head, HEAD_BYTES_MAX, FIELDS_MAX, fields));
        let Ok(event) = event else { return (0, Some(Came::Bad)) };
        let answer = match event {
            AnswerEvent::NeedMore => return (0, Some(Came::More)),
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
                if let Some(expected) = &job.accept
                    && !received.field_all(b"sec-websocket-accept").eq([expected.as_bytes()])
                {
                    return (used, Some(Came::Bad));
                }
                let mut response = lane.response();
                received.write_switching(&mut response);
                job.trail.answered(watch, answer.status, &mut response);
                (used, Some(Came::Switch(response)))
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
                    (None, Framing::Length(length)) => {
                        response.set_body(Body::Pushed).declare_length(length);
                    }
                    (None, _) => {
                        response.set_body(Body::Pushed);
                    }
                }
                let goes_on = job.waiter.answer(lane, Some(*guest), response, MadeBy::Upstream);
                match whole {
                    Some(body) => {
                        // Other waiters already have the complete response.
                        if job.waiter.is_rule() {
                            job.waiter.end(lane, b"", told);
                        }
                        (used + body.len(), Some(Came::Whole))
                    }
                    None if goes_on => (used, None),
                    None => (used, Some(Came::Replaced)),
                }
            }
        }
    }

    /// Reads a piece of a response's body. `None` means continue.
    fn body(&mut self, machine: &mut Client, job: &mut Job, bytes: &[u8]) -> (usize, Option<Came>) {
        let Reader { lane, told, .. } = self;
        // The end needs no room, and no later event would report it.
        if !bytes.is_empty() && !job.waiter.has_room(lane) {
            return (0, Some(Came::More));
        }
        let mut trailers = Vec::new();
        match machine.body(bytes, &mut trailers) {
            Ok((used, Piece::NeedMore)) => (used, Some(Came::More)),
            Ok((used, Piece::Data(data))) => match job.waiter.push(lane, Bytes::copy_from_slice(data)) {
                true => (used, None),
                false => {
                    job.waiter.cut(lane, told);
                    (used, Some(Came::Replaced))
                }
            },
            Ok((used, Piece::End)) => {
                job.waiter.end(lane, &trailer_lines(&trailers), told);
                (used, Some(Came::Whole))
            }
            Err(_) => (0, Some(Came::Bad)),
        }
    }
}
