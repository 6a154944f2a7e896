//! From frames to responses.

use bytes::Bytes;
use flatout_engine::{Body, GuestKey, Lane, Response, bug};
use flatout_gateway::ResponseOrigin;
use flatout_wire::Status;
use flatout_wire::h1::Trailers;
use flatout_wire::h2::{AnswerHead, Code, ConnectionFault, Event, Room, StreamId};

use crate::connection::h2::stream::{Stream, StreamEnd};
use crate::connection::h2::{JOINED_BYTES_MAX, Session};
use crate::connection::response::{Received, passed_trailers, trailer_lines, write_response};
use crate::pool::Group;
use crate::receiver::PendingDecisions;
use crate::upstream::LiveUpstream;
use crate::watch::Watch;
use crate::worker::retry::rejects;

/// The result of receiving.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ReceiveOutcome {
    On,
    /// The server's SETTINGS have arrived.
    Opened,
    /// The server has closed the connection, or the connection has failed.
    Ended,
    /// The server has violated the protocol.
    Fault(String),
}

/// Gives the server credit for what the client of a stream has taken.
pub(crate) fn repay(lane: &Lane, session: &mut Session, id: StreamId) {
    let Session { machine, streams, out, .. } = session;
    if let Ok(at) = streams.binary_search_by_key(&id, |entry| entry.id)
        && let Some(entry) = streams.get_mut(at)
        && entry.stream.owed_bytes > 0
    {
        entry.stream.repay(id, lane, machine, out);
        session.is_starving |= entry.stream.is_starved();
    }
}

/// The reason of a connection error, for the log.
pub(crate) fn reason(was_ready: bool, fault: ConnectionFault, bytes: &[u8]) -> String {
    match !was_ready && bytes.starts_with(b"HTTP/1") {
        true => "it responds in HTTP/1".to_owned(),
        false => fault.reason.to_owned(),
    }
}

/// Everything else that reading responses needs.
pub(crate) struct FrameReader<'a> {
    pub(crate) lane: &'a Lane,
    pub(crate) guest: GuestKey,
    pub(crate) upstream: &'a LiveUpstream,
    pub(crate) server: usize,
    pub(crate) watch: &'a Watch,
    pub(crate) group: &'a mut Group,
    pub(crate) decisions: &'a mut PendingDecisions,
    pub(crate) now_ns: u64,
}

