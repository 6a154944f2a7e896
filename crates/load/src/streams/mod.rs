//! One HTTP/2 connection: its state machine, and the requests that wait for their responses.
//!
//! ```text
//! worker ── ask ──> machine ──> out ──> socket
//!                      │
//! socket ──> take ─────┴──> Ended: what became of a request ──> worker
//! ```
//!
//! Response bodies are not stored, so the receive windows are as large as possible. Each pending request is one entry
//! in a table with one slot per stream.

mod blocks;
mod table;

use flatout_wire::h2::{Asking, Connection, Event, Limits, RESETS_REMEMBERED, Room, StreamId};
use flatout_wire::head::HeadLimits;

pub(crate) use self::blocks::Blocks;
use self::table::{Body, Stream, Table};
use crate::answers::Expected;
use crate::plan::Plan;
use crate::tally::ErrorKind;

/// Bytes that may be queued for sending before the connection waits for the socket.
const OUT_BYTES_MAX: usize = 256 << 10;

/// The receive windows: bodies are counted and dropped.
const WINDOW_BYTES: u32 = (1 << 30) - 1;

/// Requests per connection: more would run out of stream ids.
const REQUESTS_MAX: u32 = 1 << 29;

/// One connection's streams.
#[derive(Debug)]
pub(crate) struct Session {
    machine: Connection,
    table: Table,
    /// Bytes for the socket. Nothing is received until it has taken them.
    pub(crate) out: Vec<u8>,
    /// An incomplete frame: 16 KiB at most.
    rest: Vec<u8>,
    /// Streams whose bodies were not completely sent.
    sending: Vec<StreamId>,
    /// It has one stream, which every server allows. With more, we wait for the server's SETTINGS.
    is_single: bool,
    /// Requests that it may still start.
    left: u32,
    /// Streams that we have abandoned. The state machine ignores what still arrives on this many.
    given_up: usize,
    /// The server has sent GOAWAY.
    is_left: bool,
}

/// The result of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) due_ns: u64,
    pub(crate) since_ns: u64,
    /// The status of a complete response; `None` without one.
    pub(crate) status: Option<u16>,
    pub(crate) error: Option<ErrorKind>,
}

impl Session {
    /// Starts the session.
    pub(crate) fn new(plan: &Plan, streams: usize) -> Session {
        let limits = Limits {
            head: HeadLimits { head_bytes_max: plan.head_bytes_max, ..HeadLimits::default() },
            streams_max: streams as u32,
            stream_window: WINDOW_BYTES,
            connection_window: WINDOW_BYTES,
            // Resets by the server are counted, not limited. They cost no memory.
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

    /// Whether no more requests can be sent and none is pending: the connection has to be replaced.
    pub(crate) fn is_over(&self) -> bool {
        self.is_spent() && self.table.len() == 0
    }

    /// Whether the server has sent GOAWAY.
    pub(crate) fn is_left(&self) -> bool {
        self.is_left
    }

    /// When the oldest pending request was due.
    pub(crate) fn oldest_due_ns(&self) -> Option<u64> {
        self.table.iter().map(|stream| stream.due_ns).min()
    }

    /// Requests that wait for their responses.
    pub(crate) fn in_flight(&self) -> usize {
        self.table.len()
    }

    /// How many streams the server allows, if it has said so.
    pub(crate) fn streams_allowed(&self) -> Option<u32> {
        self.machine.has_begun().then(|| self.machine.peer_streams_max())
    }

    fn is_spent(&self) -> bool {
        self.left == 0 || self.is_left || self.given_up >= RESETS_REMEMBERED
    }

    /// Sends a request if [`Session::can_ask`]. Returns whether it was sent.
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

    /// Copies the incomplete frame to the start of the buffer for the next receive, and returns its length.
    pub(crate) fn copy_rest(&self, buffer: &mut [u8]) -> usize {
        let room = &mut buffer[..self.rest.len()];
        room.copy_from_slice(&self.rest);
        room.len()
    }

    /// Processes received bytes, which start with the rest of those before, and notes the results of requests.
    ///
    /// # Errors
    /// The connection is no longer usable.
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
                    // If the state machine rejected the response, it has queued a RST_STREAM.
                    let is_ours = self.out.len() > out_before;
                    let kind = if is_ours { ErrorKind::Malformed } else { ErrorKind::StreamReset };
                    ended.extend(self.forget(stream, kind));
                }
                Event::GoAway { last, .. } => {
                    self.is_left = true;
                    self.forget_all(|stream| stream.id > last, ErrorKind::GoAway, ended);
                }
                // The rest concerns the connection, or servers only.
                _ => {}
            }
        }
        self.rest.clear();
        self.rest.extend_from_slice(&bytes[at..]);
        Ok(())
    }

    /// Abandons requests that were sent before `since_ns`.
    pub(crate) fn give_up(&mut self, since_ns: u64, ended: &mut Vec<Ended>) {
        let before = ended.len();
        self.forget_all(|stream| stream.since_ns < since_ns, ErrorKind::Timeout, ended);
        self.given_up += ended.len() - before;
    }

    /// The connection has failed, and all its requests with it.
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
