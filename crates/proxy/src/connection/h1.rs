//! Receives an upstream response and passes it to the client.

use bytes::Bytes;
use flatout_engine::{Body, GuestKey, Lane, Response, bug};
use flatout_gateway::ResponseOrigin;
use flatout_wire::Status;
use flatout_wire::answer::{ResponseFraming, parse_fields};
use flatout_wire::field::Field;
use flatout_wire::h1::{AnswerEvent, Client, Piece};

use crate::connection::UpstreamConnection;
use crate::connection::response::{FIELDS_MAX, HEAD_BYTES_MAX, Received, trailer_lines, write_response};
use crate::pool::Group;
use crate::receiver::PendingDecisions;
use crate::request::job::Job;
use crate::request::upgrade::was_asked;
use crate::upstream::LiveUpstream;
use crate::watch::Watch;
use crate::worker::retry::rejects;

/// The result of reading from a server.
pub(crate) enum ReadOutcome {
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
    /// Another server is asked instead, because of this status. Whether the response was received completely.
    Rejected(Status, bool),
}

/// What reading a response needs besides its connection.
pub(crate) struct ResponseReader<'a> {
    pub(crate) lane: &'a Lane,
    pub(crate) guest: GuestKey,
    pub(crate) upstream: &'a LiveUpstream,
    pub(crate) watch: &'a Watch,
    pub(crate) fields: &'a mut Vec<Field>,
    pub(crate) group: &'a mut Group,
    pub(crate) decisions: &'a mut PendingDecisions,
}

impl ResponseReader<'_> {
    /// Reads a response. Returns how many bytes were used, and the result.
    pub(crate) fn consume(
        &mut self,
        connection: &mut UpstreamConnection,
        bytes: &[u8],
    ) -> (usize, ReadOutcome) {
        let mut used = 0;
        loop {
            let rest = bytes.get(used..).unwrap_or_default();
            let Some(job) = connection.job.as_deref_mut() else {
                bug!("a response without a request");
                return (used, ReadOutcome::Bad);
            };
            let (taken, outcome) = match job.is_answered {
                false => self.head(&mut connection.machine, job, connection.server_id.server, rest),
                true => {
                    let part = self.body(&mut connection.machine, job, rest);
                    connection.forwarded_bytes = connection.forwarded_bytes.wrapping_add(part.0 as u64);
                    part
                }
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
        let ResponseReader { lane, guest, upstream, watch, fields, group, decisions } = self;
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
                if answer.status != Status::CONTINUE && !job.receiver.is_rule() {
                    job.receiver.inform(lane, answer.status, &received.interim_lines());
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
            _ if answer.status.code() >= 400 && rejects(group, job, upstream, server, answer.status) => {
                let whole = machine.whole_body(bytes.get(used..).unwrap_or_default());
                let rest = whole.map_or(0, <[u8]>::len);
                (used + rest, Some(ReadOutcome::Rejected(answer.status, whole.is_some())))
            }
            _ => {
                let mut response = lane.response();
                write_response(&received, job, upstream, (&group.shares, server), watch, &mut response);
                job.is_answered = true;
                let rest = bytes.get(used..).unwrap_or_default();
                let whole = machine.whole_body(rest);
                if whole.is_none() {
                    job.spool_bytes_max = received.spool_bytes_max(job.spool_bytes_max);
                }
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
                let goes_on = job.receiver.answer(lane, Some(*guest), response, ResponseOrigin::Upstream);
                match whole {
                    Some(body) => {
                        // Other receivers already have the complete response.
                        if job.receiver.is_rule() {
                            job.receiver.end(lane, b"", decisions);
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
        if !bytes.is_empty() && !job.receiver.has_room(lane) {
            return (0, Some(ReadOutcome::More));
        }
        let mut trailers = Vec::new();
        match machine.body(bytes, &mut trailers) {
            Ok((used, Piece::NeedMore)) => (used, Some(ReadOutcome::More)),
            Ok((used, Piece::Data(data))) => match job.receiver.push(lane, Bytes::copy_from_slice(data)) {
                true => (used, None),
                false => {
                    job.receiver.cut(lane, decisions);
                    (used, Some(ReadOutcome::Replaced))
                }
            },
            Ok((used, Piece::End)) => {
                job.receiver.end(lane, &trailer_lines(&trailers), decisions);
                (used, Some(ReadOutcome::Whole))
            }
            Err(_) => (0, Some(ReadOutcome::Bad)),
        }
    }
}
