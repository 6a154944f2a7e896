//! From frames to responses.

use bytes::Bytes;
use flatout_engine::{Body, GuestKey, Lane, Moved, Response};
use flatout_lane::clock;
use flatout_wire::Status;
use flatout_wire::h1::Trailers;
use flatout_wire::h2::{AnswerHead, Code, Event, Fault, Room, StreamId};

use super::{JOINED_BYTES_MAX, OUT_BYTES_MAX, Over, Session, Stream};
use crate::proxy::answering::write_response;
use crate::proxy::links::{Links, State};
use crate::proxy::response::{Received, passed_trailers, trailer_lines};
use crate::proxy::upstream::Upstream;
use crate::proxy::waiter::Told;
use crate::proxy::watch::Watch;
use crate::site::MadeBy;

/// Reads from one connection before others get their turn.
const READS_PER_CALL: usize = 8;

/// The result of receiving.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Went {
    On,
    /// The server's SETTINGS have arrived.
    Opened,
    /// The server has closed the connection, or the connection has failed.
    Ended,
    /// The server has violated the protocol.
    Fault(String),
}

impl Links {
    /// Receives from a server, and passes the content on to the clients. Streams that ended are left in
    /// [`Session::over`].
    pub(super) fn receive_h2(&self, state: &mut State, at: usize) -> Went {
        for _ in 0..READS_PER_CALL {
            let State { table, told, room, .. } = &mut *state;
            let Some(link) = table.get(at) else { return Went::On };
            let Some(session) = link.session.as_deref_mut() else { return Went::On };
            if !link.is_readable || session.is_gone || session.pending_bytes() > OUT_BYTES_MAX {
                return Went::On;
            }
            let mut buffer = self.lane.buffer();
            let held = link.held.len();
            let Some(into) = buffer.get_mut(held..) else { return Went::On };
            let end = match self.lane.receive(link.guest, into) {
                Moved::Bytes(0) | Moved::Broken => {
                    link.is_readable = false;
                    return Went::Ended;
                }
                Moved::Bytes(count) => {
                    link.is_readable = count == into.len() || link.is_read_closed;
                    held + count
                }
                Moved::WouldBlock => {
                    link.is_readable = false;
                    return Went::On;
                }
            };
            if let Some(start) = buffer.get_mut(..held) {
                start.copy_from_slice(&link.held);
                link.held.clear();
            }
            let Some(upstream) = self.upstreams.get(link.place.upstream) else { return Went::On };
            let bytes = buffer.get(..end).unwrap_or_default();
            session.receipts += 1;
            let mut hearing = Hearing {
                lane: &self.lane,
                guest: link.guest,
                upstream,
                server: link.place.server,
                watch: &self.watch,
                told,
                now_ns: clock::nanoseconds(),
            };
            let heard = hearing.hear(session, bytes, room);
            hearing.answer_deferred(session);
            hearing.pass_joined(session);
            match heard {
                Ok(used) => link.held.extend_from_slice(bytes.get(used..).unwrap_or_default()),
                Err(fault) => return Went::Fault(reason(session.is_ready, fault, bytes)),
            }
            if !session.is_ready && session.machine.knows_peer() {
                return Went::Opened;
            }
        }
        // The socket may have more, and no new edge would report it. Other connections go first, then this one again.
        if let Some((session, guest, _)) = state.table.get(at).and_then(|link| link.shared()) {
            self.schedule(session, guest);
        }
        Went::On
    }

    /// Passes on held content of one stream or of all, if its client has room now.
    pub(super) fn release_held(&self, state: &mut State, at: usize, only: Option<StreamId>) {
        let State { table, told, .. } = &mut *state;
        let Some((session, ..)) = table.get(at).and_then(|link| link.shared()) else { return };
        let ids: Vec<StreamId> = match only {
            Some(id) => vec![id],
            None => session.streams.iter().map(|entry| entry.id).collect(),
        };
        for id in ids {
            let Some(stream) = session.live(id).filter(|stream| !stream.held.is_empty()) else { continue };
            if !stream.job.waiter.has_room(&self.lane) {
                continue;
            }
            let held = std::mem::take(&mut stream.held);
            let bytes = held.len();
            let is_wanted = stream.job.waiter.push(&self.lane, held.into());
            let end = stream.end.take().filter(|_| is_wanted);
            match (is_wanted, &end) {
                (false, _) => stream.job.waiter.cut(&self.lane, told),
                (true, Some(trailers)) => stream.job.waiter.end(&self.lane, &trailer_lines(trailers), told),
                (true, None) => stream.seen_ns = clock::nanoseconds(),
            }
            session.holding = session.holding.saturating_sub(1);
            session.machine.consumed(id, bytes, &mut session.out);
            match (is_wanted, end) {
                (false, _) => session.end(id, Over::Unwanted),
                (true, Some(_)) => session.end(id, Over::Whole),
                (true, None) => {}
            }
        }
    }
}

