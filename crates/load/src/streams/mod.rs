//! One connection of HTTP/2: its machine, and the requests that wait for their responses on it.
//!
//! ```text
//! worker ── ask ──> machine ──> out ──> socket
//!                      │
//! socket ──> take ─────┴──> Ended: what became of a request ──> worker
//! ```
//!
//! What a server sends is never kept, so its windows are as large as they can be. What is kept of a request is one entry of a
//! table of as many as there are streams.

mod blocks;
mod table;

use flatout_wire::h2::{Asking, Connection, Event, Limits, RESETS_REMEMBERED, Room, StreamId};
use flatout_wire::head::HeadLimits;

pub(crate) use self::blocks::Blocks;
use self::table::{Body, Stream, Table};
use crate::answers::Expected;
use crate::plan::Plan;
use crate::tally::ErrorKind;

/// Bytes that a connection may have ready to be sent before it waits for the socket.
const OUT_BYTES_MAX: usize = 256 << 10;

/// What a server may send before it hears from us: bodies are counted and dropped.
const WINDOW_BYTES: u32 = (1 << 30) - 1;

/// Requests on a connection: with more of them, the numbers of streams come to their end.
const REQUESTS_MAX: u32 = 1 << 29;

/// One connection's streams.
#[derive(Debug)]
pub(crate) struct Session {
    machine: Connection,
    table: Table,
    /// Bytes for the socket. Until it has taken them, nothing is received.
    pub(crate) out: Vec<u8>,
    /// The start of a frame that has not come whole: 16 KiB at most.
    rest: Vec<u8>,
    /// Streams whose bodies were not sent whole.
    sending: Vec<StreamId>,
    /// It has one stream, which every server allows. Several wait until the server has said how many it allows.
    is_single: bool,
    /// Requests that it may still begin.
    left: u32,
    /// Streams that we have given up. The machine passes over what still comes of so many.
    given_up: usize,
    /// The server has said that it goes away.
    is_left: bool,
}

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) due_ns: u64,
    pub(crate) since_ns: u64,
    /// The status of a whole answer; none where there is no answer.
    pub(crate) status: Option<u16>,
    pub(crate) error: Option<ErrorKind>,
}

impl Session {
    /// Begins the conversation.
    pub(crate) fn new(plan: &Plan, streams: usize) -> Session {
        let limits = Limits {
            head: HeadLimits { head_bytes_max: plan.head_bytes_max, ..HeadLimits::default() },
            streams_max: streams as u32,
            stream_window: WINDOW_BYTES,
            connection_window: WINDOW_BYTES,
            // What a server does to us is measured, not refused. It costs no memory.
            resets_max: u32::MAX,
            idle_frames_max: u32::MAX,
            connect_protocol: false,
        };
        let mut out = Vec::new();
        Session {
            machine: Connection::client(limits, &mut out),
            table: Table::new(streams),
            out,
            rest: Vec::new(),
            sending: Vec::new(),
            is_single: streams == 1,
            left: if plan.close { 1 } else { REQUESTS_MAX },
            given_up: 0,
            is_left: false,
        }
    }

    /// Whether a request can be sent now.
    #[inline]
    pub(crate) fn can_ask(&self) -> bool {
        let has_begun = self.is_single || self.machine.has_begun();
        has_begun && !self.is_spent() && self.out.len() < OUT_BYTES_MAX && self.machine.can_ask()
    }

    /// Whether no more requests can be sent, and none waits: another connection has to take its place.
    pub(crate) fn is_over(&self) -> bool {
        self.is_spent() && self.table.len() == 0
    }

    /// Whether the server has said that it goes away.
    pub(crate) fn is_left(&self) -> bool {
        self.is_left
    }

    /// Requests that wait for their responses.
    pub(crate) fn in_flight(&self) -> usize {
        self.table.len()
    }

    /// How many streams the server allows, once it has said that.
    pub(crate) fn streams_allowed(&self) -> Option<u32> {
        self.machine.has_begun().then(|| self.machine.peer_streams_max())
    }

    fn is_spent(&self) -> bool {
        self.left == 0 || self.is_left || self.given_up >= RESETS_REMEMBERED
    }

    /// Sends a request, where [`Session::can_ask`] says that it can be. Returns whether it did.
    pub(crate) fn ask(&mut self, blocks: &mut Blocks, due_ns: u64, now_ns: u64) -> bool {
        let asked = blocks.next();
        let length = asked.body.as_ref().map(|body| body.len() as u64);
        let asking = Asking { is_whole: length.is_none(), is_head: asked.is_head, is_connect: false, length };
        let encode = |out: &mut Vec<u8>| out.extend_from_slice(asked.block);
        let Some(id) = self.machine.ask(asking, encode, &mut self.out) else { return false };
        self.left -= 1;
        let body = asked.body.map(|bytes| Body { bytes, sent: 0 });
        if body.is_some() {
            self.sending.push(id);
        }
        self.table.insert(Stream::new(id, due_ns, now_ns, body));
        true
    }