impl FrameReader<'_> {
    /// Processes bytes and returns how many were used. The rest is the start of a frame.
    pub(crate) fn hear(
        &mut self,
        session: &mut Session,
        bytes: &[u8],
        room: &mut Room,
    ) -> Result<usize, ConnectionFault> {
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
                    self.end_by_length(session, stream);
                    reset(session, stream, code);
                }
                Event::Room { stream: Some(id) } => self.room(session, id),
                Event::Room { stream: None } => give_turns(session),
                Event::GoAway { last, .. } => {
                    let unseen = session.streams.iter().map(|entry| entry.id).filter(|id| *id > last);
                    for id in unseen.collect::<Vec<_>>() {
                        session.end(id, StreamEnd::Unseen);
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
        if head.status != Status::CONTINUE && !stream.job.receiver.is_rule() {
            stream.job.receiver.inform(self.lane, head.status, &received(head).interim_lines());
        }
    }

    /// The head of a response. It is held until everything received was processed.
    fn answer(&mut self, session: &mut Session, id: StreamId, head: &AnswerHead<'_>, is_whole: bool) {
        let Some(stream) = session.live(id) else { return };
        stream.seen_ns = self.now_ns;
        if head.status.code() >= 400
            && rejects(self.group, &stream.job, self.upstream, self.server, head.status)
        {
            return session.end(id, StreamEnd::Rejected(head.status));
        }
        stream.kept = None;
        stream.length = head.length;
        let mut response = self.lane.response();
        let received = received(head);
        let server = (&self.group.shares, self.server);
        write_response(&received, &mut stream.job, self.upstream, server, self.watch, &mut response);
        stream.job.spool_bytes_max = received.spool_bytes_max(stream.job.spool_bytes_max);
        stream.response = Some(response);
        if is_whole || stream.job.sent.is_head || head.status.is_bodyless() {
            return self.whole(session, id, Trailers::new());
        }
        session.deferred.push(id);
    }

    /// A piece of a response's content.
    fn data(&mut self, session: &mut Session, id: StreamId, bytes: &[u8]) {
        let lane = self.lane;
        let mut is_full = false;
        let mut begins = false;
        if let Some(stream) = session.live(id) {
            stream.seen_ns = self.now_ns;
            stream.owed_bytes += bytes.len();
            stream.received_bytes += bytes.len() as u64;
            if let Some(response) = &mut stream.response {
                response.buffer().extend_from_slice(bytes);
            } else if !stream.joined.is_empty()
                || (stream.held.is_empty() && stream.job.receiver.has_room(lane))
            {
                begins = stream.joined.is_empty();
                stream.joined.extend_from_slice(bytes);
                is_full = stream.joined.len() >= JOINED_BYTES_MAX;
            } else {
                let was_empty = stream.held.is_empty();
                stream.held.extend_from_slice(bytes);
                session.holding += usize::from(was_empty);
            }
        } else {
            // Nobody wants it.
            session.machine.consumed(id, bytes.len(), &mut session.out);
        }
        if is_full {
            self.pass_on(session, id);
        } else if begins {
            session.joining.push(id);
        }
    }

    /// Forwards the joined content of all streams.
    pub(crate) fn pass_joined(&mut self, session: &mut Session) {
        while let Some(id) = session.joining.pop() {
            self.pass_on(session, id);
        }
    }

    /// Forwards the joined content of a stream. There was room when joining started, and nothing else has
    /// used it.
    fn pass_on(&mut self, session: &mut Session, id: StreamId) {
        let Some(stream) = session.live(id).filter(|stream| !stream.joined.is_empty()) else { return };
        let joined = std::mem::take(&mut stream.joined);
        stream.forwarded_bytes += joined.len() as u64;
        if !stream.job.receiver.push(self.lane, joined.into()) {
            stream.job.receiver.cut(self.lane, self.decisions);
            return session.end(id, StreamEnd::Unwanted);
        }
        repay(self.lane, session, id);
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
        stream.job.receiver.end(self.lane, &trailer_lines(&trailers), self.decisions);
        session.end(id, StreamEnd::Whole);
    }

    /// A response is complete: it is passed on in one piece.
    fn whole(&mut self, session: &mut Session, id: StreamId, trailers: Trailers) {
        let Some(stream) = session.live(id) else { return };
        let Some(mut response) = stream.response.take() else {
            bug!("a response without a head is complete");
            return session.end(id, StreamEnd::Reset(Code::INTERNAL_ERROR));
        };
        // A receiver that is not a client takes trailers only after pushed content.
        if !trailers.is_empty() && stream.job.receiver.exchange().is_none() {
            return match self.begin(session, id, response) {
                true => self.end(session, id, trailers),
                false => session.end(id, StreamEnd::Unwanted),
            };
        }
        for (name, value) in passed_trailers(&trailers) {
            response.trailer(str::from_utf8(name).unwrap_or_default(), value);
        }
        stream.job.is_answered = true;
        stream.job.receiver.answer(self.lane, Some(self.guest), response, ResponseOrigin::Upstream);
        // For any other receiver, this is everything.
        if stream.job.receiver.is_rule() {
            stream.job.receiver.end(self.lane, b"", self.decisions);
        }
        session.end(id, StreamEnd::Whole);
    }

    /// Starts the responses that are not complete yet.
    pub(crate) fn answer_deferred(&mut self, session: &mut Session) {
        while let Some(id) = session.deferred.pop() {
            let Some(stream) = session.live(id) else { continue };
            let Some(response) = stream.response.take() else { continue };
            match self.begin(session, id, response) {
                true => repay(self.lane, session, id),
                false => session.end(id, StreamEnd::Unwanted),
            }
        }
    }

    /// Starts a response with the content received so far. Returns whether more is wanted.
    fn begin(&mut self, session: &mut Session, id: StreamId, mut response: Box<Response>) -> bool {
        let Some(entry) = session.find(id).and_then(|at| session.streams.get_mut(at)) else { return false };
        let stream = &mut *entry.stream;
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
        if !job.receiver.answer(self.lane, Some(self.guest), response, ResponseOrigin::Upstream) {
            return false;
        }
        // A cache may have passed the response on to a client.
        entry.exchange = job.receiver.exchange();
        if content.is_empty() {
            return true;
        }
        if !job.receiver.has_room(self.lane) {
            // Interim responses have taken it.
            stream.held = content.into();
            session.holding += 1;
            return true;
        }
        let is_wanted = job.receiver.push(self.lane, content);
        if !is_wanted {
            job.receiver.cut(self.lane, self.decisions);
        }
        is_wanted
    }

    /// No end of the stream will come: a response that has all of its content is complete without it.
    fn end_by_length(&mut self, session: &mut Session, id: StreamId) {
        let is_all = |stream: &&mut Stream| stream.length == Some(stream.received_bytes);
        if session.live(id).filter(is_all).is_some_and(|stream| stream.response.is_some()) {
            self.whole(session, id, Trailers::new());
        }
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
pub(crate) fn give_turns(session: &mut Session) {
    let waits = |entry: &&super::Entry| !entry.stream.rest.is_empty();
    let ids: Vec<StreamId> = session.streams.iter().filter(waits).map(|entry| entry.id).collect();
    ids.into_iter().for_each(|id| session.give_turn(id));
}

/// A stream was reset.
pub(crate) fn reset(session: &mut Session, id: StreamId, code: Code) {
    let is_refused = code == Code::REFUSED_STREAM;
    session.is_resting |= is_refused;
    session.end(id, if is_refused { StreamEnd::Refused } else { StreamEnd::Reset(code) });
}

pub(crate) fn received<'b>(head: &AnswerHead<'b>) -> Received<'b> {
    let (bytes, fields) = head.lines();
    Received { status: head.status, version: "2", head_bytes: bytes.len(), bytes, fields }
}