/// The reason of a connection error, for the log.
fn reason(was_ready: bool, fault: Fault, bytes: &[u8]) -> String {
    match !was_ready && bytes.starts_with(b"HTTP/1") {
        true => "it responds in HTTP/1".to_owned(),
        false => fault.reason.to_owned(),
    }
}

/// Everything else that reading responses needs.
struct Hearing<'a> {
    lane: &'a Lane,
    guest: GuestKey,
    upstream: &'a Upstream,
    server: usize,
    watch: &'a Watch,
    told: &'a mut Told,
    now_ns: u64,
}

impl Hearing<'_> {
    /// Processes bytes and returns how many were used. The rest is the start of a frame.
    fn hear(&mut self, session: &mut Session, bytes: &[u8], room: &mut Room) -> Result<usize, Fault> {
        let mut used = 0;
        loop {
            let rest = bytes.get(used..).unwrap_or_default();
            let (taken, event) = session.machine.receive(rest, room, &mut session.out)?;
            used += taken;
            match event {
                Event::NeedMore => return Ok(used),
                Event::Answer { stream, head, is_whole } => self.answer(session, stream, &head, is_whole),
                Event::Data { stream, bytes } => self.data(session, stream, bytes),
                Event::End { stream, trailers } => self.end(session, stream, trailers),
                Event::Interim { stream, head } => self.interim(session, stream, &head),
                Event::Reset { stream, code } => {
                    // What came before that still goes to its client.
                    self.pass_on(session, stream);
                    reset(session, stream, code);
                }
                Event::Room { stream: Some(id) } => self.room(session, id),
                Event::Room { stream: None } => give_turns(session),
                Event::GoAway { last, .. } => {
                    let unseen = session.streams.iter().map(|entry| entry.id).filter(|id| *id > last);
                    for id in unseen.collect::<Vec<_>>() {
                        session.end(id, Over::Unseen);
                    }
                }
                // Events of a server's role.
                Event::Handled | Event::Request { .. } | Event::Refused { .. } => {}
            }
        }
    }

    fn interim(&mut self, session: &mut Session, id: StreamId, head: &AnswerHead<'_>) {
        let Some(stream) = session.live(id) else { return };
        stream.seen_ns = self.now_ns;
        // We have already sent one to the client.
        if head.status != Status::CONTINUE && !stream.job.waiter.is_rule() {
            stream.job.waiter.inform(self.lane, head.status, &received(head).interim_lines());
        }
    }

    /// The head of a response. It is held until everything received was processed.
    fn answer(&mut self, session: &mut Session, id: StreamId, head: &AnswerHead<'_>, is_whole: bool) {
        let Some(stream) = session.live(id) else { return };
        stream.seen_ns = self.now_ns;
        stream.kept = None;
        stream.length = head.length;
        let mut response = self.lane.response();
        let received = received(head);
        write_response(&received, &mut stream.job, self.upstream, self.server, self.watch, &mut response);
        stream.response = Some(response);
        if is_whole || stream.job.sent.is_head || head.status.is_bodyless() {
            return self.whole(session, id, Trailers::new());
        }
        session.deferred.push(id);
    }

    /// A piece of a response's content.
    fn data(&mut self, session: &mut Session, id: StreamId, bytes: &[u8]) {
        let lane = self.lane;
        let mut is_held = false;
        let mut is_full = false;
        let mut begins = false;
        if let Some(stream) = session.live(id) {
            stream.seen_ns = self.now_ns;
            if let Some(response) = &mut stream.response {
                response.buffer().extend_from_slice(bytes);
            } else if !stream.joined.is_empty()
                || (stream.held.is_empty() && stream.job.waiter.has_room(lane))
            {
                begins = stream.joined.is_empty();
                stream.joined.extend_from_slice(bytes);
                is_full = stream.joined.len() >= JOINED_BYTES_MAX;
            } else {
                let was_empty = stream.held.is_empty();
                stream.held.extend_from_slice(bytes);
                session.holding += usize::from(was_empty);
                is_held = true;
            }
        }
        if is_full {
            self.pass_on(session, id);
        } else if begins {
            session.joining.push(id);
        }
        // Give credit for content that was passed on.
        if !is_held {
            session.machine.consumed(id, bytes.len(), &mut session.out);
        }
    }

    /// Forwards the joined content of all streams.
    fn pass_joined(&mut self, session: &mut Session) {
        while let Some(id) = session.joining.pop() {
            self.pass_on(session, id);
        }
    }

    /// Forwards the joined content of a stream. There was room when joining started, and nothing else has
    /// used it.
    fn pass_on(&mut self, session: &mut Session, id: StreamId) {
        let Some(stream) = session.live(id).filter(|stream| !stream.joined.is_empty()) else { return };
        let joined = std::mem::take(&mut stream.joined);
        if !stream.job.waiter.push(self.lane, joined.into()) {
            stream.job.waiter.cut(self.lane, self.told);
            session.end(id, Over::Unwanted);
        }
    }

    /// The end of a response's content.
    fn end(&mut self, session: &mut Session, id: StreamId, trailers: Trailers) {
        self.pass_on(session, id);
        let Some(stream) = session.live(id) else { return };
        stream.seen_ns = self.now_ns;
        if stream.response.is_some() {
            return self.whole(session, id, trailers);
        }
        if !stream.held.is_empty() {
            stream.end = Some(trailers);
            return;
        }
        stream.job.waiter.end(self.lane, &trailer_lines(&trailers), self.told);
        session.end(id, Over::Whole);
    }

    /// A response is complete: it is passed on in one piece.
    fn whole(&mut self, session: &mut Session, id: StreamId, trailers: Trailers) {
        let Some(stream) = session.live(id) else { return };
        let Some(mut response) = stream.response.take() else { return };
        // A waiter that is not a client takes trailers only after pushed content.
        if !trailers.is_empty() && stream.job.waiter.exchange().is_none() {
            let is_wanted = self.begin(stream, response);
            if is_wanted {
                stream.job.waiter.end(self.lane, &trailer_lines(&trailers), self.told);
            }
            return session.end(id, if is_wanted { Over::Whole } else { Over::Unwanted });
        }
        for (name, value) in passed_trailers(&trailers) {
            response.trailer(str::from_utf8(name).unwrap_or_default(), value);
        }
        stream.job.is_answered = true;
        stream.job.waiter.answer(self.lane, Some(self.guest), response, MadeBy::Upstream);
        // For any other waiter, this is everything.
        if stream.job.waiter.is_rule() {
            stream.job.waiter.end(self.lane, b"", self.told);
        }
        session.end(id, Over::Whole);
    }

    /// Starts the responses that are not complete yet.
    fn answer_deferred(&mut self, session: &mut Session) {
        while let Some(id) = session.deferred.pop() {
            let Some(stream) = session.live(id) else { continue };
            let Some(response) = stream.response.take() else { continue };
            let is_wanted = self.begin(stream, response);
            let exchange = stream.job.waiter.exchange();
            if !is_wanted {
                session.end(id, Over::Unwanted);
            } else if let Some(at) = session.find(id)
                && let Some(entry) = session.streams.get_mut(at)
            {
                // A cache may have passed the response on to a client.
                entry.exchange = exchange;
            }
        }
    }

    /// Starts a response with the content received so far. Returns whether more is wanted.
    fn begin(&mut self, stream: &mut Stream, mut response: Box<Response>) -> bool {
        let content = match response.take_body() {
            Body::Shared(bytes) => bytes,
            _ => Bytes::new(),
        };
        response.set_body(Body::Pushed);
        if let Some(length) = stream.length {
            response.declare_length(length);
        }
        let job = &mut stream.job;
        job.is_answered = true;
        if !job.waiter.answer(self.lane, Some(self.guest), response, MadeBy::Upstream) {
            return false;
        }
        if !content.is_empty() && !job.waiter.push(self.lane, content) {
            job.waiter.cut(self.lane, self.told);
            return false;
        }
        true
    }

    /// The window of a stream has grown.
    fn room(&mut self, session: &mut Session, id: StreamId) {
        let Some(stream) = session.live(id) else { return };
        stream.seen_ns = self.now_ns;
        if !stream.rest.is_empty() {
            session.give_turn(id);
        }
    }
}

/// The window of the connection has grown.
fn give_turns(session: &mut Session) {
    let waits = |entry: &&super::Entry| !entry.stream.rest.is_empty();
    let ids: Vec<StreamId> = session.streams.iter().filter(waits).map(|entry| entry.id).collect();
    ids.into_iter().for_each(|id| session.give_turn(id));
}

/// A stream was reset.
fn reset(session: &mut Session, id: StreamId, code: Code) {
    let is_refused = code == Code::REFUSED_STREAM;
    session.is_resting |= is_refused;
    session.end(id, if is_refused { Over::Refused } else { Over::Reset(code) });
}

fn received<'b>(head: &AnswerHead<'b>) -> Received<'b> {
    let (bytes, fields) = head.lines();
    Received { status: head.status, version: "2", head_bytes: bytes.len(), bytes, fields }
}