    /// Sends as much of the bodies as the windows allow.
    pub(crate) fn send_bodies(&mut self) {
        let Session { machine, table, out, sending, .. } = self;
        sending.retain(|&id| {
            while out.len() < OUT_BYTES_MAX {
                let Some(body) = table.get_mut(id).and_then(|stream| stream.body.as_mut()) else {
                    return false;
                };
                let left = body.bytes.len() - body.sent;
                let bytes = machine.room(id).min(left);
                if bytes == 0 {
                    return machine.is_open(id);
                }
                let ends = bytes == left;
                if !machine.content(id, bytes, left - bytes, ends, out) {
                    return false;
                }
                out.extend_from_slice(&body.bytes[body.sent..body.sent + bytes]);
                body.sent += bytes;
                if ends {
                    return false;
                }
            }
            true
        });
    }

    /// Copies what has to stand before the bytes that are received next: how many bytes.
    pub(crate) fn copy_rest(&self, buffer: &mut [u8]) -> usize {
        let room = &mut buffer[..self.rest.len()];
        room.copy_from_slice(&self.rest);
        room.len()
    }

    /// Takes bytes that were received, behind the rest of those before, and notes what became of requests.
    ///
    /// # Errors
    /// The connection is of no use any more.
    pub(crate) fn take(
        &mut self,
        bytes: &[u8],
        room: &mut Room,
        expected: &Expected<'_>,
        ended: &mut Vec<Ended>,
    ) -> Result<(), ErrorKind> {
        let mut at = 0;
        loop {
            let out_before = self.out.len();
            let received = self.machine.receive(&bytes[at..], room, &mut self.out);
            let (used, event) = received.map_err(|_| ErrorKind::Malformed)?;
            at += used;
            match event {
                Event::NeedMore => break,
                Event::Answer { stream, head, is_whole } => {
                    if let Some(found) = self.table.get_mut(stream) {
                        found.status = Some(head.status.code());
                    }
                    if is_whole {
                        self.end(stream, expected, ended);
                    }
                }
                Event::Data { stream, bytes } => {
                    if let Some(found) = self.table.get_mut(stream) {
                        found.body_fits &= expected.fits(found.body_at, bytes);
                        found.body_at += bytes.len() as u64;
                    }
                    self.machine.consumed(stream, bytes.len(), &mut self.out);
                }
                Event::End { stream, .. } => self.end(stream, expected, ended),
                Event::Reset { stream, .. } => {
                    // Where the machine has found fault with an answer, it says so to the server.
                    let is_ours = self.out.len() > out_before;
                    let kind = if is_ours { ErrorKind::Malformed } else { ErrorKind::StreamReset };
                    ended.extend(self.forget(stream, kind));
                }
                Event::GoAway { last, .. } => {
                    self.is_left = true;
                    self.forget_all(|stream| stream.id > last, ErrorKind::GoAway, ended);
                }
                // The rest concerns the connection, or a server.
                _ => {}
            }
        }
        self.rest.clear();
        self.rest.extend_from_slice(&bytes[at..]);
        Ok(())
    }

    /// Gives up requests that were sent before `since_ns`.
    pub(crate) fn give_up(&mut self, since_ns: u64, ended: &mut Vec<Ended>) {
        let before = ended.len();
        self.forget_all(|stream| stream.since_ns < since_ns, ErrorKind::Timeout, ended);
        self.given_up += ended.len() - before;
    }

    /// The connection has failed: so have all requests on it.
    pub(crate) fn fail(&mut self, kind: ErrorKind, ended: &mut Vec<Ended>) {
        self.forget_all(|_| true, kind, ended);
    }

    fn end(&mut self, id: StreamId, expected: &Expected<'_>, ended: &mut Vec<Ended>) {
        self.machine.release(id, &mut self.out);
        let Some(stream) = self.table.remove(id) else { return };
        let Stream { due_ns, since_ns, status, body_fits, body_at, .. } = stream;
        let error = match status {
            Some(status) => expected.judge(status, body_fits, body_at),
            None => Some(ErrorKind::Malformed),
        };
        ended.push(Ended { due_ns, since_ns, status, error });
    }

    fn forget(&mut self, id: StreamId, kind: ErrorKind) -> Option<Ended> {
        self.machine.release(id, &mut self.out);
        let stream = self.table.remove(id)?;
        let kind = match kind {
            ErrorKind::Closed if stream.status.is_some() => ErrorKind::ShortBody,
            kind => kind,
        };
        Some(Ended { due_ns: stream.due_ns, since_ns: stream.since_ns, status: None, error: Some(kind) })
    }

    fn forget_all(&mut self, is_one: impl Fn(&Stream) -> bool, kind: ErrorKind, ended: &mut Vec<Ended>) {
        let lost: Vec<StreamId> =
            self.table.iter().filter(|stream| is_one(stream)).map(|stream| stream.id).collect();
        ended.extend(lost.into_iter().filter_map(|id| self.forget(id, kind)));
    }
}
